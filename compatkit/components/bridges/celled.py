"""Bridges in a matrix: which ones a cell can hold, and the adapters that stand in it."""

from __future__ import annotations

from collections.abc import Mapping

from compatkit.components.bridges.keeping import candidate_of
from compatkit.components.bridges.results import Bridge
from compatkit.errors import UsageError, type_of
from compatkit.evaluation.adapter import Adapter

ANEW = ("batch", "reestimate")
"""Policies of normalisation whose statistics are those of the features that come."""


def inserted(
    bridges: Mapping[tuple[str, str], Bridge], normalisation: str
) -> dict[tuple[str, str], tuple[Adapter, ...]]:
    """Return the adapters of bridges by the references of extractor and head.

    A matrix measures parts as they are, with adapters between, under one policy of normalisation. So a bridge that
    changes the head's weights cannot stand in it, nor one whose statistics the policy would replace by stored ones.

    Raises:
        UsageError: A bridge is under other references than its own, or cannot stand in a cell.
    """
    if not isinstance(bridges, Mapping):
        raise UsageError(
            "bridges= expects bridges by the pinned references of extractor and head, as bridges_between returns "
            f"them; got {type_of(bridges)}."
        )
    for pair, one in bridges.items():
        if not isinstance(one, Bridge) or pair != (one.extractor, one.head):
            own = f"({one.extractor!r}, {one.head!r})" if isinstance(one, Bridge) else "a Bridge"
            raise UsageError(f"bridges= holds {pair!r:.120} where {own} is expected.", subject=pair)
        _check(one, normalisation)
    return {pair: one.recombination.inserted for pair, one in bridges.items()}


def _check(one: Bridge, normalisation: str) -> None:
    made = candidate_of(one.step(one.chosen))
    if made.refitted or made.stored:
        what = "changes the head's weights" if made.refitted else "keeps the head's stored statistics"
        raise UsageError(
            f"The bridge of {one.extractor} and {one.head} by {one.chosen} {what}; a cell of a matrix has the parts as "
            "they are, under the statistics of its policy. Publish the bridge, and measure what Registry.load "
            "gives.",
            subject=one.chosen,
        )
    if made.estimates:
        check_policy(f"The bridge of {one.extractor} and {one.head} by {one.chosen}", normalisation)


def check_policy(bridge: str, normalisation: str) -> None:
    """Refuse a policy that would replace the statistics of a bridge.

    Args:
        bridge: One behind which statistics of batch normalisation are estimated, in words.
        normalisation: Policy of the matrix.

    Raises:
        UsageError: It takes stored ones.
    """
    if normalisation not in ANEW:
        raise UsageError(
            f"{bridge} has statistics of batch normalisation of its own, estimated behind it; {normalisation!r} would "
            f"put stored ones in their place. Take normalisation {' or '.join(map(repr, ANEW))}.",
            subject=normalisation,
        )

"""Pairs to bridge, their bridges, and the names that these are published under."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from compatkit.components.bridges.ladder import BEST, Bridge
from compatkit.contracts.check import check
from compatkit.errors import DataError, IncompatibleError, UsageError
from compatkit.evaluation.component import Component
from compatkit.evaluation.conditions import Settings
from compatkit.reports.tabular import Tabular

if TYPE_CHECKING:
    from compatkit.components.bridges.inputs import BridgeRequest


@attrs.frozen(eq=False)
class Pair:
    """A pair to bridge.

    Attributes:
        extractor: Extractor of the features.
        head: Head of another network.
        request: Images, rungs and settings.
        settings: Everything that the bridge depends on beside the parts.
        notes: Remarks for the bridge.
    """

    extractor: Component
    head: Component
    request: BridgeRequest
    settings: Settings
    notes: tuple[str, ...] = ()

    @property
    def references(self) -> tuple[str, str]:
        """References of extractor and head."""
        return self.extractor.reference, self.head.reference

    @property
    def label(self) -> str:
        """Names of the pair."""
        return f"{self.extractor.name} + {self.head.name}"


@attrs.frozen
class LeftOut:
    """A pair without a bridge.

    Attributes:
        reason: Why.
        failed: Whether its process died or its parts are damaged; else no bridge can be built.
    """

    reason: str
    failed: bool = False


class BridgedPairs(dict[tuple[str, str], Bridge], Tabular):
    """Bridges by pinned references of extractor and head; as a table it has a row for each pair.

    Attributes:
        left_out: Why no bridge can be built, by pair.
        failed: Why a pair could not be tried, by pair: its process died, or its parts are damaged.
        published: Reference of the published recombination, by pair.
    """

    _columns = ("extractor", "head", "rung", "says", "agreement", "kappa", "accuracy", "published", "reason")

    def __init__(self) -> None:
        super().__init__()
        self.left_out: dict[tuple[str, str], str] = {}
        self.failed: dict[tuple[str, str], str] = {}
        self.published: dict[tuple[str, str], str] = {}

    def to_json(self) -> list[dict[str, Any]]:
        """Return a row for each pair, as JSON values."""
        return self._rows()

    def _rows(self) -> list[dict[str, Any]]:
        rows = list[dict[str, Any]]()
        for (extractor, head), bridge in self.items():
            step = bridge.step(bridge.chosen)
            rows.append(
                {
                    **{"extractor": extractor, "head": head, "rung": bridge.chosen, "says": bridge.says},
                    "agreement": bridge.agreement.accuracy,
                    "kappa": None if step.agreed is None else step.agreed.kappa,
                    "accuracy": None if step.accuracy is None else step.accuracy.accuracy,
                    "published": self.published.get((extractor, head)),
                    "reason": None,
                }
            )
        for (extractor, head), reason in {**self.left_out, **self.failed}.items():
            empty = dict.fromkeys(self._columns)
            rows.append({**empty, "extractor": extractor, "head": head, "reason": reason})
        return rows


def bridged(pair: Pair, own: Callable[[], Component], rung: str) -> Bridge | LeftOut:
    """Return the bridge of a pair, or why it cannot be built.

    Args:
        pair: The pair.
        own: Returns the extractor that the head was trained with.
        rung: Name of the rung, or ``"best"``.

    Raises:
        DataError: The images are unsuitable, not a part.
        UsageError: The rung inserts no adapter.
    """
    from compatkit.components.bridges.building import bridge_pair

    report = check(pair.extractor.manifest, pair.head.manifest)
    try:
        bridge = bridge_pair(pair.extractor, pair.head, own, report, pair.request)
    except (IncompatibleError, DataError) as error:
        if isinstance(error, DataError) and error.subject is None:
            raise
        return LeftOut(str(error))
    if rung != BEST and not bridge.inserts:
        raise not_inserting(rung)
    return bridge


def not_inserting(rung: str) -> UsageError:
    """Return the error for a rung that changes the head or inserts nothing."""
    return UsageError(
        f"The rung {rung} inserts no adapter between unchanged parts. Use one that does, or {BEST} for the one in "
        "closed form with the highest agreement.",
        subject=rung,
    )


def names_of_pairs(prefix: str, pairs: Sequence[Pair]) -> Mapping[tuple[str, str], str]:
    """Return the name that each bridge is published under: ``prefix/EXTRACTOR--HEAD``, with dots for slashes.

    Args:
        prefix: First part of the names.
        pairs: The pairs.

    Raises:
        InvalidName: A name is not valid, such as a longer one than 64 characters.
        UsageError: Two pairs have the same name.
    """
    from compatkit.registry.names import check_name

    names = dict[tuple[str, str], str]()
    for pair in pairs:
        left, right = pair.extractor.name.removesuffix(".extractor"), pair.head.name.removesuffix(".head")
        name = check_name(f"{prefix}/{left.replace('/', '.')}--{right.replace('/', '.')}")
        if name in names.values():
            raise UsageError(
                f"Two pairs would be published as {name}, such as {' with '.join(pair.references)}. Publish them one "
                "by one, under names of your own.",
                subject=name,
            )
        names[pair.references] = name
    return names

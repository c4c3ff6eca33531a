"""Bridges of many pairs: those that are kept, and those that are made here or in other processes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import attrs

from compatkit.components.bridges.ladder import Bridge
from compatkit.components.bridges.pairs import BridgedPairs, LeftOut, Pair, bridged
from compatkit.contracts.check import check
from compatkit.errors import CompatkitError, FormatError, IntegrityError
from compatkit.evaluation.component import Component
from compatkit.evaluation.conditions import Progress
from compatkit.plugins.launching import Launcher
from compatkit.registry.store import Store

if TYPE_CHECKING:
    from compatkit.contracts.manifest import Edge


def bridge_pairs(
    store: Store,
    pairs: Sequence[Pair],
    own: Callable[[Component], Component],
    rung: str,
    record: bool,
    launcher: Launcher,
    publish: Callable[[Pair, Bridge], str | None],
    progress: Progress | None,
    total: int,
) -> BridgedPairs:
    """Return the bridges of pairs: those that are kept, then those made here or in other processes.

    Args:
        store: Registry.
        pairs: The pairs.
        own: Returns the extractor that a head was trained with.
        rung: Name of the rung, or ``"best"``.
        record: Whether kept bridges are taken, and new ones kept.
        launcher: Where pairs are bridged.
        publish: Publishes a bridge; returns its reference, or None if it is not published.
        progress: Called with pairs done, all pairs, and the pair.
        total: Number of all pairs, with those that need no bridge.

    Raises:
        UsageError: The rung inserts no adapter.
        DataError: Images are unsuitable for a bridge.
        EnvironmentFailure: A process does not see the registry, or it cannot be written.
    """
    made, result = dict[tuple[str, str], Bridge](), BridgedPairs()

    def take(pair: Pair, outcome: Bridge | LeftOut) -> None:
        if isinstance(outcome, LeftOut):
            (result.failed if outcome.failed else result.left_out)[pair.references] = outcome.reason
            return
        made[pair.references] = attrs.evolve(outcome, notes=(*outcome.notes, *pair.notes))
        if (reference := publish(pair, made[pair.references])) is not None:
            result.published[pair.references] = reference

    waiting = _take_kept(store, pairs, own, take) if record else list(pairs)
    done = total - len(waiting)
    if launcher.here:
        recording = record
        for number, pair in enumerate(waiting):
            if progress is not None:
                progress(done + number, total, pair.label)
            outcome = bridged(pair, lambda: own(pair.head), rung)  # noqa: B023
            recording = recording and _keep(store, pair, outcome)
            take(pair, outcome)
    elif waiting:
        from compatkit.components.bridges.jobs import bridge_in_workers

        def received(pair: Pair, outcome: Edge | LeftOut) -> None:
            take(pair, outcome if isinstance(outcome, LeftOut) else _restored(store, outcome, pair, own))

        notes = bridge_in_workers(store, waiting, rung, record, launcher, received, progress, done)
        for note in notes:
            warnings.warn(note, stacklevel=4)
    for (extractor, head), reason in result.left_out.items():
        warnings.warn(f"{extractor} with {head} has no bridge by {rung}: {reason}", stacklevel=4)
    for (extractor, head), reason in result.failed.items():
        warnings.warn(f"{extractor} with {head} was not bridged: {reason}", stacklevel=4)
    result.update({pair.references: made[pair.references] for pair in pairs if pair.references in made})
    return result


def _take_kept(
    store: Store,
    pairs: Sequence[Pair],
    own: Callable[[Component], Component],
    take: Callable[[Pair, Bridge], None],
) -> list[Pair]:
    """Take the bridges that are kept; return the other pairs."""
    from compatkit.components.bridges.keeping import kept

    edges = kept(store, [(pair.extractor, pair.head, pair.settings) for pair in pairs])
    waiting = list[Pair]()
    for pair in pairs:
        if (edge := edges.get(pair.references)) is None:
            waiting.append(pair)
            continue
        try:
            bridge = _restored(store, edge, pair, own)
        except (IntegrityError, FormatError):
            waiting.append(pair)  # removed by gc, or damaged
            continue
        take(pair, bridge)
    return waiting


def _restored(store: Store, edge: Edge, pair: Pair, own: Callable[[Component], Component]) -> Bridge:
    from compatkit.components.bridges.keeping import restored

    report = check(pair.extractor.manifest, pair.head.manifest)
    return restored(store, edge, pair.extractor, pair.head, own(pair.head), report, pair.request)


def _keep(store: Store, pair: Pair, outcome: Bridge | LeftOut) -> bool:
    """Keep a bridge; warn if the registry cannot be written, and return whether it can."""
    from compatkit.components.bridges.keeping import keep

    if isinstance(outcome, LeftOut):
        return True
    try:
        keep(store, outcome, (pair.extractor, pair.head), pair.settings, record=True)
    except CompatkitError as error:
        warnings.warn(f"Bridges are not kept in the registry: {error}", stacklevel=5)
        return False
    return True

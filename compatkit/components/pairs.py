"""Pairs in a registry: which components patterns mean, what was measured of them, and the check of all pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING

import attrs

from compatkit.contracts import evidence as cells
from compatkit.contracts.channels import Blobs, ChannelFigures, channel_statistics
from compatkit.contracts.check import report_of
from compatkit.contracts.contract import EXTRACTORS, HEADS
from compatkit.contracts.evidence import ADAPTED, Cell
from compatkit.contracts.manifest import Manifest, function_digest, trained_with
from compatkit.errors import FormatError, NotFound
from compatkit.evaluation.records import Cells, Damaged
from compatkit.registry.names import Reference
from compatkit.registry.resolving import is_pattern
from compatkit.registry.store import Store
from compatkit.reports.verdicts import Verdicts, check_all

if TYPE_CHECKING:
    from compatkit.contracts.contract import Data
    from compatkit.contracts.report import Report

Wanted = Sequence[str | Reference]
Components = dict[str, Manifest]
"""By pinned reference."""


def check_pair(store: Store, extractor: Reference, head: Reference, *, data: Data | None = None) -> Report:
    """Compare an extractor with a head, with what was measured of them.

    Args:
        store: Where they are.
        extractor: With name, version and digest.
        head: The same.
        data: As for ``check``.

    Raises:
        UsageError: The first is no extractor, or the second no head.
        DataError: As for ``check``.
        IntegrityError: A manifest or statistics are damaged.
    """
    names = str(extractor), str(head)
    left, right = store.manifest(extractor), store.manifest(head)
    lefts, rights = {names[0]: left}, {names[1]: right}
    cells, channels = measured(store, lefts, rights).get(names, ()), _channels(store, lefts, rights)
    own = names in _own(store, lefts, rights)
    return report_of(left, right, names, data=data, evidence=cells, channels=channels, own=own)


def check_pairs(store: Store, extractors: Wanted, heads: Wanted, *, data: Data | None = None) -> Verdicts:
    """Compare every extractor with every head, with what was measured of them; reads each manifest once.

    Args:
        store: Where they are.
        extractors: References and patterns; patterns pass over what is no extractor.
        heads: The same; patterns pass over what is no head.
        data: As for ``check``.

    Raises:
        NotFound: A reference points at nothing, or a pattern matches no extractor, or no head.
        UsageError: A reference that is no pattern is no extractor, or no head.
        DataError: As for ``check_all``.
        IntegrityError: A manifest or statistics are damaged.
    """
    read: dict[str, Manifest] = {}
    lefts = _chosen(store, extractors, EXTRACTORS, read)
    rights = _chosen(store, heads, HEADS, read)
    known, channels = measured(store, lefts, rights), _channels(store, lefts, rights)
    own = _own(store, lefts, rights)
    return check_all(lefts, rights, data=data, evidence=known, channels=channels, own=own)


def measured(
    store: Store, extractors: Mapping[str, Manifest], heads: Mapping[str, Manifest]
) -> dict[tuple[str, str], list[Cell]]:
    """Return what was measured of every pair, oldest first; stale where the metric has changed since.

    What was measured with adapters between is no evidence of the pair, and left out. So is a damaged result, with a
    warning that names the pair.

    Args:
        store: Where they are.
        extractors: By reference.
        heads: By reference.

    Returns:
        Cells by references of extractor and head; nothing for pairs that were never measured.
    """
    lefts, rights = (_functions(side) for side in (extractors, heads))
    found: dict[tuple[str, str], list[Cell]] = {}
    made, damaged = Cells(), Damaged()
    for result in store.evidence.kept(list(lefts), list(rights)):
        first, second = lefts[result.extractor][0], rights[result.head][0]
        try:
            cell = made.of(result, first, second)
        except FormatError as error:
            damaged.add(first, second, str(error))
            continue
        if ADAPTED in cell.settings:
            continue
        for extractor in lefts[result.extractor]:
            for head in rights[result.head]:
                found.setdefault((extractor, head), []).append(_fresh_or_stale(cell))
    damaged.warn(stacklevel=4)
    return found


def _own(store: Store, extractors: Components, heads: Components) -> set[tuple[str, str]]:
    """Return the pairs whose head was cut or trained with an extractor that computes the same as this one."""
    made_with: dict[str, list[str]] = {}
    for reference, head in heads.items():
        for one in trained_with(head):
            made_with.setdefault(one, []).append(reference)
    if not made_with:
        return set()
    lefts, found = _functions(extractors), set[tuple[str, str]]()
    for one, own in made_with.items():
        found.update(product(lefts.get(store.function_of(one) or "", ()), own))
    return found


def _functions(side: Mapping[str, Manifest]) -> dict[str, list[str]]:
    """Return the references by function digest."""
    found: dict[str, list[str]] = {}
    for reference, manifest in side.items():
        found.setdefault(function_digest(manifest), []).append(reference)
    return found


def _fresh_or_stale(cell: Cell) -> Cell:
    if cell.settings["metric_version"] == cells.METRIC_VERSION:
        return cell
    return attrs.evolve(cell, grade="stale")


def _chosen(store: Store, wanted: Wanted, kinds: Sequence[str], read: dict[str, Manifest]) -> Components:
    """Return the manifests of what is wanted; ``read`` keeps those that were read, by digest."""
    chosen: Components = {}
    for one in wanted:
        references = [store.resolve(one)] if isinstance(one, Reference) else store.select(one)
        pattern = isinstance(one, str) and is_pattern(one)
        others: list[str] = []
        for reference in references:
            digest = str(reference.digest)
            if digest not in read:
                read[digest] = store.manifest(reference)
            if pattern and read[digest].kind not in kinds:
                others.append(read[digest].kind)
            else:
                chosen[str(reference)] = read[digest]
        if len(others) == len(references):
            raise NotFound(
                f"{str(one)!r} matches {len(others)} components, none of kind {' or '.join(kinds)}: they are of kind "
                f"{' and '.join(sorted(set(others)))}.",
                subject=one,
            )
    return chosen


def _channels(store: Store, lefts: Components, rights: Components) -> Blobs:
    """Read the statistics of the channels, unless a whole side has none to compare them with."""
    sides = [_blobs(side) for side in (lefts, rights)]
    if not all(sides):
        return {}
    return {blob: _read(store, blob, name) for blob, name in (sides[0] | sides[1]).items()}


def _read(store: Store, blob: str, name: str) -> ChannelFigures:
    try:
        return ChannelFigures(*channel_statistics(store.read_blob(blob)))
    except FormatError as error:
        raise FormatError(f"{name}: {error}", subject=name) from error


def _blobs(components: Components) -> dict[str, str]:
    """Return the digests of the statistics of the channels, each with a component that names it."""
    return {
        one.per_channel["blob"]: name
        for name, manifest in components.items()
        for one in manifest.contract.statistical.features or ()
        if one.per_channel is not None
    }

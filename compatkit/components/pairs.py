"""Check one or many pairs of a registry, including their evidence."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING, get_args

import attrs

from compatkit.components.loading import PartLoader
from compatkit.contracts.batchnorm import DEFAULT, check_policy
from compatkit.contracts.check import pair_report
from compatkit.contracts.kinds import EXTRACTORS, HEADS, Kind
from compatkit.errors import FormatError
from compatkit.evaluation.component import Component
from compatkit.registry.store import Store
from compatkit.reports.verdicts import Verdicts, check_all

if TYPE_CHECKING:
    from compatkit.components.matrices.bounds import OwnHead
    from compatkit.contracts.channels import Blobs, ChannelStatistics
    from compatkit.contracts.check import Classes
    from compatkit.contracts.evidence import Cell
    from compatkit.contracts.report import Report

ANY_KIND = get_args(Kind)
Pair = tuple[str, str]
"""Extractor and head, as named in a check."""


def check_pair(
    store: Store,
    extractor: Component,
    head: Component,
    *,
    data: Classes | None = None,
    bn_policy: str = DEFAULT,
) -> Report:
    """Compare an extractor with a head, including evidence.

    Args:
        store: Store of the registry.
        extractor: Extractor of the pair.
        head: Head of the pair.
        data: As for ``check``.
        bn_policy: As for ``check``.

    Raises:
        UsageError: The first is not an extractor, the second not a head, or the policy is unknown.
        DataError: As for ``check``.
        IntegrityError: Channel statistics are damaged.
    """
    pair, sides = _pair(extractor, head), ([extractor], [head])
    return pair_report(
        extractor.manifest,
        head.manifest,
        pair,
        data=data,
        evidence=measured(store, *sides).get(pair, ()),
        channels=_channels(store, *sides),
        own=head.is_own(extractor),
        bn_policy=check_policy(bn_policy),
    )


def check_pairs(
    store: Store,
    extractors: str | Sequence[str],
    heads: str | Sequence[str],
    *,
    data: Classes | None = None,
    bn_policy: str = DEFAULT,
) -> Verdicts:
    """Compare every extractor with every head; see ``Registry.check_all``. Reads each manifest once."""
    parts = PartLoader(store)
    # a named component of another kind is rejected by the check
    lefts, rights = parts.choose(extractors, EXTRACTORS, ANY_KIND), parts.choose(heads, HEADS, ANY_KIND)
    return check_all(
        {str(part.resolved): part.manifest for part in lefts},
        {str(part.resolved): part.manifest for part in rights},
        data=data,
        evidence=measured(store, lefts, rights),
        channels=_channels(store, lefts, rights),
        own=_own(lefts, rights),
        bn_policy=bn_policy,
    )


def measured(
    store: Store, extractors: Sequence[Component], heads: Sequence[Component]
) -> dict[Pair, list[Cell]]:
    """Return the measured cells of every pair, oldest first; stale if the metric has changed since.

    Measurements with adapters are no evidence of the bare pair and are left out. Figures of metric
    plugins are left out, too; damaged results with a warning.

    Args:
        store: Store of the registry.
        extractors: Extractors of the pairs.
        heads: Heads of the pairs.

    Returns:
        Cells by pair; pairs that were never measured are absent.
    """
    lefts, rights = _by_function(extractors), _by_function(heads)
    results = store.evidence.results(list(lefts), list(rights))
    if not results:
        return {}
    from compatkit.components.matrices.bounds import OwnHead, bounds_of
    from compatkit.contracts import evidence
    from compatkit.evaluation.records import Cells, is_accuracy

    cells_of_pairs: dict[Pair, list[Cell]] = {}
    cells, parts = Cells(), PartLoader(store)
    owns: dict[str, OwnHead | None] = {}
    for result in results:
        if not is_accuracy(result):
            continue
        pairs = list(product(lefts[result.extractor], rights[result.head]))
        try:
            cell = cells.of(result, *pairs[0])
        except FormatError as error:
            cells.leave_out(*pairs[0], error)
            continue
        if evidence.ADAPTED in cell.settings:
            continue
        if cell.settings["metric_version"] != evidence.METRIC_VERSION:
            cell = attrs.evolve(cell, grade="stale")
        if cell.bound is not None:
            function = result.extractor
            if function not in owns:
                extractor = next(extractor for extractor in extractors if extractor.function == function)
                own = bounds_of(parts, [extractor], heads).get(extractor.reference)
                owns[function] = None if own is None else OwnHead(own)
            cell = cell if (own_head := owns[function]) is None else own_head.checked(cell)
        for pair in pairs:
            cells_of_pairs.setdefault(pair, []).append(cell)
    cells.warn(stacklevel=4)
    return cells_of_pairs


def _pair(extractor: Component, head: Component) -> Pair:
    return str(extractor.resolved), str(head.resolved)


def _own(extractors: Sequence[Component], heads: Sequence[Component]) -> set[Pair]:
    """Return the pairs whose head was cut from or trained with an extractor that computes the same function."""
    lefts = _by_function(extractors)
    return {
        (extractor, str(head.resolved))
        for head in heads
        for extractor in lefts.get(head.trained_function or "", ())
    }


def _by_function(side: Sequence[Component]) -> dict[str, list[str]]:
    """Return the names of components in a check, by function digest."""
    names: dict[str, list[str]] = {}
    for part in side:
        names.setdefault(part.function, []).append(str(part.resolved))
    return names


def _channels(store: Store, lefts: Sequence[Component], rights: Sequence[Component]) -> Blobs:
    """Read the channel statistics, unless one side has none."""
    sides = [_blobs(side) for side in (lefts, rights)]
    if not all(sides):
        return {}
    return {blob: _read(store, blob, name) for blob, name in (sides[0] | sides[1]).items()}


def _read(store: Store, blob: str, name: str) -> ChannelStatistics:
    from compatkit.contracts.channels import ChannelStatistics, channel_statistics

    try:
        return ChannelStatistics(*channel_statistics(store.read_blob(blob)))
    except FormatError as error:
        raise FormatError(f"{name}: {error}", subject=name) from error


def _blobs(side: Sequence[Component]) -> dict[str, str]:
    """Return the digests of the channel statistics, each with a component that names it."""
    return {
        moments.per_channel["blob"]: str(part.resolved)
        for part in side
        for moments in part.manifest.contract.statistical.features or ()
        if moments.per_channel is not None
    }

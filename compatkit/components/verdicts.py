"""Every extractor's contract against every head's: what many pairs have in common is compared once.

What a level depends on is taken from each contract once, and two such values are compared once: real contracts all
differ, by their probes at least, but few differ in what a level depends on. The comparisons say codes and severities,
which a pair's verdict is put together from. Reports, with all their texts, are made for the pairs that somebody asks
for.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Any

import attrs

from compatkit.contracts.check import check, check_kind, wiring_of
from compatkit.contracts.contract import Contract, Data, Protocol
from compatkit.contracts.evidence import Cell
from compatkit.contracts.labels import label_findings
from compatkit.contracts.manifest import Manifest, manifest_digest, trained_with
from compatkit.contracts.match import inputs_of, wiring_codes
from compatkit.contracts.report import Codes, Report, codes_of
from compatkit.contracts.rules import (
    ONE_NETWORK,
    Blobs,
    anchored,
    empirical_findings,
    figures_of,
    images_of,
    input_codes,
    newest,
    promise_of,
    protocol_codes,
    protocol_of,
    statistics_codes,
)
from compatkit.reports.verdicts import Outline, Verdicts

if TYPE_CHECKING:
    Manifests = Mapping[str, Manifest] | Sequence[Manifest]


def check_all(
    extractors: Manifests,
    heads: Manifests,
    *,
    data: Data | None = None,
    evidence: Mapping[tuple[str, str], Sequence[Cell]] | None = None,
    channels: Blobs | None = None,
) -> Verdicts:
    """Compare every extractor's contract with every head's; reads no weights.

    Args:
        extractors: By reference; without references they are numbered.
        heads: The same.
        data: As for ``check``, for all pairs.
        evidence: Measured cells by reference of extractor and head, oldest first.
        channels: As for ``check``, of all manifests.

    Returns:
        A verdict for each pair; its report says what ``check`` says.

    Raises:
        UsageError: One of the extractors is none, or one of the heads.
        DataError: Two classes of the data, or of a head, have one name, or one means the same as two of the
            other side.
    """
    lefts, rights = _named(extractors, "extractor"), _named(heads, "head")
    for name, manifest in lefts.items():
        check_kind(manifest, "first", name)
    for name, manifest in rights.items():
        check_kind(manifest, "second", name)
    known, blobs = evidence or {}, channels or {}

    def report(extractor: str, head: str) -> Report:
        cells = known.get((extractor, head), ())
        found = check(lefts[extractor], rights[head], data=data, evidence=cells, channels=blobs)
        return Report(found.wiring, found.promise, found.evidence, found.findings, extractor, head)

    asked = [_asked(data, manifest.contract, f"the head {name}") for name, manifest in rights.items()]
    contracts = [[one.contract for one in side.values()] for side in (lefts, rights)]
    # Heads that no extractor was trained against are left as they are, so that equal protocols stay equal.
    against = {anchor.digest for one in contracts[0] for anchor in one.protocol.anchors}
    protocols = [
        protocol_of(one) if one.payload.tensors in against else one.contract.protocol
        for one in rights.values()
    ]
    levels = _levels(contracts[0], contracts[1], protocols, blobs)
    own = _own(lefts, rights)
    outlines = _Outlines()
    table: list[tuple[Outline, ...]] = []
    for row, extractor in enumerate(lefts):
        structural, inputs, protocol, statistical = (level.row(row) for level in levels)
        for column in own.get(row, ()):
            protocol[column] += ONE_NETWORK
        codes = zip(structural, inputs, asked, protocol, statistical, strict=True)
        cells = [known.get((extractor, head), ()) for head in rights] if known else repeat(())
        table.append(tuple(map(outlines.of, codes, cells)))
    return Verdicts(tuple(lefts), tuple(rights), tuple(table), report)


def _named(manifests: Manifests, what: str) -> dict[str, Manifest]:
    if isinstance(manifests, Mapping):
        return dict(manifests)
    return {f"{what} {number}": one for number, one in enumerate(manifests, 1)}


def _own(lefts: Mapping[str, Manifest], rights: Mapping[str, Manifest]) -> dict[int, list[int]]:
    """Return the columns of the heads that were made with an extractor, by the extractor's row."""
    columns: dict[str, list[int]] = {}
    for column, head in enumerate(rights.values()):
        for one in trained_with(head):
            columns.setdefault(one, []).append(column)
    if not columns:
        return {}
    return {row: columns.get(manifest_digest(one), []) for row, one in enumerate(lefts.values())}


def _asked(data: Data | None, contract: Contract, head: str) -> Codes:
    if data is None or data.labels is None:
        return ()
    return codes_of(label_findings(data.labels, contract.data.labels or (), head=head))


class _Level:
    """One level of all contracts: the codes of every pair, compared once for each two different values.

    Args:
        given: What the level depends on, of each extractor.
        asked: The same of each head.
        compare: Returns the codes of two such values.
        key: Returns what tells the extractors' values apart, where they cannot be looked up themselves.
    """

    def __init__(
        self,
        given: Iterable[Any],
        asked: Iterable[Any],
        compare: Callable[[Any, Any], Codes],
        key: Callable[[Any], Hashable] | None = None,
    ) -> None:
        self._rows, self._given = _distinct(given, key)
        self._columns, self._asked = _distinct(asked)
        self._compare = compare
        self._found: dict[int, list[Codes]] = {}

    def row(self, place: int) -> list[Codes]:
        """Return the codes of an extractor with every head."""
        number = self._rows[place]
        found = self._found.get(number)
        if found is None:
            given, compare = self._given[number], self._compare
            found = self._found[number] = [compare(given, asked) for asked in self._asked]
        return [found[column] for column in self._columns]


def _levels(
    lefts: Sequence[Contract], rights: Sequence[Contract], protocols: Sequence[Protocol], blobs: Blobs
) -> tuple[_Level, ...]:
    """Return the levels that need two contracts, in the order of a report without the classes."""
    return (
        _Level(
            [(one.structural.outputs, one.data.size) for one in lefts],
            [inputs_of(one.structural.inputs, one.data) for one in rights],
            lambda given, inputs: wiring_codes(given[0], inputs, given[1]),
            _key,
        ),
        _Level([images_of(one.data) for one in lefts], [images_of(one.data) for one in rights], input_codes),
        _Level(
            [anchored(one.protocol) for one in lefts],
            list(map(anchored, protocols)),
            protocol_codes,
        ),
        _Level(
            [figures_of(one.statistical.features, blobs) for one in lefts],
            [figures_of(one.statistical.features, blobs)[: len(one.structural.inputs)] for one in rights],
            statistics_codes,
        ),
    )


class _Outlines:
    """Whole outlines, of which equal ones are one object."""

    def __init__(self) -> None:
        self._known: dict[Hashable, Outline] = {}

    def of(self, known: tuple[Codes, ...], cells: Sequence[Cell]) -> Outline:
        """Return what there is to say of a pair, without the texts.

        Args:
            known: Its codes at every level but the last: structural, data, classes, protocol, statistical.
            cells: What was measured of it.
        """
        key = (known, tuple([(one.grade, one.restricted is None) for one in cells])) if cells else known
        found = self._known.get(key)
        if found is None:
            structural, _, _, protocol, _ = known
            answers = Report(
                wiring_of(severity for _, severity in structural),
                promise_of(code for code, _ in protocol),
                newest(cells),
            )
            codes = (*known, codes_of(empirical_findings(answers, cells)))
            found = self._known[key] = Outline(answers, tuple(one for level in codes for one in level))
        return found


def _distinct(
    values: Iterable[Any], key: Callable[[Any], Hashable] | None = None
) -> tuple[list[int], list[Any]]:
    """Return a number for each value, the same for equal ones, and the values by their numbers."""
    numbers: dict[Hashable, int] = {}
    places: list[int] = []
    kept: list[Any] = []
    for value in values:
        places.append(numbers.setdefault(value if key is None else key(value), len(kept)))
        if len(numbers) > len(kept):
            kept.append(value)
    return places, kept


def _key(value: Any) -> Hashable:
    """Return a value of contracts as tuples, which can be looked up."""
    if isinstance(value, tuple):
        return tuple(map(_key, value))
    if isinstance(value, Mapping):
        return tuple(sorted((name, _key(one)) for name, one in value.items()))
    if attrs.has(type(value)):
        return type(value), *(_key(getattr(value, field.name)) for field in attrs.fields(type(value)))
    return value

"""Every extractor's contract against every head's: what many pairs have in common is compared once.

Real contracts all differ, by their probes at least; but few differ at every level. So each level is compared once
for each two different values of it, and a pair's verdict is put together from these. Reports, with all their texts,
are made for the pairs that somebody asks for.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from compatkit.compatibility import check, check_kind, wiring_of
from compatkit.contract import Contract, Data
from compatkit.evaluation.cells import Cell
from compatkit.labels import label_findings
from compatkit.levels import empirical_findings, input_findings, newest, promise_of, protocol_findings
from compatkit.reports.verdicts import Codes, Outline, Verdicts
from compatkit.statistical import Blobs, statistics_codes
from compatkit.verdict import Finding, Report
from compatkit.wiring import wiring_findings

if TYPE_CHECKING:
    from compatkit.registry.manifest import Manifest

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
        return attrs.evolve(found, extractor=extractor, head=head)

    asked = [_asked(data, manifest.contract, f"the head {name}") for name, manifest in rights.items()]
    contracts = [[one.contract for one in side.values()] for side in (lefts, rights)]
    levels = _Levels(contracts[0], contracts[1], blobs)
    outlines = tuple(
        tuple(
            levels.outline(row, column, asked[column], known.get((extractor, head), ()))
            for column, head in enumerate(rights)
        )
        for row, extractor in enumerate(lefts)
    )
    return Verdicts(tuple(lefts), tuple(rights), outlines, report)


def _named(manifests: Manifests, what: str) -> dict[str, Manifest]:
    if isinstance(manifests, Mapping):
        return dict(manifests)
    return {f"{what} {number}": one for number, one in enumerate(manifests, 1)}


def _asked(data: Data | None, contract: Contract, head: str) -> Codes:
    if data is None or data.labels is None:
        return ()
    return _codes(label_findings(data.labels, contract.data.labels or (), head=head))


def _codes(findings: Iterable[Finding]) -> Codes:
    return tuple(dict.fromkeys((one.code, one.severity) for one in findings))


@attrs.frozen
class _Level:
    """One level of all contracts.

    Attributes:
        lefts: A number for each extractor; where its value at this level is the same, so is the number.
        rights: The same for the heads.
        compare: Returns the codes for the places of an extractor and a head.
        found: Codes by two numbers.
    """

    lefts: Sequence[int]
    rights: Sequence[int]
    compare: Callable[[int, int], Codes]
    found: dict[tuple[int, int], Codes] = attrs.field(factory=dict)

    def at(self, row: int, column: int) -> Codes:
        """Return the codes of a pair."""
        key = self.lefts[row], self.rights[column]
        codes = self.found.get(key)
        if codes is None:
            codes = self.found[key] = self.compare(row, column)
        return codes


class _Levels:
    """The levels that need two contracts; and whole outlines, of which equal ones are one object."""

    def __init__(self, lefts: Sequence[Contract], rights: Sequence[Contract], blobs: Blobs) -> None:
        def level(
            given: Callable[[Contract], object],
            asked: Callable[[Contract], object],
            compare: Callable[[Contract, Contract], Codes],
        ) -> _Level:
            return _Level(
                _numbered(map(given, lefts)),
                _numbered(map(asked, rights)),
                lambda row, column: compare(lefts[row], rights[column]),
            )

        self.structural = level(
            lambda one: (one.structural.outputs, _images(one)),
            lambda one: (one.structural.inputs, _images(one)),
            lambda left, right: _codes(
                wiring_findings(left.structural.outputs, right.structural.inputs, left.data, right.data)
            ),
        )
        self.data = level(_images, _images, lambda left, right: _codes(input_findings(left.data, right.data)))
        self.protocol = level(
            lambda one: one.protocol,
            lambda one: one.protocol,
            lambda left, right: _codes(protocol_findings(left.protocol, right.protocol)),
        )
        self.statistical = level(
            lambda one: one.statistical.features,
            lambda one: (one.statistical.features, one.structural.inputs),
            lambda left, right: statistics_codes(left, right, blobs),
        )
        self.outlines: dict[Hashable, Outline] = {}

    def outline(self, row: int, column: int, asked: Codes, cells: Sequence[Cell]) -> Outline:
        """Return what there is to say of a pair, without the texts."""
        structural, protocol = self.structural.at(row, column), self.protocol.at(row, column)
        known = structural, self.data.at(row, column), asked, protocol, self.statistical.at(row, column)
        key = known, tuple((cell.grade, cell.restricted is None) for cell in cells)
        found = self.outlines.get(key)
        if found is None:
            answers = Report(
                wiring_of(severity for _, severity in structural),
                promise_of(code for code, _ in protocol),
                newest(cells),
            )
            codes = (*known, _codes(empirical_findings(answers, cells)))
            found = self.outlines[key] = Outline(answers, tuple(one for level in codes for one in level))
        return found


def _images(contract: Contract) -> Data:
    return attrs.evolve(contract.data, labels=None)


def _numbered(values: Iterable[object]) -> list[int]:
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(_key(value), len(numbers)) for value in values]


def _key(value: Any) -> Hashable:
    """Return a value of contracts as tuples, which can be looked up."""
    if isinstance(value, tuple):
        return tuple(map(_key, value))
    if isinstance(value, Mapping):
        return tuple(sorted((name, _key(one)) for name, one in value.items()))
    if attrs.has(type(value)):
        return type(value), *(_key(getattr(value, field.name)) for field in attrs.fields(type(value)))
    return value

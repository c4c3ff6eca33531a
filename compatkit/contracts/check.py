"""Compare contracts: whether a head fits an extractor, from their manifests alone.

A pure function that reads no weights. It answers three questions separately, because equal shapes are not
compatibility: can the parts be wired, what were both trained against, and what was measured.

To check many pairs fast, the inputs of each rule are extracted once per contract, and each two distinct inputs are
compared once: contracts all differ (by their probes at least), but few differ in the inputs of a rule. For many pairs
only finding codes are kept; full reports are made on request.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from itertools import repeat
from typing import Any, Literal

import attrs

from compatkit.contracts import rules
from compatkit.contracts.batchnorm import DEFAULT, check_policy
from compatkit.contracts.channels import Blobs
from compatkit.contracts.contract import EXTRACTORS, HEADS, Data
from compatkit.contracts.evidence import Cell
from compatkit.contracts.labels import Labels, label_findings
from compatkit.contracts.manifest import Manifest, manifest_digest, trained_with
from compatkit.contracts.match import Outputs, inputs_of, outputs_of, wiring
from compatkit.contracts.report import Codes, Finding, Outline, Outlines, Report, Severity, codes_of
from compatkit.errors import UsageError
from compatkit.foundation.arguments import checks_arguments

__all__ = ["Finding", "Report", "check", "compare"]

Classes = Data | Labels
"""Classes that pairs are meant for: those of a contract's data, or labels alone. Nothing else of data is compared."""

RULES: tuple[Callable[[Any, Any], Sequence[Any]], ...] = (
    wiring,
    rules.images,
    rules.training,
    rules.statistics,
)
"""Each compares the corresponding items of ``_given`` and ``_asked``. Findings about classes and measurements need more
than the two contracts and are made elsewhere."""


@checks_arguments
def check(
    extractor: Manifest,
    head: Manifest,
    *,
    data: Classes | None = None,
    evidence: Sequence[Cell] = (),
    channels: Blobs | None = None,
    own: bool = False,
    bn_policy: str = DEFAULT,
) -> Report:
    """Compare the contracts of an extractor and a head.

    Args:
        extractor: Manifest of the component that produces features.
        head: Manifest of the component that consumes them.
        data: Classes that the pair is meant for, of a contract's data or alone; None skips the comparison of classes.
        evidence: Measured cells of this pair, oldest first; the newest under ``bn_policy`` that is not stale counts.
        channels: Channel statistics by blob digest; if missing, statistics over the whole port are compared.
        own: Whether the extractor that the head was cut from or trained with computes the same function as this one.
            A registry knows; two manifests alone show it only for exactly that version.
        bn_policy: Batch-norm policy that the pair is meant to run under, as in ``Registry.matrix``. Figures under
            another are told but do not count.

    Returns:
        The report: wiring, promise, evidence and the findings.

    Raises:
        UsageError: The first is not an extractor, the second not a head, or the policy is unknown.
        DataError: Two classes of the data, or of the head, have the same name, or one matches two of the other side.
    """
    policy = check_policy(bn_policy)
    return report_of(
        extractor, head, data=data, evidence=evidence, channels=channels or {}, own=own, bn_policy=policy
    )


def report_of(
    extractor: Manifest,
    head: Manifest,
    names: tuple[str, str] | None = None,
    *,
    data: Classes | None,
    evidence: Sequence[Cell],
    channels: Blobs,
    own: bool,
    bn_policy: str,
) -> Report:
    """Do what ``check`` does, with the references of the parts if known.

    Args:
        extractor: Its manifest.
        head: Its manifest.
        names: References of both, for the texts.
        data: As for ``check``.
        bn_policy: As for ``check``.
        evidence: Measured results of the pair.
        channels: Channel statistics by digest.
        own: As for ``check``.
    """
    first, second = names or ("it", "it")
    check_kind(extractor, "first", first)
    check_kind(head, "second", second)
    provided, required = _provided(extractor, channels), _required(head, channels, _against([extractor]))
    levels: list[list[Finding]] = []
    for rule, left, right in zip(RULES, provided, required, strict=True):
        levels.append([hit.finding(left, right) for hit in rule(left, right)])
    structural, images, training, statistics = levels
    if made_with := dict.fromkeys(trained_with(head)):
        digest = manifest_digest(extractor)
        for digest_of_extractor in made_with:
            if own or digest_of_extractor == digest:
                training.append(
                    rules.own(digest_of_extractor, exact=digest_of_extractor == digest).finding(
                        extractor, head
                    )
                )
    severities: list[Severity] = [finding.severity for finding in structural]
    codes = [finding.code for finding in training]
    answers = _answers(severities, codes, evidence, bn_policy)
    classes = _classes(data, head, f"the head {second}" if names else "the head")
    empirical = rules.empirical_findings(answers, evidence, bn_policy)
    findings = (*structural, *images, *classes, *training, *statistics, *empirical)
    return Report(answers.wiring, answers.promise, answers.evidence, findings, *(names or ()))


def compare(
    extractors: Mapping[str, Manifest],
    heads: Mapping[str, Manifest],
    *,
    data: Classes | None = None,
    evidence: Mapping[tuple[str, str], Sequence[Cell]],
    channels: Blobs,
    own: Collection[tuple[str, str]],
    bn_policy: str,
) -> Outlines:
    """Check every extractor with every head; arguments as for ``check_all``, keyed by reference.

    Args:
        extractors: Manifests by reference.
        heads: Manifests by reference.
        data: As for ``check``.
        bn_policy: As for ``check``.
        evidence: Measured results by pair of references.
        channels: Channel statistics by digest.
        own: Pairs for which ``own`` holds, see ``check``.
    """
    for name, manifest in extractors.items():
        check_kind(manifest, "first", name)
    for name, manifest in heads.items():
        check_kind(manifest, "second", name)

    def report(extractor: str, head: str) -> Report:
        names, parts = (extractor, head), (extractors[extractor], heads[head])
        cells, related = evidence.get(names, ()), names in own
        return report_of(
            *parts, names, data=data, evidence=cells, channels=channels, own=related, bn_policy=bn_policy
        )

    lefts, rights = list(extractors.values()), list(heads.values())
    against, made_with = _against(lefts), _made_with(extractors, heads, own)
    provided = [_provided(manifest, channels) for manifest in lefts]
    required = [_required(manifest, channels, against) for manifest in rights]
    levels = [
        _Level(rule, [values[place] for values in provided], [values[place] for values in required])
        for place, rule in enumerate(RULES)
    ]
    classes = [codes_of(_classes(data, manifest, f"the head {name}")) for name, manifest in heads.items()]
    outlines = _Outlines(bn_policy)
    table: list[tuple[Outline, ...]] = []
    for row, extractor in enumerate(extractors):
        structural, images, training, statistics = (level.row(row) for level in levels)
        for column in made_with.get(row, ()):
            training[column] += codes_of([rules.own(extractor, exact=True)])
        codes = zip(structural, images, classes, training, statistics, strict=True)
        cells = [evidence.get((extractor, head), ()) for head in heads] if evidence else repeat(())
        table.append(tuple(map(outlines.of, codes, cells)))
    return Outlines(tuple(extractors), tuple(heads), tuple(table), report)


def check_kind(manifest: Manifest, place: Literal["first", "second"], name: str) -> None:
    """Raise if a component cannot be on this side of a cut.

    Args:
        manifest: Manifest of the component.
        place: ``"first"`` produces features, ``"second"`` consumes them.
        name: Its reference, for the message.

    Raises:
        UsageError: The first is not an extractor, or the second not a head.
    """
    kinds = EXTRACTORS if place == "first" else HEADS
    if manifest.kind not in kinds:
        raise UsageError(
            f"Expected a {place} component of kind {' or '.join(kinds)}, but {name} is of kind {manifest.kind}. Pass "
            "the extractor first, then the head.",
            subject=manifest,
        )


def _provided(extractor: Manifest, blobs: Blobs) -> tuple[Any, ...]:
    """Return the inputs of each rule for an extractor."""
    contract = extractor.contract
    return (
        outputs_of(contract.structural.outputs, contract.data),
        rules.images_of(contract.data),
        rules.trained(contract.protocol),
        rules.features_of(contract.statistical.features, blobs),
    )


def _required(head: Manifest, blobs: Blobs, against: set[str]) -> tuple[Any, ...]:
    """Return the inputs of each rule for a head.

    Args:
        head: Its manifest.
        blobs: Channel statistics by blob digest.
        against: Tensor digests of all heads that the extractors were trained against. Only such a head counts as an
            anchor of its own protocol, so that otherwise equal protocols stay equal.
    """
    contract = head.contract
    return (
        inputs_of(contract.structural.inputs, contract.data),
        rules.images_of(contract.data),
        rules.trained(rules.protocol_of(head) if head.payload.tensors in against else contract.protocol),
        rules.features_of(contract.statistical.features, blobs, contract.structural.inputs),
    )


def _against(extractors: Iterable[Manifest]) -> set[str]:
    return {anchor.digest for manifest in extractors for anchor in manifest.contract.protocol.anchors}


def _classes(data: Classes | None, head: Manifest, name: str) -> tuple[Finding, ...]:
    classes = data.labels if isinstance(data, Data) else data
    if classes is None:
        return ()
    return label_findings(classes, head.contract.data.labels or (), head=name)


def _answers(
    structural: Sequence[Severity], training: Sequence[str], cells: Sequence[Cell], bn_policy: str
) -> Report:
    """Return a report without findings from severities, codes and measured cells."""
    wired = (
        "refused" if "refuses" in structural else "needs-adapter" if "adaptable" in structural else "direct"
    )
    return Report(wired, rules.promise_of(training), rules.newest(cells, bn_policy))


def _made_with(
    extractors: Mapping[str, Manifest], heads: Mapping[str, Manifest], own: Collection[tuple[str, str]]
) -> dict[int, set[int]]:
    """Return for each row of an extractor the columns of the heads that were cut from or trained with it."""
    columns_by_extractor: dict[str, set[int]] = {}
    for column, head in enumerate(heads.values()):
        for digest in trained_with(head):
            columns_by_extractor.setdefault(digest, set()).add(column)
    if not columns_by_extractor:
        return {}
    columns_by_row = {
        row: set(columns_by_extractor.get(manifest_digest(manifest), ()))
        for row, manifest in enumerate(extractors.values())
    }
    rows = {name: row for row, name in enumerate(extractors)}
    columns = {name: column for column, (name, head) in enumerate(heads.items()) if any(trained_with(head))}
    for extractor, head in own:
        if extractor in rows and head in columns:
            columns_by_row[rows[extractor]].add(columns[head])
    return columns_by_row


class _Level:
    """Codes that one rule finds for all pairs, computed once per pair of distinct inputs.

    Args:
        rule: The rule.
        given: Its input for each extractor.
        asked: Its input for each head.
    """

    def __init__(
        self, rule: Callable[[Any, Any], Sequence[Any]], provided: Iterable[Any], required: Iterable[Any]
    ) -> None:
        self._rule = rule
        self._rows, self._provided = _distinct(provided)
        self._columns, self._required = _distinct(required)
        self._codes_by_row: dict[int, list[Codes]] = {}
        self._codes = {id(hits): codes_of(hits) for hits in rules.CONSTANT}

    def row(self, place: int) -> list[Codes]:
        """Return the codes of one extractor with every head."""
        number = self._rows[place]
        codes_by_column = self._codes_by_row.get(number)
        if codes_by_column is None:
            provided, rule = self._provided[number], self._rule
            known = self._codes
            codes_by_column = self._codes_by_row[number] = []
            for required in self._required:
                hits = rule(provided, required)
                codes = known.get(id(hits))
                codes_by_column.append(codes_of(hits) if codes is None else codes)
        return [codes_by_column[column] for column in self._columns]


class _Outlines:
    """Interned outlines: equal ones are one object.

    Args:
        bn_policy: Batch-norm policy that was asked about.
    """

    def __init__(self, bn_policy: str) -> None:
        self._policy = bn_policy
        self._known: dict[Hashable, Outline] = {}

    def of(self, known: tuple[Codes, ...], cells: Sequence[Cell]) -> Outline:
        """Return the outline of a pair.

        Args:
            known: Codes at every level but the last: structural, data, classes, protocol, statistical.
            cells: Measurements of the pair.
        """
        key: Hashable = known
        if cells:
            facts = [(cell.grade, cell.restricted is None, cell.holds_under(self._policy)) for cell in cells]
            key = known, tuple(facts)
        outline = self._known.get(key)
        if outline is None:
            structural, _, _, training, _ = known
            answers = _answers(
                [severity for _, severity in structural], [code for code, _ in training], cells, self._policy
            )
            codes = (*known, codes_of(list(rules.empirical_findings(answers, cells, self._policy))))
            outline = self._known[key] = Outline(answers, tuple(code for level in codes for code in level))
        return outline


def _distinct(values: Iterable[Any]) -> tuple[list[int], list[Any]]:
    """Return an index for each value, the same for equal ones, and the distinct values by index."""
    numbers: dict[Hashable, int] = {}
    places: list[int] = []
    distinct: list[Any] = []
    for value in values:
        key = _key(value) if isinstance(value, Outputs) else value
        places.append(numbers.setdefault(key, len(distinct)))
        if len(numbers) > len(distinct):
            distinct.append(value)
    return places, distinct


def _key(value: Any) -> Hashable:
    """Return a hashable key for a value of a contract."""
    if isinstance(value, tuple):
        return tuple(map(_key, value))
    if isinstance(value, Mapping):
        return tuple(sorted((name, _key(item)) for name, item in value.items()))
    if attrs.has(type(value)):
        return type(value), *(_key(getattr(value, field.name)) for field in attrs.fields(type(value)))
    return value

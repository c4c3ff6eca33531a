"""Check whether a head fits an extractor, from their manifests alone, without reading weights.

The report answers three questions separately, because equal shapes are not compatibility: can the parts be wired, what
were both trained against, and what was measured.

For many pairs, each rule runs once for each pair of distinct inputs: all contracts differ (by their probes at least),
but few differ in the inputs of one rule.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import attrs

from compatkit.contracts import rules
from compatkit.contracts.batchnorm import DEFAULT, check_policy
from compatkit.contracts.contract import Data, Protocol
from compatkit.contracts.kinds import EXTRACTORS, HEADS
from compatkit.contracts.labels import Labels, label_findings
from compatkit.contracts.manifest import Manifest, manifest_digest, trained_with
from compatkit.contracts.match import wiring_findings
from compatkit.contracts.ports import SizedPorts
from compatkit.contracts.report import Codes, Finding, PairSummaries, PairSummary, Report, codes_of
from compatkit.errors import UsageError
from compatkit.foundation.arguments import checks_arguments

if TYPE_CHECKING:
    from compatkit.contracts.channels import Blobs
    from compatkit.contracts.evidence import Cell

__all__ = ["Finding", "Report", "check", "check_pairs"]

Classes = Data | Labels
"""Target classes of a pair: labels, or the data of a contract, of which only the labels are compared."""

RULES: tuple[Callable[[Any, Any], Sequence[Finding]], ...] = (
    wiring_findings,
    rules.image_findings,
    rules.training_findings,
    rules.statistics_findings,
)
"""Rules that compare one field of the ``RuleInputs`` of an extractor and a head each."""


class RuleInputs(NamedTuple):
    """Fields of a component that ``RULES`` compare, in their order.

    Attributes:
        ports: Ports at the cut.
        images: Preprocessing of the images, without classes.
        protocol: Batch normalization and the anchors that the component was trained against.
        features: Statistics of the features at the cut.
    """

    ports: SizedPorts
    images: Data
    protocol: Protocol
    features: tuple[rules.Features, ...]

    def key(self, position: int) -> object:
        """Return a hashable value that is equal only for equal fields."""
        if position < 3:
            return repr(self[position])
        return tuple((port.mean, port.std, id(port.channels), port.port) for port in self.features)


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
        data: Target classes of the pair; None skips the comparison of classes.
        evidence: Measured cells of this pair, oldest first; the newest under ``bn_policy`` that is not stale counts.
        channels: Channel statistics by blob digest; if missing, statistics over the whole port are compared.
        own: Whether this extractor computes the same function as the one that the head was cut from or trained with.
            A registry knows; two manifests alone show it only for exactly that version.
        bn_policy: Batch-norm policy of the pair, as in ``Registry.matrix``. Measurements under another policy are
            listed but do not count.

    Returns:
        Wiring, promise, evidence and the findings.

    Raises:
        UsageError: The first is not an extractor, the second not a head, or the policy is unknown.
        DataError: Two classes of the data, or of the head, have the same name, or one matches two of the other side.
    """
    policy = check_policy(bn_policy)
    return pair_report(
        extractor, head, data=data, evidence=evidence, channels=channels or {}, own=own, bn_policy=policy
    )


def pair_report(
    extractor: Manifest,
    head: Manifest,
    names: tuple[str, str] | None = None,
    *,
    data: Classes | None,
    evidence: Sequence[Cell],
    channels: Blobs,
    own: bool,
    bn_policy: str,
    digest: str | None = None,
) -> Report:
    """Return the report of ``check``, with the references of the parts if known.

    Args:
        extractor: Manifest of the extractor.
        head: Manifest of the head.
        names: References of extractor and head, for the texts.
        data: Target classes, see ``check``.
        evidence: Measured cells of the pair, oldest first.
        channels: Channel statistics by blob digest.
        own: Whether the extractor is the head's own, see ``check``.
        bn_policy: Batch-norm policy of the pair.
        digest: Manifest digest of the extractor, if known.
    """
    first, second = names or ("it", "it")
    check_kind(extractor, "first", first)
    check_kind(head, "second", second)
    left, right = _extractor_inputs(extractor, channels), _head_inputs(head, channels)
    structural, images, training, statistics = (
        rule(provided, required) for rule, provided, required in zip(RULES, left, right, strict=True)
    )
    if own_extractors := dict.fromkeys(trained_with(head)):
        exact = digest or manifest_digest(extractor)
        training = [
            *training,
            *(
                rules.own_extractor_finding(known, exact=known == exact)
                for known in own_extractors
                if own or known == exact
            ),
        ]
    report = _report_without_findings(codes_of(structural), codes_of(training), evidence, bn_policy)
    labels = _label_findings(data, head, f"the head {second}" if names else "the head")
    findings = (
        *structural,
        *images,
        *labels,
        *training,
        *statistics,
        *rules.empirical_findings(report, evidence, bn_policy),
    )
    return Report(report.wiring, report.promise, report.evidence, findings, *(names or ()))


def check_pairs(
    extractors: Mapping[str, Manifest],
    heads: Mapping[str, Manifest],
    *,
    data: Classes | None = None,
    evidence: Mapping[tuple[str, str], Sequence[Cell]],
    channels: Blobs,
    own: Collection[tuple[str, str]],
    bn_policy: str,
) -> PairSummaries:
    """Check every extractor with every head.

    Only summaries of the pairs are stored; full reports are computed again on request.

    Args:
        extractors: Manifests by reference.
        heads: Manifests by reference.
        data: Target classes, see ``check``.
        evidence: Measured cells by pair of references, oldest first.
        channels: Channel statistics by blob digest.
        own: Pairs of references for which ``own`` of ``check`` is True.
        bn_policy: Batch-norm policy of the pairs.
    """
    for name, manifest in extractors.items():
        check_kind(manifest, "first", name)
    for name, manifest in heads.items():
        check_kind(manifest, "second", name)

    def report(extractor: str, head: str) -> Report:
        names = extractor, head
        return pair_report(
            extractors[extractor],
            heads[head],
            names,
            data=data,
            evidence=evidence.get(names, ()),
            channels=channels,
            own=names in own,
            bn_policy=bn_policy,
        )

    lefts = [_extractor_inputs(manifest, channels) for manifest in extractors.values()]
    rights = [_head_inputs(manifest, channels) for manifest in heads.values()]
    common = _anchors(lefts) & _anchors(rights)
    lefts, rights = ([_with_anchors(inputs, common) for inputs in side] for side in (lefts, rights))
    levels = [_rule_codes(position, lefts, rights) for position in range(len(RULES))]
    labels = [
        codes_of(_label_findings(data, manifest, f"the head {name}")) for name, manifest in heads.items()
    ]
    own_extractors = [frozenset(trained_with(manifest)) for manifest in heads.values()]
    known: dict[tuple[Codes, ...], PairSummary] = {}
    table: list[tuple[PairSummary, ...]] = []
    for row, (extractor, manifest) in enumerate(extractors.items()):
        digest = manifest_digest(manifest) if any(own_extractors) else ""
        summaries: list[PairSummary] = []
        own_codes = codes_of([rules.own_extractor_finding(digest, exact=True)])
        structural_row, images_row, training_row, statistics_row = (level[row] for level in levels)
        for column, head in enumerate(heads):
            training = training_row[column]
            if (digests := own_extractors[column]) and (digest in digests or (extractor, head) in own):
                training = (*training, *own_codes)
            codes = (
                structural_row[column],
                images_row[column],
                labels[column],
                training,
                statistics_row[column],
            )
            cells = evidence.get((extractor, head), ())
            summary = None if cells else known.get(codes)
            if summary is None:
                without_findings = _report_without_findings(codes[0], training, cells, bn_policy)
                empirical = codes_of(rules.empirical_findings(without_findings, cells, bn_policy))
                summary = PairSummary(
                    without_findings, tuple(code for level in (*codes, empirical) for code in level)
                )
                if not cells:
                    known[codes] = summary
            summaries.append(summary)
        table.append(tuple(summaries))
    return PairSummaries(tuple(extractors), tuple(heads), tuple(table), report)


def check_kind(manifest: Manifest, position: Literal["first", "second"], name: str) -> None:
    """Raise if a component cannot be at this position of a pair.

    Args:
        manifest: Manifest of the component.
        position: ``"first"`` produces features, ``"second"`` consumes them.
        name: Reference of the component, for the message.

    Raises:
        UsageError: The first is not an extractor, or the second not a head.
    """
    kinds = EXTRACTORS if position == "first" else HEADS
    if manifest.kind not in kinds:
        raise UsageError(
            f"Expected a {position} component of kind {' or '.join(kinds)}, but {name} is of kind {manifest.kind}. "
            "Pass the extractor first, then the head.",
            subject=manifest,
        )


def _extractor_inputs(extractor: Manifest, channels: Blobs) -> RuleInputs:
    contract = extractor.contract
    return RuleInputs(
        SizedPorts(contract.structural.outputs, contract.data.size),
        attrs.evolve(contract.data, labels=None),
        contract.protocol,
        rules.port_features(contract.statistical.features, channels),
    )


def _head_inputs(head: Manifest, channels: Blobs) -> RuleInputs:
    contract, ports = head.contract, head.contract.structural.inputs
    return RuleInputs(
        SizedPorts(ports, contract.data.size),
        attrs.evolve(contract.data, labels=None),
        rules.protocol_of(head),
        rules.port_features(contract.statistical.features, channels, ports),
    )


def _anchors(side: Sequence[RuleInputs]) -> set[tuple[str, str]]:
    return {(anchor.kind, anchor.digest) for inputs in side for anchor in inputs.protocol.anchors}


def _with_anchors(inputs: RuleInputs, common: set[tuple[str, str]]) -> RuleInputs:
    """Return the inputs with only the anchors that both sides have: no other gives a finding, and most differ."""
    anchors = tuple(anchor for anchor in inputs.protocol.anchors if (anchor.kind, anchor.digest) in common)
    return inputs._replace(protocol=attrs.evolve(inputs.protocol, anchors=anchors))


def _rule_codes(
    position: int, lefts: Sequence[RuleInputs], rights: Sequence[RuleInputs]
) -> list[list[Codes]]:
    """Return the codes of one rule for every extractor and head, with one run for each pair of distinct inputs."""
    rule, rows = RULES[position], dict[object, list[Codes]]()
    columns = [inputs.key(position) for inputs in rights]
    distinct = dict(zip(columns, (inputs[position] for inputs in rights), strict=True))
    table: list[list[Codes]] = []
    for inputs in lefts:
        key = inputs.key(position)
        if key not in rows:
            codes = {right: codes_of(rule(inputs[position], value)) for right, value in distinct.items()}
            rows[key] = [codes[column] for column in columns]
        table.append(rows[key])
    return table


def _label_findings(data: Classes | None, head: Manifest, name: str) -> tuple[Finding, ...]:
    classes = data.labels if isinstance(data, Data) else data
    return () if classes is None else label_findings(classes, head.contract.data.labels or (), head=name)


def _report_without_findings(
    structural: Codes, training: Codes, cells: Sequence[Cell], bn_policy: str
) -> Report:
    """Return the report without findings."""
    severities = {severity for _, severity in structural}
    return Report(
        "refused" if "refuses" in severities else "needs-adapter" if "adaptable" in severities else "direct",
        rules.promise_of([code for code, _ in training]),
        rules.newest_grade(cells, bn_policy),
    )

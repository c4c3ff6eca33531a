"""Check whether a head fits an extractor, from their manifests alone, without reading weights.

The report answers three questions separately, because equal shapes are not compatibility: can the parts be wired, what
were both trained against, and what was measured.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Literal

from compatkit.contracts import rules
from compatkit.contracts.batchnorm import DEFAULT, check_policy
from compatkit.contracts.channels import Blobs
from compatkit.contracts.contract import EXTRACTORS, HEADS, Data
from compatkit.contracts.evidence import Cell
from compatkit.contracts.labels import Labels, label_findings
from compatkit.contracts.manifest import Manifest, manifest_digest, trained_with
from compatkit.contracts.match import wiring
from compatkit.contracts.ports import SizedPorts
from compatkit.contracts.report import Finding, Outline, Outlines, Report, codes_of
from compatkit.errors import UsageError
from compatkit.foundation.arguments import checks_arguments

__all__ = ["Finding", "Report", "check", "check_pairs"]

Classes = Data | Labels
"""Target classes of a pair: labels, or the data of a contract, of which only the labels are compared."""


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
        digest: Manifest digest of the extractor; computed if None and needed.
    """
    first, second = names or ("it", "it")
    check_kind(extractor, "first", first)
    check_kind(head, "second", second)
    left, right = extractor.contract, head.contract
    provided, required = (
        SizedPorts(left.structural.outputs, left.data.size),
        SizedPorts(right.structural.inputs, right.data.size),
    )
    structural = [difference.finding(provided, required) for difference in wiring(provided, required)]
    training = rules.training_findings(left.protocol, rules.protocol_of(head))
    if own_extractors := dict.fromkeys(trained_with(head)):
        exact = manifest_digest(extractor) if digest is None else digest
        training += [
            rules.own_extractor_finding(known, exact=known == exact)
            for known in own_extractors
            if own or known == exact
        ]
    statistics = rules.statistics_findings(
        rules.port_features(left.statistical.features, channels),
        rules.port_features(right.statistical.features, channels, right.structural.inputs),
    )
    severities = {finding.severity for finding in structural}
    answers = Report(
        "refused" if "refuses" in severities else "needs-adapter" if "adaptable" in severities else "direct",
        rules.promise_of([finding.code for finding in training]),
        rules.newest_grade(evidence, bn_policy),
    )
    classes = data.labels if isinstance(data, Data) else data
    head_name = f"the head {second}" if names else "the head"
    labels = () if classes is None else label_findings(classes, right.data.labels or (), head=head_name)
    findings = (
        *structural,
        *rules.image_findings(left.data, right.data),
        *labels,
        *training,
        *statistics,
        *rules.empirical_findings(answers, evidence, bn_policy),
    )
    return Report(answers.wiring, answers.promise, answers.evidence, findings, *(names or ()))


def check_pairs(
    extractors: Mapping[str, Manifest],
    heads: Mapping[str, Manifest],
    *,
    data: Classes | None = None,
    evidence: Mapping[tuple[str, str], Sequence[Cell]],
    channels: Blobs,
    own: Collection[tuple[str, str]],
    bn_policy: str,
) -> Outlines:
    """Check every extractor with every head.

    Only answers and finding codes of each pair are stored; full reports are computed again on request.

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

    def report(extractor: str, head: str, digest: str | None = None) -> Report:
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
            digest=digest,
        )

    known: dict[Outline, Outline] = {}
    table: list[tuple[Outline, ...]] = []
    for name, manifest in extractors.items():
        digest, row = manifest_digest(manifest), list[Outline]()
        for head in heads:
            full = report(name, head, digest)
            outline = Outline(Report(full.wiring, full.promise, full.evidence), codes_of(full.findings))
            row.append(known.setdefault(outline, outline))
        table.append(tuple(row))
    return Outlines(tuple(extractors), tuple(heads), tuple(table), report)


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

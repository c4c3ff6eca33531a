"""Contract against contract: whether a head fits an extractor, from their manifests alone.

A pure function that reads no weights. It says whether the parts can be wired, what they were both trained
against, and what was measured; these are three answers, because equal shapes are not compatibility.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from compatkit.contracts.contract import EXTRACTORS, HEADS, Data
from compatkit.contracts.evidence import Cell
from compatkit.contracts.labels import label_findings
from compatkit.contracts.manifest import Manifest, manifest_digest, trained_with
from compatkit.contracts.match import wiring_findings
from compatkit.contracts.report import Finding, Report, Severity, Wiring
from compatkit.contracts.rules import (
    Blobs,
    empirical_findings,
    input_findings,
    newest,
    own_finding,
    promise_of,
    protocol_findings,
    protocol_of,
    statistics_findings,
)
from compatkit.errors import UsageError

__all__ = ["Finding", "Report", "check"]


def check(
    extractor: Manifest,
    head: Manifest,
    *,
    data: Data | None = None,
    evidence: Sequence[Cell] = (),
    channels: Blobs | None = None,
) -> Report:
    """Compare the contracts of an extractor and a head.

    Args:
        extractor: Manifest of the component that gives features.
        head: Manifest of the component that takes them.
        data: Classes that the pair is meant for; None leaves classes out of the check.
        evidence: Measured cells of this pair, oldest first; the newest that is not stale counts.
        channels: Statistics of the feature channels by the digest of the blob that the manifests name; without
            them the ports' statistics over all channels are compared.

    Returns:
        The report: wiring, promise, evidence and the findings behind them.

    Raises:
        UsageError: The first is no extractor, or the second no head.
        DataError: Two classes of the data, or of the head, have one name, or one means the same as two of the
            other side.
    """
    check_kind(extractor, "first")
    check_kind(head, "second")
    left, right = extractor.contract, head.contract
    structural = tuple(
        wiring_findings(left.structural.outputs, right.structural.inputs, left.data, right.data)
    )
    protocol = (
        *protocol_findings(left.protocol, protocol_of(head)),
        *(own_finding(one) for one in trained_with(head) if one == manifest_digest(extractor)),
    )
    answers = Report(
        wiring_of([one.severity for one in structural]),
        promise_of([one.code for one in protocol]),
        newest(evidence),
    )
    findings = (
        *structural,
        *input_findings(left.data, right.data),
        *(
            ()
            if data is None or data.labels is None
            else label_findings(data.labels, right.data.labels or ())
        ),
        *protocol,
        *statistics_findings(left, right, channels or {}),
        *empirical_findings(answers, evidence),
    )
    return Report(answers.wiring, answers.promise, answers.evidence, findings)


def check_kind(manifest: Manifest, place: Literal["first", "second"], name: str = "it") -> None:
    """Refuse a component that cannot be this side of a seam.

    Args:
        manifest: Of the component.
        place: ``"first"`` gives features, ``"second"`` takes them.
        name: Its reference, where it is known, for the message.

    Raises:
        UsageError: The first is no extractor, or the second no head.
    """
    kinds = EXTRACTORS if place == "first" else HEADS
    if manifest.kind not in kinds:
        raise UsageError(
            f"The {place} of the two components must be of kind {' or '.join(kinds)}, but {name} is of kind "
            f"{manifest.kind}. Pass the extractor first, then the head.",
            subject=manifest,
        )


def wiring_of(severities: Iterable[Severity]) -> Wiring:
    """Return whether parts with such structural findings can be connected."""
    found = set(severities)
    return "refused" if "refuses" in found else "needs-adapter" if "adaptable" in found else "direct"

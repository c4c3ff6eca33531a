"""Contract against contract: whether a head fits an extractor, from their manifests alone.

A pure function that reads no weights. It says whether the parts can be wired, what they were both trained
against, and what was measured; these are three answers, because equal shapes are not compatibility.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from compatkit.arguments import named
from compatkit.contracts.cells import Cell
from compatkit.contracts.contract import EXTRACTORS, HEADS, Data
from compatkit.contracts.labels import label_findings
from compatkit.contracts.levels import (
    empirical_findings,
    input_findings,
    newest,
    own_findings,
    promise_of,
    protocol_findings,
    protocol_of,
)
from compatkit.contracts.manifest import Manifest, manifest_digest
from compatkit.contracts.statistical import Blobs, statistics_findings
from compatkit.contracts.verdict import Finding, Report, Severity, Wiring
from compatkit.contracts.wiring import wiring_findings
from compatkit.errors import UsageError

__all__ = ["Finding", "Report", "check"]


@named
def check(
    extractor: Manifest,
    head: Manifest,
    *,
    data: Data | None = None,
    evidence: Sequence[Cell] = (),
    channels: Blobs | None = None,
    own: bool = False,
) -> Report:
    """Compare the contracts of an extractor and a head.

    Args:
        extractor: Manifest of the component that gives features.
        head: Manifest of the component that takes them.
        data: Classes that the pair is meant for; None leaves classes out of the check.
        evidence: Measured cells of this pair, oldest first; the newest that is not stale counts.
        channels: Statistics of the feature channels by the digest of the blob that the manifests name; without
            them the ports' statistics over all channels are compared.
        own: Whether the extractor that the head was cut or trained with computes the same as this one. A registry
            knows; from two manifests alone it is known of that very version only.

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
        *own_findings(head, manifest_digest(extractor), own=own),
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

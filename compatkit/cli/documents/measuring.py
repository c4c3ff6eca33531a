"""Documents of the commands that measure networks."""

from __future__ import annotations

from typing import Any, Literal

from compatkit.components.bridges.ladder import Bridge, RungResult
from compatkit.components.bridges.records import BridgeRecord
from compatkit.components.outcomes import PolicyOutcome
from compatkit.contracts.contract import Blueprint
from compatkit.contracts.evidence import Cell, Figure
from compatkit.contracts.report import Finding, Report, Word
from compatkit.evaluation.metrics import Result, Table
from compatkit.foundation.json_schemas import Object, Sometimes
from compatkit.registry.required_partners import PolicyRequirement
from compatkit.reports.document import OPTIONAL_FIELDS, Document

CHECK = Object(Report, word=(Word, "Summary in one word."))
"""What ``Report.to_json`` writes."""
PAIR = Object("An extractor with a head.", extractor=(str, "Its reference."), head=(str, "Its reference."))
MATRIX = Object(Document, cells=[Object(Cell, sometimes=OPTIONAL_FIELDS)])
METRIC_CHANGE = Object(
    "A figure of a metric of a pair in two matrices.",
    name=(str, "Name of the figure."),
    before=(float | None, "Value in the earlier matrix, or null."),
    after=(float | None, "Value in the later matrix, or null."),
    difference=(float | None, "After minus before; null where they cannot be compared. It has no interval."),
    reason=(str, "Why they cannot be compared, else empty."),
    unit=(str, "`1`, `nats`, ..."),
    direction=(str, "Which values are better: `higher`, `lower` or `none`."),
)
BRIDGED_PAIR = Object(
    "A pair of two sets; without a bridge all but its parts and the reason is null.",
    extractor=(str, "Reference of the extractor."),
    head=(str, "Reference of the head."),
    rung=(str | None, "Name of the rung."),
    says=(str | None, "`fit`, `doubtful` or `no fit`."),
    agreement=(float | None, "Share of held-out images with the prediction of the head's own network."),
    kappa=(float | None, "Agreement beyond chance."),
    accuracy=(float | None, "Share of the test images classified right; null without labels."),
    published=(str | None, "Reference of the published recombination, or null."),
    reason=(str | None, "Why there is no bridge; else null."),
)
COMPARED_PAIR = Object(
    "A pair in two matrices.",
    extractor=(str, "Reference of the extractor."),
    head=(str, "Reference of the head."),
    own=(bool | None, "Whether they were trained together; null if unknown."),
    change=(str, "`better`, `worse`, `same`, `unclear`, or why they cannot be compared."),
    accuracy_before=(float | None, "Accuracy in the earlier matrix, or null."),
    accuracy_after=(float | None, "Accuracy in the later matrix, or null."),
    difference=(float | None, "Accuracy after minus before; null unless both are of the same images."),
    difference_low=(float | None, "Lower end of its 95% interval."),
    difference_high=(float | None, "Upper end."),
    count_before=(int | None, "Images of the earlier figure, or null."),
    count_after=(int | None, "Images of the later figure, or null."),
    conditions=({str: [Any]}, "Settings that differ: before and after, by name."),
    metrics=([METRIC_CHANGE], "Figures of metrics; empty without any."),
)
SHARE = Object(
    "A share of images with its interval.",
    share=(float, "The share, from 0 to 1."),
    low=(float, "Lower end of its 95% interval."),
    high=(float, "Upper end."),
    images=(int, "Number of images."),
)
RUNG = Object(
    RungResult,
    agreement=((SHARE, None), "Images with the prediction of the head's own network."),
    accuracy=(SHARE, None),
    checked=(SHARE, None),
    chance=(float | None, "Agreement of independent predictions."),
    kappa=(float | None, "Agreement beyond chance."),
    checked_chance=(float | None, "Chance of the figure that judged it."),
    says=(str, "`fit`, `doubtful` or `no fit`; empty if it was left out."),
    without=("agreed", "right", "taught", "candidate"),
)
RESULTS = {str: Result | Table}
POLICY_RESULT = Object(
    "What a policy says of a candidate.",
    PolicyOutcome,
    PolicyRequirement,
    previous=str | None,
    policy=(dict | None, "The policy, as it is stored; null without one."),
    revision=(int | None, "Its number, or null."),
    passed=(bool, "Whether all pairs pass."),
    matrix=(MATRIX, None),
    without=("partners", "requirement"),
)
CONDITIONS: dict[str, tuple[Any, str]] = {
    "required": (str, "What each pair must reach for exit code 0."),
    "bn_policy": (str, "Batch-norm policy of the measurements that count."),
}
DOCUMENTS: dict[str, Any] = {
    "check": (
        Object(
            "Result of checking an extractor with a head, without reading weights.",
            CHECK,
            bridges=([BridgeRecord], "Published bridges between the two."),
            satisfied=(bool, "Whether it reaches what is required."),
            **CONDITIONS,
        ),
        Object(
            "Checks of many pairs, and what was required.",
            schema=(int, "Version of this format."),
            kind=(Literal["verdicts"], "Kind of document."),
            extractors=([str], "Rows."),
            heads=([str], "Columns."),
            counts=({str: int}, "Number of pairs by word."),
            pairs=(
                [
                    Object(
                        CHECK,
                        findings=([int], "Their positions in the list of all findings, from 0."),
                    )
                ],
                "A check of each pair.",
            ),
            findings=([Finding], "All findings, each once."),
            unsatisfied=([PAIR], "Pairs that do not reach what is required."),
            **CONDITIONS,
        ),
    ),
    "recombine": Object(
        "A recombination.",
        check=(CHECK, "Check of the pair."),
        adapters=([Blueprint], "Layers that were inserted."),
        cell=(Cell | None, "What was measured; null with `--no-measure`."),
        published=(Sometimes(str | None), "Reference of what was published, or null; only with `--publish`."),
        published_accuracy=(
            Sometimes(Figure),
            "Accuracy with the statistics that were published, if these were estimated.",
        ),
    ),
    "bridge": (
        Object(
            "A bridge.",
            Bridge,
            says=(str, "`fit`, `doubtful` or `no fit`."),
            judged_by=(str, "What judged it."),
            steps=[RUNG],
            facts=(dict, "Images, seeds and limits."),
            published=(({str: str}, None), "References of what was published, or null."),
            without=("recombination", "details"),
        ),
        Object(
            "Bridges of all pairs of two sets that were not trained together.",
            pairs=([BRIDGED_PAIR], "The pairs."),
        ),
    ),
    "matrix": (
        MATRIX,
        Object(
            "Two matrices, pair by pair.",
            schema=(int, "Version of this format."),
            kind=(Literal["matrix-comparison"], "Kind of document."),
            conclusion=(str, "Conclusion in words."),
            counts=({str: int}, "Number of pairs by change."),
            versions=({str: str}, "Earlier reference by later one, where they differ."),
            pairs=([COMPARED_PAIR], "The pairs."),
        ),
    ),
    "metric": (
        Object(
            "Metrics of a network.",
            extractor=(str, "Reference of the extractor."),
            head=(str, "Reference of the head."),
            against=(Sometimes([str]), "References of the second network; absent without one."),
            results=(RESULTS, "A figure or a table by metric."),
            settings=(dict, "Images, batch-norm policy and library."),
        ),
        Object(
            "A metric of arrays.",
            arrays=({str: str}, "File by role."),
            results=(RESULTS, "A figure or a table by metric."),
        ),
    ),
    "similarity": Object(
        "How alike the layers of two networks are.",
        left=([str], "References of the parts of the first network."),
        right=([str], "References of the parts of the second."),
        results=(RESULTS, "A table of layers by metric."),
        settings=(dict, "Images, layers and library."),
        smaller=(Sometimes(Table), "The smaller of CKA and Procrustes; only where both were asked for."),
        controls=(
            Sometimes({str: RESULTS}),
            "The same with shuffled images and with untrained networks; only with `--controls`.",
        ),
    ),
    "policy test": [Object(POLICY_RESULT, reference=(str, "The component that was tested."))],
}

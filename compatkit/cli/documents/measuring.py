"""Documents of the commands that measure networks."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired, TypedDict

from compatkit.components.bridges.published import BridgeRecord
from compatkit.contracts.contract import Blueprint
from compatkit.contracts.evidence import Cell, Figure
from compatkit.contracts.report import Finding, Report, Word
from compatkit.evaluation.metrics import Result, Table
from compatkit.foundation.json_schemas import Merged
from compatkit.reports.document import Document


class ReportWord(TypedDict):
    """The answers in one word.

    Attributes:
        word: Summary in one word.
    """

    word: Word


Checked = Merged(Report, ReportWord)
"""What ``Report.to_json`` writes."""


class CheckedPair(TypedDict):
    """A check of one pair, and what was required.

    Attributes:
        bridges: Published bridges between the two.
        required: What the pair must reach for exit code 0.
        satisfied: Whether it does.
        bn_policy: Batch-norm policy of the measurements that count.
    """

    bridges: list[BridgeRecord]
    required: str
    satisfied: bool
    bn_policy: str


class FindingNumbers(TypedDict):
    """Findings of a pair among many.

    Attributes:
        findings: Their positions in the list of all findings, from 0.
    """

    findings: list[int]


class Pair(TypedDict):
    """An extractor with a head.

    Attributes:
        extractor: Its reference.
        head: Its reference.
    """

    extractor: str
    head: str


class CheckedPairs(TypedDict):
    """Checks of many pairs, and what was required.

    Attributes:
        schema: Version of this format.
        kind: Kind of document.
        extractors: Rows.
        heads: Columns.
        counts: Number of pairs by word.
        pairs: A check of each pair.
        findings: All findings, each once.
        required: What each pair must reach for exit code 0.
        unsatisfied: Pairs that do not.
        bn_policy: Batch-norm policy of the measurements that count.
    """

    schema: int
    kind: Literal["verdicts"]
    extractors: list[str]
    heads: list[str]
    counts: dict[str, int]
    pairs: Annotated[Any, [Merged(Report, ReportWord, FindingNumbers)]]
    findings: list[Finding]
    required: str
    unsatisfied: list[Pair]
    bn_policy: str


class OldCells(TypedDict):
    """Cells of a matrix.

    Attributes:
        cells: Cells in any order; ``ladder`` and ``metrics`` are absent where they are empty.
    """

    cells: Annotated[
        Any,
        [
            (
                Merged(Cell, without=("ladder", "metrics")),
                Merged(Cell, without=("metrics",)),
                Merged(Cell, without=("ladder",)),
                Cell,
            )
        ],
    ]


class Recombined(TypedDict):
    """A recombination.

    Attributes:
        check: Check of the pair.
        adapters: Layers that were inserted.
        cell: What was measured; null with ``--no-measure``.
        published: Reference of what was published, or null; only with ``--publish``.
        published_accuracy: Accuracy with the statistics that were published, if these were estimated.
    """

    check: Annotated[Any, Checked]
    adapters: list[Blueprint]
    cell: Cell | None
    published: NotRequired[str | None]
    published_accuracy: NotRequired[Figure]


class ComparedPair(TypedDict):
    """A pair in two matrices.

    Attributes:
        extractor: Reference of the extractor.
        head: Reference of the head.
        own: Whether they were trained together; null if unknown.
        change: ``better``, ``worse``, ``same``, ``unclear``, or why they cannot be compared.
        accuracy_before: Accuracy in the earlier matrix, or null.
        accuracy_after: Accuracy in the later matrix, or null.
        difference: Accuracy after minus before; null unless both are of the same images.
        difference_low: Lower end of its 95% interval.
        difference_high: Upper end.
        count_before: Images of the earlier figure, or null.
        count_after: Images of the later figure, or null.
        conditions: Settings that differ: before and after, by name.
    """

    extractor: str
    head: str
    own: bool | None
    change: str
    accuracy_before: float | None
    accuracy_after: float | None
    difference: float | None
    difference_low: float | None
    difference_high: float | None
    count_before: int | None
    count_after: int | None
    conditions: dict[str, list[Any]]


class MatrixComparison(TypedDict):
    """Two matrices, pair by pair.

    Attributes:
        schema: Version of this format.
        kind: Kind of document.
        conclusion: Conclusion in words.
        counts: Number of pairs by change.
        versions: Earlier reference by later one, where they differ.
        pairs: The pairs.
    """

    schema: int
    kind: Literal["matrix-comparison"]
    conclusion: str
    counts: dict[str, int]
    versions: dict[str, str]
    pairs: list[ComparedPair]


class Share(TypedDict):
    """A share of images with its interval.

    Attributes:
        share: The share, from 0 to 1.
        low: Lower end of its 95% interval.
        high: Upper end.
        images: Number of images.
    """

    share: float
    low: float
    high: float
    images: int


class BridgeStep(TypedDict):
    """A rung that was tried.

    Attributes:
        rung: Its name.
        explained: Share of the variance of the features that it explains; null if it fits none.
        images: Images that it was fitted on.
        estimated: Images that statistics were estimated on.
        labels: Labels that it read.
        seconds: Time that it took.
        note: What else is worth knowing.
        agreement: Images with the prediction of the head's own network.
        accuracy: Images classified right; null without labels.
        checked: The figure that judged it where agreement may not; null otherwise.
        chance: Agreement of independent predictions.
        kappa: Agreement beyond chance.
        checked_chance: Chance of the figure that judged it.
        says: ``fit``, ``doubtful`` or ``no fit``.
    """

    rung: str
    explained: float | None
    images: int
    estimated: int
    labels: int
    seconds: float
    note: str
    agreement: Share | None
    accuracy: Share | None
    checked: Share | None
    chance: float | None
    kappa: float | None
    checked_chance: float | None
    says: str


class Bridged(TypedDict):
    """A bridge.

    Attributes:
        extractor: Reference of the extractor.
        head: Reference of the head.
        chosen: Name of the rung that was chosen.
        says: ``fit``, ``doubtful`` or ``no fit``.
        judged_by: What judged it.
        steps: Rungs that were tried.
        not_climbed: Rungs that were not, and why.
        facts: Images, seeds and limits.
        notes: What else is worth knowing.
        published: References of what was published, or null.
    """

    extractor: str
    head: str
    chosen: str | None
    says: str
    judged_by: str
    steps: list[BridgeStep]
    not_climbed: list[Any]
    facts: dict[str, Any]
    notes: list[str]
    published: dict[str, str] | None


class Measured(TypedDict):
    """Metrics of a network.

    Attributes:
        extractor: Reference of the extractor.
        head: Reference of the head.
        against: References of the second network; absent without one.
        results: A figure or a table by metric.
        settings: Images, batch-norm policy and library.
    """

    extractor: str
    head: str
    against: NotRequired[list[str]]
    results: dict[str, Result | Table]
    settings: dict[str, Any]


class MeasuredArrays(TypedDict):
    """A metric of arrays.

    Attributes:
        arrays: File by role.
        results: A figure or a table by metric.
    """

    arrays: dict[str, str]
    results: dict[str, Result | Table]


class Similarity(TypedDict):
    """How alike the layers of two networks are.

    Attributes:
        left: References of the parts of the first network.
        right: References of the parts of the second.
        results: A table of layers by metric.
        settings: Images, layers and library.
        controls: The same with shuffled images and with untrained networks; only with ``--controls``.
    """

    left: list[str]
    right: list[str]
    results: dict[str, Result | Table]
    settings: dict[str, Any]
    controls: NotRequired[dict[str, dict[str, Result | Table]]]


class PolicyAnswer(TypedDict):
    """A pair that a policy asks for.

    Attributes:
        partner: Reference of the released part.
        extractor: Reference of the extractor.
        head: Reference of the head.
        accuracy: Accuracy of the pair; null if it was not measured.
        bound: Accuracy of the head on its own extractor; null if it was not measured.
        least: Accuracy that is required; null without a bound.
        passed: Whether it is reached.
        reason: Why it fails without a measurement, or empty.
    """

    partner: str
    extractor: str
    head: str
    accuracy: Figure | None
    bound: Figure | None
    least: float | None
    passed: bool
    reason: str


class PolicyResult(TypedDict):
    """What a policy says of a candidate.

    Attributes:
        name: Name that the candidate would have.
        kind: Kind of the component.
        candidate: What was tested.
        previous: Version before it, or null.
        policy: The policy, as it is stored; null without one.
        revision: Its number, or null.
        passed: Whether all pairs pass.
        reason: Why nothing was measured, or empty.
        answers: What was measured.
        allowed: Smallest version number that is open to it.
        offered: Number that is offered if it fails; null if none is.
        matrix: The measured pairs as a matrix; null if nothing was measured.
    """

    name: str
    kind: str
    candidate: str
    previous: str | None
    policy: dict[str, Any] | None
    revision: int | None
    passed: bool
    reason: str
    answers: list[PolicyAnswer]
    allowed: str | None
    offered: str | None
    matrix: Annotated[Any, (Merged(Document, OldCells), None)]


class Tested(TypedDict):
    """A component that was tested.

    Attributes:
        reference: Its reference.
    """

    reference: str


DOCUMENTS: dict[str, Any] = {
    "check": (Merged(Report, ReportWord, CheckedPair), CheckedPairs),
    "recombine": Recombined,
    "bridge": Bridged,
    "matrix": (Merged(Document, OldCells), MatrixComparison),
    "metric": (Measured, MeasuredArrays),
    "similarity": Similarity,
    "policy test": [Merged(PolicyResult, Tested)],
}

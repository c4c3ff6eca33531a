"""Documents of the commands that train networks, publish them and put them to use."""

from __future__ import annotations

from typing import Annotated, Any, NotRequired, TypedDict

from compatkit.cli.documents.measuring import PolicyResult
from compatkit.cli.documents.registry import Signed
from compatkit.components.exports.document import Description
from compatkit.components.ranking import ExtractorScore, Ranking
from compatkit.contracts.contract import Blueprint, Contract
from compatkit.evaluation.metrics import TableCell
from compatkit.experiments.spread import Spread
from compatkit.experiments.sweeps.records import RunRecord
from compatkit.experiments.sweeps.results import SeedGroup
from compatkit.foundation.json_schemas import Merged
from compatkit.training.manifest import Explanation
from compatkit.training.profiling import Profile


class Published(TypedDict):
    """A run that was trained and published.

    Attributes:
        registry: Folder of the registry.
        parts: Published references, by task and part.
        losses: Losses in the last row of the history, by task and name.
        evaluations: Evaluations during training; absent without any.
        plan: Digest of the trainer's plan.
    """

    registry: str
    parts: dict[str, str]
    losses: dict[str, dict[str, Any]]
    evaluations: NotRequired[list[dict[str, Any]]]
    plan: str


class Rehearsed(TypedDict):
    """A run whose policies were tested; nothing was published (``--dry-run``).

    Attributes:
        registry: Folder of the registry.
        outcomes: What the policy of each part says.
        plan: Digest of the trainer's plan.
    """

    registry: str
    outcomes: dict[str, PolicyResult]
    plan: str


class ProfileWarning(TypedDict):
    """Advice of a profile.

    Attributes:
        warning: Advice if too much of a step is not computing, else null.
    """

    warning: str | None


class AdaptedData(TypedDict):
    """Images that an extractor was adapted to.

    Attributes:
        name: Name of the data set.
        digest: Digest of the images.
        labelled: Whether they have labels, which were not read.
    """

    name: str
    digest: str
    labelled: bool


class Adapted(TypedDict):
    """An extractor that was adapted.

    Attributes:
        source: Reference of the extractor.
        head: Reference of its head.
        data: Images that it was adapted to.
        losses: Last losses by name.
        accuracy: Accuracy on labeled test images, before and after; null without any.
        plan: Digest of the trainer's plan.
        steps: Number of steps.
        published: Reference of the result; null if it was not published.
    """

    source: str
    head: str
    data: AdaptedData
    losses: dict[str, float]
    accuracy: dict[str, float] | None
    plan: str
    steps: int
    published: str | None


class CutPart(TypedDict):
    """A part of a network.

    Attributes:
        parameters: Number of its parameters.
        blueprint: How it is built.
        contract: Its contract.
    """

    parameters: int
    blueprint: Blueprint
    contract: Contract


class AdoptedFile(TypedDict):
    """A checkpoint.

    Attributes:
        file: Its name.
        digest: Its digest.
        bytes: Its size.
        format: Its format.
        steps: How its tensors were renamed.
    """

    file: str
    digest: str
    bytes: int
    format: str
    steps: list[str]


class Adopted(TypedDict):
    """A checkpoint that was cut into parts.

    Attributes:
        adopted: The checkpoint.
        kwargs: Arguments of the model.
        parts: Its parts, by side.
        published: Published references, by side.
    """

    adopted: AdoptedFile
    kwargs: dict[str, Any]
    parts: dict[str, CutPart]
    published: dict[str, str]


class Split(TypedDict):
    """A model that was cut.

    Attributes:
        model: Name of the model.
        cut: Module after which it was cut.
        parts: Its parts, by side.
        published: Published references, by side; empty if nothing was published.
        bitwise_equal: Whether both parts together gave exactly the outputs of the whole.
    """

    model: str
    cut: str
    parts: dict[str, CutPart]
    published: dict[str, str]
    bitwise_equal: bool


class Extended(TypedDict):
    """A head that got more classes.

    Attributes:
        published: Reference of the new head.
        classes: All of its classes, in order.
        added: The new ones.
        seed: Seed of the new rows.
    """

    published: str
    classes: list[str]
    added: list[str]
    seed: int


class Prediction(TypedDict):
    """The class of an image, or why there is none.

    Attributes:
        image: File of the image.
        label: Most probable class.
        probability: Its probability.
        position: Its position among the classes, from 0.
        damaged: Why the file cannot be read; then there is no class.
    """

    image: str
    label: NotRequired[str | None]
    probability: NotRequired[float]
    position: NotRequired[int]
    damaged: NotRequired[str]


class Predictions(TypedDict):
    """Classes of images.

    Attributes:
        parts: References of the parts of the network.
        bn_policy: Batch-norm policy.
        classes: Names of the classes, in order.
        predictions: A row for each image.
        left_out: Number of other files in the folders, by kind.
    """

    parts: list[str]
    bn_policy: str
    classes: list[str]
    predictions: list[Prediction]
    left_out: dict[str, int]


class Exported(TypedDict):
    """A file that was written.

    Attributes:
        file: Its path.
        bytes: Its size.
        replaced: Whether there was a file before.
        exported: Description of the network.
    """

    file: str
    bytes: int
    replaced: bool
    exported: Description


class OtherValues(TypedDict):
    """Further values of a score.

    Attributes:
        beside: Other values of the metric by name, such as with permuted labels.
    """

    beside: dict[str, TableCell]


class MeasuredAs(TypedDict):
    """A measured accuracy.

    Attributes:
        accuracy: The accuracy.
        how: How the head was trained.
    """

    accuracy: float
    how: str


class RankingExtra(TypedDict):
    """What a ranking says.

    Attributes:
        rows: Scores, grouped by metric; the best extractor first, those without a value last.
        measured: Accuracy on the target's test images by extractor; only measured ones.
        advice: Which extractor to use.
        caution: Why to be careful, or empty.
        best: Reference of the best extractor; only with ``--by``.
    """

    rows: Annotated[Any, [Merged(ExtractorScore, OtherValues, without=("other_values",))]]
    measured: dict[str, MeasuredAs]
    advice: str
    caution: str
    best: NotRequired[str]


class PairAccuracy(TypedDict):
    """Accuracy of a pair of a run.

    Attributes:
        extractor: Task of the extractor.
        head: Task of the head.
        accuracy: Its accuracy; null if it was not measured.
    """

    extractor: str
    head: str
    accuracy: float | None


class RunPairs(TypedDict):
    """Pairs of a run.

    Attributes:
        pairs: Accuracy of each pair.
    """

    pairs: list[PairAccuracy]


class PairNames(TypedDict):
    """Pair of tasks.

    Attributes:
        extractor: Task of the extractor.
        head: Task of the head.
    """

    extractor: str
    head: str


class GroupPairs(TypedDict):
    """Pairs of a group of runs.

    Attributes:
        pairs: Accuracy of each pair over seeds.
    """

    pairs: Annotated[Any, [Merged(Spread, PairNames)]]


class Swept(TypedDict):
    """A sweep.

    Attributes:
        registry: Folder of the registry.
        folder: Folder of the records.
        choice: What chose the launcher.
        notes: What else is worth knowing.
        runs: Record of each run by name.
        groups: Runs that differ only in the seed, together.
        failed: Why runs failed, by name.
    """

    registry: str
    folder: str
    choice: dict[str, Any]
    notes: list[str]
    runs: dict[str, Annotated[Any, RUN]]
    groups: Annotated[Any, [Merged(SeedGroup, GroupPairs)]]
    failed: dict[str, str]


class Demo(TypedDict):
    """The demo.

    Attributes:
        recombined: Mean accuracy of the two recombinations, by arm.
        own: Mean accuracy of the two networks as trained, by arm.
        effect_shows: Whether each arm recombines better than the previous one.
        files: Paths of the registry and the reports.
    """

    recombined: dict[str, float]
    own: dict[str, float]
    effect_shows: bool
    files: dict[str, str]


RUN = Merged(RunRecord, RunPairs, without=("run", "matrix"))
"""A run of a sweep."""
DOCUMENTS: dict[str, Any] = {
    "train": (Merged(Published, Signed), Rehearsed, Explanation, Merged(Profile, ProfileWarning)),
    "publish": (Merged(Published, Signed), Rehearsed),
    "adapt": Merged(Adapted, Signed),
    "adopt": Adopted,
    "split": Merged(Split, Signed),
    "extend": Merged(Extended, Signed),
    "predict": Predictions,
    "export": Exported,
    "rank": Merged(Ranking, RankingExtra),
    "sweep": Swept,
    "demo": Demo,
}

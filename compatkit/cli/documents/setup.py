"""Documents of the commands about an installation: networks, data sets, plugins, studies."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict

from compatkit.adapters.cutting.discovery import CutPoint
from compatkit.data.summary import DataSummary
from compatkit.experiments.studies.durations import Expected
from compatkit.health.observation import Observation
from compatkit.plugins.listed import Listed


class Cuts(TypedDict):
    """Places where a model can be cut.

    Attributes:
        model: Name of the model.
        cuts: Places in the order in which they run.
    """

    model: str
    cuts: list[CutPoint]


class NewPackage(TypedDict):
    """A package of plugins that was written.

    Attributes:
        folder: Its folder.
        files: Its files.
    """

    folder: str
    files: list[str]


class Recipe(TypedDict):
    """A recipe that was written.

    Attributes:
        recipe: Its path.
        tasks: Names of its tasks.
        shared_classes: Classes that all tasks have.
        regularizers: Names of its regularizers.
    """

    recipe: str
    tasks: list[str]
    shared_classes: list[str]
    regularizers: list[str]


class Doctor(TypedDict):
    """What was looked at.

    Attributes:
        problems: Number of problems.
        warnings: Number of warnings.
        observations: What was looked at, by topic.
    """

    problems: int
    warnings: int
    observations: list[Observation]


class Script(TypedDict):
    """A completion script.

    Attributes:
        shell: The shell.
        script: The script.
    """

    shell: Literal["bash", "zsh", "fish"]
    script: str


class StudyMeasure(TypedDict):
    """What a study measures.

    Attributes:
        metric: Its name.
        unit: Its unit.
        better: Which values are better.
    """

    metric: str
    unit: str
    better: str | None


class Study(TypedDict):
    """An installed study.

    Attributes:
        study: Its number.
        title: Its title.
        question: What it shows.
        reference: Paper and figure.
        arms: Its arms.
        data: Data sets that it needs.
        measures: What it measures.
        sizes: Settings by size.
        scale: How each size differs from the paper.
        extends: Arm that arms of the user extend; null if the study takes none.
        expected: Expected time of a seed of all arms by size; null where nothing was measured.
        distribution: Distribution that has it.
        version: Version of the distribution.
    """

    study: str
    title: str
    question: str
    reference: str
    arms: list[str]
    data: list[str]
    measures: list[StudyMeasure]
    sizes: dict[str, dict[str, Any]]
    scale: dict[str, str]
    extends: str | None
    expected: dict[str, Expected | None]
    distribution: str | None
    version: str | None


class BrokenStudy(TypedDict):
    """A study that cannot be used.

    Attributes:
        study: Its number.
        error: Why.
    """

    study: str
    error: str


class StudyRow(TypedDict):
    """Values of a metric for an arm.

    Attributes:
        arm: Name of the arm.
        metric: Name of the metric.
        unit: Its unit.
        values: A value for each seed, in the order of the seeds; null where there is none.
    """

    arm: str
    metric: str
    unit: str
    values: list[float | None]


class StudyRun(TypedDict):
    """Results of a study.

    Attributes:
        schema: Version of this format.
        study: Number of the study.
        size: Size that was run.
        title: Title of the study.
        reference: Paper and figure.
        results: Values by arm and metric.
        paper: Values that the paper states.
        scale: How the size differs from the paper; empty if it does not.
        notes: What else is worth knowing.
        settings: Settings of the size.
        own_arms: Regularizers of each arm of the user; absent in results of older versions.
        seeds: Seeds.
        seconds: Time of each run, by arm.
        versions: Versions of libraries, each once.
        machines: Machines, each once.
        data: Data sets with digests, each once.
        command: Command that repeats it.
        files: Files that were written.
        folder: Folder of the files, after a run.
    """

    schema: int
    study: str
    size: str
    title: str
    reference: str
    results: list[StudyRow]
    paper: list[dict[str, Any]]
    scale: str
    notes: list[str]
    settings: dict[str, Any]
    own_arms: NotRequired[dict[str, list[dict[str, Any]]]]
    seeds: list[int]
    seconds: dict[str, list[float]]
    versions: list[Any]
    machines: list[Any]
    data: list[Any]
    command: NotRequired[str]
    files: list[str]
    folder: NotRequired[str]


DOCUMENTS: dict[str, Any] = {
    "cuts": Cuts,
    "schema": ([str], dict[str, Any]),
    "data show": DataSummary,
    "doctor": Doctor,
    "completion": Script,
    "plugins list": [Listed],
    "plugins new": NewPackage,
    "recipe": Recipe,
    "study list": [(Study, BrokenStudy)],
    "study run": StudyRun,
    "study show": (Study, StudyRun),
}

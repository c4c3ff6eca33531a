"""Documents of the commands about an installation: networks, data sets, plugins, studies."""

from __future__ import annotations

from typing import Any, Literal

from compatkit.adapters.cutting.discovery import CutPoint
from compatkit.data.summary import DataSummary
from compatkit.experiments.studies.durations import Expected
from compatkit.experiments.studies.study import Study
from compatkit.foundation.json_schemas import Object, Sometimes
from compatkit.health.doctor import HealthReport
from compatkit.plugins.listed import Listed

STUDY = Object(
    Study,
    study=(str, "Its number."),
    measures=[
        Object(
            "What a study measures.",
            metric=(str, "Its name."),
            unit=(str, "Its unit."),
            better=(str | None, "Which values are better."),
        )
    ],
    expected=(
        {str: Expected | None},
        "Expected time of a seed of all arms by size; null where nothing was measured.",
    ),
    distribution=(str | None, "Distribution that has it."),
    version=(str | None, "Version of the distribution."),
    without=("paper", "closed", "run", "draw"),
)
VALUES = Object(
    "Values of a metric for an arm.",
    arm=(str, "Name of the arm."),
    metric=(str, "Name of the metric."),
    unit=(str, "Its unit."),
    values=([float | None], "A value for each seed, in the order of the seeds; null where there is none."),
)
STUDY_RUN = Object(
    "Results of a study.",
    schema=(int, "Version of this format."),
    study=(str, "Number of the study."),
    size=(str, "Size that was run."),
    title=(str, "Title of the study."),
    reference=(str, "Paper and figure."),
    results=([VALUES], "Values by arm and metric."),
    paper=([dict], "Values that the paper states."),
    scale=(str, "How the size differs from the paper; empty if it does not."),
    notes=([str], "What else is worth knowing."),
    settings=(dict, "Settings of the size."),
    own_arms=(
        Sometimes({str: [dict]}),
        "Regularizers of each arm of the user; absent in results of older versions.",
    ),
    seeds=([int], "Seeds."),
    seconds=({str: [float]}, "Time of each run, by arm."),
    versions=([Any], "Versions of libraries, each once."),
    machines=([Any], "Machines, each once."),
    data=([Any], "Data sets with digests, each once."),
    command=(Sometimes(str), "Command that repeats it."),
    files=([str], "Files that were written."),
    folder=(Sometimes(str), "Folder of the files, after a run."),
)
DOCUMENTS: dict[str, Any] = {
    "cuts": Object(
        "Places where a model can be cut.",
        model=(str, "Name of the model."),
        cuts=([CutPoint], "Places in the order in which they run."),
    ),
    "schema": ([str], dict),
    "data show": DataSummary,
    "doctor": Object(
        HealthReport,
        problems=(int, "Number of problems."),
        warnings=(int, "Number of warnings."),
    ),
    "completion": Object(
        "A completion script.",
        shell=(Literal["bash", "zsh", "fish"], "The shell."),
        script=(str, "The script."),
    ),
    "plugins list": [Listed],
    "plugins new": Object(
        "A package of plugins that was written.", folder=(str, "Its folder."), files=([str], "Its files.")
    ),
    "recipe": Object(
        "A recipe that was written.",
        recipe=(str, "Its path."),
        tasks=([str], "Names of its tasks."),
        shared_classes=([str], "Classes that all tasks have."),
        regularizers=([str], "Names of its regularizers."),
    ),
    "study list": [
        (STUDY, Object("A study that cannot be used.", study=(str, "Its number."), error=(str, "Why.")))
    ],
    "study run": STUDY_RUN,
    "study show": (STUDY, STUDY_RUN),
}

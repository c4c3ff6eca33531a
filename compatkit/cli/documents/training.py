"""Documents of the commands that train networks, publish them and put them to use."""

from __future__ import annotations

from typing import Any

from compatkit.cli.documents.measuring import POLICY_RESULT
from compatkit.cli.documents.registry import SIGNED
from compatkit.components.exports.document import Description
from compatkit.components.ranking import Ranking
from compatkit.contracts.contract import Blueprint, Contract
from compatkit.experiments.spread import Spread
from compatkit.experiments.sweeps.records import RunRecord
from compatkit.experiments.sweeps.results import SeedGroup
from compatkit.foundation.json_schemas import Object, Sometimes
from compatkit.training.manifest import Explanation
from compatkit.training.profiling import Profile

PLANNED = Object(
    registry=(str, "Folder of the registry."),
    plan=(str, "Digest of the trainer's plan."),
)
PUBLISHED = Object(
    "A run that was trained and published.",
    PLANNED,
    SIGNED,
    parts=({str: str}, "Published references, by task and part."),
    losses=({str: dict}, "Losses in the last row of the history, by task and name."),
    evaluations=(Sometimes([dict]), "Evaluations during training; absent without any."),
)
REHEARSED = Object(
    "A run whose policies were tested; nothing was published (`--dry-run`).",
    PLANNED,
    outcomes=({str: POLICY_RESULT}, "What the policy of each part says."),
)
PARTS = Object(
    parts=(
        {
            str: Object(
                "A part of a network.",
                parameters=(int, "Number of its parameters."),
                blueprint=(Blueprint, "How it is built."),
                contract=(Contract, "Its contract."),
            )
        },
        "Its parts, by side.",
    ),
    published=({str: str}, "Published references, by side; empty if nothing was published."),
)
TASKS = Object(extractor=(str, "Task of the extractor."), head=(str, "Task of the head."))
RUN = Object(
    RunRecord,
    pairs=(
        [
            Object(
                "Accuracy of a pair of a run.",
                TASKS,
                accuracy=(float | None, "Its accuracy; null if it was not measured."),
            )
        ],
        "Accuracy of each pair.",
    ),
    without=("run", "matrix"),
)
DOCUMENTS: dict[str, Any] = {
    "train": (
        PUBLISHED,
        REHEARSED,
        Explanation,
        Object(Profile, warning=(str | None, "Advice if too much of a step is not computing, else null.")),
    ),
    "publish": (PUBLISHED, REHEARSED),
    "adapt": Object(
        "An extractor that was adapted.",
        SIGNED,
        source=(str, "Reference of the extractor."),
        head=(str, "Reference of its head."),
        data=(
            Object(
                "Images that an extractor was adapted to.",
                name=(str, "Name of the data set."),
                digest=(str, "Digest of the images."),
                labelled=(bool, "Whether they have labels, which were not read."),
            ),
            "Images that it was adapted to.",
        ),
        losses=({str: float}, "Last losses by name."),
        accuracy=(
            ({str: float}, None),
            "Accuracy on labeled test images, before and after; null without any.",
        ),
        plan=(str, "Digest of the trainer's plan."),
        steps=(int, "Number of steps."),
        published=(str | None, "Reference of the result; null if it was not published."),
    ),
    "adopt": Object(
        "A checkpoint that was cut into parts.",
        PARTS,
        adopted=(
            Object(
                "A checkpoint.",
                file=(str, "Its name."),
                digest=(str, "Its digest."),
                bytes=(int, "Its size."),
                format=(str, "Its format."),
                steps=([str], "How its tensors were renamed."),
            ),
            "The checkpoint.",
        ),
        kwargs=(dict, "Arguments of the model."),
    ),
    "split": Object(
        "A model that was cut.",
        PARTS,
        SIGNED,
        model=(str, "Name of the model."),
        cut=(str, "Module after which it was cut."),
        bitwise_equal=(bool, "Whether both parts together gave exactly the outputs of the whole."),
    ),
    "extend": Object(
        "A head that got more classes.",
        SIGNED,
        published=(str, "Reference of the new head."),
        classes=([str], "All of its classes, in order."),
        added=([str], "The new ones."),
        seed=(int, "Seed of the new rows."),
    ),
    "predict": Object(
        "Classes of images.",
        parts=([str], "References of the parts of the network."),
        bn_policy=(str, "Batch-norm policy."),
        classes=([str], "Names of the classes, in order."),
        predictions=(
            [
                Object(
                    "The class of an image, or why there is none.",
                    image=(str, "File of the image."),
                    label=(Sometimes(str | None), "Most probable class."),
                    probability=(Sometimes(float), "Its probability."),
                    position=(Sometimes(int), "Its position among the classes, from 0."),
                    damaged=(Sometimes(str), "Why the file cannot be read; then there is no class."),
                )
            ],
            "A row for each image.",
        ),
        left_out=({str: int}, "Number of other files in the folders, by kind."),
    ),
    "export": Object(
        "A file that was written.",
        file=(str, "Its path."),
        bytes=(int, "Its size."),
        replaced=(bool, "Whether there was a file before."),
        exported=(Description, "Description of the network."),
    ),
    "rank": Object(
        Ranking,
        measured={
            str: Object(
                "A measured accuracy.",
                accuracy=(float, "The accuracy."),
                how=(str, "How the head was trained."),
            )
        },
        advice=(str, "Which extractor to use."),
        caution=(str, "Why to be careful, or empty."),
        best=(Sometimes(str), "Reference of the best extractor; only with `--by`."),
    ),
    "sweep": Object(
        "A sweep.",
        registry=(str, "Folder of the registry."),
        folder=(str, "Folder of the records."),
        choice=(dict, "What chose the launcher."),
        notes=([str], "What else is worth knowing."),
        runs=({str: RUN}, "Record of each run by name."),
        groups=(
            [Object(SeedGroup, pairs=([Object(Spread, TASKS)], "Accuracy of each pair over seeds."))],
            "Runs that differ only in the seed, together.",
        ),
        failed=({str: str}, "Why runs failed, by name."),
    ),
    "demo": Object(
        "The demo.",
        recombined=({str: float}, "Mean accuracy of the two recombinations, by arm."),
        own=({str: float}, "Mean accuracy of the two networks as trained, by arm."),
        effect_shows=(bool, "Whether each arm recombines better than the previous one."),
        files=({str: str}, "Paths of the registry and the reports."),
    ),
}

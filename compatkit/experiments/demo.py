"""Demo: two domains of digits, three arms, one compatibility matrix.

Handwritten digits (from scikit-learn) and typeset digits are two domains with the same ten classes in different orders:
with the same order, identical initial class layers alone would help. Each arm trains one network per domain; the arms
differ in their regularizers only.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from statistics import fmean

import attrs

from compatkit.components.registry import Registry
from compatkit.data import DataSet, load
from compatkit.foundation.addresses import local
from compatkit.reports import page, tidy
from compatkit.reports.matrix import Matrix
from compatkit.reports.writing import write
from compatkit.training.task import Task
from compatkit.training.trainer import Trainer

MODEL, CUT, SIZE, STEPS = "resnet8_cifar", "layer2", (16, 16), 500
DOMAINS = {"handwritten": "digits", "typeset": "typeset-digits"}
HEADLINE = "Can a network use another network's head?"
"""Headline of the demo's report."""
CLASS_SHIFT = 3
"""Shift of the class order of the second domain."""
ARMS = {"none": (), "iiw": ("identical_init",), "iiw-dcc": ("identical_init", "dcc")}


@attrs.frozen(eq=False)
class Demo:
    """The result of the demo.

    Attributes:
        recombined: Mean accuracy of the two recombinations, by arm.
        own: Mean accuracy of the two networks as trained, by arm.
        matrix: Matrix of all extractors and heads.
        files: Paths of the registry and the reports.
    """

    recombined: Mapping[str, float]
    own: Mapping[str, float]
    matrix: Matrix
    files: Mapping[str, Path]

    @property
    def shows(self) -> bool:
        """Whether each arm recombines better than the previous one, as in the paper."""
        return all(left < right for left, right in pairwise(self.recombined.values()))

    @property
    def finding(self) -> str:
        """Result of the demo in one or two sentences."""
        if not self.shows:
            return (
                "The effect does NOT show in this run: each arm should recombine better than the one before. Try more "
                "--steps, or another --seed."
            )
        best = list(self.recombined)[-1]
        return (
            f"All shapes match, and yet heads of independent networks fail on each other's extractors "
            f"({self.recombined['none']:.2f} of {self.own['none']:.2f}). Trained to fit ({best}), they reach "
            f"{self.recombined[best]:.2f} of {self.own[best]:.2f}, without a step of fine-tuning."
        )


def run(
    folder: str | os.PathLike[str],
    *,
    steps: int = STEPS,
    seed: int = 0,
    say: Callable[[str], None] = lambda text: None,
    progress: bool = True,
) -> Demo:
    """Train, publish, recombine, measure and report, on one thread.

    Args:
        folder: Folder for the registry and the reports.
        steps: Training steps per network.
        seed: Seed of all random numbers.
        say: Callback with each message.
        progress: Whether to show a progress bar, as in ``Trainer``.

    Returns:
        Accuracies, matrix and paths of the files.
    """
    import torch

    # With images this small a second thread gains nothing, and on shared cores it costs much.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _run(Path(local(folder, "the folder of the demo")), steps, seed, say, progress)
    finally:
        torch.set_num_threads(threads)


def _run(root: Path, steps: int, seed: int, say: Callable[[str], None], progress: bool) -> Demo:
    registry = Registry.init(root / "parts", exist_ok=True)
    sets = {name: load(source) for name, source in DOMAINS.items()}
    sets["typeset"] = shift_classes(sets["typeset"])
    tasks = [Task(name, data, MODEL, CUT, size=SIZE) for name, data in sets.items()]
    trainer = Trainer(steps=steps, seed=seed, progress=progress)
    for arm, regularizers in ARMS.items():
        say(f"arm {arm}: training 2 networks of {MODEL}, {steps} steps each")
        fit = trainer.fit(tasks, regularizers)
        for reference in registry.publish(fit, prefix=f"demo/{arm}").values():
            say(f"  published {reference}")
    say("measuring every extractor with every head")
    matrix = registry.matrix(
        [f"demo/{arm}/*.extractor" for arm in ARMS],
        [f"demo/{arm}/*.head" for arm in ARMS],
        [data.test for data in sets.values()],
    )
    files = {"registry": root / "parts", "html": root / "matrix.html", "png": root / "matrix.png"}
    recombined, own = ({arm: _mean_accuracy(matrix, arm, own) for arm in ARMS} for own in (False, True))
    demo = Demo(recombined, own, matrix, files)
    write(files["html"], page.render(matrix, headline=HEADLINE, finding=demo.finding))
    matrix.to_png(files["png"])
    return demo


def shift_classes(data: DataSet) -> DataSet:
    """Return the same images with shifted class order."""
    return data.of_classes([*data.classes[CLASS_SHIFT:], *data.classes[:CLASS_SHIFT]])


def _mean_accuracy(matrix: Matrix, arm: str, own: bool) -> float:
    """Return the mean accuracy of an arm's networks as trained, or of its recombinations."""
    return fmean(
        row["accuracy"]
        for row in tidy.rows(matrix)
        if row["own"] == own and row["extractor"].split("/")[1] == row["head"].split("/")[1] == arm
    )

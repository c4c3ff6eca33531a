"""Epochs of pretraining: does accuracy on the target rise, then fall, while that on the source goes on rising?

Paper: "Towards Understanding the Transferability of Deep Representations" (2020), Sec. 5.2, Fig. 9: ResNet-50
    pretrained on Food-101 and fine-tuned to CUB-200; curves only.
Here: every stage of pretraining is a version of one component in a registry, descended from the one before; the
    target is fine-tuned from each, and ``rank`` reads from the evidence which transfers best. A share of the source's
    labels is drawn at random, so that there is something to fit that no target can use. ``fall`` compares two stages
    that are chosen beforehand, since the best of several lies above the last by chance.
Controls: ``noise-0`` has no noise to fit; ``noise-100`` has nothing else, and nothing may rise.

    compatkit study run 4.12 --seeds 3 --data DIR --out OUT
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import numpy as np

import compatkit as ck
from compatkit.experiments.studies import Measure, Outcome, Results, Run, Study
from compatkit.hooks import Register
from compatkit.reports.pictures import COLORS, png

from ._curves import panels
from ._fine_tuning import LENET, PAPER, REFERENCE, TASK, few, network, source, trainer

STAGES = 5
"""Number of pretrained weights to keep."""
NAME = f"zoo/{TASK}"
SMALL: dict[str, Any] = {
    **LENET,
    "source_train": 1500,
    "target": "usps",
    "few": 100,
    "steps": 150,
    "epochs": [1, 3, 10, 30, 60],
}
LARGE: dict[str, Any] = {
    **PAPER,
    "target": "stl10",
    "few": 1000,
    "steps": 5000,
    "epochs": [1, 3, 10, 30, 100],
}
ARMS = {"noise-0": 0.0, "noise-20": 0.2, "noise-50": 0.5, "noise-100": 1.0}


def noisy(data: ck.DataSet, share: float, seed: int) -> ck.DataSet:
    """Return the data set with a share of its training labels drawn at random, from all classes."""
    draw = np.random.default_rng(seed)
    labels = data.train.labels.copy()
    chosen = draw.permutation(len(labels))[: round(share * len(labels))]
    labels[chosen] = draw.integers(len(data.classes), size=len(chosen))
    return attrs.evolve(data, train=attrs.evolve(data.train, labels=labels), source=None)


def run(run: Run) -> Outcome:
    """Publish stages of pretraining, fine-tune from each, and read from the evidence what came of it."""
    settings = run.settings
    own = run.load(settings["source"])
    test = own.test.subset(settings["test"], seed=0).converted(settings["channels"])
    data = attrs.evolve(noisy(source(settings, own, run.seed), ARMS[run.arm], run.seed), test=test)
    target = few(settings, run.load(settings["target"]), run.seed).converted(settings["channels"])
    values: dict[str, float | None] = {}
    with tempfile.TemporaryDirectory() as folder:
        registry = ck.Registry.init(folder)
        seen = 0
        for stage, epochs in enumerate(settings["epochs"], 1):
            # The optimizer's momentum starts anew with each stage.
            steps = round((epochs - seen) * len(data.train) / settings["batch_size"])
            seen = epochs
            task = network(settings, data)
            if stage > 1:
                task = registry.task(TASK, data, extractor=f"{NAME}.extractor", head=f"{NAME}.head")
            fit = trainer(run, settings, steps).fit([task])
            registry.publish(fit, prefix="zoo")
            fitted = ck.measure(fit.tasks[TASK], data.train, ["accuracy"])["accuracy"]
            values[f"fitted-{stage}"] = fitted.value  # type: ignore[union-attr]
            values[f"source-{stage}"] = _measured(registry, NAME, test)
            tuned = registry.task(TASK, target, extractor=f"{NAME}.extractor")
            registry.publish(trainer(run, settings, settings["steps"]).fit([tuned]), prefix="tuned")
            _measured(registry, f"tuned/{TASK}", target.test)
        versions = [f"{NAME}.extractor@{version}" for version in registry.versions(f"{NAME}.extractor")]
        ranking = registry.rank(versions, target, scores=["logme"], examples=settings["few"])
        for stage, version in enumerate(versions, 1):
            values[f"target-{stage}"] = ranking.measured[version][0]
        values["best"] = float(versions.index(ranking.best("measured")) + 1)
    values["rise"], values["fall"] = (
        (values[f"target-{a}"] or 0) - (values[f"target-{b}"] or 0) for a, b in ((3, 1), (3, STAGES))
    )
    return Outcome(values=values)


def _measured(registry: ck.Registry, name: str, images: ck.Split) -> float | None:
    """Measure the latest extractor under the latest head of a name; the result is kept as evidence."""
    cell = registry.matrix(f"{name}.extractor", f"{name}.head", {"*": images}, bn_policy="running")[0, 0]
    return cell.restricted.accuracy if cell.restricted is not None else None


def draw(results: Results) -> Mapping[str, bytes]:
    """Draw accuracies by epochs of pretraining, and that on the target against that on the source."""
    titles = {
        "fitted": "the labels that are learned",
        "source": "the source's test images",
        "target": "the target's test images",
    }
    lines = {
        name: {
            arm: list(zip(*(results.values(arm, f"{name}-{at}") for at in range(1, STAGES + 1)), strict=True))
            for arm in results.arms
        }
        for name in titles
    }
    drawn = {title: lines[name] for name, title in titles.items()}
    epochs = results.settings["epochs"]
    return {
        "epochs": panels(drawn, epochs, "epochs of pretraining", height="accuracy", close=[titles["target"]]),
        "path": _path(lines["source"], lines["target"], epochs),
    }


def _path(source: Mapping[str, Any], target: Mapping[str, Any], epochs: Sequence[int]) -> bytes:
    """Return a PNG: means over seeds, joined in the order of the epochs that stand beside them."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.0, 4.2), dpi=130, layout="constrained")
    axes = figure.add_subplot()
    for number, arm in enumerate(source):
        across, up = (np.array(side[arm], dtype=np.float64).mean(0) for side in (source, target))
        axes.plot(across, up, "o-", color=COLORS[number], label=arm, markersize=4)
        beside = {"xytext": (4, 4), "textcoords": "offset points", "fontsize": 8, "color": COLORS[number]}
        for x, y, count in zip(across, up, epochs, strict=True):
            axes.annotate(str(count), (x, y), **beside)
    axes.set_xlabel("accuracy on the source's test images")
    axes.set_ylabel("accuracy on the target's test images")
    figure.legend(fontsize=8, frameon=False, loc="outside upper left", ncols=4)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return png(figure)


STUDY = Study(
    title="transfer by epochs of pretraining",
    question="Does accuracy on the target peak before the end of pretraining, and is that so only where there is noise "
    "to fit?",
    reference=f"{REFERENCE} Sec. 5.2, Fig. 9",
    arms=tuple(ARMS),
    measures=(
        *(
            Measure(name=f"{name}-{stage}", title=f"{words}, stage {stage}", drawn=name == "target")
            for name, words in (
                ("target", "accuracy on the target"),
                ("source", "accuracy on the source's test images"),
                ("fitted", "accuracy on the labels that are learned"),
            )
            for stage in range(1, STAGES + 1)
        ),
        Measure(name="best", title="stage that transfers best", unit="stage", better="none", drawn=False),
        Measure(name="rise", title="target: stage 3 less stage 1", better="none"),
        Measure(name="fall", title=f"target: stage 3 less stage {STAGES}", better="none"),
    ),
    sizes={"cpu": SMALL, "paper": LARGE},
    scale={
        "cpu": "LeNet on 1,500 images of MNIST with random labels among them, after 1, 3, 10, 30 and 60 epochs; 100 "
        "images of USPS, 150 steps of 32.",
        "paper": "ResNet-56, CIFAR-100 and STL-10 for ResNet-50, Food-101 and CUB-200.",
    },
    paper=(),
    run=run,
    draw=draw,
    data=("mnist", "usps"),
)


@ck.hookimpl
def compatkit_studies(register: Register) -> None:
    """Offer study 4.12."""
    register("4.12", lambda: STUDY)

"""The ladder of bridges: how far does each rung carry a head onto features that it was never trained for?

There is no paper of this ladder; its rungs come from several (docs/bridges.md names them). Two networks are trained
independently. The extractor of the one gets the head of the other, rung by rung, with 10, 100 and 1,000 images without
labels, and as many labelled ones for the rungs that need them. Accuracy is that on test images of the extractor's
domain.

An arm is a pair of networks: ``mnist-usps`` is the extractor of MNIST under the head of USPS; ``same-mnist`` two
networks on the same images; ``halves`` two networks on two halves of CIFAR-10.

    compatkit study run bridges --data DIR --out OUT
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import compatkit as ck
from compatkit.hooks import Register
from compatkit.studies import Measure, Outcome, Run, Study

ARMS = ("mnist-usps", "usps-mnist", "same-mnist", "same-usps", "halves")
RUNGS = {
    "direct": "as it is",
    "statistics": "statistics",
    "permutation": "permutation",
    "procrustes": "Procrustes",
    "ridge": "ridge 1x1",
    "ridge-procrustes": "ridge to Procrustes",
    "ridge3x3": "ridge 3x3",
    "absorbed": "absorbed",
    "stitch": "stitch to logits",
    "stitch-labels": "stitch to labels",
    "finetune": "fine-tune",
}
CLOSED = ("permutation", "procrustes", "ridge", "ridge-procrustes", "ridge3x3", "absorbed")
"""Rungs whose seconds are those of a fit, not of training."""
COUNTS = (10, 100, 1000)
"""Images without labels; also with labels, for the rungs that are trained with some."""
SHOWN = 100
"""The count whose accuracies are drawn."""
HELD_OUT = 500
"""Further images without labels, on which agreement is measured."""
RESIDUAL = {"layers": [1, 1, 1, 1], "channels": [32, 64, 64, 64]}
SIZES: dict[str, dict[str, Any]] = {
    "cpu": {
        "backbone": "resnet18",
        "kwargs": RESIDUAL,
        "split": "layer1",
        "image": 32,
        "train": 5000,
        "test": 2000,
        "steps": 400,
        "steps_halves": 800,
        "batch_size": 64,
        "counts": list(COUNTS),
        "on": "dst",
    },
    "paper": {
        "backbone": "resnet18",
        "kwargs": {},
        "split": "layer2",
        "image": 64,
        "train": 0,
        "test": 0,
        "steps": 5000,
        "steps_halves": 10_000,
        "batch_size": 256,
        "counts": list(COUNTS),
        "on": "dst",
    },
}


def pair(run: Run) -> tuple[ck.DataSet, ck.DataSet]:
    """Return the images of the extractor's network and of the head's."""
    if run.arm == "halves":
        first, second = run.load("cifar10").halves()
        sets = first.renamed("first"), second.renamed("second")
    elif run.arm.startswith("same-"):
        data = run.load(run.arm.removeprefix("same-"))
        sets = data, data
    else:
        first, second = map(run.load, run.arm.split("-"))
        sets = first, second
    return _some(run, sets[0]), _some(run, sets[1])


def run(run: Run) -> Outcome:
    """Train both networks, climb with each count of images, and measure."""
    settings, (source, target) = run.settings, pair(run)
    with tempfile.TemporaryDirectory() as folder:
        registry = ck.Registry.init(Path(folder) / "parts")
        for side, data in (("src", source), ("dst", target)):
            registry.publish(_train(run, side, data), prefix="parts")
        own = registry.bridge(
            "parts/src.extractor", "parts/src.head", source.train, rungs=["direct"], test=source.test
        )
        ladders = {count: _climb(run, registry, source, target, count) for count in settings["counts"]}
    values: dict[str, float | None] = {}
    kept: list[dict[str, Any]] = []
    for count, found in ladders.items():
        for step in found.steps:
            values[f"{step.rung}-{count}"] = None if step.accuracy is None else step.accuracy.accuracy
        best = found.step(found.chosen)
        values[f"chosen-{count}"] = None if best.accuracy is None else best.accuracy.accuracy
        values[f"agreement-{count}"] = found.agreement.accuracy
        values[f"seconds-{count}"] = sum(one.seconds for one in found.steps if one.rung in CLOSED)
        kept.append(found.to_json())
    accuracy = own.step("direct").accuracy
    values["own"] = None if accuracy is None else accuracy.accuracy
    values["reference"] = ladders[max(ladders)].facts["reference"]
    return Outcome(values=values, kept={"ladders": kept})


def _climb(run: Run, registry: ck.Registry, source: ck.DataSet, target: ck.DataSet, count: int) -> ck.Bridge:
    """Climb with so many images; the head's own domain lends as many where features are paired on it."""
    some = min(count + HELD_OUT, len(source.train))
    beside = target.train.subset(min(count, len(target.train)), seed=run.seed)
    on = run.settings["on"]
    return registry.bridge(
        "parts/src.extractor",
        "parts/dst.head",
        source.train.subset(some, seed=run.seed),
        labels=source.train.subset(min(count, len(source.train)), seed=run.seed + 1),
        test=source.test,
        head_data=None if on == "src" else beside,
        on=on,
        images=count,
        until=None,
        seed=run.seed,
    )


def _train(run: Run, side: str, data: ck.DataSet) -> ck.Fit:
    settings = run.settings
    task = ck.Task(
        side, data, settings["backbone"], settings["split"], size=settings["image"], kwargs=settings["kwargs"]
    )
    steps = settings["steps_halves" if run.arm == "halves" else "steps"]
    seed = 2 * run.seed + (side == "dst")
    return ck.Trainer(steps=steps, seed=seed, batch_size=settings["batch_size"], progress=False).fit([task])


def _some(run: Run, data: ck.DataSet) -> ck.DataSet:
    """Return as many images as the settings ask for, 0 all."""
    sizes = {name: run.settings[name] or len(getattr(data, name)) for name in ("train", "test")}
    return data.subset(**{name: min(size, len(getattr(data, name))) for name, size in sizes.items()})


def _measures() -> tuple[Measure, ...]:
    found = [Measure(name="own", title="own head"), Measure(name="reference", title="the head's own network")]
    for count in COUNTS:
        for rung, words in RUNGS.items():
            found.append(
                Measure(name=f"{rung}-{count}", title=f"{words}, {count} images", drawn=count == SHOWN)
            )
        found.append(Measure(name=f"chosen-{count}", title=f"chosen, {count} images", drawn=count == SHOWN))
        found.append(Measure(name=f"agreement-{count}", title=f"agreement of it, {count}", drawn=False))
        found.append(
            Measure(
                name=f"seconds-{count}", title=f"closed forms, {count}", unit="s", better="lower", drawn=False
            )
        )
    return tuple(found)


STUDY = Study(
    title="the ladder of bridges",
    question="How far does each rung carry a head onto features that it was never trained for, with how many images, "
    "and does agreement with the head's own network tell which to take?",
    reference="compatkit, docs/bridges.md; no paper has this ladder",
    arms=ARMS,
    measures=_measures(),
    sizes=SIZES,
    scale={"cpu": "", "paper": "whole ResNet-18 at 64x64 on all images."},
    paper=(),
    run=run,
    data=("mnist", "usps", "cifar10"),
)


@ck.hookimpl
def compatkit_studies(register: Register) -> None:
    """Offer the study of bridges."""
    register("bridges", lambda: STUDY)

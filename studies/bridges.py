"""The ladder of bridges: how well does each rung fit a head to features that it was never trained for?

There is no paper of this ladder; its rungs come from several (see docs/how_to/bridges.md). Two networks are trained
independently. The extractor of one gets the head of the other, rung by rung, with 10, 100 and 1,000 unlabeled images,
and as many labeled ones for the rungs that need them. Accuracy is measured on test images of the extractor's domain.

An arm is a pair of networks: ``mnist-usps`` is the extractor of MNIST with the head of USPS; ``same-mnist`` two
networks on the same images; ``halves`` two networks on two halves of CIFAR-10. A suffix after ``+`` names a variation:
``early`` and ``late`` cut the same networks elsewhere, ``deep`` has a head of many blocks, ``wide`` 512 channels at few
positions, ``families`` an extractor and a head of two standard architectures of timm.

    compatkit study run bridges --data DIR --out OUT
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import compatkit as ck
from compatkit.experiments.studies import Measure, Outcome, Results, Run, Study
from compatkit.hooks import Register

from ._pairs import temporary_registry
from ._rows import rows

PAIRS = ("mnist-usps", "usps-mnist", "same-mnist", "same-usps", "halves")
CHANGES = ("early", "late", "deep", "wide", "families")
ARMS = (*PAIRS, *(f"{pair}+{change}" for change in CHANGES for pair in ("same-mnist", "usps-mnist")))
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
BOUNDS = {"reference": "the head's own network", "own": "the extractor's own head"}
CLOSED = ("permutation", "procrustes", "ridge", "ridge-procrustes", "ridge3x3", "absorbed")
"""Rungs whose time is for a fit, not for training."""
FREE = ("direct", "statistics", *CLOSED)
"""Rungs chosen only by agreement corrected for chance: nothing is trained, and no labels are used."""
NEAR = 0.01
"""Largest loss of accuracy against the extractor's own head that counts as equal."""
COUNTS = (10, 100, 1000)
"""Numbers of unlabeled images, and of labeled ones for the rungs that need them."""
SHOWN = 100
"""The number of images in the figure."""
HELD_OUT = 500
"""Number of further unlabeled images for measuring agreement."""
SMALL = {"layers": [1, 1, 1, 1], "channels": [32, 64, 64, 64]}
DEEP = {"layers": [1, 4, 4, 4], "channels": [32, 64, 64, 64]}
WIDE = {"layers": [1, 1, 1, 1], "channels": [32, 64, 512, 512]}
# Networks of both sides, or of extractor and head separately: model, cut, further arguments.
SIZES: dict[str, dict[str, Any]] = {
    "cpu": {
        "base": [["resnet18", "layer1", SMALL]],
        "early": [["resnet18", "maxpool", SMALL]],
        "late": [["resnet18", "layer3", SMALL]],
        "deep": [["resnet18", "layer1", DEEP]],
        "wide": [["resnet18", "layer3", WIDE]],
        "families": [["resnet10t", "layer1", {}], ["regnetx_002", "s1", {}]],
        "image": 32,
        "train": 5000,
        "test": 2000,
        "steps": 800,
        "batch_size": 64,
        "counts": list(COUNTS),
        "on": "dst",
    },
    "paper": {
        "base": [["resnet18", "layer2", {}]],
        "early": [["resnet18", "maxpool", {}]],
        "late": [["resnet18", "layer3", {}]],
        "deep": [["resnet101", "layer2", {}]],
        "wide": [["wide_resnet50_2", "layer3", {}]],
        "families": [["mobilenetv3_small_100", "blocks.2", {}], ["regnetx_008", "s2", {}]],
        "image": 64,
        "train": 0,
        "test": 0,
        "steps": 5000,
        "batch_size": 256,
        "counts": list(COUNTS),
        "on": "dst",
    },
}


def pair(run: Run) -> tuple[ck.DataSet, ck.DataSet]:
    """Return the data sets of the extractor's and the head's network."""
    name = run.arm.partition("+")[0]
    if name == "halves":
        first, second = run.load("cifar10").halves()
        sets = first.renamed("first"), second.renamed("second")
    elif name.startswith("same-"):
        data = run.load(name.removeprefix("same-"))
        sets = data, data
    else:
        first, second = map(run.load, name.split("-"))
        sets = first, second
    return _some(run, sets[0]), _some(run, sets[1])


def tasks(run: Run, source: ck.DataSet, target: ck.DataSet) -> tuple[ck.Task, ck.Task]:
    """Return the tasks of the extractor and of the head.

    Args:
        run: Settings and arm.
        source: Data of the extractor.
        target: Data of the head.
    """
    networks = run.settings[run.arm.partition("+")[2] or "base"]
    left, right = (
        ck.Task(side, data, model, cut, size=run.settings["image"], kwargs=kwargs)
        for side, data, (model, cut, kwargs) in zip(
            ("src", "dst"), (source, target), (networks[0], networks[-1]), strict=True
        )
    )
    return left, right


def run(run: Run) -> Outcome:
    """Train both networks, try the rungs with each number of images, and measure."""
    settings, (source, target) = run.settings, pair(run)
    with temporary_registry() as registry:
        for number, task in enumerate(tasks(run, source, target)):
            trainer = ck.Trainer(
                steps=settings["steps"],
                seed=2 * run.seed + number,
                batch_size=settings["batch_size"],
                progress=False,
            )
            registry.publish(trainer.fit([task]), prefix="parts")
        own = registry.bridge(
            "parts/src.extractor", "parts/src.head", source.train, rungs=["direct"], test=source.test
        )
        ladders = {count: _climb(run, registry, source, target, count) for count in settings["counts"]}
    own_accuracy = _accuracy(own.step("direct"))
    values: dict[str, float | None] = {
        "own": own_accuracy,
        "reference": ladders[max(ladders)].details["reference"],
    }
    for count, ladder in ladders.items():
        values |= {
            f"{name}-{count}": value for name, value in _metrics_of_bridge(ladder, own_accuracy).items()
        }
    return Outcome(values=values, figure_data={"ladders": [bridge.to_json() for bridge in ladders.values()]})


def _metrics_of_bridge(bridge: ck.Bridge, own: float) -> dict[str, float | None]:
    """Return the values of one ladder: each rung, and the one chosen without labels."""
    rungs: dict[str, float | None] = {
        step.rung: None if step.accuracy is None else step.accuracy.accuracy for step in bridge.steps
    }
    judged = [(step.agreed, step) for step in bridge.steps if step.rung in FREE and step.agreed is not None]
    agreed, best = max(judged, key=lambda pair: pair[0].rank)
    free = _accuracy(best)
    return rungs | {
        "chosen": _accuracy(bridge.step(bridge.chosen)),
        "free": free,
        "agreement": agreed.figure.accuracy,
        "short": own - free,
        "within": float(own - free <= NEAR + 1e-9),
        "fit-seconds": best.seconds,
        "seconds": sum(step.seconds for step in bridge.steps if step.rung in CLOSED),
    }


def _accuracy(step: Any) -> float:
    """Return the accuracy of a rung on test images."""
    return step.accuracy.accuracy


def _climb(run: Run, registry: ck.Registry, source: ck.DataSet, target: ck.DataSet, count: int) -> ck.Bridge:
    """Try the rungs with ``count`` images, also of the head's domain for pairing features on it.

    If both networks have the same domain, its images are the extractor's.
    """
    some = min(count + HELD_OUT, len(source.train))
    beside = target.train.subset(min(count, len(target.train)), seed=run.seed)
    on = "src" if run.arm.startswith("same-") else run.settings["on"]
    return registry.bridge(
        "parts/src.extractor",
        "parts/dst.head",
        source.train.subset(some, seed=run.seed),
        labels=source.train.subset(min(count, len(source.train)), seed=run.seed + 1),
        test=source.test,
        head_data=None if on == "src" else beside,
        on=on,
        max_images=count,
        until=None,
        seed=run.seed,
    )


def _some(run: Run, data: ck.DataSet) -> ck.DataSet:
    """Return as many images as the settings request, 0 for all."""
    sizes = {name: run.settings[name] or len(getattr(data, name)) for name in ("train", "test")}
    return data.subset(**{name: min(size, len(getattr(data, name))) for name, size in sizes.items()})


def draw(results: Results) -> Mapping[str, bytes]:
    """Draw the ladder for one number of images: a row per rung, a mark per pair."""
    title = f"accuracy on test images of the extractor's domain, {SHOWN} images"
    shown = {**{f"{rung}-{SHOWN}": words for rung, words in RUNGS.items()}, **BOUNDS}
    ways = {arm: {words: results.known(arm, name) for name, words in shown.items()} for arm in results.arms}
    return {"ladder": rows(ways, title)}


def _measures() -> tuple[Measure, ...]:
    measures = [Measure(name=name, title=words) for name, words in BOUNDS.items()]
    for count in COUNTS:
        images, drawn = f"{count} images", count == SHOWN
        measures += [
            Measure(name=f"{rung}-{count}", title=f"{words}, {images}", drawn=False)
            for rung, words in RUNGS.items()
        ]
        measures += [
            Measure(name=f"chosen-{count}", title=f"chosen, {images}", drawn=drawn),
            Measure(name=f"free-{count}", title=f"chosen without labels, {images}", drawn=drawn),
            Measure(name=f"agreement-{count}", title=f"agreement of it, {images}", drawn=False),
            Measure(name=f"short-{count}", title=f"own head minus it, {images}", better="lower", drawn=False),
            Measure(name=f"within-{count}", title=f"runs within .01 of own, {images}", drawn=False),
        ]
        measures += [
            Measure(name=f"{name}-{count}", title=f"{words}, {images}", unit="s", better="lower", drawn=False)
            for name, words in (("fit-seconds", "seconds of it"), ("seconds", "seconds of all closed forms"))
        ]
    return tuple(measures)


STUDY = Study(
    title="the ladder of bridges",
    question="How far does each rung carry a head onto features that it was never trained for, with how many images, "
    "and does agreement with the head's own network tell which to take?",
    reference="compatkit, docs/how_to/bridges.md; no paper has this ladder",
    arms=ARMS,
    measures=_measures(),
    sizes=SIZES,
    scale={"cpu": "", "paper": "whole ResNet-18 at 64x64 on all images."},
    paper=(),
    run=run,
    draw=draw,
    data=("mnist", "usps", "cifar10"),
)


@ck.hookimpl
def compatkit_studies(register: Register) -> None:
    """Offer the study of bridges."""
    register("bridges", lambda: STUDY)

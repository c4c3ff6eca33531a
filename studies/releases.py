"""Releases that must not break: how well new parts work with released ones, by training method.

Papers: Shen, Xiong, Xia, Soatto (2020), "Towards Backward-Compatible Representation Learning" (BCT); Ramanujan, Vasu,
    Farhadi, Tuzel, Pouransari (2022), "Forward Compatible Training for Large-Scale Embedding Retrieval Systems" (FCT;
    CIFAR-100, 50 to 100 classes); Gygli, Uijlings, Ferrari (2021), Sec. 3.1 and 4 (DCC, incremental).
Here: MNIST and USPS, two halves of CIFAR-10, or CIFAR-100 from 50 to 100 classes, at a size for two CPU cores.

Four consecutive releases (two for CIFAR-100), the odd ones on the first domain and the even ones on the second, each on
newly drawn images. A new release is trained against the one before. ``backward`` is the accuracy of the second
release's extractor with the first head on the second domain; ``forward`` that of the first extractor with the second
head on the first domain. Both are classification over the common classes. With CIFAR-100 the networks are cut before
their pooling, so the features are the papers' embeddings, and ``retrieval`` is measured as in the papers: test images
of all 100 classes, each a query against all others, new queries against a gallery of old features.

    compatkit study run releases --data DIR --out OUT
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import numpy as np

import compatkit as ck
from compatkit.errors import TrainingError
from compatkit.experiments.studies import Measure, Outcome, Reported, Results, Run, Study
from compatkit.hooks import Register

from ._chain import chain, means
from ._pairs import halves, temporary_registry

ARMS = (
    "independent",
    "independent-longer",
    "warm",
    "distillation",
    "bct",
    "bct+warm",
    "bct+forward",
    "incremental-dcc",
    "incremental-dcc+warm",
    "bct+dcc",
    "joint-dcc",
)
"""``warm``: the extractor starts from the last release's; ``independent-longer``: from its own random weights, for as
many steps as a warm one has taken by then, twice the first's for the second release; ``distillation``: features are
regressed to the last release's; ``bct``: the old head classifies the new features; ``forward``: the new head classifies
the old features; ``incremental-dcc``: the first release's auxiliary head is frozen for all others; ``joint-dcc``: all
releases are trained together with one auxiliary head."""
STORED, ESTIMATED = "running", "reestimate"
HUNDRED = ["cifar100"]
EMBEDDING = "global_pool"
"""Layer whose features are used for retrieval."""
PREFIX, SHARED = "releases", "releases/shared.dcc"


def domains(run: Run) -> list[ck.DataSet]:
    """Return the data sets of odd and even releases, with all images."""
    names = run.settings["data"]
    if names == HUNDRED:
        whole = run.load("cifar100")
        return [first_classes(whole, run.settings["classes"]).renamed("half-of-classes"), whole]
    if names == ["cifar10"]:
        return halves(run)
    return [run.load(name) for name in names]


def first_classes(data: ck.DataSet, count: int) -> ck.DataSet:
    """Return the images of the first classes.

    Args:
        data: Images of all classes.
        count: Classes to keep.
    """
    names, splits = data.classes[:count], []
    for split in (data.train, data.test):
        some = split.take(np.flatnonzero(split.labels < count))
        splits.append(attrs.evolve(some, classes=names))
    return ck.DataSet(data.name, *splits)


def releases(run: Run) -> list[ck.DataSet]:
    """Return the data set of each release; releases of one domain have newly drawn training images."""
    settings, sets = run.settings, []
    for number in range(settings["releases"]):
        data = domains(run)[number % 2]
        sizes = {
            name: min(settings[name] or len(getattr(data, name)), len(getattr(data, name)))
            for name in ("train", "test")
        }
        some = data.subset(sizes["train"], None, seed=settings["releases"] * run.seed + number)
        sets.append(ck.DataSet(data.name, some.train, data.test.subset(sizes["test"])))
    return sets


def train(run: Run, registry: ck.Registry) -> list[ck.DataSet]:
    """Train and publish all releases of an arm as ``releases/r1`` and so on; return their data sets.

    Args:
        run: Settings, arm and seed.
        registry: Registry for the parts.
    """
    words, sets = run.arm.split("+"), releases(run)
    tasks = [_task(run, f"r{number}", data) for number, data in enumerate(sets, 1)]
    trainer = ck.Trainer(
        steps=run.settings["steps"], seed=run.seed, batch_size=run.settings["batch_size"], progress=False
    )
    if run.arm == "joint-dcc":
        registry.publish(trainer.fit(tasks, ["dcc"]), prefix=PREFIX)
        return sets
    dcc = ["dcc"] if {"dcc", "incremental-dcc"} & set(words) else []
    registry.publish(trainer.fit(tasks[:1], dcc), prefix=PREFIX)
    longer = run.arm == "independent-longer"
    for number, task in enumerate(tasks[1:], 1):
        extractor, head = (f"{PREFIX}/r{number}.{kind}" for kind in ("extractor", "head"))
        uses, frozen = [ck.use(name) for name in dcc], {"heads": SHARED} if dcc else {}
        if "bct" in words:
            forward = "forward" in words
            uses.append(ck.use("backward_compatibility", forward=float(forward)))
            frozen |= {"head": head, **({"extractor": extractor} if forward else {})}
        if "distillation" in words:
            uses.append(ck.use("feature_distillation"))
            frozen |= {"extractor": extractor}
        if "warm" in words:
            task = registry.task(task.name, task.data, extractor=extractor, augment=task.augment)
        lasting = attrs.evolve(trainer, steps=(number + 1) * trainer.steps) if longer else trainer
        registry.publish(lasting.fit([task], uses, frozen=registry.frozen(**frozen)), prefix=PREFIX)
    return sets


def _task(run: Run, name: str, data: ck.DataSet) -> ck.Task:
    settings = run.settings
    augment = ("crop", "flip") if settings["data"][0].startswith("cifar") else ()
    return ck.Task(name, data, settings["model"], settings["cut"], size=settings["image"], augment=augment)


def measure(registry: ck.Registry, sets: list[ck.DataSet]) -> list[dict[str, Any]]:
    """Measure all extractors with all heads, with stored and with re-estimated statistics.

    Args:
        registry: With all releases.
        sets: Data of each release, in order.
    """
    tests = {f"{PREFIX}/r{number}.extractor": data.test for number, data in enumerate(sets, 1)}
    rows: list[dict[str, Any]] = []
    for policy in (STORED, ESTIMATED):
        matrix = registry.matrix(f"{PREFIX}/r*.extractor", f"{PREFIX}/r*.head", tests, bn_policy=policy)
        for cell in matrix.cells:
            if cell.restricted is None:
                raise TrainingError(f"{cell.extractor} with {cell.head} could not be measured: {cell.reason}")
            sides = (part.split("/")[1].split(".")[0] for part in (cell.extractor, cell.head))
            figures = {"accuracy": cell.restricted.accuracy, "chance": cell.chance, "promise": cell.promise}
            rows.append({**dict(zip(("extractor", "head"), sides, strict=True)), "policy": policy, **figures})
    return rows


def values_of(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return the measures of one run."""
    cells = {(row["extractor"], row["head"], row["policy"]): row for row in rows}
    last = max(int(row["extractor"][1:]) for row in rows)

    def accuracy(extractor: int, head: int, policy: str = STORED) -> float:
        return cells[f"r{extractor}", f"r{head}", policy]["accuracy"]

    return {
        "old": accuracy(1, 1),
        "own": accuracy(2, 2),
        "backward": accuracy(2, 1),
        "backward-reestimated": accuracy(2, 1, ESTIMATED),
        "forward": accuracy(1, 2),
        "forward-reestimated": accuracy(1, 2, ESTIMATED),
        **{f"under-first-{number}": accuracy(number, 1) for number in range(3, last + 1)},
        **{f"own-{number}": accuracy(number, number) for number in range(3, last + 1)},
        "chance": cells["r2", "r1", STORED]["chance"],
    }


def retrieved(registry: ck.Registry, images: ck.data.Split) -> dict[str, float | None]:
    """Measure retrieval with the first and the second release, and with new queries in an old gallery.

    Args:
        registry: With the first two releases.
        images: Queries and gallery.
    """
    old, new = (
        registry.recombine(f"{PREFIX}/{release}.extractor", f"{PREFIX}/{release}.head")
        for release in ("r1", "r2")
    )
    measured = ck.measure(new, images, ["retrieval"], layers=[EMBEDDING], other=old).table("retrieval")
    cells = {(release, other): cell.value for (_, release, other), cell in measured}
    return {
        "retrieval-old": cells["other", "other"],
        "retrieval-own": cells["this", "this"],
        "retrieval": cells["this", "other"],
    }


def run(run: Run) -> Outcome:
    """Train the releases of an arm, and measure all of them with each other."""
    with temporary_registry() as registry:
        sets = train(run, registry)
        rows = measure(registry, sets)
        retrieval = retrieved(registry, sets[1].test) if run.settings["data"] == HUNDRED else {}
    return Outcome(values=values_of(rows) | retrieval, figure_data={"cells": rows})


def draw(results: Results) -> Mapping[str, bytes]:
    """Draw all extractors with all heads."""
    arms = {
        arm: means([run["cells"] for run in results.figure_data(arm)], STORED)
        for arm in results.arms
        if results.figure_data(arm)
    }
    title = "accuracy on test images of the extractor's domain, stored statistics, mean over seeds"
    return {"chain": chain(arms, title)}


def _reported(arm: str, metric: str, value: float, what: str) -> Reported:
    where = "Ramanujan et al. 2022 (FCT), CIFAR-100, 50 to 100 classes, ResNet-50, retrieval top-1"
    return Reported(arm, metric, value, f"{where}: {what}", "%")


_CPU: dict[str, Any] = {
    "data": ["mnist", "usps"],
    "model": "resnet20_cifar",
    "cut": "layer2",
    "image": 16,
    "train": 5000,
    "test": 2000,
    "steps": 300,
    "batch_size": 64,
    "releases": 4,
    "classes": 50,
}
_HUNDRED: dict[str, Any] = {
    **_CPU,
    "data": ["cifar100"],
    "cut": "layer3",  # before the pooling: the features are the embedding
    "image": 32,
    "train": 0,  # all
    "test": 0,
    "steps": 1000,
    "releases": 2,
}
_SMALLER = "ResNet-20, 5,000 images and 300 steps of 64 a release"
_MEASURED = "accuracy by classification over common classes, where the papers measure retrieval"
_BOTH = (
    "`backward` is by classification over the 50 old classes, `retrieval` the papers' measure over all 100"
)
STUDY = Study(
    title="releases that stay compatible",
    question="A new release replaces an extractor or a head whose partner was released before: which way of training "
    "keeps the pair working, at what cost to the new network itself, and what is left after four releases?",
    reference="Shen et al. (2020), Towards Backward-Compatible Representation Learning; Ramanujan et al. (2022), "
    "Forward Compatible Training; Gygli et al. (2021), Towards Reusable Network Components",
    arms=ARMS,
    measures=(
        Measure(name="old", title="first release, own", drawn=False),
        Measure(name="own", title="second release, own"),
        Measure(name="backward", title="new extractor, old head"),
        Measure(name="backward-reestimated", title="the same, statistics estimated anew", drawn=False),
        Measure(name="forward", title="old extractor, new head"),
        Measure(name="forward-reestimated", title="the same, statistics estimated anew", drawn=False),
        Measure(name="under-first-3", title="third extractor, first head", drawn=False),
        Measure(name="under-first-4", title="fourth extractor, first head"),
        Measure(name="own-3", title="third release, own", drawn=False),
        Measure(name="own-4", title="fourth release, own", drawn=False),
        Measure(name="retrieval-old", title="retrieval, old queries, old gallery", drawn=False),
        Measure(name="retrieval-own", title="retrieval, new queries, new gallery"),
        Measure(name="retrieval", title="retrieval, new queries, old gallery"),
        Measure(name="chance", title="chance", better="none", drawn=False),
    ),
    sizes={
        "cpu": _CPU,
        "back": {**_CPU, "data": ["usps", "mnist"]},
        "halves": {**_CPU, "data": ["cifar10"], "image": 32, "train": 8000},
        "cifar100": _HUNDRED,
        "paper": {
            **_HUNDRED,
            "model": "resnet56_cifar",
            "steps": 20_000,
            "batch_size": 512,
        },
    },
    scale={
        "cpu": f"MNIST, then USPS, and so on, at 16x16; {_SMALLER}; {_MEASURED}.",
        "back": f"USPS, then MNIST, and so on, at 16x16; {_SMALLER}; {_MEASURED}.",
        "halves": "two halves of CIFAR-10, one of them shifted; ResNet-20, 8,000 images and 300 steps of 64 a "
        f"release; {_MEASURED}.",
        "cifar100": "CIFAR-100, the first 50 classes, then all 100; ResNet-20 and 1,000 steps of 64 in place of "
        f"ResNet-50, on the images of the pack that is at hand; {_BOTH}.",
        "paper": f"ResNet-56 in place of ResNet-50; {_BOTH}.",
    },
    paper=(
        _reported("independent", "retrieval-old", 32.9, "old to old"),
        _reported("fct", "retrieval-own", 56.4, "new to new"),
        _reported("fct", "retrieval", 50.6, "new queries, old gallery, transformed"),
        _reported("bct", "retrieval-own", 60.0, "new to new, as printed by Zhou et al. (BT2)"),
        _reported("bct", "retrieval", 25.0, "new queries, old gallery, as printed by Zhou et al. (BT2)"),
        _reported(
            "independent", "retrieval", 0.8, "new queries, old gallery, as printed by Zhou et al. (BT2)"
        ),
    ),
    run=run,
    closed="an arm also says which released parts are frozen and loaded",
    draw=draw,
    data=("mnist", "usps", "cifar10", "cifar100"),
)


@ck.hookimpl
def compatkit_studies(register: Register) -> None:
    """Offer the study ``releases``."""
    register("releases", lambda: STUDY)

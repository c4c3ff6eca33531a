"""Shared by studies of recombination: two networks of one architecture for two tasks, with exchanged heads.

Paper: Gygli, Uijlings, Ferrari (2021), "Towards Reusable Network Components by Learning Compatible
    Representations", Sec. 3 (methods and training schemes), 4 (recombination accuracy) and App. C.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import mean
from typing import Any, Literal

import attrs

import compatkit as ck
from compatkit.errors import TrainingError, UsageError
from compatkit.experiments.studies import Measure, Outcome, Reported, Results, Run

REFERENCE = (
    "Gygli, Uijlings, Ferrari (2021), Towards Reusable Network Components by Learning Compatible "
    "Representations"
)
COMBINATIONS = ("none", "iiw", "rp", "dcc", "iiw+rp", "iiw+dcc", "rp+dcc", "iiw+rp+dcc")
BOUND = "upper-bound"
"""Networks trained separately, each with its own rotation head: their accuracy on their own tasks is the bound."""
POLICIES = {"batch": "recombined", "reestimate": "reestimated", "running": "running"}
"""Batch-norm policy at recombination, and the measure it gives."""
MEASURES = (
    Measure(name="own", title="own task, as trained"),
    Measure(name="recombined", title="recombined, batch statistics"),
    Measure(name="one-way", title="first extractor under the second head", drawn=False),
    Measure(name="other-way", title="second extractor under the first head", drawn=False),
    Measure(name="reestimated", title="recombined, re-estimated statistics", drawn=False),
    Measure(name="running", title="recombined, running statistics"),
    Measure(name="all-outputs", title="recombined, largest of all outputs", drawn=False),
    Measure(name="chance", title="chance", better="none", drawn=False),
)
SMALL: dict[str, Any] = {
    "model": "resnet20_cifar",
    "cut": "layer2",
    "test": 2000,
    "steps": 300,
    "batch_size": 64,
    "test_batch": 256,
    "half_turn": "rotate",
    "views": "mixed",
    "rp_weight": 1.0,
    "classes": "rolled",
    "class_layer": "identical",
}
"""``test_batch``: images per batch for batch statistics in the evaluation; ``half_turn``: what rotation prediction
shows for 180 degrees, ``"flip"`` is the image upside down (a half turn makes a 9 of a 6); ``views`` and ``rp_weight``:
views that its batch normalization takes statistics of, and its weight; ``classes``: see ``ORDERS``; ``class_layer``:
whether equal initial weights include class layers, or ``"own"``."""
ORDERS = ("own", "exchanged", "rolled")
"""Order of the classes in the second data set's class layer. Equal initial class layers help if row k means the same in
both networks: with ``own`` all ten rows of our pairs do; with ``exchanged`` six, as for CIFAR-10 and STL-10, whose
orders exchange the second and third row, and the seventh and eighth (six of nine); with ``rolled``, by a third,
none."""
SIZES: dict[str, dict[str, Any]] = {
    "cpu": {"pair": "digits", "image": 16, "train": 5000, **SMALL},
    "halves": {"pair": "halves", "image": 32, "train": 8000, **SMALL},
    # 0 images: all available ones.
    "paper": {
        "pair": "objects",
        "image": 32,
        "train": 0,
        "model": "resnet56_cifar",
        "cut": "layer2",
        "test": 0,
        "steps": 20_000,
        "batch_size": 512,
        "test_batch": 512,
        "half_turn": "rotate",
        "views": "mixed",
        "rp_weight": 1.0,
        "classes": "own",
        "class_layer": "identical",
    },
}
SMALLER = "ResNet-20 and 300 steps of 64 in place of ResNet-56 and 20,000 steps of 512"
SCALE = {
    "cpu": f"MNIST and USPS at 16x16 in place of CIFAR-10 and STL-10, {SMALLER}.",
    "halves": f"two halves of CIFAR-10, one of them shifted, in place of CIFAR-10 and STL-10, {SMALLER}.",
    "paper": "",
}
Statistics = Literal["stored", "batch"]
"""Batch-norm statistics inside frozen heads: their own, or those of the batch, as in the paper."""
DATA = ("mnist", "usps", "cifar10", "stl10")
SETS = {"digits": ("mnist", "usps"), "objects": ("cifar10", "stl10")}


def sets_of(run: Run) -> list[ck.DataSet]:
    """Return the complete data sets of a run's pair, with the classes of the second in the requested order.

    Raises:
        UsageError: The pair or the order is unknown.
    """
    pair = run.settings["pair"]
    if pair not in (*SETS, "halves"):
        raise UsageError(
            f"The setting 'pair' must be {', '.join(SETS)} or halves; got {pair!r}.", subject=pair
        )
    sets = halves(run) if pair == "halves" else [run.load(name) for name in SETS[pair]]
    return [sets[0], ordered(sets[1], run.settings["classes"])]


def halves(run: Run) -> list[ck.DataSet]:
    """Return one half of CIFAR-10 unchanged, and the other with shifted colors and blurred."""
    plain, other = run.load("cifar10").halves()
    return [plain.renamed("plain"), other.shifted(hue=0.3, blur=0.8).renamed("shifted")]


def ordered(data: ck.DataSet, order: str) -> ck.DataSet:
    """Return the same images with another order of classes; see ``ORDERS``.

    Raises:
        UsageError: The order is unknown.
    """
    if order not in ORDERS:
        raise UsageError(
            f"The setting 'classes' must be one of {', '.join(ORDERS)}; got {order!r}.", subject="classes"
        )
    names = list(data.classes)
    if order == "rolled":
        by = max(1, len(names) // 3)
        names = names[by:] + names[:by]
    elif order == "exchanged":
        for index in (1, 6):
            names[index : index + 2] = names[index : index + 2][::-1]
    return data.of_classes(names)


def tasks_of(run: Run, cut: str | None = None) -> list[ck.Task]:
    """Return the two tasks of a run's pair, named as their data sets; ``split`` as in ``task_of``."""
    return [task_of(run, data.name, data, cut) for data in sets_of(run)]


def task_of(run: Run, name: str, data: ck.DataSet, cut: str | None = None) -> ck.Task:
    """Return a task on as many images as the settings request (0 for all); gray images are not augmented.

    Args:
        run: The run, whose settings define the training.
        name: Name of the task.
        data: Complete data set.
        cut: Cut; None for that of the settings.
    """
    settings = run.settings
    return ck.Task(
        name,
        data.subset(train=settings["train"] or None, test=settings["test"] or None),
        settings["model"],
        cut or settings["cut"],
        size=settings["image"],
        augment=() if data.train.channels == "L" else ("crop", "flip"),
    )


def uses_of(run: Run, methods: str) -> list[str | ck.RegularizerConfig]:
    """Return the plugins of methods joined by ``+``, none for ``none``; then those of the user's arm."""
    uses: dict[str, str | ck.RegularizerConfig] = {
        "iiw": ck.use("identical_init", class_layer=run.settings["class_layer"]),
        "rp": rotation(run),
        "dcc": "dcc",
    }
    return [*(uses[method] for method in methods.split("+") if method in uses), *run.added]


def rotation(run: Run) -> ck.RegularizerConfig:
    """Return rotation prediction with the settings of the run."""
    settings = run.settings
    return ck.use(
        "rotation_prediction",
        weight=settings["rp_weight"],
        half_turn=settings["half_turn"],
        views=settings["views"],
    )


def trainer_of(run: Run) -> ck.Trainer:
    """Return the trainer of a run; missing settings have the trainer's defaults, which are the paper's."""
    settings = run.settings
    return ck.Trainer(
        steps=settings["steps"], seed=run.seed, batch_size=settings["batch_size"], progress=False
    )


def incremental(
    tasks: Sequence[ck.Task],
    uses: Sequence[str | ck.RegularizerConfig],
    trainer: ck.Trainer,
    statistics: Statistics = "stored",
) -> list[ck.Fit]:
    """Train the first task, then the second against the frozen auxiliary heads of the first (Sec. 3.4).

    The head of ``dcc`` classifies the common classes of both tasks, as in joint training.

    Args:
        tasks: Two, in training order.
        uses: Plugins; with ``identical_init`` the second starts from the initial weights of the first.
        trainer: Trainer of both.
        statistics: Batch-norm statistics inside frozen heads.
    """
    first_task, other = tasks
    common = ck.use("dcc", classes=common_classes(first_task, other))
    uses = [common if use == "dcc" else use for use in uses]
    first = trainer.fit([first_task], uses)
    return [first, trainer.fit([other], uses, frozen=first, frozen_statistics=statistics)]


def common_classes(task: ck.Task, other: ck.Task) -> list[str]:
    """Return the classes that two tasks share, in the order and with the names of the first."""
    return [task.data.classes[index] for index in common_indices(task.data, other.data)]


def common_indices(this: ck.DataSet, other: ck.DataSet) -> list[int]:
    """Return the indices of a data set's classes that another has, too, by name, ascending."""
    own_labels, other_labels = ([ck.label(name) for name in data.classes] for data in (this, other))
    return sorted(index for index, _ in ck.match_classes(own_labels, other_labels))


def train_separately(run: Run, tasks: Sequence[ck.Task]) -> list[ck.Fit]:
    """Train each task separately, with its own rotation head (Sec. 4, the upper bound).

    Each has its own seed: with the same seed the rotation heads would start equal, and the networks would be partly
    compatible.
    """
    trainer = trainer_of(run)
    return [
        attrs.evolve(trainer, seed=len(tasks) * trainer.seed + index).fit([task], uses_of(run, "rp"))
        for index, task in enumerate(tasks)
    ]


@contextmanager
def temporary_registry(fits: Mapping[str, ck.Fit] | None = None) -> Iterator[ck.Registry]:
    """Open a registry for the duration of the block, with the parts of fits published by prefix."""
    with tempfile.TemporaryDirectory() as folder:
        registry = ck.Registry.init(Path(folder) / "parts")
        for prefix, fit in (fits or {}).items():
            registry.publish(fit, prefix=prefix)
        yield registry


def measure(
    run: Run, fits: Sequence[ck.Fit], tasks: Sequence[ck.Task], policies: Iterable[str] = POLICIES
) -> list[dict[str, Any]]:
    """Publish fits to a temporary registry and measure all four combinations under each policy.

    Returns:
        A row per extractor, head and policy, in the order of the tasks: their names, accuracy on the extractor's test
        images over the common classes (``all_outputs``: argmax over all outputs), and chance.
    """
    rows: list[dict[str, Any]] = []
    policies = list(policies)
    images = {f"*/{task.name}.extractor": task.data.test for task in tasks}
    with temporary_registry({"-".join(fit.tasks): fit for fit in fits}) as registry:
        for policy in policies:
            matrix = registry.matrix(
                "*/*.extractor",
                "*/*.head",
                images,
                bn_policy=policy,
                batch_size=run.settings["test_batch"],
            )
            rows += [_row(cell, policy) for cell in matrix.cells]
    order = {task.name: index for index, task in enumerate(tasks)}
    return sorted(
        rows, key=lambda row: (policies.index(row["policy"]), order[row["extractor"]], order[row["head"]])
    )


def _row(cell: Any, policy: str) -> dict[str, Any]:
    if cell.restricted is None:
        raise TrainingError(f"{cell.extractor} with {cell.head} could not be measured: {cell.reason}")
    return {
        "extractor": cell.extractor.split("/")[1].split(".")[0],
        "head": cell.head.split("/")[1].split(".")[0],
        "policy": policy,
        "accuracy": cell.restricted.accuracy,
        "all_outputs": None if cell.unrestricted is None else cell.unrestricted.accuracy,
        "chance": cell.chance,
        "grade": cell.grade,
    }


def values_of(cells: Sequence[Mapping[str, Any]], policies: Mapping[str, str] = POLICIES) -> dict[str, float]:
    """Return the measures of one run from its cells; figures of the two directions are averaged.

    Args:
        cells: Result of ``measure``, including the policy ``batch``.
        policies: Measure by policy.
    """

    def figures(policy: str, own: bool, of: str = "accuracy") -> list[Any]:
        selected = [cell for cell in cells if cell["policy"] == policy]
        return [cell.get(of) for cell in selected if (cell["extractor"] == cell["head"]) == own]

    one_way, other_way = figures("batch", own=False)
    largest = figures("batch", own=False, of="all_outputs")
    return {
        "own": mean(figures("batch", own=True)),
        **{name: mean(figures(policy, own=False)) for policy, name in policies.items()},
        "one-way": one_way,
        "other-way": other_way,
        **({"all-outputs": mean(largest)} if None not in largest else {}),
        "chance": mean(cell["chance"] for cell in cells),
    }


def chance_of(results: Results) -> dict[str, float]:
    """Return the mean chance level by its label in figures; empty if no run has one."""
    known = [value for arm in results.arms for value in results.known(arm, "chance")]
    return {"chance": sum(known) / len(known)} if known else {}


def outcome(run: Run, fits: Sequence[ck.Fit], tasks: Sequence[ck.Task], **figure_data: Any) -> Outcome:
    """Return the outcome of a pair of trained networks, with all cells stored in addition to ``figure_data``."""
    cells = measure(run, fits, tasks)
    return Outcome(values=values_of(cells), figure_data={"cells": cells, **figure_data})


def reported(arm: str, value: float, where: str, metric: str = "recombined") -> Reported:
    """Return a figure of the paper in per cent."""
    return Reported(arm, metric, value, f"Gygli et al. 2021, {where}", "%")

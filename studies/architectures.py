"""Compatibility across architectures: does one head that learnt five new classes serve extractors that never saw them?

Paper: Gygli, Uijlings, Ferrari (2021), "Towards Reusable Network Components by Learning Compatible Representations",
    Sec. 5.2, Fig. 3, App. D, Fig. 11 (ResNet-56, wide ResNet-56 and MobileNetV2 on CIFAR-10, 5 + 5 classes).
Here: ResNet-20, WRN-10-2 and a MobileNetV2 with a quarter of the channels, on MNIST at 32x32 or CIFAR-10; or networks
    of the paper's size.

Three extractors of different architectures end with a 1x1 convolution to the width of one shared head, the rest of the
MobileNetV2, which solves the task; the networks have no other heads. It is trained with all three on five classes, then
extended to ten, and trained further on the wide network's extractor alone.

    compatkit study run 3.10 --data DIR --out OUT
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import compatkit as ck
from compatkit.errors import UsageError
from compatkit.experiments.studies import Measure, Outcome, Reported, Results, Run, Study
from compatkit.hooks import Register

from ._curves import along_measures
from ._pairs import temporary_registry

NETWORKS = ("wide", "residual", "mobile")
REFERENCE = "wide"
"""Network on whose extractor the head learns the new classes."""
OLD = 5
"""Number of classes that the extractors are trained on."""
ARMS = ("fe-frozen", "fe-frozen+rp", "rp-frozen", "random-head", "independent", "bound", "bound-changed")
"""``fe-frozen``: the reference extractor is frozen while its head learns; ``fe-frozen+rp``: the same, with extractors
that were also trained with a shared rotation head; ``rp-frozen``: the reference extractor learns, too, against that
rotation head, frozen. Controls: ``random-head``: a new random head on the extractors of the first; ``independent``: as
the first, but each extractor was trained with its own head. ``bound``: each unmodified network, with its own rotation
head, trained on all classes; ``bound-changed``: the same with the 1x1 convolution and the MobileNetV2's rest."""
WITH_ROTATION = ("fe-frozen+rp", "rp-frozen")
"""Arms whose extractors are trained with a shared rotation head."""


def tasks(run: Run, data: ck.DataSet, *, changed: bool = True) -> list[ck.Task]:
    """Return a task per network.

    Args:
        run: The run, whose settings name the networks.
        data: Data set of all tasks.
        changed: Whether extractors end with the common width and have only the shared head.

    Raises:
        UsageError: A network is not given as model and split point.
    """
    settings, tasks = run.settings, []
    for name in NETWORKS:
        if [type(value) for value in settings[name]] != [str, str]:
            raise UsageError(
                f"The setting {name!r} must be a model and a split point, such as "
                f'{name}=["resnet20_cifar", "layer2"]; got {settings[name]!r}.',
                subject=name,
            )
    augment = ("crop", "flip") if data.train.channels == "RGB" else ()
    rest = dict(zip(("model", "cut"), settings["mobile"], strict=True))
    shape: dict[str, Any] = {"rest": rest, "width": settings["width"] or None, "own_head": False}
    for name in NETWORKS:
        model, cut = settings[name]
        tasks.append(
            ck.Task(
                name,
                data,
                model,
                cut,
                size=settings["image"],
                augment=augment,
                **(shape if changed else {}),
            )
        )
    return tasks


def rotation(run: Run) -> ck.RegularizerConfig:
    """Return rotation prediction; digits are flipped instead of half turns, which make a 9 of a 6."""
    return ck.use("rotation_prediction", half_turn=run.settings["half_turn"], views=run.settings["views"])


def trainer(run: Run, of: str = "", **settings: Any) -> ck.Trainer:
    """Return the trainer of the networks, or of the update, from settings with the prefix ``of``.

    Args:
        run: Settings and seed.
        of: Prefix of the settings: empty for the networks.
        settings: Further settings of the trainer.
    """
    lengths = {name: run.settings[of + name] for name in ("steps", "lr")}
    return ck.Trainer(
        **{
            **lengths,
            "batch_size": run.settings["batch_size"],
            "seed": run.seed,
            "progress": False,
            **settings,
        }
    )


def bounds(run: Run, data: ck.DataSet, registry: ck.Registry) -> dict[str, str]:
    """Train each network separately on all classes; return the head of each by the name of its network.

    Args:
        run: Settings, arm and seed.
        data: Images of all classes.
        registry: Registry for the parts.
    """
    changed, heads = run.arm == "bound-changed", {}
    uses = ["dcc", rotation(run)] if changed else [rotation(run)]
    for task in tasks(run, data, changed=changed):
        registry.publish(trainer(run).fit([task], uses), prefix=f"of-{task.name}")
        heads[task.name] = f"of-{task.name}/{'shared.dcc' if changed else f'{task.name}.head'}"
    return heads


def first(run: Run, data: ck.DataSet, registry: ck.Registry) -> str:
    """Train the extractors on the old classes; return the shared head of the reference.

    For the independent arm each has its own seed and head: with the same seed the heads would start equal, and the
    controls would be partly compatible.

    Args:
        run: Settings, arm and seed.
        data: Images of all classes.
        registry: Registry for the parts.
    """
    uses = ["dcc", *([rotation(run)] if run.arm in WITH_ROTATION else [])]
    old_tasks = tasks(run, data.of_classes(data.classes[:OLD]))
    if run.arm != "independent":
        registry.publish(trainer(run).fit(old_tasks, uses), prefix="of-all")
        return "of-all/shared.dcc"
    for index, task in enumerate(old_tasks):
        fit = trainer(run, seed=len(old_tasks) * run.seed + index).fit([task], uses)
        registry.publish(fit, prefix=f"of-{task.name}")
    return f"of-{REFERENCE}/shared.dcc"


def update(run: Run, data: ck.DataSet, registry: ck.Registry, head: str) -> dict[str, str]:
    """Extend a head to all classes and train it on the reference extractor; return the published references.

    Args:
        run: Settings, arm and seed.
        data: Images of all classes.
        registry: Registry for the parts.
        head: Reference of the head of the old classes.
    """
    registry.extend(head, data.classes[OLD:], "extended/ten.head", seed=run.seed)
    extractor = f"{head.partition('/')[0]}/{REFERENCE}.extractor"
    moves, settings = run.arm == "rp-frozen", run.settings
    task = registry.task(
        "update",
        data,
        extractor=extractor,
        head="extended/ten.head",
        augment=("crop", "flip") if data.train.channels == "RGB" else (),
        freeze_extractor=not moves,
    )
    fit = trainer(run, "tune_", weight_decay=0.0).fit(
        [task],
        [rotation(run)] if moves else [],
        frozen=registry.frozen("of-all/shared.rotation") if moves else None,
        frozen_statistics=settings["head_statistics" if moves else "extractor_statistics"],
    )
    return registry.publish(fit, prefix="updated")


def accuracy(run: Run, registry: ck.Registry, extractor: str, head: str, test: ck.Split) -> float | None:
    """Return the accuracy of a recombination on all classes, under batch statistics.

    Args:
        run: Settings.
        registry: Registry for the parts.
        extractor: Its reference.
        head: Its reference.
        test: Images of all classes.
    """
    (cell,) = registry.matrix(
        extractor, head, {"*": test}, bn_policy="batch", batch_size=run.settings["test_batch"]
    ).cells
    return None if cell.restricted is None else cell.restricted.accuracy


def run(run: Run) -> Outcome:
    """Train, extend, update, attach the updated head to all extractors, and measure on test images of all classes.

    ``old`` is the mean accuracy of the networks on the old classes before the update.
    """
    settings = run.settings
    sizes = {name: settings[name] or None for name in ("train", "test")}
    data = run.load(settings["data"]).subset(**sizes)
    values: dict[str, float | None] = {}
    with temporary_registry() as registry:
        if run.arm.startswith("bound"):
            heads = bounds(run, data, registry)
            extractors = {name: f"of-{name}/{name}.extractor" for name in NETWORKS}
        else:
            head = first(run, data, registry)
            independent = run.arm == "independent"
            extractors = {name: f"of-{name if independent else 'all'}/{name}.extractor" for name in NETWORKS}
            old = data.test.of_classes(data.classes[:OLD])
            own = {name: f"of-{name}/shared.dcc" if independent else head for name in NETWORKS}
            values["old"] = _mean(
                [accuracy(run, registry, extractors[network], own[network], old) for network in NETWORKS]
            )
            if run.arm == "random-head":
                fresh = trainer(run, steps=1, lr=1e-30).fit(tasks(run, data)[-1:], ["dcc"])
                parts = registry.publish(fresh, prefix="fresh")
                heads = dict.fromkeys(NETWORKS, parts["shared.dcc"])
            else:
                parts = update(run, data, registry, head)
                heads = dict.fromkeys(NETWORKS, parts["update.head"])
                extractors[REFERENCE] = parts.get("update.extractor", extractors[REFERENCE])
        for name in NETWORKS:
            values[name] = accuracy(run, registry, extractors[name], heads[name], data.test)
    values["mean"] = _mean([values[name] for name in NETWORKS])
    values["others"] = _mean([values[name] for name in NETWORKS if name != REFERENCE])
    values["lower"] = sum(data.test.counts[:OLD]) / len(data.test)
    return Outcome(values={name: value for name, value in values.items() if value is not None})


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if len(known) == len(values) else None


def draw(results: Results) -> Mapping[str, bytes]:
    """Draw the accuracy of all extractors by arm, as the paper's Fig. 11."""
    ticks = [f"{network}\n(reference)" if network == REFERENCE else network for network in NETWORKS]
    title = "extractor under the head for ten classes"
    lower = [value for arm in results.arms for value in results.known(arm, "lower")]
    across = {"old classes alone, without a fault": lower[0]} if lower else {}
    height = "accuracy on ten classes"
    return {"architectures": along_measures(results, NETWORKS, ticks, title, height, across=across)}


def _reported(arm: str, *row: float) -> tuple[Reported, ...]:
    where = "Gygli et al. 2021, App. D, Fig. 11"
    return tuple(Reported(arm, name, value, where, "%") for name, value in zip(NETWORKS, row, strict=True))


def _changed(value: float, which: str) -> Reported:
    where = f"Gygli et al. 2021, Sec. 5.2: {which} of three networks"
    return Reported("bound-changed", "mean", value, where, "%")


_CPU: dict[str, Any] = {
    "data": "mnist",
    "wide": ["wide_resnet10_2_cifar", "layer2"],
    "residual": ["resnet20_cifar", "layer2"],
    "mobile": ["mobilenetv2_025_cifar", "blocks.9"],
    "width": 0,  # the MobileNetV2's own
    "image": 32,  # at 16 the MobileNetV2, whose stride is 4, would leave 4x4 positions
    "train": 5000,
    "test": 2000,
    "steps": 300,
    "lr": 0.01,
    "batch_size": 64,
    "test_batch": 256,
    "half_turn": "flip",
    "views": "mixed",
    "tune_steps": 300,
    "tune_lr": 0.01,
    "extractor_statistics": "batch",
    "head_statistics": "stored",
}
_SMALLER = (
    "WRN-10-2, ResNet-20 and a quarter of MobileNetV2's channels, cut after its 10th block (16 channels), in place of "
    "WRN-56, ResNet-56 and MobileNetV2 cut after its 11th; {} in place of 20,000 of 512; a frozen rotation head with "
    "stored statistics, not the batch's"
)
STUDY = Study(
    title="compatibility across architectures",
    question="One head for three extractors of different architecture learns five new classes on one of them: how well "
    "do the others recognize ten classes with it?",
    reference="Gygli, Uijlings, Ferrari (2021), Towards Reusable Network Components by Learning Compatible "
    "Representations, Sec. 5.2, Fig. 3, App. D, Fig. 11",
    arms=ARMS,
    measures=(
        *(Measure(name=network, title=f"{network} extractor, ten classes") for network in NETWORKS),
        Measure(name="others", title="mean of the two that the head never saw again"),
        Measure(name="mean", title="mean of the three", drawn=False),
        Measure(name="old", title="five classes, before the update"),
        Measure(name="lower", title="five classes without a fault, of ten", better="none", drawn=False),
    ),
    sizes={
        "cpu": _CPU,
        "cifar10": {
            **_CPU,
            "data": "cifar10",
            "half_turn": "rotate",
            "train": 8000,
            "steps": 1000,
            "tune_steps": 500,
        },
        "paper": {
            **_CPU,
            "data": "cifar10",
            "wide": ["wide_resnet58_2_cifar", "layer2"],
            "residual": ["resnet56_cifar", "layer2"],
            "mobile": ["mobilenetv2_cifar", "blocks.9"],
            "width": 64,
            "image": 32,
            "train": 0,  # all
            "test": 0,
            "steps": 20_000,
            "batch_size": 512,
            "test_batch": 512,
            "half_turn": "rotate",
            "tune_steps": 20_000,
            "head_statistics": "batch",
        },
    },
    scale={
        "cpu": "MNIST at 32x32, 5,000 images, in place of CIFAR-10, turned upside down in place of a half turn; "
        f"{_SMALLER.format('300 steps of 64, twice,')}.",
        "cifar10": f"8,000 images of CIFAR-10; {_SMALLER.format('1,000 and 500 steps of 64')}.",
        "paper": "WRN-58-2 in place of a wide ResNet-56 whose width the paper does not say; the MobileNetV2 has two "
        "strides less, for 32x32, and is cut after its 10th block, which gives the 64 channels that the paper projects "
        "to: its 11th gives 96; the paper does not say for how many steps the update lasts.",
    },
    paper=(
        *_reported("fe-frozen", 91.9, 91.7, 91.6),
        *_reported("rp-frozen", 92.3, 91.5, 91.2),
        *_reported("bound", 94.9, 94.6, 93.3),
        _changed(92.7, "lowest"),
        _changed(92.8, "highest"),
    ),
    run=run,
    draw=draw,
    data=("mnist", "cifar10"),
)


@ck.hookimpl
def compatkit_studies(register: Register) -> None:
    """Offer study 3.10."""
    register("3.10", lambda: STUDY)

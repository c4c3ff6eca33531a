"""Eigenvector tables: filters taken from the principal directions of their input, layer by layer, then real labels.

Paper: Maennel et al. (2020), "What Do Neural Networks Learn When Trained With Random Labels?", Sec. 2.5 and App. E.3,
    Tables 1 to 7: accuracy after 100 and 1,000 iterations, with none, one, two or three convolutions initialized.

The digits of an arm are the convolutions that are initialized. ``f1``, ``f2`` and ``f3`` weigh the 16 strongest
directions; ``sampled`` draws from them; ``smallest`` and ``middle`` take other directions; ``random-labels`` transfers
convolutions that were trained on random labels. The control ``white`` draws the filters that white data would give:
isotropic, of the norm that the filters of ``f2`` have. The effect must vanish there.

    compatkit study run 1.6 --data DIR --out OUT
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import numpy as np

import compatkit as ck
from compatkit.experiments.studies import Measure, Outcome, Reported, Results, Run, Study
from compatkit.hooks import Register

from ._alignment import CENTERED, REFERENCE, sgd
from ._curves import along_arms

FILTERS = 16
WIDTHS = (27, 144, 144)
"""Directions of the input of each convolution."""
DEPTHS = ("1", "12", "123")
SETTINGS: dict[str, dict[str, Any]] = {
    "f1": {"tau": "f1"},
    "f2": {"tau": "f2"},
    "f3": {"tau": "f3"},
    "sampled": {"sampled": True},
    "smallest": {"choose": "smallest"},
    "middle": {"skip": {"blocks.0.conv": 3, "blocks.1.conv": 9, "blocks.2.conv": 9}},
}
LABELS, WHITE = "random-labels", "white"
ARMS = ("default", *(f"{kind}-{depth}" for kind in (*SETTINGS, LABELS, WHITE) for depth in DEPTHS))


def task_of(run: Run, train: ck.Split, test: ck.Split) -> ck.Task:
    """Return the paper's network of three convolutions on these images."""
    return ck.Task(
        "downstream",
        ck.DataSet("cifar10", train, test),
        "simple_cnn",
        "blocks.2",
        kwargs={"filters": FILTERS, "units": run.settings["units"], "max_pool": True},
        normalize=CENTERED,
    )


def uses_of(arm: str, images: int) -> list[ck.RegularizerConfig]:
    """Return the initialization of an arm, without ``random-labels``."""
    kind, _, depth = arm.rpartition("-")
    layers = [f"blocks.{index}.conv" for index in range(len(depth))]
    drawn = ck.use("scaled_init")
    if arm == "default":
        return [drawn]
    if kind == WHITE:
        white = {name: (np.eye(WIDTHS[index]) / WIDTHS[index]).tolist() for index, name in enumerate(layers)}
        return [
            drawn,
            ck.use("covariance_init", after="scaled_init", covariances=white, match_norm=False),
        ]
    chosen = dict(SETTINGS[kind])
    if "skip" in chosen:
        chosen["skip"] = {name: chosen["skip"][name] for name in layers}
    return [drawn, ck.use("eigenvector_init", after="scaled_init", layers=layers, images=images, **chosen)]


def started(run: Run, task: ck.Task, up: ck.Split) -> tuple[ck.Task, list[ck.RegularizerConfig]]:
    """Return the task and the plugins of an arm; convolutions trained on random labels come from ``up``."""
    kind, _, depth = run.arm.rpartition("-")
    if kind != LABELS:
        return task, uses_of(run.arm, run.settings["init_images"])
    before = attrs.evolve(task, data=ck.DataSet("cifar10", up, task.data.test))
    trainer = sgd(run, run.settings["pretrain_steps"], constant=True)
    fit = trainer.fit([before], [ck.use("random_labels", seed=run.seed), ck.use("scaled_init")])
    norms = fit.run["pretraining"]["plugins"]["scaled_init"]["downstream"]
    transfer = ck.use("transfer", first=len(depth), norms=norms)
    return attrs.evolve(task, weights=fit.weights("downstream")), [transfer]


def run(run: Run) -> Outcome:
    """Train on real labels for each number of iterations, and measure."""
    settings = run.settings
    data = run.load("cifar10")
    up, train = data.train.divide(settings["upstream"], settings["train"], seed=run.seed)
    test = data.test.subset(settings["test"], seed=0)
    task, uses = started(run, task_of(run, train, test), up)
    values: dict[str, float | None] = {}
    seen = train.subset(min(len(train), settings["measured"]), seed=0)
    for steps in settings["steps"]:
        fit = sgd(run, steps, constant=True).fit([task], uses)
        for name, split in (("train", seen), ("test", test)):
            measured = ck.measure(fit.tasks["downstream"], split, ["accuracy"], batch_size=500)
            values[f"{name}-{steps}"] = measured.results["accuracy"].value  # type: ignore[union-attr]
    return Outcome(values=values)


def draw(results: Results) -> Mapping[str, bytes]:
    """Draw accuracy on test images by arm, for each number of iterations."""
    return {
        f"after-{steps}": along_arms(results, results.arms, {f"test-{steps}": "test"}, f"{steps} iterations")
        for steps in results.settings["steps"]
        if any(results.known(arm, f"test-{steps}") for arm in results.arms)
    }


TABLES: dict[str, tuple[str, tuple[float, ...], tuple[float, ...], tuple[float, ...], tuple[float, ...]]] = {
    "f1": ("Table 1", (0.34, 0.38, 0.41), (0.33, 0.37, 0.40), (0.61, 0.67, 0.68), (0.55, 0.56, 0.56)),
    "f2": ("Table 2", (0.29, 0.37, 0.44), (0.29, 0.37, 0.43), (0.59, 0.65, 0.68), (0.55, 0.56, 0.59)),
    "f3": ("Table 3", (0.30, 0.37, 0.44), (0.29, 0.37, 0.42), (0.61, 0.64, 0.72), (0.55, 0.58, 0.56)),
    "sampled": ("Table 4", (0.29, 0.37, 0.41), (0.29, 0.36, 0.40), (0.57, 0.62, 0.69), (0.54, 0.54, 0.56)),
    "smallest": ("Table 5", (0.15, 0.14, 0.15), (0.15, 0.14, 0.15), (0.50, 0.48, 0.47), (0.46, 0.47, 0.44)),
    "middle": ("Table 6", (0.17, 0.20, 0.27), (0.18, 0.20, 0.26), (0.56, 0.60, 0.62), (0.53, 0.56, 0.59)),
    LABELS: ("Table 7", (0.37, 0.39, 0.41), (0.34, 0.37, 0.39), (0.70, 0.75, 0.78), (0.51, 0.53, 0.57)),
}
"""Train and test accuracy after 100 iterations, then after 1,000, by the number of convolutions."""
COLUMNS = ("train-100", "test-100", "train-1000", "test-1000")
DEFAULT = (0.31, 0.31, 0.58, 0.53)
_SMALL = {"train": 5000, "test": 2000, "upstream": 5000, "measured": 2000, "init_images": 2000}
STUDY = Study(
    title="filters from eigenvectors of the data",
    question="Do convolutions whose filters are the strongest principal directions of their input learn real labels "
    "faster, the more layers the better, and those of the weakest directions more slowly?",
    reference=f"{REFERENCE}, Sec. 2.5, App. E.3, Tables 1 to 7",
    arms=ARMS,
    measures=tuple(
        Measure(
            name=name,
            title=f"{name.split('-')[0]} accuracy after {name.split('-')[1]} iterations",
            drawn=name.startswith("test"),
        )
        for name in COLUMNS
    ),
    sizes={
        "cpu": {
            **_SMALL,
            "units": 512,
            "lr": 0.002,
            "batch_size": 256,
            "steps": [100],
            "pretrain_steps": 300,
        },
        "paper": {
            **{
                "train": 20_000,
                "test": 10_000,
                "upstream": 30_000,
                "measured": 20_000,
                "init_images": 20_000,
            },
            **{"units": 512, "lr": 0.002, "batch_size": 256, "steps": [100, 1000], "pretrain_steps": 1000},
        },
    },
    scale={
        "cpu": "5,000 images (20,000 in the paper), so that 100 iterations are five epochs; no 1,000 iterations; train "
        "accuracy on 2,000 of the images; a constant learning rate; the curves f1 and f3 are ours.",
        "paper": "a constant learning rate and the length of pretraining, which the paper does not state; the curves "
        "f1 and f3 are ours.",
    },
    paper=(
        *(
            Reported("default", name, value, "Tables 1 to 7")
            for name, value in zip(COLUMNS, DEFAULT, strict=True)
        ),
        *(
            Reported(f"{kind}-{depth}", name, value, table)
            for kind, (table, *columns) in TABLES.items()
            for name, column in zip(COLUMNS, columns, strict=True)
            for depth, value in zip(DEPTHS, column, strict=True)
        ),
    ),
    run=run,
    draw=draw,
    data=("cifar10",),
)


@ck.hookimpl
def compatkit_studies(register: Register) -> None:
    """Offer study 1.6."""
    register("1.6", lambda: STUDY)

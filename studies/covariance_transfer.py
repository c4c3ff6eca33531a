"""Covariance transfer: do filters drawn with the covariance of trained ones help as much as the trained ones?

Paper: Maennel et al. (2020), "What Do Neural Networks Learn When Trained With Random Labels?", Sec. 2.4, Fig. 5 and
    App. A.9: a convolution and a dense layer, pretrained on random labels; downstream, real or random labels.

All arms have a new head. ``pretrained`` keeps the convolution, with biases 0 and the norm of its initialization; the
dense layer is new: the fair comparison to ``covariance``, whose filters are drawn with the covariance of the trained
ones. ``pretrained-all`` keeps the dense layer too, ``unscaled`` keeps the norms that training gave. The control
``white`` draws filters with the covariance of isotropic ones: it must be no better than ``scratch``.

    compatkit study run 1.5 --data DIR --out OUT
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import numpy as np

import compatkit as ck
from compatkit.experiments.studies import Measure, Outcome, Results, Run, Study
from compatkit.hooks import Register
from compatkit_plugins.patch_covariance import filter_covariance  # pyright: ignore[reportMissingImports]

from ._alignment import CENTERED, REFERENCE, sgd
from ._curves import panels

CONV = "blocks.0.conv"
ON = ("real", "random")
POINTS = 10
_KNOWN: dict[str, tuple[dict[str, Any], dict[str, float]]] = {}
"""Weights and initial norms of the last upstream run: all arms of a seed start from the same one."""


def upstream(run: Run, task: ck.Task) -> tuple[dict[str, Any], dict[str, float]]:
    """Return weights after training on random labels, and the norms of their initialization."""
    key = repr((run.seed, sorted(run.settings.items())))
    if key not in _KNOWN:
        uses = [ck.use("random_labels", seed=run.seed), ck.use("scaled_init")]
        fit = sgd(run, run.settings["steps"]).fit([task], uses)
        norms = fit.run["pretraining"]["plugins"]["scaled_init"][task.name]
        _KNOWN.clear()
        _KNOWN[key] = fit.weights(task.name), norms
    return _KNOWN[key]


def started(run: Run, task: ck.Task, before: ck.Task) -> tuple[ck.Task, list[ck.RegularizerConfig]]:
    """Return the downstream task of an arm and the plugins that start it."""
    drawn = ck.use("scaled_init")
    if run.arm == "scratch":
        return task, [drawn]
    weights, norms = upstream(run, before)
    if run.arm in ("covariance", "white"):
        filters = weights[f"{CONV}.weight"]
        width = filters[0].numel()
        matrix = np.eye(width) if run.arm == "white" else filter_covariance(filters).numpy()
        use = ck.use("covariance_init", after="scaled_init", covariances={CONV: matrix.tolist()})
        return task, [drawn, use]
    options: dict[str, Any] = {} if run.arm == "unscaled" else {"norms": norms}
    if run.arm == "pretrained":
        options |= {"fresh": ["dense"], "zero_biases": True}
    return attrs.evolve(task, weights=weights), [ck.use("transfer", **options)]


def run(run: Run) -> Outcome:
    """Train upstream on random labels, then downstream on real and on random ones."""
    settings = run.settings
    data = run.load("cifar10")
    up, down = data.train.divide(settings["upstream"], settings["downstream"], seed=run.seed)
    test = data.test.subset(settings["test"], seed=0)
    kwargs = {"convolutions": 1, "filters": settings["filters"], "units": settings["units"]}
    image = settings["image"]
    before = ck.Task(
        "net",
        ck.DataSet("cifar10", up, test),
        "simple_cnn",
        "blocks.0",
        size=image,
        kwargs=kwargs,
        normalize=CENTERED,
    )
    task, uses = started(run, attrs.evolve(before, data=ck.DataSet("cifar10", down, test)), before)
    values: dict[str, float | None] = {}
    curves: dict[str, list[float]] = {}
    steps = settings["steps"]
    for on in ON:
        labels = [ck.use("random_labels", seed=1000 + run.seed)] if on == "random" else []
        trainer = sgd(run, steps, evaluate_every=max(1, steps // POINTS), evaluate_on="train")
        fit = trainer.fit([task], [*labels, *uses])
        curves[on] = [row["accuracy"] for row in fit.evaluations]
        values |= {f"{on}-speed": fit.learning_speed("net"), f"{on}-last": curves[on][-1]}
        curves["steps"] = [row["step"] for row in fit.evaluations]
        if on == "real":
            measured = ck.measure(fit.tasks["net"], test, ["accuracy"], batch_size=500)
            values["real-test"] = measured.results["accuracy"].value  # type: ignore[union-attr]
    return Outcome(values=values, figure_data=curves)


def draw(results: Results) -> Mapping[str, bytes]:
    """Draw training accuracy along training by arm, for real and random labels, as the paper's Fig. 5."""
    known = [arm for arm in results.arms if any("real" in run for run in results.figure_data(arm))]
    if not known:
        return {}
    drawn = {
        f"{on} labels": {arm: [run[on] for run in results.figure_data(arm)] for arm in known} for on in ON
    }
    steps = results.figure_data(known[0])[0]["steps"]
    return {"curves": panels(drawn, steps, "step downstream")}


STUDY = Study(
    title="filters drawn with a trained covariance",
    question="A convolution learned random labels. Is the gain downstream that of its filters' covariance alone?",
    reference=f"{REFERENCE}, Sec. 2.4, Fig. 5, App. A.9",
    arms=("scratch", "pretrained", "covariance", "white", "pretrained-all", "unscaled"),
    measures=(
        Measure(name="real-speed", title="area under the training curve, real labels"),
        Measure(name="random-speed", title="area under the training curve, random labels"),
        Measure(name="real-last", title="training accuracy at the end, real labels", drawn=False),
        Measure(name="random-last", title="training accuracy at the end, random labels", drawn=False),
        Measure(name="real-test", title="test accuracy, real labels"),
    ),
    sizes={
        "cpu": {
            **{"upstream": 3000, "downstream": 3000, "test": 1000, "image": 16, "filters": 32, "units": 64},
            **{"steps": 600, "batch_size": 64, "lr": 0.005},
        },
        "paper": {
            **{"upstream": 10_000, "downstream": 10_000, "test": 10_000, "image": 32},
            **{"filters": 64, "units": 256, "steps": 10_000, "batch_size": 256, "lr": 0.0005},
        },
    },
    scale={
        "cpu": "3,000 images of 16x16 pixels (10,000 of 32x32), 600 steps of 64 images at .005 (10,000 of 256 at "
        ".0005), 32 filters (64) and 64 dense units (256).",
        "paper": "",
    },
    paper=(),  # Fig. 5 shows curves; no value is printed
    run=run,
    draw=draw,
    data=("cifar10",),
)


@ck.hookimpl
def compatkit_studies(register: Register) -> None:
    """Offer study 1.5."""
    register("1.5", lambda: STUDY)

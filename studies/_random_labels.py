"""Random labels upstream, real or random ones downstream: settings and the two stages of all these studies."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor

import compatkit as ck
from compatkit.experiments.studies import Measure, Run

REFERENCE = "Maennel et al. 2020, What Do Neural Networks Learn When Trained With Random Labels?"
DATA = "cifar10"
TASK = "net"
DOWNSTREAM_SEED = 10_000
"""Added to the seed of a run for the random labels downstream."""
SIMPLE: dict[str, Any] = {
    "model": "simple_cnn",
    "cut": "forward_features",
    "kwargs": {"convolutions": 2, "filters": 16, "units": 64},
    "image": 16,
    "up": 1000,
    "down": 1000,
    "test": 1000,
    "batch_size": 50,
    "classes_up": 5,
    "classes_down": 10,
    "scheme": "he",
    "init_scale": 1.0,
    "lr": 0.01,
    "epochs_up": 30,
    "epochs_down": 20,
    "points": 10,
    "rescale": True,
}
"""Settings on two cores: ``points`` are evaluations of a curve; the rest is named as in the paper's appendix."""
PAPER: dict[str, Any] = {
    **SIMPLE,
    "image": 32,
    "up": 20_000,
    "down": 25_000,
    "test": 10_000,
    "batch_size": 256,
    "epochs_up": 120,
    "epochs_down": 200,
    "points": 40,
}
VGG: dict[str, Any] = {"model": "vgg16_cifar", "cut": "stage3", "kwargs": {}, "image": 32}
SCALE = (
    "SimpleCNN on {up:,} and {down:,} images of 16x16 pixels, for {epochs_up} and {epochs_down} epochs of batches of "
    "{batch_size}"
)
Factories = Mapping[str, Callable[..., Any]]


def subsets(run: Run, settings: Mapping[str, Any]) -> tuple[ck.DataSet, ck.DataSet]:
    """Return disjoint upstream and downstream data sets, drawn by the seed, with the same test images."""
    data = run.load(DATA)
    parts = data.train.divide(settings["up"], settings["down"], seed=run.seed)
    test = data.test.subset(min(settings["test"], len(data.test)), seed=0)
    up, down = (ck.DataSet(data.name, part, test) for part in parts)
    return up, down


def task(settings: Mapping[str, Any], data: ck.DataSet, **more: Any) -> ck.Task:
    """Return a task with inputs from -1 to 1, without augmentation."""
    side, kwargs = settings["image"], dict(settings["kwargs"])
    if settings["model"] == "simple_cnn":
        kwargs["img_size"] = side
    half = {"mean": 0.5, "std": 0.5}
    return ck.Task(
        TASK,
        data,
        settings["model"],
        settings["cut"],
        size=side,
        kwargs=kwargs,
        normalize=half,
        **more,
    )


def trainer(run: Run, settings: Mapping[str, Any], images: int, epochs: float, **more: Any) -> ck.Trainer:
    """Return SGD with momentum .9 and no decay; the rate falls to a third twice, the curve is of all images."""
    steps = max(2, round(epochs * images / settings["batch_size"]))
    return ck.Trainer(
        **{
            "steps": steps,
            "seed": run.seed,
            "batch_size": settings["batch_size"],
            "optimizer": "sgd",
            "lr": settings["lr"],
            "momentum": 0.9,
            "weight_decay": 0.0,
            "schedule": ck.Schedule("step", every=math.ceil(steps / 3), factor=1 / 3),
            "precision": "float32",
            "progress": False,
            "log_every": steps,
            "evaluate_every": max(1, steps // settings["points"]),
            "evaluate_on": "train",
            **more,
        }
    )


@attrs.frozen(eq=False)
class Upstream:
    """Results of pretraining on random labels.

    Attributes:
        weights: Weights of the whole network.
        norms: Norm of each layer's weight at initialization.
        accuracy: On the random labels at the end.
        fit: The run.
    """

    weights: Mapping[str, Tensor]
    norms: Mapping[str, float]
    accuracy: float
    fit: ck.Fit


def initial(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of ``scaled_init`` and ``transfer`` that draw layers."""
    return {"scheme": settings["scheme"], "scale": settings["init_scale"]}


def pretrain(
    run: Run,
    settings: Mapping[str, Any],
    up: ck.DataSet,
    *uses: str | ck.RegularizerConfig,
    factories: Factories | None = None,
) -> Upstream:
    """Train a network on random labels; further plugins may look on."""
    used = [
        ck.use("scaled_init", **initial(settings)),
        ck.use("random_labels", classes=settings["classes_up"], seed=run.seed),
        *uses,
    ]
    plan = trainer(run, settings, settings["up"], settings["epochs_up"])
    fit = plan.fit([task(settings, up)], used, factories=factories)
    norms = fit.run["pretraining"]["plugins"]["scaled_init"][TASK]
    return Upstream(fit.weights(TASK), norms, fit.evaluations[-1]["accuracy"], fit)


def finetune(
    run: Run,
    settings: Mapping[str, Any],
    down: ck.DataSet,
    labels: str,
    before: Upstream | None,
    *uses: str | ck.RegularizerConfig,
    first: int | None = None,
    factories: Factories | None = None,
    **more: Any,
) -> ck.Fit:
    """Train on the downstream images, from transferred layers or from scratch.

    Args:
        run: Run of the study.
        settings: Settings of the run; may differ from ``run.settings``.
        down: Images with real labels.
        labels: ``"real"`` or ``"random"``.
        before: Pretrained network; None starts from initial weights of the same scheme and scale.
        uses: Further plugins.
        first: How many layers are transferred; None for all but the class layer.
        factories: Plugins of the study.
        more: Further settings of ``transfer``.
    """
    drawn = initial(settings)
    if before is None:
        begun, start = ck.use("scaled_init", **drawn), task(settings, down)
    else:
        norms = before.norms if settings["rescale"] else None
        begun = ck.use("transfer", **{"first": first, "norms": norms, **drawn, **more})
        start = task(settings, down, weights=before.weights)
    used: list[str | ck.RegularizerConfig] = [begun, *uses]
    if labels == "random":
        seed = DOWNSTREAM_SEED + run.seed
        used.append(ck.use("random_labels", classes=settings["classes_down"], seed=seed))
    plan = trainer(run, settings, settings["down"], settings["epochs_down"])
    return plan.fit([start], used, factories=factories)


def permuted(before: Upstream, seed: int) -> Upstream:
    """Return the network with the numbers of each weight tensor in a random order: the control of all these studies.

    Norms, means and the distribution of the numbers stay; what the layers learned of the images is gone.
    """
    draw = torch.Generator().manual_seed(seed)
    mixed = {
        name: tensor.flatten()[torch.randperm(tensor.numel(), generator=draw)].view_as(tensor)
        if tensor.is_floating_point() and tensor.ndim > 1
        else tensor
        for name, tensor in before.weights.items()
    }
    return attrs.evolve(before, weights=mixed)


def curve(fit: ck.Fit) -> list[float]:
    """Return the accuracy on all training images at each evaluation."""
    return [evaluation["accuracy"] for evaluation in fit.evaluations]


def tested(fit: ck.Fit) -> float | None:
    """Return the accuracy on the test images."""
    measured = ck.measure(fit.tasks[TASK], fit.tasks[TASK].task.data.test, ["accuracy"], batch_size=512)
    return measured["accuracy"].value  # type: ignore[union-attr]


STARTS = ("scratch", "pretrained", "permuted")


def compare(
    run: Run, settings: Mapping[str, Any], kinds: Sequence[str] = ("real", "random")
) -> tuple[dict[str, float | None], dict[str, list[float]]]:
    """Pretrain once, then train downstream from scratch, from the pretrained network and from the permuted one.

    Args:
        run: Run of the study.
        settings: Settings of the run; may differ from ``run.settings``.
        kinds: Kinds of labels downstream.

    Returns:
        Measures, see ``measures``, and curves by labels and start.
    """
    up, down = subsets(run, settings)
    before = pretrain(run, settings, up)
    values: dict[str, float | None] = {"upstream": before.accuracy}
    curves: dict[str, list[float]] = {}
    for labels in kinds:
        speeds = dict[str, float]()
        for start, start_weights in zip(STARTS, (None, before, permuted(before, run.seed)), strict=True):
            fit = finetune(run, settings, down, labels, start_weights)
            speeds[start] = fit.learning_speed(TASK)
            curves[f"{labels}-{start}"] = curve(fit)
            if labels == "real":
                values[f"test-{start}"] = tested(fit)
        values |= {f"{labels}-{start}": speed for start, speed in speeds.items()}
        values[f"{labels}-gain"] = speeds["pretrained"] - speeds["scratch"]
        values[f"{labels}-control"] = speeds["permuted"] - speeds["scratch"]
    return values, curves


def measures(kinds: Sequence[str] = ("real", "random")) -> tuple[Measure, ...]:
    """Return the measures of ``compare``."""
    measures = [
        Measure(name="upstream", title="accuracy on the random labels upstream", better="none", drawn=False)
    ]
    for labels in kinds:
        condition = f"{labels} labels downstream"
        measures += [
            Measure(name=f"{labels}-{start}", title=f"learning speed, {condition}: {start}")
            for start in STARTS
        ]
        measures += [
            Measure(name=f"{labels}-gain", title=f"pretrained less scratch, {condition}"),
            Measure(name=f"{labels}-control", title=f"permuted less scratch, {condition}", better="none"),
        ]
    if "real" in kinds:
        measures += [
            Measure(name=f"test-{start}", title=f"test accuracy, real labels: {start}", drawn=False)
            for start in STARTS
        ]
    return tuple(measures)


def scale(settings: Mapping[str, Any], more: str = "") -> str:
    """Return how the small size differs from the paper."""
    return SCALE.format(**settings) + (f"; {more}" if more else "") + "."

"""Fine-tuning on few images: sources, starts and their controls, and how far weights move."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import torch
from scipy import stats
from torch import Tensor

import compatkit as ck
from compatkit.evaluation.metrics import Table, equal_norm_weights, make_metric
from compatkit.experiments.studies import Run

REFERENCE = "Towards Understanding the Transferability of Deep Representations (under review, ICLR 2020)"
TASK = "net"
LENET: dict[str, Any] = {
    "model": "lenet",
    "cut": "forward_features",
    "image": 28,
    "channels": "L",
    "source": "mnist",
    "source_train": 6000,
    "source_steps": 1000,
    "few": 300,
    "test": 1000,
    "steps": 300,
    "batch_size": 32,
    "lr": 0.01,
    "weight_decay": 5e-4,
}
"""LeNet with the paper's rate and decay; ``few`` are the target's training images."""
RESIDUAL: dict[str, Any] = {
    **LENET,
    "model": "resnet8_cifar",
    "cut": "layer3",
    "image": 16,
    "source_train": 4000,
    "source_steps": 250,
    "steps": 120,
    "weight_decay": 0.0,
}
"""ResNet-8 of small images, for what batch normalization and depth take part in."""
PAPER: dict[str, Any] = {
    **RESIDUAL,
    "model": "resnet56_cifar",
    "image": 32,
    "channels": "RGB",
    "source": "cifar100",
    "source_train": 50_000,
    "source_steps": 40_000,
    "few": 5000,
    "test": 10_000,
    "steps": 20_000,
}
"""CIFAR-100 in place of ImageNet, whose images this size does not ask for."""
IMAGENET: dict[str, Any] = {
    "model": "resnet50",
    "cut": "layer4",
    "image": 224,
    "source": "imagenet/",
    "source_train": 1_281_167,
    "source_steps": 90 * 1_281_167 // 32,
    "few": 100_000,
}
"""Differences from ``PAPER`` at the paper's own size: folders of photos, one a class, as torchvision's ImageFolder
takes them, with all of a target's training images."""
OWN_SOURCE = (
    "trains its own ResNet-50, 90 epochs of ImageNet in steps of 32; the paper takes a published one."
)
Weights = Mapping[str, Tensor]
Factories = Mapping[str, Callable[..., Any]]


def network(settings: Mapping[str, Any], data: ck.DataSet, **more: Any) -> ck.Task:
    """Return the task of a network on some images."""
    return ck.Task(TASK, data, settings["model"], settings["cut"], size=settings["image"], **more)


def trainer(run: Run, settings: Mapping[str, Any], steps: int, **more: Any) -> ck.Trainer:
    """Return the paper's SGD with momentum .9, at a constant rate."""
    plain = {"batch_size": settings["batch_size"], "lr": settings["lr"], "log_every": max(1, steps)}
    fixed = {"optimizer": "sgd", "momentum": 0.9, "schedule": "constant", "precision": "float32"}
    decay = {"weight_decay": settings["weight_decay"], "seed": run.seed, "progress": False}
    return ck.Trainer(steps=steps, **{**plain, **fixed, **decay, **more})


@attrs.frozen
class _Pretraining:
    """Key of pretrained weights; arms of one seed share them."""

    digest: str
    settings: str
    seed: int
    data: ck.DataSet = attrs.field(eq=False)
    run: Run = attrs.field(eq=False)


@functools.lru_cache(maxsize=6)
def _pretrained(request: _Pretraining) -> dict[str, Tensor]:
    settings = json.loads(request.settings)
    plan = trainer(request.run, settings, settings["source_steps"])
    return plan.fit([network(settings, request.data)]).weights(TASK)


def pretrain(run: Run, settings: Mapping[str, Any], data: ck.DataSet) -> Weights:
    """Return the weights of a network trained on a source; kept for the other arms of the seed."""
    written = json.dumps(dict(settings), sort_keys=True)
    return _pretrained(_Pretraining(data.train.digest, written, run.seed, data, run))


def tune(
    run: Run,
    settings: Mapping[str, Any],
    data: ck.DataSet,
    weights: Weights | None,
    uses: Sequence[str | ck.RegularizerConfig] = (),
    *,
    steps: int | None = None,
    fixed: bool = False,
    factories: Factories | None = None,
    **more: Any,
) -> ck.Fit:
    """Train on a target from some weights, with a new class layer.

    Args:
        run: Run of the study.
        settings: Settings of the run.
        data: Few images of the target.
        weights: To start from; None for random ones.
        uses: Plugins.
        steps: None for those of the settings; 0 gives the start itself.
        fixed: Whether the extractor is not trained; the network is then cut before its class layer.
        factories: Plugins of the study.
        more: Further settings of the task.
    """
    task = network(settings, data, weights=weights, **more)
    plan = trainer(run, settings, settings["steps"] if steps is None else steps)
    if fixed:
        uses = [*uses, "fixed"]
        factories = {**(factories or {}), "fixed": Fixed}
    return plan.fit([task], uses, factories=factories)


class Fixed:
    """Keeps every parameter but those of the class layer where it is."""

    @ck.hookimpl
    def compatkit_after_backward(self, step: ck.Step) -> None:
        """Drop the gradients of all other parameters."""
        state = step.task
        for part, names in ((state.extractor, ()), (state.head, state.class_layer)):
            for path, parameter in part.named_parameters():
                if not path.startswith(tuple(names)) or not names:
                    parameter.grad = None


def few(settings: Mapping[str, Any], data: ck.DataSet, seed: int) -> ck.DataSet:
    """Return few training images, drawn by the seed, and always the same test images; all where there are no more."""
    train = data.train.subset(min(settings["few"], len(data.train)), seed=seed)
    return ck.DataSet(data.name, train, data.test.subset(min(settings["test"], len(data.test)), seed=0))


def source(settings: Mapping[str, Any], data: ck.DataSet, seed: int) -> ck.DataSet:
    """Return as many training images of a source as the settings say, or all, in the channels of the network."""
    count = min(settings["source_train"], len(data.train))
    return data.converted(settings["channels"]).subset(train=count, seed=seed)


def permuted(data: ck.DataSet, seed: int) -> ck.DataSet:
    """Return the data set with its training labels in a random order: a control without a rule to learn."""
    order = np.random.default_rng(seed).permutation(len(data.train))
    return attrs.evolve(data, train=attrs.evolve(data.train, labels=data.train.labels[order]), source=None)


def random_weights(
    run: Run, settings: Mapping[str, Any], data: ck.DataSet, weights: Weights, seed: int
) -> Weights:
    """Return Gaussian filters of the norms of ``weights``: a control that knows their scale and no more."""
    start = tune(run, settings, data, weights, steps=0, keep_class_layer=True)
    random_network = equal_norm_weights(start.network(TASK), torch.Generator().manual_seed(seed))
    return {
        name.partition(".")[2]: tensor.detach().clone().contiguous()
        for name, tensor in random_network.state_dict().items()
    }


def tested(fit: ck.Fit, split: ck.Split | None = None) -> float:
    """Return the accuracy on the test images, or on others."""
    state = fit.tasks[TASK]
    accuracy = ck.measure(state, split or state.task.data.test, ["accuracy"], batch_size=500)["accuracy"]
    return float(accuracy.value)  # type: ignore[union-attr,arg-type]


def rank_correlation(left: Sequence[float], right: Sequence[float]) -> float | None:
    """Return Spearman's coefficient; equal values share their mean rank. None where all of a side are equal."""
    if len(set(left)) < 2 or len(set(right)) < 2:
        return None
    return float(np.corrcoef(stats.rankdata(left), stats.rankdata(right))[0, 1])


def moved(network: Any, start: ck.Fit, count: int) -> Table:
    """Return the deviation of each layer's weights from those of a start, and their sum, over sqrt(count)."""
    metric = make_metric("weight_deviation", examples=count)
    measured = ck.measure(network, None, [metric], other=start.tasks[TASK], layers=["*"])
    return measured.table("weight_deviation")


def deviation(table: Table, layer: str = "total") -> float:
    """Return a figure of ``moved``."""
    return float(table.at(layer=layer, quantity="deviation").value or 0.0)

"""First layers that learn random labels: training, recorded filters, and the covariance of their inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import torch
from torch import Tensor, nn

import compatkit as ck
from compatkit.experiments.studies import Run
from compatkit_plugins.metrics.misalignment import misalignment, random_basis  # pyright: ignore[reportMissingImports]
from compatkit_plugins.patch_covariance import Eigenspaces, PatchMoments, filter_covariance, patches_of  # pyright: ignore[reportMissingImports]

REFERENCE = 'Maennel et al. (2020), "What Do Neural Networks Learn When Trained With Random Labels?"'
CENTERED: Mapping[str, Any] = {"mean": 0.5, "std": 0.5}
"""Gives a network -1 to 1, as the paper does."""
LOOKED_AT = 2000
"""Largest number of images with measured patches."""
BASES = 10


def sgd(
    run: Run, steps: int, *, constant: bool = False, seed: int | None = None, **further: Any
) -> ck.Trainer:
    """Return the paper's trainer (App. A.3): SGD with momentum .9, a rate divided by 3 after each third, no decay.

    Args:
        run: Settings ``lr`` and ``batch_size``.
        steps: Iterations.
        constant: Whether the rate stays.
        seed: In place of the run's.
        further: Other settings of the trainer.
    """
    thirds = ck.Schedule("step", every=max(1, -(-steps // 3)), factor=1 / 3)
    return ck.Trainer(
        **{
            "steps": steps,
            "seed": run.seed if seed is None else seed,
            "batch_size": run.settings["batch_size"],
            "optimizer": "sgd",
            "momentum": 0.9,
            "lr": run.settings["lr"],
            "weight_decay": 0.0,
            "schedule": "constant" if constant else thirds,
            "precision": "float32",
            "progress": False,
            "log_every": max(1, steps // 10),
            **further,
        }
    )


@attrs.define(eq=False)
class FilterRecorder:
    """Records the weight of a layer before the first step and after some steps.

    Attributes:
        layer: Path of the layer in the whole network.
        steps: Numbers of steps after which the weight is recorded.
        weights: Recorded weights by number of steps.
    """

    layer: str
    steps: Sequence[int]
    weights: dict[int, Tensor] = attrs.field(factory=dict)

    @ck.hookimpl
    def compatkit_pretrain(self, setup: ck.SetUp) -> Mapping[str, Any]:
        """Record the initial weight, after plugins that draw it (``after``)."""
        (state,) = setup.tasks.values()
        self.weights[0] = self._weight(state)
        return {}

    @ck.hookimpl
    def compatkit_after_step(self, step: ck.Step) -> None:
        """Record the weight after the requested steps."""
        if step.number + 1 in self.steps:
            self.weights[step.number + 1] = self._weight(step.task)

    def _weight(self, state: ck.TaskState) -> Tensor:
        weight: Any = layer_of(state, self.layer).weight
        return weight.detach().cpu().clone()


def layer_of(state: ck.TaskState, path: str) -> nn.Module:
    """Return a layer by its path in the whole network."""
    parts = {**dict(state.head.named_modules()), **dict(state.extractor.named_modules())}
    return parts[path]


def learned(
    trainer: ck.Trainer, task: ck.Task, layer: str, uses: Sequence[ck.RegularizerConfig], points: int
) -> tuple[ck.Fit, dict[int, Tensor]]:
    """Train; return the fit and the layer's weights after equally spaced numbers of steps, 0 and all included."""
    steps = [round(trainer.steps * point / points) for point in range(1, points + 1)]
    recorder = FilterRecorder(layer, steps)
    recording = ck.use("kept_filters", after=[use.as_ for use in uses if use.name == "scaled_init"])
    fit = trainer.fit([task], [*uses, recording], factories={"kept_filters": lambda: recorder})
    return fit, recorder.weights


def seen_by(fit: ck.Fit, layer: str) -> Tensor:
    """Return the covariance of a first layer's input patches on training images, float64 ``(d, d)``."""
    (state,) = fit.tasks.values()
    module = layer_of(state, layer)
    mean, std = (torch.tensor(values).view(1, -1, 1, 1) for values in (state.data.mean, state.data.std))
    split = state.examples.subset(min(len(state.examples), LOOKED_AT), seed=0)

    def moments(indices: np.ndarray) -> PatchMoments:
        images = (torch.from_numpy(split.read(indices)).movedim(3, 1).float() / 255 - mean) / std
        rows = images.flatten(1) if isinstance(module, nn.Linear) else images
        return PatchMoments.of(patches_of(module, rows))

    pieces = np.array_split(np.arange(len(split)), max(1, len(split) // 250))
    return PatchMoments.over(map(moments, pieces)).covariance


def misaligned(data: Tensor, filters: Tensor) -> tuple[float, float]:
    """Return the misalignment of filters with data, and its mean over random bases.

    Args:
        data: Covariance of the data, float64 ``(d, d)``.
        filters: Weights ``(filters, ...)``.
    """
    spaces, weights = Eigenspaces.of(data), filter_covariance(filters)
    draw = torch.Generator().manual_seed(0)
    bases = [misalignment(random_basis(spaces, draw), weights) for _ in range(BASES)]
    return misalignment(spaces, weights), sum(bases) / len(bases)

"""A released extractor beside a run: it never moves, and sees a task's images as its own contract asks."""

from __future__ import annotations

import copy
from collections.abc import Callable

import attrs
import torch
from torch import Tensor, nn

from compatkit.contracts.contract import Blueprint, Data
from compatkit.errors import UsageError
from compatkit.training.precision import Precision

EXTRACTOR = "released.extractor"
"""Its name among what is frozen in a run."""
HEAD = "released"
"""The name of a released target head there."""


@attrs.define(eq=False)
class ReleasedExtractor:
    """An extractor that new parts are trained against.

    Attributes:
        data: Its own preprocessing.
        digest: Tensor digest of its weights and statistics.
        reference: ``name@version``.
    """

    blueprint: Blueprint
    module: nn.Module
    data: Data
    digest: str
    reference: str

    def placed(self, precision: Precision) -> ReleasedExtractor:
        """Return a copy on a run's device whose statistics and weights nothing moves."""
        module = copy.deepcopy(self.module).eval().requires_grad_(False)
        return attrs.evolve(
            self,
            module=module.to(precision.device, memory_format=precision.memory_format),  # type: ignore[call-overload]
        )

    def on(self, data: Data, shape: tuple[int, ...], task: str, device: str) -> Callable[[Tensor], Tensor]:
        """Return what gives its features, without gradients, of images that are normalised for a task.

        Args:
            data: Preprocessing of the task.
            shape: Of the task's features, without the batch.
            task: Its name, for messages.
            device: Of the run.

        Raises:
            UsageError: It takes other images, or gives features of another shape.
        """
        for what in ("size", "channels"):
            wanted, came = getattr(self.data, what), getattr(data, what)
            if wanted != came:
                raise UsageError(
                    f"The released extractor {self.reference} takes images of {what} {wanted}; those of task {task!r} "
                    f"are of {came}. Give the task size={self.data.size} and images of channels {self.data.channels}, "
                    "or start it from the extractor (registry.task)."
                )
        mean, std = (
            torch.tensor(one, device=device).view(1, -1, 1, 1) for one in (self.data.mean, self.data.std)
        )
        own_mean, own_std = (
            torch.tensor(one, device=device).view(1, -1, 1, 1) for one in (data.mean, data.std)
        )
        scale, shift = own_std / std, (own_mean - mean) / std
        same = (self.data.mean, self.data.std) == (data.mean, data.std)

        @torch.no_grad()
        def features(images: Tensor) -> Tensor:
            return self.module(images if same else images * scale + shift)

        given = tuple(features(torch.zeros(2, len(data.mean), *data.size, device=device)).shape[1:])
        if given != shape:
            raise UsageError(
                f"The released extractor {self.reference} gives features {given}; task {task!r} gives {shape}. Cut the "
                "task's network where both have one shape."
            )
        return features

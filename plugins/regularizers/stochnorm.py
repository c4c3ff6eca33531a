"""StochNorm: each channel of batch normalization uses stored statistics or those of the batch, drawn anew in each step.

Paper: Kou, You, Long, Wang (2020), "Stochastic Normalization", NeurIPS; formulas as in the public code of its group
    (Transfer-Learning-Library), whose probability is .5.
Equations: for channel c, s_c ~ Bernoulli(p): x' = (1 - s_c) (x - stored mean) / sqrt(stored variance + eps) + s_c (x -
    batch mean) / sqrt(batch variance + eps), then scale and shift. Stored statistics are those before the step, which
    updates them as usual. With p = 1 it is batch normalization.
Networks that are published are as before: outside of training nothing differs.
Cost: a second normalization in each layer, and its activations in memory.
Limits: it needs layers of batch normalization. Steps draw random numbers, and it brought nothing on 100 images of
    USPS.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm  # pyright: ignore[reportPrivateUsage]
from torch.utils.hooks import RemovableHandle

from compatkit import SetUp, Step, hookimpl
from compatkit.errors import UsageError
from compatkit.foundation.limits import Number
from compatkit.hooks import Batch, Register

compatkit_api = 1


@hookimpl
def compatkit_regularizers(register: Register) -> None:
    """Offer ``stochnorm``."""
    register("stochnorm", StochNorm)


@attrs.define(eq=False)
class StochNorm:
    """Mixes both kinds of statistics in every layer of batch normalization that is trained.

    Attributes:
        p: Probability that a channel uses the statistics of the batch, from 0 to 1.
    """

    p: float = attrs.field(default=0.5, validator=Number(least=0, most=1))
    _draw: torch.Generator | None = attrs.field(default=None, init=False)
    _handles: list[RemovableHandle] = attrs.field(factory=list, init=False)

    @hookimpl
    def compatkit_set_up(self, setup: SetUp) -> None:
        """Watch the layers of batch normalization.

        Raises:
            UsageError: A task has none that is trained and keeps statistics.
        """
        for name, state in setup.tasks.items():
            layers = [
                layer
                for part in (state.extractor, state.head)
                for layer in part.modules()
                if isinstance(layer, _BatchNorm)
                and layer.track_running_stats
                and layer not in state.frozen_norms
            ]
            if state.freezes_extractor:
                layers = [layer for layer in layers if layer in set(state.head.modules())]
            if not layers:
                raise UsageError(
                    f"stochnorm mixes statistics of batch normalization; task {name!r} trains no such layer. Choose "
                    "another network, or leave it out.",
                    subject=name,
                )
            for layer in layers:
                before, after = self._around(layer)
                self._handles += [layer.register_forward_pre_hook(before), layer.register_forward_hook(after)]

    @hookimpl
    def compatkit_views(self, step: Step, batch: Batch) -> Batch:
        """Begin a step: channels are drawn from here on."""
        self._draw = step.rng("stochnorm")
        return batch

    @hookimpl
    def compatkit_after_step(self, step: Step) -> None:
        """End the step."""
        self._draw = None

    @hookimpl
    def compatkit_finish(self, setup: SetUp) -> None:
        """Leave the layers as they were."""
        for handle in self._handles:
            handle.remove()

    def _around(self, layer: _BatchNorm) -> tuple[Callable[..., None], Callable[..., Tensor | None]]:
        """Return hooks before and after a layer; the former keeps what stored statistics give, before they change."""
        inputs: list[Tensor] = []

        def before(module: Any, arguments: tuple[Tensor, ...]) -> None:
            inputs.clear()
            if self._draw is not None and layer.training:
                inputs.append(
                    F.batch_norm(
                        arguments[0],
                        layer.running_mean.clone(),  # type: ignore[union-attr]
                        layer.running_var.clone(),  # type: ignore[union-attr]
                        layer.weight,
                        layer.bias,
                        eps=layer.eps,
                    )
                )

        def after(module: Any, arguments: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
            if not inputs or self._draw is None:
                return None
            stored = inputs.pop()
            chosen = torch.rand(layer.num_features, generator=self._draw) < self.p
            shape = [1, -1, *[1] * (output.ndim - 2)]
            return torch.where(chosen.to(output.device).view(shape), output, stored)

        return before, after

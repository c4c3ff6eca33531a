"""One layer of a chain as an autoencoder: the layers below compute its input, which it learns to reconstruct."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, cast

import attrs
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ..reverse_pass._chains import (
    OUTPUTS,
    Parts,
    Stage,
    again,
    modules_of,
    run,
    step_back,
    wide,
)


class _Reached(Exception):
    """Raised when the layer is reached, as the layers behind it need not run."""


@attrs.frozen(eq=False)
class Single:
    """A layer, its decoder, and its network, which is in eval mode.

    Attributes:
        decoder: The layer itself, or one of its shape with weights of its own.
    """

    parts: Parts
    stage: Stage
    before: Stage | None
    output_activation: str | None
    modules: Mapping[str, nn.Module]
    decoder: nn.Module

    @classmethod
    def of(
        cls,
        parts: Parts,
        stage: Stage,
        before: Stage | None,
        output_activation: str | None,
        draws: torch.Generator | None,
    ) -> Single:
        """Make the autoencoder of a stage and put the network into eval mode.

        Args:
            parts: The network.
            stage: Stage whose layer learns.
            before: The stage before it; None for the first.
            output_activation: See ``full.Walk``.
            draws: Generator for the weights of a separate decoder; None for a tied one.
        """
        for part in (parts,) if isinstance(parts, nn.Module) else parts:
            part.eval()
        modules = modules_of(parts)
        layer = modules[stage.linear]
        if draws is None:
            return cls(parts, stage, before, output_activation, modules, layer)
        decoder = copy.deepcopy(layer)
        decoder.requires_grad_(True)
        weight, bias = cast(Tensor, decoder.weight), decoder.bias
        with torch.no_grad():
            fan_in = weight.numel() / len(weight)
            weight.copy_(torch.randn(weight.shape, generator=draws) / fan_in**0.5)
            if isinstance(bias, Tensor):
                bias.zero_()
        return cls(parts, stage, before, output_activation, modules, decoder)

    def moving(self) -> list[nn.Parameter]:
        """Return the trained parameters: of the layer, its normalization and activation, and a separate decoder."""
        paths = (self.stage.linear, self.stage.norm, self.stage.act)
        layers = [
            parameter for path in paths if path is not None for parameter in self.modules[path].parameters()
        ]
        own = () if self.decoder is self.modules[self.stage.linear] else self.decoder.parameters()
        return [parameter for parameter in (*layers, *own) if parameter.requires_grad]

    @contextmanager
    def learning(self) -> Iterator[None]:
        """Let the layer's normalization use the statistics of batches, and update its own, inside the block."""
        norm = None if self.stage.norm is None else self.modules[self.stage.norm]
        try:
            if norm is not None:
                norm.train()
            yield
        finally:
            if norm is not None:
                norm.eval()

    def loss(self, images: Tensor, disturbed: Callable[[Tensor], Tensor] = lambda like: like) -> Tensor:
        """Return the mean square error of the layer's reconstruction of its input: a float32 scalar.

        Args:
            images: A batch for the network.
            disturbed: Corrupts the layer's input.
        """
        state, like = self._below(images)
        stage, modules = self.stage, self.modules
        code = modules[stage.linear](disturbed(like))
        if stage.norm is not None:
            code = modules[stage.norm](code)
        if stage.act is not None and not stage.act.startswith(f"{stage.norm}."):  # else it is in there
            code = modules[stage.act](code)
        back = step_back(self.decoder, stage, code, like, state.shape)
        if self.before is not None:
            norm, act = (
                None if path is None else modules[path] for path in (self.before.norm, self.before.act)
            )
            has_running = not isinstance(norm, _BatchNorm) or norm.running_mean is not None
            back = again(
                norm, act, back, None, "running" if has_running else "batch"
            )  # fixed, as all layers below
        elif self.output_activation is not None:
            back = OUTPUTS[self.output_activation](back)
        return (wide(state) - wide(back)).square().mean()

    def _below(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Run the network up to the layer; return the state to reconstruct, and the layer's input."""
        seen: dict[str, Tensor] = {"state": images}

        def note(_: nn.Module, taken: Any, output: Tensor) -> None:
            seen["state"] = output.clone()

        def stop(_: nn.Module, taken: tuple[Any, ...]) -> None:
            seen["like"] = taken[0].clone()
            raise _Reached

        handles = [self.modules[self.stage.linear].register_forward_pre_hook(stop)]
        if self.before is not None:
            handles.append(self.modules[self.before.last].register_forward_hook(note))
        try:
            with torch.no_grad(), suppress(_Reached):
                run(self.parts, images)
        finally:
            for handle in handles:
                handle.remove()
        return seen["state"], seen["like"]

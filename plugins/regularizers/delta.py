"""DELTA: feature maps stay near those of the network that training started from, channels that matter more than others.

Paper: Li, Xiong, Wang, Rao, Liu, Huan (2019), "DELTA: Deep Learning Transfer using Feature Map with Attention for
    Convolutional Networks", ICLR; attention and factors as in public code (Transfer-Learning-Library), where the
    strengths are .01, the sum is over the batch, and the convolution that ends each stage is compared.
Equations: 1 / 2 sum over layers of C / (H W) sum over channels c of a_c |FM_c(x) - FM0_c(x)|^2, here the mean over
    images x, with FM0 of the start in eval mode; beta / 2 |v|^2 of a new class layer. a is the softmax over the
    layer's C channels of g_c / temperature, with g the increase of the start's loss when the channel's map is set to
    zero, shifted and scaled to mean 0 and deviation 1; the loss is that of a class layer that is fitted to the
    start's features first. Without attention a_c = 1 / C.
Cost: a pass of the start in each step, and its weights once more. Before the first step, ``fit_steps`` batches for
    the class layer and one pass for each channel of the layers.
Limits: it needs weights to start from, and a second network in memory. Strengths of public code were far too strong
    here; tune ``weight`` on held-out images. Layers are named by hand.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import attrs
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from compatkit import Pretraining, SetUp, Step, TaskState, autocast, effect, hookimpl
from compatkit.errors import UsageError, suggest
from compatkit.foundation.limits import COUNT, Number
from compatkit.hooks import Batch, Register

compatkit_api = 1


@hookimpl
def compatkit_regularizers(register: Register) -> None:
    """Offer ``delta``."""
    register("delta", Delta)


def distance(now: Tensor, start: Tensor, attention: Tensor) -> Tensor:
    """Return the term of a layer, without 1 / 2, a float32 scalar.

    Args:
        now: Maps ``(batch, channels, ...)``.
        start: Maps of the start, of the same shape.
        attention: ``(channels,)``, of sum 1.
    """
    squares = (
        (now - start).float().flatten(2).square()
        if now.ndim > 2
        else (now - start).float().square()[:, :, None]
    )
    return now.shape[1] * (squares.mean(2) * attention).sum(1).mean()


@attrs.define(eq=False)
class Delta:
    """Pulls feature maps to those of the start, and weights of a new class layer to 0.

    Attributes:
        layers: Paths of the layers whose maps are compared, such as ``["layer1", "layer2"]``.
        attention: Whether channels are weighed.
        beta: Strength for a new class layer.
        fit_steps: Steps for the class layer that the attention is measured with.
        fit_lr: Their rate.
        batch_size: Images in each, and of the batch on which channels are set to zero; all if there are fewer.
        temperature: Temperature of the softmax.
    """

    layers: Sequence[str]
    attention: bool = True
    beta: float = attrs.field(default=0.01, validator=Number(least=0))
    fit_steps: int = attrs.field(default=100, validator=COUNT)
    fit_lr: float = attrs.field(default=0.01, validator=Number(above=0))
    batch_size: int = attrs.field(default=64, validator=Number(least=2, whole=True))
    temperature: float = attrs.field(default=5.0, validator=Number(above=0))
    _starts: dict[str, nn.Sequential] = attrs.field(factory=dict, init=False)
    _weights: dict[str, Tensor] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        listed = isinstance(self.layers, Sequence) and not isinstance(self.layers, str)
        if not listed or not self.layers or len(set(self.layers)) < len(self.layers):
            raise UsageError(
                f"delta: layers lists layers, such as ['layer1', 'layer2'], each once; got {self.layers!r:.60}.",
                subject="layers",
            )

    @hookimpl
    def compatkit_set_up(self, setup: SetUp) -> None:
        """Keep a copy of every task's network.

        Raises:
            UsageError: A task starts from random weights, or has no such layer.
        """
        for name, state in setup.tasks.items():
            if state.task.weights is None and state.task.extractor is None:
                raise UsageError(
                    "delta pulls feature maps to those of the network that training started from; task "
                    f"{name!r} starts from random weights. Give it weights= (Fit.weights, a file), or components "
                    "(registry.task).",
                    subject=name,
                )
            known = [path for part in (state.extractor, state.head) for path, _ in part.named_modules()]
            for path in self.layers:
                if path not in known:
                    raise UsageError(
                        f"delta: {state.task.model} has no layer {path!r}.{suggest(path, known)}",
                        subject=name,
                    )
            start = nn.Sequential(copy.deepcopy(state.extractor), copy.deepcopy(state.head))
            self._starts[name] = start.eval().requires_grad_(False)
            setup.record_layers(state, list(self.layers))

    @hookimpl
    def compatkit_pretrain(self, setup: SetUp, pretraining: Pretraining) -> Mapping[str, Any]:
        """Weigh the channels of every layer; the network that is trained does not change."""
        if not self.attention:
            return {}
        attention: dict[str, Any] = {}
        for name, state in setup.tasks.items():
            images = min(self.batch_size, len(state.examples) or self.batch_size)
            batches = pretraining.batches(state, "delta", name, steps=self.fit_steps + 1, batch_size=images)
            *fitted, last = batches
            probe = copy.deepcopy(self._starts[name])
            _fit(probe, state, fitted, self.fit_lr)
            for path in self.layers:
                gains = _gains(probe, path, last)
                gains = (gains - gains.mean()) / gains.std(correction=0).clamp(min=1e-12)
                self._weights[f"{name}/{path}"] = (gains / self.temperature).softmax(0)
                attention[f"{name} {path}"] = float(self._weights[f"{name}/{path}"].max()) * len(gains)
        return {"largest attention over the mean": attention}

    @hookimpl
    @effect("device")
    @autocast
    def compatkit_losses(self, step: Step) -> Mapping[str, Tensor]:
        """Return ``maps`` and, where the class layer is new, ``new``."""
        name, targets = step.task.name, dict[str, list[Any]]()
        with _recorded(self._starts[name], self.layers, targets), torch.no_grad():
            self._starts[name](step.batch.images)
        terms = []
        for path, calls in step.layers.items():
            for call, start in zip(calls, targets[path], strict=True):
                count = call.output.shape[1]
                even = call.output.new_full((count,), 1 / count, dtype=torch.float32)
                terms.append(
                    distance(call.output, start, self._weights.get(f"{name}/{path}", even).to(even.device))
                )
        losses = {"maps": torch.stack(terms).sum() / 2}
        if self.beta and not step.task.task.keep_class_layer and step.task.task.head is None:
            new = [
                parameter.float().square().sum()
                for path, parameter in step.task.head.named_parameters()
                if path.startswith(tuple(step.task.class_layer))
            ]
            losses["new"] = self.beta / 2 * torch.stack(new).sum()
        return losses

    @hookimpl
    def compatkit_state(self) -> Mapping[str, Any]:
        """Return the attention."""
        return dict(self._weights)

    @hookimpl
    def compatkit_load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the attention."""
        self._weights = dict(state)


@contextmanager
def _recorded(network: nn.Sequential, paths: Sequence[str], outputs: dict[str, list[Any]]) -> Iterator[None]:
    """Note what layers of extractor and head give, by path, until the block ends."""
    handles = []
    for path in paths:
        notes = outputs.setdefault(path, [])

        def note(module: nn.Module, inputs: Any, output: Tensor, notes: list[Any] = notes) -> None:
            notes.append(output.clone())  # what is changed in place later is another tensor

        handles.append(_layer(network, path).register_forward_hook(note))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _layer(network: nn.Sequential, path: str) -> nn.Module:
    """Return a layer of extractor or head by its path in the uncut network."""
    for part in network:
        modules = dict(part.named_modules())
        if path in modules:
            return modules[path]
    raise KeyError(path)  # record_layers has refused it


def _fit(network: nn.Sequential, state: TaskState, batches: Sequence[Batch], lr: float) -> None:
    """Fit the class layer of a copy to the features that it has."""
    moving = [
        parameter.requires_grad_()
        for path, parameter in network[1].named_parameters()
        if path.startswith(tuple(state.class_layer))
    ]
    optimizer = torch.optim.SGD(moving, lr=lr, momentum=0.9)
    with torch.enable_grad():
        for batch in batches:
            optimizer.zero_grad()
            F.cross_entropy(network(batch.images).float(), batch.labels).backward()
            optimizer.step()


def _gains(network: nn.Sequential, path: str, batch: Batch) -> Tensor:
    """Return by how much the loss grows when each channel of a layer is set to zero, float32 ``(channels,)``."""

    @torch.no_grad()
    def loss(channel: int | None) -> tuple[float, int]:
        count = 0

        def change(module: nn.Module, inputs: Any, output: Tensor) -> Tensor | None:
            nonlocal count
            count = output.shape[1]
            if channel is None:
                return None
            changed = output.clone()
            changed[:, channel] = 0
            return changed

        handle = _layer(network, path).register_forward_hook(change)
        try:
            return float(F.cross_entropy(network(batch.images).float(), batch.labels)), count
        finally:
            handle.remove()

    before, count = loss(None)
    return batch.images.new_tensor(
        [loss(channel)[0] - before for channel in range(count)], dtype=torch.float32
    )

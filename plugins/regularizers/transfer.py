"""Transfer: keep the first layers of given weights, re-scaled to their initial norms, and draw the others anew.

Paper: Maennel et al. (2020), "What Do Neural Networks Learn When Trained With Random Labels?", Sec. 1.1, A.4, A.9,
    A.10: after pretraining the class layer is new, each layer is re-scaled to its norm at initialization, and for Fig.
    6 only the first layers are kept. The paper says that re-scaling does not affect predictions; with biases that holds
    only for ``scale_bias="cumulative"``.
Equations: w_l <- f_l w_l with f_l = |w_l at initialization| / |w_l|. In a chain of ReLU layers, b_l <- f_1 ... f_l b_l
    then multiplies the output of layer l by f_1 ... f_l.
Cost: none in a step; two passes of four images before the first.
Limits: re-scaling needs a chain of ReLU layers; it is tested before the first step, and other networks are refused.
    In the paper's setting for harm, transfer harmed at one seed of three only; with the
    dense layer of a short pretraining it harmed at every seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import accumulate
from operator import mul
from typing import Any

import attrs
import torch
from torch import Tensor, nn

from compatkit import SetUp, TaskState, hookimpl
from compatkit.errors import UnknownName, UsageError
from compatkit.foundation.limits import Number, OneOf
from compatkit.hooks import Register

from ._called_layers import CalledLayer, check_globs
from ._initial_weights import STREAM, check_scheme, draw, layers_of, norm_of

compatkit_api = 1
BIASES = ("cumulative", "same", "none")
TOLERANCE = 1e-4
"""Tolerance of the test that doubled layers double the output of a chain; sums in other orders differ slightly."""


@hookimpl
def compatkit_regularizers(register: Register) -> None:
    """Offer ``transfer``."""
    register("transfer", Transfer)


@torch.no_grad()
def rescale(layers: Sequence[CalledLayer], factors: Sequence[float], scale_bias: str = "cumulative") -> None:
    """Multiply the weights of layers by factors, and their biases so that the function keeps its form.

    Args:
        layers: Layers of a chain, in the order of their calls.
        factors: One a layer.
        scale_bias: ``"cumulative"``: by the product of all factors up to the layer, so that in a chain of ReLU layers
            every output is multiplied by that product; ``"same"``: by the layer's own, as the paper has it; ``"none"``.
    """
    products = list(accumulate(factors, mul))
    for called, factor, product in zip(layers, factors, products, strict=True):
        called.layer.weight.mul_(factor)
        if called.layer.bias is not None and scale_bias != "none":
            called.layer.bias.mul_(product if scale_bias == "cumulative" else factor)


def _mapping(value: object) -> Mapping[str, float] | None:
    if value is None:
        return None
    if not isinstance(value, Mapping) or not all(map(Number(above=0).takes, value.values())):
        raise UsageError(
            "transfer: norms is a table of norms above 0 by layer, such as scaled_init reports for each task; got "
            f"{value!r:.100}."
        )
    return dict(value)


@attrs.define(eq=False)
class Transfer:
    """Decides what a network that starts from given weights (``Task.weights``, or components) keeps of them.

    The class layer is drawn anew, unless the task keeps it. What is drawn anew has, for the same seed, the values that
    ``scaled_init`` gives it in a run from scratch.

    Attributes:
        first: How many convolutions and linear layers, in the order of their calls, are kept; None keeps all.
            Normalization is kept with the layer before it.
        fresh: Paths or globs of further layers to draw anew, such as ``["dense"]``.
        zero_biases: Whether the biases of kept layers become zero.
        norms: Norms to which the weights of kept layers are re-scaled, by layer; None changes none. Layers whose output
            is normalized are skipped: their scale has no effect.
        scale_bias: Treatment of biases then, see ``rescale``.
        scheme: Initialization of the other layers, as for ``scaled_init``.
        scale: Factor of their weights.
        layers: Further factors of theirs, by path or glob.
    """

    first: int | None = attrs.field(default=None, validator=Number(least=0, whole=True, optional=True))
    fresh: Sequence[str] = ()
    zero_biases: bool = False
    norms: Mapping[str, float] | None = attrs.field(default=None, converter=_mapping)
    scale_bias: str = attrs.field(default="cumulative", validator=OneOf(BIASES))
    scheme: str = "he"
    scale: float = 1.0
    layers: Mapping[str, float] = attrs.field(factory=dict)

    def __attrs_post_init__(self) -> None:
        """Check all settings."""
        check_scheme("transfer", self.scheme, self.scale, self.layers)
        if isinstance(self.fresh, str):
            raise UsageError(f"transfer: fresh is a list of layers, such as [{self.fresh!r}]; got one text.")

    @hookimpl
    def compatkit_set_up(self, setup: SetUp) -> None:
        """Check that there is something to transfer, and that it can be re-scaled.

        Raises:
            UsageError: A task starts from random weights, has fewer layers, or is no chain that can be re-scaled.
            UnknownName: A glob names no layer, or a norm is missing.
        """
        for state in setup.tasks.values():
            called, transferred = self._divided(state, setup)
            if state.task.weights is None and state.task.extractor is None:
                raise UsageError(
                    f"transfer keeps layers of given weights; task {state.name!r} starts from random ones. Give it "
                    "weights=fit.weights(...), or leave transfer out.",
                    subject=state.name,
                )
            self._check_drawn(state, called)
            check_globs("transfer", state, (*self.fresh, *self.layers), called)
            if self.norms is not None:
                moved = _moved(transferred)
                missing = [layer.path for layer in moved if layer.path not in self.norms]
                if missing:
                    raise UnknownName(
                        f"transfer: norms has no norm of {', '.join(missing)}, which task {state.name!r} keeps. Give "
                        "those of its weights at initialization, or name the layers in fresh.",
                        subject=missing[0],
                    )
                self._check_chain(state, setup, called, moved)

    @hookimpl
    def compatkit_pretrain(self, setup: SetUp) -> Mapping[str, Any]:
        """Re-scale and draw anew; return what was kept, drawn and skipped, and the factors, by task."""
        record: dict[str, Any] = {}
        for state in setup.tasks.values():
            layers, transferred = self._divided(state, setup)
            moved = _moved(transferred) if self.norms is not None else ()
            factors = (
                [self.norms[layer.path] / norm_of(layer) for layer in moved] if self.norms is not None else []
            )
            rescale(moved, factors, self.scale_bias)
            for called in transferred:
                if self.zero_biases and called.layer.bias is not None:
                    nn.init.zeros_(called.layer.bias)
            drawn = [layer for layer in layers if layer not in transferred]
            if state.task.keep_class_layer:
                drawn = [layer for layer in drawn if not f"{layer.path}.".startswith(state.class_layer)]
            for called in drawn:
                rng = setup.rng(STREAM, state.name, called.path)
                draw(called, self.scheme, self.scale, self.layers, rng)
            record[state.name] = {
                "kept": [layer.path for layer in transferred],
                "drawn": [layer.path for layer in drawn],
                "factors": {layer.path: factor for layer, factor in zip(moved, factors, strict=True)},
                "skipped": [layer.path for layer in transferred if layer.normed]
                if self.norms is not None
                else [],
            }
        return record

    def _divided(
        self, state: TaskState, setup: SetUp
    ) -> tuple[tuple[CalledLayer, ...], tuple[CalledLayer, ...]]:
        """Return all layers, and those that are kept, without the class layer."""
        layers = layers_of(state, setup)
        body = [layer for layer in layers if not f"{layer.path}.".startswith(state.class_layer)]
        if self.first is not None and self.first > len(body):
            raise UsageError(
                f"transfer: first={self.first}, and task {state.name!r} has {len(body)} convolutions and linear layers "
                f"before its class layer: {', '.join(layer.path for layer in body)}.",
                subject=state.name,
            )
        first = body if self.first is None else body[: self.first]
        transferred = [
            layer for layer in first if not any(fnmatchcase(layer.path, glob) for glob in self.fresh)
        ]
        return layers, tuple(transferred)

    def _check_drawn(self, state: TaskState, layers: Sequence[CalledLayer]) -> None:
        """Raise if layers are drawn anew beside parameters that no layer here has, and that would stay."""
        if self.first is None and not self.fresh:
            return
        modules = [module for layer in layers for module in (layer.layer, *layer.followers)]
        known = {id(parameter) for module in modules for parameter in module.parameters()}
        parameters = {**dict(state.extractor.named_parameters()), **dict(state.head.named_parameters())}
        others = [name for name, parameter in parameters.items() if id(parameter) not in known]
        if others:
            raise UsageError(
                f"transfer draws convolutions, linear layers and normalization anew; task {state.name!r} "
                f"({state.task.model}) has other parameters, whose layer is not known: {', '.join(others[:3])}. "
                "Keep all layers, or take another network.",
                subject=state.name,
            )

    @torch.no_grad()
    def _check_chain(
        self, state: TaskState, setup: SetUp, layers: Sequence[CalledLayer], moved: Sequence[CalledLayer]
    ) -> None:
        """Raise unless doubling each layer multiplies what the next layer is given by the product of the factors."""
        if not moved:
            return
        doubled = [2.0] * len(moved)
        before = _after(state, setup, layers, moved[-1])
        rescale(moved, doubled)
        try:
            after = _after(state, setup, layers, moved[-1])
        finally:
            rescale(moved, [0.5] * len(moved))
        expected = before * 2.0 ** len(moved)
        error = torch.linalg.vector_norm(after - expected) / torch.linalg.vector_norm(expected)
        if not error <= TOLERANCE:
            raise UsageError(
                f"transfer: there is no factor by which re-scaling multiplies the function of task {state.name!r} "
                f"({state.task.model}): doubling {', '.join(layer.path for layer in moved[:3])}, ... does not double "
                f"what follows (relative error {float(error):.2g}). Shortcuts, normalization and activations such as "
                "tanh do this. Set norms=None, as the paper does for residual networks.",
                subject=state.name,
            )


def _moved(layers: Sequence[CalledLayer]) -> tuple[CalledLayer, ...]:
    return tuple(layer for layer in layers if not layer.normed)


def _after(state: TaskState, setup: SetUp, layers: Sequence[CalledLayer], last: CalledLayer) -> Tensor:
    """Return what ``last`` gives for four random images in eval mode, and what the layer after it is given: ``(n,)``.

    The second is behind an activation, which may give zeros alone; the first is not.
    """
    caught: list[Tensor] = []
    handles = [last.layer.register_forward_hook(lambda _, inputs, result: caught.append(result.clone()))]
    for following in layers[layers.index(last) + 1 :][:1]:
        handles.append(
            following.layer.register_forward_pre_hook(lambda _, inputs: caught.append(inputs[0].clone()))
        )
    modes = [(module, module.training) for part in (state.extractor, state.head) for module in part.modules()]
    images = torch.randn(4, len(state.data.mean), *state.data.size, generator=setup.rng("transfer", "images"))
    try:
        state.head.eval()(state.extractor.eval()(images.to(setup.precision.device)))
    finally:
        for handle in handles:
            handle.remove()
        for module, was in modes:
            module.training = was
    return torch.cat([values.flatten().double() for values in caught])

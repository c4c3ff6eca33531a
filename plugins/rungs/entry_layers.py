"""The head's entry layers refitted to another extractor's features, and trained further; no layer is added.

Each linear layer A of the head that takes the features directly is replaced by the ridge regression from patches of the
new features (in A's receptive field) to A's output on the features of the head's own extractor.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from compatkit import hookimpl
from compatkit.components.bridges.rungs import (
    COLUMNS,
    Affine,
    RungFit,
    RungInputs,
    Window,
    norm_layers,
    ridge,
    usual_strength,
    widen_entry,
)
from compatkit.errors import IncompatibleError
from compatkit.hooks import Register

from ._training import train

compatkit_api = 1

INFORMING = {"lr": 2e-3, "steps": 150}
LINEAR = frozenset({"conv2d", "linear"})
SHAPE_QUERIES = frozenset({"__get__", "size", "dim", "is_floating_point", "numel", "stride", "is_contiguous"})
"""Functions that only read shape or dtype of the features."""


@hookimpl
def compatkit_rungs(register: Register) -> None:
    """Offer ``absorbed`` and ``infomax``."""
    register("absorbed", absorbed)
    register("infomax", informed)


def absorbed(inputs: RungInputs) -> RungFit:
    """Return the head with refitted entry layers.

    Raises:
        IncompatibleError: The features enter something other than linear layers, or these are too wide.
    """
    head, channels, strength = inputs.head(), inputs.widths[0], usual_strength(inputs.images)
    entry_layers = entries(head, next(inputs.pairs())[1].clone())
    changed, residuals = dict[str, int](), list[float]()
    for entry in entry_layers:
        columns = channels * entry.window.size
        if columns > COLUMNS:
            raise IncompatibleError(
                f"The head's layer {entry.path} needs patches of {columns:,} values; at most {COLUMNS:,} are supported."
            )
        fitted = ridge(inputs.moments_of(entry.window, copy.deepcopy(entry.layer)), strength)
        residuals.append(fitted.residual)
        if _replace(head, entry, fitted, channels):
            changed[entry.path] = channels
    facts = {"strength": strength, "layers": [entry.path for entry in entry_layers]}
    facts["residual"] = sum(residuals) / len(residuals)
    return RungFit(head=head, facts=facts, entries=changed)


def informed(inputs: RungInputs) -> RungFit:
    """Return the head trained by information maximization.

    Minimizes mean H(p_x) - H(mean p_x) over scales and shifts of batch normalization and the head's entry layers
    (Krause, Perona and Gomes 2010; as SHOT, Liang et al. 2020). Assumes classes of equal size.
    """
    start = absorbed(inputs)
    head: nn.Module = copy.deepcopy(start.head)  # type: ignore[assignment]
    layers = [*(head.get_submodule(path) for path in start.facts["layers"]), *norm_layers(head)]
    weights = [weight for layer in layers for weight in layer.parameters()]
    train(head, weights, inputs.features(), lambda logits, _: information(logits), INFORMING, inputs.seed)
    facts = {name: start.facts[name] for name in ("strength", "layers", "residual")}
    return RungFit(
        head=head, facts={**facts, **INFORMING, "seed": inputs.seed}, entries=start.entries, start=start
    )


def information(logits: Tensor) -> Tensor:
    """Return mean H(p_x) - H(mean p_x) in nats, low for confident and balanced predictions ``(n, outputs)``.

    Returns:
        A scalar.
    """
    logs = logits.log_softmax(dim=1)
    mean = logs.exp().mean(dim=0)
    return torch.special.entr(mean).sum().neg() - (logs.exp() * logs).sum(dim=1).mean()


@attrs.frozen(eq=False)
class EntryLayer:
    """A linear layer that takes the features.

    Attributes:
        path: Its path in the head.
        layer: The layer.
        normalized: Path of the batch normalization that is the only user of its output; else empty.
    """

    path: str
    layer: nn.Conv2d | nn.Linear
    normalized: str = ""

    @property
    def window(self) -> Window:
        """Receptive field of one position."""
        if isinstance(self.layer, nn.Linear):
            return Window()
        sides = (self.layer.kernel_size, self.layer.stride, self.layer.padding, self.layer.dilation)
        return Window(*((int(a), int(b)) for a, b in sides))


def entries(head: nn.Module, features: Tensor) -> list[EntryLayer]:
    """Return the linear layers that take the features, found by running the head.

    Args:
        head: Run once, in eval mode.
        features: Features of some images, as the head takes them, ``(n, c, h, w)`` or ``(n, c)``.

    Raises:
        IncompatibleError: Something else takes them, too.
    """
    outputs: dict[str, Tensor] = {}
    normed: list[tuple[Tensor, str]] = []
    layers = {id(item) for item in norm_layers(head)}
    handles: list[Any] = []
    for path, module in head.named_modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            handles.append(module.register_forward_hook(_record_output(path, features, outputs)))
        elif id(module) in layers:
            handles.append(module.register_forward_pre_hook(_record_norm(path, normed)))
    uses = _Uses(features, outputs)
    try:
        with torch.no_grad(), uses:
            head(features)
    finally:
        for item in handles:
            item.remove()
    modules = dict(head.named_modules())
    entry_layers = [EntryLayer(path, modules[path], uses.norm_of(path, normed)) for path in outputs]  # type: ignore[arg-type]
    other = sorted(uses.other)
    odd = [item.path for item in entry_layers if not _plain(item.layer)]
    if other or odd or not entry_layers or uses.linear != len(entry_layers):
        what = ", ".join(other or odd) or "functions that are no layers"
        raise IncompatibleError(
            f"The features enter {what}; only linear layers of the head can be refitted. Use the rung ridge."
        )
    return entry_layers


class _Uses(TorchFunctionMode):
    """Records every function called on the features, or on the output of a layer that takes them."""

    def __init__(self, features: Tensor, outputs: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.features, self.outputs, self.linear = features, outputs, 0
        self.other: set[str] = set()
        self.takers: dict[str, list[str]] = {}

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        values = [value for argument in (*args, *kwargs.values()) for value in _flattened(argument)]
        name = getattr(func, "__name__", str(func))
        if any(value is self.features for value in values):
            if name in LINEAR:
                self.linear += 1
            elif name not in SHAPE_QUERIES:
                self.other.add(name)
        for path, out in self.outputs.items():
            if name not in SHAPE_QUERIES and any(value is out for value in values):
                self.takers.setdefault(path, []).append(name)
        return func(*args, **kwargs)

    def norm_of(self, path: str, normed: Sequence[tuple[Tensor, str]]) -> str:
        """Return the batch normalization that can hold a layer's bias, as the only user of its output."""
        names = [norm for out, norm in normed if out is self.outputs[path]]
        alone = len(names) == 1 and [norm for _, norm in normed].count(names[0]) == 1
        return names[0] if alone and self.takers.get(path) == ["batch_norm"] else ""


def _flattened(value: Any) -> Sequence[Any]:
    """Return the values of one argument: tensors may come in a list, as for a concatenation."""
    return value if isinstance(value, list | tuple) else (value,)


def _record_output(path: str, features: Tensor, outputs: dict[str, Tensor]) -> Callable[..., None]:
    def note(module: nn.Module, args: tuple[Any, ...], out: Tensor) -> None:
        if args and args[0] is features:
            outputs[path] = out

    return note


def _record_norm(path: str, normed: list[tuple[Tensor, str]]) -> Callable[..., None]:
    def note(module: nn.Module, args: tuple[Any, ...]) -> None:
        normed.append((args[0], path))

    return note


def _plain(layer: nn.Conv2d | nn.Linear) -> bool:
    if isinstance(layer, nn.Linear):
        return True
    return layer.groups == 1 and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)


def _replace(head: nn.Module, entry: EntryLayer, fitted: Affine, channels: int) -> bool:
    """Set the fitted weights; return whether the layer's form has changed."""
    layer, weight, bias = entry.layer, fitted.weight.T.float(), fitted.bias.float()
    if isinstance(layer, nn.Conv2d):
        weight = weight.unflatten(1, (channels, *layer.kernel_size))
    changed = weight.shape != layer.weight.shape or (layer.bias is None and not entry.normalized)
    if changed:
        layer = widen_entry(head, entry.path, channels)
    with torch.no_grad():
        layer.weight.copy_(weight)
        if layer.bias is not None:
            layer.bias.copy_(bias)
        else:
            _fold(head.get_submodule(entry.normalized), bias)
    return changed


def _fold(norm: nn.Module, bias: Tensor) -> None:
    """Move a bias into the mean of batch normalization."""
    mean = norm.running_mean
    if isinstance(mean, Tensor):
        mean -= bias

"""The absorbed bridge: refit the head's entry layers to another extractor's features; no layer is added.

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

from compatkit.adapters.alignment.maps import Affine, ridge, usual_strength
from compatkit.adapters.alignment.positions import Window
from compatkit.adapters.stitching.widths import widen_entry
from compatkit.adapters.watching import FunctionWatch
from compatkit.components.bridges.closed import COLUMNS, Candidate
from compatkit.components.bridges.inputs import BridgeInputs
from compatkit.components.projecting import moments_of
from compatkit.errors import IncompatibleError
from compatkit.evaluation.normalization import norm_layers

LINEAR = frozenset({"conv2d", "linear"})
SHAPE_QUERIES = frozenset({"__get__", "size", "dim", "is_floating_point", "numel", "stride", "is_contiguous"})
"""Functions that only read shape or dtype of the features."""


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


def absorbed(inputs: BridgeInputs) -> Candidate:
    """Return the head with refitted entry layers.

    Raises:
        IncompatibleError: The features enter something other than linear layers, or these are too wide.
    """
    _, target = next(iter(inputs.paired))[:2]
    head = copy.deepcopy(inputs.head.module).eval()
    entry_layers = entries(head, target)
    strength, changed = usual_strength(len(inputs.pairs)), list[tuple[str, int]]()
    residuals: list[float] = []
    for entry in entry_layers:
        columns = inputs.widths[0] * entry.window.size
        if columns > COLUMNS:
            raise IncompatibleError(
                f"The head's layer {entry.path} needs patches of {columns:,} values; at most {COLUMNS:,} are supported."
            )
        old = copy.deepcopy(entry.layer)
        pairs = ((pair[0], pair[1]) for pair in inputs.paired)
        with torch.no_grad():
            moments = moments_of(
                pairs, inputs.layout, len(inputs.pairs), window=entry.window, aim=old, seed=inputs.seed
            )
        fitted = ridge(moments, strength)
        residuals.append(fitted.residual)
        if _replace(head, entry, fitted, inputs.widths[0]):
            changed.append((entry.path, inputs.widths[0]))
    facts = {"method": "absorbed", "strength": strength, "layers": [entry.path for entry in entry_layers]}
    facts["residual"] = sum(residuals) / len(residuals)
    return Candidate(inputs, head, None, facts, refitted=True, entries=tuple(changed)).estimated()


def entries(head: nn.Module, features: Tensor) -> list[EntryLayer]:
    """Return the linear layers that take the features, found by running the head.

    Args:
        head: Run once, in eval mode.
        features: Of some images, as the head takes them, ``(n, c, h, w)`` or ``(n, c)``.

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


class _Uses(FunctionWatch):
    """Records every function called on the features, or on the output of a layer that takes them."""

    def __init__(self, features: Tensor, outputs: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.features, self.outputs, self.linear = features, outputs, 0
        self.other: set[str] = set()
        self.takers: dict[str, list[str]] = {}

    def called(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
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

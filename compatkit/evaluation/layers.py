"""Record copies of the inputs and outputs of named layers with hooks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from typing import Any

import attrs
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from compatkit.errors import DataError, UnknownName
from compatkit.plugins.isolation import suggestion

SHOWN = 30
"""Largest number of layers in a message."""


def layers_of(parts: Mapping[str, nn.Module]) -> dict[str, nn.Module]:
    """Return all modules of a network by path.

    Args:
        parts: The network under the name ``""``, or its parts by name. Modules keep their paths in the complete
            network; if two parts have the same path, it becomes ``<part>.<path>``. A part that is a single layer, such
            as an adapter, has its part's name.
    """
    modules = [
        (part, path or part, submodule)
        for part, module in parts.items()
        for path, submodule in module.named_modules()
        if path or (part and not any(module.children()))
    ]
    times = Counter(path for _, path, _ in modules)
    return {path if times[path] == 1 else f"{part}.{path}": module for part, path, module in modules}


def listed(known: Mapping[str, nn.Module]) -> str:
    """Return the first layer names and their number, for a message."""
    more = f", ... ({len(known)} in all)" if len(known) > SHOWN else ""
    return ", ".join(list(known)[:SHOWN]) + more


def choose(known: Mapping[str, nn.Module], wanted: Sequence[str]) -> dict[str, nn.Module]:
    """Return the selected layers in the order of the network.

    Args:
        known: All layers by name.
        wanted: Names or globs such as ``layer1.*``; a glob leaves out containers that cannot be called, such as
            ``nn.ModuleList``.

    Raises:
        UnknownName: A name or glob matches no layer.
    """
    for pattern in wanted:
        if pattern not in known and not any(fnmatchcase(name, pattern) for name in known):
            raise UnknownName(
                f"The network has no layer {pattern!r}.{suggestion(pattern, known)} Its layers are {listed(known)}.",
                subject=pattern,
            )

    def is_chosen(name: str, module: nn.Module) -> bool:
        callable_module = type(module).forward is not nn.Module.forward
        return name in wanted or (callable_module and any(fnmatchcase(name, pattern) for pattern in wanted))

    return {name: module for name, module in known.items() if is_chosen(name, module)}


@attrs.define(eq=False)
class LayerRecord:
    """Copies of the inputs and outputs of layers in one pass.

    A layer called once is recorded under its name, one called several times under ``name#1``, ``name#2``, ...
    """

    wants_inputs: bool
    wants_outputs: bool
    _calls: dict[str, list[tuple[Tensor | None, Tensor | None]]] = attrs.field(factory=dict)
    _shapes: dict[str, tuple[tuple[int, ...], ...]] = attrs.field(factory=dict)

    def clear(self) -> None:
        """Drop what was recorded, such as a pass of another network that has the same layers."""
        for calls in self._calls.values():
            calls.clear()

    def take(self, batch: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return inputs and outputs of the completed pass by name, and clear the record.

        Args:
            batch: Number of the batch, from 1, for messages.

        Returns:
            Tensors ``(batch, ...)`` of each layer.

        Raises:
            DataError: A layer was not called, was called differently than before, or a value is not finite.
        """
        inputs: dict[str, Tensor] = {}
        outputs: dict[str, Tensor] = {}
        for name, calls in self._calls.items():
            if not calls:
                raise DataError(
                    f"The layer {name!r} was not called in batch {batch}. Name layers inside it, or others.",
                    subject=name,
                )
            for number, (layer_input, returned) in enumerate(calls, 1):
                full = name if len(calls) == 1 else f"{name}#{number}"
                for kind, value, target in (("given", layer_input, inputs), ("giving", returned, outputs)):
                    if value is not None:
                        _check_finite(value, full, kind, batch)
                        target[full] = value
            shapes = tuple(tuple(tensor.shape[1:]) for pair in calls for tensor in pair if tensor is not None)
            if self._shapes.setdefault(name, shapes) != shapes:
                raise DataError(
                    f"The layer {name!r} had shapes {list(self._shapes[name])} in the first batch and {list(shapes)} "
                    f"in batch {batch}. Use images of one size."
                )
            calls.clear()
        return inputs, outputs


@contextmanager
def recording(layers: Mapping[str, nn.Module], *, inputs: bool, outputs: bool) -> Iterator[LayerRecord]:
    """Record layers until the block ends.

    Values are copied at once, because later layers may change them in place.

    Args:
        layers: Layers by name.
        inputs: Whether to record inputs.
        outputs: Whether to record outputs.
    """
    record = LayerRecord(inputs, outputs, {name: [] for name in layers})
    waiting: dict[str, list[Tensor | None]] = {name: [] for name in layers}

    def before(name: str) -> Any:
        def hook(module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
            value = _first((*arguments, *keywords.values())) if inputs else None
            waiting[name].append(None if value is None else value.detach().clone())

        return hook

    def after(name: str) -> Any:
        def hook(module: nn.Module, arguments: tuple[Any, ...], returned: Any) -> None:
            value = _first((returned,)) if outputs else None
            record._calls[name].append(
                (waiting[name].pop(), None if value is None else value.detach().clone())
            )

        return hook

    handles = []
    try:
        for name, module in layers.items():
            handles.append(module.register_forward_pre_hook(before(name), with_kwargs=True))
            handles.append(module.register_forward_hook(after(name), prepend=True))
        yield record
    finally:
        for handle in handles:
            handle.remove()


def _first(values: tuple[Any, ...]) -> Tensor | None:
    """Return the first tensor in nested values."""
    return next((value for value in tree_leaves(values) if isinstance(value, Tensor)), None)


def _check_finite(value: Tensor, name: str, kind: str, batch: int) -> None:
    count = int((~torch.isfinite(value)).sum()) if value.is_floating_point() else 0
    if count:
        verb = "is given" if kind == "given" else "gives"
        raise DataError(
            f"The layer {name!r} {verb} {count:,} non-finite values of {value.numel():,}, first in batch {batch}. "
            "Check its weights, or measure in float32.",
            subject=name,
        )

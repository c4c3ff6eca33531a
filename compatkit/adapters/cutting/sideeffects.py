"""Detect side effects of a forward pass: tensors assigned, resized or added, and state in plain attributes.

Parts, checkpoints and averages refer to a network's tensors by name and change them in place. A forward pass that
assigns another tensor to a name, such as ``self.calls = self.calls + 1``, leaves them with the old one.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator

import attrs
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from compatkit.errors import CutError

_DICTS = ("_buffers", "_parameters")
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
SHOWN = 3
"""Names listed in a message."""


@attrs.frozen(eq=False)
class RegisteredTensors:
    """The parameters and buffers of a network before a forward pass.

    Attributes:
        modules: Path, module, name of the dictionary, its tensors by name, and their shapes.
    """

    modules: tuple[tuple[str, nn.Module, str, dict[str, Tensor | None], dict[str, tuple[int, ...]]], ...]

    @classmethod
    def of(cls, *networks: nn.Module) -> RegisteredTensors:
        """Return the current tensors of networks."""
        return cls(
            tuple(
                (path, module, kind, dict(vars(module)[kind]), _shapes(vars(module)[kind]))
                for network in networks
                for path, module in network.named_modules()
                for kind in _DICTS
            )
        )

    def changed(self) -> list[str]:
        """Return the names of tensors that were assigned, added, removed or resized since."""
        names: list[str] = []
        for path, module, kind, tensors, shapes in self.modules:
            current = vars(module)[kind]
            for name in dict.fromkeys((*tensors, *current)):
                same = name in current and name in tensors and current[name] is tensors[name]
                if not same or (current[name] is not None and tuple(current[name].shape) != shapes[name]):
                    names.append(f"{path}.{name}" if path else name)
        return list(dict.fromkeys(names))

    def restore(self) -> None:
        """Register the tensors under their names again."""
        for _, module, kind, tensors, _ in self.modules:
            current = vars(module)[kind]
            if current.keys() != tensors.keys() or any(
                current[name] is not tensors[name] for name in tensors
            ):
                current.clear()
                current.update(tensors)

    def check(self, network: nn.Module) -> None:
        """Restore the tensors and raise if a forward pass changed any.

        Args:
            network: The network, for the message.

        Raises:
            CutError: A buffer or parameter was changed; ``subject`` is the first.
        """
        if names := self.changed():
            self.restore()
            raise CutError(
                f"The forward pass of {type(network).__name__} assigns, adds or resizes {_shortened(names)}, which "
                "parts, checkpoints and averages hold by name and shape. Register it in __init__ with its final shape, "
                f"and write into it in place: self.{names[0].rpartition('.')[2]}.copy_(...), or .add_(1) of a counter.",
                subject=names[0],
            )


def check_buildable(network: nn.Module, model: str) -> None:
    """Check that a network has no lazy layers and no hooks of its own.

    Args:
        network: Network of a builder.
        model: Name of the network.

    Raises:
        CutError: The network has lazy layers or hooks; ``subject`` is the module's path.
    """
    for path, module in network.named_modules():
        own = (*module.parameters(recurse=False), *module.buffers(recurse=False))
        if any(map(is_lazy, own)):
            raise CutError(
                f"{model} has the lazy layer {path!r} ({type(module).__name__}), whose shapes are not known before the "
                "first image, so that no part can be stored or rebuilt. Let the builder give its shapes: Conv2d(in, "
                "out, ...) in place of LazyConv2d(out, ...).",
                subject=path,
            )
    hooks = [name.strip("_").replace("_", " ") for name in _HOOKS if getattr(network, name, None)]
    if hooks:
        raise CutError(
            f"{model} has {hooks[0]} on the whole network, which no part would run. Move their code to forward, or "
            "register them on a layer.",
            subject=model,
        )


def copied(network: nn.Module) -> nn.Module:
    """Return a deep copy of a network, also after forward passes that assign computed tensors to its modules.

    ``torch.nn.utils.weight_norm`` and ``spectral_norm`` compute ``weight`` in each pass; the copy gets its values
    without the autograd graph, which torch cannot copy.

    Args:
        network: The network, in any mode and on any device; it is not changed.
    """
    computed = {
        id(value): value.detach().clone()
        for module in network.modules()
        for value in vars(module).values()
        if isinstance(value, Tensor) and not value.is_leaf
    }
    return copy.deepcopy(network, computed)


def differing_state(network: nn.Module, other: nn.Module) -> Iterator[str]:
    """Yield the names of tensors and numbers outside the state dict that differ between two networks.

    Args:
        network: A network.
        other: Network built from the same blueprint.
    """
    others = dict(other.named_modules())
    for path, module in network.named_modules():
        left, right = _unsaved_state(module), _unsaved_state(others[path]) if path in others else {}
        for name in dict.fromkeys((*left, *right)):
            if not _equal(left.get(name), right.get(name)):
                yield f"{path}.{name}" if path else name


def changed_attributes(network: nn.Module, before: dict[str, dict[str, object]]) -> list[str]:
    """Return the names of plain attributes that a forward pass changed.

    Args:
        network: The network after the pass.
        before: Result of ``attributes`` before the pass.
    """
    return [
        f"{path}.{name}" if path else name
        for path, current in attributes(network).items()
        for name, value in current.items()
        if not _equal(value, before.get(path, {}).get(name))
    ]


def attributes(network: nn.Module) -> dict[str, dict[str, object]]:
    """Return the numbers and tensors in plain attributes of modules, by path and name."""
    return {path: _plain(module) for path, module in network.named_modules()}


def _unsaved_state(module: nn.Module) -> dict[str, object]:
    names = module._non_persistent_buffers_set
    return {**{name: buffer for name, buffer in module._buffers.items() if name in names}, **_plain(module)}


def _plain(module: nn.Module) -> dict[str, object]:
    return {
        name: value
        for name, value in vars(module).items()
        if name != "training" and isinstance(value, Tensor | bool | int | float)
    }


def _equal(value: object, other: object) -> bool:
    if isinstance(value, Tensor) and isinstance(other, Tensor):
        left, right = value.detach().cpu(), other.detach().cpu()
        return left.shape == right.shape and left.dtype == right.dtype and equal(left, right)
    return type(value) is type(other) and bool(value == other or value != value)


def equal(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors are equal; NaN equals NaN."""
    return torch.equal(a, b) or (a.shape == b.shape and bool(((a == b) | (a.isnan() & b.isnan())).all()))


def _shapes(tensors: dict[str, Tensor | None]) -> dict[str, tuple[int, ...]]:
    return {
        name: () if tensor is None or is_lazy(tensor) else tuple(tensor.shape)
        for name, tensor in tensors.items()
    }


def _shortened(names: list[str]) -> str:
    return ", ".join(map(repr, names[:SHOWN])) + (
        f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    )

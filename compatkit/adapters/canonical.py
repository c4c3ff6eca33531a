"""Cut at timm's own seam, ``forward_features`` | ``forward_head``, without tracing.

Each part is the network itself without the other part's layers: an instance of a subclass whose ``forward`` is
one of the two methods. Which layer belongs where is seen in one forward pass.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from compatkit.adapters.ownership import Side, owners, state_of
from compatkit.adapters.signals import signal
from compatkit.errors import CutError

METHODS: dict[Side, str] = {"extractor": "forward_features", "head": "forward_head"}


def cut_canonical(whole: nn.Module, split: str, image: tuple[int, ...]) -> tuple[nn.Module, nn.Module]:
    """Return the network up to ``forward_features`` and from ``forward_head`` on.

    Args:
        whole: A network with timm's interface.
        split: The name of this cut, for messages.
        image: (channels, height, width) of the forward pass that shows which layer belongs where.

    Raises:
        CutError: Something else than one tensor crosses, a parameter is used on both sides, or the network does
            not take such an image.
    """
    modes = [(module, module.training) for module in whole.modules()]
    whole.eval()
    try:
        with torch.no_grad():
            left, features = _uses(whole, "forward_features", signal((2, *image)))
            if not isinstance(features, Tensor):
                raise CutError(
                    f"forward_features of {type(whole).__name__} gives a {type(features).__name__}; a cut passes one "
                    "tensor. Name a module path as split point.",
                    subject=split,
                )
            right, _ = _uses(whole, "forward_head", features)
    finally:
        for module, mode in modes:
            module.training = mode
    sides = owners(whole, {"extractor": left, "head": right}, None)
    extractor, head = (_without_other(whole, "", sides, side) for side in METHODS)
    for part, side in ((extractor, "extractor"), (head, "head")):
        part.__class__ = _side_class(type(whole), side)
    return extractor, head


class _Record(TorchFunctionMode):
    """Notes the id of every tensor that a torch function receives."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[int] = set()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        self.seen.update(id(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor))
        return func(*args, **(kwargs or {}))


def _uses(whole: nn.Module, method: str, x: Tensor) -> tuple[set[int], Any]:
    """Return the ids of the parameters and buffers that a method uses, and its result."""
    record = _Record()
    try:
        with record:
            result = getattr(whole, method)(x)
    except Exception as error:  # foreign code may raise anything
        raise CutError(
            f"{method} of {type(whole).__name__} fails for {' x '.join(map(str, x.shape))} input: {error}",
            subject=method,
        ) from error
    # Other tensors may take the id of one that is gone; those of the network stay alive.
    return record.seen & {id(tensor) for tensor in state_of(whole).values()}, result


def _without_other(module: nn.Module, path: str, sides: Mapping[str, Side], side: Side) -> nn.Module:
    """Return a copy of the module that shares all tensors and lacks those of the other side.

    A submodule is left out where all it holds belongs to the other side, kept as it is where nothing does,
    and copied likewise where both sides have something in it.
    """
    copied = object.__new__(type(module))
    for name, value in module.__dict__.items():
        own = name.startswith("_") and isinstance(value, dict | set)
        copied.__dict__[name] = value.copy() if own else value
    for kind in ("_parameters", "_buffers"):
        held = copied.__dict__[kind]
        for name in [n for n, value in held.items() if value is not None and sides[path + n] != side]:
            # The attribute stays, as code may ask whether it is None.
            held[name] = None
    for name, child in module._modules.items():
        if child is None:
            continue
        prefix = f"{path}{name}."
        found = {owner for key, owner in sides.items() if key.startswith(prefix)}
        if found and side not in found:
            del copied._modules[name]
        elif len(found) > 1:
            copied._modules[name] = _without_other(child, prefix, sides, side)
    return copied


@functools.cache
def _side_class(cls: type[nn.Module], side: Side) -> type[nn.Module]:
    """Return the subclass whose forward is the side's method."""
    method = METHODS[side]

    def forward(self: Any, x: Tensor) -> Tensor:
        return getattr(self, method)(x)

    forward.__doc__ = f"Call ``{method}``."
    return type(
        f"{cls.__name__}{side.capitalize()}", (cls,), {"forward": forward, "__module__": cls.__module__}
    )

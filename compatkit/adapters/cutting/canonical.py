"""Cut at timm's own seam, ``forward_features`` | ``forward_head``, without tracing.

Each part is the network itself without the other part's layers: an instance of a subclass whose ``forward`` is
one of the two methods. Which layer belongs where is seen in one forward pass.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_unflatten

from compatkit.adapters.cutting.crossing import MOST
from compatkit.adapters.cutting.ownership import Part, owners, state_of
from compatkit.adapters.cutting.proof import modes_kept
from compatkit.adapters.cutting.signals import signal
from compatkit.errors import CutError

METHODS: dict[Part, str] = {"extractor": "forward_features", "head": "forward_head"}


def cut_canonical(whole: nn.Module, split: str, image: tuple[int, ...]) -> tuple[nn.Module, nn.Module]:
    """Return the network up to ``forward_features`` and from ``forward_head`` on.

    Args:
        whole: A network with timm's interface.
        split: The name of this cut, for messages.
        image: (channels, height, width) of the forward pass that shows which layer belongs where.

    Raises:
        CutError: No tensor crosses, or too many; a parameter is used on both sides, or the network does
            not take such an image.
    """
    with modes_kept(whole), torch.no_grad():
        whole.eval()
        left, features = _uses(whole, "forward_features", signal((1, *image)))
        right, _ = _uses(whole, "forward_head", features)
    sides = owners(whole, {"extractor": left, "head": right}, None)
    extractor, head = (without_other(whole, "", sides, side) for side in METHODS)
    seam = _Seam.of(features, type(whole).__name__, split)
    for part, side in ((extractor, "extractor"), (head, "head")):
        part.__class__ = _side_class(type(whole), side)
        part.__dict__.update(seam=seam, port_names=seam.names)
    return extractor, head


@attrs.frozen(eq=False)
class _Seam:
    """How what ``forward_features`` gives is taken apart into tensors, and put together again.

    Attributes:
        spec: The structure.
        constants: What is no tensor, by place among the leaves.
        names: Of the tensors, in order.
    """

    spec: TreeSpec
    constants: Mapping[int, Any]
    names: tuple[str, ...]

    @classmethod
    def of(cls, features: Any, whose: str, split: str) -> _Seam:
        """Learn the structure from an example.

        Raises:
            CutError: It holds no tensor, or more than can be declared.
        """
        leaves, spec = tree_flatten(features)
        count = sum(isinstance(leaf, Tensor) for leaf in leaves)
        if not 0 < count <= MOST:
            raise CutError(
                f"forward_features of {whose} gives {count} tensors; a cut passes 1 to {MOST}. Name a module path as "
                "split point.",
                subject=split,
            )
        constants = {index: leaf for index, leaf in enumerate(leaves) if not isinstance(leaf, Tensor)}
        names = ("features",) if count == 1 else tuple(f"features.{index}" for index in range(count))
        return cls(spec, constants, names)

    def apart(self, features: Any) -> Any:
        """Return the tensors: one alone, or a tuple."""
        if isinstance(features, Tensor):
            return features
        tensors = tuple(leaf for leaf in tree_leaves(features) if isinstance(leaf, Tensor))
        return tensors[0] if len(tensors) == 1 else tensors

    def together(self, x: Tensor | Sequence[Tensor]) -> Any:
        """Return what ``forward_head`` takes."""
        given = iter((x,) if isinstance(x, Tensor) else x)
        count = len(self.names) + len(self.constants)
        return tree_unflatten(
            [self.constants[i] if i in self.constants else next(given) for i in range(count)], self.spec
        )


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


def without_other(
    module: nn.Module, path: str, sides: Mapping[str, Part], side: Part, *, named: bool = False
) -> nn.Module:
    """Return a copy of the module that shares all tensors and lacks those of the other side.

    A submodule is left out where all it holds belongs to the other side, kept as it is where nothing does,
    and copied likewise where both sides have something in it.

    Args:
        module: The network, or a module of it.
        path: Where it stands, with a dot at the end; empty for the network.
        sides: Side of every parameter and buffer.
        side: What is kept.
        named: Leave an empty module in the place of one that is left out, for code that names it.
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
            if named:
                copied._modules[name] = nn.Module()
        elif len(found) > 1:
            copied._modules[name] = without_other(child, prefix, sides, side, named=named)
    return copied


@functools.cache
def _side_class(cls: type[nn.Module], side: Part) -> type[nn.Module]:
    """Return the subclass whose forward is the side's method."""

    def extract(self: Any, x: Tensor) -> Any:
        """Call ``forward_features``; several tensors are one tuple."""
        return self.seam.apart(self.forward_features(x))

    def classify(self: Any, x: Tensor | Sequence[Tensor]) -> Tensor:
        """Call ``forward_head``."""
        return self.forward_head(self.seam.together(x))

    forward = extract if side == "extractor" else classify
    return type(
        f"{cls.__name__}{side.capitalize()}", (cls,), {"forward": forward, "__module__": cls.__module__}
    )

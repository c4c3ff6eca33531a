"""Parts that are the network itself without the other part's layers, made without a graph.

The canonical cut, ``forward_features`` | ``forward_head``, is timm's own cut: each part is an instance of a subclass
whose ``forward`` is one of the two methods, and one forward pass shows which layer belongs where. A stopped extractor
runs the network's own code and leaves it at the cut module: code that branches on the image's size, such as the
resampling of position embeddings, cannot be traced for all sizes at once, and need not be where it ends before the cut.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor, nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_unflatten

from compatkit.adapters.cutting.crossing import MOST
from compatkit.adapters.cutting.ownership import Part, owners, state_of
from compatkit.adapters.cutting.proof import modes_kept
from compatkit.adapters.cutting.signals import signal
from compatkit.adapters.functionmode import FunctionWatch
from compatkit.errors import CutError


@attrs.frozen(eq=False)
class CanonicalSide:
    """One side of ``forward_features`` | ``forward_head``.

    Attributes:
        side: Which one.
        sides: Side of every parameter and buffer, by name.
        seam: What crosses.
    """

    side: Part
    sides: Mapping[str, Part]
    seam: Seam

    def __call__(self, whole: nn.Module) -> nn.Module:
        """Return the part of this network; it shares the network's tensors."""
        part = without_other(whole, "", self.sides, self.side)
        part.__class__ = _side_class(type(whole), self.side)
        part.__dict__.update(seam=self.seam, port_names=self.seam.names)
        return part


@attrs.frozen(eq=False)
class StoppedSide:
    """An extractor that gives what the module ``split`` gives.

    Attributes:
        cut: Path of the cut module.
        sides: Side of every parameter and buffer, by name.
        names: Of the feature ports, in order.
    """

    cut: str
    sides: Mapping[str, Part]
    names: tuple[str, ...]

    def __call__(self, whole: nn.Module) -> nn.Module:
        """Return the network without the head's layers; it shares the network's tensors."""
        extractor = without_other(whole, "", self.sides, "extractor", named=True)
        extractor.__class__ = _stopping_class(type(whole))
        extractor.__dict__.update(stops_at=self.cut, port_names=self.names)
        return extractor


def canonical_sides(whole: nn.Module, cut: str, image: tuple[int, ...]) -> dict[Part, CanonicalSide]:
    """Find which layers ``forward_features`` uses and which ``forward_head``.

    Args:
        whole: A network with timm's interface.
        cut: The name of this cut, for messages.
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
    seam = Seam.of(features, type(whole).__name__, cut)
    return {"extractor": CanonicalSide("extractor", sides, seam), "head": CanonicalSide("head", sides, seam)}


@attrs.frozen(eq=False)
class Seam:
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
    def of(cls, features: Any, network: str, cut: str) -> Seam:
        """Learn the structure from an example.

        Args:
            features: What ``forward_features`` gave: tensors in lists, tuples or mappings.
            network: Name of the model, for messages.
            cut: The cut, for messages.

        Raises:
            CutError: It holds no tensor, or more than can be declared.
        """
        leaves, spec = tree_flatten(features)
        count = sum(isinstance(leaf, Tensor) for leaf in leaves)
        if not 0 < count <= MOST:
            raise CutError(
                f"forward_features of {network} gives {count} tensors; a cut passes 1 to {MOST}. Name a module path as "
                "cut.",
                subject=cut,
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
        tensors = iter((x,) if isinstance(x, Tensor) else x)
        count = len(self.names) + len(self.constants)
        return tree_unflatten(
            [self.constants[i] if i in self.constants else next(tensors) for i in range(count)], self.spec
        )


class _Record(FunctionWatch):
    """Notes the id of every tensor that a torch function receives."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[int] = set()

    def called(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        self.seen.update(id(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor))
        return func(*args, **kwargs)


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
        members = copied.__dict__[kind]
        for name in [n for n, value in members.items() if value is not None and sides[path + n] != side]:
            # The attribute stays, as code may ask whether it is None.
            members[name] = None
    for name, child in module._modules.items():
        if child is None:
            continue
        prefix = f"{path}{name}."
        owners = {owner for key, owner in sides.items() if key.startswith(prefix)}
        if owners and side not in owners:
            del copied._modules[name]
            if named:
                copied._modules[name] = nn.Module()
        elif len(owners) > 1:
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


class _Reached(Exception):
    """Carries the output of the cut module out of the network's code."""

    def __init__(self, output: Any) -> None:
        super().__init__()
        self.output = output


def _stop(module: nn.Module, args: Any, output: Any) -> None:
    raise _Reached(output)


@functools.cache
def _stopping_class(cls: type[nn.Module]) -> type[nn.Module]:
    def forward(self: Any, x: Tensor) -> Any:
        """Images to features; several features are one tuple."""
        # The module is the whole network's own, so the hook stays for this call only.
        hook = self.get_submodule(self.stops_at).register_forward_hook(_stop)
        try:
            cls.forward(self, x)
        except _Reached as reached:
            output = reached.output
            return output if isinstance(output, Tensor) else tuple(output)
        finally:
            hook.remove()
        raise RuntimeError(f"{self.stops_at} was not reached")

    return type(f"{cls.__name__}Stopped", (cls,), {"forward": forward, "__module__": cls.__module__})

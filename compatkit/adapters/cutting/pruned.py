"""Build parts without a graph: copies of the network without the layers of the other part.

The canonical cut, ``forward_features`` | ``forward_head``, is timm's own cut. Each part is an instance of a subclass
whose ``forward`` is one of the two methods; one forward pass shows which layer each method uses. A stopped extractor
runs the network's own code up to the cut module. It serves code before the cut that branches on the image size, such as
the resampling of position embeddings, and so cannot be traced for all sizes at once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor, nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_unflatten

from compatkit.adapters.cutting.crossing import MAX_TENSORS
from compatkit.adapters.cutting.ownership import Part, owners, state_of
from compatkit.adapters.cutting.proof import restored_modes
from compatkit.adapters.cutting.signals import signal
from compatkit.adapters.functionmode import FunctionWatch
from compatkit.errors import CutError


@attrs.frozen(eq=False)
class CanonicalSide:
    """Builder of one side of ``forward_features`` | ``forward_head``.

    Attributes:
        side: ``"extractor"`` or ``"head"``.
        sides: Side of every parameter and buffer, by name.
        feature_spec: Structure of the features.
    """

    side: Part
    sides: Mapping[str, Part]
    feature_spec: FeatureSpec

    def __call__(self, whole: nn.Module) -> nn.Module:
        """Return the part of a network; it shares the network's tensors."""
        part = pruned(whole, "", self.sides, self.side)
        part.__class__ = _side_class(type(whole), self.side)
        part.__dict__.update(feature_spec=self.feature_spec, port_names=self.feature_spec.names)
        return part


@attrs.frozen(eq=False)
class StoppedSide:
    """Builder of an extractor that stops at the cut module and returns its output.

    Attributes:
        cut: Path of the cut module.
        sides: Side of every parameter and buffer, by name.
        names: Names of the feature ports, in order.
    """

    cut: str
    sides: Mapping[str, Part]
    names: tuple[str, ...]

    def __call__(self, whole: nn.Module) -> nn.Module:
        """Return the network without the head's layers; it shares the network's tensors."""
        extractor = pruned(whole, "", self.sides, "extractor", placeholders=True)
        extractor.__class__ = _stopping_class(type(whole))
        extractor.__dict__.update(stops_at=self.cut, port_names=self.names)
        return extractor


def canonical_sides(whole: nn.Module, cut: str, image: tuple[int, ...]) -> dict[Part, CanonicalSide]:
    """Find the layers that ``forward_features`` and ``forward_head`` use.

    Args:
        whole: Network with timm's interface.
        cut: Name of this cut, for messages.
        image: (channels, height, width) of the image of the forward pass.

    Returns:
        Functions from a network to its extractor and its head.

    Raises:
        CutError: No tensor crosses, or too many; a parameter is used on both sides, or the network does
            not take such an image.
    """
    with restored_modes(whole), torch.no_grad():
        whole.eval()
        left, features = _uses(whole, "forward_features", signal((1, *image)))
        right, _ = _uses(whole, "forward_head", features)
    sides = owners(whole, {"extractor": left, "head": right}, None)
    spec = FeatureSpec.of(features, type(whole).__name__, cut)
    return {"extractor": CanonicalSide("extractor", sides, spec), "head": CanonicalSide("head", sides, spec)}


@attrs.frozen(eq=False)
class FeatureSpec:
    """Structure of the output of ``forward_features``, to flatten it to tensors and back.

    Attributes:
        spec: Tree of lists, tuples and mappings.
        constants: Leaves other than tensors, by index.
        names: Names of the tensors, in order.
    """

    spec: TreeSpec
    constants: Mapping[int, Any]
    names: tuple[str, ...]

    @classmethod
    def of(cls, features: Any, network: str, cut: str) -> FeatureSpec:
        """Return the structure of an example.

        Args:
            features: Output of ``forward_features``: tensors in lists, tuples or mappings.
            network: Class of the network, for messages.
            cut: Name of the cut, for messages.

        Raises:
            CutError: The output has no tensor, or more than ``MAX_TENSORS``.
        """
        leaves, spec = tree_flatten(features)
        count = sum(isinstance(leaf, Tensor) for leaf in leaves)
        if not 0 < count <= MAX_TENSORS:
            raise CutError(
                f"forward_features of {network} returns {count} tensors; 1 to {MAX_TENSORS} may cross. Name a module "
                "path as cut.",
                subject=cut,
            )
        constants = {index: leaf for index, leaf in enumerate(leaves) if not isinstance(leaf, Tensor)}
        names = ("features",) if count == 1 else tuple(f"features.{index}" for index in range(count))
        return cls(spec, constants, names)

    def flatten(self, features: Any) -> Any:
        """Return one tensor, or several as a tuple."""
        if isinstance(features, Tensor):
            return features
        tensors = tuple(leaf for leaf in tree_leaves(features) if isinstance(leaf, Tensor))
        return tensors[0] if len(tensors) == 1 else tensors

    def unflatten(self, x: Tensor | Sequence[Tensor]) -> Any:
        """Return the input of ``forward_head``."""
        tensors = iter((x,) if isinstance(x, Tensor) else x)
        count = len(self.names) + len(self.constants)
        return tree_unflatten(
            [self.constants[i] if i in self.constants else next(tensors) for i in range(count)], self.spec
        )


class _InputRecorder(FunctionWatch):
    """Record the id of every tensor that a torch function receives."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: set[int] = set()

    def called(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        self.ids.update(id(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor))
        return func(*args, **kwargs)


def _uses(whole: nn.Module, method: str, x: Tensor) -> tuple[set[int], Any]:
    """Return the ids of the parameters and buffers that a method uses, and its result."""
    recorder = _InputRecorder()
    try:
        with recorder:
            result = getattr(whole, method)(x)
    except Exception as error:  # foreign code may raise anything
        raise CutError(
            f"{method} of {type(whole).__name__} fails for {' x '.join(map(str, x.shape))} input: {error}",
            subject=method,
        ) from error
    # Ids of tensors that are gone may be reused; the network's tensors stay alive.
    return recorder.ids & {id(tensor) for tensor in state_of(whole).values()}, result


def pruned(
    module: nn.Module, path: str, sides: Mapping[str, Part], side: Part, *, placeholders: bool = False
) -> nn.Module:
    """Return a copy of the module without the other side; it shares all tensors.

    Submodules of the other side are removed, those of this side are shared, and those of both sides are pruned
    likewise.

    Args:
        module: Network, or a module of it.
        path: Path of the module with a trailing dot; empty for the network.
        sides: Side of every parameter and buffer.
        side: Side of the copy.
        placeholders: Whether to replace removed submodules by empty ones, for code that refers to them.
    """
    copied = object.__new__(type(module))
    for name, value in module.__dict__.items():
        registry = name.startswith("_") and isinstance(value, dict | set)
        copied.__dict__[name] = value.copy() if registry else value
    for kind in ("_parameters", "_buffers"):
        members = copied.__dict__[kind]
        for name in [n for n, value in members.items() if value is not None and sides[path + n] != side]:
            # The attribute stays, as code may compare it with None.
            members[name] = None
    for name, child in module._modules.items():
        if child is None:
            continue
        prefix = f"{path}{name}."
        owners = {owner for key, owner in sides.items() if key.startswith(prefix)}
        if owners and side not in owners:
            del copied._modules[name]
            if placeholders:
                copied._modules[name] = nn.Module()
        elif len(owners) > 1:
            copied._modules[name] = pruned(child, prefix, sides, side, placeholders=placeholders)
    return copied


@functools.cache
def _side_class(cls: type[nn.Module], side: Part) -> type[nn.Module]:
    """Return the subclass whose forward is the side's method."""

    def extract(self: Any, x: Tensor) -> Any:
        """Call ``forward_features``; several tensors are one tuple."""
        return self.feature_spec.flatten(self.forward_features(x))

    def classify(self: Any, x: Tensor | Sequence[Tensor]) -> Tensor:
        """Call ``forward_head``."""
        return self.forward_head(self.feature_spec.unflatten(x))

    forward = extract if side == "extractor" else classify
    return type(
        f"{cls.__name__}{side.capitalize()}", (cls,), {"forward": forward, "__module__": cls.__module__}
    )


class _CutReached(Exception):
    """Leave the network's code with the output of the cut module."""

    def __init__(self, output: Any) -> None:
        super().__init__()
        self.output = output


def _stop(module: nn.Module, args: Any, output: Any) -> None:
    raise _CutReached(output)


@functools.cache
def _stopping_class(cls: type[nn.Module]) -> type[nn.Module]:
    def forward(self: Any, x: Tensor) -> Any:
        """Return features of images; several features are one tuple."""
        # The whole network shares the module, so the hook is registered for this call only.
        hook = self.get_submodule(self.stops_at).register_forward_hook(_stop)
        try:
            cls.forward(self, x)
        except _CutReached as reached:
            output = reached.output
            return output if isinstance(output, Tensor) else tuple(output)
        finally:
            hook.remove()
        raise RuntimeError(f"{self.stops_at} was not reached")

    return type(f"{cls.__name__}Stopped", (cls,), {"forward": forward, "__module__": cls.__module__})

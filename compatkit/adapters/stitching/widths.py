"""Change the width of parts: 1x1 convolutions to a width that several networks share, and refitted entry layers.

Source of the common width: Gygli, Uijlings, Ferrari (2021), "Towards Reusable Network Components by Learning
Compatible Representations", Sec. 5.2: "to fit all extractors to a single DCC head, we add a 1x1 convolution layer which
changes the number of channels to 64". The paper's head is the rest of MobileNetV2, which takes 64 channels after its
10th block. A head whose own width equals the common one gets no convolution; any other head begins with a 1x1
convolution to its own width.

An absorbed bridge refits a head's entry layers to features of another width. The blueprint lists these layers, so that
the head can be rebuilt from its blueprint alone.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from compatkit.adapters.cutting.proof import restored_state
from compatkit.adapters.cutting.signals import signal
from compatkit.contracts.contract import Blueprint
from compatkit.errors import CutError

TO, FROM = "to_width", "from_width"
"""Names of the convolutions in the extractor and in the head."""


class Joined(nn.Module):
    """Extractor and head as one module; the state dict has no prefixes.

    If a tensor has the same name in both parts, the state dict contains the head's.
    """

    def __init__(self, extractor: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.extractor, self.head = extractor, head

    def forward(self, x: Tensor) -> Tensor:
        """Map images to logits.

        Returns:
            Logits ``(N, classes)``.
        """
        return self.head(self.extractor(x))

    def state_dict(self, *args: object, **kwargs: object) -> dict[str, Tensor]:  # type: ignore[override]
        """Return the tensors of both parts, without prefixes."""
        return {**self.extractor.state_dict(), **self.head.state_dict()}

    def load_state_dict(  # type: ignore[override]
        self, state_dict: Mapping[str, Tensor], strict: bool = True, assign: bool = False
    ) -> None:
        """Load every tensor into the part that has its name.

        Args:
            state_dict: Tensors of both parts by name.
            strict: Whether missing and unknown names are errors.
            assign: Whether to keep the given tensors instead of copying them.

        Raises:
            RuntimeError: A tensor is missing, unknown, or of another shape.
        """
        names_by_part = [module.state_dict().keys() for module in (self.extractor, self.head)]
        unknown = sorted(state_dict.keys() - names_by_part[0] - names_by_part[1])
        if strict and unknown:
            raise RuntimeError(f"Unknown tensors: {', '.join(unknown[:3])}.")
        for part, names in zip((self.extractor, self.head), names_by_part, strict=True):
            own = {name: value for name, value in state_dict.items() if name in names}
            part.load_state_dict(own, strict=strict, assign=assign)


def widened(
    extractor: nn.Module, head: nn.Module, blueprint: Blueprint, channels: int
) -> tuple[nn.Module, nn.Module]:
    """Add the 1x1 convolutions for a blueprint's width to both parts, in place, and return the parts.

    The convolutions are initialized after everything else, as torch does it, so that the other weights are the same
    with and without a width.

    Args:
        extractor: Extractor with the network's own width.
        head: Head of the same network.
        blueprint: Blueprint of either part.
        channels: Number of image channels.

    Raises:
        CutError: The features are not a map ``(N, C, H, W)``, or the name of a convolution is taken.
    """
    if blueprint.width is None:
        return extractor, head
    own = own_width(extractor, blueprint, channels)
    _attach(extractor, TO, nn.Conv2d(own, blueprint.width, 1))
    if own != blueprint.width:
        _attach(head, FROM, nn.Conv2d(blueprint.width, own, 1))
    return extractor, head


def own_width(extractor: nn.Module, blueprint: Blueprint, channels: int) -> int:
    """Return the number of channels of a network's own features, found by one forward pass.

    Args:
        extractor: Extractor without a convolution that changes its width; not modified.
        blueprint: Blueprint of the extractor.
        channels: Number of image channels.

    Raises:
        CutError: The features are not a map ``(N, C, H, W)``.
    """
    with restored_state(extractor), torch.no_grad():
        features = extractor.eval()(signal((1, channels, *blueprint.traced_size)))
    if not isinstance(features, Tensor) or features.ndim != 4:
        actual = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise CutError(
            f"A width needs features (N, C, H, W); {blueprint.model} returns {actual} at {blueprint.cut!r}. Split "
            "where features are maps, or leave the width out.",
            subject=blueprint.cut,
        )
    return features.shape[1]


@functools.cache
def _widened(cls: type[nn.Module], name: str) -> type[nn.Module]:
    def ending(self: nn.Module, x: Tensor) -> Tensor:
        """Map images to features of the common width."""
        return self.get_submodule(TO)(cls.forward(self, x))

    def beginning(self: nn.Module, x: Tensor) -> Tensor:
        """Map features of the common width to logits."""
        return cls.forward(self, self.get_submodule(FROM)(x))

    forward = ending if name == TO else beginning
    return type(f"{cls.__name__}Widened", (cls,), {"forward": forward, "__module__": cls.__module__})


def _attach(part: nn.Module, name: str, convolution: nn.Conv2d) -> None:
    """Add a convolution to a part and run it in the forward pass."""
    if hasattr(part, name):
        raise CutError(f"The network already has an attribute {name!r}, the name of the added convolution.")
    part.add_module(name, convolution.train(part.training))
    part.__class__ = _widened(type(part), name)


def entered(head: nn.Module, blueprint: Blueprint) -> nn.Module:
    """Replace the entry layers listed in a blueprint, initialized as torch does it, and return the head.

    Args:
        head: Head, changed in place.
        blueprint: Blueprint whose ``entries`` are paths of layers and their new numbers of input channels.

    Raises:
        CutError: A layer is missing, or is neither linear nor a convolution of one group.
    """
    for path, channels in blueprint.entries:
        widen_entry(head, path, channels).reset_parameters()
    return head


def widen_entry(head: nn.Module, path: str, channels: int) -> nn.Conv2d | nn.Linear:
    """Replace a layer by one with other input channels and a bias, uninitialized, and return the new layer.

    Args:
        head: Head, changed in place.
        path: Path of the layer.
        channels: New number of input channels.

    Raises:
        CutError: The layer is missing, or is neither linear nor a convolution of one group.
    """
    old = dict(head.named_modules()).get(path)
    if not isinstance(old, nn.Conv2d | nn.Linear) or getattr(old, "groups", 1) != 1:
        actual = "nothing" if old is None else type(old).__name__
        raise CutError(
            f"An entry layer is a linear layer or a convolution of one group; the head has {actual} at {path!r}. Its "
            "blueprint belongs to another network.",
            subject=path,
        )
    new, weight = copy.copy(old), old.weight
    new._parameters = dict(old._parameters)  # a shallow copy shares them with the old layer
    shape = (weight.shape[0], channels, *weight.shape[2:])
    new.weight = nn.Parameter(torch.empty(shape, dtype=weight.dtype, device=weight.device))
    new.bias = nn.Parameter(torch.empty(shape[0], dtype=weight.dtype, device=weight.device))
    if isinstance(new, nn.Conv2d):
        new.in_channels = channels
    else:
        new.in_features = channels
    parent, _, name = path.rpartition(".")
    setattr(head.get_submodule(parent), name, new)
    return new

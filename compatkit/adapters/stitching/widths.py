"""Parts of another width: a 1x1 convolution at a cut that networks agree on, and entry layers that were refitted.

Source of the common width: Gygli, Uijlings, Ferrari (2021), "Towards Reusable Network Components by Learning
Compatible Representations", Sec. 5.2: "to fit all extractors to a single DCC head, we add a 1x1 convolution layer which
changes the number of channels to 64". The paper's head is the rest of MobileNetV2, which takes 64 channels after its
10th block: where a head's own width is the common one, nothing stands before it. Any other head begins with a 1x1
convolution to its own.

Where an absorbed bridge refits a head's entry layers to features of another width, the blueprint says which layers, so
that the head is built again from its blueprint alone.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from compatkit.adapters.cutting.proof import unchanged
from compatkit.adapters.cutting.signals import signal
from compatkit.contracts.contract import Blueprint
from compatkit.errors import CutError

TO, FROM = "to_width", "from_width"
"""Names of the convolutions, in the extractor and in the head."""


class Joined(nn.Module):
    """Extractor and head as one module that holds their tensors under their own names.

    Of tensors that have one name in both, which may be of two networks, the head's is shown.
    """

    def __init__(self, extractor: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.extractor, self.head = extractor, head

    def forward(self, x: Tensor) -> Tensor:
        """Images to logits.

        Returns:
            ``(N, classes)``.
        """
        return self.head(self.extractor(x))

    def state_dict(self, *args: object, **kwargs: object) -> dict[str, Tensor]:  # type: ignore[override]
        """Return the tensors of both, without a prefix."""
        return {**self.extractor.state_dict(), **self.head.state_dict()}

    def load_state_dict(  # type: ignore[override]
        self, state_dict: Mapping[str, Tensor], strict: bool = True, assign: bool = False
    ) -> None:
        """Give every tensor to the part that has its name.

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
    """Put the convolutions of a blueprint's width between two parts; return the parts.

    The convolutions draw their initial weights as torch does, after everything else: the network's own are the same
    with and without a width. The modules are the parts themselves, changed in place.

    Args:
        extractor: Of the network's own width.
        head: Of the same network.
        blueprint: Of either.
        channels: Of the images.

    Raises:
        CutError: What crosses is no map ``(N, C, H, W)``, or a name is taken.
    """
    if blueprint.width is None:
        return extractor, head
    own = own_width(extractor, blueprint, channels)
    _attach(extractor, TO, nn.Conv2d(own, blueprint.width, 1))
    if own != blueprint.width:
        _attach(head, FROM, nn.Conv2d(blueprint.width, own, 1))
    return extractor, head


def own_width(extractor: nn.Module, blueprint: Blueprint, channels: int) -> int:
    """Return how many channels a network's own features have, by one pass.

    Args:
        extractor: Without a layer that changes its width; left as it is.
        blueprint: Of the extractor.
        channels: Of the images.

    Raises:
        CutError: They are no map ``(N, C, H, W)``.
    """
    with unchanged(extractor), torch.no_grad():
        features = extractor.eval()(signal((1, channels, *blueprint.traced_size)))
    if not isinstance(features, Tensor) or features.ndim != 4:
        actual = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
        raise CutError(
            f"A width is brought about by a 1x1 convolution over maps (N, C, H, W); {blueprint.model} gives {actual} "
            f"at {blueprint.cut!r}. Split where maps cross, or leave the width out.",
            subject=blueprint.cut,
        )
    return features.shape[1]


@functools.cache
def _widened(cls: type[nn.Module], name: str) -> type[nn.Module]:
    def ending(self: nn.Module, x: Tensor) -> Tensor:
        """Images to features of the common width."""
        return self.get_submodule(TO)(cls.forward(self, x))

    def beginning(self: nn.Module, x: Tensor) -> Tensor:
        """Features of the common width to logits."""
        return cls.forward(self, self.get_submodule(FROM)(x))

    forward = ending if name == TO else beginning
    return type(f"{cls.__name__}Widened", (cls,), {"forward": forward, "__module__": cls.__module__})


def _attach(part: nn.Module, name: str, convolution: nn.Conv2d) -> None:
    """Give a part a layer and the forward pass that runs it."""
    if hasattr(part, name):
        raise CutError(f"The network has something named {name!r} already, the name of the convolution.")
    part.add_module(name, convolution.train(part.training))
    part.__class__ = _widened(type(part), name)


def entered(head: nn.Module, blueprint: Blueprint) -> nn.Module:
    """Give a head the entry layers that its blueprint states, their weights drawn as torch draws them; return it.

    Args:
        head: Changed in place.
        blueprint: Its ``entries`` are paths of layers and their new input channels.

    Raises:
        CutError: There is no such layer, or it is no linear layer of one group.
    """
    for path, channels in blueprint.entries:
        widen_entry(head, path, channels).reset_parameters()
    return head


def widen_entry(head: nn.Module, path: str, channels: int) -> nn.Conv2d | nn.Linear:
    """Put a layer of other input channels, with a bias, in the place of a linear layer; return it, weights not set.

    Args:
        head: Changed in place.
        path: Of the layer.
        channels: That it takes from now on.

    Raises:
        CutError: There is no such layer, or it is no linear layer of one group.
    """
    old = dict(head.named_modules()).get(path)
    if not isinstance(old, nn.Conv2d | nn.Linear) or getattr(old, "groups", 1) != 1:
        actual = "nothing" if old is None else type(old).__name__
        raise CutError(
            f"An entry layer is a convolution of one group or a linear layer; the head has {actual} at {path!r}. Its "
            "blueprint is of another network.",
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
    holder, _, name = path.rpartition(".")
    setattr(head.get_submodule(holder), name, new)
    return new

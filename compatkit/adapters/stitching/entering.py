"""Entry layers of another width: those layers of a head that take the features, for other features than its network's.

Where an absorbed bridge refits a head's entry layers to features of another width, this says what was changed, so that
the head is built again from its blueprint alone.
"""

from __future__ import annotations

import copy

import torch
from torch import nn

from compatkit.contracts.contract import Blueprint
from compatkit.errors import CutError


def entered(head: nn.Module, blueprint: Blueprint) -> nn.Module:
    """Give a head the entry layers that its blueprint states, their weights drawn as torch draws them; return it.

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
        came = "nothing" if old is None else type(old).__name__
        raise CutError(
            f"An entry layer is a convolution of one group or a linear layer; the head has {came} at {path!r}. Its "
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

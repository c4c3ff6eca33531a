"""Initial weights of a whole network by scheme and scale."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fnmatch import fnmatchcase

import torch
from torch import nn

from compatkit import SetUp, TaskState
from compatkit.errors import UsageError
from compatkit.foundation.limits import Number, OneOf

from ._called_layers import CalledLayer, called_layers

SCHEMES = ("he", "glorot", "orthogonal")
STREAM = "initial_weights"
"""Stream of random numbers, by task and layer: two plugins that draw the same layer give it the same values."""


def layers_of(state: TaskState, setup: SetUp) -> tuple[CalledLayer, ...]:
    """Return the convolutions and linear layers of a task's network, in the order of their first call.

    Raises:
        UsageError: The task trains only a part of its network.
    """
    if state.freezes_extractor or not state.runs_head:
        raise UsageError(
            f"Initial weights are those of a whole network that is trained; task {state.name!r} has a frozen "
            "extractor, no labels or no head of its own. Leave the plugin out.",
            subject=state.name,
        )
    return called_layers(state, setup.precision.device)


def check_scheme(plugin: str, scheme: str, scale: float, layers: Mapping[str, float]) -> None:
    """Raise unless weights can be drawn so.

    Raises:
        UsageError: An unknown scheme, or a scale that is not above 0.
    """
    OneOf(SCHEMES).check(plugin, scheme=scheme)
    if not isinstance(layers, Mapping):
        raise UsageError(
            f"{plugin}: layers is a table of factors by path, such as {{'conv1': 0.1}}; got {layers!r:.60}."
        )
    Number(above=0).check(plugin, scale=scale)
    Number(above=0).check(f"{plugin}: layers", **{str(name): value for name, value in layers.items()})


@torch.no_grad()
def draw(
    called: CalledLayer, scheme: str, scale: float, layers: Mapping[str, float], rng: torch.Generator
) -> None:
    """Draw a layer's weight; its bias becomes zero, and normalization behind it as when it was built.

    Where n weights make an output and an input takes part in m: ``"he"``, normal of deviation sqrt(2 / n) (He et al.
    2015); ``"glorot"``, uniform within sqrt(6 / (n + m)) (Glorot and Bengio 2010); ``"orthogonal"``, orthonormal rows
    or columns of the weight as ``(out, n)`` (Saxe et al. 2014). All times ``scale``, and times the factors of
    ``layers`` that match.

    Args:
        called: The layer.
        scheme: A member of ``SCHEMES``.
        scale: Factor of the values, not of the variance.
        layers: Further factors by glob.
        rng: On the CPU.
    """
    weight = torch.empty(called.layer.weight.shape)
    if scheme == "he":
        weight.normal_(0.0, math.sqrt(2 / weight[0].numel()), generator=rng)
    elif scheme == "glorot":
        # torch's own rule counts the outputs of all groups, but an input reaches those of its group alone.
        outputs = weight[:, 0].numel() // getattr(called.layer, "groups", 1)
        bound = math.sqrt(6 / (weight[0].numel() + outputs))
        weight.uniform_(-bound, bound, generator=rng)
    else:
        nn.init.orthogonal_(weight, generator=rng)
    for glob, factor in layers.items():
        if fnmatchcase(called.path, glob):
            weight *= factor
    called.layer.weight.copy_(weight * scale)
    if called.layer.bias is not None:
        called.layer.bias.zero_()
    for follower in called.followers:
        follower.reset_parameters()


def norm_of(called: CalledLayer) -> float:
    """Return the Euclidean norm of a layer's weight, without its bias."""
    return float(torch.linalg.vector_norm(called.layer.weight.detach().double()))

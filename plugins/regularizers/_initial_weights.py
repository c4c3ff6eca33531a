"""Layers with weights in the order in which a network calls them, and initial weights by scheme and scale."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

import attrs
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase  # pyright: ignore[reportPrivateUsage]

from compatkit import SetUp, TaskState
from compatkit.errors import UnknownName, UsageError

SCHEMES = ("he", "glorot", "orthogonal")
LAYERS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)
NORMS = (_NormBase, nn.GroupNorm, nn.LayerNorm)
STREAM = "initial_weights"
"""Of the random numbers, by task and layer: two plugins that draw the same layer give it the same values."""


@attrs.frozen(eq=False)
class Called:
    """A layer with weights.

    Attributes:
        path: In the whole network, as in its state dict.
        layer: A convolution or a linear layer.
        normed: Whether a normalisation takes what it gives.
        followers: Normalisation that is called before the next such layer.
    """

    path: str
    layer: nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.Linear
    normed: bool
    followers: tuple[_NormBase | nn.GroupNorm | nn.LayerNorm, ...]


def layers_of(state: TaskState, setup: SetUp) -> tuple[Called, ...]:
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
    calls: list[tuple[str, nn.Module, Tensor, Tensor]] = []
    handles = []
    modes = [(module, module.training) for part in (state.extractor, state.head) for module in part.modules()]
    for part in (state.extractor, state.head):
        for path, module in part.named_modules():
            if isinstance(module, (*LAYERS, *NORMS)):
                handles.append(module.register_forward_hook(_noting(calls, path)))
    try:
        with torch.no_grad():
            size = (2, len(state.data.mean), *state.data.size)
            state.head.eval()(state.extractor.eval()(torch.zeros(size, device=setup.precision.device)))
    finally:
        for handle in handles:
            handle.remove()
        for module, was in modes:
            module.training = was
    found: dict[str, Called] = {}
    for place, (path, module, _, given) in enumerate(calls):
        if not isinstance(module, LAYERS) or path in found:
            continue
        later = calls[place + 1 :]
        until = next((at for at, one in enumerate(later) if isinstance(one[1], LAYERS)), len(later))
        normed = any(isinstance(one[1], NORMS) and one[2] is given for one in later)
        followers = tuple(one[1] for one in later[:until] if isinstance(one[1], NORMS))
        found[path] = Called(path, module, normed, followers)
    return tuple(found.values())


def _noting(calls: list[tuple[str, nn.Module, Tensor, Tensor]], path: str) -> Any:
    def note(module: nn.Module, given: tuple[Tensor, ...], result: Tensor) -> None:
        calls.append((path, module, given[0], result))

    return note


def check_scheme(plugin: str, scheme: str, scale: float, layers: Mapping[str, float]) -> None:
    """Raise unless weights can be drawn so.

    Raises:
        UsageError: An unknown scheme, or a scale that is not above 0.
    """
    if scheme not in SCHEMES:
        raise UsageError(f"{plugin}: scheme is one of {', '.join(SCHEMES)}; got {scheme!r:.60}.")
    if not isinstance(layers, Mapping):
        raise UsageError(
            f"{plugin}: layers is a table of factors by path, such as {{'conv1': 0.1}}; got {layers!r:.60}."
        )
    for name, one in {"scale": scale, **layers}.items():
        if isinstance(one, bool) or not isinstance(one, int | float) or not 0 < one < math.inf:
            raise UsageError(f"{plugin}: scales are finite numbers above 0; {name} is {one!r:.60}.")


@torch.no_grad()
def draw(
    called: Called, scheme: str, scale: float, layers: Mapping[str, float], rng: torch.Generator
) -> None:
    """Draw a layer's weight; its bias becomes zero, and normalisation behind it as when it was built.

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
    made = torch.empty(called.layer.weight.shape)
    if scheme == "he":
        made.normal_(0.0, math.sqrt(2 / made[0].numel()), generator=rng)
    elif scheme == "glorot":
        # torch's own rule counts the outputs of all groups, but an input reaches those of its group alone.
        outputs = made[:, 0].numel() // getattr(called.layer, "groups", 1)
        bound = math.sqrt(6 / (made[0].numel() + outputs))
        made.uniform_(-bound, bound, generator=rng)
    else:
        nn.init.orthogonal_(made, generator=rng)
    for glob, factor in layers.items():
        if fnmatchcase(called.path, glob):
            made *= factor
    called.layer.weight.copy_(made * scale)
    if called.layer.bias is not None:
        called.layer.bias.zero_()
    for follower in called.followers:
        follower.reset_parameters()


def check_globs(plugin: str, globs: Mapping[str, Any] | tuple[str, ...], found: tuple[Called, ...]) -> None:
    """Raise for a glob that no layer matches.

    Raises:
        UnknownName: Names the layers that there are.
    """
    for glob in globs:
        if not any(fnmatchcase(one.path, glob) for one in found):
            raise UnknownName(
                f"{plugin}: no convolution or linear layer is called {glob!r}; there are "
                f"{', '.join(one.path for one in found)}.",
                subject=glob,
            )


def norm_of(called: Called) -> float:
    """Return the Euclidean norm of a layer's weight, without its bias."""
    return float(torch.linalg.vector_norm(called.layer.weight.detach().double()))

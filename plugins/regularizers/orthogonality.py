"""Orthogonality of weights: every layer's matrix W should preserve the length of its input, W'W = I.

Paper: Bansal, Chen, Wang (2018), "Can We Gain More from Orthogonality Regularizations in Training Deep CNNs?",
    arXiv:1810.09102, Sec. 3: SO, DSO, MC, SRIP. "Reviving Autoencoder Pretraining" compares with SRIP (its eq. 27).
Equations: summed over layers, with W = weight.flatten(1), ``(out, in * k * k)``:
    so:   ||W'W - I||_F^2, of the smaller of W'W and WW'
    dso:  ||W'W - I||_F^2 + ||WW' - I||_F^2
    mc:   max |W'W - I|, of the smaller of both
    srip: s^2 (or s, where ``squared`` is off), s the spectral norm of A = W'W - I by one turn of power iteration
          from fresh normal numbers u: v = Au / |Au|, s = |Av|, with the gradient through u's images too
Where out < in * k * k, W'W has not full rank: its SO cannot fall below in * k * k - out, and s not below 1. SO and MC
take the side that can reach 0; SRIP takes W'W, as the authors do; ``side`` chooses.
SRIP squared is what the authors' code for ResNeXt, ImageNet and SVHN does; eq. 27 and their Keras code do not square.
Departures: the layers of a grouped convolution are one matrix a group, which is the map that it computes (the
    authors' flattening adds up filters that see different channels); a transposed convolution's matrix is that of the
    map, too. Weights that are not of a convolution or a linear layer are left out.
Cost: SRIP makes no matrix but W: A v = W'(W v) - v, exact, eight products of W with a vector a step, there and back,
    in place of (in * k * k)^2 * out. The others make the Gram matrix that they name.
Limits: weights of convolutions and linear layers only. It acts on the matrix of a convolution, not on the map that it
    computes with overlaps. It raised no accuracy on CIFAR-10 here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import Literal

import attrs
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from compatkit import SetUp, Step, effect, hookimpl
from compatkit.errors import UnknownName, UsageError
from compatkit.foundation.limits import COUNT, OneOf
from compatkit.hooks import Register

compatkit_api = 1
Kind = Literal["srip", "so", "dso", "mc"]
Side = Literal["input", "smaller"]
KINDS: tuple[Kind, ...] = ("srip", "so", "dso", "mc")
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, *TRANSPOSED)


@hookimpl
def compatkit_regularizers(register: Register) -> None:
    """Offer ``orthogonality``."""
    register("orthogonality", orthogonality)


def orthogonality(
    kind: Kind = "srip",
    squared: bool = True,
    layers: Sequence[str] | None = None,
    schedule: Sequence[Sequence[float]] | None = None,
    side: Side | None = None,
    iterations: int = 1,
    shared: bool = False,
) -> Orthogonality:
    """Make the regularizer.

    Args:
        kind: ``"srip"``, ``"so"``, ``"dso"`` or ``"mc"``.
        squared: For srip: whether the spectral norm is squared.
        layers: Module paths in the whole network, or globs; None takes every convolution and linear layer, the
            classifier included, as the authors do. Shared heads' layers are ``shared.<name>.<path>``.
        schedule: Pairs of a step of the task and the factor from there on, the first of step 0; None is constant. The
            authors multiply by 1, 1e-3, 1e-4, 1e-6, 0 from epochs 0, 21, 51, 71, 121.
        side: Gram matrix: ``"input"`` W'W, ``"smaller"`` the one of full rank; None takes the kind's own.
        iterations: Turns of power iteration a step, for srip; the authors take 1.
        shared: Whether the heads that tasks share are regularized too, in the steps of every task.

    Raises:
        UsageError: A setting is none of these.
    """
    # What draws numbers or looks at the step in Python must run eagerly; the rest may be compiled and captured.
    steady = kind != "srip" and schedule is None and not shared
    regularizer = Steady if steady else Orthogonality
    return regularizer(kind, squared, layers, schedule, side, iterations, shared)


def matrices(layer: nn.Module) -> Tensor:
    """Return the weight of a layer as the matrices of the maps that it computes, ``(groups, out, in * k * k)``.

    Args:
        layer: A linear layer, or a convolution, transposed or not; its weight is read in float32.
    """
    weight: Tensor = layer.weight.float()  # type: ignore[assignment, operator]
    groups = getattr(layer, "groups", 1)
    rows = weight.flatten(1).unflatten(0, (groups, -1))
    return rows.mT if isinstance(layer, TRANSPOSED) else rows


def gram_excess(weight: Tensor, side: Side) -> Tensor:
    """Return W'W - I, or WW' - I where ``side`` is ``"smaller"`` and that is the smaller one.

    Args:
        weight: ``(groups, out, in)``.
        side: Which.

    Returns:
        ``(groups, n, n)``, n the length of the side that was chosen.
    """
    if side == "smaller" and weight.shape[-2] < weight.shape[-1]:
        weight = weight.mT
    return weight.mT @ weight - torch.eye(weight.shape[-1], dtype=weight.dtype, device=weight.device)


def spectral_excess(weight: Tensor, start: Tensor, side: Side = "input", iterations: int = 1) -> Tensor:
    """Return an estimate from below of the spectral norm of W'W - I, without making that matrix.

    Args:
        weight: ``(groups, out, in)``, the diagonal blocks of one matrix.
        start: Any numbers, ``(groups, n)``, n the columns of the Gram matrix.
        side: Gram matrix, ``"input"`` or ``"smaller"``.
        iterations: Turns of power iteration, from 1 on.

    Returns:
        Scalar; gradients go through all of it.
    """
    if side == "smaller" and weight.shape[-2] < weight.shape[-1]:
        weight = weight.mT

    def times(vector: Tensor) -> Tensor:
        return (weight.mT @ (weight @ vector[..., None]))[..., 0] - vector

    image = times(F.normalize(start.flatten(), dim=0, eps=1e-12).view_as(start))
    for _ in range(iterations):
        other = F.normalize(image.flatten(), dim=0, eps=1e-12).view_as(image)
        image = times(other)
    return torch.dot(F.normalize(image.flatten(), dim=0, eps=1e-12), image.flatten())


@attrs.define(eq=False)
class Orthogonality:
    """Adds up one term a layer; see ``orthogonality`` for the settings."""

    kind: Kind = attrs.field(default="srip", validator=OneOf(KINDS))
    squared: bool = True
    layers: Sequence[str] | None = None
    schedule: Sequence[Sequence[float]] | None = None
    side: Side | None = attrs.field(default=None, validator=OneOf(("input", "smaller"), optional=True))
    iterations: int = attrs.field(default=1, validator=COUNT)
    shared: bool = False
    _setup: SetUp = attrs.field(init=False)
    _found: dict[str, list[nn.Module]] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        if self.side is not None and self.kind == "dso":
            raise UsageError("orthogonality: dso takes the Gram matrices of both sides; leave side out.")
        if self.kind != "srip" and (not self.squared or self.iterations != 1):
            raise UsageError(
                f"orthogonality: squared and iterations are settings of kind='srip'; got kind={self.kind!r}, "
                f"squared={self.squared!r}, iterations={self.iterations!r}."
            )
        if isinstance(self.layers, str):
            self.layers = [self.layers]
        _check_layers(self.layers)
        _check_schedule(self.schedule)

    @hookimpl
    def compatkit_set_up(self, setup: SetUp) -> None:
        """Find the layers of every task.

        Raises:
            UnknownName: A name in ``layers`` fits no layer of some task.
            UsageError: A task has no layer to regularize.
        """
        self._setup = setup
        if not self.shared:  # shared heads may be added after this, by other plugins
            for name in setup.tasks:
                self._layers(name)

    @hookimpl
    def compatkit_losses(self, step: Step) -> Mapping[str, Tensor]:
        """Return the sum over the task's layers; nothing while the factor is 0."""
        factor = 1.0
        for start, value in self.schedule or ():
            factor = float(value) if step.number >= start else factor
        if not factor:
            return {}
        return {"loss": factor * self.penalty(self._layers(step.task.name), step)}

    def penalty(self, layers: Sequence[nn.Module], step: Step) -> Tensor:
        """Return the sum over layers in float32, without the factor of the schedule.

        Args:
            layers: Not empty.
            step: Step whose random numbers srip draws.

        Returns:
            A float32 scalar.
        """
        with torch.autocast(step.precision.device.split(":")[0], enabled=False):
            weights = [matrices(layer) for layer in layers]
            if self.kind == "srip":
                terms = self._spectral(weights, step)
            else:
                terms = [self._dense(weight) for weight in weights]
            return torch.stack(terms).sum()

    def _spectral(self, weights: Sequence[Tensor], step: Step) -> list[Tensor]:
        side = self.side or "input"
        sizes = [
            (len(weight), min(weight.shape[1:]) if side == "smaller" else weight.shape[2])
            for weight in weights
        ]
        # Drawn on the CPU, so that all devices and processes see the same, and sent over in one piece.
        numbers = torch.randn(sum(a * b for a, b in sizes), generator=step.rng("orthogonality"))
        pieces = numbers.to(weights[0].device, non_blocking=True).split([a * b for a, b in sizes])
        norms = [
            spectral_excess(weight, piece.view(size), side, self.iterations)
            for weight, piece, size in zip(weights, pieces, sizes, strict=True)
        ]
        return [norm.square() for norm in norms] if self.squared else norms

    def _dense(self, weight: Tensor) -> Tensor:
        if self.kind == "mc":
            return gram_excess(weight, self.side or "smaller").abs().amax()
        if self.kind == "so":
            return gram_excess(weight, self.side or "smaller").square().sum()
        return gram_excess(weight, "input").square().sum() + gram_excess(weight.mT, "input").square().sum()

    def _layers(self, task: str) -> list[nn.Module]:
        if task not in self._found:
            state = self._setup.tasks[task]
            modules = [*state.extractor.named_modules(), *state.head.named_modules()]
            if self.shared:
                for name, head in self._setup.auxiliary.items():
                    modules += list(head.module.named_modules(prefix=f"shared.{name}"))
            self._found[task] = chosen(modules, self.layers, task)
        return self._found[task]


class Steady(Orthogonality):
    """Terms of weights alone: nothing is drawn, and every step computes the same."""

    @hookimpl
    @effect("pure")
    def compatkit_losses(self, step: Step) -> Mapping[str, Tensor]:
        """Return the sum over the task's layers."""
        return {"loss": self.penalty(self._layers(step.task.name), step)}


def chosen(
    modules: Iterable[tuple[str, nn.Module]], globs: Sequence[str] | None, task: str
) -> list[nn.Module]:
    """Return the layers that some glob names and whose weight moves, a shared weight once.

    Args:
        modules: Modules of a network by name.
        globs: Names of layers with ``*``; None for all.
        task: Its name, for messages.

    Raises:
        UnknownName: A glob fits no layer.
        UsageError: Nothing is left.
    """
    layers = {name: module for name, module in modules if isinstance(module, (nn.Linear, *CONVOLUTIONS))}
    for glob in globs or ():
        if not any(fnmatchcase(name, glob) for name in layers):
            raise UnknownName(
                f"orthogonality: layers names {glob!r}, and no convolution or linear layer of task {task!r} is called "
                f"so; there are {', '.join(layers)}."
            )
    unique: dict[int, nn.Module] = {}
    for name, layer in layers.items():
        wanted = globs is None or any(fnmatchcase(name, glob) for glob in globs)
        if wanted and layer.weight.requires_grad:  # type: ignore[union-attr]
            unique.setdefault(next(id(value) for value in layer.parameters()), layer)
    if not unique:
        raise UsageError(
            f"orthogonality: task {task!r} has no convolution or linear layer left whose weight moves. Leave some "
            "parameters free, or leave orthogonality out."
        )
    return list(unique.values())


def _check_layers(layers: Sequence[str] | None) -> None:
    if layers is None:
        return
    listed = isinstance(layers, Sequence) and len(layers) > 0
    if not listed or not all(isinstance(glob, str) and glob for glob in layers):
        raise UsageError(
            'orthogonality: layers is a list of module paths or globs, such as ["layer2.*"], or None for all; got '
            f"{layers!r}."
        )


def _check_schedule(schedule: Sequence[Sequence[float]] | None) -> None:
    if schedule is None:
        return
    good = (
        isinstance(schedule, Sequence)
        and len(schedule) > 0
        and all(
            isinstance(pair, Sequence)
            and len(pair) == 2
            and isinstance(pair[0], int)
            and not isinstance(pair[0], bool)
            and isinstance(pair[1], (int, float))
            and not isinstance(pair[1], bool)
            and 0 <= pair[1] < float("inf")
            for pair in schedule
        )
    )
    rising = good and schedule[0][0] == 0 and all(a[0] < b[0] for a, b in pairwise(schedule))
    if not rising:
        raise UsageError(
            "orthogonality: schedule is pairs of a step and a factor from there on, steps rising from 0, factors not "
            f"negative, such as [[0, 1.0], [2000, 0.001]]; got {schedule!r}."
        )

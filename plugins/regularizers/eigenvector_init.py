"""Eigenvector initialization: filters are principal directions of their input, layer after layer.

Paper: Maennel et al. (2020), "What Do Neural Networks Learn When Trained With Random Labels?", Sec. 2.5 and App. E.3,
    Tables 1 to 6.
Equation: for each layer, in the order of the calls, e_1, e_2, ... are the eigenvectors, by decreasing eigenvalue, of
    the covariance of the patches that the initialized layers before it give it. Filter j is s_j tau_j e_j, with
    signs s_j; with ``sampled`` it is the sum over j of tau_j g_j e_j with standard normal g_j. Biases are 0.
tau: ``f2`` is 1. The paper's f1 and f3 are drawn in its Fig. 23, with values from 1 to 4, and printed nowhere. Ours are
    f1 = (1, 2, 3, 4, 4, ...) / 4, which weighs the strongest directions down, and f3 = (2, 3, 4, 4, ...) / 4, which
    does so less. Signs matter before a ReLU; those of an eigenvector are arbitrary and differ between machines, so
    they are drawn.
Cost: ``images`` passes through the layers below each layer, and an eigendecomposition of d x d numbers.
Limits: convolutions with groups are left out. The paper prints no values of f1 and f3, ours follow its description.
    It speeds up the first steps; after long training nothing was measured.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import attrs
import torch
from torch import Tensor, nn

from compatkit import Pretraining, SetUp, TaskState, hookimpl
from compatkit.errors import DataError, UsageError
from compatkit.foundation.limits import WHOLE, Number, OneOf
from compatkit.hooks import Register

from ..patch_covariance import PatchMoments, patches_of, principal_directions, unsuitable
from ._called_layers import batching, chosen_layers, layer_input

compatkit_api = 1
NAME = "eigenvector_init"
TAUS = {"f1": (0.25, 0.5, 0.75), "f2": (), "f3": (0.5, 0.75)}
"""First values of each sequence; those that follow are 1."""
CHOICES, SIGNS = ("top", "smallest"), ("random", "positive")


@hookimpl
def compatkit_regularizers(register: Register) -> None:
    """Offer ``eigenvector_init``."""
    register(NAME, EigenvectorInit)


@attrs.frozen(eq=False)
class DirectionChoice:
    """Choice of the eigenvectors that become filters, and their weights.

    Attributes:
        choose: ``"top"`` or ``"smallest"`` eigenvalues first.
        skip: Number of eigenvectors omitted before the first one.
        tau: Weights of the chosen directions, in this order; the last one is repeated.
        sampled: Whether filters are random combinations instead.
        signs: ``"random"``, or ``"positive"``: the sum of each filter is.
    """

    choose: str
    skip: int
    tau: Sequence[float]
    sampled: bool
    signs: str

    def filters(self, vectors: Tensor, count: int, draw: torch.Generator) -> Tensor:
        """Return filters ``(count, d)``.

        Args:
            vectors: Eigenvectors as rows, the strongest first, float64 ``(d, d)``.
            count: Number of filters; if it exceeds the directions that are left, they are sampled.
            draw: Draws signs, or combinations.
        """
        ordered = vectors if self.choose == "top" else vectors.flip(0)
        taken = ordered[self.skip : self.skip + count]
        tau = torch.tensor(
            [self.tau[min(index, len(self.tau) - 1)] for index in range(len(taken))], dtype=torch.float64
        )[:, None]
        if self.samples(len(vectors), count):
            return torch.randn(count, len(taken), generator=draw, dtype=torch.float64) @ (tau * taken)
        if self.signs == "positive":
            signs = torch.where(taken.sum(1, keepdim=True) < 0, -1.0, 1.0)
        else:
            signs = torch.randint(0, 2, (count, 1), generator=draw).double() * 2 - 1
            # The solver's sign is no property of the data: fix it before one is drawn.
            largest = taken.gather(1, taken.abs().argmax(1, keepdim=True))
            signs = signs * torch.where(largest < 0, -1.0, 1.0)
        return signs * tau * taken

    def samples(self, width: int, count: int) -> bool:
        """Return whether filters of ``width`` values are random combinations."""
        return self.sampled or count > width - self.skip


@attrs.define(eq=False)
class EigenvectorInit:
    """Initializes convolutions from the training images before the first step; the layers between stay as drawn.

    It has no loss: its weight says nothing, but that 0 leaves it out. If another plugin draws weights before the first
    step too, say which comes first: ``use("eigenvector_init", after="scaled_init")``. Where a layer has more filters
    than directions, they are sampled, and the report in ``fit.run["pretraining"]`` says so. Batch normalization uses
    the statistics of each batch.

    Attributes:
        layers: Names or globs of layers, linear ones too; None for all convolutions without groups.
        choose: ``"top"``: directions of the largest eigenvalues first; ``"smallest"``.
        skip: Directions left out before the first that is taken: a number, or numbers by path of the layer.
        tau: ``"f1"``, ``"f2"``, ``"f3"``, or weights of the directions taken, of which the last is repeated.
        sampled: Draw filters from the covariance with eigenvalues tau^2 instead of taking the directions themselves.
        signs: ``"random"``, from a stream of the run's seed, or ``"positive"``.
        match_norm: Whether each layer gets the norm that its weight had before. The paper's have the norm tau.
        images: Training images looked at for each layer, at most all.
        patches: Positions sampled of each image; None takes all.
        batch_size: Images of a batch.
    """

    layers: Sequence[str] | None = None
    choose: Literal["top", "smallest"] = attrs.field(default="top", validator=OneOf(CHOICES))
    skip: int | Mapping[str, int] = 0
    tau: str | Sequence[float] = "f2"
    sampled: bool = False
    signs: Literal["random", "positive"] = attrs.field(default="random", validator=OneOf(SIGNS))
    match_norm: bool = False
    images: int = attrs.field(default=5000, validator=Number(least=2, whole=True))
    patches: int | None = attrs.field(default=64, validator=Number(least=1, whole=True, optional=True))
    batch_size: int = attrs.field(default=250, validator=Number(least=2, whole=True))
    _tau: tuple[float, ...] = attrs.field(default=(), init=False)

    def __attrs_post_init__(self) -> None:
        """Check that the settings can be used.

        Raises:
            UsageError: One cannot.
        """
        for skipped in self.skip.values() if isinstance(self.skip, Mapping) else [self.skip]:
            WHOLE.check(NAME, skip=skipped)
        self._tau = _sequence(self.tau)

    @hookimpl
    def compatkit_set_up(self, setup: SetUp) -> None:
        """Find the layers of every task's network, and report those that are left out.

        Raises:
            UnknownName: The network has no such layer.
            UsageError: A layer that is named cannot be initialized, or none can.
        """
        left = {state.name: self._layers(setup, state)[1] for state in setup.tasks.values()}
        setup.tell({"left out": left})

    @hookimpl
    def compatkit_pretrain(self, setup: SetUp, pretraining: Pretraining) -> Mapping[str, Any]:
        """Initialize all tasks; return what each layer was initialized from, by task.

        Raises:
            DataError: There are fewer patches than directions.
        """
        return {
            state.name: {
                name: self._initialize(setup, pretraining, state, name, layer)
                for name, layer in self._layers(setup, state)[0].items()
            }
            for state in setup.tasks.values()
        }

    def _layers(self, setup: SetUp, state: TaskState) -> tuple[dict[str, nn.Module], dict[str, str]]:
        """Return the layers in the order of their calls, and why others are left out."""
        chosen = chosen_layers(NAME, state, self.layers, setup.precision.device)
        for name in self.skip if isinstance(self.skip, Mapping) else ():
            OneOf(chosen).check(NAME, skip=name)
        left = {name: reason for name, layer in chosen.items() if (reason := self._unsuitable(name, layer))}
        refused = [name for name in left if self.layers is not None]
        if refused or len(left) == len(chosen):
            name, reason = next(iter(left.items()), ("", "it has no convolution"))
            where = f"the layer {name!r} of task {state.name!r}" if name else f"task {state.name!r}"
            raise UsageError(
                f"{NAME} cannot initialize {where}: {reason}. Name other layers, or leave the plugin out.",
                subject=name or state.name,
            )
        return {name: layer for name, layer in chosen.items() if name not in left}, left

    def _unsuitable(self, name: str, layer: nn.Module) -> str:
        weight: Any = layer.weight
        skip = self._skip(name)
        if reason := unsuitable(layer):
            return reason
        width = weight[0].numel()
        return f"it has {width} directions, and skip is {skip}" if skip >= width else ""

    def _skip(self, name: str) -> int:
        return self.skip.get(name, 0) if isinstance(self.skip, Mapping) else self.skip

    def _initialize(
        self, setup: SetUp, pretraining: Pretraining, state: TaskState, name: str, layer: nn.Module
    ) -> dict[str, Any]:
        """Set the weight of a layer; return facts about it."""
        key: tuple[str, ...] = (NAME, state.name, name)
        weight: Any = layer.weight
        batches = pretraining.batches(state, *key, **batching(state, self.images, self.batch_size))
        moments = PatchMoments.over(
            PatchMoments.of(
                patches_of(layer, layer_input(state, layer, batch.images), batch.index, self.patches or 0)
            )
            for batch in batches
        )
        width = math.prod(weight.shape[1:])
        if moments.lacking:
            raise DataError(
                f"{NAME}: the layer {name!r}: {moments.lacking}. Raise images or patches.", subject=name
            )
        values, vectors = principal_directions(moments.covariance.cpu())
        choice = DirectionChoice(self.choose, self._skip(name), self._tau, self.sampled, self.signs)
        filters = choice.filters(vectors, len(weight), setup.rng(*key))
        if self.match_norm:
            filters = filters * (float(weight.detach().norm()) / float(filters.norm()))
        with torch.no_grad():
            weight.copy_(filters.reshape(weight.shape))
            if isinstance(layer.bias, Tensor):
                layer.bias.zero_()
        ordered = values if self.choose == "top" else values.flip(0)
        taken = ordered[choice.skip : choice.skip + len(weight)]
        return {
            "patches": moments.count,
            "sampled": choice.samples(width, len(weight)),
            "variance": float(taken.sum() / values.sum()),
        }


def _sequence(tau: str | Sequence[float]) -> tuple[float, ...]:
    """Return weights of directions, of which the last is repeated."""
    if isinstance(tau, str):
        if tau not in TAUS:
            raise UsageError(f"{NAME}: tau is one of {', '.join(TAUS)}, or a list of numbers; got {tau!r}.")
        return (*TAUS[tau], 1.0)
    listed = isinstance(tau, Sequence) and not isinstance(tau, bytes)
    if not listed or not all(map(Number(least=0).takes, tau)) or not any(tau):
        raise UsageError(
            f"{NAME}: tau lists finite numbers from 0 up, one of them above 0; got {tau!r:.100}."
        )
    return tuple(float(value) for value in tau)

"""Covariances of what a layer's filters see: patches of a convolution's input, vectors of a linear layer's.

Source: Maennel et al. (2020), "What Do Neural Networks Learn When Trained With Random Labels?", Sec. 2.1 and 2.5: the
    covariance of k x k x channels patches, for the first layer and, with the layers below fixed, for every further one.
Positions: those that the layer visits by its stride, padding and dilation, and whose patch lies inside its input (the
    VALID ones): a patch that reaches into the padding is not data.
Cost: d x d numbers in float64 for rows of d values; every patch costs d^2 multiplications.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from typing import Any

import attrs
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from compatkit.errors import DataError, UsageError, type_of

from .metrics._moments import NEGLIGIBLE, digests_of, drawn_keys, within_range

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
LARGEST = 8192
"""Largest d: its covariance takes 512 MiB."""
TOLERANCE = 1e-8
"""Eigenvalues closer than this share of the largest count as equal."""
ROWS = 65_536
"""Rows that are converted to float64 at a time."""


def unsuitable(layer: nn.Module) -> str:
    """Return why a layer's filters cannot be compared with patches of its input; empty if they can."""
    plain = next((kind for kind in (*CONVOLUTIONS, nn.Linear) if isinstance(layer, kind)), None)
    if plain is None:
        return f"{type_of(layer)} is neither a convolution nor a linear layer"
    if type(layer).forward is not plain.forward or parametrize.is_parametrized(layer):
        return f"{type_of(layer)} computes its weight or its padding by itself"
    if isinstance(layer, CONVOLUTIONS) and layer.groups != 1:
        return f"it has {layer.groups} groups of channels, whose filters see different inputs"
    weight: Any = layer.weight
    width = weight[0].numel()
    if width > LARGEST:
        return f"its filters have {width:,} values; a covariance of at most {LARGEST:,} fits into memory"
    return ""


def patches_of(layer: nn.Module, inputs: Tensor, keys: Tensor | None = None, limit: int = 0) -> Tensor:
    """Return what a layer's filters are multiplied with, one row a position.

    Args:
        layer: A convolution without groups, or a linear layer.
        inputs: Its input, ``(batch, ...)``.
        keys: Number of each example in its data set, int64 ``(batch,)``; a sample depends on nothing else.
        limit: Number of sampled positions of each example; 0 takes all.

    Returns:
        ``(batch * positions, d)``, in the order of ``layer.weight.flatten(1)``.

    Raises:
        UsageError: The layer is another one.
        DataError: The filters reach over the border everywhere.
    """
    if reason := unsuitable(layer):
        raise UsageError(f"Patches cannot be taken: {reason}.")
    if not isinstance(layer, CONVOLUTIONS):
        grid = inputs.reshape(len(inputs), -1, inputs.shape[-1])
        grid_shape = grid.shape[1:2]
    else:
        grid = _windows(layer, inputs)
        grid_shape = grid.shape[1 : inputs.ndim - 1]
    count = math.prod(grid_shape)
    if keys is None or not 0 < limit < count:
        return grid.reshape(len(inputs) * count, -1)
    every = keys.to(inputs.device)[:, None] * count + torch.arange(count, device=inputs.device)
    chosen = drawn_keys(every, 0).topk(limit, dim=1, largest=False).indices
    at = torch.unravel_index(chosen, grid_shape)
    return grid[(torch.arange(len(inputs), device=inputs.device)[:, None], *at)].flatten(2).flatten(0, 1)


def _windows(layer: nn.Conv1d | nn.Conv2d | nn.Conv3d, inputs: Tensor) -> Tensor:
    """Return a view ``(batch, *positions, channels, *kernel)`` of the windows inside the input."""
    sides = layer.padding if not isinstance(layer.padding, str) else (0,) * len(layer.kernel_size)
    view = inputs
    for axis, (size, stride, dilation, padding) in enumerate(
        zip(layer.kernel_size, layer.stride, layer.dilation, sides, strict=True), 2
    ):
        # Positions are i * stride - padding; the first one inside is the least of these that is not negative.
        first, reach = -padding % stride, (size - 1) * dilation + 1
        if view.shape[axis] - first < reach:
            raise DataError(
                f"The layer {layer} sees {tuple(inputs.shape[2:])} positions and reaches over the border everywhere. "
                "Use larger images, or leave the layer out."
            )
        view = view.narrow(axis, first, view.shape[axis] - first).unfold(axis, reach, stride)
    count = len(layer.kernel_size)
    for axis, dilation in enumerate(layer.dilation, 2 + count):
        view = view[(slice(None),) * axis + (slice(None, None, dilation),)]
    return view.movedim(1, 1 + count)


@attrs.frozen(eq=False)
class PatchMoments:
    """Mean and centered products of rows, in float64.

    Attributes:
        count: Number of rows.
        mean: ``(d,)``.
        products: Sum of (x - mean)(x - mean)', ``(d, d)``.
        digests: Digests of different rows, int64; no more than d + 1 are kept, which is all that ``lacking`` asks for.
    """

    count: int
    mean: Tensor
    products: Tensor
    digests: Tensor

    @classmethod
    def of(cls, rows: Tensor) -> PatchMoments:
        """Return the moments of rows ``(n, d)``, n at least 1."""
        return cls.over(cls._of(some.double()) for some in rows.split(ROWS))

    @classmethod
    def _of(cls, rows: Tensor) -> PatchMoments:
        within_range("patches", rows)
        mean = rows.mean(0)
        return cls(len(rows), mean, (rows - mean).T @ (rows - mean), digests_of(rows, rows.shape[1] + 1))

    @classmethod
    def over(cls, parts: Iterable[PatchMoments]) -> PatchMoments:
        """Return the moments of all parts; there is at least one."""
        return functools.reduce(PatchMoments.merged, parts)

    def merged(self, other: PatchMoments) -> PatchMoments:
        """Return the moments of both (Chan, Golub, LeVeque 1983), on the device of this one."""
        count = self.count + other.count
        step = other.mean.to(self.mean.device) - self.mean
        products = self.products + other.products.to(self.mean.device)
        products = products + torch.outer(step, step) * (self.count * other.count / count)
        digests = torch.cat([self.digests, other.digests.to(self.mean.device)]).unique()
        mean = self.mean + step * (other.count / count)
        return PatchMoments(count, mean, products, digests[: len(mean) + 1])

    @property
    def covariance(self) -> Tensor:
        """Mean of (x - mean)(x - mean)', ``(d, d)``."""
        return self.products / self.count

    @property
    def lacking(self) -> str:
        """Why the rows do not determine the principal directions; empty if they do. A repeated row counts once."""
        width, different = len(self.mean), len(self.digests)
        if different > width:
            constant = self.products.trace() <= self.count * (NEGLIGIBLE * self.mean).square().sum()
            return "its input does not vary" if bool(constant) else ""
        if different == 1:
            return "its input does not vary"
        return f"{different} different patches do not determine the {width} directions of its input"


ONE_DIRECTION = "its input has one value: its only direction is that of every filter"
"""Why nothing is aligned or not where a layer has one input value."""


def principal_directions(covariance: Tensor) -> tuple[Tensor, Tensor]:
    """Return eigenvalues in decreasing order, ``(d,)``, at least 0, and eigenvectors as rows, ``(d, d)``."""
    values, vectors = torch.linalg.eigh(covariance)
    return values.flip(0).clamp(min=0), vectors.T.flip(0)


def filter_covariance(filters: Tensor) -> Tensor:
    """Return the covariance of filters over their own mean, ``(d, d)`` in float64.

    Args:
        filters: Weights ``(out, ...)``; those of several networks are pooled by concatenation.
    """
    return PatchMoments.of(filters.detach().flatten(1)).covariance


@attrs.frozen(eq=False)
class Eigenspaces:
    """The eigenspaces of a covariance.

    Attributes:
        values: Eigenvalues in decreasing order, ``(d,)``.
        vectors: Eigenvectors as rows, ``(d, d)``.
        spaces: Number of the eigenspace of each vector, int64 ``(d,)``, from 0.
    """

    values: Tensor
    vectors: Tensor
    spaces: Tensor

    @classmethod
    def of(cls, covariance: Tensor, tolerance: float = TOLERANCE) -> Eigenspaces:
        """Return the eigenspaces of a covariance ``(d, d)``.

        Args:
            covariance: Symmetric, positive semidefinite.
            tolerance: Neighboring eigenvalues closer than this share of the largest belong to one eigenspace.
        """
        values, vectors = principal_directions(covariance)
        separated = (values[:-1] - values[1:]) > tolerance * values[0]
        spaces = torch.cat([separated.new_zeros(1), separated]).cumsum(0)
        return cls(values, vectors, spaces)

    @property
    def count(self) -> int:
        """Number of eigenspaces."""
        return int(self.spaces[-1]) + 1

    @property
    def arbitrary(self) -> list[str]:
        """Why each vector is arbitrary: its eigenspace has others; empty where it has none."""
        sizes = self.spaces.bincount()[self.spaces].tolist()
        return [
            f"{size} directions have equal variance, and each is arbitrary" if size > 1 else ""
            for size in sizes
        ]

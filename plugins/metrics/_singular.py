"""Layers as matrices: singular values, right singular vectors, matrix inputs and principal angles."""

from __future__ import annotations

import math
from collections.abc import Sequence

import attrs
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from compatkit.errors import UsageError, type_of


@attrs.frozen(eq=False)
class Decomposition:
    """Singular values and right singular vectors of a layer's matrix, in float64.

    Attributes:
        values: Descending, ``(r,)``.
        vectors: Orthonormal rows, ``(r, in)``.
    """

    values: Tensor
    vectors: Tensor

    def rank(self, tolerance: float | None) -> int:
        """Return the number of values above ``tolerance`` times the largest; None for ``usual_tolerance``."""
        share = usual_tolerance(self.vectors.shape[1], len(self.values)) if tolerance is None else tolerance
        return int((self.values > share * self.values[:1].clamp(min=1e-300)).sum())

    def parted(self, rank: int) -> bool:
        """Return whether the first ``rank`` directions are separated from the next by their singular values."""
        return rank >= len(self.values) or bool(
            self.values[rank - 1] - self.values[rank] > 1e-3 * self.values[0]
        )


def usual_tolerance(*shape: int) -> float:
    """Return the relative singular value that is zero in float32: machine epsilon times the larger side."""
    return max(shape) * torch.finfo(torch.float32).eps


def decompose(layer: nn.Module) -> Decomposition:
    """Return the singular value decomposition of a layer's matrix.

    Raises:
        UsageError: The layer is not linear, nor a convolution without groups.
    """
    if (
        not isinstance(layer, (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d))
        or getattr(layer, "groups", 1) != 1
    ):
        raise UsageError(
            f"singular_features takes linear layers and convolutions without groups; got {_called(layer)}."
        )
    _, values, vectors = torch.linalg.svd(layer.weight.detach().flatten(1).double(), full_matrices=False)
    return Decomposition(values, vectors)


def angles(basis: Tensor, other: Tensor) -> Tensor:
    """Return the principal angles of two subspaces in radians, ascending, ``(min(r, s),)``.

    Args:
        basis: Orthonormal rows, ``(r, in)``.
        other: Orthonormal rows, ``(s, in)``.
    """
    if len(basis) < len(other):
        basis, other = other, basis
    cosines = torch.linalg.svdvals(other @ basis.T).clamp(0, 1)
    # Near 1 the cosine loses half the digits of the angle; the sine keeps them.
    sines = torch.linalg.svdvals(other - (other @ basis.T) @ basis).clamp(0, 1).flip(0)
    return torch.where(cosines > math.sqrt(0.5), torch.asin(sines), torch.acos(cosines))


def as_pictures(vectors: Tensor, shape: Sequence[int]) -> Tensor:
    """Return vectors as images ``(n, channels, height, width)``, each scaled to [0, 1].

    Args:
        vectors: ``(n, in)``.
        shape: Channels, height, width; their product is ``in``.
    """
    low, high = vectors.amin(1, keepdim=True), vectors.amax(1, keepdim=True)
    return ((vectors - low) / (high - low).clamp(min=1e-12)).reshape(-1, *shape)


def input_rows(layer: nn.Module, values: Tensor) -> tuple[Tensor, int]:
    """Return the rows that a layer's matrix multiplies, ``(batch * places, in)``, and the places per example.

    Args:
        layer: A linear layer, or a convolution of images without groups.
        values: Its input, ``(batch, ...)``.

    Raises:
        UsageError: The layer is not a matrix.
    """
    if isinstance(layer, nn.Linear):
        rows = values.reshape(-1, values.shape[-1])
    elif isinstance(layer, nn.Conv2d) and layer.groups == 1 and layer.padding_mode == "zeros":
        sides = layer.padding
        if isinstance(sides, str):
            raise UsageError(f"singular_features takes convolutions with numeric padding; got {layer}.")
        patches = F.unfold(values, layer.kernel_size, layer.dilation, sides, layer.stride)  # type: ignore[arg-type]
        rows = patches.transpose(1, 2).flatten(0, 1)
    else:
        raise UsageError(
            f"singular_features takes linear layers and convolutions of images without groups; got {_called(layer)}."
        )
    return rows, len(rows) // len(values)


def _called(layer: nn.Module) -> str:
    """Describe a layer in one line; a container by its type."""
    return f"{type_of(layer)}, which holds other layers" if any(layer.children()) else str(layer)

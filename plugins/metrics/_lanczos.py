"""Eigenvalues of a large symmetric matrix from its products: block Lanczos, and quadrature of its density."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs
import torch
from torch import Tensor

from compatkit.errors import DataError

Product = Callable[[Tensor], Tensor]
"""``(size, b) -> (size, b)``: the matrix times each column."""
ASYMMETRY = 1e-3
"""Largest asymmetry of the projected matrix, relative to its norm; products of a random loss have more."""


@attrs.frozen(eq=False)
class Ritz:
    """Approximate eigenpairs.

    Attributes:
        values: Ascending, float64 ``(m,)``.
        vectors: Orthonormal columns, ``(size, m)``.
        errors: Norms of the residuals as Lanczos estimates them, ``(m,)``.
        converged: Whether those that were wanted are below the tolerance.
    """

    values: Tensor
    vectors: Tensor
    errors: Tensor
    converged: bool


def block_lanczos(
    product: Product,
    size: int,
    select: Callable[[Tensor], Tensor],
    *,
    block: int,
    min_size: int,
    max_size: int,
    tolerance: float,
    draw: torch.Generator,
    like: Tensor,
) -> Ritz:
    """Return Ritz pairs of a symmetric matrix, each step re-orthogonalised against the whole basis.

    Source: Golub and Underwood (1977), the block Lanczos method; Parlett (1998), The Symmetric Eigenvalue Problem,
    Sec. 13.10 and 11.5: |lambda - theta| <= |H x - theta x| for some eigenvalue lambda.

    Args:
        product: Product of the matrix with vectors ``(size, columns)``.
        size: Number of rows of the matrix.
        select: Function of ascending Ritz values; returns the indices of those that must converge.
        block: Columns of a product. Eigenvalues of higher multiplicity are found at most ``block`` times.
        min_size: Smallest number of vectors in the basis.
        max_size: Largest number of vectors in the basis.
        tolerance: Tolerance of a residual, relative to the largest absolute Ritz value.
        draw: Generator of the first block, on the CPU.
        like: Tensor with the dtype and device of the computation.

    Raises:
        DataError: The matrix is not symmetric.
    """
    min_size, max_size = min(min_size, size), min(max_size, size)
    basis = torch.empty(max_size, size, dtype=like.dtype, device=like.device).T  # each vector is contiguous
    projected = torch.zeros(max_size, max_size, dtype=torch.float64, device=like.device)
    filled = _extend(basis, 0, torch.zeros(size, 0), min(block, max_size), draw)
    done, links = 0, projected[:filled, :0]
    while True:
        images = product(basis[:, done:filled])
        known = basis[:, :filled]
        for _ in range(2):  # once more for what rounding left
            along = known.T @ images
            projected[:filled, done:filled] += along.double()
            images = images - known @ along
        square = projected[:filled, :filled]
        # Columns of a block hold its products with all earlier blocks; with later ones they follow by symmetry.
        square = torch.triu(square) + torch.triu(square, 1).T
        own, before = (
            projected[done:filled, done:filled],
            projected[done - links.shape[1] : done, done:filled],
        )
        _check_symmetric((own - own.T, before - links.T), float(square.abs().max()))
        values, shares = torch.linalg.eigh(square)
        last, done = done, filled
        filled = _extend(basis, done, images, min(block, max_size - done), draw)
        links = (basis[:, done:filled].T @ images).double()
        if filled == done:  # no room: what is left over counts whole
            links = torch.linalg.qr(images.double(), mode="r").R if done < size else links
        errors = (links @ shares[last:done]).norm(dim=0)
        scale = values.abs().max().clamp(min=torch.finfo(torch.float64).tiny)
        settled = bool((errors[select(values)] <= tolerance * scale).all())
        if filled == done or (settled and done >= min_size):
            vectors = basis[:, :done] @ shares.to(like.dtype)
            return Ritz(values, vectors, errors, settled)


def _extend(basis: Tensor, filled: int, candidates: Tensor, count: int, draw: torch.Generator) -> int:
    """Fill columns of the basis from candidates, with random ones where they are used up; return the new number."""
    eps = torch.finfo(basis.dtype).eps
    for column in range(count):
        is_candidate = column < candidates.shape[1]
        vector = candidates[:, column] if is_candidate else _random(basis, draw)
        largest, known = float(vector.norm()), basis[:, : filled + column]
        for _ in range(2):
            vector = vector - known @ (known.T @ vector)
        if is_candidate and not float(vector.norm()) > 100 * eps * max(largest, eps):
            vector = _random(basis, draw)  # the block has an invariant direction: go on elsewhere
            for _ in range(3):
                vector = vector - known @ (known.T @ vector)
        basis[:, filled + column] = vector / vector.norm()
    return filled + count


def _random(basis: Tensor, draw: torch.Generator) -> Tensor:
    return torch.randn(len(basis), generator=draw, dtype=torch.float64).to(basis)


def _check_symmetric(differences: Sequence[Tensor], scale: float) -> None:
    asymmetry = max(float(difference.abs().max()) for difference in differences if difference.numel())
    if asymmetry > ASYMMETRY * scale:
        raise DataError(
            f"Hessian products are not symmetric: v'Hu and u'Hv differ by {asymmetry:.3g}. The loss is random or not "
            "twice differentiable; a Hessian needs a network without random numbers in eval mode."
        )


def residuals(product: Product, ritz: Ritz, indices: Tensor, block: int) -> Tensor:
    """Return ``|H x - theta x|`` of Ritz pairs from new products, float64."""
    norms = []
    for chunk in indices.split(block):
        vectors = ritz.vectors[:, chunk]
        difference = product(vectors).double() - vectors.double() * ritz.values[chunk]
        norms.append(difference.norm(dim=0) / vectors.double().norm(dim=0))
    return torch.cat(norms)


def quadrature(
    product: Product, size: int, *, probes: int, steps: int, draw: torch.Generator, like: Tensor
) -> tuple[Tensor, Tensor]:
    """Return nodes and weights whose sum of w f(node) estimates tr f(H) / size, each float64 ``(probes, steps)``.

    Source: Ubaru, Chen and Saad (2017), "Fast Estimation of tr(f(A)) via Stochastic Lanczos Quadrature", Sec. 3;
    exact for polynomials up to degree ``2 steps - 1`` in the direction of each probe.

    Args:
        product: Product of the matrix with vectors ``(size, columns)``.
        size: Number of rows of the matrix.
        probes: Number of random unit vectors; their products share passes.
        steps: Steps of Lanczos, with full re-orthogonalisation.
        draw: Generator of the probes, on the CPU.
        like: Tensor with the dtype and device of the computation.
    """
    steps = min(steps, size)
    start = torch.randn(size, probes, generator=draw, dtype=torch.float64).to(like)
    bases = [start / start.norm(dim=0)]
    matrices = torch.zeros(probes, steps, steps, dtype=torch.float64, device=like.device)
    for step in range(steps):
        images = product(bases[-1])
        for _ in range(2):
            for row, base in enumerate(bases):
                along = (base * images).sum(0)
                matrices[:, row, step] += along.double()
                images = images - base * along
        norms = images.norm(dim=0)
        # A probe whose Krylov space is exhausted goes on with zeros, whose weights are zero.
        bases.append(torch.where(norms > 0, images / norms.clamp(min=torch.finfo(like.dtype).tiny), 0.0))
    nodes, vectors = torch.linalg.eigh(torch.triu(matrices) + torch.triu(matrices, 1).transpose(1, 2))
    return nodes, vectors[:, 0].square()

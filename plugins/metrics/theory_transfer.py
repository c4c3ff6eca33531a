"""Theory of transfer: how far a wide two-layer network moves for the target task, from the source or from scratch.

Paper: "Towards Understanding the Transferability of Deep Representations" (2020), Sec. 6, Theorems 1 and 2.
Equations: for inputs of norm 1, H_ij = x_i.x_j (pi - arccos x_i.x_j) / (2 pi), which is 1/2 on the diagonal;
    y_PQ = H_PQ' H_P^-1 y_P, what a network trained on the source P answers on the target Q; r = y_Q - y_PQ.
    Theorem 2: |W_Q - W_P|_F <= sqrt(r' H_Q^-1 r) + small terms, from scratch sqrt(y_Q' H_Q^-1 y_Q);
    Theorem 1: the squared gradient by the activations changes by |r|^2 - |y_Q|^2 + small terms.
    Several classes: a column of +-1 for each (one column for two classes), squares added up. Columns belong together by
    the names of the classes, by number where the target has none; a target class that the source lacks is learnt from
    scratch (y_PQ = 0).
Control: labels of the source permuted among its examples. It may lie above the bound from scratch, and so may a related
    task: mismatched labels cost more than none. Both are always given. Of many classes each column is mostly -1, which
    any source teaches, noise too: there the bound lies below that from scratch, and where permuted labels put it.
Inputs: flattened images, scaled to norm 1 (the paper's condition). The network that is measured does not enter: this is
    a score of data sets.
Cost: inner products of all pairs of images; then Cholesky factors of n x n numbers in float64, n at most ``examples``.
    Images of bytes under several normalizations share the inner products, which are exact.
Limits: it scores data sets, not networks, and takes images as plain vectors of norm 1. Classes are matched by name.
    Permuted labels lie below the bound from scratch too, so compare with those.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import attrs
import numpy as np
import torch
from scipy.linalg import cho_factor, cho_solve, eigvalsh, get_lapack_funcs
from torch import Tensor

from compatkit import hookimpl, match_classes
from compatkit.errors import DataError, UsageError
from compatkit.evaluation.metrics import Table, TableCell
from compatkit.foundation.limits import COUNT, Number
from compatkit.hooks import Register

from ._loss import LossMetric, SampledExamples
from ._pixels import ZERO, NormalizedImages, UnitRows, Vectors, cosines, remembered
from ._scores import Floats, Labels

compatkit_api = 1
QUANTITIES = ("bound", "from scratch", "permuted", "residual", "label norm", "permuted residual")
REMEMBERED = 4
"""Sets whose factors are kept, of 8 MB for 1,000 images each: many sources are scored for one target."""
_FACTORS: dict[Any, Any] = {}
SMALLEST = 1e-12
"""Least eigenvalue of a Gram matrix, relative to the largest, that is inverted."""
SURE = 1000
"""Factor by which an estimated condition must be better; estimates are seldom off by 3."""


@hookimpl
def compatkit_metrics(register: Register) -> None:
    """Offer ``theory_transfer``."""
    register("theory_transfer", TheoryTransfer)


def gram(left: Floats, right: Floats, *, same: bool = False) -> Floats:
    """Return H of unit vectors, ``(n, m)``.

    Args:
        left: ``(n, d)``.
        right: ``(m, d)``.
        same: Whether they are the same, so that the diagonal is 1/2.
    """
    return _kernel(left @ right.T, same=same)


def _kernel(products: Floats, *, same: bool = False) -> Floats:
    products = products.clip(-1, 1)
    matrix = products * (np.pi - np.arccos(products)) / (2 * np.pi)
    if same:
        np.fill_diagonal(matrix, 0.5)
    return matrix


@attrs.frozen
class Bounds:
    """Bounds of the distance to move, and norms of the residual of the labels.

    Attributes:
        bound: sqrt(r' H_Q^-1 r).
        scratch: sqrt(y_Q' H_Q^-1 y_Q).
        residual: |r|.
        labels: |y_Q|.
    """

    bound: float
    scratch: float
    residual: float
    labels: float


class Transfer:
    """The bounds of a source and a target as a function of the source's labels."""

    def __init__(
        self, source: Floats | NormalizedImages, target: Floats | NormalizedImages, *, jitter: float = 0.0
    ) -> None:
        """Factorize both Gram matrices.

        Args:
            source: Unit vectors, float64 ``(n_P, d)``, or images of bytes.
            target: Unit vectors, float64 ``(n_Q, d)``, or images of bytes under the same normalization.
            jitter: Added to the diagonals.

        Raises:
            DataError: Vectors differ in length from each other or from 1, or a Gram matrix is singular.
        """
        left, right = (UnitRows(side) if isinstance(side, np.ndarray) else side for side in (source, target))
        self.across = _kernel(cosines(left, right))
        self.source, self.target = (
            _factored(inputs, what, jitter) for what, inputs in (("source", left), ("target", right))
        )

    def bounds(self, source: Floats, target: Floats) -> Bounds:
        """Return the bounds for columns of labels.

        Args:
            source: y_P, values in [-1, 1], ``(n_P, columns)``.
            target: y_Q, ``(n_Q, columns)``.

        Raises:
            DataError: A label lies outside.
        """
        if max(np.abs(source).max(), np.abs(target).max()) > 1:
            raise DataError("the theory needs labels from -1 to 1")
        rest = target - self.across.T @ cho_solve(self.source, source)
        bound, scratch = (
            float((labels * cho_solve(self.target, labels)).sum()) ** 0.5 for labels in (rest, target)
        )
        return Bounds(bound, scratch, float(np.linalg.norm(rest)), float(np.linalg.norm(target)))


def _factored(inputs: Vectors, what: str, jitter: float) -> Any:
    """Return the Cholesky factor of the Gram matrix of unit vectors; the last few sets are remembered."""

    def factor() -> Any:
        return _factor(_kernel(cosines(inputs, inputs), same=True), what, jitter)

    return remembered(_FACTORS, (inputs.key, jitter), factor, REMEMBERED)


def _factor(matrix: Floats, what: str, jitter: float) -> Any:
    matrix = matrix + jitter * np.eye(len(matrix))
    # In the 1-norm the condition is no smaller, and estimated in a tenth of the time of eigenvalues.
    with suppress(np.linalg.LinAlgError):
        factor = cho_factor(matrix, lower=True)
        (condition,) = get_lapack_funcs(("pocon",), (matrix,))
        reciprocal, _ = condition(factor[0], np.linalg.norm(matrix, 1), uplo="L")
        if reciprocal > SURE * SMALLEST:
            return factor
    ends = eigvalsh(matrix)
    if not ends[0] > SMALLEST * ends[-1]:
        raise DataError(
            f"the Gram matrix of the {what} is singular: eigenvalues from {ends[0]:.2g} to {ends[-1]:.2g}. Leave out "
            "examples that occur twice, or give a jitter such as 1e-6"
        )
    return cho_factor(matrix, lower=True)


def unit(images: Tensor) -> Floats:
    """Return flattened images of norm 1, float64 ``(n, d)``.

    Raises:
        DataError: An image is zero.
    """
    rows = images.detach().double().cpu().flatten(1).numpy()
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    if not norms.all():
        raise DataError(ZERO)
    return rows / norms


def columns(labels: Labels, outputs: Sequence[int]) -> Floats:
    """Return +-1 columns: column c is +1 where the label is ``outputs[c]``, and zero if that is -1, for no class."""
    values = np.where(labels[:, None] == np.array(outputs), 1.0, -1.0) * (np.array(outputs) >= 0)
    return values[:, :1] if len(outputs) == 2 else values


@attrs.define(eq=False, kw_only=True)
class TheoryTransfer(LossMetric):
    """The table ``theory_transfer``: the bound, that from scratch, with permuted labels; norms of the residual.

    Attributes:
        source: Images of the source as the network takes them, ``(n, ...)``, their labels ``(n,)``, and the names of
            its classes; or an ``.npz`` file with ``images``, ``labels`` and perhaps ``classes``.
        mean: Mean of each channel, on the scale 0 to 1, to normalize images of bytes with, of source and target; empty
            for images as the network takes them. What normalizations share is then computed once.
        std: Standard deviation of each channel, on the same scale.
        examples: Most examples of source and target, each a sample.
        permuted: Draws of permuted source labels, whose mean is the control.
        jitter: Added to the diagonals of the Gram matrices.
    """

    source: tuple[Tensor, Tensor, Sequence[str]] | str
    mean: Sequence[float] = ()
    std: Sequence[float] = ()
    examples: int = attrs.field(default=1000, validator=COUNT)
    permuted: int = attrs.field(default=3, validator=COUNT)
    jitter: float = attrs.field(default=0.0, validator=Number(least=0))

    def __attrs_post_init__(self) -> None:
        for name, limit in (("mean", Number()), ("std", Number(above=0))):
            values = getattr(self, name)
            if not isinstance(values, tuple | list) or len(values) != len(self.mean):
                raise UsageError(
                    f"theory_transfer: mean and std expect a number for each channel, or none; got {self.mean!r:.60} "
                    f"and {self.std!r:.60}.",
                    subject=name,
                )
            for value in values:
                limit.check("theory_transfer", **{name: value})
        if isinstance(self.source, str):
            self.source = _read(self.source)
        images, labels, names = self.source
        if (
            not len(images) == len(labels) > 0
            or int(labels.min()) < 0
            or (names and int(labels.max()) >= len(names))
        ):
            raise DataError(
                f"theory_transfer: source expects images, a label for each, and the names of all classes; got "
                f"{len(images)}, {len(labels)} and {len(names)}.",
                subject="source",
            )

    def finalize(self, state: SampledExamples | None, classes: Sequence[str]) -> Table:
        """Return the table."""
        cells = [TableCell(None, "undefined", "no examples")] * len(QUANTITIES)
        if state is not None:
            try:
                cells = self._cells(state, tuple(classes))
            except DataError as error:
                cells = [TableCell(None, "undefined", str(error))] * len(QUANTITIES)
        return Table(
            name="theory_transfer",
            axes={"quantity": QUANTITIES},
            cells=tuple(cells),
            unit="1",
            direction="lower",
            estimator=f"arccos Gram matrices of unit images, jitter {self.jitter:g}, {self.permuted} permutations",
            count=0 if state is None else len(state.labels),
            paper="Towards Understanding the Transferability of Deep Representations (under review, ICLR 2020)",
            equation="Theorems 1 and 2",
        )

    def _vectors(self, images: Tensor) -> Floats | NormalizedImages:
        if self.mean or self.std:
            return NormalizedImages.of(images, self.mean, self.std)
        return unit(images)

    def _cells(self, state: SampledExamples, classes: tuple[str, ...]) -> list[TableCell]:
        source: Any = self.source
        images, labels, names = source
        sample = LossMetric(examples=self.examples, seed=self.seed).update(
            None, images, labels, _places(labels)
        )
        source_classes = tuple(names) or tuple(str(number) for number in range(int(labels.max()) + 1))
        known = classes or source_classes  # without names, classes belong together by number
        matched = {own: other for other, own in match_classes(source_classes, known)}
        if not matched:
            raise DataError("source and target have no class in common, by name")
        outputs = [matched.get(index, -1) for index in range(len(known))]
        inputs = self._vectors(sample.images), self._vectors(state.images)
        transfer = Transfer(*inputs, jitter=self.jitter)
        targets = columns(state.labels.cpu().numpy(), range(len(known)))
        source_labels = columns(sample.labels.cpu().numpy(), outputs)
        bounds, draw = transfer.bounds(source_labels, targets), np.random.default_rng(self.seed)
        mixed = [
            transfer.bounds(source_labels[draw.permutation(len(source_labels))], targets)
            for _ in range(self.permuted)
        ]
        values = (
            bounds.bound,
            bounds.scratch,
            float(np.mean([mix.bound for mix in mixed])),
            bounds.residual,
            bounds.labels,
            float(np.mean([mix.residual for mix in mixed])),
        )
        missing = [name for index, name in enumerate(known) if index not in matched]
        if missing:
            return [
                TableCell(value, "approximate", f"the source lacks {', '.join(missing)}") for value in values
            ]
        return [TableCell(value) for value in values]


def _read(path: str) -> tuple[Tensor, Tensor, Sequence[str]]:
    try:
        with np.load(path, allow_pickle=False) as archive:
            names = tuple(map(str, archive["classes"])) if "classes" in archive else ()
            return (
                torch.from_numpy(archive["images"]),
                torch.from_numpy(archive["labels"].astype(np.int64)),
                names,
            )
    except (OSError, ValueError, KeyError) as error:
        raise DataError(
            f"{path} cannot be read as a source: {error}. Write images (n, ...) and labels (n,) with numpy.savez.",
            subject=path,
        ) from error


def _places(labels: Tensor) -> Tensor:
    return labels.new_tensor(range(len(labels)))

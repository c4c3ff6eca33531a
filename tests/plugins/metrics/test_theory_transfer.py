"""Theory of transfer: against 50 digits, by hand, on real digits with controls, several classes, refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.linalg import cho_solve
from torch import Tensor

import compatkit as ck
from compatkit.errors import DataError, UsageError
from compatkit.evaluation.metrics import Table
from compatkit.measuring.arrays import on_arrays
from compatkit.training.testing import assert_metric
from compatkit_plugins.metrics.theory_transfer import (
    SMALLEST,
    TheoryTransfer,
    Transfer,
    _factor,
    columns,
    gram,
    unit,
)


def sphere(count: int, width: int, seed: int) -> np.ndarray:
    rows = np.random.default_rng(seed).normal(size=(count, width))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_bounds_equal_fifty_digits() -> None:
    mpmath = pytest.importorskip("mpmath")
    source, target = sphere(12, 6, 0), sphere(10, 6, 1)
    answers = np.where(source[:, :2] > 0, 1.0, -1.0), np.where(target[:, :2] > 0, 1.0, -1.0)
    result = Transfer(source, target).bounds(*answers)
    with mpmath.workdps(50):

        def exact(left: np.ndarray, right: np.ndarray) -> Any:
            made = mpmath.matrix(len(left), len(right))
            for i, name in enumerate(left):
                for j, other in enumerate(right):
                    cosine = mpmath.fsum(
                        mpmath.mpf(a) * mpmath.mpf(b) for a, b in zip(name, other, strict=True)
                    )
                    made[i, j] = cosine * (mpmath.pi - mpmath.acos(cosine)) / (2 * mpmath.pi)
                    if left is right and i == j:
                        made[i, j] = mpmath.mpf(1) / 2
            return made

        own, across, theirs = exact(target, target), exact(source, target), exact(source, source)
        y_p, y_q = (mpmath.matrix(answer.tolist()) for answer in answers)
        rest, inverse = y_q - across.T * mpmath.inverse(theirs) * y_p, mpmath.inverse(own)
        bound, scratch = (
            mpmath.sqrt(sum((item.T * inverse * item)[i, i] for i in range(2))) for item in (rest, y_q)
        )
        assert result.bound == pytest.approx(float(bound), rel=1e-12)
        assert result.scratch == pytest.approx(float(scratch), rel=1e-12)
        assert result.residual == pytest.approx(float(mpmath.mnorm(rest, "f")), rel=1e-12)


def test_two_orthogonal_examples_by_hand() -> None:
    # Orthogonal inputs: H = I / 2, so from scratch sqrt(2 |y|^2); the same examples and labels leave nothing to learn.
    inputs, answers = np.eye(2), np.array([[1.0], [-1.0]])
    assert gram(inputs, inputs, same=True).tolist() == [[0.5, 0], [0, 0.5]]
    result = Transfer(inputs, inputs).bounds(answers, answers)
    assert (result.bound, result.scratch, result.residual) == pytest.approx((0, 2, 0), abs=1e-12)
    result = Transfer(inputs, inputs).bounds(-answers, answers)
    assert (result.bound, result.residual) == pytest.approx((4, 8**0.5))


def parity() -> tuple[tuple[Tensor, Tensor, tuple[str, ...]], tuple[Tensor, Tensor]]:
    """Two halves of real digits, labeled by their parity."""
    data = ck.data.load("digits").train
    images = torch.from_numpy(data.images[:400]).float().flatten(1)[:, ::3] if data.images.ndim == 4 else None
    assert images is not None
    labels = torch.from_numpy(data.labels[:400]) % 2
    return (images[:200], labels[:200], ("even", "odd")), (images[200:], labels[200:])


def values(table: Table) -> dict[str, float]:
    return {names[0]: cell.value for names, cell in table}  # type: ignore[misc]


def test_one_rule_lies_below_scratch_and_below_permuted_labels() -> None:
    source, (images, labels) = parity()
    (table,) = on_arrays([TheoryTransfer(source=source)], {"images": images, "labels": labels})
    result = values(table)  # type: ignore[arg-type]
    assert result["bound"] < result["from scratch"] < result["permuted"]
    assert result["residual"] < result["label norm"] < result["permuted residual"]
    assert result["label norm"] == pytest.approx(200**0.5)


def test_noise_lies_below_scratch_as_permuted_labels_do() -> None:
    # Each of ten columns is -1 for nine examples of ten: that much any source teaches.
    draw = torch.Generator().manual_seed(0)
    source, target = (torch.randn(150, 64, generator=draw) for _ in range(2))
    labels, names = torch.arange(150) % 10, tuple("abcdefghij")
    metric = TheoryTransfer(source=(source, labels, names))
    result = values(metric.finalize(metric.update(None, target, labels, torch.arange(150)), names))
    assert result["bound"] < 0.95 * result["from scratch"] and result["residual"] < result["label norm"]
    assert result["bound"] == pytest.approx(result["permuted"], rel=0.02)
    assert result["residual"] == pytest.approx(result["permuted residual"], rel=0.05)


def test_classes_belong_together_by_name() -> None:
    draw = torch.Generator().manual_seed(0)
    images, labels = torch.randn(40, 30, generator=draw), torch.arange(40) % 3
    split = {"source": (images, labels, ("a", "b", "c"))}
    data = ck.data.Split(np.zeros((40, 1, 1, 1), np.uint8), labels.numpy(), ("a", "b", "c"), "x")
    assert data.classes == ("a", "b", "c")

    def found(source: Any, names: tuple[str, ...]) -> Table:
        metric = TheoryTransfer(source=source, jitter=1e-9)
        return metric.finalize(metric.update(None, images, labels, torch.arange(40)), names)

    same = found(split["source"], ("a", "b", "c"))
    assert same.at(quantity="residual").value == pytest.approx(0, abs=1e-5)
    renamed = found((images, (labels + 1) % 3, ("c", "a", "b")), ("a", "b", "c"))
    assert renamed.at(quantity="residual").value == pytest.approx(0, abs=1e-5)
    partly = found((images, labels, ("a", "b", "z")), ("a", "b", "c"))
    assert partly.at(quantity="bound").status == "approximate" and "c" in partly.at(quantity="bound").reason
    third = Transfer(unit(images), unit(images), jitter=1e-9).bounds(
        columns(labels.numpy(), [0, 1, -1])[:, 2:], columns(labels.numpy(), [0, 1, 2])[:, 2:]
    )
    assert partly.at(quantity="bound").value == pytest.approx(third.scratch, rel=1e-4)
    none = found((images, labels, ("x", "y", "z")), ("a", "b", "c"))
    assert none.at(quantity="bound").status == "undefined"


def test_examples_that_occur_twice_are_refused_without_jitter() -> None:
    inputs = sphere(5, 4, 0)
    twice = np.concatenate([inputs, inputs[:1]])
    with pytest.raises(DataError):
        Transfer(inputs, twice)
    assert Transfer(inputs, twice, jitter=1e-6).bounds(np.ones((5, 1)), np.ones((6, 1))).bound < 1e4


@pytest.mark.parametrize("smallest", [1e-3, 1e-8, 2e-12, 5e-13, 0.0])
def test_matrices_are_refused_by_their_smallest_eigenvalue(smallest: float) -> None:
    draw = np.random.default_rng(0)
    vectors, _ = np.linalg.qr(draw.normal(size=(30, 30)))
    matrix = vectors @ np.diag([smallest, *np.linspace(0.1, 1, 29)]) @ vectors.T
    matrix = (matrix + matrix.T) / 2
    if smallest < SMALLEST:
        with pytest.raises(DataError, match="singular"):
            _factor(matrix, "source", 0.0)
    else:
        answer = cho_solve(_factor(matrix, "source", 0.0), matrix)
        assert answer == pytest.approx(np.eye(30), abs=1e-12 / smallest)


def test_inputs_and_labels_outside_the_theory_are_refused() -> None:
    inputs = sphere(5, 4, 0)
    for wrong in (2 * inputs, sphere(5, 3, 0)):
        with pytest.raises(DataError):
            Transfer(inputs, wrong)
    with pytest.raises(DataError):
        Transfer(inputs, inputs).bounds(np.full((5, 1), 1.5), np.ones((5, 1)))
    with pytest.raises(DataError):
        unit(torch.zeros(2, 3))
    for word, value in (("jitter", -1e-6), ("seed", -1)):
        with pytest.raises(UsageError) as caught:
            TheoryTransfer(source=(torch.ones(2, 2), torch.zeros(2), ("a",)), **{word: value})
        assert caught.value.subject == word
    with pytest.raises(DataError) as caught:
        TheoryTransfer(source=(torch.ones(3, 2), torch.zeros(2), ("a",)))
    assert caught.value.subject == "source"


def test_a_source_may_be_a_file(tmp_path: Path) -> None:
    source, (images, labels) = parity()
    path = tmp_path / "source.npz"
    np.savez(path, images=source[0].numpy(), labels=source[1].numpy(), classes=np.array(["0", "1"]))
    read, inputs = (
        values(on_arrays([TheoryTransfer(source=item)], {"images": images, "labels": labels})[0])  # type: ignore[arg-type]
        for item in (str(path), (*source[:2], ("0", "1")))
    )
    assert read == inputs
    with pytest.raises(DataError) as caught:
        TheoryTransfer(source=str(tmp_path / "none.npz"))
    assert caught.value.subject == str(tmp_path / "none.npz")


def test_it_conforms() -> None:
    draw = torch.Generator().manual_seed(5)
    source = torch.rand(9, 3, 8, 8, generator=draw), torch.arange(9) % 5, tuple("abcde")
    assert_metric(TheoryTransfer, source=source)

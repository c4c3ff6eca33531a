"""Similarity of layers: each metric against a slow float64 reference, invariances and where they end, bad input."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from scipy.spatial import procrustes as scipy_procrustes
from torch import Tensor

from compatkit.errors import DataError, UsageError
from compatkit.evaluation.metrics import Metric, Table, make_metric
from compatkit.training.testing import assert_metric
from compatkit_plugins.metrics import _rows as engine
from compatkit_plugins.metrics.cka import CKA
from compatkit_plugins.metrics.matched_correlation import MatchedCorrelation
from compatkit_plugins.metrics.minibatch_cka import MinibatchCKA
from compatkit_plugins.metrics.mutual_neighbors import MutualNeighbors
from compatkit_plugins.metrics.procrustes import Procrustes
from compatkit_plugins.metrics.pwcca import PWCCA
from compatkit_plugins.metrics.streamed_cka import StreamedCKA
from compatkit_plugins.metrics.svcca import SVCCA

Floats = NDArray[np.float64]
EXACT = {"cka": 4, "streamed_cka": 4, "procrustes": 2, "svcca": 2, "pwcca": 2, "matched_correlation": 2}
"""Metrics whose value does not depend on batches, with the fewest samples that they take."""


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def pair(n: int = 40, p: int = 6, q: int = 9, noise: float = 1.0) -> tuple[Tensor, Tensor]:
    """Return two layers that have some of their directions in common."""
    left = drawn(n, p)
    return left, left @ drawn(p, q, seed=1) + noise * drawn(n, q, seed=2)


def tables(
    metric: Metric, left: Mapping[str, Tensor], right: Mapping[str, Tensor], batch: int = 1000
) -> dict[str, Table]:
    """Let a metric look at layers of two networks, in batches."""
    state = metric.init()
    for at in torch.arange(len(next(iter(left.values())))).split(batch):
        sides = ({name: value[at] for name, value in side.items()} for side in (left, right))
        state = metric.update(state, at, *sides)
    result = metric.finalize(state, left, right)
    return {entry.name: entry for entry in (result if isinstance(result, tuple) else (result,))}


def value(metric: Metric, left: Tensor, right: Tensor, name: str = "", batch: int = 1000) -> float:
    """Return the similarity of two layers, NaN where it is undefined."""
    result = tables(metric, {"x": left}, {"y": right}, batch)
    return float(result[name or next(iter(result))].values[0, 0])


def centered(item: Tensor) -> Floats:
    return np.asarray(item - item.mean(0), dtype=np.float64)


def hsic(floats: Floats, other: Floats) -> float:
    """Return n (n - 3) times the unbiased HSIC of linear kernels (Song et al. 2012, eq. 5), as it is printed there."""
    k, m = floats @ floats.T, other @ other.T
    np.fill_diagonal(k, 0)
    np.fill_diagonal(m, 0)
    n, ones = len(k), np.ones(len(k))
    ends = (ones @ k @ ones) * (ones @ m @ ones) / ((n - 1) * (n - 2))
    return float(np.trace(k @ m) + ends - 2 / (n - 2) * (ones @ k @ m @ ones))


def unbiased(left: Tensor, right: Tensor) -> float:
    x, y = left.numpy(), right.numpy()
    return hsic(x, y) / math.sqrt(hsic(x, x) * hsic(y, y))


def biased(left: Tensor, right: Tensor) -> float:
    x, y = centered(left), centered(right)
    norm = np.linalg.norm
    return float(norm(y.T @ x) ** 2 / (norm(x.T @ x) * norm(y.T @ y)))


def aligned(left: Tensor, right: Tensor) -> float:
    """Return 1 - min |X - Y Q|^2 / 2 from scipy's Procrustes disparity 1 - s^2, s the sum of the singular values."""
    width = max(left.shape[1], right.shape[1])
    x, y = (np.pad(item.numpy(), ((0, 0), (0, width - item.shape[1]))) for item in (left, right))
    return math.sqrt(1 - scipy_procrustes(x, y)[2])


def canonical(left: Floats, right: Floats) -> tuple[Floats, Floats]:
    """Return canonical correlations and left directions, from the covariances of layers of full rank."""
    xx, yy, xy = left.T @ left, right.T @ right, left.T @ right
    values, vectors = np.linalg.eig(np.linalg.solve(xx, xy) @ np.linalg.solve(yy, xy.T))
    order = np.argsort(-values.real)[: min(xy.shape)]
    return np.sqrt(values.real[order]), left @ vectors.real[:, order]


def svcca(left: Tensor, right: Tensor, share: float = 0.99) -> float:
    def leading(item: Tensor) -> Floats:
        u, s, _ = np.linalg.svd(centered(item), full_matrices=False)
        path_kept = int(np.argmax(np.cumsum(s**2) / np.sum(s**2) >= share)) + 1
        return u[:, :path_kept] * s[:path_kept]

    return float(canonical(leading(left), leading(right))[0].mean())


def pwcca(left: Tensor, right: Tensor) -> float:
    x, y = centered(left), centered(right)
    if x.shape[1] > y.shape[1]:
        x, y = y, x
    correlations, directions = canonical(x, y)
    weights = np.abs((directions / np.linalg.norm(directions, axis=0)).T @ x).sum(1)
    return float((weights * correlations).sum() / weights.sum())


def neighbors(left: Tensor, right: Tensor, k: int = 5) -> float:
    """Return shared nearest neighbors by cosine, sample by sample."""

    def nearest(item: Tensor, at: int) -> set[int]:
        x = item.numpy()
        near = [-np.inf if i == at else row @ x[at] / np.linalg.norm(row) for i, row in enumerate(x)]
        return set(np.argsort(near)[-k:].tolist())

    return float(np.mean([len(nearest(left, i) & nearest(right, i)) / k for i in range(len(left))]))


def matched(left: Tensor, right: Tensor) -> float:
    result = np.corrcoef(left.numpy().T, right.numpy().T)[: left.shape[1], left.shape[1] :]
    return float(result[linear_sum_assignment(result, maximize=True)].mean())


REFERENCES: dict[str, tuple[Metric, str, Callable[[Tensor, Tensor], float]]] = {
    "unbiased": (CKA(), "cka", unbiased),
    "biased": (CKA(), "cka/biased", biased),
    "streamed, unbiased": (StreamedCKA(), "streamed_cka", unbiased),
    "streamed, biased": (StreamedCKA(), "streamed_cka/biased", biased),
    "procrustes": (Procrustes(), "procrustes", aligned),
    "svcca": (SVCCA(), "svcca", svcca),
    "pwcca": (PWCCA(), "pwcca", pwcca),
    "neighbors": (MutualNeighbors(neighbors=5), "mutual_neighbors", neighbors),
    "matched": (MatchedCorrelation(), "matched_correlation", matched),
}


@pytest.mark.parametrize("which", REFERENCES)
@pytest.mark.parametrize(("p", "q"), [(6, 9), (9, 6), (7, 7)])
def test_values_are_those_of_the_slow_reference(which: str, p: int, q: int) -> None:
    metric, name, reference = REFERENCES[which]
    left, right = pair(p=p, q=q)
    expected = reference(left, right)
    assert 0.05 < expected < 0.98, "a value that could not be right by chance"
    assert value(metric, left, right, name) == pytest.approx(expected, abs=1e-10)
    narrow = left.float(), right.float()
    assert value(metric, *narrow, name) == pytest.approx(
        reference(*(entry.double() for entry in narrow)), abs=1e-6
    )


@pytest.mark.parametrize("which", ["unbiased", "biased", "procrustes"])
def test_values_with_fewer_samples_than_columns_are_those_of_the_slow_reference(which: str) -> None:
    metric, name, reference = REFERENCES[which]
    left, right = pair(n=12, p=30, q=50)
    assert value(metric, left, right, name) == pytest.approx(reference(left, right), abs=1e-10)


@pytest.mark.parametrize(("n", "p", "q"), [(40, 6, 9), (30, 50, 60)])
def test_values_are_those_of_other_packages(n: int, p: int, q: int) -> None:
    ckatorch = pytest.importorskip("ckatorch.core", reason="pip install ckatorch==1.0.3 repsim==0.1.5")
    repsim = pytest.importorskip("repsim")
    left, right = pair(n, p, q)
    for name, fair in (("cka", True), ("cka/biased", False)):
        theirs = ckatorch.cka_base(left - left.mean(0), right - right.mean(0), unbiased=fair)
        assert value(CKA(), left, right, name) == pytest.approx(float(theirs), abs=1e-12)
    both = [left.numpy(), right.numpy()]
    biased = repsim.cka(both, kernel_type="linear", estimator="gretton")[0, 1]
    assert value(CKA(), left, right, "cka/biased") == pytest.approx(biased, abs=1e-12)
    result = repsim.hsic(both, kernel_type="linear", estimator="song")  # its cka divides by something else
    fair = result[0, 1] / math.sqrt(result[0, 0] * result[1, 1])
    assert value(CKA(), left, right) == pytest.approx(fair, abs=1e-12)
    # repsim truncates no directions, and takes the mean of the weights of both sides
    if n > p + q:
        assert value(SVCCA(share=1.0), left, right) == pytest.approx(
            repsim.svcca(both, summary_type="pillai")[0, 1], abs=1e-12
        )
        other = left @ drawn(p, p, seed=8) + drawn(
            n, p, seed=9
        )  # of as many directions: the first gives weights
        two = [value(PWCCA(), left, other), value(PWCCA(), other, left)]
        theirs = repsim.pwcca([left.numpy(), other.numpy()])[0, 1]
        assert sum(two) / 2 == pytest.approx(theirs, abs=1e-10)


@pytest.mark.parametrize("which", [entry for entry in REFERENCES if entry != "neighbors"])
def test_a_large_offset_changes_nothing(which: str) -> None:
    metric, name, reference = REFERENCES[which]
    left, right = (
        (side * 2**12).round() / 2**12 for side in pair()
    )  # so that adding 100 loses no digit in float32
    expected = reference(left, right)
    assert value(metric, left + 1000, right - 1000, name) == pytest.approx(expected, abs=1e-10)
    assert value(metric, left.float() + 100, right.float() + 100, name) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("scale", [1e-30, 1e-10, 1e8, 1e30])
@pytest.mark.parametrize("name", [*EXACT, "minibatch_cka"])
def test_the_range_of_float32_changes_nothing(name: str, scale: float) -> None:
    left, right = (side.float() for side in pair())  # their fourth powers leave the range at 1e10 and 1e-10
    expected, result = (
        tables(make_metric(name), {"x": item}, {"y": right}, 20) for item in (left, left * scale)
    )
    for table, match in result.items():
        assert match.values[0, 0] == pytest.approx(expected[table].values[0, 0], abs=1e-6)


def test_without_centering_the_unbiased_estimate_would_be_wrong() -> None:
    left, right = ((side + 100).float().numpy() for side in pair())
    naive = hsic(left, right) / math.sqrt(abs(hsic(left, left) * hsic(right, right)))
    assert not naive == pytest.approx(unbiased(*pair()), abs=0.01), "the reason for the test above"


def test_blocks_of_any_size_give_the_same_products(monkeypatch: pytest.MonkeyPatch) -> None:
    left, right = pair(n=37)
    expected = tables(CKA(), {"a": left, "b": right}, {"c": right})
    for stack, values, summed in ((1, 1, 3), (37 * 8 * 3 * 10, 80, 16), (2**20, 7, 50)):
        monkeypatch.setattr(engine, "STACK", stack)
        monkeypatch.setattr(engine, "VALUES", values)
        monkeypatch.setattr(engine, "SUMMED", summed)
        result = tables(CKA(), {"a": left, "b": right}, {"c": right}, batch=5)
        for name, match in result.items():
            np.testing.assert_allclose(match.values, expected[name].values, atol=1e-12)
        wide = drawn(12, 90), drawn(12, 40, seed=1)
        assert value(Procrustes(), *wide) == pytest.approx(aligned(*wide), abs=1e-10)


@pytest.mark.parametrize("name", [*EXACT, "mutual_neighbors"])
def test_a_table_has_all_layers_by_all_layers(name: str) -> None:
    metric = make_metric(name)
    x, y = pair()
    layers = {"first": x, "second": y, "third": x.square()}
    result = next(iter(tables(metric, layers, layers).values()))
    assert result.axes == {"this": tuple(layers), "other": tuple(layers)}
    assert result.count == 40
    np.testing.assert_allclose(result.values.diagonal(), 1, atol=1e-12)
    np.testing.assert_allclose(result.values, result.values.T, atol=0.1 if name == "pwcca" else 1e-12)
    for i, layer in enumerate(layers.values()):
        for j, other in enumerate(layers.values()):
            assert result.values[i, j] == pytest.approx(value(metric, layer, other), abs=1e-10)


@pytest.mark.parametrize("name", [*EXACT, "mutual_neighbors"])
def test_it_streams(name: str) -> None:
    settings = {"neighbors": 3} if name == "mutual_neighbors" else {}
    assert_metric(lambda **kwargs: make_metric(name, **kwargs), **settings)


ROTATED, SCALED, SHIFTED, MAPPED, PERMUTED = "rotated", "scaled", "shifted", "mapped", "permuted"
INVARIANT: dict[str, set[str]] = {
    "cka": {ROTATED, SCALED, SHIFTED, PERMUTED},
    "streamed_cka": {ROTATED, SCALED, SHIFTED, PERMUTED},
    "procrustes": {ROTATED, SCALED, SHIFTED, PERMUTED},
    "svcca": {ROTATED, SCALED, SHIFTED, PERMUTED},
    "pwcca": {SCALED, SHIFTED, PERMUTED},
    "matched_correlation": {SCALED, SHIFTED, PERMUTED},
    "mutual_neighbors": {ROTATED, SCALED, PERMUTED},
}


@pytest.mark.parametrize("name", INVARIANT)
def test_what_a_similarity_is_invariant_to_and_what_not(name: str) -> None:
    left, right = pair(p=6, q=9)
    rotation = torch.linalg.qr(drawn(6, 6, seed=5)).Q
    changed = {
        ROTATED: left @ rotation,
        SCALED: 3 * left,
        SHIFTED: left + 10 * drawn(6, seed=6),
        MAPPED: left * torch.tensor([0.01, 0.1, 1, 3, 10, 30]) @ rotation,
        PERMUTED: left[:, torch.tensor([3, 1, 5, 0, 2, 4])],
    }
    metric = make_metric(name)
    plain = value(metric, left, right)
    same = {how for how, entry in changed.items() if abs(value(metric, entry, right) - plain) < 1e-9}
    assert same == INVARIANT[name]
    order = torch.randperm(40, generator=torch.Generator().manual_seed(1))
    assert value(metric, left[order], right[order]) == pytest.approx(plain, abs=1e-10), "order of the samples"


def test_unrelated_layers() -> None:
    """Few samples raise the biased estimate and Procrustes, not the unbiased estimate; neighbors are at chance."""
    left, right = drawn(50, 50), drawn(50, 50, seed=1)
    assert value(CKA(), left, right, "cka/biased") > 0.4
    assert abs(value(CKA(), left, right)) < 0.1
    assert value(Procrustes(), left, right) > 0.7
    assert value(MutualNeighbors(), left, right) == pytest.approx(10 / 49, abs=0.1)


def test_the_estimator_says_that_samples_are_few() -> None:
    result = tables(CKA(), {"x": drawn(50, 100)}, {"y": drawn(50, 20)})
    assert (
        "0.5 samples a value" in result["cka/biased"].estimator and "samples" not in result["cka"].estimator
    )
    assert (
        "samples a value"
        not in tables(CKA(), {"x": drawn(50, 10)}, {"y": drawn(50, 20)})["cka/biased"].estimator
    )


def test_svcca_keeps_only_the_directions_with_the_share() -> None:
    strong = drawn(60, 2) * 100
    left, right = torch.cat([strong, drawn(60, 5, seed=1)], 1), torch.cat([strong, drawn(60, 5, seed=2)], 1)
    assert value(SVCCA(), left, right) == pytest.approx(1, abs=1e-3)
    assert value(SVCCA(share=1.0), left, right) < 0.8


def test_minibatches_are_the_mean_of_unbiased_estimates() -> None:
    left, right = pair(n=50)
    batches = torch.arange(48).split(20)  # 20, 20 and 8; two more are left out
    sums = [
        sum(hsic(*(side[at].numpy() for side in both)) / (len(at) - 3) for at in batches)
        for both in ((left, right), (left, left), (right, right))
    ]
    still = torch.full((50, 3), 0.1)
    metric = MinibatchCKA()
    state = metric.init()
    for at in (*batches, torch.tensor([48, 49])):
        state = metric.update(state, at, {"x": left[at], "still": still[at]}, {"y": right[at]})
    result = metric.finalize(state, {}, {})
    cell = result.at(this="x", other="y")
    assert cell.value == pytest.approx(sums[0] / math.sqrt(sums[1] * sums[2]), abs=1e-10)
    assert cell.status == "approximate" and result.count == 48 and "1 of 8, 2 of 20" in result.estimator
    assert result.at(this="still", other="y").status == "undefined"


def test_the_value_of_minibatches_depends_on_their_size_and_one_batch_is_exact() -> None:
    left, right = pair(n=50)
    whole = value(MinibatchCKA(), left, right)
    assert whole == pytest.approx(unbiased(left, right), abs=1e-10)
    assert value(MinibatchCKA(), left, right, batch=25) != pytest.approx(whole, abs=1e-4)
    metric = MinibatchCKA()
    parts = torch.arange(50).split(25)
    halves = [metric.update(metric.init(), at, {"x": left[at]}, {"y": right[at]}) for at in parts]
    merged = metric.finalize(metric.merge(*halves), {}, {})
    assert merged.values[0, 0] == pytest.approx(value(metric, left, right, batch=25), abs=1e-12)


MAPS = drawn(10, 3, 4, 5)


@pytest.mark.parametrize(
    ("how", "values", "rows"),
    [
        ("all", MAPS, MAPS.reshape(10, 60)),
        ("pooled", MAPS, MAPS.mean((2, 3))),
        ("positions", MAPS, MAPS.permute(0, 2, 3, 1).reshape(200, 3)),
        ("pooled", MAPS.flatten(2).mT, MAPS.mean((2, 3))),
        ("positions", MAPS.flatten(2).mT, MAPS.permute(0, 2, 3, 1).reshape(200, 3)),
        ("pooled", MAPS[:, :, 0, 0], MAPS[:, :, 0, 0]),
        ("positions", MAPS[:, :, 0, 0], MAPS[:, :, 0, 0]),
    ],
)
def test_maps_and_tokens_become_rows(how: str, values: Tensor, rows: Tensor) -> None:
    right = drawn(len(rows), 4, seed=1)
    if len(rows) == 10:
        result = value(CKA(flatten=how), values, right)
    else:  # as maps too, so that the rows of both are positions
        result = value(CKA(flatten=how), values, right.view(10, 4, 5, 4).permute(0, 3, 1, 2))
    assert result == pytest.approx(value(CKA(), rows, right), abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int64])
def test_other_types_are_compared_as_float32(dtype: torch.dtype) -> None:
    left, right = ((10 * side).to(dtype) for side in pair())
    assert value(CKA(), left, right) == value(CKA(), left.float(), right.float())


def spoiled(what: float) -> Tensor:
    made = drawn(40, 6)
    made[3, 2] = what
    return made


UNDEFINED = {
    "zero variance": torch.full((40, 6), 0.1),
    "not finite": spoiled(math.nan),
    "values are not finite": spoiled(math.inf),
}


@pytest.mark.parametrize("reason", UNDEFINED)
@pytest.mark.parametrize("name", [*EXACT, "mutual_neighbors", "minibatch_cka"])
def test_a_layer_without_similarity_is_undefined_with_its_reason(name: str, reason: str) -> None:
    x, y = pair(p=6, q=6)
    layers = {"x": x, "bad": UNDEFINED[reason]}
    result = next(iter(tables(make_metric(name), layers, {"y": y}, batch=13).values()))
    assert result.at(this="x", other="y").value == pytest.approx(value(make_metric(name), x, y, batch=13))
    cell = result.at(this="bad", other="y")
    assert (
        cell.value is None and cell.status == "undefined" and "bad" in cell.reason and reason in cell.reason
    )


def test_layers_of_other_row_counts_are_undefined_and_the_rest_is_compared() -> None:
    small, large = drawn(10, 3, 2, 2), drawn(10, 3, 4, 4, seed=1)
    result = tables(CKA(flatten="positions"), {"s": small, "l": large}, {"s": small, "l": large})["cka"]
    np.testing.assert_allclose(result.values.diagonal(), 1)
    assert result.at(this="s", other="l").status == "undefined"
    assert "40 rows cannot be paired with 160" in result.at(this="s", other="l").reason


@pytest.mark.parametrize("name", ["cka", "streamed_cka"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_samples_that_share_nothing_have_no_unbiased_similarity(name: str, dtype: torch.dtype) -> None:
    eye = torch.eye(8, dtype=dtype)  # no off-diagonal entry of the Gram varies
    result = tables(make_metric(name), {"x": eye}, {"x": eye})
    assert result[name].cells[0].status == "undefined" and "not above 0" in result[name].cells[0].reason
    assert result[f"{name}/biased"].cells[0].value == pytest.approx(1)


def test_a_negative_unbiased_similarity_is_reported_as_it_is() -> None:
    assert min(value(CKA(), drawn(30, 40), drawn(30, 40, seed=seed)) for seed in range(1, 9)) < 0


def test_forced_correlations_are_degenerate() -> None:
    for metric in (SVCCA(share=1.0), PWCCA()):
        (result,) = tables(metric, {"x": drawn(20, 12)}, {"y": drawn(20, 12, seed=1)}).values()
        assert result.cells[0].status == "degenerate" and "forced" in result.cells[0].reason
        (result,) = tables(metric, {"x": drawn(30, 12)}, {"y": drawn(30, 12, seed=1)}).values()
        assert result.cells[0].status == "ok"


def test_equal_distances_are_degenerate() -> None:
    left = drawn(40, 6)
    left[5:25] = left[5]
    cell = tables(MutualNeighbors(), {"x": left}, {"y": drawn(40, 6, seed=1)})["mutual_neighbors"].cells[0]
    assert cell.status == "degenerate" and "samples have equally near ones" in cell.reason


def test_constant_channels_count_as_0_and_are_counted() -> None:
    left, right = pair(p=4, q=4)
    left[:, 1] = 7
    cell = tables(MatchedCorrelation(), {"x": left}, {"x": left})["matched_correlation"].cells[0]
    assert cell.value == pytest.approx(3 / 4) and cell.status == "degenerate" and "1 of 4" in cell.reason
    partial = tables(MatchedCorrelation(), {"x": left[:, :1]}, {"y": right})["matched_correlation"].cells[0]
    assert partial.status == "approximate" and "1 of 4" in partial.reason
    negative = value(MatchedCorrelation(absolute=True), right, -right)
    assert negative == pytest.approx(1) and value(MatchedCorrelation(), right, -right) < 0.9


@pytest.mark.parametrize("name", EXACT)
def test_too_few_samples_are_refused(name: str) -> None:
    least = EXACT[name]
    with pytest.raises(DataError) as error:
        value(make_metric(name), drawn(least - 1, 3), drawn(least - 1, 3, seed=1))
    assert error.value.subject == name


REFUSED: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "flatten": (lambda: CKA(flatten="mean"), UsageError, "usage"),
    "share": (lambda: SVCCA(share=0.0), UsageError, "usage"),
    "neighbors": (lambda: MutualNeighbors(neighbors=0), UsageError, "usage"),
    "distance": (lambda: MutualNeighbors(distance="far"), UsageError, "usage"),
    "more neighbors than samples": (lambda: value(MutualNeighbors(), *pair(n=11)), DataError, "data"),
    "minibatches of positions of two sizes": (
        lambda: value(MinibatchCKA(flatten="positions"), MAPS, MAPS[:, :, :2]),
        DataError,
        "data",
    ),
    "positions of two sizes": (
        lambda: value(StreamedCKA(flatten="positions"), MAPS, MAPS[:, :, :2]),
        DataError,
        "data",
    ),
    "columns": (
        lambda: value(StreamedCKA(), torch.zeros(4, 10000), torch.zeros(4, 10000)),
        DataError,
        "data",
    ),
    "dimensions": (
        lambda: value(CKA(flatten="pooled"), MAPS[None].expand(10, *MAPS.shape), MAPS),
        DataError,
        "data",
    ),
    "complex": (lambda: value(CKA(), MAPS.to(torch.complex64), MAPS), DataError, "data"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refusals(what: str) -> None:
    act, error, code = REFUSED[what]
    with pytest.raises(error) as refused:
        act()
    assert getattr(refused.value, "code", "") == code

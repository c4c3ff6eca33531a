"""Every metric of arrays over inputs that tell nothing, or that cost digits: a value is right, or it is not ``ok``.

References are the formulas in long double, written out slowly.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
import pytest

import compatkit as ck
from compatkit.errors import DataError
from compatkit.evaluation.metrics import Metric, Table, TableCell, make_metric
from compatkit.plugins.discovery import names

Wide = np.longdouble
COUNT = 60


def draw(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


LABELS = np.arange(COUNT) % 3
THIS = draw(0).normal(size=(COUNT, 5)) * [9, 3, 1, 1, 0.5] + 2 * np.eye(3, 5)[LABELS]
OTHER = THIS[:, ::-1] + draw(1).normal(size=(COUNT, 5))
FILTERS = draw(2).normal(size=(30, 5))
LOGITS = draw(3).normal(size=(COUNT, 3)) + np.eye(3)[LABELS]
CODES = draw(4).normal(size=(COUNT, 4))
PAIR, SCORED, PATCHES = (THIS, OTHER), (THIS, LABELS), (THIS, FILTERS)
TAKES: dict[str, tuple[np.ndarray, ...]] = {
    "accuracy": (LOGITS, LABELS),
    "cka": PAIR,
    "cross_correlation": PAIR,
    "eigenvector_match": PATCHES,
    "h_score": SCORED,
    "leep": (LOGITS, LABELS),
    "logme": SCORED,
    "matched_correlation": PAIR,
    "minibatch_cka": PAIR,
    "misalignment": PATCHES,
    "mutual_information_plane": (THIS, LOGITS, LABELS),
    "mutual_neighbors": PAIR,
    "nce": (LOGITS, LABELS),
    "posterior_collapse": (CODES,),
    "procrustes": PAIR,
    "pwcca": PAIR,
    "retrieval": (*PAIR, LABELS),
    "specialization": (THIS,),
    "streamed_cka": PAIR,
    "svcca": PAIR,
    "transfer_function": PATCHES,
}
SETTINGS: dict[str, dict[str, Any]] = {
    "mutual_neighbors": {"neighbors": 2, "distance": "euclidean"},
    "retrieval": {"distance": "euclidean"},
    "cross_correlation": {"shuffles": 0},
    "svcca": {"share": 1.0},
}
OTHERS = {
    "gradient_projection",
    "gradient_scale",
    "hessian_spectrum",
    "loss_landscape",
    "loss_variation",
    "reconstruction",
    "singular_features",
    "stable_rank",
    "theory_transfer",
    "weight_deviation",
    "weight_map",
}
"""Run a network, look at weights alone, or need a setting that is no array; tested elsewhere."""


def test_every_metric_is_here_or_named_as_tested_elsewhere() -> None:
    assert set(names("metrics")) == set(TAKES) | OTHERS


@cache
def made(metric: str, **settings: Any) -> Metric:
    return make_metric(metric, **(settings or SETTINGS.get(metric, {})))


def samples(metric: str, change: Callable[[np.ndarray], np.ndarray]) -> list[np.ndarray]:
    """The arrays of a metric with their rows changed; filters are no samples."""
    return [array if array is FILTERS else change(array) for array in TAKES[metric]]


def cells(metric: str, arrays: list[np.ndarray]) -> dict[str, tuple[TableCell, ...]] | str:
    """The cells of each result, or why the arrays were refused."""
    try:
        measured = ck.measure_arrays(made(metric), *arrays)
    except DataError as error:
        return str(error)
    return {
        name: result.cells
        if isinstance(result, Table)
        else (TableCell(result.value, result.status, result.reason),)
        for name, result in measured.items()
    }


def sound(result: dict[str, tuple[TableCell, ...]] | str, table: str) -> Iterator[float]:
    """Values of a table that claim to be right."""
    if not isinstance(result, str):
        yield from (cell.value for cell in result[table] if cell.status == "ok" and cell.value is not None)


def two_often(array: np.ndarray) -> np.ndarray:
    return np.repeat(array[:2], 20, 0)


def first_often(array: np.ndarray) -> np.ndarray:
    return array if array.ndim == 1 else np.repeat(array[:1], COUNT, 0)


FEW: dict[str, tuple[Callable[[np.ndarray], np.ndarray], set[str]]] = {
    "one sample": (
        lambda array: array[:1],
        {"accuracy", "specialization", "posterior_collapse"},  # counts of one sample are what they are
    ),
    "two samples, twenty times each": (
        two_often,
        {
            *("accuracy", "specialization", "posterior_collapse", "leep", "nce", "mutual_information_plane"),
            *("retrieval", "h_score"),  # of labels as these figures are defined: copies are of one class
        },
    ),
    "all samples the same": (
        first_often,
        {"accuracy", "specialization", "posterior_collapse", "mutual_information_plane"},
    ),
}


@pytest.mark.parametrize("metric", TAKES)
@pytest.mark.parametrize("few", FEW)
def test_too_few_different_samples_never_give_a_figure_that_is_ok(few: str, metric: str) -> None:
    change, exact = FEW[few]
    result = cells(metric, samples(metric, change))
    if metric in exact:
        return
    main = metric if isinstance(result, str) or metric in result else f"{metric}/information"
    assert not list(sound(result, main)), result
    assert isinstance(result, str) or all(cell.reason for cell in result[main])


def repeated(array: np.ndarray) -> np.ndarray:
    return np.repeat(array[:8], 8, 0)


@pytest.mark.parametrize("metric", TAKES)
def test_one_value_a_sample_is_measured_or_refused_with_a_reason(metric: str) -> None:
    arrays = [array if array.ndim == 1 else array[:, :1] for array in TAKES[metric]]
    result = cells(metric, arrays)
    if metric in ("misalignment", "eigenvector_match"):  # of one direction, all filters have the same
        assert not list(sound(result, metric))
    if metric == "transfer_function":
        sigma, tau = (float(arrays[i].std()) for i in (0, 1))
        assert list(sound(result, metric)) == pytest.approx([sigma, tau])
    assert isinstance(result, str) or all(
        cell.reason for line in result.values() for cell in line if cell.status != "ok"
    )


@pytest.mark.parametrize("metric", ["cka", "streamed_cka", "minibatch_cka"])
def test_the_estimates_of_cka_judge_repeated_samples_alike(metric: str) -> None:
    copies = [np.repeat(array[:5], 12, 0) for array in PAIR]
    for name, measure_array in ck.measure_arrays(metric, *copies).items():
        assert isinstance(measure_array, Table) and measure_array.cells[0].status == "degenerate", name
        assert "5 of 60" in measure_array.cells[0].reason
    for measure_array in ck.measure_arrays(metric, *PAIR).values():
        assert isinstance(measure_array, Table) and measure_array.cells[0].status in ("ok", "approximate")


@pytest.mark.parametrize("table", ["procrustes", "cka/biased"])
def test_samples_equally_far_from_each_other_force_a_rotation(table: str) -> None:
    def cell(count: int, width: int) -> tuple[TableCell, float]:
        drawn = [draw(seed).normal(size=(count, width)) for seed in (1, 2)]
        metric = make_metric(table.split("/")[0])
        first = ck.measure_arrays(metric, *drawn).table(table).cells[0]
        again = ck.measure_arrays(metric, drawn[0], drawn[1][::-1].copy()).table(table).cells[0]
        assert first.value is not None and again.value is not None
        return first, abs(first.value - again.value)  # of another pairing

    for count in (4, 5, 20):
        forced, change = cell(count, 512)
        assert forced.status == "degenerate" and "equally far" in forced.reason
        assert change < 0.05
    for count, width in ((60, 5), (300, 512), (1000, 64)):
        assert cell(count, width)[0].status == "ok"


def test_channels_that_count_as_constant_for_want_of_digits_are_said() -> None:
    result = cells("cross_correlation", [array + 1e12 for array in PAIR])
    assert not isinstance(result, str)
    assert not list(sound(result, "cross_correlation"))
    dead = [array * (np.arange(5) > 0) + 0.1 for array in PAIR]
    first = ck.measure_arrays("cross_correlation", *dead).table("cross_correlation").cells[0]
    assert first.status == "ok"


@pytest.mark.parametrize("scale", [1e-150, 1e-80, 1e80, 1e140])
def test_fourth_powers_that_leave_float64_are_refused_as_such(scale: float) -> None:
    result = cells("minibatch_cka", [array * scale for array in PAIR])
    assert isinstance(result, str) and "range of" in result


@pytest.mark.parametrize("metric", ["cka", "svcca", "pwcca", "mutual_neighbors"])
def test_figures_that_copies_of_samples_force_are_degenerate(metric: str) -> None:
    result = cells(metric, samples(metric, repeated))
    assert not isinstance(result, str) and result[metric][0].status == "degenerate"
    # float32 outputs of one image differ a little between batches
    noise = 1 + 1e-7 * draw(9).normal(size=(64, 5))
    noisy = [(repeated(array) * noise).astype(np.float32) for array in PAIR]
    if metric != "mutual_neighbors":
        table = ck.measure_arrays(made(metric), *noisy).table(metric)
        assert table.cells[0].status == "degenerate"
    fresh = ck.measure_arrays(made(metric), *(draw(seed).normal(size=(64, 5)) for seed in (5, 6)))
    assert fresh.table(metric).cells[0].status == "ok"


@pytest.mark.parametrize("metric", TAKES)
def test_no_more_samples_than_dimensions_is_said_where_it_decides(metric: str) -> None:
    result = cells(metric, samples(metric, lambda array: array[:5]))
    if metric in ("misalignment", "transfer_function", "eigenvector_match", "svcca", "pwcca"):
        assert not list(sound(result, metric))


def centered(values: np.ndarray) -> np.ndarray:
    values = values.astype(Wide)
    return values - values.mean(0)


def biased_cka(a: np.ndarray, b: np.ndarray) -> float:
    a, b = centered(a), centered(b)
    return float(((a.T @ b) ** 2).sum() / np.sqrt(((a.T @ a) ** 2).sum() * ((b.T @ b) ** 2).sum()))


def unbiased_cka(a: np.ndarray, b: np.ndarray) -> float:
    grams = [centered(item) @ centered(item).T for item in (a, b)]

    def product(k: np.ndarray, m: np.ndarray) -> Any:
        n = len(k)
        k, m = k - np.diag(np.diag(k)), m - np.diag(np.diag(m))
        last = 2 / (n - 2) * (k.sum(0) @ m.sum(0))
        return (k * m).sum() + k.sum() * m.sum() / ((n - 1) * (n - 2)) - last

    return float(product(*grams) / np.sqrt(product(grams[0], grams[0]) * product(grams[1], grams[1])))


def direct_correlation(a: np.ndarray, b: np.ndarray) -> float:
    a, b = centered(a), centered(b)
    return float(((a * b).sum(0) / np.sqrt((a**2).sum(0) * (b**2).sum(0))).mean())


def retrieved(a: np.ndarray, b: np.ndarray) -> float:
    """Share of a's images whose nearest other image of b has their class, by Euclidean distance."""
    apart = ((centered(a)[:, None] + a.astype(Wide).mean(0) - b.astype(Wide)[None]) ** 2).sum(2)
    np.fill_diagonal(apart, np.inf)
    return float((LABELS[apart.argmin(1)] == LABELS).mean())


def spreads(a: np.ndarray, _: np.ndarray) -> float:
    """Deviation of the data along its first principal direction, by power iteration in long double."""
    a = centered(a)
    vector = np.ones(a.shape[1], Wide)
    for _step in range(2000):
        vector = a.T @ (a @ vector)
        vector /= np.sqrt((vector**2).sum())
    return float(np.sqrt(((a @ vector) ** 2).mean()))


REFERENCES: dict[str, tuple[str, Callable[[np.ndarray, np.ndarray], float]]] = {
    "cka": ("cka", unbiased_cka),
    "streamed_cka": ("streamed_cka/biased", biased_cka),
    "cross_correlation": ("cross_correlation", direct_correlation),
    "retrieval": ("retrieval", retrieved),
    "transfer_function": ("transfer_function", spreads),
}
CHANGES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "as they are": lambda array: array,
    "a mean of 1e8": lambda array: array + 1e8,
    "a mean of -1e9 in one feature": lambda array: array - 1e9 * np.eye(1, array.shape[1]),
    "times 1e60": lambda array: array * 1e60,
    "times 1e-60": lambda array: array * 1e-60,
    "one dead feature": lambda array: array * (np.arange(array.shape[1]) > 0),
}


@pytest.mark.parametrize("metric", REFERENCES)
@pytest.mark.parametrize("change", CHANGES)
def test_values_are_those_of_the_formula_in_long_double(change: str, metric: str) -> None:
    table, reference = REFERENCES[metric]
    features = [array for array in TAKES[metric] if array.ndim == 2 and array is not FILTERS]
    changed = [CHANGES[change](array) for array in features]
    if metric == "cross_correlation" and change == "one dead feature":
        wanted = (
            direct_correlation(changed[0][:, 1:], changed[1][:, 1:]) * 4 / 5
        )  # a dead channel counts as 0
    elif metric == "retrieval":
        wanted = retrieved(changed[0], changed[1])
    else:
        wanted = reference(changed[0], changed[-1])
    rest = [array for array in TAKES[metric] if array.ndim == 1 or array is FILTERS]
    result = ck.measure_arrays(made(metric), *changed, *rest).table(table)
    value = result.cells[1 if metric == "retrieval" else 0].value
    assert value == pytest.approx(wanted, rel=1e-6)


@pytest.mark.parametrize(
    "metric", ["procrustes", "svcca", "pwcca", "matched_correlation", "mutual_neighbors"]
)
@pytest.mark.parametrize("change", ["a mean of 1e8", "times 1e60", "times 1e-60"])
def test_neither_mean_nor_scale_changes_what_does_not_see_them(change: str, metric: str) -> None:
    plain, changed = cells(metric, [*PAIR]), cells(metric, samples(metric, CHANGES[change]))
    assert not isinstance(plain, str) and not isinstance(changed, str)
    assert changed[metric][0].value == pytest.approx(plain[metric][0].value, rel=1e-6)


@pytest.mark.parametrize("metric", TAKES)
@pytest.mark.parametrize("scale", [1e200, 1e-200])
def test_values_whose_squares_leave_float64_are_refused_or_right(scale: float, metric: str) -> None:
    """No figure is called undefined or ``ok`` for another reason than its own."""
    result = cells(
        metric, samples(metric, lambda array: array * scale if array.dtype == np.float64 else array)
    )
    plain = cells(metric, [*TAKES[metric]])
    invariant = {
        *("cka", "procrustes", "svcca", "pwcca", "matched_correlation", "mutual_neighbors"),
        "retrieval",
    }
    if metric in invariant | {"logme", "h_score", "minibatch_cka", "nce", "accuracy"}:
        assert not isinstance(result, str) and not isinstance(plain, str)
        for name, wanted in plain.items():
            assert [cell.value for cell in result[name]] == pytest.approx(
                [cell.value for cell in wanted], rel=1e-6
            )
    elif isinstance(result, str):
        assert "range of float64" in result


def test_spread_of_latent_variables_with_a_large_mean() -> None:
    shifted = CODES + np.array([1e8, 1e8, 0, 0])
    table = ck.measure_arrays("posterior_collapse", shifted).table("units")
    wanted = (centered(CODES[:, :2]) ** 2).mean(0)
    assert table.values[:, 0] == pytest.approx([float(entry) for entry in wanted], rel=1e-6)


def test_one_class_says_nothing_of_classes() -> None:
    same, first = np.zeros(COUNT, np.int64), LOGITS[:, :1]
    assert ck.measure_arrays("accuracy", first, same)["accuracy"].status == "degenerate"  # type: ignore[union-attr]
    for metric in ("logme", "h_score", "leep", "nce"):
        assert {cell.status for cell in ck.measure_arrays(metric, THIS, same).table(metric).cells} == {
            "undefined"
        }
    for name in ("retrieval", "retrieval/average_precision"):
        table = ck.measure_arrays("retrieval", *PAIR, same).table(name)
        assert {cell.status for cell in table.cells} == {"degenerate"}
    coarse = np.round(THIS[:, :1])
    plane = ck.measure_arrays("mutual_information_plane", coarse, first, same, edges=3)
    cell = plane.table("mutual_information_plane/information").at(layer="array", quantity="I(T;Y)")
    assert (cell.value, cell.status) == (0.0, "degenerate")


@pytest.mark.parametrize(("count", "bins"), [(50, 50), (49, 7), (60, 20), (1000, 100), (7, 3)])
def test_fractions_at_an_edge_are_in_the_bin_above(count: int, bins: int) -> None:
    active = np.arange(count + 1)  # inputs that activate each unit
    outputs = (np.arange(count)[:, None] < active).astype(float)
    table = ck.measure_arrays("specialization", outputs, bins=bins).table("specialization/units")
    wanted = np.bincount(np.minimum(active * bins // count, bins - 1), minlength=bins) / (count + 1)
    assert table.values[0] == pytest.approx(wanted)

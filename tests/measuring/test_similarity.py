"""Similarity of recorded layers and of runs of networks; metrics on arrays; which samples may be compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

import compatkit as ck
from compatkit.errors import DataError, UsageError
from compatkit.evaluation.metrics import make_metric
from compatkit.measuring.activations import Activations
from compatkit.measuring.arrays import on_arrays, roles_of

Floats = NDArray[np.floating[Any]]


def drawn(*shape: int, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).normal(size=shape)


def run(seed: int, n: int = 30) -> dict[str, Floats]:
    """Return two layers of a run that has something in common with the other runs."""
    common = drawn(n, 4)
    return {
        "first": common + 0.3 * drawn(n, 4, seed=seed),
        "last": common[:, :2] @ drawn(2, 6, seed=seed) + 0.5 * drawn(n, 6, seed=seed + 100),
    }


def recorded(layers: dict[str, Floats], *, digest: str = "a", order: Sequence[int] = ()) -> Activations:
    positions = np.array(order or range(len(next(iter(layers.values())))), dtype=np.int64)
    return Activations(layers, positions, {"data": digest, "data_digest": digest, "flatten": "all"})


def test_recorded_layers_give_what_a_pass_through_both_networks_gives() -> None:
    torch.manual_seed(0)
    left, right = (nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)) for _ in range(2))
    data = torch.randn(20, 5), torch.zeros(20, dtype=torch.int64)
    names = ["cka", "procrustes", "mutual_neighbors"]
    measured = ck.measure(left, data, names, layers=["*"], other=right, batch_size=6)
    sides = [ck.activations(item, data, layers=["*"]) for item in (left, right)]
    result = ck.similarity(*sides, names)
    assert set(result) == set(measured) and result.settings["order"] == sides[0].order
    for name in result:
        assert result.table(name).axes == measured.table(name).axes
        np.testing.assert_allclose(result.table(name).values, measured.table(name).values, atol=1e-6)


def test_all_pairs_of_runs_are_kept_with_mean_and_spread() -> None:
    lefts, rights = [run(seed) for seed in (1, 2, 3)], [run(seed) for seed in (4, 5)]
    result = ck.similarity(lefts, rights)
    assert list(result) == [
        f"{name}{end}" for name in ("cka", "cka/biased", "procrustes") for end in ("", "/mean", "/spread")
    ]
    table = result.table("cka")
    assert table.axes == {
        "this run": ("0", "1", "2"),
        "other run": ("0", "1"),
        "this": ("first", "last"),
        "other": ("first", "last"),
    }
    for i, left in enumerate(lefts):
        for j, right in enumerate(rights):
            single = ck.similarity(left, right).table("cka").values
            np.testing.assert_allclose(table.values[i, j], single, atol=1e-12)
    np.testing.assert_allclose(result.table("cka/mean").values, table.values.mean((0, 1)), atol=1e-12)
    np.testing.assert_allclose(
        result.table("cka/spread").values, table.values.reshape(6, 2, 2).std(0, ddof=1), atol=1e-12
    )
    assert "mean over 6 pairs" in result.table("cka/mean").estimator


def test_a_run_with_itself_is_left_out_of_the_mean() -> None:
    runs = [run(seed) for seed in (1, 2, 3)]
    result = ck.similarity(runs)
    values = result.table("cka").values[:, :, 0, 0]
    np.testing.assert_allclose(values.diagonal(), 1)
    apart = values[~np.eye(3, dtype=bool)]
    assert result.table("cka/mean").at(this="first", other="first").value == pytest.approx(apart.mean())
    whole = ck.similarity(runs, exclude_same=False).table("cka/mean")
    assert whole.at(this="first", other="first").value == pytest.approx(values.mean())


def test_shuffled_samples_have_no_similarity() -> None:
    first = recorded(run(1, n=200))
    plain, mixed = (ck.similarity(first, other).table("cka").values for other in (first, first.shuffled()))
    assert plain.diagonal().min() > 0.99 and np.abs(mixed).max() < 0.1


def test_undefined_cells_of_runs_are_told_in_the_mean() -> None:
    runs = [run(seed) for seed in (1, 2)]
    runs[1]["last"] = np.ones((30, 6))
    mean = ck.similarity(runs, [run(3)]).table("cka/mean")
    cell = mean.at(this="last", other="first")
    assert cell.status == "degenerate" and "1 of 2 pairs" in cell.reason and "zero variance" in cell.reason
    runs[0]["last"] = np.ones((30, 6))
    assert (
        ck.similarity(runs, [run(3)]).table("cka/mean").at(this="last", other="first").status == "undefined"
    )


def test_float64_of_any_order_of_bytes_keeps_its_digits() -> None:
    exact = ck.similarity(run(1), run(2)).table("cka").values
    swapped = {name: value.astype(">f8") for name, value in run(1).items()}
    assert np.array_equal(ck.similarity(swapped, run(2)).table("cka").values, exact)


def test_values_that_are_not_finite_are_refused_or_marked() -> None:
    layers = run(1)
    layers["last"][7, 1] = np.nan
    with pytest.raises(DataError) as error:
        ck.similarity(layers, run(2))
    assert error.value.subject == "last" and "row 7" in str(error.value)
    table = ck.similarity(layers, run(2), nonfinite="mark").table("cka")
    assert table.at(this="last", other="first").status == "undefined"
    assert table.at(this="first", other="first").status == "ok"


REFUSED: dict[str, tuple[Callable[[], Any], str, Any]] = {
    "other images": (lambda: ck.similarity(recorded(run(1)), recorded(run(2), digest="b")), "data", "b"),
    "another order": (
        lambda: ck.similarity(recorded(run(1)), recorded(run(2), order=[0, 1, 3, 2, *range(4, 30)])),
        "data",
        2,
    ),
    "fewer images": (lambda: ck.similarity(recorded(run(1)), recorded(run(2, n=29))), "data", 29),
    "fewer rows": (lambda: ck.similarity(run(1), run(2, n=29)), "data", "first"),
    "other layers in a run": (lambda: ck.similarity([run(1), {"first": drawn(30, 4)}], run(2)), "data", 1),
    "no layers": (lambda: ck.similarity({}, run(2)), "usage", "left"),
    "no arrays by layer": (lambda: ck.similarity(drawn(3, 3), run(2)), "usage", "left"),
    "words": (lambda: ck.similarity({"x": np.array(["a", "b"])}, run(2)), "data", "x"),
    "nothing": (lambda: ck.similarity({"x": np.zeros((0, 3))}, run(2)), "data", "x"),
    "rows of several lengths": (lambda: ck.similarity({"x": [[1.0], [2.0, 3.0]]}, run(2)), "data", "x"),
    "a sparse tensor": (lambda: ck.similarity({"x": torch.eye(30).to_sparse()}, run(2)), "data", "x"),
    "masked values": (
        lambda: ck.similarity({"x": np.ma.masked_array(drawn(30, 3), mask=drawn(30, 3) > 0)}, run(2)),
        "data",
        "x",
    ),
    "another metric": (lambda: ck.similarity(run(1), run(2), ["accuracy"]), "usage", "Accuracy"),
    "a metric without pairs of layers": (
        lambda: ck.similarity([run(1), run(2)], [run(3), run(4)], ["cross_correlation"]),
        "usage",
        "cross_correlation",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_refusals(what: str) -> None:
    act, code, subject = REFUSED[what]
    with pytest.raises((UsageError, DataError)) as error:
        act()
    assert (error.value.code, error.value.subject) == (code, subject)


def test_every_installed_metric_says_which_arrays_it_takes() -> None:
    pair = ("outputs", "other_outputs")
    expected = {
        "accuracy": ("logits", "labels"),
        "cka": pair,
        "cross_correlation": pair,
        "misalignment": ("inputs", "weights"),
        "mutual_information_plane": ("outputs", "logits", "labels"),
        "retrieval": (*pair, "labels"),
        "specialization": ("outputs",),
        "transfer_function": ("inputs", "weights"),
        "eigenvector_match": ("inputs", "weights"),
        "posterior_collapse": ("outputs",),
    }
    assert {name: roles_of(make_metric(name)) for name in expected} == expected
    assert roles_of(make_metric("weight_deviation", examples=4)) == ("weights", "other_weights")
    with pytest.raises(UsageError) as error:
        roles_of(make_metric("reconstruction"))
    assert error.value.code == "usage"


def test_metrics_of_arrays_give_what_they_give_in_a_pass() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 12), nn.Tanh(), nn.Linear(12, 3)).double()
    images, labels = torch.randn(40, 5, dtype=torch.float64), torch.arange(40) % 3
    hidden = model[0](images).detach()
    logits = model(images).detach()
    measured = ck.measure(
        model, (images, labels), ["accuracy", "misalignment", "specialization"], layers=["0"]
    )
    (accuracy,) = on_arrays(["accuracy"], {"logits": logits.numpy(), "labels": labels.numpy()})
    assert accuracy.to_json() == measured["accuracy"].to_json()
    weights: Any = model[0].weight
    settings = {"inputs": images.numpy(), "weights": weights}
    (result, _) = on_arrays(["misalignment"], settings)
    expected = measured.table("misalignment")
    for basis in ("data", "random"):
        assert result.at(layer="array", network="this", basis=basis) == expected.at(
            layer="0", network="this", basis=basis
        )  # type: ignore[union-attr]
    active = on_arrays(["specialization"], {"outputs": {"0": hidden}}, batch_size=7)
    assert attrs.asdict(active[0]) == attrs.asdict(measured["specialization"])


def test_weights_alone_are_arrays_too() -> None:
    before, after = drawn(4, 6), drawn(4, 6, seed=1)
    settings = {"weights": {"fc": after}, "other_weights": {"fc": before}}
    (result,) = on_arrays([make_metric("weight_deviation", examples=9)], settings)
    cell = result.at(layer="fc", quantity="deviation")  # type: ignore[union-attr]
    assert cell.value == pytest.approx(np.linalg.norm(after - before) / 3, rel=1e-6)

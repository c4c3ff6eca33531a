"""Misalignment, transfer function and eigenvector match: closed forms by hand, direct minimization, properties."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from small import data_set, quick
from torch import Tensor, nn

import compatkit as ck
from compatkit.errors import DataError, UnknownName, UsageError
from compatkit.evaluation.metrics import Observation, Subject, Table
from compatkit.training.testing import assert_metric
from compatkit_plugins.metrics.eigenvector_match import (
    EigenvectorMatch,
    MatchedDirections,
    expected_best,
    match_pictures,
)
from compatkit_plugins.metrics.misalignment import Misalignment, misalignment, random_basis, shrunk
from compatkit_plugins.metrics.transfer_function import TransferFunction, transfer_curve
from compatkit_plugins.patch_covariance import Eigenspaces


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def rotation(width: int, seed: int = 0) -> Tensor:
    return torch.linalg.qr(drawn(width, width, seed=seed))[0]


def positive(width: int, seed: int = 0) -> Tensor:
    some = drawn(width, 2 * width, seed=seed)
    return some @ some.T / width


def diagonal(*values: float) -> Tensor:
    return torch.diag(torch.tensor(values, dtype=torch.float64))


def minimized(data: Tensor, weights: Tensor, groups: list[list[int]]) -> float:
    """Minimize tr(S^-1 B + B^-1 S) / 2 - d over the eigenvalues of an S with the eigenspaces of A, numerically."""
    vectors = torch.linalg.eigh(data)[1].flip(1).numpy()
    matrix, inverse = weights.numpy(), np.linalg.inv(weights.numpy())
    projections = [vectors[:, group] @ vectors[:, group].T for group in groups]

    def value(logs: Any) -> float:
        aligned = sum(np.exp(log) * projection for log, projection in zip(logs, projections, strict=True))
        back = sum(np.exp(-log) * projection for log, projection in zip(logs, projections, strict=True))
        return np.trace(back @ matrix + inverse @ aligned) / 2 - len(matrix)

    start = np.zeros(len(groups))
    return minimize(value, start, method="BFGS", options={"gtol": 1e-9}).fun


@pytest.mark.parametrize(
    ("eigenvalues", "groups"),
    [
        ((5.0, 4.0, 3.0, 2.0, 1.0), [[0], [1], [2], [3], [4]]),
        ((3.0, 3.0, 2.0, 1.0, 1.0), [[0, 1], [2], [3, 4]]),
        ((2.0, 2.0, 2.0, 2.0, 2.0), [[0, 1, 2, 3, 4]]),
        ((2.0, 1.0, 0.0, 0.0, 0.0), [[0], [1], [2, 3, 4]]),  # data without variance in three directions
    ],
)
def test_the_closed_form_is_the_least_of_the_definition(
    eigenvalues: tuple[float, ...], groups: list[list[int]]
) -> None:
    turn, weights = rotation(5), positive(5, seed=1)
    data = turn @ diagonal(*eigenvalues) @ turn.T
    spaces = Eigenspaces.of(data)
    assert spaces.count == len(groups)
    assert misalignment(spaces, weights) == pytest.approx(minimized(data, weights, groups), abs=1e-10)


def test_two_dimensions_by_hand() -> None:
    # B with variances 1 and 4 along axes turned by 45 degrees: diagonal 2.5, 2.5, of its inverse .625, .625.
    turn = torch.tensor([[1.0, -1.0], [1.0, 1.0]], dtype=torch.float64) / 2**0.5
    weights = turn @ diagonal(1, 4) @ turn.T
    assert misalignment(Eigenspaces.of(diagonal(2, 1)), weights) == pytest.approx(
        2 * (2.5 * 0.625) ** 0.5 - 2
    )
    # One eigenspace: tr B tr B^-1 = 5 * 1.25.
    assert misalignment(Eigenspaces.of(diagonal(1, 1)), weights) == pytest.approx((5 * 1.25) ** 0.5 - 2)


@settings(deadline=None, max_examples=20)
@given(st.integers(2, 8), st.integers(0, 10_000), st.floats(1e-3, 1e3))
def test_it_is_zero_where_aligned_and_depends_on_no_scale_and_no_rotation(
    width: int, seed: int, scale: float
) -> None:
    data, weights, turn = positive(width, seed), positive(width, seed + 1), rotation(width, seed)
    value = misalignment(Eigenspaces.of(data), weights)
    assert value >= 0
    same = {"rel": 1e-6, "abs": 1e-8}
    assert misalignment(Eigenspaces.of(data), scale * weights) == pytest.approx(value, **same)
    assert misalignment(Eigenspaces.of(data @ data), weights) == pytest.approx(value, **same)
    assert misalignment(Eigenspaces.of(data), torch.linalg.inv(weights)) == pytest.approx(value, **same)
    turned = misalignment(Eigenspaces.of(turn @ data @ turn.T), turn @ weights @ turn.T)
    assert turned == pytest.approx(value, **same)
    assert misalignment(Eigenspaces.of(data), scale * data @ data) == pytest.approx(0, abs=1e-8)


def test_it_is_not_zero_where_only_the_space_is_shared() -> None:
    # I is aligned with every matrix, but only multiples of I are aligned with I.
    assert misalignment(Eigenspaces.of(diagonal(3, 2, 1)), diagonal(1, 1, 1)) == pytest.approx(0, abs=1e-12)
    assert misalignment(Eigenspaces.of(diagonal(1, 1, 1)), diagonal(3, 2, 1)) > 0.1


def test_equal_eigenvalues_are_grouped_within_the_tolerance() -> None:
    data = diagonal(1.0, 1 - 1e-6, 0.5)
    assert Eigenspaces.of(data).count == 3
    assert Eigenspaces.of(data, 1e-5).count == 2


def test_a_random_basis_is_orthonormal_and_keeps_the_dimensions() -> None:
    spaces = Eigenspaces.of(diagonal(2, 2, 1))
    result = random_basis(spaces, torch.Generator().manual_seed(0))
    assert (result.vectors @ result.vectors.T).numpy() == pytest.approx(np.eye(3), abs=1e-12)
    assert result.count == 2
    assert not torch.allclose(result.vectors.abs(), spaces.vectors.abs())


def test_a_singular_covariance_is_refused() -> None:
    with pytest.raises(DataError):
        misalignment(Eigenspaces.of(diagonal(2, 1)), diagonal(1, 0))
    assert misalignment(Eigenspaces.of(diagonal(2, 1)), shrunk(diagonal(1, 0), 0.5)) == pytest.approx(
        0, abs=1e-12
    )


def test_the_transfer_curve_by_hand() -> None:
    turn = rotation(3)
    data, weights = turn @ diagonal(9, 4, 1) @ turn.T, turn @ diagonal(0.25, 1, 4) @ turn.T
    sigma, tau = transfer_curve(data, weights)
    assert sigma.tolist() == pytest.approx([3, 2, 1])
    assert tau.tolist() == pytest.approx([0.5, 1, 2])


def test_the_curves_of_a_trained_network_are_those_of_numpy() -> None:
    data, kwargs = data_set("a"), {"channels": [4, 5], "img_size": 12, "reduce": "none"}
    task = ck.Task("a", data, "conv_chain", "layer1", size=12, kwargs=kwargs)
    fit, start = quick(steps=3).fit([task]), quick(steps=0).fit([task])
    layers = ["layer1.linear", "layer2.linear"]
    table = ck.measure(
        fit.tasks["a"],
        data.test,
        ["transfer_function"],
        layers=layers,
        other=start.tasks["a"],
        batch_size=17,
    ).table("transfer_function")
    state, weights = fit.tasks["a"].data, [entry.weights("a") for entry in (fit, start)]
    mean, std = (np.array(entry)[:, None, None] for entry in (state.mean, state.std))
    given = (data.test.images.transpose(0, 3, 1, 2) / 255 - mean) / std
    for name in layers:
        patches = np.concatenate(
            [given[:, :, i : i + 3, j : j + 3].reshape(48, -1) for i, j in np.ndindex(10, 10)]
        )
        values, vectors = np.linalg.eigh(np.cov(patches.T, bias=True))
        expected = [np.sqrt(values[::-1])]
        for state_dict in weights:
            filters = np.cov(
                state_dict[f"{name}.weight"].double().numpy().reshape(-1, len(values)).T, bias=True
            )
            expected.append(np.sqrt(np.einsum("ij,ik,kj->j", vectors, filters, vectors)[::-1]))
        leading = values[::-1] > 1e-4 * values[-1]
        for quantity, curve in zip(("sigma", "tau", "tau-other"), expected, strict=True):
            row = table.values[layers.index(name), table.axes["quantity"].index(quantity)][: len(values)]
            assert row[leading] == pytest.approx(curve[leading], rel=1e-4)
        weight, bias = (weights[0][f"{name}.{kind}"].double() for kind in ("weight", "bias"))
        given = nn.functional.conv2d(torch.from_numpy(given), weight, bias, padding=1).relu().numpy()


def test_matches_by_hand() -> None:
    # The filters' directions lie in the plane of v1 and v2, turned by 30 degrees; the third is v3.
    cos, sin = 3**0.5 / 2, 0.5
    turn = torch.tensor([[cos, -sin, 0], [sin, cos, 0], [0, 0, 1.0]], dtype=torch.float64)
    weights = turn @ diagonal(3, 2, 1) @ turn.T
    result = MatchedDirections.of(diagonal(7, 6, 5), weights, 3)
    assert result.cosines.abs().numpy() == pytest.approx(np.abs(turn.numpy().T), abs=1e-12)
    assert result.matching.tolist() == [[True, True, False], [True, True, False], [False, False, True]]
    assert result.combined.norm(dim=1).tolist() == pytest.approx([1, 1, 1])
    alone = MatchedDirections.of(diagonal(7, 6, 5), weights, 3, threshold=0.6)
    assert alone.combined.norm(dim=1).tolist() == pytest.approx([cos, cos, 1])
    images, titles = match_pictures(result, (3, 1, 1))
    assert images.shape == (6, 3, 1, 1)
    assert titles == ["w1", "v1+v2", "w2", "v1+v2", "w3", "v3"]
    assert ck.pictures.signed(images, titles).startswith(b"\x89PNG")
    with pytest.raises(UsageError):
        match_pictures(result, (1, 2, 2))


def test_chance_is_that_of_random_directions() -> None:
    exact = 2 * 2**0.5 / np.pi  # the mean of max(|cos|, |sin|) over angles
    assert expected_best(2) == pytest.approx(exact, abs=0.01)


LAYER = nn.Conv2d(2, 40, 2)
FACTORIES: list[Callable[..., Any]] = [Misalignment, TransferFunction, EigenvectorMatch]


def observations(layer: nn.Module, images: Tensor, *cuts: int) -> list[Observation]:
    return [
        Observation(
            images=images[at],
            labels=torch.zeros(len(at), dtype=torch.long),
            positions=at,
            logits=torch.zeros(len(at), 2),
            inputs={"conv": images[at]},
        )
        for at in torch.tensor_split(torch.arange(len(images)), cuts)
    ]


def measured(
    metric: Any, layer: nn.Module, images: Tensor, other: nn.Module | None = None
) -> dict[str, Table]:
    state = metric.init()
    for seen in observations(layer, images):
        state = metric.update(state, seen.positions, seen.inputs, {"conv": layer})
    others = {} if other is None else {"conv": other}
    both = (
        (state, {"conv": layer}) if isinstance(metric, EigenvectorMatch) else (state, {"conv": layer}, others)
    )
    result = metric.finalize(*both)
    return {entry.name: entry for entry in (result if isinstance(result, tuple) else (result,))}


@pytest.mark.parametrize("factory", FACTORIES)
@pytest.mark.parametrize("patches", [None, 3])
def test_they_stream(factory: Callable[..., Any], patches: int | None) -> None:
    images = drawn(9, 2, 5, 5).float()
    about = Subject(network=LAYER, layers={"conv": LAYER}, other_layers={"conv": LAYER})
    assert_metric(factory, batches=observations(LAYER, images, 4), subject=about, patches=patches)


def test_a_network_beside_its_start_and_random_bases() -> None:
    # Data with a strong direction; filters that use it more than others, against isotropic ones.
    turn, images = rotation(8), drawn(4000, 2, 2, 2)
    shaped = (images.flatten(1) * torch.linspace(0.5, 3, 8, dtype=torch.float64)) @ turn
    trained, start = nn.Conv2d(2, 400, 2), nn.Conv2d(2, 400, 2)
    with torch.no_grad():
        start.weight.copy_(drawn(400, 2, 2, 2, seed=1))
        aligned = (drawn(400, 8, seed=2) * torch.linspace(0.2, 2, 8, dtype=torch.float64)) @ turn
        trained.weight.copy_(aligned.reshape(400, 2, 2, 2))
    result = measured(Misalignment(), trained, shaped.reshape(4000, 2, 2, 2).float(), start)
    table = result["misalignment"]
    values = {key[1:]: cell.value for key, cell in table}
    assert values["this", "data"] < 0.3 < 1 < values["this", "random-least"] <= values["this", "random"]
    # The start is aligned with nothing and everything: what is left is noise of about d^2 / (2 n) in every basis.
    assert values["other", "data"] == pytest.approx(values["other", "random"], abs=0.06)
    assert values["other", "random"] == pytest.approx(64 / 800, abs=0.04)
    counts = {key[1]: cell.value for key, cell in result["misalignment/counts"]}
    assert counts == {"filters": 400, "dimensions": 8, "eigenspaces": 8, "patches": 4000}


def test_filters_of_further_networks_are_pooled() -> None:
    images, few = drawn(50, 2, 4, 4).float(), nn.Conv2d(2, 8, 2)
    alone = measured(Misalignment(), few, images)["misalignment"].at(
        layer="conv", network="this", basis="data"
    )
    assert (alone.value, alone.status) == (None, "undefined")
    further = [{"conv.weight": drawn(8, 2, 2, 2, seed=seed).float()} for seed in range(3)]
    result = measured(Misalignment(further=further), few, images)
    assert result["misalignment/counts"].at(layer="conv", what="filters").value == 32
    pooled = nn.Conv2d(2, 32, 2)
    with torch.no_grad():
        pooled.weight.copy_(torch.cat([few.weight, *(entry["conv.weight"] for entry in further)]))
    wanted = measured(Misalignment(), pooled, images)["misalignment"]
    assert result["misalignment"].cells == wanted.cells
    shrinking = measured(Misalignment(shrinkage=0.1), few, images)["misalignment"]
    assert all(cell.status == "ok" for cell in shrinking.cells)
    assert "shrinkage 0.1" in shrinking.estimator


def test_what_cannot_be_pooled_is_refused() -> None:
    images = drawn(5, 2, 4, 4).float()
    for weights in ({}, {"conv.weight": drawn(8, 2, 3, 3)}):
        with pytest.raises(UsageError) as caught:
            measured(TransferFunction(further=[weights]), LAYER, images)
        assert caught.value.subject == "conv.weight"


@pytest.mark.parametrize(
    ("factory", "wrong"),
    [
        (Misalignment, {"draws": 0}),
        (Misalignment, {"tolerance": 1.0}),
        (Misalignment, {"shrinkage": 0.0}),
        (Misalignment, {"patches": 0}),
        (EigenvectorMatch, {"top": 0}),
        (EigenvectorMatch, {"threshold": 1.0}),
    ],
)
def test_settings_that_cannot_be_used_are_refused(factory: Callable[..., Any], wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        factory(**wrong)


def test_layers_of_a_trained_network_by_name() -> None:
    data = data_set("a")
    task = ck.Task("a", data, "conv_chain", "layer1", size=12, kwargs={"channels": [12, 4], "img_size": 12})
    fit, start = quick(steps=2).fit([task]), quick(steps=0).fit([task])
    names = ["misalignment", "transfer_function", "eigenvector_match"]
    table = ck.measure(
        fit.tasks["a"], data.test, names, layers=["layer?.linear", "fc"], other=start.tasks["a"]
    )
    first = table.table("misalignment").at(layer="layer1.linear", network="this", basis="data")
    assert first.status == "ok"
    assert table.table("misalignment/counts").at(layer="layer1.linear", what="patches").value == 48 * 100
    # Four filters of 108 values, three of a dense layer with more inputs: refused, with a reason.
    for name in ("layer2.linear", "fc"):
        cell = table.table("misalignment").at(layer=name, network="this", basis="data")
        assert (cell.value, cell.status) == (None, "undefined")
    tau = table.table("transfer_function").values[0]
    assert tau[0, :9] == pytest.approx(np.sort(tau[0, :9])[::-1])
    with pytest.raises(UsageError) as caught:
        ck.measure(fit.tasks["a"], data.test, ["misalignment"], layers=["layer1"])
    assert caught.value.subject == "layer1"
    with pytest.raises(UnknownName):
        ck.measure(fit.tasks["a"], data.test, ["misalignment"], layers=["layer9"])


def test_a_layer_that_the_other_network_lacks_is_undefined() -> None:
    images = drawn(30, 2, 4, 4).float()
    result = measured(Misalignment(), LAYER, images, nn.Conv2d(3, 40, 2))["misalignment"]
    assert result.at(layer="conv", network="other", basis="data").status == "undefined"
    curve = measured(TransferFunction(), LAYER, images, nn.Conv2d(3, 40, 2))["transfer_function"]
    assert {curve.at(layer="conv", quantity=name, direction="1").status for name in ("tau", "tau-other")} == {
        "ok",
        "undefined",
    }


def test_the_state_is_not_written_into() -> None:
    metric, images = Misalignment(), drawn(4, 2, 4, 4).float()
    (seen,) = observations(LAYER, images)
    state = metric.update(metric.init(), seen.positions, seen.inputs, {"conv": LAYER})
    before = attrs.evolve(state, layers=dict(state.layers))
    metric.update(state, seen.positions, seen.inputs, {"conv": LAYER})
    assert torch.equal(state.layers["conv"].products, before.layers["conv"].products)

"""Orthogonality: every term against dense float64 references, gradients, layers, schedule, refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
from small import data_set, grouped, quick, same_parts
from torch import Tensor, nn

import compatkit as ck
from compatkit.errors import PluginError, UsageError
from compatkit.training.testing import assert_regularizer
from compatkit_plugins.regularizers.orthogonality import (
    Steady,
    gram_excess,
    matrices,
    orthogonality,
    spectral_excess,
)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def dense(weight: Tensor) -> Tensor:
    """W'W - I of a matrix, or block by block of several: the matrix itself."""
    whole = torch.block_diag(*weight)
    return whole.T @ whole - torch.eye(whole.shape[1], dtype=weight.dtype)


@pytest.mark.parametrize("shape", [(1, 7, 5), (1, 4, 9), (3, 2, 4)])
def test_power_iteration_comes_to_the_spectral_norm_of_the_dense_matrix(shape: tuple[int, ...]) -> None:
    weight, start = drawn(*shape), drawn(shape[0], shape[2], seed=1)
    norm = float(torch.linalg.eigvalsh(dense(weight)).abs().max())
    result = [float(spectral_excess(weight, start, iterations=turns)) for turns in (1, 4, 400)]
    assert result == sorted(result) and result[0] < norm  # from below, and nearer with each turn
    assert result[2] == pytest.approx(norm, rel=1e-9)


def test_one_turn_is_the_authors_formula_with_the_gradient_through_u_and_v() -> None:
    weight, start = drawn(1, 5, 8).requires_grad_(), drawn(1, 8, seed=1)
    excess = weight[0].T @ weight[0] - torch.eye(8, dtype=torch.float64)
    u = nn.functional.normalize(start[0], dim=0)
    v = nn.functional.normalize(excess.T @ u, dim=0)
    u = nn.functional.normalize(excess @ v, dim=0)
    expected = torch.dot(u, excess @ v).square()
    output = spectral_excess(weight, start).square()
    assert float(output.detach()) == pytest.approx(float(expected.detach()), rel=1e-12)
    (first,), (other,) = torch.autograd.grad(expected, weight), torch.autograd.grad(output, weight)
    assert torch.allclose(first, other, rtol=1e-10)
    assert torch.autograd.gradcheck(lambda w: spectral_excess(w, start), (weight,))


def test_an_orthonormal_matrix_costs_nothing_and_has_a_finite_gradient() -> None:
    weight = torch.eye(4, dtype=torch.float64)[None].requires_grad_()
    loss = spectral_excess(weight, drawn(1, 4)) + gram_excess(weight, "input").square().sum()
    loss.backward()
    assert float(loss.detach()) == 0.0 and bool(torch.isfinite(weight.grad).all())  # type: ignore[arg-type]


def test_the_smaller_side_can_reach_zero_where_the_other_cannot() -> None:
    wide = torch.eye(6, dtype=torch.float64)[None, :2]  # two orthonormal rows, out < in
    assert float(gram_excess(wide, "smaller").square().sum()) == 0.0
    assert float(gram_excess(wide, "input").square().sum()) == 4.0  # in - out
    assert float(spectral_excess(wide, drawn(1, 6))) == pytest.approx(1.0)
    assert float(spectral_excess(wide, drawn(1, 2), "smaller")) == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("groups", [1, 2, 6])
def test_the_matrices_of_a_grouped_convolution_are_its_map(groups: int) -> None:
    layer = nn.Conv2d(6, 12, 3, groups=groups)
    output = matrices(layer)
    assert output.shape == (groups, 12 // groups, 6 // groups * 9)
    patch = torch.randn(6, 3, 3)
    with torch.no_grad():
        map_ = torch.block_diag(*output) @ patch.flatten()
        expected = nn.functional.conv2d(patch[None], layer.weight, groups=groups).flatten()
    assert torch.allclose(map_, expected, atol=1e-5)


@pytest.mark.parametrize("groups", [1, 2])
def test_the_matrices_of_a_transposed_convolution_are_its_map(groups: int) -> None:
    layer = nn.ConvTranspose2d(4, 6, 3, groups=groups, bias=False)
    pixel = torch.randn(1, 4, 1, 1)
    with torch.no_grad():
        map_ = torch.block_diag(*matrices(layer)) @ pixel.flatten()
        assert torch.allclose(map_, layer(pixel).flatten(), atol=1e-5)


class Watch:
    """Keeps the matrices that the first step begins with, by layer, in float64."""

    kept: ClassVar[dict[str, Tensor]] = {}

    @ck.hookimpl
    def compatkit_set_up(self, setup: ck.SetUp) -> None:
        Watch.kept = {}
        for state in setup.tasks.values():
            for module in (state.extractor, state.head):
                for name, value in module.named_modules():
                    if isinstance(value, (nn.Conv2d, nn.Linear)):
                        Watch.kept[name] = value.weight.detach().flatten(1).double().clone()


def terms(steps: int = 1, regularizers: tuple[str, ...] = (), **settings: Any) -> list[float]:
    uses = [ck.use("watch"), *regularizers, ck.use("orthogonality", **settings)]
    fit = quick(steps=steps).fit([grouped()], uses, factories={"watch": Watch})
    return [row["losses"].get("orthogonality/loss", 0.0) for row in fit.history]


def both(weight: Tensor) -> tuple[Tensor, Tensor]:
    rows, columns = weight.shape
    return weight.T @ weight - torch.eye(columns).double(), weight @ weight.T - torch.eye(rows).double()


def smaller(weight: Tensor) -> Tensor:
    return min(both(weight), key=len)


REFERENCES: dict[str, Callable[[Tensor], float]] = {
    "so": lambda weight: float(smaller(weight).square().sum()),
    "dso": lambda weight: sum(float(side.square().sum()) for side in both(weight)),
    "mc": lambda weight: float(smaller(weight).abs().max()),
    "srip": lambda weight: float(torch.linalg.eigvalsh(both(weight)[0]).abs().max()) ** 2,
}


@pytest.mark.parametrize("kind", list(REFERENCES))
def test_a_run_adds_up_the_dense_terms_of_all_its_layers(kind: str) -> None:
    (output,) = terms(kind=kind, iterations=200 if kind == "srip" else 1)
    expected = sum(map(REFERENCES[kind], Watch.kept.values()))
    assert len(Watch.kept) > 3 and output == pytest.approx(expected, rel=2e-3 if kind == "srip" else 1e-5)


def test_the_norm_is_squared_by_default_and_plain_when_asked() -> None:
    (output,) = terms(squared=False, iterations=200)
    expected = sum(REFERENCES["srip"](item) ** 0.5 for item in Watch.kept.values())
    assert output == pytest.approx(expected, rel=2e-3)
    assert terms(layers="conv1.0", squared=False)[0] ** 2 == pytest.approx(
        terms(layers="conv1.0")[0], rel=1e-5
    )


def test_layers_are_named_by_globs_over_both_parts() -> None:
    (output,) = terms(kind="so", layers=["conv1.[03]", "f[c]"])
    expected = sum(REFERENCES["so"](Watch.kept[name]) for name in ("conv1.0", "conv1.3", "fc"))
    assert output == pytest.approx(expected, rel=1e-5)


def test_the_schedule_multiplies_and_a_factor_of_zero_computes_nothing() -> None:
    plain, scheduled = terms(3, kind="so"), terms(3, kind="so", schedule=[[0, 1.0], [1, 0.5], [2, 0]])
    assert scheduled[0] == plain[0] and scheduled[2] == 0.0
    assert scheduled[1] == pytest.approx(plain[1] / 2, rel=1e-5)


def test_every_step_draws_anew_and_a_run_repeats_bit_by_bit() -> None:
    first, again = (quick(steps=3).fit([grouped()], [ck.use("orthogonality", weight=0.01)]) for _ in range(2))
    assert same_parts(first, again)
    still = {"weight": 1e-9, "layers": "conv1.0"}
    values = [
        row["losses"]["orthogonality/loss"]
        for row in quick(steps=3, lr=1e-12).fit([grouped()], [ck.use("orthogonality", **still)]).history
    ]
    assert len(set(values)) == 3  # the same weights, other directions


def test_training_by_it_makes_layers_orthogonal() -> None:
    task = ck.Task("a", data_set("a"), "lenet", "conv2", size=32)
    use = [ck.use("orthogonality", weight=10.0, side="smaller")]
    fit = quick(steps=60, lr=3e-3, schedule="constant").fit([task], use)
    result = [row["losses"]["orthogonality/loss"] for row in fit.history]
    assert result[-1] < result[0] / 3


def test_shared_heads_stay_out_unless_asked_for() -> None:
    without, inside = (
        terms(regularizers=("dcc",), kind="so", **settings) for settings in ({}, {"shared": True})
    )
    (head,) = terms(regularizers=("dcc",), kind="so", shared=True, layers="shared.dcc.*")
    assert without == terms(kind="so") and head > 0
    assert inside[0] == pytest.approx(without[0] + head, rel=1e-5)


def test_only_terms_that_every_step_computes_alike_are_pure() -> None:
    for settings, pure in (
        ({"kind": "so"}, True),
        ({}, False),
        ({"kind": "mc", "schedule": [[0, 1]]}, False),
    ):
        assert isinstance(orthogonality(**settings), Steady) is pure  # type: ignore[arg-type]


def test_conforms() -> None:
    assert_regularizer(orthogonality)
    assert_regularizer(orthogonality, kind="dso")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "svb"}, "'kind' must be one of srip, so, dso, mc; got 'svb'"),
        ({"side": "output"}, "'side' must be one of input, smaller, or None; got 'output'"),
        (
            {"kind": "so", "squared": False},
            "squared and iterations are settings of kind='srip'; got kind='so'",
        ),
        (
            {"kind": "mc", "iterations": 2},
            "squared and iterations are settings of kind='srip'; got kind='mc'",
        ),
        ({"layers": []}, r"layers is a list of module paths or globs, .*; got \[\]"),
        ({"layers": [3]}, r"layers is a list of module paths or globs, .*; got \[3\]"),
        ({"schedule": [[0, True]]}, "schedule is pairs of a step and a factor"),
        ({"kind": "dso", "side": "input"}, "dso takes the Gram matrices of both sides"),
        ({"iterations": 0}, "'iterations' must be a whole number from 1 up"),
        *(
            ({"schedule": item}, "schedule is pairs of a step and a factor")
            for item in ([], [[1, 1.0]], [[0, 1.0], [0, 0.5]], [[0, -1.0]], [[0.5, 1.0]], [1, 2], "0")
        ),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        orthogonality(**settings)


def test_a_glob_that_names_no_layer_says_which_there_are() -> None:
    with pytest.raises(
        PluginError, match=r"layers names 'stem\*', and no .* task 'a' .* there are conv1.0, "
    ):
        terms(layers=["stem*"])


def test_layers_that_do_not_move_are_nothing_to_regularize() -> None:
    class Frozen:
        @ck.hookimpl
        def compatkit_set_up(self, setup: ck.SetUp) -> None:
            setup.tasks["a"].extractor.requires_grad_(False)

    uses = [ck.use("frozen"), ck.use("orthogonality", layers="conv1.0")]
    with pytest.raises(
        PluginError, match="task 'a' has no convolution or linear layer left whose weight moves"
    ):
        quick(steps=1).fit([grouped()], uses, factories={"frozen": Frozen})

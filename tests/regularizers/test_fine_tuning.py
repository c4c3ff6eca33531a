"""L2-SP and BSS: losses by hand, the real trainer, refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from small import data_set, quick
from torch import Tensor

import compatkit as ck
from compatkit.errors import UsageError
from compatkit.training.testing import assert_regularizer
from compatkit_plugins.regularizers.bss import BSS, smallest_squares
from compatkit_plugins.regularizers.l2_sp import L2SP

NETWORK: dict[str, Any] = {"model": "resnet8_cifar", "cut": "layer2", "size": 12}


@pytest.fixture(scope="module")
def weights() -> dict[str, Tensor]:
    return quick(steps=4, lr=0.05).fit([ck.Task("a", data_set("a"), **NETWORK)]).weights("a")


def tuned(weights: dict[str, Tensor], use: Any, steps: int = 6, **more: Any) -> ck.Fit:
    task = ck.Task("b", data_set("b", seed=3), **NETWORK, weights=weights, **more)
    return quick(steps=steps, lr=0.05, weight_decay=0.0).fit([task], [use])


def test_the_first_step_has_no_distance_and_the_norm_of_the_new_layer(weights: dict[str, Tensor]) -> None:
    fit = tuned(weights, ck.use("l2_sp", alpha=2.0, beta=3.0), steps=1)
    assert fit.history["b/l2_sp/start"][0] == 0
    initial = quick(steps=1, lr=1e-12).fit([ck.Task("b", data_set("b", seed=3), **NETWORK, weights=weights)])
    layer = [weight for name, weight in initial.weights("b").items() if name.startswith("fc")]
    expected = 3.0 / 2 * sum(float(entry.square().sum()) for entry in layer)
    assert fit.history["b/l2_sp/new"][0] == pytest.approx(expected, rel=1e-5)


def test_a_class_layer_that_is_kept_is_pulled_to_its_start(weights: dict[str, Tensor]) -> None:
    fit = tuned(weights, ck.use("l2_sp"), keep_class_layer=True)
    assert "b/l2_sp/new" not in fit.history and fit.history["b/l2_sp/start"][-1] > 0


def test_the_loss_is_half_the_square_of_the_way_from_the_start(weights: dict[str, Tensor]) -> None:
    fit = tuned(weights, ck.use("l2_sp", alpha=2.0), steps=2, keep_class_layer=True)
    after = tuned(weights, ck.use("l2_sp", alpha=2.0), steps=1, keep_class_layer=True).weights("b")
    parameters = [
        name for name in after if not name.endswith(("running_mean", "running_var", "num_batches_tracked"))
    ]
    expected = sum(float((after[name] - weights[name]).square().sum()) for name in parameters)
    assert fit.history["b/l2_sp/start"][1] == pytest.approx(expected, rel=1e-4)


def test_a_new_head_behind_a_released_extractor_is_new_as_a_whole(tmp_path: Path) -> None:
    registry = ck.Registry.init(tmp_path / "parts")
    registry.publish(quick(steps=2).fit([ck.Task("a", data_set("a"), **NETWORK)]), prefix="x")
    task = registry.task("b", data_set("b", seed=3), extractor="x/a.extractor")
    fit = quick(steps=1).fit([task], [ck.use("l2_sp", beta=3.0)])
    start = quick(steps=0).fit([task]).tasks["b"].head
    expected = 3.0 / 2 * sum(float(entry.detach().square().sum()) for entry in start.parameters())
    assert fit.history["b/l2_sp/new"][0] == pytest.approx(expected, rel=1e-5)


def test_a_head_that_does_not_run_does_not_count(weights: dict[str, Tensor]) -> None:
    fit = tuned(weights, ck.use("l2_sp", beta=3.0), own_head=False)
    assert "b/l2_sp/new" not in fit.history and fit.history["b/l2_sp/start"][0] == 0


def test_a_strong_pull_keeps_weights_nearer(weights: dict[str, Tensor]) -> None:
    def moved(alpha: float) -> float:
        result = tuned(weights, ck.use("l2_sp", alpha=alpha), keep_class_layer=True).weights("b")
        return sum(
            float((result[name] - weight).square().sum())
            for name, weight in weights.items()
            if "conv" in name
        )

    assert moved(5.0) < moved(0.0)


def test_a_network_from_scratch_has_no_start() -> None:
    with pytest.raises(UsageError) as caught:
        quick(steps=1).fit([ck.Task("b", data_set("b"), **NETWORK)], ["l2_sp"])
    assert caught.value.subject == "l2_sp"
    with pytest.raises(UsageError) as caught:
        L2SP(alpha=-1.0)
    assert caught.value.subject == "alpha"


@pytest.mark.parametrize("shape", [(4, 9), (9, 4), (5, 5)])
def test_smallest_squares_are_those_of_the_singular_values(shape: tuple[int, int]) -> None:
    features = torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    sizes = torch.linalg.svdvals(features)
    for count in (1, 3, 20):
        assert float(smallest_squares(features, count)) == pytest.approx(
            float(sizes.flip(0)[:count].square().sum())
        )
    maps = features[:, :, None, None] + torch.tensor([[-1.0, 1.0]], dtype=torch.float64)
    assert float(smallest_squares(maps, 1)) == pytest.approx(float(sizes[-1] ** 2))


def test_equal_singular_values_have_a_finite_gradient() -> None:
    features = torch.eye(4, dtype=torch.float64).requires_grad_()
    smallest_squares(features, 2).backward()
    assert features.grad is not None and bool(torch.isfinite(features.grad).all())


def test_shrinkage_lowers_the_smallest_singular_value() -> None:
    def spectrum(weight: float) -> float:
        task = ck.Task("a", data_set("a"), **NETWORK)
        fit = quick(steps=25, lr=0.02).fit([task], [ck.use("bss", weight=weight, count=4)] if weight else [])
        state = fit.tasks["a"]
        with torch.no_grad():
            features = state.extract(torch.randn(16, 1, 12, 12, generator=torch.Generator().manual_seed(0)))
        sizes = torch.linalg.svdvals(features.mean((2, 3)))
        return float(sizes[-4:].square().sum() / sizes.square().sum())

    assert spectrum(3.0) < spectrum(0.0)


def test_features_that_diverge_leave_the_word_to_the_loss() -> None:
    features = torch.tensor([[1.0, float("nan")], [float("inf"), 2.0], [1.0, 1.0]])
    assert torch.isfinite(smallest_squares(features, 2))


def test_bss_conforms_and_refuses_no_values() -> None:
    assert_regularizer(BSS)
    with pytest.raises(UsageError) as caught:
        BSS(count=0)
    assert caught.value.subject == "count"

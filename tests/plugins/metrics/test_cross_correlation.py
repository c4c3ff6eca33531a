"""Cross-correlation of channels: permuted copies, independent networks, a slow reference, dead channels, refusals."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from compatkit.errors import DataError, UsageError
from compatkit.evaluation.metrics import Table
from compatkit.training.testing import assert_metric
from compatkit_plugins.metrics._moments import best_pairs
from compatkit_plugins.metrics.cross_correlation import CrossCorrelation

LAYERS = {"seam": torch.nn.Identity()}


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def correlate(left: Tensor, right: Tensor, cuts: tuple[int, ...] = (), **settings: Any) -> dict[str, Table]:
    """Let the metric look at what one layer gave in two networks, cut into batches."""
    metric = CrossCorrelation(**settings)
    state = metric.init()
    for at in torch.tensor_split(torch.arange(len(left)), cuts):
        state = metric.update(state, at, {"seam": left[at]}, {"seam": right[at]})
    return {entry.name: entry for entry in metric.finalize(state, LAYERS)}


def mean(result: dict[str, Table], pairing: str, sign: str = "signed") -> float:
    value = result["cross_correlation"].at(layer="seam", pairing=pairing, sign=sign).value
    assert value is not None
    return value


def test_it_streams() -> None:
    assert_metric(CrossCorrelation)
    assert_metric(CrossCorrelation, shuffles=0)
    assert_metric(CrossCorrelation, shuffled_images=5)


def test_means_are_those_of_numpy_over_all_permutations() -> None:
    left, right = drawn(12, 4, 3, 2), drawn(12, 4, 3, 2, seed=1) + 0.5 * drawn(12, 4, 3, 2).roll(1, 1)
    result = correlate(left * 3 + 100, right, (5, 6, 9))
    rows = [item.double().transpose(0, 1).flatten(1).numpy() for item in (left, right)]
    full = np.corrcoef(*rows)[:4, 4:]
    for sign, values in (("signed", full), ("absolute", np.abs(full))):
        best = max(
            sum(values[row, item] for row, item in enumerate(order)) for order in permutations(range(4))
        )
        assert mean(result, "direct", sign) == pytest.approx(np.diag(values).mean(), abs=1e-6)
        assert mean(result, "matched", sign) == pytest.approx(best / 4, abs=1e-6)
    channels = result["cross_correlation/channels"].values[0]
    assert channels[0] == pytest.approx(np.diag(full), abs=1e-6)
    assert channels[1].mean() == pytest.approx(mean(result, "matched"))


def test_the_shuffled_baseline_is_that_of_pairings_drawn_by_hand() -> None:
    left, right = drawn(20, 3, 2, 2), drawn(20, 3, 2, 2, seed=1)
    result = []
    for order in (range(20), reversed(range(20))):
        x = CrossCorrelation(shuffles=2).update({}, torch.tensor([*order]), {"x": left}, {"x": right})["x"]
        shuffle = torch.randperm(20, generator=torch.Generator().manual_seed(3))
        a, b = (value.double().numpy() for value in x.samples)
        rows = np.concatenate([a[i] for i in range(20)]), np.concatenate([b[i] for i in shuffle])
        expected = np.corrcoef(rows[0].T, rows[1].T)[:3, 3:]
        np.testing.assert_allclose(x.shuffled(shuffle).numpy(), expected, atol=1e-6)
        result.append(x.keys)
    assert torch.equal(*result), "which images are kept, and in which order, depends on their positions alone"


def test_no_image_is_paired_with_itself() -> None:
    left = drawn(2, 2, 3, 3)
    swapped = np.concatenate([left[image].flatten(1).double().numpy() for image in (1, 0)], 1)
    full = np.corrcoef(np.concatenate([*left.flatten(2).double().numpy()], 1), swapped)[:2, 2:]
    expected = max(np.trace(full), np.trace(full[::-1])) / 2
    assert mean(correlate(left, left, shuffles=5), "shuffled") == pytest.approx(expected, abs=1e-6)


def test_a_permuted_and_scaled_copy_is_found_by_the_permutation_alone() -> None:
    left = drawn(64, 6, 4, 4).relu()
    right = left[:, [3, 0, 5, 1, 2, 4]] * torch.tensor([1.0, 2, 3, 4, 5, 6])[:, None, None] + 7
    result = correlate(left, right, (10, 40))
    assert mean(result, "matched") == pytest.approx(1, abs=1e-6)
    assert abs(mean(result, "direct")) < 0.1 and mean(result, "shuffled") < 0.2
    negative = correlate(left, -left)
    assert mean(negative, "direct") == pytest.approx(-1, abs=1e-6)
    assert mean(negative, "direct", "absolute") == pytest.approx(1, abs=1e-6)


def test_independent_networks_are_at_the_shuffled_baseline_and_that_is_not_0() -> None:
    matched, null = [], []
    for seed in range(5):
        result = correlate(drawn(100, 32, seed=2 * seed), drawn(100, 32, seed=2 * seed + 1), seed=seed)
        matched.append(mean(result, "matched"))
        null.append(mean(result, "shuffled"))
        assert abs(mean(result, "direct")) < 0.1
    assert np.mean(null) == pytest.approx(np.mean(matched), abs=0.01)
    assert min(null) > 0.15


def test_what_is_the_same_at_each_position_stays_when_images_are_shuffled() -> None:
    place = torch.linspace(-1, 1, 9).reshape(1, 1, 3, 3)
    left, right = place * 10 + drawn(50, 2, 3, 3), place * 10 + drawn(50, 2, 3, 3, seed=1)
    assert mean(correlate(left, right), "shuffled") > 0.9


def test_constant_channels_count_as_0_and_are_counted() -> None:
    left = drawn(30, 4, 2, 2)
    right = left.clone()
    right[:, 1], left[:, 2] = 0.1, 1e6
    result = correlate(left, right, (7,))
    assert mean(result, "direct") == mean(result, "matched") == pytest.approx(0.5, abs=1e-6)
    counts = result["cross_correlation/constant"]
    assert [counts.at(layer="seam", network=name).value for name in ("this", "other")] == [1.0, 1.0]
    dead = correlate(torch.zeros(5, 2), drawn(5, 2))["cross_correlation"]
    assert {cell.reason for cell in dead.cells} == {"no channel varies in one of the networks"}


def test_other_widths_have_a_matching_and_no_direct_mean() -> None:
    left = drawn(40, 5)
    result = correlate(left, left[:, [4, 2, 0]])
    direct, matched = (
        result["cross_correlation"].at(layer="seam", pairing=name, sign="signed")
        for name in ("direct", "matched")
    )
    assert direct.status == "undefined" and "5 and 3 channels" in direct.reason
    assert matched.value == pytest.approx(1, abs=1e-6) and matched.reason == "3 of 5 channels have a partner"
    channels = result["cross_correlation/channels"].values[0]
    assert np.isnan(channels[0]).all() and np.isnan(channels[1]).tolist() == [False, True, False, True, False]


def test_of_more_images_some_are_kept_and_it_is_said() -> None:
    result = correlate(drawn(50, 3), drawn(50, 3, seed=1), (20,), shuffled_images=10)
    at = result["cross_correlation"].at(layer="seam", pairing="shuffled", sign="signed")
    assert at.status == "approximate" and at.reason.startswith("of 10 of 50 images")
    none = correlate(drawn(5, 3), drawn(5, 3), shuffles=0)["cross_correlation"]
    assert none.at(layer="seam", pairing="shuffled", sign="signed").reason == "no pairing was drawn"


def test_the_best_assignment_is_not_the_greedy_one() -> None:
    assert best_pairs(torch.tensor([[0.9, 0.8], [0.8, 0.1]])).tolist() == pytest.approx([0.8, 0.8])


@pytest.mark.parametrize(
    ("left", "right", "message"),
    [
        ((4, 3, 2, 2), (4, 3, 1, 4), r"the positions must be equal"),
        ((4, 3, 2, 2), (4, 3), r"the positions must be equal"),
        ((4, 3, 2, 2, 2), (4, 3, 2, 2, 2), r"expected maps, tokens or vectors"),
    ],
)
def test_other_positions_are_refused(left: tuple[int, ...], right: tuple[int, ...], message: str) -> None:
    with pytest.raises(DataError, match=message):
        correlate(drawn(*left), drawn(*right))


@pytest.mark.parametrize("settings", [{"shuffles": -1}, {"shuffled_images": 2.0}, {"seed": True}])
def test_settings_that_are_no_counts_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="must be a whole number from 0"):
        CrossCorrelation(**settings)

"""Streamed moments against numpy on all samples at once, and samples of maps against a convolution."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from paired import samples, streamed

from compatkit.adapters.alignment.moments import PairedMoments
from compatkit.adapters.alignment.positions import PATCH, Window, paired
from compatkit.errors import DataError


def same(moments: PairedMoments, x: np.ndarray, y: np.ndarray) -> None:
    xc, yc = x - x.mean(0), y - y.mean(0)
    assert moments.samples == len(x)
    for value, expected in (
        (moments.mean_x, x.mean(0)),
        (moments.mean_y, y.mean(0)),
        (moments.xx, xc.T @ xc),
        (moments.xy, xc.T @ yc),
        (moments.yy, (yc**2).sum(0)),
    ):
        np.testing.assert_allclose(value, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("pieces", [1, 3, 400])
def test_moments_do_not_depend_on_how_samples_come(pieces: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compatkit.adapters.alignment.moments.BLOCK", 5 * 11)  # blocks of 11 samples
    x, y = samples(mean=3.0)
    same(streamed(x, y, pieces), x, y)


def test_half_precision_is_summed_in_float64() -> None:
    x, y = (torch.from_numpy(sample).to(torch.bfloat16) for sample in samples())
    moments = PairedMoments.empty(5, 4)
    moments.add(x, y)
    same(moments, x.double().numpy(), y.double().numpy())


@pytest.mark.case("F")
def test_samples_that_are_none_are_refused() -> None:
    ones = torch.ones(4, 2)
    with pytest.raises(DataError, match="4 samples come with 3 targets"):
        PairedMoments.empty(2, 2).add(ones, ones[:3])
    with pytest.raises(DataError, match="not finite; look at the weights"):
        PairedMoments.empty(2, 2).add(ones, ones * float("nan"))


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("window", [PATCH, Window((3, 3), (2, 2), (1, 1)), Window((1, 1), (2, 2))])
def test_samples_of_patches_are_what_a_convolution_sees(
    layout: str, window: Window, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("compatkit.adapters.alignment.positions.VALUES", 1)  # an image at a time
    draw = torch.Generator().manual_seed(0)
    maps, weight = torch.randn(3, 2, 6, 4, generator=draw), torch.randn(5, 2, *window.kernel, generator=draw)
    out = F.conv2d(maps, weight, stride=window.stride, padding=window.padding)
    inputs, target = (item if layout == "NCHW" else item.permute(0, 2, 3, 1) for item in (maps, out))
    pairs = list(paired(inputs, target, layout, window, 1, draw))
    for x, y in pairs:
        torch.testing.assert_close(x @ weight.flatten(1).T, y)
    assert sum(len(x) for x, _ in pairs) == 3 * out.shape[2] * out.shape[3]


def test_drawn_positions_are_the_same_in_every_layout() -> None:
    maps = torch.randn(3, 2, 4, 5, generator=torch.Generator().manual_seed(0))
    result = []
    for layout, value in (("NCHW", maps), ("NHWC", maps.permute(0, 2, 3, 1))):
        ((x, y),) = paired(value, -value, layout, Window(), 0.5, torch.Generator().manual_seed(1))
        assert torch.equal(x, -y)
        result.append(x)
    assert torch.equal(*result) and result[0].shape == (30, 2)


def test_positions_are_drawn_image_by_image_and_stay_paired() -> None:
    tokens = torch.arange(4 * 10 * 3.0).reshape(4, 10, 3)
    draw = torch.Generator().manual_seed(0)
    ((x, y),) = paired(tokens, tokens + 1, "NLC", Window(), 0.3, draw)
    assert torch.equal(x + 1, y) and x.shape == (12, 3)
    assert [int((x[:, 0] // 30 == image).sum()) for image in range(4)] == [3] * 4
    assert len({float(entry) for entry in x[:, 0]}) == 12

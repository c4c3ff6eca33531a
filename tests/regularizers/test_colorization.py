"""Colorization: CIE Lab, bins, windows, the loss over pixels, and what is refused."""

from __future__ import annotations

import copy
from typing import Any

import attrs
import numpy as np
import pytest
import torch
from small import data_set, quick

import compatkit as ck
from compatkit.data.dataset import DataSet
from compatkit.errors import PluginError
from compatkit.training.testing import assert_regularizer
from compatkit_plugins.regularizers._lab import Lookup, bins, lightness_and_chroma, without_colors
from compatkit_plugins.regularizers.colorization import Colorization, chroma_loss, windows


@pytest.mark.parametrize(
    ("color", "wanted"),
    [
        ((1, 0, 0), (53.24, 80.09, 67.20)),
        ((0, 1, 0), (87.73, -86.18, 83.18)),
        ((0, 0, 1), (32.30, 79.19, -107.86)),
        ((1, 1, 1), (100, 0, 0)),
        ((0.5, 0.5, 0.5), (53.39, 0, 0)),
        ((0, 0, 0), (0, 0, 0)),
    ],
)
def test_lab_of_known_colors(color: tuple[float, ...], wanted: tuple[float, ...]) -> None:
    """Published values for D65."""
    y, a, b = (float(entry) for entry in lightness_and_chroma(torch.tensor([color], dtype=torch.float64)))
    light = 116 * y ** (1 / 3) - 16 if y > (6 / 29) ** 3 else y * (29 / 3) ** 3
    assert (light, a, b) == pytest.approx(wanted, abs=0.01)


def test_an_image_without_colors_has_the_same_luminance_and_no_chroma() -> None:
    images = torch.rand(4, 5, 5, 3, dtype=torch.float64)
    images[0] *= 0.01  # where the curve of sRGB is a line
    luminance, _, _ = lightness_and_chroma(images)
    gray = without_colors(luminance)[..., None].expand(-1, -1, -1, 3)
    again, a, b = lightness_and_chroma(gray)
    torch.testing.assert_close(again, luminance, rtol=1e-6, atol=1e-9)
    assert float(a.abs().max()) < 1e-9 and float(b.abs().max()) < 1e-9


@pytest.mark.parametrize(("side", "count"), [(10, 260), (20, 74), (50, 19)])
def test_bins_are_those_that_colors_fall_into(side: int, count: int) -> None:
    result = bins(side)
    assert len(set(result)) == len(result) == count
    assert (0, 0) in result and all(a % side == b % side == 0 for a, b in result)
    lookup = Lookup.of(side, "cpu")
    colors = torch.rand(2000, 3, dtype=torch.float64)
    _, a, b = lightness_and_chroma(colors)
    for number, entry, other in zip(lookup(a, b).tolist(), a.tolist(), b.tolist(), strict=True):
        middle = round(entry / side) * side, round(other / side) * side
        assert result[number] == middle or middle not in result


def test_few_bins_are_reached_by_further_levels_alone() -> None:
    level = torch.linspace(0, 1, 256, dtype=torch.float64)
    pairs = torch.cartesian_prod(level, level)
    ends = [
        torch.cat([pairs[:, :place], torch.full((len(pairs), 1), end).double(), pairs[:, place:]], 1)
        for place in range(3)
        for end in (0, 1)
    ]
    _, a, b = lightness_and_chroma(torch.cat(ends))
    reached = torch.unique(torch.stack([a, b], 1).div(20).round().int() * 20, dim=0)
    missing = {(-60, -20), (-40, -40), (0, 100)}
    assert {(int(first), int(other)) for first, other in reached} - set(bins(20)) == missing


def test_what_lies_outside_has_the_nearest_bin() -> None:
    lookup = Lookup.of(20, "cpu")
    far = lookup(torch.tensor([1000.0, -1000.0]), torch.tensor([0.0, 0.0]))
    assert [bins(20)[int(item)] for item in far] == [(80, 0), (-80, 20)]


def test_windows_by_hand() -> None:
    features = torch.arange(32).view(2, 1, 4, 4)
    result = windows(features, 2)
    assert result.shape == (8, 1, 2, 2)
    assert result[:, 0].flatten(1).tolist()[:4] == [
        [0, 1, 4, 5],
        [2, 3, 6, 7],
        [8, 9, 12, 13],
        [10, 11, 14, 15],
    ]
    assert result[4, 0].tolist() == [[16, 17], [20, 21]]
    assert torch.equal(windows(features, 1), features)
    last = torch.randn(2, 3, 4, 4).contiguous(memory_format=torch.channels_last)
    assert windows(last, 2).is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(("cells", "size"), [(2, (4, 4)), (3, (7, 5)), (1, (3, 3))])
def test_loss_is_the_mean_over_pixels_of_the_entropy_of_their_bin(cells: int, size: tuple[int, int]) -> None:
    """Against numpy in double precision, pixel by pixel, also where sides do not divide."""
    logits = torch.randn(2 * cells * cells, 6, dtype=torch.float64)
    numbers = torch.randint(0, 6, (2, *size))
    total = 0.0
    for image, row, column in np.ndindex(2, *size):
        cell = int((row + 0.5) * cells / size[0]) * cells + int((column + 0.5) * cells / size[1])
        reply = logits[image * cells * cells + cell].numpy()
        total -= reply[int(numbers[image, row, column])] - np.log(np.exp(reply).sum())
    result = chroma_loss(logits.float(), numbers, cells)
    assert float(result) == pytest.approx(total / numbers.numel(), rel=1e-5)


def color(name: str, seed: int = 0) -> DataSet:
    return data_set(name, channels=3, seed=seed)


def task(name: str = "a", data: DataSet | None = None, cut: str = "layer2", **settings: Any) -> ck.Task:
    return ck.Task(name, data or color(name), "resnet8_cifar", cut, **{"size": 16, **settings})


@pytest.mark.parametrize("channels_last", [True, False])
def test_the_extractor_sees_gray_images_of_the_same_luminance(
    channels_last: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[ck.Step] = []
    inputs: list[torch.Tensor] = []
    extract = ck.Step.extract

    def watched(self: ck.Step, images: torch.Tensor, *, write_statistics: bool) -> torch.Tensor:
        seen.append(self)
        inputs.append(images.detach().double())
        assert not write_statistics
        assert images.is_contiguous(memory_format=self.precision.memory_format)
        return extract(self, images, write_statistics=write_statistics)

    monkeypatch.setattr(ck.Step, "extract", watched)
    quick(steps=1, channels_last=channels_last).fit([task()], ["colorization"])
    data = seen[0].task.data
    mean, std = (torch.tensor(item, dtype=torch.float64) for item in (data.mean, data.std))
    images = seen[0].batch.images.double().movedim(1, -1) * std + mean
    gray = inputs[0].movedim(1, -1) * std + mean
    torch.testing.assert_close(gray[..., :1].expand_as(gray), gray, rtol=0, atol=1e-5)
    torch.testing.assert_close(
        lightness_and_chroma(gray)[0], lightness_and_chroma(images)[0], rtol=1e-4, atol=1e-5
    )


def lab(images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Luminance, and chroma ``(..., 2)``, by the formulas of CIE Lab for sRGB and D65, in double precision."""
    linear = np.where(images <= 0.04045, images / 12.92, ((images + 0.055) / 1.055) ** 2.4)
    rows = [
        [0.4124564, 0.3575761, 0.1804375],
        [0.2126729, 0.7151522, 0.0721750],
        [0.0193339, 0.1191920, 0.9503041],
    ]
    xyz = linear @ np.array(rows).T / [0.95047, 1.0, 1.08883]
    f = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    return xyz[..., 1], np.stack([500 * (f[..., 0] - f[..., 1]), 200 * (f[..., 1] - f[..., 2])], -1)


def test_the_loss_of_a_run_is_that_of_the_paper_pixel_by_pixel() -> None:
    kept: list[Any] = []

    class Slow:
        @ck.hookimpl
        def compatkit_set_up(self, setup: ck.SetUp) -> None:
            self.setup = setup

        @ck.hookimpl
        def compatkit_losses(self, step: ck.Step) -> dict[str, torch.Tensor]:
            kept.append(
                (step.batch.images, step.task, copy.deepcopy((step.task.extractor, self.head().module)))
            )
            return {}

        def head(self) -> ck.AuxiliaryHead:
            return self.setup.auxiliary["colorization"]

    fit = quick(steps=1).fit([task()], [ck.use("colorization", cells=2), "slow"], factories={"slow": Slow})
    ((images, state, (extractor, head)),) = kept
    mean, std = np.array(state.data.mean), np.array(state.data.std)
    luminance, chroma = lab(np.clip(images.double().permute(0, 2, 3, 1).numpy() * std + mean, 0, 1))
    gray = np.where(luminance <= 0.0031308, 12.92 * luminance, 1.055 * luminance ** (1 / 2.4) - 0.055)
    inputs = torch.from_numpy(((gray[..., None] - mean) / std).transpose(0, 3, 1, 2))
    with torch.no_grad():
        features = extractor.double().train()(inputs)
        side = features.shape[2] // 2
        cells = torch.cat(
            [
                features[i : i + 1, :, side * p : side * (p + 1), side * q : side * (q + 1)]
                for i, p, q in np.ndindex(len(features), 2, 2)
            ]
        )
        logs = head.double().train()(cells).log_softmax(1).numpy()
    labels = fit.auxiliary["colorization"].labels or ()
    middles = np.array([[int(word) for word in label.name.split()[1::2]] for label in labels])
    total = 0.0
    for i, row, column in np.ndindex(chroma.shape[:3]):
        nearest = np.square(middles - chroma[i, row, column]).sum(1).argmin()
        total -= logs[4 * i + 2 * (row // 8) + column // 8, nearest]
    assert fit.history[0]["losses"]["colorization/loss"] == pytest.approx(total / luminance.size, rel=1e-5)


def test_a_network_learns_the_colors_of_its_images() -> None:
    """Red above, blue below: two bins, which the head tells by their place alone."""
    data = color("a")
    images = np.zeros_like(data.train.images)
    images[..., 1] = data.train.images[..., 1] // 8
    images[:, :6, :, 0], images[:, 6:, :, 2] = 255, 255
    flat = attrs.evolve(data, train=attrs.evolve(data.train, images=images))
    fit = quick(steps=30, lr=0.02).fit([task(data=flat)], [ck.use("colorization", cells=2)])
    losses = [row["losses"]["colorization/loss"] for row in fit.history]
    assert losses[0] > 1 and losses[-1] < 0.3


def gray_in_color() -> DataSet:
    data = data_set("faded")
    return attrs.evolve(data, train=data.train.converted("RGB"), test=data.test.converted("RGB"))


@pytest.mark.parametrize(
    ("value", "settings", "message"),
    [
        (
            lambda: task(data=data_set("pale")),
            {},
            r"those of task 'a' \(pale\) are gray.*jigsaw or contrastive",
        ),
        (lambda: task(data=gray_in_color()), {}, r"those of task 'a' \(faded\) are gray"),
        (task, {"cells": 3}, r"3 x 3 windows; the features of task 'a' after layer2 are \(32, 8, 8\)"),
        (lambda: task(cut="forward_features"), {"cells": 8}, "8 x 8 windows; the features of task 'a'"),
        (task, {"cells": 0}, "'cells' must be a whole number from 1 up; got 0"),
        (task, {"cells": True}, "the setting 'cells' is a whole number; got True"),
        (task, {"bin_size": 4}, "'bin_size' must be a whole number from 5 to 50; got 4"),
        (task, {"bin_size": 20.0}, r"the setting 'bin_size' is a whole number; got 20\.0"),
    ],
)
def test_what_is_refused(value: Any, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(PluginError, match=message):
        quick(steps=1).fit([value()], [ck.use("colorization", **settings)])


def test_a_head_of_fixed_size_takes_all_features_at_once_only() -> None:
    kwargs = {"filters": 4, "convolutions": 1, "units": 8}
    first = ck.Task("a", color("a"), "simple_cnn", "blocks", kwargs=kwargs, size=(8, 8))
    with pytest.raises(
        PluginError, match="a head of simple_cnn after blocks does not take one of 2 x 2 windows"
    ):
        quick(steps=1).fit([first], [ck.use("colorization", cells=2)])
    fit = quick(steps=1).fit([first], [ck.use("colorization", cells=1)])
    assert fit.history[0]["losses"]["colorization/loss"] > 0


def test_a_frozen_head_of_other_bins_is_refused() -> None:
    first = quick(steps=1).fit([task()], ["colorization"])
    with pytest.raises(
        PluginError, match=r"has the classes \['a -80 b .*Use the settings that it was trained with"
    ):
        quick(steps=1).fit([task("b")], [ck.use("colorization", bin_size=25)], frozen=first)


def test_conforms() -> None:
    assert_regularizer(Colorization, cells=2, bin_size=10)

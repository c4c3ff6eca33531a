"""The contrastive task: NT-Xent against its formula, what views are, whose images are negatives."""

from __future__ import annotations

import colorsys
import math
from typing import Any

import numpy as np
import pytest
import torch
from small import data_set, grouped, quick

import compatkit as ck
from compatkit.errors import PluginError
from compatkit.training.testing import assert_regularizer
from compatkit_plugins.regularizers import contrastive
from compatkit_plugins.regularizers.contrastive import Contrastive, colored, cropped, nt_xent


def reference(tensor: torch.Tensor, other: torch.Tensor, temperature: float) -> float:
    """Equation 1 and Algorithm 1 of the paper, term by term."""
    z = [vector.double().numpy() for pair in zip(tensor, other, strict=True) for vector in pair]

    def similar(i: int, k: int) -> float:
        return float(z[i] @ z[k] / np.linalg.norm(z[i]) / np.linalg.norm(z[k])) / temperature

    def loss(i: int, j: int) -> float:
        below = sum(math.exp(similar(i, k)) for k in range(len(z)) if k != i)
        return -math.log(math.exp(similar(i, j)) / below)

    pairs = len(tensor)
    return sum(loss(2 * k, 2 * k + 1) + loss(2 * k + 1, 2 * k) for k in range(pairs)) / (2 * pairs)


@pytest.mark.parametrize(("count", "temperature"), [(2, 0.5), (5, 0.1), (8, 1.0)])
def test_loss_is_the_formula(count: int, temperature: float) -> None:
    draw = torch.Generator().manual_seed(count)
    first, other = (3 * torch.randn(count, 6, generator=draw, dtype=torch.float64) for _ in range(2))
    wanted = reference(first, other, temperature)
    assert float(nt_xent(first, other, temperature)) == pytest.approx(wanted, rel=1e-12)
    assert float(nt_xent(first.float(), other.float(), temperature)) == pytest.approx(wanted, rel=1e-5)


def test_loss_by_hand() -> None:
    """Two images on two axes, views equal: cosines 1 to the partner and 0 to both others."""
    axes = 7 * torch.eye(2)
    wanted = -math.log(math.e**2 / (math.e**2 + 2))
    assert float(nt_xent(axes, axes, 0.5)) == pytest.approx(wanted, rel=1e-6)
    assert float(nt_xent(torch.ones(3, 4), torch.ones(3, 4), 0.5)) == pytest.approx(math.log(5), rel=1e-6)
    assert float(nt_xent(torch.ones(1, 4), torch.ones(1, 4), 0.5)) == 0  # nothing to contrast with


def test_gradients_in_double_precision_and_in_float32_under_bf16() -> None:
    first, other = (torch.randn(3, 4, dtype=torch.float64, requires_grad=True) for _ in range(2))
    assert torch.autograd.gradcheck(lambda x, y: nt_xent(x, y, 0.2), (first, other))
    with torch.autocast("cpu", torch.bfloat16):
        result = nt_xent(first.detach().float(), other.detach().float(), 0.2)
        assert float(result) == pytest.approx(reference(first.detach(), other.detach(), 0.2), rel=1e-5)


def test_a_crop_of_everything_is_the_image_or_its_mirror(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contrastive, "LONGEST", 1.0)
    images = torch.rand(16, 3, 7, 6)
    torch.testing.assert_close(cropped(images, 1.0, flip=False), images, rtol=0, atol=1e-5)
    torch.manual_seed(1)
    views = cropped(images, 1.0, flip=True)
    kinds = {
        tuple(torch.allclose(view, wanted, atol=1e-5) for wanted in (image, image.flip(-1)))
        for view, image in zip(views, images, strict=True)
    }
    assert kinds == {(True, False), (False, True)}


def test_crops_lie_inside_the_image_and_have_the_area_that_was_drawn() -> None:
    """Images that say where their pixels are: the least and most that a view shows, and the steps between."""
    side = 64
    across = (torch.arange(side) + 0.5) / side
    images = torch.stack([across.expand(side, side), across[:, None].expand(side, side)]).expand(
        200, 2, side, side
    )
    views = cropped(images, 0.08, flip=False)
    assert float(views.min()) >= float(across[0]) - 1e-6 and float(views.max()) <= float(across[-1]) + 1e-6
    widths = (views[:, 0, 0, -2] - views[:, 0, 0, 1]) * side / (side - 3)
    heights = (views[:, 1, -2, 0] - views[:, 1, 1, 0]) * side / (side - 3)
    areas, ratios = widths * heights, widths / heights
    assert 0.08 * 0.98 < float(areas.min()) < 0.13 and 0.9 < float(areas.max()) <= 1.001
    assert 3 / 4 * 0.98 < float(ratios.min()) and float(ratios.max()) < 4 / 3 * 1.02
    assert 0.35 < float(views.mean()) < 0.65  # neither side is preferred


def test_colors_keep_luma_but_for_brightness_and_contrast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contrastive, "BRIGHTNESS", 0.0)
    luma = torch.tensor(contrastive.YIQ[0])[:, None, None]
    images = 0.4 + 0.2 * torch.rand(64, 3, 4, 4)
    views = colored(images, 0.5)
    torch.testing.assert_close((views * luma).sum(1), (images * luma).sum(1), rtol=1e-4, atol=1e-4)
    gray = (views.amax(1) - views.amin(1)).flatten(1).amax(1) < 1e-5
    same = (views - images).abs().flatten(1).amax(1) < 1e-5
    assert 0 < int(gray.sum()) < 32 and 0 < int(same.sum()) < 32 and not bool((gray & same).any())


def test_brightness_and_contrast_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawn factors of 1 + .8 * .5 * (2 * .75 - 1) = 1.2 for both."""

    def drawn(*shape: int) -> torch.Tensor:
        return torch.full(shape, 0.75)

    monkeypatch.setattr(torch, "rand", drawn)
    view = colored(torch.tensor([[[[0.2, 0.6]]]]), 0.5)
    middle = 0.4 * 1.2
    wanted = [(0.2 * 1.2 - middle) * 1.2 + middle, (0.6 * 1.2 - middle) * 1.2 + middle]
    assert view.flatten().tolist() == pytest.approx(wanted, rel=1e-6)


def test_hues_turn_as_those_of_the_standard_library() -> None:
    """A third of a circle in YIQ, against colorsys, which rounds its coefficients."""
    turn = torch.tensor([2 * math.pi / 3])
    mixing = contrastive._mixing(torch.ones(1), turn)[0]
    red, green, blue = (mixing @ torch.tensor([0.5, 0.3, 0.2])).tolist()
    y, i, q = colorsys.rgb_to_yiq(0.5, 0.3, 0.2)
    angle = float(turn)
    wanted = colorsys.yiq_to_rgb(
        y, i * math.cos(angle) - q * math.sin(angle), i * math.sin(angle) + q * math.cos(angle)
    )
    assert (red, green, blue) == pytest.approx(wanted, abs=0.01)


def tasks(*names: str, channels: int = 1) -> list[ck.Task]:
    return [
        ck.Task(name, data_set(name, seed=seed, channels=channels), "resnet8_cifar", "layer2", size=16)
        for seed, name in enumerate(names)
    ]


@pytest.mark.parametrize("channels", [1, 3])
def test_views_are_others_for_every_image_view_task_and_step(
    channels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[torch.Tensor] = []
    extract = ck.Step.extract

    def watched(self: ck.Step, images: torch.Tensor, *, write_statistics: bool) -> torch.Tensor:
        assert not write_statistics and images.shape[1:] == self.batch.images.shape[1:]
        assert images.is_contiguous(memory_format=torch.channels_last)
        seen.extend(images.clone().chunk(2))  # both views in one batch
        return extract(self, images, write_statistics=write_statistics)

    monkeypatch.setattr(ck.Step, "extract", watched)
    runs: list[list[torch.Tensor]] = []
    for seed in (0, 0, 1):
        seen = []
        quick(steps=2, seed=seed).fit(tasks("left", "right", channels=channels), ["contrastive"])
        runs.append(seen)
    first, again, other = runs
    assert len(first) == 8  # two views of two tasks in two steps
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(first, other, strict=True))
    assert all(not torch.equal(a, b) for i, a in enumerate(first) for b in first[:i])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": 0}, "'temperature' must be a number above 0; got 0"),
        ({"temperature": math.inf}, "'temperature' must be a number above 0; got inf"),
        ({"temperature": math.nan}, "'temperature' must be a number above 0; got nan"),
        ({"dimensions": 1}, "'dimensions' must be a whole number from 2 up; got 1"),
        ({"dimensions": 8.0}, r"the setting 'dimensions' is a whole number; got 8\.0"),
        ({"least_area": 0}, "'least_area' must be a number above 0 and up to 1; got 0"),
        ({"least_area": 1.5}, r"'least_area' must be .* got 1\.5"),
        ({"flip": 1}, "the setting 'flip' is True or False; got 1"),
        ({"strength": -0.1}, r"'strength' must be a number from 0 to 1; got -0\.1"),
        ({"strength": True}, "the setting 'strength' is a number; got True"),
    ],
)
def test_settings_that_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(PluginError, match=message):
        quick(steps=1).fit(tasks("a"), [ck.use("contrastive", **settings)])


class Alone:
    """Leaves one image of a batch."""

    @ck.hookimpl
    def compatkit_views(self, step: ck.Step, batch: ck.Batch) -> ck.Batch:
        return ck.Batch(batch.images[:1], batch.labels[:1], batch.index[:1])


def test_an_image_alone_and_a_frozen_head_of_another_width_are_refused() -> None:
    with pytest.raises(
        PluginError, match=r"two images at least.*a batch of task 'a' has 1\. Give it larger batches"
    ):
        quick(steps=1).fit([grouped()], ["alone", "contrastive"], factories={"alone": Alone})
    first = quick(steps=1).fit(tasks("a"), [ck.use("contrastive", dimensions=16)])
    with pytest.raises(
        PluginError, match=r"head 'contrastive' has outputs of shape \(16,\); this run needs 128"
    ):
        quick(steps=1).fit(tasks("b"), ["contrastive"], frozen=first)


def test_conforms() -> None:
    assert_regularizer(Contrastive, temperature=1, strength=0)

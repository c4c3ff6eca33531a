"""Reconstruction: projections worked out by hand, batches, images that cannot be compared, the picture grid."""

from __future__ import annotations

import io
import math
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import compatkit as ck
from compatkit.errors import DataError, UsageError
from compatkit.evaluation.metrics import Table
from compatkit.training.testing import assert_metric
from compatkit_plugins.metrics.reconstruction import Reconstruction, errors_of, grid


def linear(weight: Tensor, bias: Tensor | None = None) -> nn.Sequential:
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None)
    layer.weight.data = weight
    if bias is not None:
        layer.bias.data = bias
    made = nn.Sequential()
    made.add_module("flat", nn.Flatten())
    made.add_module("fc", layer)
    return made


IMAGES = torch.tensor([[1.0, 0, 0, 0], [0, 3, 0, 4], [1, 1, 1, 1]]).view(3, 1, 2, 2)


def tables(network: nn.Module, images: Tensor = IMAGES, **settings: Any) -> tuple[Table, Table]:
    batch_size = settings.pop("batch_size", 2)
    labels = torch.zeros(len(images), dtype=torch.int64)
    table = ck.measure(network, (images, labels), [Reconstruction(**settings)], batch_size=batch_size)
    return table.table("reconstruction/summary"), table.table("reconstruction/images")


@pytest.mark.parametrize("bias", [None, torch.tensor([5.0, -7.0])])
def test_orthonormal_rows_give_back_the_projection(bias: Tensor | None) -> None:
    # Rows along the first two axes: what lies along the others is lost; the bias is taken off again.
    summary, each = tables(linear(torch.eye(4)[:2], bias))
    result = [each.at(score="relative", image=str(place)).value for place in range(3)]
    assert result == pytest.approx([0.0, 16 / 25, 0.5], abs=1e-6)
    squares = [each.at(score="mean square", image=str(place)).value for place in range(3)]
    assert squares == pytest.approx([0.0, 4.0, 0.5], abs=1e-6)
    shown = [summary.at(score="relative", summary=name).value for name in ("mean", "median", "least", "most")]
    assert shown == pytest.approx([(16 / 25 + 0.5) / 3, 0.5, 0.0, 16 / 25], abs=1e-6)


def test_a_network_that_loses_nothing_gives_its_input_back() -> None:
    turned = torch.linalg.qr(torch.randn(4, 4, generator=torch.Generator().manual_seed(0))).Q
    summary, _ = tables(linear(turned))
    assert summary.at(score="relative", summary="most").value == pytest.approx(0.0, abs=1e-10)
    assert tables(linear(torch.zeros(2, 4)))[0].at(score="relative", summary="mean").value == 1.0


def deep() -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = nn.Sequential()
        for name, value in (
            ("conv", nn.Conv2d(1, 3, 3)), ("norm", nn.BatchNorm2d(3)), ("act", nn.ReLU()), ("flat", nn.Flatten()),
            ("fc", nn.Linear(48, 2)),
        ):  # fmt: skip
            made.add_module(name, value)
        made(torch.randn(16, 1, 6, 6))  # running statistics of its own
    return made


def test_an_images_error_does_not_depend_on_its_batch_and_stands_at_its_place() -> None:
    images = torch.rand(7, 1, 6, 6, generator=torch.Generator().manual_seed(1))
    net = deep()
    first, other = (tables(net, images, batch_size=size)[1].values for size in (7, 3))
    assert np.allclose(first, other, rtol=1e-4)
    seeded = ck.measure(net, (images, torch.zeros(7).long()), [Reconstruction()], seed=3)[
        "reconstruction/images"
    ]
    assert np.allclose(seeded.values, first, rtol=1e-4)  # type: ignore[union-attr]
    assert net.training and net.get_submodule("norm").training
    assert_metric(Reconstruction)


def test_batch_statistics_and_an_output_activation_are_said() -> None:
    images = torch.rand(4, 1, 6, 6, generator=torch.Generator().manual_seed(2))
    plain, relu = (
        tables(deep(), images, bn_reverse="batch", output_activation=item)[0] for item in (None, "relu")
    )
    assert "bn_reverse=batch, output_activation=relu" in relu.estimator
    assert not np.allclose(plain.values, relu.values)


def test_an_image_of_zeros_has_no_relative_error() -> None:
    images = torch.cat([torch.zeros(1, 1, 2, 2), IMAGES])
    network = nn.Sequential()
    for name, value in (
        ("flat", nn.Flatten()),
        ("one", nn.Linear(4, 4)),
        ("act", nn.Tanh()),
        ("fc", nn.Linear(4, 2)),
    ):
        network.add_module(name, value)
    summary, each = tables(network, images)
    cell = each.at(score="relative", image="0")
    assert (cell.status, cell.reason) == ("undefined", "the image is zero, or what came back is not finite")
    assert (
        summary.at(score="relative", summary="mean").reason
        == "without 1 of 4 images whose error is not finite"
    )
    assert each.at(score="mean square", image="0").value is not None
    relative, square = errors_of(torch.zeros(1, 1), torch.zeros(1, 1))
    assert float(relative) == 0.0 and float(square) == 0.0
    assert math.isinf(errors_of(torch.zeros(1, 1), torch.ones(1, 1))[0])
    only = tables(network, images[:1])[0].at(score="relative", summary="mean")
    assert only.reason == "no image has a finite error"


def test_the_grid_shows_images_above_what_came_back() -> None:
    png = grid(linear(torch.eye(4)[:2]), IMAGES, low=0, high=1)
    shown = np.asarray(Image.open(io.BytesIO(png)).convert("L")).astype(int)
    height, width = shown.shape
    # The last image is white everywhere; of it the lower half is lost.
    x = int(width * 0.85)
    assert shown[int(height * 0.42), x] == 255 and shown[int(height * 0.9), x] == 0


def test_refusals() -> None:
    class Branched(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(4, 2), nn.Linear(4, 2)

        def forward(self, images: Tensor) -> Tensor:
            return self.one(images.flatten(1)) + self.two(images.flatten(1))

    with pytest.raises(UsageError, match="local"):
        tables(Branched())
    with pytest.raises(UsageError, match="'bn_reverse' must be one of"):
        Reconstruction("stored")  # type: ignore[arg-type]
    with pytest.raises(
        UsageError, match="'output_activation' must be one of relu, sigmoid, tanh, or None; got 'elu'"
    ):
        Reconstruction(output_activation="elu")
    with pytest.raises(DataError, match="images and reconstructions must have the same shape"):
        errors_of(IMAGES, IMAGES[:1])

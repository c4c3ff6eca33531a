"""Covariances of patches: positions by hand, a slow float64 reference, streaming, samples, refusals."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from compatkit.errors import DataError, UsageError
from compatkit_plugins.patch_covariance import (
    LARGEST,
    PatchMoments,
    filter_covariance,
    patches_of,
    principal_directions,
    unsuitable,
)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def slow_patches(layer: Any, inputs: Tensor) -> Tensor:
    """Visit every position of the layer, and keep the patches that lie inside the input."""
    sides = (0,) * len(layer.kernel_size) if isinstance(layer.padding, str) else layer.padding
    axes = []
    for size, kernel, stride, padding, dilation in zip(
        inputs.shape[2:], layer.kernel_size, layer.stride, sides, layer.dilation, strict=True
    ):
        reach = (kernel - 1) * dilation
        starts = range(-padding, size + padding - reach, stride)
        axes.append([(at, at + reach + 1, dilation) for at in starts if at >= 0 and at + reach < size])
    rows = [
        image[(slice(None), *(slice(*place) for place in places))].flatten()
        for image in inputs
        for places in itertools.product(*axes)
    ]
    return torch.stack(rows)


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Conv2d(3, 4, 3, padding=1), (2, 3, 7, 6)),
        (nn.Conv2d(2, 4, 3, stride=2, padding=1), (2, 2, 8, 9)),
        (nn.Conv2d(2, 4, (3, 2), stride=(3, 2), padding=(1, 0), dilation=(2, 1)), (2, 2, 11, 8)),
        (nn.Conv2d(2, 4, 3, padding="same"), (2, 2, 5, 5)),
        (nn.Conv1d(2, 4, 5, padding=2), (3, 2, 9)),
        (nn.Conv3d(1, 2, 2), (2, 1, 3, 4, 3)),
    ],
)
def test_patches_are_those_that_the_layer_visits_inside_its_input(layer: Any, shape: tuple[int, ...]) -> None:
    inputs = drawn(*shape)
    result = patches_of(layer, inputs)
    assert torch.equal(result, slow_patches(layer, inputs))
    # With weights, they give the layer's output at the inner positions.
    whole = {
        tuple(entry.tolist())
        for entry in layer(inputs).movedim(1, -1).flatten(0, -2).double().round(decimals=4)
    }
    inner = (result @ layer.weight.flatten(1).T + layer.bias).double().round(decimals=4)
    near = [min(np.abs(np.subtract(entry, other)).max() for other in whole) for entry in inner.tolist()]
    assert max(near) < 1e-3


def test_a_linear_layer_sees_vectors_and_tokens() -> None:
    layer = nn.Linear(5, 2)
    assert torch.equal(patches_of(layer, inputs := drawn(4, 5)), inputs)
    tokens = drawn(4, 3, 5)
    assert torch.equal(patches_of(layer, tokens), tokens.reshape(12, 5))


def test_a_sample_depends_on_the_image_alone() -> None:
    layer, inputs = nn.Conv2d(2, 4, 3), drawn(6, 2, 8, 8)
    keys = torch.tensor([4, 9, 2, 7, 1, 0])
    whole = patches_of(layer, inputs, keys, 5)
    assert whole.shape == (30, 18)
    assert torch.equal(patches_of(layer, inputs[2:4], keys[2:4], 5), whole[10:20])
    every = {tuple(entry) for entry in patches_of(layer, inputs[:1]).tolist()}
    sampled = {tuple(entry) for entry in whole[:5].tolist()}
    assert len(sampled) == 5
    assert sampled < every
    assert torch.equal(patches_of(layer, inputs, keys, 99), patches_of(layer, inputs))


def test_moments_stream_in_float64() -> None:
    rows = drawn(101, 4) * 1e-2 + 100  # a mean that would cost float32 all digits of the covariance
    whole = PatchMoments.of(rows[:40]).merged(PatchMoments.of(rows[40:41]).merged(PatchMoments.of(rows[41:])))
    wanted = np.cov(rows.double().numpy().T, bias=True)
    assert whole.count == 101
    assert whole.covariance.numpy() == pytest.approx(wanted, rel=1e-10)
    assert whole.mean.numpy() == pytest.approx(rows.double().numpy().mean(0), rel=1e-14)


def test_principal_directions_are_ordered() -> None:
    values, vectors = principal_directions(torch.diag(torch.tensor([1.0, 5.0, 3.0], dtype=torch.float64)))
    assert values.tolist() == [5, 3, 1]
    assert vectors.abs().tolist() == [[0, 1, 0], [0, 0, 1], [1, 0, 0]]


def test_filters_are_centered_over_filters() -> None:
    filters = drawn(50, 3, 2, 2)
    wanted = np.cov(filters.flatten(1).double().numpy().T, bias=True)
    assert filter_covariance(filters).numpy() == pytest.approx(wanted, abs=1e-12)


class Scaled(nn.Conv2d):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) * 2


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (nn.Conv2d(4, 4, 3, groups=2), "2 groups"),
        (nn.ReLU(), "neither a convolution"),
        (Scaled(1, 1, 3), "by itself"),
        (nn.utils.parametrizations.weight_norm(nn.Conv2d(1, 1, 3)), "by itself"),
        (nn.Linear(LARGEST + 1, 1), "fits into memory"),
    ],
)
def test_layers_without_such_filters_are_refused(layer: nn.Module, message: str) -> None:
    assert message in unsuitable(layer)
    with pytest.raises(UsageError):
        patches_of(layer, drawn(1, 4, 8, 8))


def test_filters_that_reach_over_the_border_everywhere_are_refused() -> None:
    with pytest.raises(DataError):
        patches_of(nn.Conv2d(1, 1, 5, padding=2), drawn(1, 1, 4, 4))

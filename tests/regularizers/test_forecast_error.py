"""Forecasts: the paper's count of parameters, the network's inputs, the error by hand, the real trainer."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from small import quick

import compatkit as ck
from compatkit.errors import CompatkitError, UsageError
from compatkit.training.testing import assert_regularizer
from compatkit_plugins.data_sets.flow_forecasts import flow_forecasts
from compatkit_plugins.networks.forecast import SPAN, ForecastResNet, Unstack, forecast_resnet
from compatkit_plugins.regularizers.forecast_error import ForecastError, latitude_weights, target_fields

KWARGS = {"inputs": 2, "outputs": 1, "channels": 4, "blocks": 2}


def task(**settings: Any) -> ck.Task:
    data = flow_forecasts(simulations=2, each=8, size=8, back=(0, 2), lead=2)
    inputs = {"kwargs": {**KWARGS, "inputs": 6, "outputs": 3}, "size": data.train.size, **settings}
    return ck.Task("a", data, inputs.pop("model", "forecast_resnet"), inputs.pop("cut", "last"), **inputs)


def test_the_network_has_the_papers_parameters() -> None:
    count = sum(parameter.numel() for parameter in forecast_resnet().parameters())
    convolutions = 128 * 117 * 49 + 2 * 19 * 128 * 128 * 9 + 3 * 128 * 9
    assert count == convolutions + 39 * 128 + 3 + 39 * 2 * 128
    assert f"{count / 1e6:.2f}" == "6.36"


def test_inputs_are_the_first_fields_in_standard_deviations() -> None:
    fields = torch.linspace(0, 1, 12).reshape(1, 1, 6, 2)
    inputs = Unstack(2, 3)(fields)
    torch.testing.assert_close(inputs[0], SPAN * (torch.linspace(0, 1, 12)[:8].reshape(2, 2, 2) - 0.5))
    torch.testing.assert_close(target_fields(fields, (1, 2, 2))[0, 0], SPAN * (fields[0, 0, 4:] - 0.5))
    network = forecast_resnet(img_size=(24, 5), **KWARGS).eval()
    images = torch.rand(2, 1, 24, 5)
    assert network(images).shape == (2, 1 * 8 * 5)
    other = images.clone()
    other[:, :, 16:] = 0  # the future is not seen
    assert torch.equal(network(images), network(other))


def test_latitudes_count_by_their_cosine() -> None:
    cosines = [math.cos(math.radians(number)) for number in (-67.5, -22.5, 22.5, 67.5)]
    expected = torch.tensor([[cosine * 4 / sum(cosines)] for cosine in cosines])
    torch.testing.assert_close(latitude_weights(4), expected)


class Checks(ForecastError):
    """Compares its loss with the one by loops."""

    @ck.hookimpl
    def compatkit_losses(self, step: ck.Step) -> Any:
        result = ForecastError.compatkit_losses(self, step)
        made, images = step.features.detach(), step.batch.images
        weights = [math.cos((row + 0.5) / 8 * math.pi - math.pi / 2) for row in range(8)]
        total = 0.0
        for field in range(3):
            for row in range(8):
                target = 8 * (images[:, 0, (6 + field) * 8 + row] - 0.5)
                error = float((made[:, field, row] - target).square().mean())
                total += 8 * weights[row] / sum(weights) * error
        assert float(result["squares"].detach()) == pytest.approx(total / 24, rel=1e-4)
        return result


def test_the_loss_is_that_of_loops_in_the_real_trainer_and_falls() -> None:
    quick(steps=2).fit([task()], [ck.use("checks", latitudes=True)], factories={"checks": Checks})
    uses = ["forecast_error", ck.use("reverse_pass", variant="local", weight=0.01, stop=20)]
    fit = quick(steps=60, lr=3e-3).fit([task()], uses)
    losses = [row["losses"] for row in fit.history]
    assert losses[-1]["forecast_error/squares"] < 0.5 * losses[0]["forecast_error/squares"]
    assert "reverse_pass/loss" in losses[19] and "reverse_pass/loss" not in losses[20]


def test_it_conforms() -> None:
    assert_regularizer(ForecastError, tasks=[task()])


def test_other_tasks_and_networks_are_refused() -> None:
    with pytest.raises(CompatkitError):
        quick(steps=1).fit([task(cut="blocks")], [ck.use("image_error")])
    many = {"inputs": 6, "outputs": 3, "channels": 16, "blocks": 1}
    for settings in ({"augment": ["crop"]}, {"cut": "blocks", "kwargs": many}):
        with pytest.raises(CompatkitError) as caught:
            quick(steps=1).fit([task(**settings)], ["forecast_error"])
        assert (caught.value.__cause__ or caught.value).subject == "a"  # type: ignore[attr-defined]
    for settings in ({"img_size": (25, 5)}, {"in_chans": 3, "img_size": 24}, {"blocks": 0}):
        with pytest.raises(UsageError):
            ForecastResNet(**{"img_size": (24, 5), **KWARGS, **settings})

"""Specialization: fractions by hand, a slow reference, batches of any size, and a network that was trained."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from small import data_set, quick
from torch import Tensor

import compatkit as ck
from compatkit.errors import DataError, UsageError
from compatkit.evaluation.metrics import Observation, Table
from compatkit.training.testing import assert_metric
from compatkit_plugins.gaussian import gaussian, gaussian_normalization
from compatkit_plugins.metrics.specialization import Specialization


def look(values: Tensor, cuts: tuple[int, ...] = (), **settings: Any) -> dict[str, Table]:
    """Let the metric look at what one layer gave, cut into batches."""
    metric = Specialization(**settings)
    state = metric.init()
    for part in torch.tensor_split(values, cuts):
        state = metric.update(state, {"act": part})
    return {entry.name: entry for entry in metric.finalize(state, {})}


def test_it_streams() -> None:
    outputs = torch.randn(9, 3, 2, 2, generator=torch.Generator().manual_seed(0))
    batches = [
        Observation(
            images=outputs[at],
            labels=torch.zeros(len(at), dtype=torch.int64),
            positions=at,
            logits=torch.zeros(len(at), 2),
            outputs={"act": outputs[at]},
        )
        for at in (torch.arange(4), torch.arange(4, 9))
    ]
    assert_metric(Specialization, batches=batches)


def test_fractions_by_hand() -> None:
    # Four inputs, three units: one is never active, one always, one for the first input alone.
    values = torch.tensor([[0.0, 2.0, 3.0], [0.0, 1.0, 0.0], [0.0, 1.0, 0.0], [0.0, 5.0, 0.0]])
    result = look(values, (1,), bins=4)
    shares = {
        name: result["specialization"].at(layer="act", quantity=name).value
        for name in ("mean", "never", "always")
    }
    assert shares == {
        "mean": pytest.approx(5 / 12),
        "never": pytest.approx(1 / 3),
        "always": pytest.approx(1 / 3),
    }
    # units: 0, 1 and 1/4, which opens the second bin; inputs: 2/3 once, 1/3 three times
    assert result["specialization/units"].values[0].tolist() == pytest.approx([1 / 3, 1 / 3, 0, 1 / 3])
    assert result["specialization/inputs"].values[0].tolist() == pytest.approx([0, 3 / 4, 1 / 4, 0])


def test_units_of_a_map_are_channels_at_positions() -> None:
    values = torch.zeros(2, 3, 4, 5)
    values[:, 1, 2, 3] = 1.0
    result = look(values)["specialization"]
    assert result.at(layer="act", quantity="always").value == pytest.approx(1 / 60)


def test_it_agrees_with_a_slow_reference() -> None:
    values = torch.randn(40, 7, 3, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    result, bins = look(values, (13, 30), bins=10, threshold=0.3), [0] * 10
    for unit in range(63):
        active = sum(float(values[index].flatten()[unit]) > 0.3 for index in range(40))
        bins[min(active * 10 // 40, 9)] += 1
    assert result["specialization/units"].values[0].tolist() == pytest.approx([entry / 63 for entry in bins])


def test_in_a_network_half_of_the_units_are_active_at_first() -> None:
    """For He weights without biases, the sign of each unit of the first layer is even on centered inputs."""
    data = gaussian([1.0] * 20, train=64, test=2000, classes=2)
    task = ck.Task(
        "a",
        data,
        "fully_connected",
        "blocks.0",
        kwargs={"widths": [50, 50], "img_size": [1, 20]},
        normalize=gaussian_normalization([1.0] * 20),
    )
    fit = quick(steps=0).fit([task])
    measured = ck.measure(fit.tasks["a"], data.test, ["specialization"], layers=["blocks.*.act"])
    table = measured.table("specialization")
    # 2,000 inputs: the deviation of a unit's fraction is .011, of the mean of 50 units at most that
    assert table.at(layer="blocks.0.act", quantity="mean").value == pytest.approx(0.5, abs=0.03)
    assert table.count == 2000 and table.axes["layer"] == ("blocks.0.act", "blocks.1.act")


def test_without_examples_nothing_is_defined() -> None:
    for entry in Specialization(bins=2).finalize({}, {"act": None}):
        assert {cell.status for cell in entry.cells} == {"undefined"}


@pytest.mark.parametrize(
    "settings", [{"bins": 0}, {"bins": 2.0}, {"threshold": float("nan")}, {"threshold": True}]
)
def test_settings_that_cannot_be_used_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Specialization(**settings)


@pytest.mark.parametrize("values", [torch.zeros(3), torch.zeros(3, 2, dtype=torch.int64)])
def test_outputs_that_are_no_values_of_units_are_refused(values: Tensor) -> None:
    with pytest.raises(DataError):
        look(values)


def test_images_of_a_task_are_measured_at_every_layer() -> None:
    task = ck.Task(
        "a", data_set("a"), "simple_cnn", "blocks.1", size=12, kwargs={"convolutions": 2, "img_size": 12}
    )
    fit = quick(steps=1).fit([task])
    table = ck.measure(fit.tasks["a"], task.data.test, ["specialization"], layers=["blocks.*.act", "act"])
    assert table.table("specialization/units").values.sum(1).tolist() == pytest.approx([1.0] * 3)

"""Loss variation, gradient scale and gradient projection: by hand, by slow references, with controls."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import compatkit as ck
from compatkit.errors import DataError, UsageError
from compatkit.evaluation.metrics import Metric, Table
from compatkit.training.testing import assert_metric
from compatkit_plugins.metrics.gradient_projection import GradientProjection
from compatkit_plugins.metrics.gradient_scale import GradientScale
from compatkit_plugins.metrics.loss_variation import LossVariation


def network() -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(1, 3, 3, bias=False),
            nn.ReLU(inplace=True),
            nn.Flatten(),
            nn.Linear(12, 5),
            nn.Linear(5, 3),
        ).eval()


DATA = torch.randn(9, 1, 4, 4, generator=torch.Generator().manual_seed(1)), torch.arange(9) % 3


def measured_table(metric: Metric, name: str, net: nn.Module | None = None, **more: Any) -> Table:
    return ck.measure(net or network(), DATA, [metric], **more).table(name)


def gradients(net: nn.Module) -> list[Tensor]:
    return list(torch.autograd.grad(F.cross_entropy(net(DATA[0]), DATA[1]), list(net.parameters())))


def test_the_loss_along_the_gradient_equals_a_slow_reference() -> None:
    net = network()
    slopes = gradients(net)
    norm = float(torch.cat([entry.flatten() for entry in slopes]).norm())
    table = measured_table(LossVariation(points=5, rate=0.3, length=0.2, chunk=4), "loss_variation", net)
    for protocol, step in (("gradient", 0.3), ("fixed", 0.2 / norm)):
        losses = []
        for at in range(6):
            moved = network()
            with torch.no_grad():
                for parameter, slope in zip(moved.parameters(), slopes, strict=True):
                    parameter.sub_(at * step * slope)
                losses.append(float(F.cross_entropy(moved(DATA[0]), DATA[1])))
        expected = (losses[0], max(abs(loss - losses[0]) for loss in losses), max(losses) - min(losses), norm)
        row = [
            table.at(case="as given", protocol=protocol, quantity=entry).value
            for entry in table.axes["quantity"]
        ]
        assert row == pytest.approx(expected, rel=1e-4)


def test_a_step_that_leaves_the_numbers_has_no_value() -> None:
    table = measured_table(LossVariation(points=2, rate=1e38), "loss_variation")
    cell = table.at(case="as given", protocol="gradient", quantity="range")
    assert cell.status == "undefined"
    assert table.at(case="as given", protocol="fixed", quantity="range").status == "ok"


def slow_outputs(net: nn.Sequential) -> dict[str, list[Tensor]]:
    """Return the gradient of each example's loss by each layer's output, one example at a time."""
    layers = {"0": net[0], "3": net[3], "4": net[4]}
    rows: dict[str, list[Tensor]] = {name: [] for name in layers}
    for image, label in zip(*DATA, strict=True):
        first = net[0](image[None])
        hidden = net[3](net[2](first.relu()))
        logits = net[4](hidden)
        parts = torch.autograd.grad(F.cross_entropy(logits, label[None]), [first, hidden, logits])
        for name, part in zip(layers, parts, strict=True):
            rows[name].append(part[0])
    return rows


def test_scales_equal_gradients_of_one_example_at_a_time() -> None:
    net = network()
    table = measured_table(GradientScale(chunk=4), "gradient_scale", net)
    assert table.axes["layer"] == ("0", "3", "4")
    rows = {name: torch.stack(slow_output).double() for name, slow_output in slow_outputs(net).items()}
    scales = {name: float(entry.flatten(1).square().sum(1).mean().sqrt()) for name, entry in rows.items()}
    weights = dict(zip(("0", "3", "4"), (net[0].weight, net[3].weight, net[4].weight), strict=True))
    names = dict(net.named_parameters())
    slopes = dict(zip(names, gradients(net), strict=True))
    for name, scale in scales.items():
        row = [
            table.at(case="as given", layer=name, quantity=entry).value for entry in table.axes["quantity"]
        ]
        slope = float(slopes[f"{name}.weight"].norm())
        assert row == pytest.approx(
            (scale, scale / scales["4"], slope, slope / float(weights[name].detach().norm())),  # type: ignore[operator]
            rel=1e-4,
        )


def test_growth_is_the_factor_of_each_layer_down() -> None:
    # Linear layers that double what they are given double the gradient on its way back.
    net = nn.Sequential(nn.Flatten(), *(nn.Linear(4, 4, bias=False) for _ in range(4)))
    for layer in net[1:]:
        layer.weight = nn.Parameter(2.0 * torch.eye(4))  # type: ignore[assignment]
    data = torch.randn(6, 1, 2, 2, generator=torch.Generator().manual_seed(0)), torch.arange(6) % 4
    table = ck.measure(net, data, [GradientScale()]).table("gradient_scale/growth")
    assert table.cells[0].value == pytest.approx(2.0)


def test_projections_equal_their_definitions() -> None:
    net = network()
    table = measured_table(GradientProjection(top=3, chunk=4), "gradient_projection", net)
    rows = slow_outputs(net)
    slopes = dict(zip(dict(net.named_parameters()), gradients(net), strict=True))
    for name, weight in (("0", net[0].weight), ("3", net[3].weight), ("4", net[4].weight)):
        matrix = weight.detach().flatten(1).double().numpy()  # type: ignore[operator]
        columns = torch.cat(
            [entry.flatten(1) if entry.ndim == 3 else entry[:, None] for entry in rows[name]], 1
        )
        left = np.linalg.svd(columns.double().numpy(), full_matrices=False)[0][:, :3]
        u, _, v = np.linalg.svd(slopes[f"{name}.weight"].flatten(1).double().numpy(), full_matrices=False)
        norm, count = np.linalg.norm(matrix), min(3, len(matrix))
        expected = {
            "output": np.linalg.norm(matrix.T @ left, axis=0)[:count] / norm,
            "isotropic": np.full(count, len(matrix) ** -0.5),
            "weight": np.abs([u[:, i] @ matrix @ v[i] for i in range(count)]) / norm,
            "weight, right": np.linalg.norm(matrix @ v[:count].T, axis=0) / norm,
        }
        for quantity, values in expected.items():
            row = [
                table.at(case="as given", layer=name, quantity=quantity, place=str(i + 1)).value
                for i in range(count)
            ]
            # The gradients of three logits sum to zero, so that those behind the convolution have two directions.
            sure = count if name == "0" else 2
            assert (
                name == "0"
                or quantity == "isotropic"
                or table.at(case="as given", layer=name, quantity=quantity, place="3").status == "degenerate"
            )
            assert row[:sure] == pytest.approx(values[:sure].tolist(), rel=1e-3), (name, quantity)


def test_they_conform() -> None:
    assert_metric(LossVariation, points=2, controls=True)
    assert_metric(GradientScale, controls=True)
    assert_metric(GradientProjection, top=2)


def test_controls_keep_the_norm_of_each_filter() -> None:
    scale = measured_table(GradientScale(controls=True), "gradient_scale")
    for layer in scale.axes["layer"]:
        norms = [
            scale.at(case=case, layer=layer, quantity="weight").value  # type: ignore[operator]
            / scale.at(case=case, layer=layer, quantity="to weight").value
            for case in scale.axes["case"]
        ]
        assert norms == pytest.approx([norms[0]] * 3, rel=1e-5)
    outputs = [scale.at(case=case, layer="0", quantity="output").value for case in scale.axes["case"]]
    assert len(set(outputs)) == 3


def test_named_layers_are_the_only_ones() -> None:
    assert measured_table(GradientScale(), "gradient_scale", layers=["3"]).axes["layer"] == ("3",)


def test_a_layer_that_is_not_called_is_refused() -> None:
    class Unused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.other = nn.Linear(16, 3), nn.Linear(16, 3)

        def forward(self, images: Tensor) -> Tensor:
            return self.used(images.flatten(1))

    with pytest.raises(DataError) as caught:
        measured_table(GradientScale(), "gradient_scale", Unused())
    assert caught.value.subject == "other"


@pytest.mark.parametrize(
    ("factory", "settings", "subject"),
    [
        (LossVariation, {"points": 0}, "points"),
        (LossVariation, {"rate": -1.0}, "rate"),
        (LossVariation, {"length": float("nan")}, "length"),
        (GradientProjection, {"top": 0}, "top"),
        (GradientScale, {"chunk": 1.5}, "chunk"),
    ],
)
def test_bad_settings(factory: Any, settings: dict[str, Any], subject: str) -> None:
    with pytest.raises(UsageError) as caught:
        factory(**settings)
    assert caught.value.subject == subject

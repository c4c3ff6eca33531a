"""Loss landscape: directions by definition, a slow point-by-point reference, interrupted grids, refusals."""

from __future__ import annotations

import copy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import compatkit as ck
from compatkit.errors import DataError, UsageError
from compatkit.training.testing import assert_metric
from compatkit_plugins.metrics import loss_landscape
from compatkit_plugins.metrics.loss_landscape import LossLandscape, directions


class Residual(nn.Module):
    """A network with a shortcut, an activation that works in place, and a layer that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.act = nn.ReLU(inplace=True)
        self.same = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.block = nn.Sequential(nn.Conv2d(4, 4, 1), nn.ReLU(inplace=True))
        self.fc = nn.Linear(4, 3)

    def forward(self, images: Tensor) -> Tensor:
        out = self.act(self.norm(self.stem(images)))
        out = F.relu_(self.same(out)) + out
        out = self.same(out) + self.block(out)
        return self.fc(out.mean((2, 3)))


def network() -> Residual:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = Residual()
        made(torch.randn(8, 1, 5, 5))
    return made.eval()


DATA = torch.randn(10, 1, 5, 5, generator=torch.Generator().manual_seed(1)), torch.arange(10) % 3


def grid(net: nn.Module, layers: tuple[str, ...] = (), **settings: Any) -> np.ndarray:
    inputs = {"points": 4, "step": 0.2, "chunk": 4, **settings}
    return ck.measure(net, DATA, [LossLandscape(**inputs)], layers=layers).table("loss_landscape").values[0]


def test_directions_are_orthogonal_and_have_the_norm_of_each_filter() -> None:
    draw = torch.Generator().manual_seed(0)
    weights = [torch.randn(5, 3, 3, 3, generator=draw), torch.randn(4, 7, generator=draw)]
    weights[0][2] = 0
    first, other = directions(weights, 2, torch.Generator().manual_seed(1))
    for weight, a, b in zip(weights, first, other, strict=True):
        norms = weight.flatten(1).norm(dim=1)
        assert torch.allclose(a.flatten(1).norm(dim=1), norms, atol=1e-6)
        assert torch.allclose(b.flatten(1).norm(dim=1), norms, atol=1e-6)
        assert torch.allclose((a * b).flatten(1).sum(1), torch.zeros(len(a)), atol=1e-5)


def test_a_filter_of_one_value_moves_along_the_first_direction_only() -> None:
    first, other = directions([torch.tensor([[2.0], [-3.0]])], 2, torch.Generator().manual_seed(0))
    assert first[0].abs().tolist() == [[2.0], [3.0]] and other[0].tolist() == [[0.0], [0.0]]


@pytest.mark.parametrize("layers", [(), ("stem",), ("same",), ("block",), ("fc",), ("block", "fc")])
def test_the_grid_equals_a_slow_reference(layers: tuple[str, ...]) -> None:
    net, metric = network(), LossLandscape(points=4, step=0.2)
    moving = [
        name
        for name, value in net.named_parameters()
        if value.ndim > 1 and (not layers or name.startswith(layers))
    ]
    ways = directions([net.get_parameter(name) for name in moving], 2, torch.Generator().manual_seed(1))
    slow = np.zeros((4, 4))
    for i, p in enumerate((-0.4, -0.2, 0.0, 0.2)):
        for j, q in enumerate((-0.4, -0.2, 0.0, 0.2)):
            copied = copy.deepcopy(net).double()
            for place, name in enumerate(moving):
                with torch.no_grad():
                    copied.get_parameter(name).add_(p * ways[0][place] + q * ways[1][place])
            slow[i, j] = F.cross_entropy(copied(DATA[0].double()), DATA[1]).item()
    assert metric.coordinates == pytest.approx((-0.4, -0.2, 0.0, 0.2))
    assert np.allclose(grid(net, layers, precision="float64"), slow, rtol=1e-6)  # directions in float32 there
    assert np.allclose(grid(net, layers), slow, rtol=1e-4)


def test_layers_that_do_not_move_run_once_and_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    net, calls = network(), []
    net.stem.register_forward_hook(lambda *inputs: calls.append(net.stem.forward))
    saved, modules = {name: value.clone() for name, value in net.state_dict().items()}, list(net.modules())
    with monkeypatch.context() as patch:
        patch.setattr(loss_landscape, "unmoved", lambda *args: torch.no_grad())
        whole = grid(net, ("fc",))
    ran = {call.__func__ for call in calls if hasattr(call, "__func__")}
    assert ran == {nn.Conv2d.forward}
    calls.clear()
    assert np.array_equal(grid(net, ("fc",)), whole)
    assert sum(hasattr(call, "__func__") for call in calls) < len(calls) / 2
    assert all("forward" not in module.__dict__ for module in modules)
    assert all(torch.equal(item, net.state_dict()[name]) for name, item in saved.items())


def test_an_interrupted_grid_goes_on_and_equals_one_in_one_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net, path, done = network(), tmp_path / "grid.npz", []

    def failing(*args: Any, **settings: Any) -> Tensor:
        done.append(None)
        if len(done) == 30:
            raise KeyboardInterrupt
        return F.cross_entropy(*args, **settings)

    monkeypatch.setattr(loss_landscape, "WRITE_EVERY", 3)
    with monkeypatch.context() as patch:
        patch.setattr(loss_landscape, "F", SimpleNamespace(cross_entropy=failing))
        with pytest.raises(KeyboardInterrupt):
            grid(net, resume=path)
    began = int(np.isfinite(np.load(path)["as given/sums"]).sum())
    assert began > 16
    assert np.array_equal(grid(net, resume=path), grid(net))
    monkeypatch.setattr(loss_landscape, "F", None)  # nothing is left to compute
    grid(net, resume=path)


def test_a_kept_grid_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "grid.npz"
    grid(network(), resume=path)
    broken = tmp_path / "broken.npz"
    broken.write_bytes(b"no")
    for file, settings in ((path, {"step": 0.1}), (path, {"points": 3}), (broken, {})):
        with pytest.raises(DataError) as caught:
            grid(network(), resume=file, **settings)
        assert caught.value.subject == str(file)


def test_one_dimension_is_a_line_of_the_plane_and_the_center_is_the_network() -> None:
    net = network()
    line, plane = grid(net, dimensions=1), grid(net)
    assert np.allclose(line[2], plane[2, 2])
    with torch.no_grad():
        assert plane[2, 2] == pytest.approx(float(F.cross_entropy(net(DATA[0]), DATA[1])), rel=1e-6)
    shape = ck.measure(net, DATA, [LossLandscape(points=4, step=0.2)]).table("loss_landscape/shape")
    assert shape.at(case="as given", quantity="deviation").value == pytest.approx(plane.std())


def test_it_conforms_and_has_controls() -> None:
    assert_metric(LossLandscape, points=2, examples=9)
    table = ck.measure(network(), DATA, [LossLandscape(points=3, controls=True)]).table("loss_landscape")
    assert len({round(value, 9) for value in table.values[:, 1, 1]}) == 3


def test_a_loss_that_is_not_finite_has_no_value() -> None:
    table = ck.measure(network(), DATA, [LossLandscape(points=3, step=1e25)])
    assert table.table("loss_landscape").at(case="as given", p="-1e+25", q="0").status == "undefined"
    assert table.table("loss_landscape/shape").cells[0].status == "undefined"


@pytest.mark.parametrize(
    ("settings", "subject"),
    [
        ({"points": 1}, "points"),
        ({"step": 0}, "step"),
        ({"dimensions": 3}, "dimensions"),
        ({"resume": "no/such/folder/grid.npz"}, "resume"),
    ],
)
def test_bad_settings(settings: dict[str, Any], subject: str) -> None:
    with pytest.raises(UsageError) as caught:
        LossLandscape(**settings)
    assert caught.value.subject == subject


def test_a_network_that_draws_random_numbers_has_no_surface() -> None:
    class Noisy(Residual):
        def forward(self, images: Tensor) -> Tensor:
            return super().forward(images + torch.rand_like(images))

    with torch.random.fork_rng(devices=[]), pytest.raises(DataError, match="is random"):
        torch.manual_seed(0)  # by chance two losses can be alike to the fourth digit
        grid(Noisy().eval())


def test_a_layer_without_weights_has_no_landscape() -> None:
    with pytest.raises(UsageError) as caught:
        grid(network(), ("act",))
    assert caught.value.subject == ["act"]


def test_given_directions_lead_from_one_network_to_another() -> None:
    net, other = network(), network()
    with torch.no_grad():
        other.fc.weight[0].add_(0.5)
        other.norm.bias.sub_(0.3)
        wanted = [float(F.cross_entropy(each(DATA[0]), DATA[1])) for each in (net, other)]
    way = {
        path: weight.detach() - net.get_parameter(path).detach() for path, weight in other.named_parameters()
    }
    line = grid(net, along=[way], dimensions=1, points=3, step=1.0)
    assert line[1:] == pytest.approx(wanted, rel=1e-5)
    apart = [{"fc.weight": way["fc.weight"]}, {"norm.bias": way["norm.bias"]}]
    plane = grid(net, along=apart, points=3, step=1.0)
    assert [plane[1, 1], plane[2, 2]] == pytest.approx(wanted, rel=1e-5)
    assert plane[2, 1] != pytest.approx(plane[1, 1]) and plane[1, 2] != pytest.approx(plane[1, 1])


@pytest.mark.parametrize(
    ("way", "subject"),
    [({"fc.wieght": torch.zeros(3, 4)}, "fc.wieght"), ({"fc.weight": torch.zeros(4, 3)}, "fc.weight")],
)
def test_directions_of_another_network_are_refused(way: dict[str, Tensor], subject: str) -> None:
    with pytest.raises(UsageError) as caught:
        grid(network(), along=[way], dimensions=1)
    assert caught.value.subject == subject
    with pytest.raises(UsageError) as caught:
        LossLandscape(along=[way])
    assert caught.value.subject == "along"

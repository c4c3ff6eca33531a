"""The absorbed rung: which layers of a head take the features, and where the bias of a refitted one goes."""

from __future__ import annotations

import pytest
import torch
from bridged import Features, Head, between, climb, head_of, part
from sample_components import loaded
from torch import Tensor, nn

from compatkit.components.bridges.candidates import Candidate
from compatkit.components.bridges.inputs import BridgeInputs
from compatkit.errors import IncompatibleError
from compatkit_plugins.rungs import entry_layers
from compatkit_plugins.rungs.entry_layers import entries

MIXING = torch.randn(4, 4, generator=torch.Generator().manual_seed(2))
WIDER = torch.randn(7, 4, generator=torch.Generator().manual_seed(3))
PART = part("own", torch.eye(4))


@pytest.fixture(autouse=True)
def weak(monkeypatch: pytest.MonkeyPatch) -> None:
    """Next to no regularization, so that what is known comes out exactly."""
    monkeypatch.setattr(entry_layers, "usual_strength", lambda count: 1e-9)


def absorbed(made: BridgeInputs) -> Candidate:
    """Return the absorbed bridge."""
    (step,) = climb(made).climb(["absorbed"], None, None)
    return step.built


@pytest.mark.parametrize("bias", [False, True])
def test_absorbed_weights_stay_within_the_heads_own_blueprint_where_they_can(bias: bool) -> None:
    right = head_of(PART, Head(bias))
    same = absorbed(between(part("left", MIXING), PART, right))
    assert same.entries == {} and same.refitted
    assert {name: value.shape for name, value in same.head.state_dict().items()} == {
        name: value.shape for name, value in right.module.state_dict().items()
    }
    wider = absorbed(between(part("left", WIDER), PART, right))
    assert wider.entries == {"main": 7, "short": 7}
    assert wider.head.main.weight.shape == (6, 7, 3, 3) and right.module.main.weight.shape == (6, 4, 3, 3)


class Adding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.last = nn.Conv2d(4, 4, 1), nn.Linear(4 * 64, 3)

    def forward(self, features: Tensor) -> Tensor:
        return self.last((self.conv(features) + features).flatten(1))


def test_a_head_whose_features_go_elsewhere_too_is_not_absorbed() -> None:
    features = torch.randn(2, 4, 8, 8)
    assert [(entry.path, entry.normalized) for entry in entries(Head().eval(), features)] == [
        ("main", "norm"),
        ("short", "other"),
    ]
    with pytest.raises(IncompatibleError, match=r"enter add.*rung ridge"):
        entries(Adding(), features)
    with pytest.raises(IncompatibleError, match=r"enter relu"):
        entries(nn.Sequential(nn.ReLU(), nn.Flatten(), nn.Linear(256, 3)), features)


class Forked(nn.Module):
    """What the entry layer gives goes to a normalization and past it."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.norm = nn.Conv2d(4, 6, 1, bias=False), nn.BatchNorm2d(6)
        self.last = nn.Linear(6 * 64, 3)
        draw = torch.Generator().manual_seed(7)
        for parameter in self.parameters():
            parameter.data = torch.randn(parameter.shape, generator=draw)

    def forward(self, features: Tensor) -> Tensor:
        entered = self.enter(features)
        return self.last(self.way(entered).relu().flatten(1))

    def way(self, entered: Tensor) -> Tensor:
        return self.norm(entered) + entered


class Joined(Forked):
    """The same in one list, as a concatenation takes it."""

    def way(self, entered: Tensor) -> Tensor:
        return torch.stack([self.norm(entered), entered]).sum(0)


class Shifted(nn.Module):
    """Features that lie elsewhere, so that a fit has a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.features = Features(MIXING)

    def forward(self, images: Tensor) -> Tensor:
        return self.features(images) + 3


@pytest.mark.parametrize("kind", [Forked, Joined])
def test_a_bias_reaches_every_path_behind_an_absorbed_layer(kind: type[Forked]) -> None:
    left = loaded("left.extractor", part("left", MIXING).manifest, Shifted().eval())
    made = between(left, PART, head_of(PART, kind().eval()))
    ladder = climb(made)
    (step,) = ladder.climb(["absorbed"], None, None)
    assert step.candidate is not None and step.candidate.entries == {"enter": 4}
    wanted = made.answers(ladder.teacher, made.held_out)
    torch.testing.assert_close(step.candidate.answers(made.held_out_features), wanted, atol=1e-2, rtol=1e-3)


def test_features_in_a_list_are_not_overlooked() -> None:
    class Listed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.enter = nn.Conv2d(4, 4, 1)

        def forward(self, features: Tensor) -> Tensor:
            return torch.cat([self.enter(features), features], dim=1)

    with pytest.raises(IncompatibleError, match="The features enter cat"):
        entries(Listed(), torch.randn(2, 4, 8, 8))

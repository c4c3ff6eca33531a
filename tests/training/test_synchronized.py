"""Layers that are synchronized while a run lasts: what they are meanwhile, and that nothing is left of it."""

from __future__ import annotations

import pytest
import timm.layers
import torch
from torch import nn

from compatkit.errors import UsageError
from compatkit.evaluation.batchnorm import norm_layers
from compatkit.training.distributed import World
from compatkit.training.replicas import sync_batchnorm

GPUS = World(0, 2, "cuda:0")
"""As a process on its own GPU sees it; without a process group torch's layers compute as on one."""


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), timm.layers.BatchNormAct2d(3), nn.BatchNorm2d(3)
    )


def test_layers_are_synchronized_in_place_and_plain_again() -> None:
    module, other = network(), network()
    images = torch.randn(4, 1, 8, 8)
    expected, kinds = other(images), [type(layer) for layer in module]
    with sync_batchnorm((module,), GPUS, on=True):
        assert all(isinstance(norm_layer, nn.SyncBatchNorm) for norm_layer in norm_layers(module))
        assert module.state_dict().keys() == other.state_dict().keys()
        assert torch.equal(module(images), expected)  # timm's layer still activates
    assert [type(layer) for layer in module] == kinds
    assert all(vars(entry).keys() == vars(two).keys() for entry, two in zip(module, other, strict=True))
    assert all(torch.equal(value, other.state_dict()[key]) for key, value in module.state_dict().items())


def test_frozen_heads_too_and_plain_again_after_an_error() -> None:
    module, frozen = network(), network()
    with pytest.raises(RuntimeError, match="stop"), sync_batchnorm((module, frozen), GPUS, on=True):
        assert isinstance(frozen[1], nn.SyncBatchNorm)
        raise RuntimeError("stop")
    assert not any(isinstance(module, nn.SyncBatchNorm) for module in (*module, *frozen))


@pytest.mark.parametrize(("world", "on"), [(World(0, 1, "cuda"), True), (GPUS, False)])
def test_nothing_happens_for_one_process_or_unasked(world: World, on: bool) -> None:
    module = network()
    with sync_batchnorm((module,), world, on=on):
        assert not any(isinstance(layer, nn.SyncBatchNorm) for layer in module)


def test_a_layer_that_normalizes_in_its_own_way_is_refused_and_the_others_left_alone() -> None:
    class Own(nn.BatchNorm2d):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return super().forward(input) * 2

    module = nn.Sequential(nn.BatchNorm2d(3), Own(3))
    with pytest.raises(UsageError, match=r"does not support .*Own\. Leave"):
        with sync_batchnorm((module,), GPUS, on=True):
            pass
    assert type(module[0]) is nn.BatchNorm2d


def test_a_cpu_is_refused() -> None:
    with pytest.raises(UsageError, match=r"needs GPUs; this run is on 'cpu'"):
        with sync_batchnorm((network(),), World(0, 2, "cpu"), on=True):
            pass

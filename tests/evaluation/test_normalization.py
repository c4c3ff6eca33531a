"""Normalization policies: statistics worked out in loops, buffers and flags bitwise as before, dropout at rest."""

from __future__ import annotations

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from timm.layers.norm_act import BatchNormAct2d
from torch import Tensor, fx, nn

from compatkit.contracts.batchnorm import MAX_PRIOR, check_policy, is_policy, prior_images, stored_share
from compatkit.errors import CutError, DataError, UsageError
from compatkit.evaluation.batchnorm import (
    batch_statistics,
    batches,
    estimating,
    evaluation_mode,
    has_batch_norm,
    kept_statistics,
    norm_layers,
    reestimate,
)

LAYERS = [
    (lambda: nn.BatchNorm1d(3), (6, 3)),
    (lambda: nn.BatchNorm1d(3), (6, 3, 5)),
    (lambda: nn.BatchNorm2d(3), (6, 3, 4, 5)),
    (lambda: nn.BatchNorm3d(3), (6, 3, 2, 3, 4)),
    (lambda: nn.SyncBatchNorm(3), (6, 3, 4, 5)),
    (lambda: BatchNormAct2d(3, apply_act=False), (6, 3, 4, 5)),
]


def used(layer: nn.Module) -> nn.Module:
    """Give a layer stored statistics and affine weights that are not the initial ones."""
    torch.manual_seed(1)
    for value in layer.state_dict().values():
        if value.is_floating_point():
            value.copy_(torch.rand_like(value) + 0.5)
        else:
            value.fill_(7)
    return layer


def snapshot(module: nn.Module) -> list[tuple[str, bytes]]:
    """Return every tensor of the state, bit for bit."""
    return [(name, value.numpy().tobytes()) for name, value in module.state_dict().items()]


def flags(module: nn.Module) -> list[tuple[object, ...]]:
    """Return every flag that a policy could have changed."""
    return [
        (entry.training, getattr(entry, "track_running_stats", None), getattr(entry, "momentum", None))
        for entry in module.modules()
    ]


def by_channel(x: Tensor) -> list[list[float]]:
    """Return the values of each channel as plain numbers."""
    return [x[:, channel].double().flatten().tolist() for channel in range(x.shape[1])]


def moments(values: list[float]) -> tuple[float, float]:
    """Return mean and biased variance, by the book."""
    mean = math.fsum(values) / len(values)
    return mean, math.fsum((value - mean) ** 2 for value in values) / len(values)


@pytest.mark.parametrize(("make", "shape"), LAYERS)
def test_batch_statistics_are_those_of_the_batch_and_no_buffer_is_written(
    make: object, shape: tuple[int, ...]
) -> None:
    layer = used(make())  # type: ignore[operator]
    layer.eval()
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 3 + 2
    before = snapshot(layer), flags(layer)
    with batch_statistics(layer):
        result = layer(x)
    assert (snapshot(layer), flags(layer)) == before
    weight, bias = layer.weight.tolist(), layer.bias.tolist()  # type: ignore[union-attr, operator]
    for channel, values in enumerate(by_channel(x)):
        mean, variance = moments(values)
        slope = weight[channel] / math.sqrt(variance + layer.eps)  # type: ignore[operator]
        expected = [(value - mean) * slope + bias[channel] for value in values]
        assert by_channel(result)[channel] == pytest.approx(expected, abs=1e-5)


class Net(nn.Module):
    """Normalization, dropout and stochastic choice side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(2, 3, 1)
        self.norm = nn.BatchNorm2d(3)
        self.dropout = nn.Dropout(0.5)
        self.act = BatchNormAct2d(3, drop_layer=nn.Dropout)

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.dropout(self.norm(self.convolution(x))))


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    return used(Net())  # type: ignore[return-value]


@pytest.fixture
def x() -> Tensor:
    return torch.randn(8, 2, 4, 4, generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("training", [True, False])
def test_dropout_stays_in_eval_and_every_flag_returns(net: Net, x: Tensor, training: bool) -> None:
    net.train(training)
    net.act.drop.eval()
    before = snapshot(net), flags(net)
    with batch_statistics(net):
        assert not net.training
        assert not net.dropout.training
        assert not net.act.drop.training
        assert net.norm.training
        assert net.act.training
        first, second = net(x), net(x)
    assert torch.equal(first, second)
    assert (snapshot(net), flags(net)) == before


def test_others_can_be_kept_as_they_are(net: Net, x: Tensor) -> None:
    net.train()
    before = snapshot(net), flags(net)
    with batch_statistics(net, others="keep"):
        assert net.dropout.training
        assert not torch.equal(net(x), net(x))
    assert (snapshot(net), flags(net)) == before


def test_gradients_flow_through_batch_statistics(net: Net, x: Tensor) -> None:
    with batch_statistics(net):
        out = net(x)
    out.square().sum().backward()
    assert net.convolution.weight.grad is not None
    assert net.convolution.weight.grad.abs().sum() > 0
    # The mean is part of the graph: a constant added to the input of the normalization changes nothing.
    assert net.convolution.bias is not None
    assert net.convolution.bias.grad is not None
    assert net.convolution.bias.grad.abs().max() < 1e-3


@pytest.mark.parametrize("manager", [batch_statistics, evaluation_mode, kept_statistics, estimating])
def test_flags_return_after_an_error(net: Net, manager: object) -> None:
    net.train()
    before = flags(net)
    with pytest.raises(ZeroDivisionError), manager(net):  # type: ignore[operator]
        raise ZeroDivisionError
    assert flags(net) == before


def test_policies_nest_on_the_same_module(net: Net) -> None:
    before = flags(net.train())
    with batch_statistics(net), batch_statistics(net, others="keep"), evaluation_mode(net):
        assert not net.norm.training
    assert flags(net) == before


def test_estimates_are_plain_averages_over_batches() -> None:
    layer = used(nn.BatchNorm2d(3))
    parts = [
        torch.randn(size, 3, 2, 2, generator=torch.Generator().manual_seed(size)) + size for size in (4, 3, 3)
    ]
    assert reestimate(layer, parts) == 1
    for channel in range(3):
        seen = [moments(by_channel(part)[channel]) for part in parts]
        counts = [part.shape[0] * 4 for part in parts]
        mean = math.fsum(value for value, _ in seen) / 3
        variance = math.fsum(two * n / (n - 1) for (_, two), n in zip(seen, counts, strict=True)) / 3
        assert layer.running_mean[channel].item() == pytest.approx(mean, abs=1e-6)  # type: ignore[index, union-attr]
        assert layer.running_var[channel].item() == pytest.approx(variance, abs=1e-6)  # type: ignore[index, union-attr]
    assert layer.num_batches_tracked == 3
    assert layer.momentum == 0.1


@settings(deadline=None, max_examples=20)
@given(st.floats(0.01, 1), st.integers(0, 2**31))
def test_mixed_statistics_are_those_worked_out_by_hand_layer_by_layer(share: float, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    layers = [used(nn.BatchNorm2d(3)) for _ in range(2)]
    stored = [(entry.running_mean.double().clone(), entry.running_var.double().clone()) for entry in layers]  # type: ignore[union-attr]
    parts = [torch.randn(size, 3, 2, 2, generator=draw) * 2 + size for size in (4, 3, 3)]
    assert reestimate(nn.Sequential(*layers), parts, share) == 2
    values = [part.double() for part in parts]
    for layer, (mean, variance) in zip(layers, stored, strict=True):
        means, variances, mixed = [], [], []
        for part in values:
            flat, count = part.transpose(0, 1).flatten(1), part.numel() / 3
            middle = flat.sum(1) / count
            spread = (flat - middle[:, None]).square().sum(1)
            means.append(middle)
            variances.append(spread / (count - 1))
            m = share * mean + (1 - share) * middle
            v = share * variance + (1 - share) * spread / count
            scale = layer.weight.double() / (v + layer.eps).sqrt()
            mixed.append(
                (part - m[:, None, None]) * scale[:, None, None] + layer.bias.double()[:, None, None]
            )
        expected = (
            share * mean + (1 - share) * sum(means) / 3,
            share * variance + (1 - share) * sum(variances) / 3,
        )
        torch.testing.assert_close(layer.running_mean.double(), expected[0], rtol=1e-4, atol=1e-4)  # type: ignore[union-attr]
        torch.testing.assert_close(layer.running_var.double(), expected[1], rtol=1e-4, atol=1e-4)  # type: ignore[union-attr]
        assert layer.num_batches_tracked == 3 and not layer._forward_pre_hooks
        values = mixed


def test_mixing_goes_from_estimated_to_stored_statistics(net: Net, x: Tensor) -> None:
    none, most, estimated = (copy.deepcopy(net) for _ in range(3))
    reestimate(estimated, [x])
    reestimate(none, [x], stored_share("mix:0", len(x)))
    reestimate(most, [x], stored_share(f"mix:{MAX_PRIOR}", len(x)))
    for name in ("running_mean", "running_var"):
        assert not torch.allclose(getattr(estimated.norm, name), getattr(net.norm, name))
        assert torch.equal(getattr(none.norm, name), getattr(estimated.norm, name))
        torch.testing.assert_close(getattr(most.norm, name), getattr(net.norm, name))


def test_mixing_needs_more_than_one_value_a_channel() -> None:
    layer = nn.BatchNorm1d(2).eval()
    with pytest.raises(DataError, match="more than one value"):
        reestimate(layer, [torch.zeros(1, 2)], 0.5)
    assert torch.equal(layer.running_var, torch.ones(2))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "policy", ["mix", "mix:", "mix:-1", "mix:1.5", "mix:016", "mix:1e3", f"mix:{MAX_PRIOR + 1}"]
)
def test_a_prior_that_is_no_count_of_images_is_refused(policy: str) -> None:
    with pytest.raises(UsageError, match=r"mix: takes the number of images .* for example mix:16"):
        check_policy(policy)
    assert not is_policy(policy)


def test_a_prior_of_no_images_is_an_estimate() -> None:
    assert check_policy("mix:0") == "reestimate" and not is_policy("mix:0")
    assert (
        check_policy("mix:16") == "mix:16"
        and prior_images("mix:16") == 16
        and stored_share("mix:16", 48) == 0.25
    )


def test_estimating_leaves_everything_else_in_eval(net: Net, x: Tensor) -> None:
    net.train()
    with estimating(net):
        assert not net.dropout.training
        assert not net.act.drop.training
        net(x)
    assert net.training
    assert int(net.norm.num_batches_tracked) == 1  # type: ignore[arg-type]


def test_kept_statistics_bring_back_every_bit(net: Net, x: Tensor) -> None:
    before = snapshot(net)
    with kept_statistics(net):
        reestimate(net, [x])
        assert snapshot(net) != before
    assert snapshot(net) == before


def test_an_estimate_without_images_is_refused_and_changes_nothing(net: Net) -> None:
    before = snapshot(net), flags(net)
    with pytest.raises(DataError, match="at least one batch"):
        reestimate(net, [])
    assert (snapshot(net), flags(net)) == before


def test_without_batch_normalization_nothing_is_run() -> None:
    plain = nn.Sequential(nn.Linear(2, 2), nn.LayerNorm(2), nn.GroupNorm(1, 2))
    assert not has_batch_norm(plain)
    assert reestimate(plain, iter([])) == 0
    x = torch.randn(4, 2)
    with batch_statistics(plain):
        assert torch.equal(plain(x), plain.eval()(x))


def test_layers_without_stored_statistics_keep_none() -> None:
    layer = nn.BatchNorm1d(2, track_running_stats=False)
    before = flags(layer)
    x = torch.randn(5, 2)
    with batch_statistics(layer):
        assert torch.equal(layer(x), layer.eval()(x))
    layer.train()
    assert reestimate(layer, [x]) == 1
    assert layer.running_mean is None
    assert flags(layer) == before


def test_normalization_traced_as_a_function_is_refused(net: Net) -> None:
    class Function(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm2d(2)

        def forward(self, x: Tensor) -> Tensor:
            return F.batch_norm(x, self.norm.running_mean, self.norm.running_var)

    assert len(norm_layers(fx.symbolic_trace(nn.Sequential(nn.BatchNorm2d(2))))) == 1
    with pytest.raises(CutError, match="as leaf modules"):
        norm_layers(nn.Sequential(fx.symbolic_trace(Function())))


@settings(deadline=None)
@given(st.integers(1, 400), st.integers(1, 100), st.integers(0, 2**31))
def test_batches_hold_every_image_once_in_nearly_equal_sizes(count: int, batch_size: int, seed: int) -> None:
    parts = batches(count, batch_size, seed)
    sizes = [len(part) for part in parts]
    assert sorted(torch.cat(parts).tolist()) == list(range(count))
    assert max(sizes) <= batch_size
    assert max(sizes) - min(sizes) <= 1
    assert all(map(torch.equal, parts, batches(count, batch_size, seed)))


def test_the_order_is_shuffled_by_the_seed_alone() -> None:
    state = torch.random.get_rng_state()
    first, two = batches(100, 100, 0)[0], batches(100, 100, 1)[0]
    assert not torch.equal(first, two)
    assert not torch.equal(first, torch.arange(100))
    assert torch.equal(batches(100, 100, None)[0], torch.arange(100))
    assert torch.equal(torch.random.get_rng_state(), state)


def test_batches_of_nothing_are_refused() -> None:
    with pytest.raises(DataError, match="no images"):
        batches(0, 10, 0)
    with pytest.raises(UsageError, match="batch_size"):
        batches(10, 0, 0)


def test_an_unknown_policy_is_refused_with_a_near_name() -> None:
    assert check_policy("batch") == "batch"
    with pytest.raises(UsageError, match="Did you mean 'reestimate'"):
        check_policy("re-estimate")

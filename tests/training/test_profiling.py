"""Where the time of a step goes, and how many bytes it must move; looking changes nothing."""

from __future__ import annotations

import time

import pytest
import torch
from small import data_set, quick
from torch import nn

import compatkit as ck
from compatkit.errors import UsageError
from compatkit.training.prepare import FitRequest, prepare
from compatkit.training.profiling import PARTS, Profile, Traffic, least_bytes

TASKS = [
    ck.Task(name, data_set(name, seed=seed), "resnet8_cifar", "layer2", size=(16, 16))
    for seed, name in enumerate(("left", "right"))
]


class Slow:
    """Wastes ten milliseconds after each step."""

    @ck.hookimpl
    def compatkit_after_step(self, step: ck.Step) -> None:
        time.sleep(0.01)


def test_shares_add_up_and_name_what_wastes_the_time() -> None:
    lean = quick(steps=1).profile(TASKS, ["dcc"], steps=3)
    assert set(lean.shares) == set(PARTS)
    assert sum(lean.shares.values()) == pytest.approx(1)
    assert min(lean.shares["forward"], lean.shares["backward"]) > lean.shares["hooks"]
    assert lean.floor is None  # a CPU has caches that a copy does not tell of
    slow = quick(steps=1).profile(TASKS, ["slow"], steps=3, factories={"slow": Slow})
    assert slow.milliseconds >= 2 * 10
    assert slow.warning is not None
    assert "of a step is not computing, most of it hooks: look at what the plugins do" in slow.warning
    assert slow.warning in str(slow) and slow.to_json()["warning"] == slow.warning


def test_a_step_that_computes_is_not_warned_of() -> None:
    shares = dict.fromkeys(PARTS, 0.0) | {"forward": 0.5, "backward": 0.3, "data": 0.2}
    assert Profile(1.0, shares, None, 1).warning is None
    shares |= {"backward": 0.29, "data": 0.21}
    warned = Profile(1.0, shares, 0.61, 1)
    assert warned.warning is not None and warned.warning.startswith(
        "21% of a step is not computing, most of it data"
    )
    assert "61% of the speed at which this device can move the bytes" in str(warned)


def test_no_step_is_refused() -> None:
    with pytest.raises(UsageError, match="at least one step, got steps=0"):
        quick(steps=1).profile(TASKS, steps=0)


def test_bytes_are_those_of_what_cannot_be_fused() -> None:
    images = torch.zeros(2, 3, 4, 4, requires_grad=True)
    convolution, norm = nn.Conv2d(3, 5, 3, padding=1, bias=False), nn.BatchNorm2d(5)
    small, wide, kernel = 2 * 3 * 16, 2 * 5 * 16, 5 * 3 * 9
    with Traffic() as forward:
        made = torch.relu(convolution(images))
    assert forward.bytes == 4 * (small + kernel + wide)  # the ReLU is fused
    with Traffic() as backward:
        made.sum().backward()
    # reads gradient, input and kernel, and the gradient again; writes gradients of input and kernel
    assert backward.bytes == 4 * (wide + small + kernel + wide + small + kernel)
    with Traffic() as whole:
        norm(made.detach())
    vectors = (
        whole.bytes - 4 * 3 * wide
    )  # input twice, output once; and weights and statistics, 5 values each
    assert 0 < vectors <= 4 * 5 * 12


def test_a_resnet_needs_the_bytes_that_are_counted_by_hand() -> None:
    """In elements of convolutions' outputs: 2 + 3 forward, 4 + 5 backward; pooling and class layer are little."""
    trainer = quick(steps=1, optimizer="sgd", precision="float32")
    with prepare(FitRequest(trainer, TASKS[:1])) as start:
        loop = start.loop
    loop.task_loops["left"].resolve(0)
    outputs: list[int] = []
    network = nn.Sequential(loop.setup.tasks["left"].extractor, loop.setup.tasks["left"].head)
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            module.register_forward_hook(lambda _, __, output: outputs.append(output.numel()))
    network(torch.zeros(8, 1, 16, 16))
    elements = sum(outputs)
    moments = 5 * 4 * sum(one.numel() for one in network.parameters())
    assert least_bytes(loop, loop.task_loops["left"]) - moments == pytest.approx(4 * 14 * elements, rel=0.15)

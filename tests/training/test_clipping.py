"""Gradients clipped to a norm: against a hand-written loop, after the plugins' hooks, and without a host read."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from small import data_set, quick, same_parts

import compatkit as ck
from compatkit.errors import PluginError
from compatkit.evaluation.preprocessing import normalize, prepare
from compatkit.training.batches.stored import Sampler
from compatkit.training.networks import prepare_task
from compatkit.training.precision import Precision

STEPS, NORM = 3, 0.5


def task(name: str = "a") -> ck.Task:
    return ck.Task(name, data_set(name), "resnet8_cifar", "layer2", size=16)


def test_clipping_equals_a_hand_written_loop_bitwise() -> None:
    trained = quick(steps=STEPS, clip_norm=NORM, schedule="constant", optimizer="sgd").fit([task()])
    state = prepare_task(task(), 0, Precision("cpu", "float32", True))
    network = torch.nn.Sequential(state.extractor, state.head).train()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-7, fused=True)
    examples, order, norms = prepare(task().data.train, state.data), Sampler(48, 8, 0, "a"), []
    for step in range(STEPS):
        index = order.at(step)
        images = normalize(examples.images[index], state.data)
        images = images.contiguous(memory_format=torch.channels_last)
        F.cross_entropy(network(images), examples.labels[index]).backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(network.parameters(), NORM)))
        optimizer.step()
        optimizer.zero_grad()
    got = trained.network("a").state_dict()
    assert all(torch.equal(value, got[key]) for key, value in network.state_dict().items())
    assert [row["losses"]["gradient_norm"] for row in trained.history] == norms
    assert max(norms) > NORM and trained.run["trainer"]["clip_norm"] == NORM


def test_the_norm_is_of_what_the_step_moves_and_taken_after_the_hooks() -> None:
    """Gradients of the task's network and of the shared head count, as hooks leave them."""
    seen: list[float] = []

    class Reach:
        @ck.hookimpl
        def compatkit_set_up(self, setup: ck.SetUp) -> None:
            self.setup = setup

        @ck.hookimpl
        def compatkit_after_backward(self, step: ck.Step) -> None:
            moved = [step.task.extractor, step.task.head, self.setup.auxiliary["dcc"].module]
            for module in moved:
                for parameter in module.parameters():
                    if parameter.grad is not None:
                        parameter.grad.mul_(3)
            squares = [
                float(parameter.grad.double().square().sum())
                for module in moved
                for parameter in module.parameters()
                if parameter.grad is not None
            ]
            seen.append(math.sqrt(sum(squares)))

        @ck.hookimpl
        def compatkit_after_step(self, step: ck.Step) -> None:
            assert all(parameter.grad is None for parameter in step.task.extractor.parameters())

    uses = ["dcc", ck.use("reach", after=("dcc",))]
    fit = quick(steps=2, clip_norm=NORM).fit([task("left"), task("right")], uses, factories={"reach": Reach})
    assert [row["losses"]["gradient_norm"] for row in fit.history] == pytest.approx(seen, rel=1e-5)


def test_a_gradient_that_a_hook_sets_for_another_network_is_refused() -> None:
    class Reach:
        @ck.hookimpl
        def compatkit_set_up(self, setup: ck.SetUp) -> None:
            self.tasks = setup.tasks

        @ck.hookimpl
        def compatkit_after_backward(self, step: ck.Step) -> None:
            other = self.tasks["right" if step.task.name == "left" else "left"]
            weight = next(other.extractor.parameters())
            weight.grad = torch.ones_like(weight)

    with pytest.raises(PluginError) as caught:
        quick(steps=2).fit([task("left"), task("right")], ["dcc", "reach"], factories={"reach": Reach})
    assert (caught.value.plugin, caught.value.hook) == ("reach", "compatkit_after_backward")


def test_a_norm_without_a_bound_only_measures() -> None:
    plain, measured = quick(steps=2).fit([task()]), quick(steps=2, clip_norm=math.inf).fit([task()])
    assert same_parts(plain, measured) and plain.plan == measured.plan
    assert all(row["losses"]["gradient_norm"] > 0 for row in measured.history)


def test_no_norm_is_read_between_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = []
    real = torch.Tensor.__float__
    monkeypatch.setattr(torch.Tensor, "__float__", lambda self: reads.append(1) or real(self))
    counts = []
    for steps in (2, 4, 8):
        reads.clear()
        quick(steps=steps, clip_norm=NORM, log_every=2).fit([task()])
        counts.append(len(reads))
    assert [counts[1] - counts[0], counts[2] - counts[1]] == [3, 6]  # loss, accuracy and norm of each row

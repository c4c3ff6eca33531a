"""DANN: reversed gradients by hand, the schedule of lambda, and a run that resumes bit by bit."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from published import FOLDER, factories, module
from small import data_set, grouped, quick, same_parts

import compatkit as ck
from compatkit.errors import PluginError
from compatkit.training.testing import assert_regularizer

MADE = factories("dann")
TASKS = [grouped("a"), grouped("b")]


def test_the_gradient_is_reversed_and_the_value_is_not() -> None:
    reversal = module("dann").Reversal
    values = torch.tensor([[1.0, -2.0]], requires_grad=True)
    weight = torch.tensor([[3.0, 5.0]], requires_grad=True)
    passed = reversal.apply(values, 0.25)
    assert torch.equal(passed, values)
    (passed * weight).sum().backward()
    assert values.grad is not None and values.grad.tolist() == [[-0.75, -1.25]]
    assert weight.grad is not None and weight.grad.tolist() == [[1.0, -2.0]]


def test_tokens_are_averaged_over_positions() -> None:
    """Tokens are ``(batch, positions, channels)``; the loss of their means is that of vectors and of maps."""
    draw, shapes = torch.Generator().manual_seed(0), [(2, 6), (2, 5, 6), (2, 6, 5, 1)]
    vectors, tokens = torch.randn(2, 6, generator=draw), torch.randn(2, 5, 6, generator=draw)
    tokens = tokens - tokens.mean(1, keepdim=True) + vectors[:, None]
    losses = []
    for shape, features in zip(shapes, (vectors, tokens, tokens.mT[..., None]), strict=True):
        dann, draw = module("dann").DANN(), torch.Generator().manual_seed(1)
        states = {name: SimpleNamespace(feature_shape=shape) for name in "ab"}
        dann.compatkit_set_up(
            SimpleNamespace(tasks=states, run=SimpleNamespace(steps=3), own=lambda name, layers, lr: layers)
        )
        with torch.no_grad():
            for parameter in dann.classifier.parameters():
                parameter.normal_(generator=draw)
        assert dann.classifier[0].in_features == 6
        batch = SimpleNamespace(labels=torch.zeros(2, dtype=torch.int64))
        step = SimpleNamespace(number=1, features=features, batch=batch, task=SimpleNamespace(name="b"))
        losses.append(dann.compatkit_losses(step)["domain"].item())
    assert losses[1:] == pytest.approx([losses[0]] * 2, rel=1e-5)


class Looks:
    """Compares the gradients that DANN left with those of its loss without a reversal."""

    seen: list[tuple[int, float]]

    def __init__(self) -> None:
        type(self).seen = []

    @ck.hookimpl
    def compatkit_set_up(self, setup: ck.SetUp) -> None:
        self.setup = setup

    @ck.hookimpl
    def compatkit_after_backward(self, step: Any) -> None:
        state, owners = step.task, self.setup.owners
        domain = [*self.setup.tasks].index(state.name)
        means = state.extract(step.batch.images, write_statistics=False).flatten(2).mean(2)
        loss = torch.nn.functional.cross_entropy(
            owners["plugin.dann.domain"](means), torch.full((len(means),), domain)
        )
        parameters = [*state.extractor.parameters(), *owners["plugin.dann.domain"].parameters()]
        plain = torch.autograd.grad(loss, parameters)
        split = len([*state.extractor.parameters()])
        left = torch.cat([parameter.grad.flatten() for parameter in parameters[:split]])
        expected = torch.cat([gradient.flatten() for gradient in plain[:split]])
        ratio = float(left @ expected / expected.square().sum())
        torch.testing.assert_close(left, ratio * expected, rtol=1e-3, atol=1e-6)
        for parameter, gradient in zip(parameters[split:], plain[split:], strict=True):
            torch.testing.assert_close(parameter.grad, gradient, rtol=1e-4, atol=1e-6)
        type(self).seen.append((step.number, ratio))


def test_the_extractor_goes_against_the_loss_by_lambda_and_the_classifier_along_it() -> None:
    """Without heads of their own, so that DANN has the only gradient."""
    tasks = [grouped(name, own_head=False) for name in "ab"]
    quick(steps=3, lr=1e-3).fit(tasks, ["dann", "looks"], factories={**MADE, "looks": Looks})
    expected = {number: 1 - 2 / (1 + math.exp(-10 * number / 2)) for number in range(3)}
    assert len(Looks.seen) == 6
    for number, ratio in Looks.seen:
        assert ratio == pytest.approx(expected[number], abs=1e-3)


def test_the_classifier_has_its_own_rate() -> None:
    uses = [ck.use("dann", lr=0.3)]
    plan = quick(steps=2, optimizer="sgd").explain(TASKS, uses, factories=MADE)
    assert [row["moved_by"] for row in plan.owners][-1] == "plugin.dann.domain (sgd, lr 0.3)"


def test_it_conforms_is_short_and_resumes_bit_by_bit(tmp_path: Path) -> None:
    assert_regularizer(MADE["dann"], lr=0.05)
    assert len((FOLDER / "dann.py").read_text().splitlines()) < 80

    class Stop:
        @ck.hookimpl
        def compatkit_after_step(self, step: Any) -> None:
            if step.number == stop:
                raise KeyboardInterrupt

    def run(**settings: Any) -> ck.Fit:
        uses = [ck.use("dann", lr=0.05), "stop"]
        return quick(steps=4, **settings).fit(TASKS, uses, factories={**MADE, "stop": Stop})

    stop = -1
    whole = run()
    stop, saved = 2, {"checkpoint": tmp_path / "run.safetensors", "checkpoint_every": 2}
    with pytest.raises(KeyboardInterrupt):
        run(**saved)
    stop = -1
    resumed = run(**saved)
    assert same_parts(whole, resumed) and whole.history == resumed.history


def test_one_task_and_other_widths_are_refused() -> None:
    other = ck.Task("b", data_set("b"), "resnet8_cifar", "layer1", size=16)
    for tasks in ([grouped("a")], [ck.Task("a", data_set("a"), "resnet8_cifar", "layer2", size=16), other]):
        with pytest.raises(PluginError) as caught:
            quick(steps=1).explain(tasks, ["dann"], factories=MADE)
        assert caught.value.plugin == "dann"


def test_features_of_two_networks_become_harder_to_tell() -> None:
    """The classifier alone (gamma 0: no gradient for the extractors) tells them; against it, it tells them less."""
    settings: dict[str, Any] = {"steps": 80, "log_every": 20, "lr": 0.003, "schedule": "constant"}

    def last(gamma: float) -> float:
        uses = [ck.use("dann", gamma=gamma, lr=0.001)]
        fit = quick(**settings).fit(TASKS, uses, factories=MADE)
        return float(fit.history["a/dann/domain"][-1] + fit.history["b/dann/domain"][-1]) / 2

    assert 3 * last(0.0) < last(10.0)

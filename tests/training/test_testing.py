"""The author kit refuses what would only show in somebody's run."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import attrs
import numpy as np
import pytest
import torch
from small import data_set
from torch import nn

import compatkit as ck
from compatkit import autocast, effect, hookimpl
from compatkit.errors import PluginError, UsageError
from compatkit.evaluation.metrics import Result
from compatkit.plugins import find
from compatkit.training.testing import assert_builder, assert_metric, assert_regularizer


class Norm:
    def __init__(self, target: float = 1.0) -> None:
        self.target = target

    @hookimpl
    def compatkit_losses(self, step: Any) -> Any:
        return {"norm": step.features.mean()}


class Projects:
    """Makes a layer in set-up, in the way of its subclass, and trains it."""

    def layer(self, setup: ck.SetUp) -> nn.Module:
        return setup.own("layer", nn.Linear(32, 1))

    @hookimpl
    def compatkit_set_up(self, setup: Any) -> None:
        self.projection = self.layer(setup)

    @hookimpl
    def compatkit_losses(self, step: Any) -> Any:
        return {"pull": self.projection(step.features.mean((2, 3))).square().mean()}


class Unowned(Projects):
    def layer(self, setup: ck.SetUp) -> nn.Module:
        return nn.Linear(32, 1)


class Copied(Projects):
    def layer(self, setup: ck.SetUp) -> nn.Module:
        return copy.deepcopy(super().layer(setup))


class Built(Projects):
    def layer(self, setup: ck.SetUp) -> nn.Module:
        head = setup.build(next(iter(setup.tasks.values())).head_blueprint, "built")
        return nn.Sequential(nn.Unflatten(1, (32, 1, 1)), head)


class Detached(Norm):
    @hookimpl
    def compatkit_losses(self, step: Any) -> Any:
        return {"norm": step.features.detach().mean()}


class Fails(Norm):
    @hookimpl
    def compatkit_after_step(self, step: Any) -> None:
        raise KeyError("late")


class Misspelt:
    @hookimpl
    def compatkit_lossess(self, step: Any) -> Any: ...


class StateOnly:
    @hookimpl
    def compatkit_state(self) -> Any: ...

    @hookimpl
    def compatkit_load_state(self, state: Any) -> Any: ...


class Drawn(Norm):
    def __init__(self) -> None:
        self.layer = torch.nn.Linear(2, 2)


def test_good_regularizer() -> None:
    assert_regularizer(Norm)
    assert_regularizer(Norm, target=2.0)
    assert_regularizer(Projects)
    assert_regularizer(Built)


def test_a_regularizer_is_tried_on_the_tasks_and_the_released_parts_that_it_needs() -> None:
    task = ck.Task("small", data_set("small", size=(8, 8)), "resnet8_cifar", "layer1", size=8)

    def shaped() -> Any:
        return type(
            "Narrow", (Projects,), {"layer": lambda self, setup: setup.own("layer", nn.Linear(16, 1))}
        )()

    assert_regularizer(shaped, tasks=[task])
    with pytest.raises(PluginError, match="failed in compatkit_losses"):
        assert_regularizer(shaped)
    released = ck.Trainer(steps=1, batch_size=8, device="cpu", progress=False).fit([task], ["dcc"])
    dcc = find("regularizers", "dcc").factory
    assert_regularizer(dcc, tasks=[task], frozen=released)
    with pytest.raises(PluginError, match="does not take the features"):
        assert_regularizer(dcc, frozen=released)


def test_trying_a_regularizer_leaves_random_states_alone() -> None:
    state = torch.get_rng_state()
    assert_regularizer(Projects)
    assert torch.equal(torch.get_rng_state(), state)


one = Norm()


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (Misspelt, "Did you mean 'compatkit_losses'"),
        (StateOnly, "implements no event of a run"),
        (Drawn, "its factory changed torch's random state"),
        (lambda: one, "returned the same object"),
        (lambda: Norm, "is the class 'Norm', not an instance"),
        (Unowned, r"'projection\.weight', of shape \(1, 32\), which no optimizer updates"),
        (Copied, r"'projection\.weight'.*setup\.own"),
        (Detached, "gave 'norm' without a gradient"),
        (Fails, "failed in compatkit_after_step: KeyError: 'late'"),
    ],
)
def test_bad_regularizer(factory: Callable[..., Any], message: str) -> None:
    with pytest.raises(PluginError, match=message) as caught:
        assert_regularizer(factory)
    assert caught.value.code == "plugin"


@attrs.define
class Mean:
    """Mean logit; the switches break one promise each."""

    mean_of_means: bool = False
    in_place: bool = False
    zero: bool = False
    merges: bool = True

    def init(self) -> Any:
        return [0.0, 0]

    def update(self, state: Any, logits: Any, labels: Any) -> Any:
        total, count = float(logits.detach().sum()), len(labels)
        if self.mean_of_means:
            total, count = total / count, 1
        if self.in_place:
            state[0] += total
            state[1] += count
            return state
        return [state[0] + total, state[1] + count]

    def merge(self, left: Any, right: Any) -> Any:
        return [left[0] + right[0], left[1] + right[1]] if self.merges else left

    def finalize(self, state: Any) -> Result:
        value = state[0] / state[1] if state[1] else (0.0 if self.zero else None)
        status = "undefined" if value is None else "ok"
        return Result(
            name="mean",
            value=value,
            unit="1",
            direction="none",
            estimator="plug-in",
            count=state[1],
            paper="none",
            equation="none",
            status=status,
            reason="" if status == "ok" else "no examples",
        )


def test_good_metric() -> None:
    assert_metric(Mean)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mean_of_means": True}, "by smaller batches"),
        ({"in_place": True}, "make a new state each time"),
        ({"zero": True}, "without any example"),
        ({"merges": False}, "by merging two parts"),
        ({"nonsense": 1}, "no setting 'nonsense'"),
    ],
)
def test_bad_metric(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(PluginError, match=message):
        assert_metric(Mean, **settings)


def test_what_is_no_metric() -> None:
    with pytest.raises(PluginError, match="the metric lacks init, update, merge, finalize"):
        assert_metric(Norm)
    with pytest.raises(PluginError, match="its factory returns the class 'Mean'"):
        assert_metric(lambda: Mean)
    with pytest.raises(PluginError, match="at least two batches"):
        assert_metric(Mean, batches=[(torch.zeros(1, 2), torch.zeros(1))])


@pytest.mark.parametrize(
    ("value", "status", "reason"),
    [
        (None, "ok", ""),
        (1.0, "undefined", "x"),
        (float("nan"), "ok", ""),
        (1.0, "ok", "x"),
        (1.0, "degenerate", ""),
    ],
)
def test_result_that_contradicts_itself(value: Any, status: Any, reason: str) -> None:
    with pytest.raises(PluginError, match="Metric 'm': "):
        Result(
            name="m",
            value=value,
            unit="1",
            direction="none",
            estimator="",
            count=1,
            paper="",
            equation="",
            status=status,
            reason=reason,
        )


class Net(nn.Module):
    """One linear layer on 3 x 4 x 4 images; the switches break one promise each."""

    kept = nn.Linear(3, 2)
    calls = 0

    def __init__(self, model: str, *, num_classes: int = 2, bend: str = "", width: int = 1) -> None:
        super().__init__()
        Net.calls += 1
        if bend == "seeds":
            torch.manual_seed(7)
        self.first = nn.Linear(3, num_classes if bend == "two class layers" else 3)
        self.last = nn.Linear(self.first.out_features, 2 if bend == "ignores classes" else num_classes)
        self.bend = bend
        if bend == "grows":
            self.more = nn.Linear(1, Net.calls)
        if bend == "numpy":
            noise = np.random.default_rng().random((3, 3))
            self.first.weight.data += torch.tensor(noise, dtype=torch.float32)
        if bend == "global":
            torch.set_default_dtype(torch.float64)
        if bend == "shares":
            self.last = Net.kept
        self.pretrained_cfg = {"input_size": (3, 4, 4), "classifier": "" if bend == "unnamed" else "last"}
        if bend == "other images":
            self.pretrained_cfg["input_size"] = (1, 4, 4)

    def forward(self, images: torch.Tensor) -> Any:
        logits = self.last(self.first(images.mean((2, 3))))
        if self.bend == "auxiliary":
            return (logits, logits) if self.training else logits
        if self.bend == "map":
            return images
        if self.bend == "drops":
            return nn.functional.dropout(logits, 0.5)
        return logits


def test_good_builder() -> None:
    state = torch.get_rng_state()
    assert_builder(Net, "any")
    assert_builder(Net, "any", num_classes=5, width=3)
    assert_builder(lambda model: Net(model), "any")
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("bend", "message"),
    [
        ("seeds", "seeds torch's random state"),
        ("grows", r"returns another network in the second call: \['more.bias', 'more.weight'\] differ"),
        ("numpy", r"draws other weights from the same seed: \['first.weight'\] differ"),
        ("global", "changed torch's default dtype; it was restored"),
        ("shares", "returns the same weights twice"),
        ("other images", "fails on 2 x 1 x 4 x 4 images in train mode: RuntimeError"),
        ("auxiliary", r"returns a network with output tuple in train mode; expected logits \(2, classes\)"),
        ("map", r"returns a network with output \(2, 3, 4, 4\) in train mode"),
        ("drops", "logits vary in eval mode"),
        ("ignores classes", "builds the same network for 3 and 4 classes"),
        ("unnamed", r"does not state its class layer: \['last.bias', 'last.weight'\] depend on num_classes"),
        ("two class layers", r"does not state its class layer: \['first.bias', 'first.weight'\]"),
    ],
)
def test_bad_builder(bend: str, message: str) -> None:
    torch.manual_seed(0)  # of four logits, two draws of dropout may leave the same ones
    with pytest.raises(PluginError, match=message):
        assert_builder(Net, "any", bend=bend)


def test_what_is_no_builder() -> None:
    def listed(model: str) -> nn.Module:
        return Net(model)

    listed.names = ("one", "two")  # type: ignore[attr-defined]
    with pytest.raises(PluginError, match="does not list 'three' among its names: one, two"):
        assert_builder(listed, "three")
    with pytest.raises(PluginError, match="arguments that a manifest cannot store"):
        assert_builder(Net, "any", width={1})
    with pytest.raises(PluginError, match="takes no model name"):
        assert_builder(lambda: Net("any"), "any")
    with pytest.raises(PluginError, match="returned a str, not a"):
        assert_builder(lambda model: model, "any")
    with pytest.raises(PluginError, match="no setting 'depth'"):
        assert_builder(Net, "any", depth=3)


class Averages(Norm):
    """Pulls features to a running mean; the switches break one promise each."""

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.fault, self.mean, self.calls = fault, torch.zeros(()), 0

    @hookimpl
    @effect("pure")
    def compatkit_losses(self, step: Any) -> Any:
        target = self.mean
        match self.fault:
            case "python random":
                target = target + random.random()
            case "numpy random":
                target = target + float(np.random.rand())
            case "counts":
                self.calls += 1
            case "drifts":
                self.calls += 1
                target = target + self.calls
            case "weights":
                with torch.no_grad():
                    next(step.task.head.parameters()).mul_(0.9)
            case "data of weights":
                next(step.task.extractor.parameters()).data.mul_(0.9)
            case "pieces" if step.piece:
                raise ValueError("one piece only")
            case "image data":
                step.batch.images.data.mul_(0.5)
            case "label data":
                step.batch.labels.data.zero_()
            case "feature data":
                step.features.data.zero_()
            case "remembers":
                self.seen = float(step.features.detach().mean())
            case _:
                pass
        loss = (step.features.float() - target).square()
        return {"pull": loss.mean() * (len(loss) if self.fault == "sum" else 1)}

    @hookimpl
    def compatkit_after_step(self, step: Any) -> None:
        self.mean = 0.5 * self.mean + step.features.detach().float().mean() + 1

    @hookimpl
    def compatkit_state(self) -> Any:
        return {} if self.fault == "forgotten" else {"mean": self.mean}

    @hookimpl
    def compatkit_load_state(self, state: Any) -> None:
        if self.fault != "forgotten":
            self.mean = state["mean"]


class Impure(Averages):
    """Draws in a hook that declares nothing."""

    @hookimpl
    def compatkit_losses(self, step: Any) -> Any:
        return {"pull": (step.features - (random.random() if self.fault else 1.0)).square().mean()}


class Mixed(Averages):
    """Asks for the precision of the run."""

    @hookimpl
    @autocast
    def compatkit_losses(self, step: Any) -> Any:
        if self.fault and step.features.dtype != torch.float32:
            raise TypeError("float32 only")
        return {"pull": step.features.float().square().mean()}


@pytest.mark.parametrize("factory", [Averages, Impure, Mixed])
def test_a_regularizer_that_keeps_its_promises(factory: Callable[..., Any]) -> None:
    assert_regularizer(factory)


@pytest.mark.parametrize(
    ("factory", "fault", "message"),
    [
        (Averages, "forgotten", "interrupted after 2 steps and resumed.*compatkit_state"),
        (Averages, "python random", "pure.*gives other values"),
        (Averages, "numpy random", "pure.*gives other values"),
        (Impure, "draws", r"run again with the same seed.*step\.rng"),
        (Averages, "counts", "pure.*changes its attributes"),
        (Averages, "drifts", "pure.*gives other values"),
        (Averages, "weights", r"changed the weights 'head\..*compatkit_after_step"),
        (Averages, "data of weights", r"changed the weights 'extractor\."),
        (Mixed, "bf16", "float32 only"),
        (Averages, "pieces", "one piece only"),
        (Averages, "image data", "wrote into the images"),
        (Averages, "label data", "wrote into the labels"),
        (Averages, "feature data", "wrote into the features"),
        (Averages, "remembers", "pure.*changes its attributes"),
        (Averages, "sum", "grows with the number of images.*mean over the batch"),
    ],
)
def test_a_broken_promise_is_named(factory: Callable[..., Any], fault: str, message: str) -> None:
    with pytest.raises(PluginError, match=message):
        assert_regularizer(factory, fault=fault)


@pytest.mark.parametrize("network", [nn.Linear(2, 2), nn.Sequential(), nn.Conv2d])
def test_a_network_in_place_of_its_name_is_answered_with_the_way(network: Any) -> None:
    with pytest.raises(UsageError, match="compatkit_builders") as caught:
        ck.Task("small", data_set("small"), network, "layer1")
    assert caught.value.subject == "model"


class Weighs:
    @hookimpl
    def compatkit_sample_losses(self, step: Any, losses: Any) -> Any:
        return 2 * losses


class WeighsByTime(Weighs):
    @hookimpl
    def compatkit_sample_losses(self, step: Any, losses: Any) -> Any:
        return losses * random.random()


class CombinesByChance:
    @hookimpl
    def compatkit_combine_gradients(self, step: Any, gradients: Any) -> Any:
        first = next(iter(gradients.values()))
        return {name: value * random.random() for name, value in first.items()}


class JoinsAndMoves:
    @hookimpl
    def compatkit_joint_losses(self, joint: Any) -> Any:
        (name, step), *_ = joint.steps.items()
        with torch.no_grad():
            next(step.task.head.parameters()).add_(1)
        return {"x": joint.extract(name, step.batch.images, source=name).mean()}


@pytest.mark.parametrize(
    ("factory", "message"),
    [(WeighsByTime, "same seed"), (CombinesByChance, "same seed"), (JoinsAndMoves, "changed the weights")],
)
def test_hooks_that_change_losses_are_tried(factory: Any, message: str) -> None:
    with pytest.raises(PluginError, match=message):
        assert_regularizer(factory)


def test_hooks_that_a_trial_does_not_call_are_not_passed_over() -> None:
    assert_regularizer(Weighs)

    class Late:
        @hookimpl
        def compatkit_set_up(self, setup: Any) -> None:
            for state in setup.tasks.values():
                state.extractor.requires_grad_(False)

        @hookimpl
        def compatkit_combine_gradients(self, step: Any, gradients: Any) -> Any:
            raise AssertionError

    with pytest.raises(PluginError, match="compatkit_combine_gradients was not called"):
        assert_regularizer(Late)


class Curriculum:
    """Chooses images by the number of its calls; the faults break one promise each."""

    def __init__(self, fault: str = "") -> None:
        self.fault, self.calls = fault, 0

    @hookimpl
    def compatkit_sampler(self, task: ck.TaskState, epoch: int, order: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        match self.fault:
            case "python random":
                return torch.full_like(order, random.randrange(len(order)))
            case "weights":
                with torch.no_grad():
                    next(task.head.parameters()).mul_(0.9)
            case "few":
                return order[:8]
            case _:
                pass
        return torch.full_like(order, self.calls % len(order))

    @hookimpl
    def compatkit_state(self) -> Any:
        return {} if self.fault == "forgotten" else {"calls": self.calls}

    @hookimpl
    def compatkit_load_state(self, state: Any) -> None:
        self.calls = state.get("calls", 0)


class Reacts(Norm):
    """Weighs its loss by what evaluations told; the faults break one promise each."""

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.fault, self.factor = fault, 1.0

    @hookimpl
    def compatkit_losses(self, step: Any) -> Any:
        return {"norm": self.factor * step.features.mean()}

    @hookimpl
    def compatkit_after_evaluation(self, evaluation: ck.Evaluation) -> None:
        self.factor += max(figures["loss"] for figures in evaluation.metrics.values())
        if self.fault == "python random":
            self.factor += random.random()
        elif self.fault == "misread":
            self.factor = evaluation.metrics["validation"]["loss"]

    @hookimpl
    def compatkit_state(self) -> Any:
        return {} if self.fault == "forgotten" else {"factor": self.factor}

    @hookimpl
    def compatkit_load_state(self, state: Any) -> None:
        self.factor = state.get("factor", 1.0)


class Opens(Norm):
    """Opens something, and closes it in the end; the faults miss an end each."""

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.fault, self.opened = fault, list[str]()

    @hookimpl
    def compatkit_set_up(self, setup: Any) -> None:
        self.opened.append("set-up")

    @hookimpl
    def compatkit_after_step(self, step: Any) -> None:
        self.opened.append("step")

    @hookimpl
    def compatkit_finish(self, setup: Any) -> None:
        self.opened.append("finish")
        if self.fault == "twice":
            self.compatkit_teardown(setup)

    @hookimpl
    def compatkit_teardown(self, setup: Any) -> None:
        self.opened.remove(self.fault if self.fault in ("finish", "step") else "set-up")


@pytest.mark.parametrize("factory", [Curriculum, Reacts, Opens])
def test_samplers_evaluations_and_teardowns_that_keep_their_promises(factory: Callable[..., Any]) -> None:
    assert_regularizer(factory)


@pytest.mark.parametrize(
    ("factory", "fault", "message"),
    [
        (Curriculum, "forgotten", "interrupted after 2 steps and resumed.*compatkit_state"),
        (Curriculum, "python random", "run again with the same seed"),
        (Curriculum, "weights", r"compatkit_sampler changed the weights 'head\."),
        (Curriculum, "few", "returned 8 positions for an epoch that takes 12"),
        (Reacts, "forgotten", "interrupted after 2 steps and resumed.*compatkit_state"),
        (Reacts, "python random", "run again with the same seed"),
        (Reacts, "misread", "failed in compatkit_after_evaluation: KeyError"),
        (Opens, "finish", "failed in compatkit_teardown"),
        (Opens, "step", "failed in compatkit_teardown"),
        (Opens, "twice", "failed in compatkit_teardown"),
    ],
)
def test_a_promise_of_a_sampler_an_evaluation_or_a_teardown_that_is_broken(
    factory: Callable[..., Any], fault: str, message: str
) -> None:
    random.seed(0)
    with pytest.raises(PluginError, match=message):
        assert_regularizer(factory, fault=fault)

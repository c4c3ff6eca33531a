"""Gradients of single losses, combined by a plugin: what it gets, what is trained, what is refused; PCGrad."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from published import FOLDER, factories, module
from small import data_set, grouped, quick, same_parts
from torch import Tensor

import compatkit as ck
from compatkit.errors import PluginError
from compatkit.training.testing import assert_regularizer

SGD: dict[str, Any] = {"optimizer": "sgd", "lr": 0.1, "schedule": "constant"}
PCGRAD = factories("pcgrad")


class Norm:
    """A second loss: pulls features to 0."""

    @ck.hookimpl
    @ck.effect("pure")
    def compatkit_losses(self, step: Any) -> Any:
        return {"norm": step.features.square().mean(), "mean": 0.1 * step.features.mean()}


def combining(combine: Callable[[Any, Any], Any]) -> Callable[[], Any]:
    class Combining:
        @ck.hookimpl
        def compatkit_combine_gradients(self, step: Any, gradients: Any) -> Any:
            return combine(step, gradients)

    return Combining


def summed(step: Any, gradients: Any) -> Any:
    first, *others = gradients.values()
    return {name: first[name] + sum(each[name] for each in others) for name in first}


def trained(
    combine: Callable[[Any, Any], Any] | None, *uses: Any, task: ck.Task | None = None, **settings: Any
) -> ck.Fit:
    made: dict[str, Any] = {"norm": Norm}
    wanted: list[Any] = [*(uses or [ck.use("norm", weight=0.5)])]
    if combine is not None:
        made["combining"] = combining(combine)
        wanted.append("combining")
    trainer = quick(**{"steps": 3, **SGD, **settings})
    return trainer.fit([task or grouped()], wanted, factories=made)


def close(left: ck.Fit, right: ck.Fit, within: float = 1e-5) -> None:
    for mine, other in zip(left.network("a").parameters(), right.network("a").parameters(), strict=True):
        torch.testing.assert_close(other, mine, rtol=within, atol=within)


def distance(left: ck.Fit, right: ck.Fit) -> float:
    pairs = zip(left.network("a").parameters(), right.network("a").parameters(), strict=True)
    return max(float((mine - other).detach().abs().max()) for mine, other in pairs)


@pytest.mark.parametrize(
    ("settings", "within"),
    [
        ({}, 1e-5),
        ({"accumulate": 2, "clip_norm": 0.5, "ema": 0.5}, 1e-5),
        ({"optimizer": "adamw", "lr": 1e-3}, 1e-4),
        ({"precision": "bf16"}, 2e-2),
    ],
    ids=["plain", "comforts", "adamw", "bf16"],
)
def test_the_sum_is_the_ordinary_step(settings: dict[str, Any], within: float) -> None:
    plain, same = (trained(combine, **settings) for combine in (None, summed))
    close(plain, same, within)
    for left, right in zip(plain.history, same.history, strict=True):
        assert right["losses"] == pytest.approx(left["losses"], rel=max(within, 1e-4))


def test_the_sum_is_the_ordinary_step_with_further_views_and_recomputed_activations() -> None:
    def fit(combine: Callable[[Any, Any], Any] | None, recompute: bool) -> ck.Fit:
        task = ck.Task(
            "a", data_set("a"), "resnet8_cifar", "layer2", size=12, recompute_activations=recompute
        )
        return trained(combine, "rotation_prediction", "norm", task=task, steps=2)

    plain, kept, recomputed = fit(None, False), fit(summed, False), fit(summed, True)
    close(plain, kept)
    assert same_parts(kept, recomputed)
    counts = [value for key, value in kept.weights("a").items() if key.endswith("num_batches_tracked")]
    assert counts and all(int(count) == 2 for count in counts)


def test_a_step_of_one_loss_and_one_of_weight_zero_are_ordinary_bit_by_bit() -> None:
    def never(step: Any, gradients: Any) -> Any:
        raise AssertionError

    def fit(*uses: Any) -> ck.Fit:
        return quick(steps=3, **SGD).fit([grouped()], uses, factories={"combining": combining(never)})

    plain = fit()
    assert same_parts(plain, fit("combining"))
    assert same_parts(plain, fit(ck.use("combining", weight=0)))


def test_what_a_plugin_gets() -> None:
    """The gradients of a slow reference: each loss by itself, over the whole batch, for the shared parameters."""
    seen: list[Any] = []

    def note(step: Any, gradients: Any) -> Any:
        expected: dict[str, dict[str, Tensor]] = {}
        state = step.task
        for loss in ("task", "norm/mean", "norm/norm"):
            features = state.extract(whole)
            value = {
                "task": lambda f: torch.nn.functional.cross_entropy(state.head(f), labels),
                "norm/norm": lambda f: 0.5 * f.square().mean(),
                "norm/mean": lambda f: 0.05 * f.mean(),
            }[loss](features)
            names, parameters = zip(*state.extractor.named_parameters(), strict=True)
            found = torch.autograd.grad(value, parameters)
            expected[loss] = {f"a.extractor.{name}": each for name, each in zip(names, found, strict=True)}
        assert [*gradients] == [*expected]
        for loss, parts in gradients.items():
            assert parts.keys() == expected[loss].keys()
            for name, part in parts.items():
                torch.testing.assert_close(part, expected[loss][name], rtol=1e-4, atol=1e-6)
        seen.append((step.piece, len(step.batch.labels)))
        return summed(step, gradients)

    class Watch:
        @ck.hookimpl
        def compatkit_views(self, step: Any, batch: Any) -> Any:
            nonlocal whole, labels
            fresh = step.piece == 0
            whole = batch.images if fresh else torch.cat([whole, batch.images])
            labels = batch.labels if fresh else torch.cat([labels, batch.labels])
            return batch

    whole = labels = torch.empty(0)
    made = {"norm": Norm, "combining": combining(checked := torch.enable_grad()(note)), "watch": Watch}
    uses = [ck.use("norm", weight=0.5), "combining", "watch"]
    quick(steps=2, accumulate=2, **SGD).fit([grouped()], uses, factories=made)
    assert checked is not None and seen == [(0, 4), (0, 4)]


def test_a_weight_blends() -> None:
    def doubled(step: Any, gradients: Any) -> Any:
        return {name: 3 * value for name, value in summed(step, gradients).items()}

    def half(step: Any, gradients: Any) -> Any:
        return {name: 2 * value for name, value in summed(step, gradients).items()}

    made = {"norm": Norm, "combining": combining(doubled)}
    uses = ["norm", ck.use("combining", weight=0.5)]
    blended = quick(steps=2, **SGD).fit([grouped()], uses, factories=made)
    close(blended, trained(half, "norm", steps=2))
    assert distance(blended, trained(summed, "norm", steps=2)) > 1e-4


def test_start_and_stop() -> None:
    calls: list[int] = []

    def note(step: Any, gradients: Any) -> Any:
        calls.append(step.number)
        return summed(step, gradients)

    made = {"norm": Norm, "combining": combining(note)}
    uses = ["norm", ck.use("combining", start=1, stop=3)]
    quick(steps=4, **SGD).fit([grouped()], uses, factories=made)
    assert calls == [1, 2]


def test_two_plugins_in_one_step_are_refused_and_two_in_turn_are_not() -> None:
    made = {"norm": Norm, "combining": combining(summed)}

    def plan(first: ck.RegularizerConfig, second: ck.RegularizerConfig) -> ck.Explanation:
        return quick(steps=4, execution="compile").explain(
            [grouped()], ["norm", first, second], factories=made
        )

    with pytest.raises(PluginError) as caught:
        plan(ck.use("combining", as_="one"), ck.use("combining", as_="two", start=2))
    assert (caught.value.plugin, caught.value.hook) == ("two", "compatkit_combine_gradients")
    explanation = plan(ck.use("combining", as_="one", stop=2), ck.use("combining", as_="two", start=2))
    assert explanation.execution["mode"] == "eager" and "'one'" in explanation.execution["reason"]
    assert "Cost of combine_gradients" in explanation.events


def first_of(gradients: Any) -> dict[str, Tensor]:
    return dict(next(iter(gradients.values())))


@pytest.mark.parametrize(
    "combine",
    [
        lambda step, gradients: None,
        lambda step, gradients: {},
        lambda step, gradients: {**first_of(gradients), "other": torch.zeros(())},
        lambda step, gradients: {name: value.mean() for name, value in first_of(gradients).items()},
        lambda step, gradients: {name: value.double() for name, value in first_of(gradients).items()},
        lambda step, gradients: dict.fromkeys(first_of(gradients), 1.0),
        lambda step, gradients: 1 / 0,
    ],
    ids=["nothing", "empty", "other", "shape", "type", "number", "raises"],
)
def test_results_that_are_refused(combine: Callable[[Any, Any], Any]) -> None:
    with pytest.raises(PluginError) as caught:
        trained(combine)
    assert (caught.value.plugin, caught.value.hook) == ("combining", "compatkit_combine_gradients")


def slow(gradients: list[list[float]], orders: list[list[int]]) -> list[float]:
    """Alg. 1 of Yu et al., value by value in float64."""
    changed = [list(each) for each in gradients]
    for own, order in enumerate(orders):
        for other in order:
            if own == other:
                continue
            product = sum(x * y for x, y in zip(changed[own], gradients[other], strict=True))
            if product < 0:
                norm = sum(x * x for x in gradients[other])
                pairs = zip(changed[own], gradients[other], strict=True)
                changed[own] = [x - product / norm * y for x, y in pairs]
    return [sum(column) for column in zip(*changed, strict=True)]


def test_pcgrad_by_hand() -> None:
    """(1, 0) and (-1, 1) conflict by -1: (1, 0) + 1/2 (-1, 1) = (.5, .5), and (-1, 1) + (1, 0) = (0, 1)."""
    project = module("pcgrad").project
    both = torch.tensor([[1.0, 0.0], [-1.0, 1.0]], dtype=torch.float64)
    orders = torch.tensor([[0, 1], [1, 0]])
    assert project(both, orders).tolist() == [0.5, 1.5]
    right_angled = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    assert project(right_angled, orders).tolist() == [1.0, 2.0]
    vanished = torch.tensor([[1e4, 1.0], [-1e-24, 0.0]])  # its square is 0 in float32
    assert project(vanished, orders).tolist() == [1e4, 1.0]
    draw = torch.Generator().manual_seed(0)
    for _ in range(20):
        gradients = torch.randn(4, 3, generator=draw, dtype=torch.float64)
        drawn = torch.stack([torch.randperm(4, generator=draw) for _ in range(4)])
        expected = slow(gradients.tolist(), drawn.tolist())
        torch.testing.assert_close(project(gradients, drawn), torch.tensor(expected, dtype=torch.float64))


@attrs.define(eq=False)
class Step:
    seed: int = 0

    def rng(self, *key: Any) -> torch.Generator:
        return torch.Generator().manual_seed(self.seed)


def test_pcgrad_of_parameters_is_that_of_one_long_vector() -> None:
    made = PCGRAD["pcgrad"]()
    gradients = {
        "task": {"a": torch.tensor([[1.0], [0.0]]), "b": torch.tensor([0.0])},
        "x/y": {"a": torch.tensor([[-1.0], [1.0]]), "b": torch.tensor([0.0])},
    }
    got = made.compatkit_combine_gradients(Step(), gradients)
    assert got["a"].tolist() == [[0.5], [1.5]] and got["b"].tolist() == [0.0]
    orthogonal = {"task": {"a": torch.tensor([3.0, 0.0])}, "x/y": {"a": torch.tensor([0.0, 4.0])}}
    assert made.compatkit_combine_gradients(Step(), orthogonal)["a"].tolist() == [3.0, 4.0]


class Opposes:
    """A loss against the task's: its gradient is -1/2 of the task's, up to rounding."""

    @ck.hookimpl
    def compatkit_losses(self, step: Any) -> Any:
        return {"loss": -0.5 * torch.nn.functional.cross_entropy(step.logits, step.batch.labels)}


def test_pcgrad_of_opposite_losses_moves_nothing_and_their_sum_does() -> None:
    """G - (g . h)/|h|^2 h with h = -g/2 is 0, for both."""
    made = {**PCGRAD, "opposes": Opposes}
    settings: dict[str, Any] = {**SGD, "weight_decay": 0.0}

    def fit(steps: int, *uses: str) -> ck.Fit:
        return quick(steps=steps, **settings).fit([grouped()], uses, factories=made)

    start = fit(0)
    assert distance(start, fit(2, "opposes", "pcgrad")) < 1e-6
    assert distance(start, fit(2, "opposes")) > 1e-3


def test_pcgrad_in_pieces_resumed_and_over_epochs(tmp_path: Path) -> None:
    class Stop:
        @ck.hookimpl
        def compatkit_after_step(self, step: Any) -> None:
            if step.number == stop:
                raise KeyboardInterrupt

    def fit(**settings: Any) -> ck.Fit:
        made = {**PCGRAD, "norm": Norm, "stop": Stop}
        return quick(steps=4, **SGD, **settings).fit([grouped()], ["norm", "pcgrad", "stop"], factories=made)

    stop = -1
    whole = fit()
    close(whole, fit(accumulate=4), within=1e-4)
    stop, saved = 2, {"checkpoint": tmp_path / "run.safetensors", "checkpoint_every": 2}
    with pytest.raises(KeyboardInterrupt):
        fit(**saved)
    stop = -1
    resumed = fit(**saved)
    assert same_parts(whole, resumed) and whole.history == resumed.history


def test_pcgrad_is_short_and_learns() -> None:
    assert_regularizer(PCGRAD["pcgrad"])
    assert len((FOLDER / "pcgrad.py").read_text().splitlines()) < 80
    task = ck.Task("a", data_set("a"), "resnet8_cifar", "layer2", size=16)
    fit = quick(steps=40, log_every=10, lr=0.005).fit(
        [task], ["norm", "pcgrad"], factories={**PCGRAD, "norm": Norm}
    )
    assert fit.history["a/loss"][-1] < 0.5 * fit.history["a/loss"][0]

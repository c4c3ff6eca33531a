"""Estimates of the reverse pass: unbiased in value and gradient, and the same at every turn."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
import torch
from small import data_set, quick, same_parts
from torch import Tensor, nn

import compatkit as ck
from compatkit.errors import CompatkitError
from compatkit_plugins.regularizers.reverse_pass import reverse_pass
from compatkit_plugins.regularizers.reverse_pass.local import Records, local_loss
from compatkit_plugins.regularizers.reverse_pass.sampling import drawn_layers, first_images

NAMES = ("0", "2", "5")


def network() -> nn.Sequential:
    torch.manual_seed(0)
    layers = (nn.Conv2d(2, 3, 3, padding=1), nn.Tanh(), nn.Conv2d(3, 4, 3, 2), nn.ReLU(), nn.Flatten())
    return nn.Sequential(*layers, nn.Linear(16, 3)).double()


def records(parts: nn.Sequential, images: Tensor) -> Records:
    result: dict[str, list[ck.LayerCall]] = {}
    for name, layer in parts.named_children():
        inputs = layer(images)
        if name in NAMES:
            result[name] = [ck.LayerCall(images, inputs, layer)]
        images = inputs
    return result


def value_and_gradients(parts: nn.Sequential, loss: Tensor | None) -> list[Tensor]:
    weights = list(parts.parameters())
    if loss is None:
        return [torch.zeros((), dtype=torch.float64), *(torch.zeros_like(weight) for weight in weights)]
    result = torch.autograd.grad(loss, weights, allow_unused=True)
    return [
        loss.detach(),
        *(torch.zeros_like(weight) if it is None else it for weight, it in zip(weights, result, strict=True)),
    ]


def of_all(parts: nn.Sequential, images: Tensor) -> list[Tensor]:
    return value_and_gradients(parts, local_loss(records(parts, images), dict.fromkeys(NAMES, 1.0)))


def mean(drawn: list[list[Tensor]]) -> list[Tensor]:
    return [torch.stack(item).mean(0) for item in zip(*drawn, strict=True)]


def test_over_all_orders_of_a_batch_its_first_images_give_the_whole_loss_and_gradients() -> None:
    parts, images = network(), torch.randn(4, 2, 6, 6, dtype=torch.float64)
    drawn = []
    for order in permutations(range(4)):
        result = first_images(records(parts, images[list(order)]), 4, 0.5)
        assert [len(entry.input) for called in result.values() for entry in called] == [2, 2, 2]
        drawn.append(value_and_gradients(parts, local_loss(result, dict.fromkeys(NAMES, 1.0))))
    torch.testing.assert_close(mean(drawn), of_all(parts, images), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("share", [0.2, 0.5, 0.9])
def test_drawn_layers_give_the_whole_loss_and_gradients_in_the_mean(share: float) -> None:
    """Every set of layers, weighted by how often it is drawn, against its probability; then exactly by those."""
    parts, images, draws = network(), torch.randn(4, 2, 6, 6, dtype=torch.float64), 6000
    draw, seen = torch.Generator().manual_seed(0), dict[tuple[str, ...], int]()
    for _ in range(draws):
        chosen = tuple(drawn_layers(NAMES, share, draw))
        seen[chosen] = seen.get(chosen, 0) + 1
    few = int(3 * share)
    more = 3 * share - few
    sets = {0: 1, 1: 3, 2: 3, 3: 1}
    total = [torch.zeros_like(entry) for entry in of_all(parts, images)]
    for chosen, count in seen.items():
        assert len(chosen) in (few, few + 1)
        probability = (more if len(chosen) > few else 1 - more) / sets[len(chosen)]
        assert count / draws == pytest.approx(probability, abs=0.025)
        loss = local_loss(records(parts, images), dict.fromkeys(NAMES, 1.0), names=chosen)
        for entry, it in zip(total, value_and_gradients(parts, loss), strict=True):
            entry += probability / share * it
    torch.testing.assert_close(total, of_all(parts, images), rtol=1e-9, atol=1e-9)


def test_a_share_of_a_whole_count_of_layers_draws_just_so_many() -> None:
    draw = torch.Generator().manual_seed(0)
    assert {len(drawn_layers("abcdefgh", 0.25, draw)) for _ in range(50)} == {2}
    assert drawn_layers("abc", 1.0, draw) == ["a", "b", "c"]


def test_windows_of_an_image_go_with_it_and_tables_are_taken_whole() -> None:
    images, windows = torch.arange(4.0)[:, None], torch.arange(8.0)[:, None]
    table, layer = torch.zeros(3, 1), nn.Linear(1, 1)
    settings = {"a": [ck.LayerCall(images, windows, layer)], "b": [ck.LayerCall(table, table, layer)]}
    result = first_images(settings, 4, 0.5)
    assert result["a"][0].input[:, 0].tolist() == [0, 1]
    assert result["a"][0].output[:, 0].tolist() == [0, 1, 2, 3]
    assert result["b"][0].input is table
    assert len(first_images(settings, 4, 0.01)["a"][0].input) == 1


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_rows_are_no_copies_and_gradients_keep_the_layout(layout: torch.memory_format) -> None:
    images = torch.randn(4, 3, 5, 6).contiguous(memory_format=layout).requires_grad_()
    call = first_images({"a": [ck.LayerCall(images, images, nn.Conv2d(3, 3, 1))]}, 4, 0.5)["a"][0]
    assert torch.equal(call.input, images[:2])
    assert call.input.data_ptr() == images.data_ptr()
    (gradient,) = torch.autograd.grad(call.input.square().sum(), images)
    assert gradient.stride() == images.stride()


def small() -> ck.Task:
    kwargs = {"filters": 4, "convolutions": 2, "units": 8}
    return ck.Task("a", data_set("a"), "simple_cnn", "blocks", size=12, kwargs=kwargs)


def test_first_images_are_stacked_by_vmap() -> None:
    """Several weights at once give what each gives alone."""
    parts, images = network(), torch.randn(4, 2, 6, 6, dtype=torch.float64)
    images = images.contiguous(memory_format=torch.channels_last)
    weights = {name: torch.stack([value, 2 * value]) for name, value in parts.state_dict().items()}

    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts = parts

        def forward(self, images: Tensor) -> Tensor:
            result = first_images(records(self.parts, images), 4, 0.5)
            loss = local_loss(result, dict.fromkeys(NAMES, 1.0))
            return torch.zeros(()) if loss is None else loss

    def loss(inputs: dict[str, Tensor]) -> Tensor:
        by_name = {f"parts.{name}": value for name, value in inputs.items()}
        return torch.func.functional_call(Loss(), by_name, (images,))

    both = torch.func.vmap(torch.func.grad(loss))(weights)
    for place in (0, 1):
        alone = torch.func.grad(loss)({name: weight[place] for name, weight in weights.items()})
        for name, value in alone.items():
            torch.testing.assert_close(both[name][place], value)


def test_drawn_layers_keep_steps_eager_and_say_so() -> None:
    use = ck.use("reverse_pass", sample_images=0.25, sample_layers=0.5)
    result = quick(steps=1, execution="compile").fit([small()], [use]).run["environment"]["execution"]
    assert result["mode"] == "eager"
    assert "'reverse_pass' has the effect 'host'" in result["reason"]


def test_the_same_layers_are_drawn_again_and_after_a_break(tmp_path: Path) -> None:
    use = ck.use("reverse_pass", sample_layers=0.3, sample_images=0.5)
    whole, again = (quick(steps=4).fit([small()], [use]) for _ in range(2))
    assert same_parts(whole, again)
    path = tmp_path / "run.ckpt"

    class Breaks:
        broken = False

        @ck.hookimpl
        def compatkit_losses(self, step: ck.Step) -> dict[str, Tensor]:
            if step.number == 3 and not Breaks.broken:
                Breaks.broken = True
                raise KeyboardInterrupt
            return {}

    trainer = quick(steps=4, checkpoint=path, checkpoint_every=2)
    with pytest.raises(KeyboardInterrupt):
        trainer.fit([small()], [use, "breaks"], factories={"breaks": Breaks})
    assert same_parts(trainer.fit([small()], [use, "breaks"], factories={"breaks": Breaks}), whole)


def test_a_step_that_draws_no_layer_reports_0_and_moves_as_without() -> None:
    use = ck.use("reverse_pass", sample_layers=1e-9)
    fit = quick(steps=2).fit([small()], [use])
    assert [row["losses"]["reverse_pass/loss"] for row in fit.history] == [0, 0]
    assert same_parts(fit, quick(steps=2).fit([small()]))


@pytest.mark.parametrize("settings", [{"variant": "full"}, {"variant": "first"}, {"activation": True}])
def test_layers_that_are_walked_through_are_drawn_all_together(settings: dict[str, Any]) -> None:
    """Steps give the whole loss over its probability, or 0; both happen, and the first as often as it should."""

    def losses(**more: Any) -> list[float]:
        # At a rate of 0 in all but name every step sees the first weights, so that steps can be compared.
        use = ck.use("reverse_pass", **settings, **more)
        fit = quick(steps=24, lr=1e-30, optimizer="sgd", log_every=1).fit([small()], [use])
        return [row["losses"]["reverse_pass/loss"] for row in fit.history]

    whole, drawn = losses(), losses(sample_layers=0.5)
    hit = [item > 0 for item in drawn]
    assert 5 <= sum(hit) <= 19  # 12 of 24 expected; outside with a probability of .004
    for loss, estimate, entry in zip(whole, drawn, hit, strict=True):
        assert estimate == pytest.approx(2 * loss if entry else 0, rel=1e-5)


def test_layers_of_factor_0_are_not_drawn() -> None:
    first = {"layers": ["blocks.0.conv"]}
    other = {"layer_weights": {"*": 0, "blocks.0.conv": 1}}
    losses = [
        quick(steps=1, optimizer="sgd").fit(
            [small()], [ck.use("reverse_pass", sample_layers=0.999999, **item)]
        )
        for item in (first, other)
    ]
    assert losses[0].history[0]["losses"] == losses[1].history[0]["losses"]
    assert losses[0].history[0]["losses"]["reverse_pass/loss"] > 0


@pytest.mark.parametrize("word", ["sample_images", "sample_layers"])
@pytest.mark.parametrize("share", [0, -0.5, 1.5, True, "half", float("nan")])
def test_shares_are_checked(word: str, share: Any) -> None:
    with pytest.raises(CompatkitError, match=f"'{word}' must be a number above 0 and up to 1; got"):
        reverse_pass(**{word: share})

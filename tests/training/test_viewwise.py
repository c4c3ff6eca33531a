"""All views in one pass against a pass for each: the same gradients, and buffers that saw the first view alone."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import pytest
import timm
import torch
from small import data_set, quick
from torch import Tensor, nn

import compatkit as ck
from compatkit.errors import PluginError, UsageError
from compatkit.evaluation.batchnorm import batch_statistics
from compatkit.hooks import effect
from compatkit.training.extra_views import Viewwise, mixing_reason
from compatkit_plugins.networks.residual import resnet8_cifar

NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "batch norm": lambda: resnet8_cifar(num_classes=10),
    "with activation": lambda: timm.create_model("regnetx_002", num_classes=0),
    "layer norm": lambda: timm.create_model(
        "convnext_atto", depths=(1, 1, 1, 1), dims=(8, 16, 24, 32), num_classes=0
    ),
    "group norm": lambda: nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.ReLU(), nn.Conv2d(8, 8, 3)
    ),
}


def network(kind: str, dtype: torch.dtype = torch.float64, last: bool = False) -> nn.Module:
    torch.manual_seed(0)
    layout = torch.channels_last if last else torch.contiguous_format
    return NETWORKS[kind]().to(dtype=dtype, memory_format=layout).train()  # type: ignore[call-overload]


def images(dtype: torch.dtype = torch.float64, batch: int = 4) -> list[Tensor]:
    upright = torch.randn(batch, 3, 32, 32, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    upright = upright * torch.linspace(0.5, 2, 32, dtype=torch.float64) + torch.linspace(-1, 1, 32)[:, None]
    return [torch.rot90(upright, turn, (-2, -1)).to(dtype) for turn in range(4)]


def separate(module: nn.Module, views: Sequence[Tensor]) -> list[Tensor]:
    upright = module(views[0])
    with batch_statistics(module, others="keep"):
        return [upright, *(module(view) for view in views[1:])]


def fused(module: nn.Module, views: Sequence[Tensor]) -> list[Tensor]:
    with Viewwise(len(views)):
        return list(module(torch.cat(list(views))).chunk(len(views)))


def gradients(run: Callable[..., list[Tensor]], module: nn.Module, views: Sequence[Tensor]) -> Tensor:
    """Return all gradients of a loss in which the views count differently."""
    outputs = run(module, views)
    draw = torch.Generator().manual_seed(2)
    total = sum(
        (turn + 1) * (output.double() * torch.randn(output.shape, generator=draw, dtype=torch.float64)).sum()
        for turn, output in enumerate(outputs)
    )
    assert isinstance(total, Tensor)
    total.backward()
    return torch.cat(
        [parameter.grad.double().flatten() for parameter in module.parameters() if parameter.grad is not None]
    )


def apart(item: Tensor, other: Tensor) -> float:
    return float(((item - other).norm() / other.norm()).detach())


@pytest.mark.parametrize("last", [True, False], ids=["channels last", "contiguous"])
@pytest.mark.parametrize("kind", NETWORKS)
def test_gradients_are_those_of_separate_passes(kind: str, last: bool) -> None:
    first, other = network(kind, last=last), network(kind, last=last)
    assert apart(gradients(fused, first, images()), gradients(separate, other, images())) <= 1e-9
    clean = network(kind, last=last)
    clean(images()[0])
    for name, value in clean.named_buffers():
        assert torch.equal(dict(first.named_buffers())[name], value), name
        assert torch.equal(dict(other.named_buffers())[name], value), name


def test_float32_gradients_are_those_of_separate_passes() -> None:
    views = images(torch.float32, 16)
    first, other = (network("batch norm", torch.float32, last=True) for _ in range(2))
    assert apart(gradients(fused, first, views), gradients(separate, other, views)) <= 1e-5
    clean = network("batch norm", torch.float32, last=True)
    clean(views[0])
    for name, value in clean.named_buffers():
        torch.testing.assert_close(dict(first.named_buffers())[name], value, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("kind", ["batch norm", "with activation"])
def test_one_plain_batch_of_all_views_is_something_else(kind: str) -> None:
    """What the tests above would not notice, they would not be worth: mixed statistics give other gradients."""

    def mixed(module: nn.Module, views: Sequence[Tensor]) -> list[Tensor]:
        return list(module(torch.cat(list(views))).chunk(len(views)))

    first, other = network(kind), network(kind)
    assert apart(gradients(mixed, first, images()), gradients(separate, other, images())) > 0.1
    assert not torch.equal(next(first.buffers()), next(other.buffers()))


def test_the_form_for_a_compiler_computes_the_same() -> None:
    first, other = network("batch norm"), network("batch norm")
    run = torch.compile(fused, backend="aot_eager", fullgraph=True, dynamic=False)
    torch._dynamo.reset()
    assert apart(gradients(run, first, images()), gradients(separate, other, images())) <= 1e-9
    for name, value in other.named_buffers():
        torch.testing.assert_close(dict(first.named_buffers())[name], value, rtol=1e-12, atol=1e-12)


def test_bf16_agrees_within_its_precision() -> None:
    views = images(torch.float32, 8)
    with torch.autocast("cpu", torch.bfloat16):
        together = fused(network("batch norm", torch.float32, last=True), views)
        alone = separate(network("batch norm", torch.float32, last=True), views)
    assert all(
        apart(tensor.double(), other.double()) < 0.02 for tensor, other in zip(together, alone, strict=True)
    )


def test_stored_statistics_are_left_alone_and_nothing_outlives_an_error() -> None:
    module = network("batch norm").eval()
    before = copy.deepcopy(module.state_dict())
    whole = torch.cat(images())
    with Viewwise(4):
        assert torch.equal(module(whole), module.eval()(whole))
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())

    class Broken(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        fused(nn.Sequential(network("batch norm"), Broken()), images())
    first, other = network("batch norm"), network("batch norm")
    plain = torch.nn.functional.batch_norm
    assert torch.equal(first(whole), other(whole))
    assert torch.nn.functional.batch_norm is plain


def test_extractors_that_mix_a_batch_are_found() -> None:
    class Centered(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x - x.mean(0, keepdim=True)

    shape = (4, 3, 32, 32)
    for kind in NETWORKS:
        module = network(kind, torch.float32)
        before = copy.deepcopy(module.state_dict())
        assert mixing_reason(module, shape) is None
        assert module.training
        assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert "depend on the other images" in (
        mixing_reason(nn.Sequential(nn.Conv2d(3, 4, 3), Centered()), shape) or ""
    )
    synchronized = nn.SyncBatchNorm.convert_sync_batchnorm(network("batch norm", torch.float32))
    assert "synchronizes statistics" in (mixing_reason(synchronized, shape) or "")


def tasks(**settings: Any) -> list[ck.Task]:
    return [
        ck.Task(name, data_set(name, seed=seed, channels=3), "resnet8_cifar", "layer2", size=16, **settings)
        for seed, name in enumerate(("left", "right"))
    ]


def close(fit: ck.Fit, other: ck.Fit, tolerance: float = 1e-4) -> bool:
    parts = [(fit.weights(name), other.weights(name)) for name in fit.tasks]
    parts += [
        (head.module.state_dict(), other.auxiliary[name].module.state_dict())
        for name, head in fit.auxiliary.items()
    ]
    return all(
        torch.allclose(value.double(), right[key].double(), rtol=tolerance, atol=tolerance)
        for left, right in parts
        for key, value in left.items()
    )


@pytest.mark.parametrize("half_turn", ["rotate", "flip"])
def test_a_run_in_one_pass_is_the_run_in_several(half_turn: str) -> None:
    uses = ["dcc", ck.use("rotation_prediction", views="per_view", half_turn=half_turn)]
    settings: dict[str, Any] = {"steps": 3, "optimizer": "sgd", "lr": 0.05}
    first, other = (
        quick(passes=way, **settings).fit(tasks(augment=("crop", "flip")), uses)
        for way in ("fused", "separate")
    )
    assert close(first, other)
    assert first.run["environment"]["passes"] == {"left": "fused", "right": "fused"}
    assert first.plan != other.plan
    automatic = quick(**settings).fit(tasks(augment=("crop", "flip")), uses)
    assert automatic.run["environment"]["passes"] == {"left": "separate", "right": "separate"}
    assert close(automatic, other, 0.0)


class Brighter:
    """Changes the images, so that views cannot be gathered."""

    @ck.hookimpl
    def compatkit_views(self, step: ck.Step, batch: ck.Batch) -> ck.Batch:
        assert batch.stacked is None
        return attrs.evolve(batch, images=batch.images + 1)


@pytest.mark.parametrize("way", ["fused", "separate"])
def test_views_are_of_the_images_that_the_network_sees(way: Any) -> None:
    seen: list[ck.Step] = []

    class Mirrors:
        @ck.hookimpl
        def compatkit_further_views(self, images: Tensor) -> Sequence[Tensor]:
            return [images.flip(-1), images.flip(-2)]

        @ck.hookimpl
        def compatkit_losses(self, step: ck.Step) -> Mapping[str, Tensor]:
            seen.append(step)
            extractor = copy.deepcopy(step.task.extractor)
            wanted = [extractor(step.batch.images.flip(side)) for side in (-1, -2)]
            assert len(step.views) == 2
            for view, other in zip(step.views, wanted, strict=True):
                torch.testing.assert_close(view, other, rtol=1e-4, atol=1e-4)
            return {"size": sum(view.square().mean() for view in step.views)}  # type: ignore[dict-item]

    class Turned(Mirrors):
        @ck.hookimpl
        def compatkit_further_views(self, images: Tensor) -> Sequence[Tensor]:
            return [torch.rot90(images, 1, (-2, -1))]

        @ck.hookimpl
        def compatkit_losses(self, step: ck.Step) -> Mapping[str, Tensor]:
            wanted = copy.deepcopy(step.task.extractor)(torch.rot90(step.batch.images, 1, (-2, -1)))
            torch.testing.assert_close(step.views[0], wanted, rtol=1e-4, atol=1e-4)
            return {}

    factories = {"brighter": Brighter, "mirrors": Mirrors, "turned": Turned}
    for names in (["mirrors", "turned"], ["brighter", "turned", "mirrors"]):
        quick(steps=2, passes=way).fit(tasks()[:1], names, factories=factories)
    assert len(seen) == 4
    assert [step.batch.stacked is None for step in seen] == [False, False, True, True]


def test_views_end_with_the_phase_of_their_plugin() -> None:
    stacked: list[bool] = []

    class Watch:
        @ck.hookimpl
        def compatkit_after_step(self, step: ck.Step) -> None:
            stacked.append(step.batch.stacked is not None)

    uses = [ck.use("rotation_prediction", views="per_view", start=1, stop=3), "watch"]
    quick(steps=4).fit(tasks()[:1], uses, factories={"watch": Watch})
    assert stacked == [False, True, True, False]


def test_what_cannot_be_done_in_one_pass_is_refused_or_done_in_several(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "compatkit.training.extra_views.mixing_reason", lambda extractor, shape: "images are mixed"
    )
    with pytest.raises(
        UsageError, match=r"passes='fused' was asked for, but.*task 'left' \(resnet8_cifar\) images are"
    ):
        quick(steps=1, passes="fused").fit(tasks(), [ck.use("rotation_prediction", views="per_view")])
    explanation = (
        quick(steps=1).explain(tasks(), [ck.use("rotation_prediction", views="per_view")]).tasks[0]["passes"]
    )
    assert explanation == {"fused": False, "reason": "on cpu one pass gains nothing over several"}
    with pytest.raises(UsageError, match="'passes' must be one of auto, fused, separate; got 'both'"):
        quick(steps=1, passes="both")


@pytest.mark.parametrize(
    ("value", "actual"),
    [
        (lambda images: images[..., :-1], r"shapes \[\]|a Tensor"),
        (lambda images: [images[..., :-1]], r"\[\(torch.Size\(\[1, 1, 16, 15\]\)"),
        (lambda images: None, r"nothing \(None\)"),
    ],
)
def test_what_is_no_view_of_the_images_is_refused(value: Any, actual: str) -> None:
    @effect("pure")
    def views(self: Any, images: Tensor) -> Any:
        return value(images)

    mine = type("Mine", (), {"compatkit_further_views": ck.hookimpl(views)})
    with pytest.raises(PluginError, match=rf"Plugin 'mine': compatkit_further_views returned {actual}"):
        quick(steps=1).fit(tasks()[:1], ["mine"], factories={"mine": mine})

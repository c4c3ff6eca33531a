"""In bf16 runs, losses of plugins are computed in float32 outside of autocast, unless a hook asks for autocast."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from small import data_set, quick, same_parts
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import compatkit as ck
from compatkit.training.prepare import FitRequest, prepare


def task() -> ck.Task:
    return ck.Task("a", data_set("a"), "resnet8_cifar", "layer2", size=12)


class Looks:
    """Notes the types that its hook sees, with a further view and a recorded layer."""

    def __init__(self) -> None:
        self.seen: list[tuple[torch.dtype | bool, ...]] = []

    @ck.hookimpl
    def compatkit_set_up(self, setup: ck.SetUp) -> None:
        for state in setup.tasks.values():
            setup.record_layers(state, ["layer1.0.conv1"])

    @ck.hookimpl
    def compatkit_further_views(self, images: Tensor) -> Sequence[Tensor]:
        return [images.flip(-1)]

    def _losses(self, step: ck.Step) -> Mapping[str, Tensor]:
        (call,) = step.layers["layer1.0.conv1"]
        tensors = (step.features, step.logits, step.views[0], call.output)
        self.seen.append((torch.is_autocast_enabled("cpu"), *(tensor.dtype for tensor in tensors)))  # type: ignore[union-attr]
        return {"ones": (step.features * 0).sum() + torch.ones(4097, dtype=step.features.dtype).sum()}


class Default(Looks):
    @ck.hookimpl
    def compatkit_losses(self, step: ck.Step) -> Mapping[str, Tensor]:
        return self._losses(step)


class Mixed(Looks):
    @ck.hookimpl
    @ck.autocast
    def compatkit_losses(self, step: ck.Step) -> Mapping[str, Tensor]:
        return self._losses(step)


@pytest.mark.parametrize(
    ("kind", "precision", "dtype", "on"),
    [
        (Default, "bf16", torch.float32, False),
        (Mixed, "bf16", torch.bfloat16, True),
        (Default, "float32", torch.float32, False),
        (Mixed, "float32", torch.float32, False),
    ],
)
def test_what_a_hook_sees(kind: type[Looks], precision: Any, dtype: torch.dtype, on: bool) -> None:
    plugin = kind()
    fit = quick(steps=2, precision=precision).fit([task()], ["x"], factories={"x": lambda: plugin})
    assert plugin.seen == [(on, *[dtype] * 4)] * 2
    wanted = 4096.0 if dtype is torch.bfloat16 else 4097.0  # bf16 has 8 bits
    assert fit.history["a/x/ones"].tolist() == [wanted] * 2


class Casts(TorchDispatchMode):
    """Counts casts of tensors of a shape to bf16, other than in the backward pass."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape, self.count = shape, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        cast = func.overloadpacket is torch.ops.aten._to_copy and kwargs.get("dtype") is torch.bfloat16
        self.count += cast and args[0].shape == self.shape and args[0].requires_grad
        return func(*args, **kwargs)


class Reads:
    """A loss under autocast that runs the head again."""

    @ck.hookimpl
    @ck.autocast
    def compatkit_losses(self, step: ck.Step) -> Mapping[str, Tensor]:
        return {"squares": step.classify(step.features).float().square().mean()}


def test_a_weight_is_cast_once_a_step_and_anew_after_it() -> None:
    request = FitRequest(
        quick(steps=3, precision="bf16"), [task()], ["x", "y"], factories=dict.fromkeys("xy", Reads)
    )
    with prepare(request) as run:
        state = run.loop.setup.tasks["a"]
        (weight,) = (value for name, value in state.head.named_parameters() if name.endswith("fc.weight"))
        counts = []
        for number in range(3):
            with Casts(tuple(weight.shape)) as casts:
                run.loop.step(state, number)
            counts.append(casts.count)
        assert counts == [1, 1, 1] and not torch.is_autocast_enabled("cpu")
        with torch.autocast("cpu", torch.bfloat16), torch.no_grad():  # of the weights after the step
            features = torch.randn(2, *state.feature_shape[1:])
            assert torch.equal(state.head(features), copy.deepcopy(state.head)(features))


class Pulls:
    """A loss that moves the extractor, and calls the head outside of autocast."""

    @ck.hookimpl
    def compatkit_losses(self, step: ck.Step) -> Mapping[str, Tensor]:
        other = step.classify(step.extract(step.batch.images.flip(-1), write_statistics=False))
        return {"pull": (other - step.logits).square().mean() + step.features.square().mean()}  # type: ignore[operator]


def test_its_gradient_reaches_the_network_and_a_run_goes_on_exactly(tmp_path: Path) -> None:
    def trainer(**settings: Any) -> ck.Trainer:
        return quick(steps=4, precision="bf16", checkpoint_every=2, **settings)

    class Stop(Exception):
        pass

    class Stops(Pulls):
        @ck.hookimpl
        def compatkit_after_step(self, step: ck.Step) -> None:
            if step.number == 2 and not (tmp_path / "again").exists():
                (tmp_path / "again").touch()
                raise Stop

    whole = trainer().fit([task()], ["p"], factories={"p": Pulls})
    with pytest.raises(ck.errors.PluginError):
        trainer(checkpoint=tmp_path / "run").fit([task()], ["p"], factories={"p": Stops})
    again = trainer(checkpoint=tmp_path / "run").fit([task()], ["p"], factories={"p": Stops})
    assert same_parts(again, whole)
    assert not same_parts(whole, trainer().fit([task()]))

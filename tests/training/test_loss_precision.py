"""In bf16 runs, losses of plugins are computed in float32 outside of autocast, unless a hook asks for autocast."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from small import data_set, quick, same_parts
from torch import Tensor

import compatkit as ck


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

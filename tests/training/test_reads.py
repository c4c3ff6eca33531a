"""Between two rows of the history no step reads a value from the device, whatever is switched on: none could wait."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import pytest
import torch
from small import data_set, quick
from torch.utils._python_dispatch import TorchDispatchMode

import compatkit as ck
from compatkit.training.prepare import FitRequest, prepare

TASKS = [
    ck.Task(
        name, data_set(name, seed=seed), "resnet8_cifar", "layer2", size=(16, 16), augment=("crop", "flip")
    )
    for seed, name in enumerate(("left", "right"))
]
READING = ("_local_scalar_dense", "nonzero", "item", "equal", "is_nonzero", "masked_select", "unique")
"""Operations whose result, or its shape, the host must know."""


class Reads(TorchDispatchMode):
    """Notes the operations that a GPU would be waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(
        self,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        name = func.overloadpacket.__name__
        if name in READING:
            self.found.append(name)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "settings",
    [{}, {"clip_norm": 1.0, "ema": 0.9, "accumulate": 2}, {"optimizer": "sgd", "passes": "fused"}],
    ids=["plain", "clipped, averaged, in pieces", "views in one pass"],
)
def test_steps_read_nothing(settings: dict[str, Any]) -> None:
    with prepare(
        FitRequest(quick(steps=20, **settings), TASKS, ["identical_init", "dcc", "rotation_prediction"])
    ) as start:
        loop = start.loop
        for state in loop.setup.tasks.values():
            loop.step(state, 0)  # which makes tables on the host
        with Reads() as reads:
            for number in range(1, 8):  # beyond an epoch of six batches
                for state in loop.setup.tasks.values():
                    loop.step(state, number)
    assert reads.found == []


def test_listening_to_the_losses_reads_nothing() -> None:
    saved: list[dict[str, torch.Tensor]] = []

    class Listens:
        @ck.hookimpl
        def compatkit_after_step(self, step: ck.Step) -> None:
            saved.append(step.losses)

    with prepare(FitRequest(quick(steps=20), TASKS, ["mine"], factories={"mine": Listens})) as start:
        states = start.loop.setup.tasks.values()
        for state in states:
            start.loop.step(state, 0)
        with Reads() as reads:
            for number in range(1, 4):
                for state in states:
                    start.loop.step(state, number)
        assert reads.found == [] and len(saved) == 8 and set(saved[0]) == {"task", "accuracy"}


def test_what_reads_is_noticed() -> None:
    class Peeks:
        @ck.hookimpl
        def compatkit_losses(self, step: ck.Step) -> Mapping[str, torch.Tensor]:
            norm = step.features.square().mean()  # type: ignore[union-attr]
            return {"norm": norm * float(norm > 0)}

    with (
        prepare(FitRequest(quick(steps=20), TASKS[:1], ["peeks"], factories={"peeks": Peeks})) as start,
        Reads() as reads,
    ):
        start.loop.step(start.loop.setup.tasks["left"], 0)
    assert "_local_scalar_dense" in reads.found

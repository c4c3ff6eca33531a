"""Out of memory, with a stand-in that holds so many images: whose step, which batch, which setting helps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from small import data_set, quick, same_parts

import compatkit as ck
from compatkit.errors import EnvironmentFailure
from compatkit.training.distributed import World
from compatkit.training.out_of_memory import out_of_memory_error


def refused() -> RuntimeError:
    """What the CPU's allocator says to 4 EiB."""
    try:
        torch.empty(2**60)
    except RuntimeError as error:
        return error.with_traceback(None)
    raise AssertionError("there is no such memory")


ERRORS = (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), refused())


def task(name: str = "left") -> ck.Task:
    return ck.Task(name, data_set(name), "resnet8_cifar", "layer2", size=16)


class Small:
    """A device that holds ``most`` images of one task from step 1 on; fails in the forward pass or in its loss."""

    def __init__(self, most: int, error: Exception, in_loss: bool = False) -> None:
        self.most, self.error, self.in_loss = most, error, in_loss
        self.tried: list[int] = []
        self.count = 0
        self.begun: dict[str, torch.Tensor] = {}

    def check(self, images: int) -> None:
        if not self.begun:
            return
        self.tried.append(images)
        if images > self.most:
            raise self.error

    @ck.hookimpl
    def compatkit_set_up(self, setup: ck.SetUp) -> None:
        self.network = torch.nn.ModuleList([setup.tasks["left"].extractor, setup.tasks["left"].head])
        if not self.in_loss:
            setup.tasks["left"].head.register_forward_pre_hook(lambda _, inputs: self.check(len(inputs[0])))

    @ck.hookimpl
    def compatkit_losses(self, step: ck.Step) -> Mapping[str, torch.Tensor]:
        self.count += 1
        if self.in_loss:
            self.check(len(step.batch.images))
        return {"a": step.features.mean()}  # type: ignore[union-attr]

    @ck.hookimpl
    def compatkit_after_step(self, step: ck.Step) -> None:
        self.begun = {name: value.clone() for name, value in self.network.state_dict().items()}
        self.begun["count"] = torch.tensor(self.count)

    @ck.hookimpl
    def compatkit_state(self) -> Mapping[str, Any]:
        return {"count": self.count}

    @ck.hookimpl
    def compatkit_load_state(self, state: Mapping[str, Any]) -> None:
        self.count = state["count"]


def failure(small: Small, **settings: Any) -> str:
    with pytest.raises(EnvironmentFailure) as caught:
        quick(**{"steps": 3, "batch_size": 16, **settings}).fit(
            [task()], ["x"], factories={"x": lambda: small}
        )
    return str(caught.value)


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("in_loss", [False, True])
def test_it_names_task_and_batch_and_advises_what_fits(error: Exception, in_loss: bool) -> None:
    small = Small(5, error, in_loss)
    result = failure(small)
    assert "Task 'left' ran out of memory on 'cpu' in step 1 with a batch of 16 images." in result
    assert "Set accumulate=2, which sees the same images a step, or a smaller batch_size" in result
    assert small.tried == [16]


def test_pieces_are_cut_further() -> None:
    result = failure(Small(2, ERRORS[0]), accumulate=2)
    assert "with a batch of 16 images in 2 micro-batches of 8." in result
    assert "Set accumulate=4" in result


def test_pieces_of_two_images_are_not_cut_further() -> None:
    assert "in 2 micro-batches of 2. Set a smaller batch_size" in failure(
        Small(1, ERRORS[0]), batch_size=4, accumulate=2
    )


@pytest.mark.parametrize("size", [12, 15, 16, 30])
def test_what_is_advised_can_be_set(size: int) -> None:
    text = str(out_of_memory_error("left", 0, size, 1, "cpu", World()))
    more = int(text.split("accumulate=")[1].split(",")[0])
    assert size % more == 0 and size // more >= 2
    assert not [number for number in range(2, more) if size % number == 0]


class TestTrials:
    """Before the first step, where other ways to execute it are tried."""

    @staticmethod
    def fail(monkeypatch: pytest.MonkeyPatch) -> None:
        def select(*_: Any) -> None:
            raise ERRORS[0]

        monkeypatch.setattr("compatkit.training.execution_selection._select", select)

    def test_steps_that_fit_stay_eager(self, monkeypatch: pytest.MonkeyPatch) -> None:
        plain = quick(steps=1).fit([task()])
        self.fail(monkeypatch)
        fit = quick(steps=1).fit([task()])
        reason = "the memory does not suffice to try another mode"
        assert fit.run["environment"]["execution"] == {"mode": "eager", "reason": reason}
        assert same_parts(fit, plain)

    def test_steps_that_do_not_fit_are_told(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fail(monkeypatch)
        small = Small(5, ERRORS[0])
        small.begun = {"count": torch.tensor(0)}
        assert "in step 0 with a batch of 16 images" in failure(small)


def test_other_errors_stay_what_they_are() -> None:
    with pytest.raises(RuntimeError, match="another matter"):
        quick(steps=2).fit([task()], ["x"], factories={"x": lambda: Small(1, RuntimeError("another matter"))})


def test_images_that_find_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any) -> None:
        raise ERRORS[0]

    monkeypatch.setattr("compatkit.training.batches.stored._stored", full)
    with pytest.raises(
        EnvironmentFailure,
        match=r"The memory of cpu is too small for the training images of task 'left' \(\d+ of 16x16 pixels, "
        r".* MiB\): CUDA out of memory.*Use Trainer\(image_storage='prefetched'\)",
    ):
        quick(steps=1).fit([task()])


def test_an_evaluation_that_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any, **kwargs: Any) -> None:
        raise ERRORS[0]

    monkeypatch.setattr("compatkit.training.evaluating.normalize", full)
    with pytest.raises(
        EnvironmentFailure,
        match=r"The evaluation on the test images after step 1, 8 in a batch, ran out of memory on cpu: "
        r"CUDA out of memory.*or accumulate=2",
    ):
        quick(steps=2, batch_size=8, evaluate_every=1, evaluate_on="test").fit([task()])

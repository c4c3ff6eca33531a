"""Out of memory, with a stand-in that holds so many images: whose step, which batch, what would fit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import attrs
import pytest
import torch
from small import data_set, quick, same_parts

import compatkit as ck
from compatkit.errors import EnvironmentFailure


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
            setup.tasks["left"].head.register_forward_pre_hook(lambda _, given: self.check(len(given[0])))

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
    said = failure(small)
    assert "Task 'left' ran out of memory on 'cpu' in step 1 with a batch of 16 images." in said
    assert "Forward and backward pass of 4 images fit" in said
    assert "set accumulate=4, which sees the same images a step, or batch_size=4." in said
    assert small.tried == [16, 8, 4]


def test_trying_changes_nothing() -> None:
    """Weights and the plugin's own state as after the last step; no gradient stays.

    Running statistics of the step that failed had moved already; the tries add nothing to them.
    """
    small = Small(2, ERRORS[0])
    seen: list[dict[str, torch.Tensor]] = []
    small.error = ERRORS[0]
    check = small.check

    def noting(images: int) -> None:
        if small.begun and not seen:
            seen.append({name: value.clone() for name, value in small.network.state_dict().items()})
        check(images)

    small.check = noting  # type: ignore[method-assign]
    failure(small)
    after = small.network.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in seen[0].items())
    assert all(torch.equal(value, small.begun[name]) for name, value in small.network.named_parameters())
    assert all(one.grad is None for one in small.network.parameters())
    assert small.count == int(small.begun["count"])


def test_pieces_are_cut_further() -> None:
    said = failure(Small(2, ERRORS[0]), accumulate=2)
    assert "with a batch of 16 images in 2 pieces of 8." in said
    assert "accumulate=8" in said and "or batch_size=4." in said


def test_nothing_fits() -> None:
    assert "Not even 2 images fit: use smaller images (Task.size), a smaller network" in failure(
        Small(1, ERRORS[0])
    )


class TestTrials:
    """Before the first step, where other ways to execute it are tried."""

    @staticmethod
    def fail(monkeypatch: pytest.MonkeyPatch) -> None:
        def settle(*_: Any, **__: Any) -> None:
            raise ERRORS[0]

        monkeypatch.setattr("compatkit.training.prepare.settle", settle)

    def test_steps_that_fit_stay_eager(self, monkeypatch: pytest.MonkeyPatch) -> None:
        plain = quick(steps=1).fit([task()])
        self.fail(monkeypatch)
        fit = quick(steps=1).fit([task()])
        reason = "there is no memory left to try another way"
        assert fit.run["environment"]["execution"] == {"mode": "eager", "reason": reason}
        assert same_parts(fit, plain)

    def test_steps_that_do_not_fit_are_told(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fail(monkeypatch)
        small = Small(5, ERRORS[0])
        small.begun = {"count": torch.tensor(0)}
        assert "in step 0 with a batch of 16 images" in failure(small)


def test_a_loader_is_not_asked_again() -> None:
    """What fits is found with noise of its shape: a loader does not go back."""
    given: list[int] = []

    class Loader:
        def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
            for number in range(3):
                given.append(number)
                yield torch.zeros(16, 1, 16, 16), torch.arange(16) % 3

    small = Small(5, ERRORS[0])
    with pytest.raises(EnvironmentFailure, match="Forward and backward pass of 4 images fit"):
        quick(steps=3, batch_size=16).fit(
            [attrs.evolve(task(), loader=Loader())], ["x"], factories={"x": lambda: small}
        )
    assert given == [0, 1, 2]  # two steps, and one to know where the pass ends


def test_other_errors_stay_what_they_are() -> None:
    with pytest.raises(RuntimeError, match="another matter"):
        quick(steps=2).fit([task()], ["x"], factories={"x": lambda: Small(1, RuntimeError("another matter"))})


def test_images_that_find_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: Any) -> None:
        raise ERRORS[0]

    monkeypatch.setattr("compatkit.training.batches.stored._stored", full)
    with pytest.raises(
        EnvironmentFailure,
        match=r"The memory of cpu does not hold the training images of task 'left' \(\d+ of 16x16 pixels, "
        r".* MiB as bytes\): CUDA out of memory.*Use Trainer\(images='prefetched'\)",
    ):
        quick(steps=1).fit([task()])


def test_an_evaluation_that_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*given: Any, **named: Any) -> None:
        raise ERRORS[0]

    monkeypatch.setattr("compatkit.training.evaluating.normalise", full)
    with pytest.raises(
        EnvironmentFailure,
        match=r"After step 1 the memory of cpu does not hold an evaluation on the test images, 8 in a batch, beside "
        r"the run: CUDA out of memory.*or accumulate=2",
    ):
        quick(steps=2, batch_size=8, evaluate_every=1, evaluate_on="test").fit([task()])

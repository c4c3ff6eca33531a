"""A step's batch in pieces: the gradients of the whole batch, the same images, losses of the whole, resume bitwise."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from small import data_set, grouped, quick, same_parts

import compatkit as ck
from compatkit.errors import UsageError
from compatkit.evaluation.preprocessing import normalize, prepare
from compatkit.training import objective
from compatkit.training.batches.stored import Sampler
from compatkit.training.networks import prepare_task
from compatkit.training.precision import Precision

STEPS = 3


class Energy:
    """Adds a term, and notes what it sees."""

    def __init__(self) -> None:
        self.images: list[torch.Tensor] = []

    @ck.hookimpl
    def compatkit_losses(self, step: ck.Step) -> Mapping[str, torch.Tensor]:
        self.images.append(step.batch.index)
        return {"energy": step.features.square().mean()}  # type: ignore[union-attr]


def fit(**settings: Any) -> tuple[ck.Fit, Energy]:
    made = Energy()
    uses = [ck.use("energy", weight=0.5), "rotation_prediction"]
    trainer = quick(steps=STEPS, schedule="constant", **settings)
    return trainer.fit([grouped()], uses, factories={"energy": lambda: made}), made


def test_pieces_give_the_gradients_of_the_whole_batch() -> None:
    """Weights after steps of SGD, which is linear in the gradients."""
    settings = {"optimizer": "sgd", "lr": 0.1}
    (whole, seen), (pieces, seen_in_pieces) = fit(**settings), fit(accumulate=4, **settings)
    for mine, other in zip(whole.network("a").parameters(), pieces.network("a").parameters(), strict=True):
        torch.testing.assert_close(other, mine, rtol=1e-5, atol=1e-5)
    assert [len(image) for image in seen_in_pieces.images] == [2] * (4 * STEPS)
    assert torch.equal(torch.cat(seen.images), torch.cat(seen_in_pieces.images))
    for left, right in zip(whole.history, pieces.history, strict=True):
        assert right["losses"] == pytest.approx(left["losses"], rel=1e-5)
    assert pieces.run["trainer"]["accumulate"] == 4 and "accumulate" not in whole.run["trainer"]


def test_pieces_equal_a_hand_written_loop_bitwise() -> None:
    trained = quick(steps=STEPS, accumulate=2, schedule="constant").fit([grouped()])
    task = grouped()
    state = prepare_task(task, 0, Precision("cpu", "float32", True))
    network = torch.nn.Sequential(state.extractor, state.head).train()
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01, weight_decay=1e-7, fused=True)
    examples, order = prepare(task.data.train, state.data), Sampler(48, 8, 0, task.name)
    for step in range(STEPS):
        for index in order.at(step).chunk(2):
            images = normalize(examples.images[index], state.data)
            images = images.contiguous(memory_format=torch.channels_last)
            (F.cross_entropy(network(images), examples.labels[index]) / 2).backward()
        optimizer.step()
        optimizer.zero_grad()
    got = trained.network("a").state_dict()
    assert all(torch.equal(value, got[key]) for key, value in network.state_dict().items())


def test_every_piece_draws_numbers_of_its_own_and_a_resumed_run_the_same_again(tmp_path: Path) -> None:
    seen: list[torch.Tensor] = []

    class Drawing:
        @ck.hookimpl
        def compatkit_losses(self, step: ck.Step) -> Mapping[str, torch.Tensor]:
            drawn = torch.stack([torch.rand(()), torch.rand((), generator=step.rng("drawing"))])
            seen.append(drawn)
            return {"drawn": step.features.mean() * drawn.sum()}  # type: ignore[union-attr]

        @ck.hookimpl
        def compatkit_after_step(self, step: ck.Step) -> None:
            if len(seen) == stop:
                raise KeyboardInterrupt

    def run(**settings: Any) -> ck.Fit:
        trainer = quick(steps=4, accumulate=2, batch_size=4, **settings)
        return trainer.fit([grouped(augment=["crop"])], ["drawing"], factories={"drawing": Drawing})

    stop = 0
    whole = run()
    assert len({float(number) for drawn in seen for number in drawn}) == 16
    stop, seen[:] = 6, []
    saved: dict[str, Any] = {"checkpoint": tmp_path / "run.safetensors", "checkpoint_every": 1}
    with pytest.raises(KeyboardInterrupt):
        run(**saved)
    stop = 0
    resumed = run(**saved)
    assert same_parts(whole, resumed) and whole.history == resumed.history


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        (3, "batch_size=8 cannot be divided into accumulate=3 micro-batches"),
        (8, "accumulate=8 leaves 1 image per micro-batch.*Set accumulate to 4 or less"),
    ],
)
def test_pieces_that_a_batch_does_not_make(pieces: int, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        quick(steps=1, accumulate=pieces)


def test_pieces_of_a_compiled_step_are_those_of_an_eager_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """With clipping and averages; the compiler only traces."""
    monkeypatch.setattr(objective, "BACKEND", "eager")
    settings: dict[str, Any] = {"accumulate": 2, "clip_norm": 0.5, "ema": 0.5}
    task = ck.Task("a", data_set("a"), "resnet8_cifar", "layer2", size=16)
    eager, compiled = (quick(steps=2, execution=how, **settings).fit([task]) for how in ("eager", "compile"))
    assert compiled.run["environment"]["execution"]["mode"] == "compile"
    for left, right in zip(eager.history, compiled.history, strict=True):
        assert right["losses"] == pytest.approx(left["losses"], rel=1e-4)
    for key, value in eager.averaged().weights("a").items():
        torch.testing.assert_close(compiled.averaged().weights("a")[key], value, rtol=1e-4, atol=1e-4)

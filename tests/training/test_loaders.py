"""Batches from a user's loader: what comes, what is refused, and what a run that goes on sees."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small import data_set, quick
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, TensorDataset

import compatkit as ck
from compatkit.contracts.contract import Data
from compatkit.errors import DataError, TrainingError, UsageError
from compatkit.evaluation.preprocessing import normalize
from compatkit.training.batches.loaders import Streamed
from compatkit.training.precision import Precision

pytestmark = pytest.mark.filterwarnings("ignore:The images of the loader")
"""Numbers that say which image they are."""

DATA = Data((4, 4), "L", (0.5,), (0.25,), "bilinear", tuple(ck.label(name) for name in "abc"))


class Noisy(Dataset[Any]):
    """Draws from all global generators, as augmentation does."""

    def __len__(self) -> int:
        return 11

    def __getitem__(self, place: int) -> tuple[torch.Tensor, int]:
        drawn = torch.rand(1, 4, 4) + float(np.random.rand()) + random.random()
        return drawn + place, place % 3


def streamed(loader: Any, batch_size: int = 4, seed: int = 0) -> Streamed:
    return Streamed(loader, DATA, "a", seed, batch_size, Precision("cpu", "float32", False))


def fixed(count: int = 11, **settings: Any) -> DataLoader[Any]:
    images = torch.arange(count * 16, dtype=torch.float32).view(count, 1, 4, 4)
    return DataLoader(TensorDataset(images, torch.arange(count) % 3), batch_size=4, **settings)


def test_passes_follow_each_other_without_their_incomplete_batch() -> None:
    source = streamed(fixed())
    for step in range(5):
        batch = source.batch(step)
        place = step % 2 * 4
        assert batch.images[:, 0, 0, 0].tolist() == [16.0 * (place + number) for number in range(4)]
        assert batch.labels.tolist() == [(place + number) % 3 for number in range(4)]
        assert batch.index.tolist() == [place + number for number in range(4)]
        assert source.ends_epoch(step) == (step % 2 == 1)


def test_bytes_are_normalized_here_and_numbers_are_taken_as_they_are() -> None:
    pixels = torch.randint(0, 256, (4, 1, 4, 4), dtype=torch.uint8)
    labels = torch.zeros(4, dtype=torch.int32)
    batch = streamed([(pixels, labels)]).batch(0)
    assert torch.equal(batch.images, normalize(pixels, DATA))
    assert batch.labels.dtype == torch.int64
    numbers = torch.randn(4, 1, 4, 4, dtype=torch.float64)
    assert torch.equal(streamed([[numbers, labels]]).batch(0).images, numbers.float())


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("start", [1, 2, 5])
def test_a_run_that_goes_on_sees_what_an_undisturbed_one_sees(workers: int, start: int) -> None:
    def loader() -> DataLoader[Any]:
        return DataLoader(Noisy(), batch_size=4, shuffle=True, num_workers=workers)

    whole = streamed(loader())
    batches = [whole.batch(step) for step in range(start + 2)]
    whole.close()
    torch.manual_seed(99)
    later = streamed(loader())
    later.resume_at(start)
    for step in (start, start + 1):
        assert torch.equal(later.batch(step).images, batches[step].images)
    later.close()
    assert not torch.equal(batches[0].images, streamed(loader(), seed=1).batch(0).images)


def test_generators_of_the_loader_are_seeded_and_global_ones_given_back() -> None:
    inputs = torch.Generator()
    loader = DataLoader(Noisy(), batch_size=4, shuffle=True, generator=inputs)
    _seed_all(3)
    expected = torch.rand(1), np.random.rand(), random.random()
    _seed_all(3)
    first = streamed(loader).batch(0)
    assert (torch.rand(1), np.random.rand(), random.random()) == expected
    inputs.manual_seed(1234)
    assert torch.equal(first.images, streamed(loader).batch(0).images)


def _seed_all(seed: int) -> None:
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        for place in range(11):
            yield torch.full((1, 4, 4), float(place)), place % 3


class Plain:
    """Can be iterated more than once, and says how long it is."""

    def __iter__(self) -> Iterator[Any]:
        return iter(fixed())

    def __len__(self) -> int:
        return 2


@pytest.mark.parametrize(
    ("loader", "reason"),
    [
        (DataLoader(Stream(), batch_size=4), "it has no length"),
        (Plain(), "it is not a torch DataLoader"),
        (DataLoader(Noisy(), batch_size=4, num_workers=1, persistent_workers=True), "its workers persist"),
    ],
    ids=["stream", "plain", "persistent"],
)
def test_what_cannot_be_repeated_trains_but_does_not_go_on(loader: Any, reason: str) -> None:
    source = streamed(loader)
    with pytest.raises(TrainingError, match=rf"cannot resume at step 3.*task 'a'.*{reason}"):
        source.resume_at(3)
    assert "a run cannot resume in the middle of a pass" in source.describe()


def test_a_pass_that_was_seen_whole_is_no_obstacle() -> None:
    source = streamed(Plain())
    source.resume_at(2)
    assert source.batch(2).index.tolist() == [0, 1, 2, 3]


def test_the_end_of_a_stream_without_a_length_is_seen() -> None:
    source = streamed(DataLoader(Stream(), batch_size=4))
    ends = []
    for step in range(4):
        source.batch(step)
        ends.append(source.ends_epoch(step))
    assert ends == [False, True, False, True]


IMAGES, LABELS = torch.zeros(4, 1, 4, 4), torch.zeros(4, dtype=torch.int64)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"images": IMAGES}, r"a batch that is a dict. Give \(images, labels\)"),
        ((IMAGES, [0, 1, 2, 0]), "a batch that is a tuple. Give"),
        (
            (torch.zeros(4, 3, 4, 4), LABELS),
            r"images of shape \(4, 3, 4, 4\). The task takes \(batch, 1, 4, 4\)",
        ),
        ((IMAGES.long(), LABELS), "images of type torch.int64"),
        ((IMAGES, LABELS[:3]), r"labels of shape \(3,\) and type torch.int64 with 4 images"),
        ((IMAGES, LABELS.float()), "type torch.float32"),
        ((IMAGES, LABELS.bool()), "type torch.bool"),
        ((torch.zeros(4, 4, 4, 1), LABELS), "move channels first"),
        (
            (torch.zeros(5, 1, 4, 4), torch.zeros(5, dtype=torch.int64)),
            "5 images in a batch. The trainer's batch_size",
        ),
        ((IMAGES, LABELS + 3), "labels from 3 to 3. The task's data has 3 classes"),
        ((IMAGES, LABELS - 1), "labels from -1 to -1"),
    ],
)
def test_what_a_task_cannot_take_is_named(value: Any, message: str) -> None:
    with pytest.raises(DataError, match=f"The loader of task 'a' gave .*{message}"):
        streamed([value]).batch(0)


def test_a_loader_that_gives_nothing_or_less_than_it_says_is_named() -> None:
    with pytest.raises(DataError, match="gave no full batch of 4 images in a pass"):
        streamed([]).batch(0)
    with pytest.raises(DataError, match="gave no full batch of 20 images"):
        streamed(fixed(), batch_size=20).batch(0)

    class Short(Sampler[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(range(4))

        def __len__(self) -> int:
            return 12

    with pytest.raises(DataError, match="has a length of 3 batches and gave only 2"):
        streamed(fixed(12, sampler=Short())).resume_at(2)


def test_loaders_that_a_task_cannot_have_are_refused() -> None:
    data = data_set("a")
    with pytest.raises(UsageError, match=r"task 'a' must be a DataLoader.*got list_iterator"):
        ck.Task("a", data, "resnet8_cifar", "layer2", loader=iter([]))
    with pytest.raises(UsageError, match=r"has a loader, whose images are not augmented"):
        ck.Task("a", data, "resnet8_cifar", "layer2", loader=[], augment=("flip",))
    task = ck.Task("a", data, "resnet8_cifar", "layer2", loader=fixed())
    with pytest.raises(UsageError, match=r"Task 'a' has a loader.*cannot be resident"):
        quick(steps=1, image_storage="resident").fit([task])
    with pytest.raises(UsageError, match=r"Task 'a' has a loader, from which no images can be held out"):
        quick(steps=1, validation=0.25).fit([task])


def loaded(seed: int = 0) -> ck.Task:
    """A task whose loader shuffles and draws noise."""
    data = data_set("a", size=(16, 16))

    class Images(Dataset[Any]):
        def __len__(self) -> int:
            return len(data.train)

        def __getitem__(self, place: int) -> tuple[torch.Tensor, int]:
            image = torch.from_numpy(data.train.images[place]).permute(2, 0, 1).float() / 128 - 1
            return image + 0.1 * torch.randn(image.shape), int(data.train.labels[place])

    loader = DataLoader(Images(), batch_size=8, shuffle=True)
    return ck.Task("a", data, "resnet8_cifar", "layer2", size=16, loader=loader)


def test_a_killed_run_with_a_loader_goes_on_bit_by_bit(tmp_path: Path) -> None:
    """In the middle of the second pass; six batches are a pass."""
    whole = quick(steps=10).fit([loaded()])

    class Stop:
        @ck.hookimpl
        def compatkit_after_step(self, step: ck.Step) -> None:
            if step.number == self.last:
                raise KeyboardInterrupt

        last = 8

    class Idle(Stop):
        last = -1

    settings = {"steps": 10, "checkpoint": tmp_path / "run", "checkpoint_every": 4}
    with pytest.raises(KeyboardInterrupt):
        quick(**settings).fit([loaded()], ["stop"], factories={"stop": Stop})
    later = quick(**settings).fit([loaded()], ["stop"], factories={"stop": Idle})
    assert all(torch.equal(weight, later.weights("a")[name]) for name, weight in whole.weights("a").items())
    assert whole.history == later.history

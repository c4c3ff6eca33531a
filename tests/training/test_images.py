"""How images get to the device: every batch against a slow walk over single images, wherever the images are kept."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from small import data_set, quick
from torch import Tensor

import compatkit as ck
from compatkit.contracts.contract import Data
from compatkit.data.dataset import Split
from compatkit.errors import DataError, UsageError
from compatkit.training.batches.sampler import PADDING, Augmentation, Sampler, StoreGrid, index_tables
from compatkit.training.batches.stored import Prefetched, Resident
from compatkit.training.precision import Precision
from compatkit.training.randomness import generator

MEAN, STD = (0.2, 0.4, 0.6), (0.3, 0.25, 0.2)
KINDS = {"resident": Resident, "prefetched": Prefetched}


def split(count: int, height: int, width: int, channels: int) -> Split:
    """Noise: every pixel tells its image, row, column and channel."""
    pixels = np.random.default_rng(7).integers(0, 256, (count, height, width, channels), dtype=np.uint8)
    return Split(pixels, np.arange(count) % 3, ("0", "1", "2"), "noise/train")


def source(
    kind: str, images: Split, names: tuple[str, ...], batch: int, *, channels_last: bool = True
) -> Any:
    height, width = images.size
    count = images.images.shape[3]
    data = Data((height, width), "L" if count == 1 else "RGB", MEAN[:count], STD[:count], "bilinear", ())
    order, precision = Sampler(len(images), batch, 5, "a"), Precision("cpu", "float32", channels_last)
    return KINDS[kind](images, data, order, Augmentation(names, 5, "a"), precision)


def expected(
    images: Split, names: tuple[str, ...], batch: int, step: int, turns: int
) -> tuple[Any, Any, Any]:
    """Return views (float64), labels and positions of a batch, image by image, from the draws of its epoch."""
    count = len(images) // batch * batch
    epoch, number = divmod(step, len(images) // batch)
    order = torch.randperm(len(images), generator=generator(5, "order", "a", epoch))
    draw = generator(5, "augment", "a", "crop", epoch)
    shifts = torch.randint(-PADDING, PADDING + 1, (2, count), generator=draw)
    flips = torch.randint(0, 2, (count,), generator=generator(5, "augment", "a", "flip", epoch))
    places = range(number * batch, (number + 1) * batch)
    views = [
        [_view(images, names, order, shifts, flips, place, turn) for place in places] for turn in range(turns)
    ]
    chosen = order[places.start : places.stop]
    return np.concatenate(views), images.labels[chosen.numpy()], chosen.numpy()


def _view(
    images: Split, names: Any, order: Tensor, shifts: Tensor, flips: Tensor, place: int, turn: int
) -> Any:
    pixels = images.images[int(order[place])]
    image = Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels)
    if "crop" in names:
        down, right = (PADDING + int(shift) for shift in shifts[:, place])
        wide = ImageOps.expand(image, PADDING, 0)
        image = wide.crop((right, down, right + image.width, down + image.height))
    if "flip" in names and flips[place]:
        image = ImageOps.mirror(image)
    image = image.rotate(90 * turn, expand=True)
    values = np.asarray(image).reshape(image.height, image.width, -1).astype(np.float64) / 255
    return ((values - MEAN[: values.shape[2]]) / STD[: values.shape[2]]).transpose(2, 0, 1)


def turned(images: Tensor) -> list[Tensor]:
    return [torch.rot90(images, turn, (-2, -1)) for turn in (1, 2, 3)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("names", [(), ("crop",), ("flip",), ("crop", "flip")])
@pytest.mark.parametrize(("size", "channels"), [((6, 9), 3), ((5, 5), 1), ((1, 1), 3), ((3, 1), 1)])
def test_a_batch_equals_a_walk_over_single_images(
    kind: str, names: tuple[str, ...], size: tuple[int, int], channels: int
) -> None:
    """Also for images that are smaller than the padding; over two epochs, with an incomplete batch left out."""
    images = split(11, *size, channels)
    inputs = source(kind, images, names, 4)
    for step in range(4):
        batch = inputs.batch(step)
        views, labels, index = expected(images, names, 4, step, 1)
        np.testing.assert_allclose(batch.images.numpy(), views, atol=1e-6)
        assert np.array_equal(batch.labels.numpy(), labels)
        assert np.array_equal(batch.index.numpy(), index)
        assert inputs.ends_epoch(step) == (step % 2 == 1)
        assert batch.stacked is None
    inputs.close()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("names", [(), ("crop", "flip")])
@pytest.mark.parametrize("channels_last", [True, False])
def test_views_are_gathered_with_the_images(kind: str, names: tuple[str, ...], channels_last: bool) -> None:
    images = split(8, 6, 6, 3)
    inputs = source(kind, images, names, 4, channels_last=channels_last)
    inputs.arrange(turned)
    batch = inputs.batch(1)
    views, labels, _ = expected(images, names, 4, 1, 4)
    np.testing.assert_allclose(batch.stacked.numpy(), views, atol=1e-6)
    assert np.array_equal(batch.labels.numpy(), labels)
    assert batch.images.data_ptr() == batch.stacked.data_ptr()
    assert torch.equal(batch.images, batch.stacked[:4])
    layout = torch.channels_last if channels_last else torch.contiguous_format
    assert batch.stacked.is_contiguous(memory_format=layout)
    # Turning before or after the normalization gives the same bits.
    apart = source(kind, images, names, 4, channels_last=channels_last).batch(1)
    assert torch.equal(batch.stacked, torch.cat([apart.images, *turned(apart.images)]))
    inputs.arrange(None)
    assert inputs.batch(1).stacked is None


@pytest.mark.parametrize("names", [(), ("crop",), ("crop", "flip")])
def test_prefetched_batches_are_bitwise_resident_ones_in_any_order_of_steps(names: tuple[str, ...]) -> None:
    images = split(20, 7, 5, 3)
    first, other = (source(kind, images, names, 6) for kind in KINDS)
    for step in (0, 1, 2, 3, 4, 9, 10, 2, 3, 100):
        left, right = first.batch(step), other.batch(step)
        for what in ("images", "labels", "index"):
            assert torch.equal(getattr(left, what), getattr(right, what)), (step, what)
    other.close()


def test_a_batch_depends_on_its_step_alone() -> None:
    images = split(10, 4, 4, 1)
    walked = [source("resident", images, ("crop", "flip"), 3).batch(step).images for step in range(9)]
    for step in (8, 2, 5):
        assert torch.equal(source("resident", images, ("crop", "flip"), 3).batch(step).images, walked[step])


def test_a_batch_of_the_whole_set_is_an_epoch() -> None:
    images = split(6, 4, 4, 1)
    inputs = source("resident", images, (), 6)
    for step in range(3):
        assert sorted(inputs.batch(step).index.tolist()) == list(range(6))
        assert inputs.ends_epoch(step)


def test_every_epoch_shows_each_image_once_in_a_new_order() -> None:
    order = Sampler(count=12, batch_size=4, seed=3, task="a")
    first = torch.cat([order.at(step) for step in range(3)])
    second = torch.cat([order.at(step) for step in range(3, 6)])
    assert sorted(first.tolist()) == sorted(second.tolist()) == list(range(12))
    assert first.tolist() != second.tolist()


def test_the_order_at_a_step_does_not_depend_on_how_one_got_there() -> None:
    walked = Sampler(count=10, batch_size=3, seed=0, task="a")
    steps = [walked.at(step).tolist() for step in range(9)]
    for step in (8, 2, 5):
        assert Sampler(count=10, batch_size=3, seed=0, task="a").at(step).tolist() == steps[step]


def test_crops_and_flips_are_streams_of_their_own() -> None:
    """Leaving out one does not change the other, and every shift and both sides come up."""
    grid, both = StoreGrid(8, 8, PADDING), Augmentation(("crop", "flip"), 0, "a")
    moved, mirrored = both.crop_offsets(0, 4000, grid), both.flip_flags(0, 4000)
    assert moved is not None and mirrored is not None
    assert torch.equal(moved, Augmentation(("crop",), 0, "a").crop_offsets(0, 4000, grid))  # type: ignore[arg-type]
    assert torch.equal(mirrored, Augmentation(("flip",), 0, "a").flip_flags(0, 4000))  # type: ignore[arg-type]
    assert len(moved.unique()) == (2 * PADDING + 1) ** 2
    assert 0.45 < float(mirrored.float().mean()) < 0.55
    assert not torch.equal(moved, both.crop_offsets(1, 4000, grid))  # type: ignore[arg-type]
    assert both.flip_flags(0, 0) is not None and Augmentation((), 0, "a").flip_flags(0, 5) is None


@pytest.mark.parametrize(
    "further",
    [lambda images: [images[..., :-1]], lambda images: [images + 1000], lambda images: [images.float()]],
    ids=["smaller", "other values", "other type"],
)
def test_views_that_do_more_than_move_pixels_are_refused(further: Any) -> None:
    with pytest.raises(UsageError, match=r"Extra view 1 of images of 3 x 4.*only permute pixels"):
        index_tables(StoreGrid(3, 4), further)


def test_a_set_smaller_than_a_batch_is_refused() -> None:
    with pytest.raises(DataError, match=r"Task 'a' has 48 training images, fewer than a batch of 49"):
        quick(steps=1, batch_size=49).fit([ck.Task("a", data_set("a"), "resnet8_cifar", "layer2")])


def test_what_cannot_be_augmented_or_placed_is_named() -> None:
    with pytest.raises(UsageError, match=r"Task.augment expects crop and flip") as caught:
        ck.Task("a", data_set("a"), "resnet8_cifar", "layer2", augment=("crop", "turn"))
    assert caught.value.subject == "turn"
    for words in (
        "rand-m9-mstd0.5-inc1",
        "augmix-m5-w4-d2",
        "original",
        "originalr-mstd0.5",
        "v0",
        "v0r",
        "3a",
    ):
        with pytest.raises(UsageError) as caught:
            ck.Task("a", data_set("a"), "resnet8_cifar", "layer2", augment=words)
        assert f"Got {words!r}." in str(caught.value)
        suggested = tomllib.loads(re.findall(r"augment = \{.*?\}", str(caught.value))[0])
        assert suggested == {"augment": {"auto_augment": words}}
        ck.Task("a", data_set("a"), "resnet8_cifar", "layer2", **suggested)
    with pytest.raises(
        UsageError, match="'image_storage' must be one of auto, resident, prefetched; got 'elsewhere'"
    ):
        quick(steps=1, image_storage="elsewhere")
    with pytest.raises(UsageError, match="'memory_share' must be a number from 0 to 1; got 2"):
        quick(steps=1, memory_share=2)


def test_where_images_are_kept_changes_nothing_of_a_run() -> None:
    task = ck.Task("a", data_set("a"), "resnet8_cifar", "layer2", size=16, augment=("crop", "flip"))
    fits = [quick(steps=8, image_storage=where).fit([task]) for where in ("auto", "resident", "prefetched")]
    assert fits[0].history == fits[1].history == fits[2].history
    assert fits[0].plan == fits[2].plan
    assert all(
        torch.equal(weight, fits[2].weights("a")[name]) for name, weight in fits[0].weights("a").items()
    )


def test_sources_say_where_the_images_are() -> None:
    images = split(11, 8, 8, 3)
    assert source("resident", images, ("crop",), 4).describe() == (
        "11 images on cpu (0.0 MiB as bytes), crop: one gather a batch"
    )
    assert source("prefetched", images, (), 4).describe() == (
        "11 images in host memory (as asked), no augmentation: a thread fetches batches for cpu while a step computes"
    )

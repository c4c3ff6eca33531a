"""Which images a bridge is fitted to, and which it is chosen by: never the same, whoever brings them, however often."""

from __future__ import annotations

import attrs
import numpy as np
import pytest
import torch
from bridged import between, climb, images, part

from compatkit.components.bridges.splits import duplicates_note, shuffled_unique, split_labeled
from compatkit.data.split import Split
from compatkit.errors import DataError

PART = part("own", torch.eye(4))
LEFT = part("left", torch.eye(4).flip(0))


def many(data: Split, times: int) -> Split:
    """Return every image several times, each copy under a label of its own drawing."""
    labels = np.random.default_rng(0).integers(0, 3, times * len(data))
    return attrs.evolve(data, images=np.concatenate([data.images] * times), labels=labels)


def both(*splits: Split) -> set[bytes]:
    """Return the images that all of these hold."""
    return set.intersection(*(set(split.image_digests) for split in splits))


@pytest.mark.parametrize("on", ["dst", "mix"])
@pytest.mark.parametrize("count", [10, 30, 60])
def test_images_lent_by_the_head_are_never_those_that_are_chosen_by(on: str, count: int) -> None:
    data = images(60)
    made = between(LEFT, PART, data=data, max_images=count, on=on, head_data=data)
    assert len(made.held_out) == 30 and not both(made.held_out, made.pairs)
    assert len(made.pairs) == min(count, 30)


def test_images_lent_that_are_all_held_out_are_refused() -> None:
    made = between(LEFT, PART)
    with pytest.raises(DataError, match=r"0 of them different and not held out"):
        between(LEFT, PART, on="dst", head_data=made.held_out)


def test_copies_are_not_further_images() -> None:
    data = images(25)
    made = between(LEFT, PART, data=many(data, 12), max_images=1000)
    assert (len(made.held_out), len(made.fit)) == (12, 13) and not both(made.held_out, made.fit)
    assert (
        duplicates_note(many(data, 12))
        == "275 of the 300 images of rows/train are copies of others and are left out."
    )
    assert duplicates_note(data) == ""
    with pytest.raises(DataError, match="has 300 images, 10 of them different; a bridge needs at least 20"):
        between(LEFT, PART, data=many(images(10), 30))


def test_copies_of_labeled_images_are_not_trained_on_and_checked_by() -> None:
    made = between(LEFT, PART)
    used, targets, checks = split_labeled(many(images(40, seed=8), 5), made.head, made.held_out, made.seed)
    assert (len(used), len(targets), len(checks)) == (32, 32, 8) and not both(checks, made.held_out)
    with pytest.raises(
        DataError, match="has 60 labeled images, 6 of them different; training a bridge takes at least 10"
    ):
        climb(made, labels=many(images(6, seed=8), 10))


def test_without_copies_the_order_is_that_of_the_seed() -> None:
    data = images(40)
    assert shuffled_unique(data, 3).tolist() == np.random.default_rng(3).permutation(40).tolist()
    some = set(data.image_digests[:10])
    assert sorted(shuffled_unique(data, 3, some)) == list(range(10, 40))

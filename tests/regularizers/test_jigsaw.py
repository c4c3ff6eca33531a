"""Jigsaw puzzles: tiles moved exactly, permutations far apart, the loss over all of them."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from small import data_set, grouped, quick

import compatkit as ck
from compatkit.errors import PluginError
from compatkit.training.testing import assert_regularizer
from compatkit_plugins.regularizers.jigsaw import Jigsaw, far_apart, rearranged


def test_tiles_of_two_by_two_are_moved_by_hand() -> None:
    image = torch.arange(16).view(1, 1, 4, 4)
    view = rearranged(image, (1, 0, 3, 2), 2)
    assert view[0, 0].tolist() == [[2, 3, 0, 1], [6, 7, 4, 5], [10, 11, 8, 9], [14, 15, 12, 13]]
    assert torch.equal(rearranged(image, (0, 1, 2, 3), 2), image)
    assert image[0, 0, 0].tolist() == [0, 1, 2, 3]  # the image stays


def test_what_is_left_over_of_uneven_sides_stays_in_place() -> None:
    """Seven columns, three tiles: two a tile, half a pixel of the rest on the left, which rounds to none."""
    view = rearranged(torch.arange(21).view(1, 1, 3, 7), (2, 1, 0, 3, 4, 5, 8, 7, 6), 3)
    assert view[0, 0].tolist() == [
        [4, 5, 2, 3, 0, 1, 6],
        [7, 8, 9, 10, 11, 12, 13],
        [18, 19, 16, 17, 14, 15, 20],
    ]
    framed = rearranged(torch.arange(64).view(1, 8, 8), (8, 7, 6, 5, 4, 3, 2, 1, 0), 3)
    frame = torch.ones(8, 8, dtype=torch.bool)
    frame[1:7, 1:7] = False
    assert torch.equal(framed[0][frame], torch.arange(64).view(8, 8)[frame])
    assert framed[0, 1, 1:3].tolist() == [45, 46]


@pytest.mark.parametrize("grid", [2, 3])
def test_the_inverse_order_gives_the_images_back(grid: int) -> None:
    images = torch.randn(2, 3, 7, 8).contiguous(memory_format=torch.channels_last)
    order = far_apart(grid**2, 5)[-1]
    inverse = [order.index(place) for place in range(grid**2)]
    view = rearranged(images, order, grid)
    assert torch.equal(rearranged(view, inverse, grid), images)
    assert view.is_contiguous(memory_format=torch.channels_last)


def test_permutations_are_as_far_apart_as_can_be() -> None:
    """Four of four tiles differ everywhere; the greedy choice is that of a plain search."""
    assert far_apart(4, 4) == ((0, 1, 2, 3), (1, 0, 3, 2), (2, 3, 0, 1), (3, 2, 1, 0))
    everything = list(itertools.permutations(range(4)))

    def apart(item: tuple[int, ...], other: tuple[int, ...]) -> int:
        return sum(a != b for a, b in zip(item, other, strict=True))

    chosen = [everything[0]]
    while len(chosen) < 24:
        scores = [
            (min(apart(entry, other) for other in chosen), sum(apart(entry, other) for other in chosen))
            for entry in everything
        ]
        chosen.append(everything[scores.index(max(scores))])
    assert far_apart(4, 24) == tuple(chosen)
    assert sorted(chosen) == everything


def test_nine_tiles() -> None:
    result = far_apart(9, 9)
    assert len(set(result)) == 9 and result[0] == tuple(range(9))
    assert {sum(a != b for a, b in zip(x, y, strict=True)) for x, y in itertools.combinations(result, 2)} == {
        9
    }


@pytest.mark.parametrize(("grid", "permutations"), [(2, 4), (3, 3)])
def test_loss_is_the_mean_over_all_permutations_of_every_image(grid: int, permutations: int) -> None:
    """Against double precision, one image and one permutation at a time."""
    seen: list[float] = []

    class Reference:
        @ck.hookimpl
        def compatkit_set_up(self, setup: ck.SetUp) -> None:
            self.head = setup.auxiliary["jigsaw"]

        @ck.hookimpl
        def compatkit_losses(self, step: ck.Step) -> dict[str, torch.Tensor]:
            extractor, head = (
                copy.deepcopy(item).double() for item in (step.task.extractor, self.head.module)
            )
            losses = [
                F.cross_entropy(
                    head(extractor(rearranged(image[None].double(), order, grid))), torch.tensor([wanted])
                )
                for image in step.batch.images
                for wanted, order in enumerate(far_apart(grid**2, permutations))
            ]
            seen.append(float(torch.stack(losses).mean().detach()))
            return {}

    uses = [
        ck.use("jigsaw", grid=grid, permutations=permutations),
        ck.use("reference", after=("jigsaw",), before=()),
    ]
    fit = quick(steps=1).fit([grouped()], uses, factories={"reference": Reference})
    assert fit.history[0]["losses"]["jigsaw/loss"] == pytest.approx(seen[0], rel=1e-5)
    names = [label.name for label in fit.auxiliary["jigsaw"].labels or ()]
    assert names == ["tiles " + " ".join(map(str, entry)) for entry in far_apart(grid**2, permutations)]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"grid": 4}, "grid is 2 or 3 tiles a side, got 4"),
        ({"grid": True}, "the setting 'grid' is a whole number; got True"),
        ({"permutations": 1}, "grid of 2: 'permutations' must be a whole number from 2 to 24; got 1"),
        (
            {"permutations": 25},
            "grid of 2: 'permutations' must be a whole number from 2 to 24; got 25",
        ),
        (
            {"grid": 3, "permutations": 1001},
            "grid of 3: 'permutations' must be a whole number from 2 to 1,000; got 1001",
        ),
        ({"permutations": 2.0}, r"got 2\.0"),
    ],
)
def test_settings_that_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(PluginError, match=message):
        quick(steps=1).fit([grouped()], [ck.use("jigsaw", **settings)])


def test_images_too_small_for_tiles_and_frozen_heads_of_other_permutations_are_refused() -> None:
    small = ck.Task(
        "a", data_set("a"), "simple_cnn", "blocks", kwargs={"filters": 2, "units": 2}, size=(3, 8)
    )
    with pytest.raises(PluginError, match="at least 4 x 4 pixels for 2 tiles a side; task 'a' has 3 x 8"):
        quick(steps=1).fit([small], ["jigsaw"])
    first = quick(steps=1).fit([grouped()], ["jigsaw"])
    with pytest.raises(PluginError, match=r"has the classes \['tiles 0 1 2 3'.*Use the settings"):
        quick(steps=1).fit([grouped("b")], [ck.use("jigsaw", permutations=6)], frozen=first)


def test_conforms() -> None:
    assert_regularizer(Jigsaw, grid=3, permutations=5)

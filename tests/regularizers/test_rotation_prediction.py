"""Rotation prediction: exact views, the loss over all four, and what batch normalization does."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from small import data_set, quick

import compatkit as ck
from compatkit.errors import PluginError
from compatkit_plugins.regularizers.rotation_prediction import rotations


def test_views_are_exact_quarter_turns_counter_clockwise() -> None:
    image = torch.tensor([[[[1, 2], [3, 4]]]])
    views = [view[0, 0].tolist() for view in rotations(image)]
    assert views == [[[1, 2], [3, 4]], [[2, 4], [1, 3]], [[4, 3], [2, 1]], [[3, 1], [4, 2]]]


def test_four_quarter_turns_give_the_image_back() -> None:
    image = torch.randn(2, 3, 5, 5)
    turned = image
    for _ in range(4):
        turned = rotations(turned)[1]
    assert torch.equal(turned, image)


def test_flip_stands_for_the_half_turn_where_asked() -> None:
    image = torch.tensor([[[[1, 2], [3, 4]]]])
    assert rotations(image, "flip")[2][0, 0].tolist() == [[3, 4], [1, 2]]


@pytest.mark.parametrize("views", ["per_view", "mixed", "separate"])
def test_loss_is_the_mean_over_all_four_views_of_every_image(views: str) -> None:
    """A fixed extractor and head without batch normalization give the formula, whichever the passes."""
    fit_loss = _first_loss(views)
    assert fit_loss == pytest.approx(_first_loss("reference"), rel=1e-5)


def _first_loss(views: str) -> float:
    data = data_set("a", size=(8, 8))
    task = ck.Task(
        "a", data, "simple_cnn", "blocks", kwargs={"filters": 4, "convolutions": 1, "units": 8}, size=(8, 8)
    )
    if views != "reference":
        fit = quick(steps=1).fit([task], [ck.use("rotation_prediction", views=views)])
        return fit.history[0]["losses"]["rotation_prediction/loss"]
    seen: list[float] = []

    class Reference:
        @ck.hookimpl
        def compatkit_set_up(self, setup: ck.SetUp) -> None:
            self.head = setup.add_auxiliary_head("rotation", outputs=4)

        @ck.hookimpl
        def compatkit_losses(self, step: ck.Step) -> dict[str, torch.Tensor]:
            total = 0.0
            for turn in range(4):
                logits = self.head(step.task.extractor(torch.rot90(step.batch.images, turn, (-2, -1))))
                total += float(F.cross_entropy(logits, torch.full((logits.shape[0],), turn)).detach()) / 4
            seen.append(total)
            return {}

    quick(steps=1).fit([task], ["reference"], factories={"reference": Reference})
    return seen[0]


def test_images_that_are_not_square_are_refused() -> None:
    task = ck.Task("a", data_set("a"), "resnet8_cifar", "layer2", size=(32, 24))
    with pytest.raises(PluginError, match="square images; task 'a' has 32 x 24"):
        quick(steps=1).fit([task], ["rotation_prediction"])


def test_an_unknown_way_of_normalizing_views_is_refused() -> None:
    task = ck.Task("a", data_set("a"), "resnet8_cifar", "layer2")
    with pytest.raises(PluginError, match="views"):
        quick(steps=1).fit([task], [ck.use("rotation_prediction", views="together")])

"""Rotation prediction (RP): one shared head predicts by how much an image was turned, on all extractors.

Paper: Gygli, Uijlings, Ferrari (2021), "Towards Reusable Network Components by Learning Compatible
    Representations", Sec. 3.2; the task is Gidaris et al. (2018), arXiv:1803.07728.
Equations: 1/4 of the sum over r in {0, 90, 180, 270} degrees of CE(s(f_t(rot_r x)), r), all four rotations of
    every image; the target head sees upright images only.
Batch normalization: the paper does not say how the four views are batched. Views that are normalized apart leak the
    answer: the statistics of a batch of one angle encode it, so that even images that look the same at every angle are
    told apart (``views``). So all four go through extractor and head in one batch.
Cost: an extractor pass four times as large and four times the batch through one more head, a step.
Limits: it needs images with an upright side: on digits, several of which look alike upside down, it made nothing fit.
    On halves of CIFAR-10 its effect was two fifths of the paper's at weight 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import attrs
import torch
import torch.nn.functional as F
from torch import Tensor

from compatkit import AuxiliaryHead, Label, SetUp, Step, autocast, effect, hookimpl
from compatkit.errors import UsageError
from compatkit.foundation.limits import OneOf
from compatkit.hooks import Register

compatkit_api = 1
VIEWS = 4
HALF_TURNS = {"rotate": "180 degrees", "flip": "upside down"}


@hookimpl
def compatkit_regularizers(register: Register) -> None:
    """Offer ``rotation_prediction``."""
    register("rotation_prediction", RotationPrediction)


def rotations(images: Tensor, half_turn: Literal["rotate", "flip"] = "rotate") -> list[Tensor]:
    """Return the four views of every image, the upright one first.

    Args:
        images: ``(batch, channels, side, side)``.
        half_turn: View for 180 degrees: the rotation, or ``"flip"``, the image upside down, for digits, where half a
            turn makes a 9 of a 6.

    Returns:
        Four tensors of the shape of ``images``: 0, 90, 180 and 270 degrees counter-clockwise, exact.
    """
    half = images.flip(-2) if half_turn == "flip" else torch.rot90(images, 2, (-2, -1))
    return [images, torch.rot90(images, 1, (-2, -1)), half, torch.rot90(images, 3, (-2, -1))]


@attrs.define(eq=False)
class RotationPrediction:
    """Trains a shared head to predict rotations.

    Attributes:
        views: The images whose statistics batch normalization uses. ``"mixed"``: one pass of extractor and head over
            all four views together, which does not update the extractor's running statistics; the target head keeps its
            own pass over upright images, which does. The other two leak the angle through the statistics:
            ``"per_view"``: the extractor normalizes every view by itself, the upright one in the target head's pass,
            and the rotation head sees all four together; ``"separate"``: a pass of extractor and head for each view,
            each updating the running statistics.
        half_turn: ``"rotate"``, or ``"flip"`` for digits.
        like: The task whose head has the architecture of the shared head; None takes the first task's.
    """

    views: Literal["mixed", "per_view", "separate"] = attrs.field(
        default="mixed", validator=OneOf(("mixed", "per_view", "separate"))
    )
    half_turn: Literal["rotate", "flip"] = attrs.field(default="rotate", validator=OneOf(("rotate", "flip")))
    like: str | None = None
    _head: AuxiliaryHead = attrs.field(init=False)

    @hookimpl
    def compatkit_set_up(self, setup: SetUp) -> None:
        """Add the rotation head, or take the frozen one.

        Raises:
            UsageError: A task's images are not square.
        """
        for state in setup.tasks.values():
            height, width = state.data.size
            if height != width:
                raise UsageError(
                    f"rotation_prediction needs square images; task {state.name!r} has {height} x {width}. "
                    "Set Task.size."
                )
        names = ("0 degrees", "90 degrees", HALF_TURNS[self.half_turn], "270 degrees")
        classes = [Label(name) for name in names]
        self._head = setup.add_auxiliary_head("rotation", classes=classes, like=self.like)

    @hookimpl
    @effect("pure")
    def compatkit_further_views(self, images: Tensor) -> Sequence[Tensor]:
        """Return the three turned views for ``per_view``; the others make passes of their own."""
        return rotations(images, self.half_turn)[1:] if self.views == "per_view" else []

    @hookimpl
    @effect("pure")
    @autocast
    def compatkit_losses(self, step: Step) -> Mapping[str, Tensor]:
        """Return the mean cross-entropy over the four views of every image."""
        images = step.batch.images
        if self.views == "mixed":
            views = torch.cat(rotations(images, self.half_turn))
            logits = self._head(step.extract(views, write_statistics=False))
        elif self.views == "separate":
            turned = rotations(images, self.half_turn)[1:]
            passes = [step.features, *(step.extract(view, write_statistics=True) for view in turned)]
            logits = torch.cat([self._head(features) for features in passes])
        else:
            logits = self._head(torch.cat([step.features, *step.views]))
        targets = torch.arange(VIEWS, device=logits.device).repeat_interleave(len(images))
        return {"loss": F.cross_entropy(logits.float(), targets)}

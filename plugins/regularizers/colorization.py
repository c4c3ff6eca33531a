"""Colorization: one shared head predicts the colors of an image from its gray version, on all extractors.

Paper: Zhang, Isola, Efros (2016), "Colorful Image Colorization", arXiv:1603.08511, Sec. 2.1. Named as a task to try by
    Gygli et al. (2021), App. A.
Equations: Eq. 2 with one weight for all bins: minus the mean over all pixels of log q(bin of the pixel), where the bin
    is that of its chroma (a, b) in CIE Lab and q = softmax(s(window of f_t(gray x))) of the cell that it lies in.
Positions: the features are cut into a grid of windows, and the head, which has the shape of a target head like all
    shared heads, is applied to each of them: its outputs predict the cell of the image above the window. Any head that
    takes smaller maps can be used, without a network of its own; a head that pools over the whole image could not
    predict positions.
Differences: hard bins, of all pixels of a cell (the paper: soft ones at a quarter of the resolution); coarser bins; no
    weights for rare colors (Sec. 2.2), whose prior would differ in an incremental run; three equal channels of the
    same luminance are the input in place of L, so that the extractor is the one of the images.
Cost: one more extractor pass, and one head over the same features in smaller pieces, a step.
Limits: colored images only; gray ones are refused, even if stored as color. A head that needs maps of a fixed size
    takes ``cells=1`` only. Whether it makes parts fit was not measured.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import numpy as np
import torch
from torch import Tensor

from compatkit import AuxiliaryHead, Label, SetUp, Step, TaskState, autocast, effect, hookimpl
from compatkit.errors import CompatkitError, UsageError
from compatkit.foundation.limits import COUNT, Number
from compatkit.hooks import Register

from ._lab import Lookup, bins, lightness_and_chroma, without_colors

compatkit_api = 1
FINEST, COARSEST = 5, 50
"""Sides of a bin in units of a and b."""
AT_ONCE = 100
"""Images that are searched for colors at a time."""


@hookimpl
def compatkit_regularizers(register: Register) -> None:
    """Offer ``colorization``."""
    register("colorization", Colorization)


def windows(features: Tensor, cells: int) -> Tensor:
    """Return the windows of feature maps, ``(batch * cells * cells, channels, height / cells, width / cells)``.

    All windows of the first image row by row, then those of the second.

    Args:
        features: ``(batch, channels, height, width)``; both sides are multiples of ``cells``.
        cells: Windows along a side.

    Returns:
        In the type of ``features``.
    """
    last = features.permute(0, 2, 3, 1)  # what channels-last memory holds as it is
    parts = last.unflatten(2, (cells, -1)).unflatten(1, (cells, -1)).transpose(2, 3)
    return parts.flatten(0, 2).permute(0, 3, 1, 2)


def chroma_loss(logits: Tensor, numbers: Tensor, cells: int) -> Tensor:
    """Return the mean over all pixels of the cross-entropy of their bin, in nats.

    Args:
        logits: Logits of every cell, ``(batch * cells * cells, bins)``, in the order of ``windows``.
        numbers: Bin of every pixel, ``(batch, height, width)``. A pixel is in the cell that its middle lies in.
        cells: A side.

    Returns:
        A scalar.
    """
    height, width = numbers.shape[1:]
    rows, columns = (
        torch.arange(side, device=numbers.device)
        .mul(2)
        .add(1)
        .mul(cells)
        .div(2 * side, rounding_mode="floor")
        for side in (height, width)
    )
    index = (rows[:, None] * cells + columns) * logits.shape[1] + numbers
    scores = logits.float().log_softmax(1).reshape(len(numbers), -1)
    return -scores.gather(1, index.flatten(1)).mean()


@attrs.define(eq=False)
class Colorization:
    """Trains a shared head to predict the colors of gray images.

    The outputs of the head are named after the middles of the bins. The extractor normalizes gray images by their own
    statistics; its running statistics are those of the images in color.

    Attributes:
        cells: Windows a side into which the features are cut; 1 predicts the colors of the whole image.
        bin_size: Side of a bin in units of a and b, 5 to 50; the paper's is 10.

    Raises:
        UsageError: A setting outside its range.
    """

    cells: int = attrs.field(default=4, validator=COUNT)
    bin_size: int = attrs.field(default=20, validator=Number(least=FINEST, most=COARSEST, whole=True))
    _head: AuxiliaryHead = attrs.field(init=False)
    _lookup: Lookup = attrs.field(init=False)
    _scales: dict[str, tuple[Tensor, Tensor]] = attrs.field(factory=dict, init=False)

    @hookimpl
    def compatkit_set_up(self, setup: SetUp) -> None:
        """Add the head, or take the frozen one.

        Raises:
            UsageError: A task's images have no colors; its features cannot be cut into as many windows, or the head
                does not take them.
        """
        device = setup.precision.device
        for state in setup.tasks.values():
            _check_colors(state)
            self._check_features(state)
            mean, std = (torch.tensor(values, device=device) for values in (state.data.mean, state.data.std))
            self._scales[state.name] = mean, std
        names = [f"a {a} b {b}" for a, b in bins(self.bin_size)]
        self._head = setup.add_auxiliary_head("colorization", classes=[Label(name) for name in names])
        self._check_head(self._head, next(iter(setup.tasks.values())), device)
        self._lookup = Lookup.of(self.bin_size, device)

    @hookimpl
    @effect("pure")
    @autocast
    def compatkit_losses(self, step: Step) -> Mapping[str, Tensor]:
        """Return the mean cross-entropy of the bins of all pixels."""
        mean, std = self._scales[step.task.name]
        last = step.batch.images.permute(0, 2, 3, 1)  # so that results are laid out channels last
        luminance, a, b = lightness_and_chroma((last * std + mean).clamp(0, 1))
        gray = ((without_colors(luminance)[..., None] - mean) / std).permute(0, 3, 1, 2)
        gray = gray if step.precision.channels_last else gray.contiguous()
        features = step.extract(gray, write_statistics=False)
        logits = self._head(windows(features, self.cells))
        return {"loss": chroma_loss(logits, self._lookup(a, b), self.cells)}

    def _check_features(self, state: TaskState) -> None:
        shape = state.feature_shape[1:]
        if (
            len(shape) != 3
            or shape[1] % self.cells
            or shape[2] % self.cells
            or self.cells > min(state.data.size)
        ):
            raise UsageError(
                f"colorization cuts feature maps (channels, height, width) into {self.cells} x {self.cells} windows; "
                f"the features of task {state.name!r} after {state.task.cut} are {shape}. Use cells that divide "
                "height and width, another Task.size, or another cut."
            )

    def _check_head(self, head: AuxiliaryHead, state: TaskState, device: str) -> None:
        was_training = head.module.training
        features = torch.zeros(2, *state.feature_shape[1:], device=device)
        try:
            with torch.no_grad():
                head.module.eval()(windows(features, self.cells))
        except (RuntimeError, CompatkitError) as error:
            raise UsageError(
                f"colorization: a head of {head.blueprint.model} after {head.blueprint.cut} does not take one of "
                f"{self.cells} x {self.cells} windows of the features {state.feature_shape[1:]}: {error} Use fewer "
                "cells; cells=1 takes all features at once."
            ) from error
        finally:
            head.module.train(was_training)


def _check_colors(state: TaskState) -> None:
    images = state.examples
    if state.data.channels == "RGB" and any(
        bool(np.ptp(images.read(range(start, min(start + AT_ONCE, len(images)))), axis=-1).any())
        for start in range(0, len(images), AT_ONCE)
    ):
        return
    raise UsageError(
        f"colorization needs images with colors; those of task {state.name!r} ({state.task.data.name}) are gray, "
        "so there is nothing to predict. Leave it out for this task, or use rotation_prediction, jigsaw or contrastive."
    )

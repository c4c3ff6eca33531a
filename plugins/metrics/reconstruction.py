"""Reconstruction: how well a network's reverse pass, with the same parameters, restores an image.

Paper: "Reviving Autoencoder Pretraining", Sec. 2 and App. A.3: d'_1, the reverse pass of the network's output. A
    network trained with it recovers its input, a regular one does not.
Equations: per image e = ||d_1 - d'_1||^2 / ||d_1||^2 (relative: 0 is perfect, 1 as bad as zeros), and the mean
    square over its values. Images are normalized, as the network takes them.
Cost: one forward and one reverse pass per batch; the chain is found at the first batch. Keeps two numbers per image.
Limits: chains only; networks with shortcuts are refused, with the place. It measures the input alone, not what a
    person would recognize.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import torch
from torch import Tensor, nn

from compatkit import hookimpl, pictures
from compatkit.errors import DataError
from compatkit.evaluation.metrics import Table, TableCell
from compatkit.foundation.limits import OneOf
from compatkit.hooks import Register

from ..regularizers.reverse_pass.chain import chain_of
from ..regularizers.reverse_pass.full import OUTPUTS, reconstruct
from ..regularizers.reverse_pass.undoing import STATISTICS, Statistics

compatkit_api = 1
SCORES = ("relative", "mean square")
SUMMARIES = ("mean", "median", "least", "most")


@hookimpl
def compatkit_metrics(register: Register) -> None:
    """Offer ``reconstruction``."""
    register("reconstruction", Reconstruction)


def errors_of(images: Tensor, again: Tensor) -> tuple[Tensor, Tensor]:
    """Return the relative and the mean square error of each image, float64 ``(batch,)`` each.

    Args:
        images: ``(batch, ...)``.
        again: Reconstructions of the same shape.

    Returns:
        For an image of zeros the relative error is 0 if it is reconstructed as zeros, else infinite.

    Raises:
        DataError: The shapes differ.
    """
    if images.shape != again.shape:
        raise DataError(
            f"reconstruction: images and reconstructions must have the same shape; got {tuple(images.shape)} and "
            f"{tuple(again.shape)}."
        )
    errors = (images.double() - again.double()).flatten(1).square().sum(1)
    norms = images.double().flatten(1).square().sum(1)
    return torch.where(errors == 0, errors, errors / norms), errors / images[0].numel()


def grid(
    network: nn.Module,
    images: Tensor,
    *,
    low: float,
    high: float,
    bn_reverse: Statistics = "running",
    output_activation: str | None = None,
) -> bytes:
    """Return a PNG of images above their reconstructions, with the relative error of each.

    Args:
        network: A chain; its modes are restored.
        images: Normalized, ``(n, 1 or 3 channels, height, width)``.
        low: Pixel value shown as black.
        high: Pixel value shown as white.
        bn_reverse: See ``Reconstruction``.
        output_activation: See ``Reconstruction``.

    Raises:
        UsageError: The network is not a chain.
    """
    with torch.no_grad():
        again = reconstruct(network, images, bn_reverse=bn_reverse, output_activation=output_activation)
    titles = [f"{error:.3f}" for error in errors_of(images, again)[0].tolist()]
    rows = {"input": images.double().cpu().numpy(), "seen again": again.double().cpu().numpy()}
    return pictures.image_grid(rows, low=low, high=high, titles=titles)


@attrs.frozen(eq=False)
class Errors:
    """Positions, relative errors and mean square errors of images, per batch."""

    positions: tuple[Tensor, ...] = ()
    relative: tuple[Tensor, ...] = ()
    square: tuple[Tensor, ...] = ()
    stages: Any = None


@attrs.define
class Reconstruction:
    """Two tables: ``summary`` by score and summary, ``images`` by score and image, in the order of the data.

    Attributes:
        bn_reverse: Statistics of batch normalization in the reverse pass: ``"running"``, independent of the batch;
            ``"batch"`` as in training, or ``"forward_batch"``.
        output_activation: ``"relu"``, ``"sigmoid"`` or ``"tanh"`` for images in its range, or None.
    """

    bn_reverse: Statistics = attrs.field(default="running", validator=OneOf(STATISTICS))
    output_activation: str | None = attrs.field(default=None, validator=OneOf(OUTPUTS, optional=True))

    def init(self) -> Errors:
        """Return the empty state."""
        return Errors()

    def update(self, state: Errors, images: Tensor, positions: Tensor, network: nn.Module) -> Errors:
        """Return the state with one more batch.

        Args:
            state: State so far.
            images: Normalized, ``(batch, channels, height, width)``.
            positions: Indices of the images, ``(batch,)``.
            network: In eval mode; a chain.

        Raises:
            UsageError: The network is not a chain; the message says where.
        """
        stages = state.stages if state.stages is not None else chain_of(network, images)
        again = reconstruct(
            network,
            images,
            stages=stages,
            bn_reverse=self.bn_reverse,
            output_activation=self.output_activation,
        ).detach()
        relative, square = errors_of(images, again)
        return Errors(
            (*state.positions, positions), (*state.relative, relative), (*state.square, square), stages
        )

    def merge(self, left: Errors, right: Errors) -> Errors:
        """Return the errors of both parts."""
        return Errors(
            left.positions + right.positions,
            left.relative + right.relative,
            left.square + right.square,
            left.stages if left.stages is not None else right.stages,
        )

    def finalize(self, state: Errors) -> tuple[Table, ...]:
        """Return the tables."""
        if not state.positions:
            nothing = [TableCell(None, "undefined", "no examples")]
            return self._tables(nothing * (len(SCORES) * len(SUMMARIES)), nothing * len(SCORES), ("0",), 0)
        order = torch.cat(state.positions).argsort()
        names = tuple(str(position) for position in torch.cat(state.positions)[order].tolist())
        summaries: list[TableCell] = []
        images: list[TableCell] = []
        for values in (state.relative, state.square):
            errors = torch.cat(values)[order].cpu()
            images += [_cell(error) for error in errors.tolist()]
            finite = errors[errors.isfinite()]
            left = len(errors) - len(finite)
            for summary in (finite.mean, finite.median, finite.amin, finite.amax) if len(finite) else ():
                reason = f"without {left} of {len(errors)} images whose error is not finite" if left else ""
                summaries.append(TableCell(float(summary()), "degenerate" if left else "ok", reason))
            if not len(finite):
                summaries += [TableCell(None, "undefined", "no image has a finite error")] * len(SUMMARIES)
        return self._tables(summaries, images, names, len(order))

    def _tables(
        self, summaries: Sequence[TableCell], images: Sequence[TableCell], names: tuple[str, ...], count: int
    ) -> tuple[Table, ...]:
        words: dict[str, Any] = {
            "unit": "1",
            "direction": "lower",
            "estimator": f"full reverse pass, bn_reverse={self.bn_reverse}, "
            f"output_activation={self.output_activation or 'none'}",
            "count": count,
            "paper": "Reviving Autoencoder Pretraining (anonymous, 2020)",
            "equation": "Sec. 2, A.3",
        }
        return (
            Table(
                name="reconstruction/summary",
                axes={"score": SCORES, "summary": SUMMARIES},
                cells=tuple(summaries),
                **words,
            ),
            Table(
                name="reconstruction/images",
                axes={"score": SCORES, "image": names},
                cells=tuple(images),
                **words,
            ),
        )


def _cell(value: float) -> TableCell:
    if value == value and abs(value) != float("inf"):
        return TableCell(value)
    return TableCell(None, "undefined", "the image is zero, or what came back is not finite")

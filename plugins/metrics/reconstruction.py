"""Reconstruction: how well the reverse pass of a network, with the same parameters, restores an image.

Paper: "Reviving Autoencoder Pretraining", Sec. 2 and App. A.3: d'_1, what the reverse pass makes of what the network
    gave; a network that was trained with it recovers its input, a regular one does not.
Equations: for each image e = ||d_1 - d'_1||^2 / ||d_1||^2 (relative: 0 recovered, 1 as good as nothing), and the mean
    square over its values. Images are as the network takes them, after normalisation.
Cost: one more pass there and one back a batch; the chain is found at the first batch. Two numbers an image are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import torch
from torch import Tensor, nn

from compatkit import hookimpl, pictures
from compatkit.errors import DataError, UsageError
from compatkit.hooks import Register
from compatkit.metrics import Cell, Table

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
    """Return the relative and the mean square error of each image, float64 ``(batch,)``.

    Args:
        images: ``(batch, ...)``.
        again: What was made of them, of the same shape.

    Returns:
        The relative error is infinite for an image of zeros that was not given back as such, and 0 where it was.

    Raises:
        DataError: The shapes differ.
    """
    if images.shape != again.shape:
        raise DataError(
            f"reconstruction compares images with what was made of them: {tuple(images.shape)} and "
            f"{tuple(again.shape)}."
        )
    apart = (images.double() - again.double()).flatten(1).square().sum(1)
    size = images.double().flatten(1).square().sum(1)
    return torch.where(apart == 0, apart, apart / size), apart / images[0].numel()


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
        network: A chain; its modes are as before afterwards.
        images: As the network takes them, ``(n, 1 or 3 channels, height, width)``.
        low: Value of a pixel that is shown black.
        high: Value that is shown white.
        bn_reverse: See ``Reconstruction``.
        output_activation: See ``Reconstruction``.

    Raises:
        UsageError: The network is no chain.
    """
    with torch.no_grad():
        again = reconstruct(network, images, bn_reverse=bn_reverse, output_activation=output_activation)
    titles = [f"{one:.3f}" for one in errors_of(images, again)[0].tolist()]
    rows = {"input": images.double().cpu().numpy(), "seen again": again.double().cpu().numpy()}
    return pictures.beside(rows, low=low, high=high, titles=titles)


@attrs.frozen(eq=False)
class Errors:
    """Of the images so far: their positions, the relative and the mean square errors; batch by batch."""

    positions: tuple[Tensor, ...] = ()
    relative: tuple[Tensor, ...] = ()
    square: tuple[Tensor, ...] = ()
    stages: Any = None


@attrs.define
class Reconstruction:
    """Gives two tables: ``summary`` by score and summary, ``images`` by score and image, in the order of the data.

    Attributes:
        bn_reverse: Statistics of batch normalisation on the way back: ``"running"``, so that an image's error does not
            depend on its batch; ``"batch"`` as in training, ``"forward_batch"``.
        output_activation: ``"relu"``, ``"sigmoid"``, ``"tanh"`` for images in its range, or None.
    """

    bn_reverse: Statistics = "running"
    output_activation: str | None = None

    def __attrs_post_init__(self) -> None:
        if self.bn_reverse not in STATISTICS:
            raise UsageError(
                f"reconstruction: bn_reverse is one of {', '.join(STATISTICS)}; got {self.bn_reverse!r}."
            )
        if self.output_activation is not None and self.output_activation not in OUTPUTS:
            raise UsageError(
                f"reconstruction: output_activation is one of {', '.join(OUTPUTS)}, or None; got "
                f"{self.output_activation!r}."
            )

    def init(self) -> Errors:
        """Return no errors."""
        return Errors()

    def update(self, state: Errors, images: Tensor, positions: Tensor, network: nn.Module) -> Errors:
        """Return the errors with those of one more batch.

        Raises:
            UsageError: The network is no chain; the message says where.
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
        """Return the errors of both."""
        return Errors(
            left.positions + right.positions,
            left.relative + right.relative,
            left.square + right.square,
            left.stages if left.stages is not None else right.stages,
        )

    def finalise(self, state: Errors) -> tuple[Table, ...]:
        """Return the tables."""
        if not state.positions:
            nothing = [Cell(None, "undefined", "no examples")]
            return self._tables(nothing * (len(SCORES) * len(SUMMARIES)), nothing * len(SCORES), ("0",), 0)
        order = torch.cat(state.positions).argsort()
        names = tuple(str(one) for one in torch.cat(state.positions)[order].tolist())
        summaries: list[Cell] = []
        images: list[Cell] = []
        for values in (state.relative, state.square):
            found = torch.cat(values)[order].cpu()
            images += [_cell(one) for one in found.tolist()]
            finite = found[found.isfinite()]
            left = len(found) - len(finite)
            for summary in (finite.mean, finite.median, finite.amin, finite.amax) if len(finite) else ():
                reason = f"without {left} of {len(found)} images whose error is not finite" if left else ""
                summaries.append(Cell(float(summary()), "degenerate" if left else "ok", reason))
            if not len(finite):
                summaries += [Cell(None, "undefined", "no image has a finite error")] * len(SUMMARIES)
        return self._tables(summaries, images, names, len(order))

    def _tables(
        self, summaries: Sequence[Cell], images: Sequence[Cell], names: tuple[str, ...], count: int
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


def _cell(value: float) -> Cell:
    if value == value and abs(value) != float("inf"):
        return Cell(value)
    return Cell(None, "undefined", "the image is zero, or what came back is not finite")

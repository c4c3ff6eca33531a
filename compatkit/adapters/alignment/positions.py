"""Samples from feature maps: one per position, or one per window of a convolution."""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import torch
import torch.nn.functional as F
from torch import Tensor

VALUES = 2**24
"""Values of windows that are extracted at a time (64 MB in float32)."""


@attrs.frozen
class Window:
    """Window of a convolution: (height, width) of kernel, stride, padding and dilation."""

    kernel: tuple[int, int] = (1, 1)
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)

    @property
    def size(self) -> int:
        """Number of positions in the window."""
        return self.kernel[0] * self.kernel[1]


PATCH = Window((3, 3), padding=(1, 1))


def rows(features: Tensor, layout: str) -> Tensor:
    """Return one sample per position, ``(m, c)``, of features in any layout.

    Args:
        features: A map or tokens, any floating-point type.
        layout: ``"NCHW"``, or one with the channels last.

    Returns:
        ``(m, c)``, m positions of all images, image by image.
    """
    last = features.permute(0, 2, 3, 1) if layout == "NCHW" else features
    return last.reshape(-1, last.shape[-1])


def paired(
    features: Tensor, target: Tensor, layout: str, window: Window, share: float, draw: torch.Generator
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield samples of features with those of the target at the same position.

    Args:
        features: ``(n, c, h, w)`` for windows of several positions; any layout else.
        target: One position per window, in the same layout.
        layout: Layout of both.
        window: Window with zero padding.
        share: Share of the positions that are drawn, equally many of each image; 1 takes all.
        draw: Generator that draws them.

    Yields:
        ``(m, c * positions of the window)``, by channel, then row, then column, as a convolution's weight; ``(m, d)``.
    """
    if window == Window():
        if share >= 1:
            yield rows(features, layout), rows(target, layout)
            return
        positions = features[0].numel() // features.shape[1 if layout == "NCHW" else -1]
        chosen = _drawn(len(features), positions, share, draw)
        yield _rows_at(features, layout, chosen), _rows_at(target, layout, chosen)
        return
    maps = features if layout == "NCHW" else features.permute(0, 3, 1, 2)
    wanted = rows(target, layout).unflatten(0, (len(features), -1))
    columns = maps.shape[1] * window.size
    step = max(1, VALUES // (columns * wanted.shape[1]))
    for some, aims in zip(maps.split(step), wanted.split(step), strict=True):
        cut = F.unfold(some, window.kernel, window.dilation, window.padding, window.stride)
        x, y = cut.transpose(1, 2).reshape(-1, columns), aims.flatten(0, 1)
        if share < 1:
            chosen = _drawn(len(some), aims.shape[1], share, draw)
            x, y = x[chosen], y[chosen]
        yield x, y


def _rows_at(features: Tensor, layout: str, chosen: Tensor) -> Tensor:
    """Return some of ``rows`` without permuting complete NCHW maps."""
    if layout != "NCHW":
        return rows(features, layout)[chosen]
    flat = features.flatten(2)
    return flat[chosen // flat.shape[2], :, chosen % flat.shape[2]]


def _drawn(images: int, positions: int, share: float, draw: torch.Generator) -> Tensor:
    """Return random positions of each image as flat indices, in ascending order."""
    count = max(1, round(share * positions))
    order = torch.rand(images, positions, generator=draw).argsort(dim=1)[:, :count].sort(dim=1).values
    return (order + torch.arange(images)[:, None] * positions).flatten()

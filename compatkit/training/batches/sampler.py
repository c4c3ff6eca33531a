"""Random draws of an epoch: the order of the images, crops and flips.

Images are stored row by row with a border of zeros after each row and below each image. Neighbors share borders, so
that a crop that extends over an edge reads zeros without a bounds check. The position of a pixel of a batch is one sum:
the start of its image, the offset of the crop, and the pixel's position in the image, which may be flipped or rotated.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs
import torch
from torch import Tensor

from compatkit.errors import DataError, UsageError
from compatkit.training.randomness import generator

Choose = Callable[[int, int, Tensor, int], Tensor]
"""Maps an epoch, its first step, a permutation and the number of needed indices to indices: plugins' samplers."""


class Sampler:
    """The mini-batches of one task: one permutation per epoch, drawn from (seed, task, epoch), or what plugins choose.

    What plugins choose may depend on their state, so it is drawn when the epoch begins, and sources do not fetch ahead
    of its end.

    An incomplete batch at the end of an epoch is dropped, so that shapes stay fixed.

    Attributes:
        choose: Function that replaces a permutation, or None.
        batches_per_epoch: Number of batches per epoch.
        share: Slice of each batch that this process takes; all of it in a single process.
        local_batch_size: Number of images that this process takes from each batch.
    """

    def __init__(
        self,
        count: int,
        batch_size: int,
        seed: int,
        task: str,
        share: slice = slice(None),
        choose: Choose | None = None,
    ) -> None:
        if count < batch_size:
            raise DataError(
                f"Task {task!r} has {count} training images, fewer than a batch of {batch_size}; "
                f"set batch_size to {count} or less."
            )
        self.count, self.batch_size, self.seed, self.task = count, batch_size, seed, task
        self.batches_per_epoch, self.share, self.choose = count // batch_size, share, choose
        self._first, stop, _ = share.indices(batch_size)
        self.local_batch_size = stop - self._first
        self._epoch = -1
        self._permutation = torch.empty(0, dtype=torch.int64)

    def epoch(self, number: int) -> Tensor:
        """Return the image indices of all batches of an epoch, concatenated: int64, on the CPU.

        Returns:
            ``(batches * batch_size,)``.
        """
        if number != self._epoch:
            rng = generator(self.seed, "order", self.task, number)
            order, needed = (
                torch.randperm(self.count, generator=rng),
                self.batches_per_epoch * self.batch_size,
            )
            if self.choose is not None:
                order = self.choose(number, number * self.batches_per_epoch, order, needed)
            self._epoch, self._permutation = number, order[:needed]
        return self._permutation

    @property
    def drawn(self) -> tuple[int, Tensor] | None:
        """Number and image indices of the last epoch that was drawn, or None."""
        return None if self._epoch < 0 else (self._epoch, self._permutation)

    def restore(self, epoch: int, permutation: Tensor) -> None:
        """Set the image indices of an epoch, the result of ``drawn``.

        Args:
            epoch: Number of the epoch.
            permutation: Its image indices, int64.
        """
        self._epoch, self._permutation = epoch, permutation

    def last_step(self, step: int) -> int:
        """Return the last step of the epoch of a step."""
        return (step // self.batches_per_epoch + 1) * self.batches_per_epoch - 1

    def locate(self, step: int) -> tuple[int, slice]:
        """Return the epoch of a step, and the slice of it that this process takes as its part of the batch."""
        epoch, number = divmod(step, self.batches_per_epoch)
        first = number * self.batch_size + self._first
        return epoch, slice(first, first + self.local_batch_size)

    def at(self, step: int) -> Tensor:
        """Return the training-set indices of this process's share of the batch, int64 ``(local_batch_size,)``."""
        epoch, part = self.locate(step)
        return self.epoch(epoch)[part]

    def ends_epoch(self, step: int) -> bool:
        """Return whether ``step`` is the last of its epoch."""
        return (step + 1) % self.batches_per_epoch == 0


PADDING = 4
"""Maximum offset of a crop, in pixels."""
ViewFunction = Callable[[Tensor], Sequence[Tensor]]
"""Maps images ``(batch, channels, height, width)`` to extra views, each a permutation of the pixels of an image."""


@attrs.frozen
class StoreGrid:
    """The layout of stored images in memory.

    Attributes:
        height: Height of an image, in pixels.
        width: Width of an image, in pixels.
        border: Zeros after each row, and rows of zeros below each image.
    """

    height: int
    width: int
    border: int = 0

    @property
    def pitch(self) -> int:
        """Pixels from a row to the next."""
        return self.width + self.border

    @property
    def image_stride(self) -> int:
        """Pixels from an image to the next."""
        return (self.height + self.border) * self.pitch

    @property
    def lead(self) -> int:
        """Zeros before the first image: the border above and in front of it."""
        return self.border * self.pitch + self.border

    def pixels(self, count: int) -> int:
        """Return how many pixels ``count`` images take, borders included."""
        return self.lead + count * self.image_stride

    def image_view(self, pixels: Tensor) -> Tensor:
        """View the store ``(pixels, channels)`` as ``(n, height, width, channels)``, without borders; no copy."""
        images = pixels[self.lead :].unflatten(0, (-1, self.height + self.border, self.pitch))
        return images[:, : self.height, : self.width]


@attrs.frozen
class Augmentation:
    """Random crops and flips of the images of an epoch.

    Attributes:
        names: ``"crop"`` moves each image by up to ``PADDING`` pixels, filling with zeros; ``"flip"`` mirrors half
            of them.
        seed: Seed of the run.
        task: Name of the task whose images are augmented.
    """

    names: tuple[str, ...]
    seed: int
    task: str

    def __str__(self) -> str:
        return ", ".join(self.names) or "no augmentation"

    @property
    def border(self) -> int:
        """Width of the border that stored images need."""
        return PADDING if "crop" in self.names else 0

    def crop_offsets(self, epoch: int, count: int, grid: StoreGrid) -> Tensor | None:
        """Return the offset of each crop in the store, in pixels, int64 ``(count,)``; None without crops.

        Args:
            epoch: Epoch number, from 0.
            count: Number of images of the epoch.
            grid: Layout of the stored images.

        Returns:
            One per image, in the order of the epoch; a crop moves by up to ``PADDING`` rows and columns each way.
        """
        if "crop" not in self.names:
            return None
        rng = generator(self.seed, "augment", self.task, "crop", epoch)
        rows, columns = torch.randint(-PADDING, PADDING + 1, (2, count), generator=rng)
        return rows * grid.pitch + columns

    def flip_flags(self, epoch: int, count: int) -> Tensor | None:
        """Return 1 for images to flip and 0 for others, int64 ``(count,)``; None without flips.

        Args:
            epoch: Epoch number, from 0.
            count: Number of images of the epoch.

        Returns:
            One per image, in the order of the epoch.
        """
        if "flip" not in self.names:
            return None
        rng = generator(self.seed, "augment", self.task, "flip", epoch)
        return torch.randint(0, 2, (count,), generator=rng)


def index_tables(grid: StoreGrid, further: ViewFunction | None = None) -> Tensor:
    """Return, for each view, the position in the store of each of its pixels, relative to the block of its image.

    The block of image ``i`` begins at pixel ``i * grid.image_stride`` of the store.

    Args:
        grid: Layout of the stored images.
        further: Function that returns extra views; called once, on positions of pixels.

    Returns:
        int64 ``(views, 2, height * width)``, the image itself first; ``[:, 1]`` for flipped images.

    Raises:
        UsageError: The shape or dtype of a view differs, or it has values that are not pixels of the image.
    """
    rows, columns = torch.arange(grid.height), torch.arange(grid.width)
    plain = (grid.lead + rows[:, None] * grid.pitch + columns)[None, None]
    both = torch.cat([plain, plain.flip(-1)])
    views = [both, *(further(both) if further is not None else ())]
    for number, view in enumerate(views):
        if view.shape != both.shape or view.dtype != both.dtype or not bool(torch.isin(view, both).all()):
            raise UsageError(
                f"Extra view {number} of images of {grid.height} x {grid.width} has {tuple(view.shape[-2:])} pixels "
                f"of type {view.dtype}, or values that are not pixels of the image. Views may only permute pixels; "
                "compute any other view in the plugin's hook compatkit_losses."
            )
    return torch.stack(views).flatten(2).flatten(2)


def gather(pixels: Tensor, tables: Tensor, starts: Tensor, mirrored: Tensor | None) -> Tensor:
    """Return the pixels of all views of some images, by one gather.

    Args:
        pixels: uint8 ``(pixels, channels)``, laid out as a ``StoreGrid``.
        tables: Tables as ``index_tables`` returns them, in the type and on the device of ``starts``.
        starts: Offset of each image, added to the table, ``(batch,)``.
        mirrored: 1 for flipped images, ``(batch,)``; None where none is.

    Returns:
        uint8 ``(views * batch * height * width, channels)``: all images, then the second view of all, and so on.
    """
    if mirrored is None:
        index = tables[:, :1] + starts[:, None]
    else:
        index = tables.index_select(1, mirrored).add_(starts[:, None])
    return pixels.index_select(0, index.view(-1))

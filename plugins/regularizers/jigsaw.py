"""Jigsaw puzzles: one shared head predicts the order of the tiles of an image, on all extractors.

Paper: Noroozi, Favaro (2016), "Unsupervised Learning of Visual Representations by Solving Jigsaw Puzzles",
    arXiv:1603.09246, Sec. 3 and Algorithm 1, in the form that keeps the size of the image, of Carlucci et al. (2019),
    "Domain Generalization by Solving Jigsaw Puzzles", arXiv:1903.06864, Sec. 3: tiles are laid out anew and the
    extractor sees them together. Named as a task to try by Gygli et al. (2021), App. A.
Equations: 1/P of the sum over the permutations p of CE(s(f_t(p(x))), p), all P of every image; the first is the image
    itself, and the target head sees that one only.
Differences: tiles keep the pixels at their edges (no gaps, no normalization tile by tile), so that continued edges
    reveal neighbors; every image is shown in all permutations instead of a random one, so that P is small.
Batch normalization: all permutations go through extractor and head in one batch, since the statistics of a batch of one
    permutation would reveal it; the extractor's running statistics are not updated.
Cost: an extractor pass P times as large, and P times the batch through one more head, a step.
Limits: it needs images whose sides hold the tiles, and costs an extractor pass for each permutation, so few of the
    paper's 64 permutations are affordable. On digits it made nothing fit.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence

import attrs
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from compatkit import AuxiliaryHead, Label, SetUp, Step, autocast, effect, hookimpl
from compatkit.errors import UsageError
from compatkit.foundation.limits import Number
from compatkit.hooks import Register

compatkit_api = 1
MOST = {2: 24, 3: 1000}
"""Permutations by grid: all of four tiles; of nine as many as the paper used at most."""
LEAST_SIDE = 2
"""Pixels of a tile's side, at least."""


@hookimpl
def compatkit_regularizers(register: Register) -> None:
    """Offer ``jigsaw``."""
    register("jigsaw", Jigsaw)


@functools.cache
def far_apart(tiles: int, count: int) -> tuple[tuple[int, ...], ...]:
    """Return ``count`` permutations of ``tiles`` tiles that differ in many places, always the same.

    The identity is the first. Each next one has the largest least Hamming distance to those before it; among equals the
    largest sum of distances, then the first in lexicographic order. The paper starts from a drawn one and takes means.

    Args:
        tiles: In an image.
        count: At most the factorial of ``tiles``.
    """
    everything = np.array(list(itertools.permutations(range(tiles))), dtype=np.int8)
    minimum = np.full(len(everything), tiles)
    total = np.zeros(len(everything), dtype=np.int64)
    chosen = [0]
    while len(chosen) < count:
        distances = (everything != everything[chosen[-1]]).sum(1)
        minimum, total = np.minimum(minimum, distances), total + distances
        chosen.append(int(np.argmax(minimum * (tiles * count + 1) + total)))
    return tuple(tuple(int(tile) for tile in everything[index]) for index in chosen)


def rearranged(images: Tensor, order: Sequence[int], grid: int) -> Tensor:
    """Return images whose tiles lie in another order.

    Where a side is no multiple of ``grid``, tiles cover the largest centered part whose sides are; the pixels around
    it are not moved.

    Args:
        images: ``(..., height, width)``, numbers of any type.
        order: Place k, counted row by row, gets the tile of place ``order[k]``.
        grid: Tiles a side.

    Returns:
        A new tensor in the shape of ``images``.
    """
    sides = [side // grid for side in images.shape[-2:]]
    starts = [side % grid // 2 for side in images.shape[-2:]]

    def tile(position: int) -> tuple[slice, ...]:
        corner = [
            start + number * side
            for start, number, side in zip(starts, divmod(position, grid), sides, strict=True)
        ]
        return (..., *(slice(start, start + side) for start, side in zip(corner, sides, strict=True)))  # type: ignore[return-value]

    view = images.clone()
    for position, other in enumerate(order):
        if position != other:
            view[tile(position)] = images[tile(other)]
    return view


@attrs.define(eq=False)
class Jigsaw:
    """Trains a shared head to predict permutations of tiles.

    The outputs of the head are named after the permutations, so that its contract lists them, and a run against a
    frozen head of other permutations is refused.

    Attributes:
        grid: Tiles a side, 2 or 3.
        permutations: Count of permutations to predict, the identity included: 2 to 24 for a grid of 2, 2 to 1,000
            for a grid of 3. Each costs an extractor pass a step.

    Raises:
        UsageError: A grid or count that is none of these.
    """

    grid: int = 2
    permutations: int = 4
    _head: AuxiliaryHead = attrs.field(init=False)
    _orders: tuple[tuple[int, ...], ...] = attrs.field(default=(), init=False)

    def __attrs_post_init__(self) -> None:
        if isinstance(self.grid, bool) or self.grid not in MOST:
            raise UsageError(f"jigsaw: grid is 2 or 3 tiles a side, got {self.grid!r}.")
        maximum = MOST[self.grid]
        Number(least=2, most=maximum, whole=True).check(
            f"jigsaw with a grid of {self.grid}", permutations=self.permutations
        )

    @property
    def orders(self) -> tuple[tuple[int, ...], ...]:
        """The permutations to predict, the identity first; see ``far_apart``."""
        return far_apart(self.grid**2, self.permutations)

    @hookimpl
    def compatkit_set_up(self, setup: SetUp) -> None:
        """Add the head, or take the frozen one.

        Raises:
            UsageError: A task's images are too small to be cut into tiles.
        """
        min_side = self.grid * LEAST_SIDE
        for state in setup.tasks.values():
            height, width = state.data.size
            if min(height, width) < min_side:
                raise UsageError(
                    f"jigsaw needs images of at least {min_side} x {min_side} pixels for {self.grid} tiles a side; "
                    f"task {state.name!r} has {height} x {width}. Set Task.size."
                )
        self._orders = self.orders
        names = ["tiles " + " ".join(map(str, order)) for order in self._orders]
        self._head = setup.add_auxiliary_head("jigsaw", classes=[Label(name) for name in names])

    @hookimpl
    @effect("pure")
    @autocast
    def compatkit_losses(self, step: Step) -> Mapping[str, Tensor]:
        """Return the mean cross-entropy over all permutations of every image."""
        images = step.batch.images
        views = torch.cat([rearranged(images, order, self.grid) for order in self._orders])
        logits = self._head(step.extract(views, write_statistics=False))
        targets = torch.arange(self.permutations, device=logits.device)
        return {"loss": F.cross_entropy(logits.float(), targets.repeat_interleave(len(images)))}

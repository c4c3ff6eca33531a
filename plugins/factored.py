"""Images with several factors each, such as shape, size and position: any factor can be the label of a data set."""

from __future__ import annotations

from collections.abc import Mapping

import attrs
import numpy as np
from numpy.typing import NDArray

import compatkit as ck
from compatkit.errors import DataError, UnknownName

TEST = 0.1
"""Share of images for testing, as in Bonheme and Grzes (2023)."""


@attrs.frozen(eq=False)
class Factored:
    """Images and the value of every factor.

    Attributes:
        name: Name of the data sets made of it.
        images: uint8 ``(n, height, width, channels)``.
        factors: Index of the factor's value for each image, int64 ``(n,)``, by factor.
        values: Names of the values by factor, in order.
        test: Indices of the images for testing; None draws a tenth of all.

    Raises:
        DataError: A factor has another number of values than there are images, or an index out of range.
    """

    name: str
    images: NDArray[np.uint8]
    factors: Mapping[str, NDArray[np.int64]]
    values: Mapping[str, tuple[str, ...]]
    test: NDArray[np.int64] | None = None

    def __attrs_post_init__(self) -> None:
        for factor, indices in self.factors.items():
            count = len(self.values.get(factor, ()))
            if (
                len(indices) != len(self.images)
                or not len(indices)
                or not 0 <= indices.min() <= indices.max() < count
            ):
                raise DataError(
                    f"{self.name}: the factor {factor!r} needs one index an image, from 0 to {count - 1}; got "
                    f"{len(indices)} for {len(self.images)} images.",
                    subject=self.name,
                )

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.images)

    def take(self, count: int, seed: int = 0) -> Factored:
        """Return a random subset of the images in their order, or all of them if there are no more.

        Args:
            count: At least 2.
            seed: Seed of the draw.
        """
        if count >= len(self):
            return self
        indices = np.sort(np.random.default_rng(seed).permutation(len(self))[:count])
        factors = {factor: values[indices] for factor, values in self.factors.items()}
        test = None if self.test is None else np.flatnonzero(np.isin(indices, self.test))
        return attrs.evolve(self, images=self.images[indices], factors=factors, test=test)

    def partition(self, seed: int = 0) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the indices of the training images and those of the test images, ascending.

        Args:
            seed: Draws the test images where the source does not fix them.
        """
        test = self.test
        if test is None:
            test = np.random.default_rng(seed).permutation(len(self))[: max(1, round(len(self) * TEST))]
        is_test = np.zeros(len(self), dtype=bool)
        is_test[test] = True
        return np.flatnonzero(~is_test), np.flatnonzero(is_test)

    def labeled(self, factor: str, seed: int = 0) -> ck.DataSet:
        """Return a data set whose classes are the values of a factor.

        Args:
            factor: Name of the factor.
            seed: See ``partition``.

        Raises:
            UnknownName: There is no such factor.
        """
        if factor not in self.factors:
            raise UnknownName(
                f"{self.name} has the factors {', '.join(self.factors)}; there is no {factor!r}.",
                subject=factor,
            )
        train, test = ((self.images[part], self.factors[factor][part]) for part in self.partition(seed))
        return ck.DataSet.of(self.name, train, test, self.values[factor])


def numbered(count: int) -> tuple[str, ...]:
    """Return ``count`` names of values: the numbers from 0, all with the same number of digits."""
    return tuple(f"{number:0{len(str(count - 1))}d}" for number in range(count))

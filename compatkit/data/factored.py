"""Images with several factors each, such as shape, size and place: any of them can be the label of a data set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import attrs
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from compatkit.data.dataset import DataSet
from compatkit.data.transforms import Images
from compatkit.errors import DataError, UnknownName

TEST = 0.1
"""Share of images for testing, as in Bonheme and Grzes (2023)."""


@attrs.frozen(eq=False)
class Factored:
    """Images and the value of every factor.

    Attributes:
        name: Of the data sets made of it.
        images: uint8 ``(n, height, width, channels)``.
        factors: Position among the factor's values by factor, each int64 ``(n,)``.
        values: Names of the values by factor, in order.
        test: Positions of the images for testing; None draws a tenth of all.

    Raises:
        DataError: Images and factors do not go together.
    """

    name: str
    images: Images
    factors: Mapping[str, NDArray[np.int64]]
    values: Mapping[str, tuple[str, ...]]
    test: NDArray[np.int64] | None = None

    def __attrs_post_init__(self) -> None:
        for name, places in self.factors.items():
            count = len(self.values.get(name, ()))
            if (
                len(places) != len(self.images)
                or not len(places)
                or not 0 <= places.min() <= places.max() < count
            ):
                raise DataError(
                    f"{self.name}: the factor {name!r} has one value an image, from 0 to {count - 1}; got "
                    f"{len(places)} for {len(self.images)} images, from {places.min()} to {places.max()}.",
                    subject=self.name,
                )

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.images)

    def take(self, count: int, seed: int = 0) -> Factored:
        """Return images drawn at random, in their order, or all where there are no more.

        Args:
            count: At least 2.
            seed: Of the draw.
        """
        if count >= len(self):
            return self
        kept = np.sort(np.random.default_rng(seed).permutation(len(self))[:count])
        factors = {name: one[kept] for name, one in self.factors.items()}
        test = None if self.test is None else np.flatnonzero(np.isin(kept, self.test))
        return attrs.evolve(self, images=self.images[kept], factors=factors, test=test)

    def places(self, seed: int = 0) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the positions of the images for training and of those for testing, ascending.

        Args:
            seed: Draws the latter, where the source does not say which.
        """
        test = self.test
        if test is None:
            test = np.random.default_rng(seed).permutation(len(self))[: max(1, round(len(self) * TEST))]
        chosen = np.zeros(len(self), dtype=bool)
        chosen[test] = True
        return np.flatnonzero(~chosen), np.flatnonzero(chosen)

    def labeled(self, factor: str, seed: int = 0) -> DataSet:
        """Return a data set whose classes are the values of a factor.

        Args:
            factor: Its name.
            seed: See ``places``.

        Raises:
            UnknownName: There is no such factor.
        """
        if factor not in self.factors:
            raise UnknownName(
                f"{self.name} has the factors {', '.join(self.factors)}; there is no {factor!r}.",
                subject=factor,
            )
        train, test = ((self.images[one], self.factors[factor][one]) for one in self.places(seed))
        return DataSet.of(self.name, train, test, self.values[factor])


def counted(count: int) -> tuple[str, ...]:
    """Return names of so many values, from 0, with as many digits each."""
    return tuple(f"{number:0{len(str(count - 1))}d}" for number in range(count))


def found(name: str, patterns: Sequence[str], folders: Sequence[Path]) -> list[Path]:
    """Return the files or folders that match the first pattern of which a folder has any, sorted.

    Args:
        name: Of the data set, for the message.
        patterns: Globs.
        folders: Where to look, in order.

    Raises:
        DataError: There is none (``subject`` is the name).
    """
    for folder in folders:
        for pattern in patterns:
            if there := sorted(folder.glob(pattern)):
                return there
    looked = ", ".join(map(str, folders)) or "no folder: none is named"
    raise DataError(
        f"Data set {name!r} is read from {' or '.join(patterns)}, which is in none of these folders: {looked}. Put it "
        "there, and name the folder by root or COMPATKIT_DATA.",
        subject=name,
    )


def resized(image: Image.Image, size: int) -> Images:
    """Return an image at ``size`` x ``size`` by a Lanczos filter, uint8 ``(size, size, channels)``.

    Args:
        image: Gray or RGB, square.
        size: Pixels.
    """
    made = np.asarray(image.resize((size, size), Image.Resampling.LANCZOS))
    return made if made.ndim == 3 else made[..., None]

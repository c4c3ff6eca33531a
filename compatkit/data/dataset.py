"""Data sets: a training and a test split with the same classes, channels and size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import attrs
from numpy.typing import NDArray

from compatkit.contracts.contract_rules import violated_name_rule
from compatkit.data.split import Channels, Split
from compatkit.errors import DataError
from compatkit.foundation.arguments import checks_arguments

__all__ = ["Channels", "DataSet", "Source", "Split"]


@attrs.frozen
class Source:
    """Location that a data set was loaded from.

    Attributes:
        spec: Argument of ``load_spec`` that loads it again; paths are absolute.
        root: Absolute path of the folder in which a name was looked up; None if there was none.
    """

    spec: Mapping[str, Any]
    root: str | None = None


@checks_arguments
@attrs.frozen(eq=False)
class DataSet:
    """A training and a test split with the same classes, channels and size.

    Attributes:
        name: For example ``"mnist"``; its splits are ``"mnist/train"`` and ``"mnist/test"``.
        source: Location that it was loaded from; None if it was made from arrays or changed since.

    Raises:
        DataError: The name is unusable in contracts, or the splits differ in classes, channels or size.
    """

    name: str
    train: Split
    test: Split
    source: Source | None = attrs.field(default=None, kw_only=True)

    def __attrs_post_init__(self) -> None:
        """Check the name, and that the splits agree."""
        expected = violated_name_rule(self.name)
        if expected is not None:
            raise DataError(
                f"The name of a data set must be {expected}, got {self.name!r:.100}. Rename its folder or file.",
                subject=self.name,
            )
        for name in ("classes", "channels", "size"):
            train, test = getattr(self.train, name), getattr(self.test, name)
            if train != test:
                raise DataError(
                    f"Data set {self.name!r}: {name} of the splits differ: train has {train}, test has {test}."
                )

    @classmethod
    def of(
        cls,
        name: str,
        train: tuple[NDArray[Any], NDArray[Any]],
        test: tuple[NDArray[Any], NDArray[Any]],
        classes: Iterable[str],
    ) -> DataSet:
        """Create a data set from arrays; see ``Split`` for types and shapes.

        Args:
            name: Name of the data set.
            train: Training images and labels.
            test: Test images and labels.
            classes: Names of the classes, in the order of the labels.
        """
        names = tuple(classes)
        return cls(name, Split(*train, names, f"{name}/train"), Split(*test, names, f"{name}/test"))

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes."""
        return self.train.classes

    def subset(self, train: int | None = None, test: int | None = None, seed: int | None = None) -> DataSet:
        """Return class-balanced subsets of both splits (None keeps all); see ``Split.subset``.

        Args:
            train: Number of training images.
            test: Number of test images.
            seed: Random seed of the selection; None takes the first images of each class.
        """
        pairs = ((self.train, train), (self.test, test))
        return DataSet(self.name, *(s if n is None else s.subset(n, seed) for s, n in pairs))

    def of_classes(self, classes: Sequence[str]) -> DataSet:
        """Return the images of some classes, by name or alias, in the given order.

        Raises:
            DataError: A class is missing or repeated.
        """
        return self._map(lambda split: split.of_classes(classes))

    def halves(self) -> tuple[DataSet, DataSet]:
        """Return two disjoint, class-balanced data sets, named ``<name>-half1`` and ``<name>-half2``."""
        pairs = zip(self.train.halves(), self.test.halves(), strict=True)
        first, second = (
            DataSet(self.name, *pair).renamed(f"{self.name}-half{i}") for i, pair in enumerate(pairs, 1)
        )
        return first, second

    def shifted(self, hue: float = 0.0, brightness: float = 1.0, blur: float = 0.0) -> DataSet:
        """Return the data set with both splits shifted in color, brightness and blur; see ``Shift``.

        Args:
            hue: Rotation of the colors about the gray axis, in turns.
            brightness: Factor of all values, in (0, 1].
            blur: Standard deviation of a Gaussian blur in pixels.
        """
        return self._map(lambda split: split.shifted(hue, brightness, blur))

    def resized(self, size: int | tuple[int, int]) -> DataSet:
        """Return the data set with all images resized to ``size``: (height, width), or one number for both."""
        return self._map(lambda split: split.resized(size))

    def converted(self, channels: Channels) -> DataSet:
        """Return the data set with all images converted to ``"L"`` or ``"RGB"``."""
        return self._map(lambda split: split.converted(channels))

    def _map(self, transform: Callable[[Split], Split]) -> DataSet:
        return DataSet(self.name, transform(self.train), transform(self.test))

    def renamed(self, name: str) -> DataSet:
        """Return the data set under another name; its splits are renamed too."""
        return DataSet(name, self.train.renamed(f"{name}/train"), self.test.renamed(f"{name}/test"))

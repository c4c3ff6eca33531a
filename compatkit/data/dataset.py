"""A data set: a training and a test split that go together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import attrs
from numpy.typing import NDArray

from compatkit.contracts.contract_rules import name_expected
from compatkit.data.split import Channels, Split
from compatkit.errors import DataError
from compatkit.foundation.arguments import checks_arguments

__all__ = ["Channels", "DataSet", "Source", "Split"]


@attrs.frozen
class Source:
    """Where on this machine a data set was loaded from.

    Attributes:
        spec: What ``load_spec`` takes to load it again, a path absolute.
        root: Folder in which a name was looked for, absolute; None where none was named.
    """

    spec: Mapping[str, Any]
    root: str | None = None


@checks_arguments
@attrs.frozen(eq=False)
class DataSet:
    """A training and a test split with the same classes, channels and size.

    Attributes:
        name: For example ``"mnist"``; its splits are ``"mnist/train"`` and ``"mnist/test"``.
        source: Where it was loaded from; None where it was made, or changed since.

    Raises:
        DataError: No contract holds the name, or the two splits differ in classes, channels or size.
    """

    name: str
    train: Split
    test: Split
    source: Source | None = attrs.field(default=None, kw_only=True)

    def __attrs_post_init__(self) -> None:
        """Check the name, and that the two splits go together."""
        expected = name_expected(self.name)
        if expected is not None:
            raise DataError(
                f"A data set is called {self.name!r:.100}; expected is {expected}, for contracts to hold. Rename its "
                "folder or file.",
                subject=self.name,
            )
        for what in ("classes", "channels", "size"):
            mine, theirs = getattr(self.train, what), getattr(self.test, what)
            if mine != theirs:
                raise DataError(
                    f"Data set {self.name!r}: {what} must be equal in both splits, training has {mine}, test "
                    f"{theirs}."
                )

    @classmethod
    def of(
        cls,
        name: str,
        train: tuple[NDArray[Any], NDArray[Any]],
        test: tuple[NDArray[Any], NDArray[Any]],
        classes: Iterable[str],
    ) -> DataSet:
        """Make a data set from arrays; see ``Split`` for types and shapes.

        Args:
            name: Name of the set.
            train: Images and labels to train on.
            test: Images and labels to test on.
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
            seed: Of the draw; None takes the first images of each class.
        """
        pairs = ((self.train, train), (self.test, test))
        return DataSet(self.name, *(s if n is None else s.subset(n, seed) for s, n in pairs))

    def of_classes(self, classes: Sequence[str]) -> DataSet:
        """Return the images of some classes, by name or another name of the alias table, in the given order.

        Raises:
            DataError: A class is missing or repeated.
        """
        return self._both(lambda split: split.of_classes(classes))

    def halves(self) -> tuple[DataSet, DataSet]:
        """Return two disjoint, class-balanced data sets, named ``<name>-half1`` and ``<name>-half2``."""
        pairs = zip(self.train.halves(), self.test.halves(), strict=True)
        parts = [DataSet(self.name, *pair).renamed(f"{self.name}-half{i}") for i, pair in enumerate(pairs, 1)]
        return parts[0], parts[1]

    def shifted(self, hue: float = 0.0, brightness: float = 1.0, blur: float = 0.0) -> DataSet:
        """Return the data set with both splits shifted in color and blur; see ``Shift``.

        Args:
            hue: Rotation of the colors about the gray axis, in turns.
            brightness: Factor of all values, above 0 and at most 1.
            blur: Standard deviation of a Gaussian blur in pixels.
        """
        return self._both(lambda split: split.shifted(hue, brightness, blur))

    def resized(self, size: tuple[int, int]) -> DataSet:
        """Return the data set with all images at ``size`` (height, width)."""
        return self._both(lambda split: split.resized(size))

    def converted(self, channels: Channels) -> DataSet:
        """Return the data set with all images as ``"L"`` or ``"RGB"``."""
        return self._both(lambda split: split.converted(channels))

    def _both(self, change: Callable[[Split], Split]) -> DataSet:
        return DataSet(self.name, change(self.train), change(self.test))

    def renamed(self, name: str) -> DataSet:
        """Return the same images under another name, the splits' names included."""
        return DataSet(name, self.train.renamed(f"{name}/train"), self.test.renamed(f"{name}/test"))

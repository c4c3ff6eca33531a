"""Images of one purpose with their class names: subsets, halves, sizes, statistics, digest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
from numpy.typing import NDArray

from compatkit.contracts.labels import common
from compatkit.data.lazy import SAMPLE, Channels, ImageResize, LazyImages, Shrink
from compatkit.data.storage import Held, ResidentImages, stored
from compatkit.data.transforms import KERNELS, CropMode, Images, Shift
from compatkit.data.validation import check_images, check_labels, check_names, check_size
from compatkit.errors import DataError
from compatkit.foundation.bars import Progress

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["NO_CLASSES", "SAMPLE", "Channels", "Split"]

NO_CLASSES = ("unlabelled",)
"""Classes of images without labels."""


@attrs.frozen(eq=False, repr=False)
class Split:
    """Images of one purpose (training or test) with their classes. Never change the arrays in place.

    Attributes:
        images: uint8 ``(n, h, w, c)``, ``c`` 1 (gray) or 3 (RGB), n at least 1; or ``LazyImages``, which are read when
            they are asked for.
        labels: int64 ``(n,)``, positions in ``classes``; other integer types are converted.
        classes: Names of the classes, each once.
        name: For example ``"mnist/train"``.
        sample: Whether these are some of the images of that name, chosen by ``subset``, ``take`` or ``halves``: figures
            on a sample say nothing about those on all, or on another sample.
        damaged: Images of its source that were left out, since they could not be decoded.

    Raises:
        DataError: An array has another type or shape, a label is out of range, or a class name is empty
            or comes twice.
    """

    images: Held
    labels: NDArray[np.int64]
    classes: tuple[str, ...]
    name: str
    sample: bool = False
    damaged: int = 0
    _known: dict[str, Any] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        """Check the four fields, and convert labels and class names to their final types."""
        if not isinstance(self.images, LazyImages):
            check_images(self.images, self.name)
        classes = check_names(self.classes, self.name)
        labels = check_labels(self.labels, len(self.images), classes, self.name)
        object.__setattr__(self, "classes", classes)
        object.__setattr__(self, "labels", labels)

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.images)

    def __repr__(self) -> str:
        size = "of their own sizes" if self.size is None else "{}x{}".format(*self.size)
        images = f"{len(self)} images {size} {self.channels}"
        images += f" ({self.damaged} damaged ones left out)" if self.damaged else ""
        endings = self.images.endings if isinstance(self.images, LazyImages) else {}
        if len(endings) > 1:
            images += f" ({', '.join(f'{ending} {count:,}' for ending, count in endings.items())})"
        return f"Split({self.name!r}, {images}, {len(self.classes)} classes)"

    @property
    def channels(self) -> Channels:
        """``"L"`` for gray images, ``"RGB"`` for colored ones."""
        return self._storage.channels

    @property
    def size(self) -> tuple[int, int] | None:
        """Height and width in pixels; None where images have sizes of their own."""
        return self._storage.size

    @property
    def lazy(self) -> bool:
        """Whether images are read on demand."""
        return isinstance(self.images, LazyImages)

    def image(self, position: int) -> Image:
        """Return an image as a Pillow image of its own size.

        Raises:
            DataError: It is damaged or gone.
            EnvironmentFailure: It cannot be read.
        """
        return self._storage.image(position)

    def name_of(self, position: int) -> str:
        """Return an image's name in messages: its file, or its number."""
        return self._storage.name_in(self.name, position)

    def read(self, positions: Iterable[int] | NDArray[np.int64]) -> Images:
        """Return images at ``positions``, in that order, uint8 ``(n, height, width, channels)``.

        Raises:
            DataError: One is damaged or gone; or they have sizes of their own, and no size was given.
            EnvironmentFailure: One cannot be read.
        """
        return self._storage.read(positions)

    @property
    def digest(self) -> str:
        """``"data:sha256:..."`` over images, labels and classes; the name does not count.

        Of images in files: over the bytes of the files, and what is done to them. ``"data:unverified:..."`` is over
        names, sizes and times of the files, after ``load(digest="unverified")``.
        """
        if "digest" not in self._known:
            kind, settings, content = self._storage.hashed(self._digests)
            head = {"classes": list(self.classes), **settings}
            hashed = hashlib.sha256(json.dumps(head, sort_keys=True).encode("ascii") + b"\n")
            hashed.update(content)
            hashed.update(np.ascontiguousarray(self.labels, dtype="<i8").data)
            self._known["digest"] = f"data:{kind}:{hashed.hexdigest()}"
        return self._known["digest"]

    @property
    def image_digests(self) -> list[bytes]:
        """A digest of the bytes of each image, or of its file, made once: equal images have equal ones."""
        return self.digest_images()

    def digest_images(self, progress: Progress | None = None) -> list[bytes]:
        """Return ``image_digests``; ``progress`` is called with files read, all files, and a description."""
        return [digest.tobytes() for digest in self._digests(progress)]

    def _digests(self, progress: Progress | None = None) -> NDArray[np.void]:
        if "images" not in self._known:
            self._known["images"] = self._storage.digests(progress)
        return self._known["images"]

    @property
    def _storage(self) -> ResidentImages | LazyImages:
        return stored(self.images)

    @property
    def labeled(self) -> bool:
        """Whether the labels say anything: False of what ``unlabeled`` returns."""
        return self.classes != NO_CLASSES

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of images of each class, in the order of ``classes``."""
        return tuple(np.bincount(self.labels, minlength=len(self.classes)).tolist())

    def statistics(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return mean and standard deviation of each channel on the scale 0 to 1, over all pixels.

        Of images in files: over those of ``SAMPLE`` images, evenly spaced over the split.

        Raises:
            DataError: A channel holds one value only, so that nothing can be normalized by its deviation.
        """
        if "statistics" not in self._known:
            self._known["statistics"] = self._statistics()
        return self._known["statistics"]

    def resized(
        self,
        size: tuple[int, int],
        *,
        interpolation: str = "bilinear",
        crop_pct: float = 1.0,
        crop_mode: CropMode = "squash",
    ) -> Split:
        """Return the images at ``size`` (height, width), antialiased; itself where nothing is to do.

        Args:
            size: Of the results.
            interpolation: ``"nearest"``, ``"bilinear"``, ``"bicubic"`` or ``"lanczos"``.
            crop_pct: Share that is kept of an image resized to ``size / crop_pct``, in the middle.
            crop_mode: ``"squash"`` resizes to exactly that; ``"center"`` keeps the aspect ratio and covers it.

        Raises:
            DataError: The size is none, the interpolation is not known, or the share is not above 0.
        """
        wanted = check_size(size, self.name)
        if interpolation not in KERNELS or not crop_pct > 0:
            raise DataError(
                f"{self.name}: images are resized by {', '.join(KERNELS)} interpolation, keeping a share above 0; "
                f"asked for are {interpolation!r} and {crop_pct}. Resize the images before, or state another contract."
            )
        if wanted == self.size and crop_pct == 1.0:
            return self
        step = ImageResize(wanted, interpolation, float(crop_pct), crop_mode)
        return self._with(images=self._storage.resized(step))

    def shrunk(
        self, size: tuple[int, int], *, interpolation: str = "bilinear", crop_pct: float = 1.0
    ) -> Split:
        """Return images in files scaled down to the size from which evaluation cuts ``size``: see ``Shrink``.

        Args:
            size: Height and width.
            interpolation: Name of the filter.
            crop_pct: Share of a side that evaluation keeps.
        """
        return self._with(images=self._storage.shrunk(Shrink(size, interpolation, crop_pct)))

    def converted(self, channels: Channels) -> Split:
        """Return the images as ``"L"`` or ``"RGB"``: gray repeated, or the luma of the colors."""
        if channels not in ("L", "RGB"):
            raise DataError(f"{self.name}: images can be converted to 'L' or 'RGB', not {channels!r}.")
        return self if channels == self.channels else self._with(images=self._storage.converted(channels))

    def shifted(self, hue: float = 0.0, brightness: float = 1.0, blur: float = 0.0) -> Split:
        """Return the images shifted in color and blur; see ``Shift``.

        Args:
            hue: Rotation of the colors about the gray axis, in turns.
            brightness: Factor of all values, above 0 and at most 1.
            blur: Standard deviation of a Gaussian blur in pixels.
        """
        return self._with(images=self._storage.shifted(Shift(hue, brightness, blur)))

    def subset(self, n: int, seed: int | None = None) -> Split:
        """Return ``n`` images, as many of each class as there are, in the order they have here.

        Args:
            n: Number of images, 1 to all. A class with fewer than its share is taken whole, and the others
                make up for it; a remainder goes to the first classes.
            seed: Draws the images of each class at random; None takes the first ones.

        Raises:
            DataError: ``n`` is no integer, below 1, or more than there are.
        """
        if isinstance(n, bool) or not isinstance(n, int | np.integer) or not 1 <= n <= len(self):
            raise DataError(
                f"{self.name} has {len(self)} images; a subset takes 1 to all of them, not {n!r}."
            )
        draw = None if seed is None else np.random.default_rng(seed)
        positions: list[NDArray[np.int64]] = []
        for of_class, share in zip(self.positions_by_class(), _shares(self.counts, int(n)), strict=True):
            positions.append((of_class if draw is None else draw.permutation(of_class))[:share])
        return self.take(np.concatenate(positions))

    def take(self, positions: Iterable[int] | NDArray[np.int64]) -> Split:
        """Return the images at ``positions``, in ascending order."""
        chosen = np.sort(np.asarray(positions, dtype=np.int64))
        some = self.sample or len(chosen) < len(self)
        return self._with(images=self._storage.take(chosen), labels=self.labels[chosen], sample=some)

    def of_classes(self, classes: Sequence[str]) -> Split:
        """Return the images of some classes, labeled by their places among them.

        Args:
            classes: Names, or other names of the alias table; the result has the names of this split.

        Raises:
            DataError: A class is missing or repeated, or the list is empty.
        """
        wanted = tuple(classes)
        pairs = common(wanted, self.classes, owners=("the classes asked for", self.name))
        missing = [name for place, name in enumerate(wanted) if place not in {mine for mine, _ in pairs}]
        if missing or not wanted or isinstance(classes, str):
            lacks = f", of which {', '.join(missing)} is not there" if missing else ""
            raise DataError(
                f"{self.name} has the classes {', '.join(self.classes)}; got {classes!r:.200}{lacks}. Name "
                "some of them, as a list."
            )
        places = np.array([theirs for _, theirs in sorted(pairs)], dtype=np.int64)
        new_labels = np.full(len(self.classes), -1, dtype=np.int64)
        new_labels[places] = np.arange(len(places))
        some = self.take(np.flatnonzero(new_labels[self.labels] >= 0))
        return some._with(
            labels=new_labels[some.labels], classes=tuple(self.classes[place] for place in places)
        )

    def halves(self) -> tuple[Split, Split]:
        """Return two disjoint splits: of each class the images at even, and those at odd places.

        Raises:
            DataError: There are fewer than two images of every class.
        """
        places = self.positions_by_class()
        if all(len(of_class) < 2 for of_class in places):
            raise DataError(f"{self.name} has fewer than two images of each class; it cannot be halved.")
        return tuple(self.take(np.concatenate([p[start::2] for p in places])) for start in (0, 1))  # type: ignore[return-value]

    def divide(self, *counts: int, seed: int = 0) -> tuple[Split, ...]:
        """Return disjoint splits of so many images each, drawn at random whatever their classes.

        Args:
            counts: Images of each split, in all at most those of this one.
            seed: Draws them; the first split does not depend on the counts of the others.

        Raises:
            DataError: A count is below 1, or there are not so many images.
        """
        wrong = [
            count for count in counts if isinstance(count, bool) or not isinstance(count, int) or count < 1
        ]
        if wrong or not counts or sum(counts) > len(self):
            raise DataError(
                f"{self.name} has {len(self)} images; disjoint splits of it have at least one each and no more in all, "
                f"not {', '.join(map(repr, counts)) or 'none'}."
            )
        order = np.random.default_rng(seed).permutation(len(self))
        return tuple(self.take(positions) for positions in np.split(order, np.cumsum(counts))[:-1])

    def renamed(self, name: str) -> Split:
        """Return the same images under another name."""
        return self._with(name=name)

    def unlabeled(self) -> Split:
        """Return the same images, of which no label is known: all of one class, whatever they were.

        Its digest is one of the images alone.
        """
        return self._with(labels=np.zeros(len(self), dtype=np.int64), classes=NO_CLASSES)

    def positions_by_class(self) -> list[NDArray[np.int64]]:
        """Return the positions of the images of each class, ascending, in the order of ``classes``."""
        order = np.argsort(self.labels, kind="stable")
        return np.split(order, np.cumsum(self.counts)[:-1])

    def _with(self, **changes: Any) -> Split:
        return attrs.evolve(self, **changes)

    def _statistics(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        # A histogram per channel: exact in integers, whatever the number of pixels.
        histogram = self._storage.histogram()
        values, count = np.arange(256) / 255.0, histogram[0].sum()
        mean = histogram @ values / count
        variance = (histogram * (values[None, :] - mean[:, None]) ** 2).sum(axis=1) / count
        for channel, row in enumerate(histogram):
            if np.count_nonzero(row) < 2:
                raise DataError(
                    f"{self.name}: every pixel of channel {channel} has the value {int(row.argmax())}; such "
                    "images cannot be normalized, and hold nothing to learn from."
                )
        return tuple(mean.tolist()), tuple(np.sqrt(variance).tolist())


def _shares(available: tuple[int, ...], n: int) -> list[int]:
    """Return how many to take of each class: as even as the classes allow, ``n`` in all."""
    shares = [0] * len(available)
    while left := n - sum(shares):
        room = [index for index, count in enumerate(available) if shares[index] < count]
        # All by the same amount while that lasts; then one more for the first, who all have the same by now.
        each = left // len(room)
        for index in room if each else room[:left]:
            shares[index] = min(available[index], shares[index] + max(each, 1))
    return shares

"""Splits: images with labels and class names; subsets, resizing, statistics, digest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
from numpy.typing import NDArray

from compatkit.contracts.image_size import image_size
from compatkit.contracts.labels import common
from compatkit.data.lazy import SAMPLE, Channels, ImageResize, LazyImages, Shrink, Step
from compatkit.data.storage import ResidentImages
from compatkit.data.transforms import KERNELS, CropMode, Images, Shift
from compatkit.data.validation import check_images, check_labels, check_names
from compatkit.errors import DataError
from compatkit.foundation.bars import Progress

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["NO_CLASSES", "SAMPLE", "Channels", "Split"]

NO_CLASSES = ("unlabelled",)
"""Classes of images without labels."""


@attrs.frozen(eq=False, repr=False)
class Split:
    """Training or test images with their labels. Never change the arrays in place.

    Attributes:
        images: uint8 ``(n, h, w, c)``, ``c`` 1 (gray) or 3 (RGB), n at least 1; or ``LazyImages``, which are read on
            demand.
        labels: int64 ``(n,)``, indices into ``classes``; other integer types are converted.
        classes: Distinct names of the classes.
        name: For example ``"mnist/train"``.
        sample: Whether these are some of the images of that name, chosen by ``subset``, ``take`` or ``halves``:
            results on a sample do not hold for all images or for another sample.
        damaged: Number of images that were left out because they cannot be decoded.

    Raises:
        DataError: An array has another type or shape, a label is out of range, or a class name is empty or repeated.
    """

    images: Images | LazyImages
    labels: NDArray[np.int64]
    classes: tuple[str, ...]
    name: str
    sample: bool = False
    damaged: int = 0
    _known: dict[str, Any] = attrs.field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        """Check the fields; convert labels and class names to their final types."""
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
        extensions = self.images.extensions if isinstance(self.images, LazyImages) else {}
        if len(extensions) > 1:
            images += f" ({', '.join(f'{extension} {count:,}' for extension, count in extensions.items())})"
        return f"Split({self.name!r}, {images}, {len(self.classes)} classes)"

    @property
    def channels(self) -> Channels:
        """``"L"`` for gray images, ``"RGB"`` for colored ones."""
        return self._storage.channels

    @property
    def size(self) -> tuple[int, int] | None:
        """Height and width in pixels; None if images differ in size."""
        return self._storage.size

    @property
    def lazy(self) -> bool:
        """Whether images are read on demand."""
        return isinstance(self.images, LazyImages)

    def image(self, position: int) -> Image:
        """Return an image as a Pillow image of its own size.

        Raises:
            DataError: The image is damaged or missing.
            EnvironmentFailure: It cannot be read.
        """
        return self._storage.image(position)

    def name_of(self, position: int) -> str:
        """Return the name of an image for messages: its file, or its number."""
        return self._storage.name_in(self.name, position)

    def read(self, positions: Iterable[int] | NDArray[np.int64]) -> Images:
        """Return images at ``positions``, in that order, uint8 ``(n, height, width, channels)``.

        Raises:
            DataError: An image is damaged or missing; or images differ in size.
            EnvironmentFailure: An image cannot be read.
        """
        return self._storage.read(positions)

    @property
    def digest(self) -> str:
        """``"data:sha256:..."`` over images, labels and classes, without the name.

        For images in files it covers the bytes of the files, and the steps applied to them. ``"data:unverified:..."``
        covers names, sizes and times of the files, after ``load(digest="unverified")``.
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
        """Digest of the bytes of each image or its file; equal images have equal digests."""
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
        return self.images if isinstance(self.images, LazyImages) else ResidentImages(self.images)

    @property
    def labeled(self) -> bool:
        """Whether labels are known; False for the result of ``unlabeled``."""
        return self.classes != NO_CLASSES

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of images of each class, in the order of ``classes``."""
        return tuple(np.bincount(self.labels, minlength=len(self.classes)).tolist())

    def statistics(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return mean and standard deviation of each channel on the scale 0 to 1, over all pixels.

        For images in files they are computed from ``SAMPLE`` images, evenly spaced over the split.

        Raises:
            DataError: A channel has a single value, so it cannot be normalized.
        """
        if "statistics" not in self._known:
            self._known["statistics"] = self._statistics()
        return self._known["statistics"]

    def resized(
        self,
        size: int | tuple[int, int],
        *,
        interpolation: str = "bilinear",
        crop_pct: float = 1.0,
        crop_mode: CropMode = "squash",
    ) -> Split:
        """Return the images at ``size`` (height, width), antialiased; the split itself if nothing changes.

        Args:
            size: Height and width of the results, or one number for both.
            interpolation: ``"nearest"``, ``"bilinear"``, ``"bicubic"`` or ``"lanczos"``.
            crop_pct: Images are resized to ``size / crop_pct``, and ``size`` is cropped from the center.
            crop_mode: ``"squash"`` resizes to exactly that; ``"center"`` keeps the aspect ratio and covers it.

        Raises:
            DataError: The size or interpolation is invalid, or the share is not positive.
        """
        wanted = image_size(size, f"resized of {self.name}", DataError)
        if interpolation not in KERNELS or not crop_pct > 0:
            raise DataError(
                f"{self.name}: expected an interpolation of {', '.join(KERNELS)} and a crop_pct above 0, got "
                f"{interpolation!r} and {crop_pct}."
            )
        if wanted == self.size and crop_pct == 1.0:
            return self
        return self._apply(ImageResize(wanted, interpolation, float(crop_pct), crop_mode))

    def shrunk(
        self, size: tuple[int, int], *, interpolation: str = "bilinear", crop_pct: float = 1.0
    ) -> Split:
        """Return images in files scaled down to the size that evaluation crops ``size`` from; see ``Shrink``.

        Args:
            size: Height and width.
            interpolation: Name of the filter.
            crop_pct: Share of a side that evaluation crops.
        """
        return self._apply(Shrink(size, interpolation, crop_pct))

    def converted(self, channels: Channels) -> Split:
        """Return the images as ``"L"`` or ``"RGB"``: gray repeated, or the luma of the colors."""
        if channels not in ("L", "RGB"):
            raise DataError(f"{self.name}: images can be converted to 'L' or 'RGB', not {channels!r}.")
        return self if channels == self.channels else self._apply(channels)

    def shifted(self, hue: float = 0.0, brightness: float = 1.0, blur: float = 0.0) -> Split:
        """Return the images shifted in color, brightness and blur; see ``Shift``.

        Args:
            hue: Rotation of the colors about the gray axis, in turns.
            brightness: Factor of all values, in (0, 1].
            blur: Standard deviation of a Gaussian blur in pixels.
        """
        return self._apply(Shift(hue, brightness, blur))

    def subset(self, n: int, seed: int | None = None) -> Split:
        """Return ``n`` images with equal numbers of each class, in their original order.

        Args:
            n: Number of images, 1 to all. A class with fewer images than its share is taken entirely, and the others
                make up for it; a remainder goes to the first classes.
            seed: Random seed of the selection; None takes the first images of each class.

        Raises:
            DataError: ``n`` is not an integer from 1 to the number of images.
        """
        if isinstance(n, bool) or not isinstance(n, int | np.integer) or not 1 <= n <= len(self):
            raise DataError(f"{self.name} has {len(self)} images; a subset has 1 to all of them, not {n!r}.")
        generator = None if seed is None else np.random.default_rng(seed)
        positions: list[NDArray[np.int64]] = []
        for of_class, share in zip(self.positions_by_class(), _shares(self.counts, int(n)), strict=True):
            positions.append((of_class if generator is None else generator.permutation(of_class))[:share])
        return self.take(np.concatenate(positions))

    def take(self, positions: Iterable[int] | NDArray[np.int64]) -> Split:
        """Return the images at ``positions``, in ascending order."""
        chosen = np.sort(np.asarray(positions, dtype=np.int64))
        sample = self.sample or len(chosen) < len(self)
        return attrs.evolve(
            self, images=self._storage.take(chosen), labels=self.labels[chosen], sample=sample
        )

    def of_classes(self, classes: Sequence[str]) -> Split:
        """Return the images of some classes, with labels in the given order.

        Args:
            classes: Names or aliases; the result has the names of this split.

        Raises:
            DataError: A class is missing or repeated, or the list is empty.
        """
        wanted = tuple(classes)
        pairs = common(wanted, self.classes, owners=("the classes asked for", self.name))
        known = {index for index, _ in pairs}
        missing = [name for index, name in enumerate(wanted) if index not in known]
        if missing or not wanted or isinstance(classes, str):
            unknown = f"; {', '.join(missing)} is unknown" if missing else ""
            raise DataError(
                f"{self.name}: expected a list of some of its classes ({', '.join(self.classes)}), got "
                f"{classes!r:.200}{unknown}."
            )
        indices = np.array([theirs for _, theirs in sorted(pairs)], dtype=np.int64)
        new_labels = np.full(len(self.classes), -1, dtype=np.int64)
        new_labels[indices] = np.arange(len(indices))
        some = self.take(np.flatnonzero(new_labels[self.labels] >= 0))
        names = tuple(self.classes[index] for index in indices)
        return attrs.evolve(some, labels=new_labels[some.labels], classes=names)

    def halves(self) -> tuple[Split, Split]:
        """Return two disjoint splits: the images of each class at even, and those at odd positions.

        Raises:
            DataError: Every class has fewer than two images.
        """
        by_class = self.positions_by_class()
        if all(len(of_class) < 2 for of_class in by_class):
            raise DataError(f"{self.name} has fewer than two images of each class; it cannot be halved.")
        even, odd = (self.take(np.concatenate([p[start::2] for p in by_class])) for start in (0, 1))
        return even, odd

    def divide(self, *counts: int, seed: int = 0) -> tuple[Split, ...]:
        """Return disjoint splits with the given numbers of images, drawn at random whatever their classes.

        Args:
            counts: Number of images of each split; their sum is at most that of this split.
            seed: Random seed; the first split does not depend on the other counts.

        Raises:
            DataError: A count is below 1, or the sum is too large.
        """
        invalid = any(isinstance(count, bool) or not isinstance(count, int) or count < 1 for count in counts)
        if invalid or not counts or sum(counts) > len(self):
            raise DataError(
                f"{self.name} has {len(self)} images; disjoint splits need at least one each and at most these in all, "
                f"got {', '.join(map(repr, counts)) or 'none'}."
            )
        order = np.random.default_rng(seed).permutation(len(self))
        return tuple(self.take(positions) for positions in np.split(order, np.cumsum(counts))[:-1])

    def renamed(self, name: str) -> Split:
        """Return the same images under another name."""
        return attrs.evolve(self, name=name)

    def unlabeled(self) -> Split:
        """Return the same images without labels: all in the single class of ``NO_CLASSES``.

        The digest of the result depends on the images alone.
        """
        return attrs.evolve(self, labels=np.zeros(len(self), dtype=np.int64), classes=NO_CLASSES)

    def positions_by_class(self) -> list[NDArray[np.int64]]:
        """Return the positions of the images of each class, ascending, in the order of ``classes``."""
        order = np.argsort(self.labels, kind="stable")
        return np.split(order, np.cumsum(self.counts)[:-1])

    def _apply(self, step: Step) -> Split:
        return attrs.evolve(self, images=self._storage.apply(step))

    def _statistics(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        # A histogram per channel: exact in integers, whatever the number of pixels.
        histogram = self._storage.histogram()
        values, count = np.arange(256) / 255.0, histogram[0].sum()
        mean = histogram @ values / count
        variance = (histogram * (values[None, :] - mean[:, None]) ** 2).sum(axis=1) / count
        for channel, row in enumerate(histogram):
            if np.count_nonzero(row) < 2:
                raise DataError(
                    f"{self.name}: all pixels of channel {channel} have the value {int(row.argmax())}; such images "
                    "cannot be normalized."
                )
        return tuple(mean.tolist()), tuple(np.sqrt(variance).tolist())


def _shares(available: tuple[int, ...], n: int) -> list[int]:
    """Return how many images to take of each class: as even as the classes allow, ``n`` in all."""
    shares = [0] * len(available)
    while left := n - sum(shares):
        room = [index for index, count in enumerate(available) if shares[index] < count]
        # All grow by the same amount while possible; then the first ones, all equal by now, grow by one.
        each = left // len(room)
        for index in room if each else room[:left]:
            shares[index] = min(available[index], shares[index] + max(each, 1))
    return shares

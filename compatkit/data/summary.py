"""Summary of a data set, each image decoded once: classes, sizes, modes, damaged images, copies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import median

import attrs

from compatkit.data.decoding import decode_with_mode
from compatkit.data.lazy import LazyImages
from compatkit.data.split import Split
from compatkit.errors import DamagedImage
from compatkit.foundation.bars import Progress, bar
from compatkit.foundation.threads import each

Range = tuple[int, float, int]
"""Minimum, median and maximum."""
FIRST = 5
"""Number of pairs of copies that are listed."""


@attrs.frozen
class Copies:
    """Images whose bytes equal those of an earlier image.

    Attributes:
        count: Number of copies.
        relabeled: Number of copies with another class than the earlier image.
        first: The first few pairs: the earlier image, and its copy.
    """

    count: int
    relabeled: int
    first: tuple[tuple[str, str], ...]


@attrs.frozen
class SplitSummary:
    """Summary of a split.

    Attributes:
        name: Name of the split.
        digest: Digest of the split.
        images: Number of images.
        classes: Number of images by class; empty if no class is known.
        heights: Heights in pixels of the images that can be decoded; None if there are none.
        widths: Widths in pixels.
        kinds: Number of images by Pillow's mode of their files.
        damaged: Names of the images that cannot be decoded.
        copies: Copies within the split.
    """

    name: str
    digest: str
    images: int
    classes: dict[str, int]
    heights: Range | None
    widths: Range | None
    kinds: dict[str, int]
    damaged: tuple[str, ...]
    copies: Copies


@attrs.frozen
class DataSummary:
    """Summary of a data set.

    Attributes:
        parts: Summary of each split.
        shared: Images of the second split whose bytes equal those of an image of the first; None for a single split.
        others: Number of skipped files by kind; see ``SkippedFiles``.
    """

    parts: tuple[SplitSummary, ...]
    shared: Copies | None
    others: dict[str, int] = attrs.field(factory=dict)


def summarize(splits: Sequence[Split], progress: Progress | None = None) -> DataSummary:
    """Summarize one or two splits; every image is decoded.

    Args:
        splits: Training and test images, or a single split.
        progress: Called with the number done, the total, and a description.

    Raises:
        DataError: A file is missing.
        EnvironmentFailure: A file cannot be read.
    """
    parts = tuple(_summarize_split(split, progress) for split in splits)
    return DataSummary(parts, _copies(splits[1], splits[0]) if len(splits) > 1 else None)


def _summarize_split(split: Split, progress: Progress | None) -> SplitSummary:
    split.digest_images(progress)
    sizes: Counter[tuple[int, int]] = Counter()
    modes: Counter[str] = Counter()
    damaged: list[str] = []

    def decoded(position: int) -> tuple[int, int, str] | None:
        return _size_and_mode(split, position)

    with bar(progress) as report:
        for position, image in enumerate(each(decoded, range(len(split)))):
            if image is None:
                damaged.append(split.name_of(position))
            else:
                sizes[image[:2]] += 1
                modes[image[2]] += 1
            report(position + 1, len(split), f"decoding {split.name}")
    all_sizes = list(sizes.elements())
    return SplitSummary(
        split.name,
        split.digest,
        len(split),
        dict(zip(split.classes, split.counts, strict=True)) if split.labeled else {},
        _range([height for height, _ in all_sizes]),
        _range([width for _, width in all_sizes]),
        dict(modes.most_common()),
        tuple(damaged),
        _copies(split),
    )


def _size_and_mode(split: Split, position: int) -> tuple[int, int, str] | None:
    """Return height, width and mode of an image; None if it is damaged."""
    images = split.images
    if not isinstance(images, LazyImages):
        return *images.shape[1:3], split.channels
    index = int(images.positions[position])
    data = images.reader.read(index)
    try:
        image, mode = decode_with_mode(data, images.reader.name(index))
    except DamagedImage:
        return None
    return image.height, image.width, mode


def _range(values: list[int]) -> Range | None:
    return (min(values), median(values), max(values)) if values else None


def _copies(split: Split, others: Split | None = None) -> Copies:
    """Return the images of a split that are copies of earlier ones, or of images of another split."""
    first: dict[bytes, tuple[Split, int]] = {}
    if others is not None:
        for position, digest in enumerate(others.image_digests):
            first.setdefault(digest, (others, position))
    copies = []
    for position, digest in enumerate(split.image_digests):
        image = (split, position)
        original = first.get(digest, image) if others is not None else first.setdefault(digest, image)
        if original != image:
            copies.append((*original, position))
    relabeled = sum(owner.labels[original] != split.labels[copy] for owner, original, copy in copies)
    pairs = tuple((owner.name_of(original), split.name_of(copy)) for owner, original, copy in copies[:FIRST])
    return Copies(len(copies), int(relabeled), pairs)

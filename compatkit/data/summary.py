"""What a data set holds, each image decoded once: classes, sizes, kinds of files, damaged ones, copies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median

import attrs

from compatkit.data.decoding import decoded_kind
from compatkit.data.lazy import LazyImages
from compatkit.data.split import Split
from compatkit.errors import DamagedImage
from compatkit.foundation.bars import Progress, bar
from compatkit.foundation.threads import each

Range = tuple[int, float, int]
"""Least, median and most."""


@attrs.frozen
class Copies:
    """Images whose bytes are those of an image before them.

    Attributes:
        count: How many there are.
        relabeled: How many of them are of another class than the image before.
        first: Some of them: the image before, and the copy.
    """

    count: int
    relabeled: int
    first: tuple[tuple[str, str], ...]


@attrs.frozen
class SplitSurvey:
    """What a split holds.

    Attributes:
        name: Of the split.
        digest: Of the split.
        images: How many there are.
        classes: Images by class; empty where no class is known.
        heights: In pixels, of the images that can be decoded; None where none can.
        widths: In pixels.
        kinds: Images by the mode of their files, in Pillow's words.
        damaged: Names of the images that cannot be decoded.
        copies: Within the split.
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
class DataSurvey:
    """What a data set holds.

    Attributes:
        parts: Of each split.
        shared: Images of the second split whose bytes are those of one of the first; None of a single split.
        others: Files beside the images that are not read, by ending; see ``LeftOut``.
    """

    parts: tuple[SplitSurvey, ...]
    shared: Copies | None
    others: dict[str, int] = attrs.field(factory=dict)


FIRST = 5
"""Pairs of copies that are named."""


def survey(splits: Sequence[Split], progress: Progress | None = None) -> DataSurvey:
    """Survey every image of one or two splits.

    Args:
        splits: Training images and test images, or images of one purpose.
        progress: Called with the number done, the total, and a description.

    Raises:
        DataError: A file is gone.
        EnvironmentFailure: A file cannot be read.
    """
    parts = tuple(_part(split, progress) for split in splits)
    return DataSurvey(parts, _copies(splits[1], splits[0]) if len(splits) > 1 else None)


def _part(split: Split, progress: Progress | None) -> SplitSurvey:
    split.digest_images(progress)
    seen: Counter[tuple[int, int, str]] = Counter()
    damaged: list[str] = []
    with bar(progress) as tell:
        for place, size in enumerate(each(_looker(split), range(len(split)))):
            seen.update([size] if size is not None else [])
            damaged += [split.name_of(place)] if size is None else []
            tell(place + 1, len(split), f"decoding {split.name}")
    every = list(seen.elements())
    heights, widths = _range([size[0] for size in every]), _range([size[1] for size in every])
    kinds: Counter[str] = Counter()
    for (_, _, mode), count in seen.items():
        kinds[mode] += count
    classes = dict(zip(split.classes, split.counts, strict=True)) if split.labeled else {}
    return SplitSurvey(
        split.name,
        split.digest,
        len(split),
        classes,
        heights,
        widths,
        dict(kinds.most_common()),
        tuple(damaged),
        _copies(split),
    )


def _looker(split: Split) -> Callable[[int], tuple[int, int, str] | None]:
    """Return what gives height, width and mode of an image, None of a damaged one."""
    if isinstance(split.images, LazyImages):
        return partial(_look, split.images)
    height, width = split.images.shape[1:3]
    return lambda place: (height, width, split.channels)


def _look(images: LazyImages, position: int) -> tuple[int, int, str] | None:
    place = int(images.positions[position])
    data = images.reader.read(place)
    try:
        image, kind = decoded_kind(data, images.reader.name(place))
    except DamagedImage:
        return None
    return image.height, image.width, kind


def _range(values: list[int]) -> Range | None:
    return (min(values), median(values), max(values)) if values else None


def _copies(split: Split, others: Split | None = None) -> Copies:
    """Return the images of a split that are copies: of earlier ones, or of those of another split."""
    before: dict[bytes, tuple[Split, int]] = {}
    if others is not None:
        for place, digest in enumerate(others.image_digests):
            before.setdefault(digest, (others, place))
    copies = []
    for place, digest in enumerate(split.image_digests):
        other = before.get(digest) if others is not None else before.setdefault(digest, (split, place))
        if other is not None and other != (split, place):
            copies.append((*other, place))
    relabeled = sum(owner.labels[original] != split.labels[here] for owner, original, here in copies)
    first = tuple((owner.name_of(original), split.name_of(here)) for owner, original, here in copies[:FIRST])
    return Copies(len(copies), int(relabeled), first)

"""Read the preprocessing of a transformers image processor from ``preprocessor_config.json``.

Steps that a contract cannot describe are refused; entries without effect in compatkit are noted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from compatkit.errors import UsageError

PROCESSOR = "preprocessor_config.json"
RESAMPLING = ("nearest", "lanczos", "bilinear", "bicubic")
"""Pillow's resampling filters by their number."""
STEPS = frozenset(
    {
        *("do_resize", "do_center_crop", "do_rescale", "do_normalize", "do_convert_rgb"),
        *("do_reduce_labels", "do_convert_annotations"),  # for masks and boxes only
    }
)
"""Steps that a contract describes, or that do not change images."""
CHANGES = {
    "do_flip_channel_order": "the network expects BGR, and compatkit reads RGB",
    "include_top": "the images are divided by image_std a second time",
    "offset": "values are shifted below 0 before they are normalized",
    "rescale_offset": "values are shifted below 0 before they are normalized",
}
"""Entries that a contract cannot describe, with their effect; any unknown ``do_...`` is refused too."""


def preprocessing_of(table: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield name and value of each preprocessing setting: mean, std, interpolation, size and crop.

    Raises:
        UsageError: A contract cannot describe the preprocessing.
    """
    if not table:
        return
    _refuse_steps(table)
    if table.get("do_normalize", True):
        for field, name in (("mean", "image_mean"), ("std", "image_std")):
            if table.get(name) is not None:
                yield field, numbers_of(table[name], field, PROCESSOR)
    else:
        yield "mean", (0.0,)
        yield "std", (1.0,)
    if (number := table.get("resample")) is not None:
        if not isinstance(number, int) or not 0 <= number < len(RESAMPLING):
            raise UsageError(
                f"{PROCESSOR}: expected a resampling filter from 0 to {len(RESAMPLING) - 1}, got {number!r}.",
                subject="resample",
            )
        yield "interpolation", RESAMPLING[number]
    if table.get("do_resize", True) and table.get("size") is not None:
        yield from _crop(table, table["size"])
    elif table.get("do_center_crop") and table.get("crop_size") is not None:
        yield "size", size_of(table["crop_size"], PROCESSOR)


def _refuse_steps(table: Mapping[str, Any]) -> None:
    """Raise for steps and entries that a contract cannot describe; they would be lost silently."""
    factor = table.get("rescale_factor", 1 / 255)
    if (
        not table.get("do_rescale", True)
        or not isinstance(factor, int | float)
        or not math.isclose(factor, 1 / 255, rel_tol=1e-3)
    ):
        raise UsageError(
            f"{PROCESSOR} does not scale images to 0..1 (do_rescale, rescale_factor), as contracts require.",
            subject="rescale_factor",
        )
    for name in sorted(table):
        if table[name] and (name in CHANGES or (name.startswith("do_") and name not in STEPS)):
            raise UsageError(
                f"{PROCESSOR} has {name} {table[name]!r:.50}: {CHANGES.get(name, 'an unknown step')}. A "
                "contract cannot describe this. Remove the entry if the network works without it.",
                subject=name,
            )
    if table.get("do_center_crop") and table.get("crop_size") is None:
        raise UsageError(
            f"{PROCESSOR} has do_center_crop without crop_size; add the size.",
            subject="crop_size",
        )


def ignored_entries(table: Mapping[str, Any]) -> Iterator[str]:
    """Yield notes on entries without effect in compatkit."""
    if table.get("do_resize") is False:
        yield f"not applied: do_resize false of {PROCESSOR}; images are resized to the size of the contract"
    if table.get("do_convert_rgb") is False:
        yield f"not applied: do_convert_rgb false of {PROCESSOR}; images get the channels of the network"


def _crop(table: Mapping[str, Any], size: Any) -> Iterator[tuple[str, Any]]:
    """Yield size and crop; resizing to a shortest edge keeps the aspect ratio, so a size needs a crop too."""
    edge = size.get("shortest_edge") if isinstance(size, dict) else None
    if isinstance(size, dict) and size.get("longest_edge"):
        raise UsageError(
            f"{PROCESSOR} limits the longest edge ({size['longest_edge']}), so sizes vary; a contract has one size.",
            subject="size",
        )
    crop = table.get("crop_size") if table.get("do_center_crop") else None
    if edge is None and crop is not None and not isinstance(size, dict):
        edge = size if isinstance(size, int) else None
    if edge is not None and table.get("crop_pct"):  # ConvNeXt does not crop large images
        large = edge >= 384
        yield "size", (edge, edge)
        yield "crop_pct", 1.0 if large else table["crop_pct"]
        yield "crop_mode", "squash" if large else "center"
        return
    if edge is not None and crop is None:
        raise UsageError(
            f"{PROCESSOR} resizes the shortest edge to {edge} without a crop, so sizes vary; a contract has one size.",
            subject="size",
        )
    before = (edge, edge) if edge is not None else size_of(size, PROCESSOR)
    after = before if crop is None else size_of(crop, PROCESSOR)
    yield "size", after
    yield "crop_pct", after[0] / before[0]
    yield "crop_mode", "squash" if edge is None else "center"


def size_of(value: Any, file: str) -> tuple[int, int]:
    """Return height and width, from a number, a list or a mapping.

    Raises:
        UsageError: The value is not a size.
    """
    if isinstance(value, dict) and {"height", "width"} <= value.keys():
        value = [value["height"], value["width"]]
    elif isinstance(value, int):
        value = [value, value]
    sides = tuple(value[-2:]) if isinstance(value, list) and len(value) in (2, 3) else ()
    if len(sides) != 2 or not all(type(side) is int and side > 0 for side in sides):
        raise UsageError(
            f"{file}: expected a size as height and width in pixels, got {value!r:.100}.", subject="size"
        )
    return sides[0], sides[1]


def numbers_of(value: Any, field: str, file: str) -> tuple[float, ...]:
    """Return a number, or a list of numbers, as a tuple.

    Raises:
        UsageError: The value is anything else.
    """
    listed = value if isinstance(value, list) else [value]
    if not listed or not all(
        isinstance(number, int | float) and not isinstance(number, bool) for number in listed
    ):
        raise UsageError(f"{file}: expected numbers as {field}, got {value!r:.100}.", subject=field)
    return tuple(map(float, listed))

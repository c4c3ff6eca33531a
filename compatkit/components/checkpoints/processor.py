"""Read how a transformers image processor prepares images.

Reads ``preprocessor_config.json``. Steps that no contract describes are refused; entries without effect here are noted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from compatkit.errors import UsageError

PROCESSOR = "preprocessor_config.json"
RESAMPLING = ("nearest", "lanczos", "bilinear", "bicubic")
"""Pillow's numbers of its filters."""
STEPS = frozenset(
    {
        *("do_resize", "do_center_crop", "do_rescale", "do_normalize", "do_convert_rgb"),
        *("do_reduce_labels", "do_convert_annotations"),  # of masks and boxes, which no network here takes
    }
)
"""Steps of an image processor that a contract describes, or that change no image."""
CHANGES = {
    "do_flip_channel_order": "its network expects the channels as BGR, and compatkit gives RGB",
    "include_top": "the images are divided by image_std a second time",
    "offset": "values are shifted below 0 before they are normalized",
    "rescale_offset": "values are shifted below 0 before they are normalized",
}
"""Entries that no contract describes, with what they do; any other ``do_...`` is refused too."""


def facts_of(table: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the facts of an image processor.

    Raises:
        UsageError: Images are prepared in a way that no contract describes.
    """
    if not table:
        return
    _refuse_steps(table)
    if table.get("do_normalize", True):
        for fact, name in (("mean", "image_mean"), ("std", "image_std")):
            if table.get(name) is not None:
                yield fact, numbers_of(table[name], fact, PROCESSOR)
    else:
        yield from {"mean": (0.0,), "std": (1.0,)}.items()
    if (number := table.get("resample")) is not None:
        if not isinstance(number, int) or not 0 <= number < len(RESAMPLING):
            raise UsageError(
                f"{PROCESSOR} resizes images by the filter {number!r}; known are {', '.join(RESAMPLING)}.",
                subject="resample",
            )
        yield "interpolation", RESAMPLING[number]
    if table.get("do_resize", True) and table.get("size") is not None:
        yield from _crop(table, table["size"])
    elif table.get("do_center_crop") and table.get("crop_size") is not None:
        yield "size", sides_of(table["crop_size"], PROCESSOR)


def _refuse_steps(table: Mapping[str, Any]) -> None:
    """Refuse steps and entries that no contract describes: they would be left out silently."""
    factor = table.get("rescale_factor", 1 / 255)
    if (
        not table.get("do_rescale", True)
        or not isinstance(factor, int | float)
        or not math.isclose(factor, 1 / 255, rel_tol=1e-3)
    ):
        raise UsageError(
            f"{PROCESSOR} does not bring images to the scale 0 to 1 (do_rescale, rescale_factor); a contract describes "
            "images of this scale.",
            subject="rescale_factor",
        )
    for name in sorted(table):
        if table[name] and (name in CHANGES or (name.startswith("do_") and name not in STEPS)):
            raise UsageError(
                f"{PROCESSOR} has {name} {table[name]!r:.50}: {CHANGES.get(name, 'a step of its own')}. No contract "
                "describes this. Adopt a network that does without, or leave the entry out where images need none of "
                "it.",
                subject=name,
            )
    if table.get("do_center_crop") and table.get("crop_size") is None:
        raise UsageError(
            f"{PROCESSOR} has do_center_crop without crop_size, so that the size is not known; add it.",
            subject="crop_size",
        )


def not_applied(table: Mapping[str, Any]) -> Iterator[str]:
    """Yield notes on entries of an image processor without effect here."""
    if table.get("do_resize") is False:
        yield f"not applied: do_resize false of {PROCESSOR}; images are resized to the size of the contract"
    if table.get("do_convert_rgb") is False:
        yield f"not applied: do_convert_rgb false of {PROCESSOR}; images are read with the channels of the network"


def _crop(table: Mapping[str, Any], size: Any) -> Iterator[tuple[str, Any]]:
    """Yield size and crop; an edge alone keeps the aspect ratio, and needs a crop to give a size."""
    edge = size.get("shortest_edge") if isinstance(size, dict) else None
    if isinstance(size, dict) and size.get("longest_edge"):
        raise UsageError(
            f"{PROCESSOR} bounds the longest edge of images ({size['longest_edge']}), so that each has another size; a "
            "contract states one size.",
            subject="size",
        )
    crop = table.get("crop_size") if table.get("do_center_crop") else None
    if edge is None and crop is not None and not isinstance(size, dict):
        edge = size if isinstance(size, int) else None
    if edge is not None and table.get("crop_pct"):  # of ConvNeXt: large images are not cropped
        whole = edge >= 384
        yield from {
            "size": (edge, edge),
            "crop_pct": 1.0 if whole else table["crop_pct"],
            "crop_mode": "squash" if whole else "center",
        }.items()
        return
    if edge is not None and crop is None:
        raise UsageError(
            f"{PROCESSOR} resizes images to a shortest edge of {edge} and crops nothing, so that each has another "
            "size; a contract states one size.",
            subject="size",
        )
    before = (edge, edge) if edge is not None else sides_of(size, PROCESSOR)
    after = before if crop is None else sides_of(crop, PROCESSOR)
    yield "size", after
    yield "crop_pct", after[0] / before[0]
    yield "crop_mode", "squash" if edge is None else "center"


def sides_of(value: Any, file: str) -> tuple[int, int]:
    """Return height and width of a size in any form.

    Raises:
        UsageError: It is no size.
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


def numbers_of(value: Any, fact: str, file: str) -> tuple[float, ...]:
    """Return one number or several.

    Raises:
        UsageError: They are no numbers.
    """
    listed = value if isinstance(value, list) else [value]
    if not listed or not all(
        isinstance(number, int | float) and not isinstance(number, bool) for number in listed
    ):
        raise UsageError(f"{file}: expected numbers as {fact}, got {value!r:.100}.", subject=fact)
    return tuple(map(float, listed))

"""What a folder of Hugging Face or timm says of its weights: the network, its classes, and how images come to it.

Read are ``config.json`` (timm's ``save_for_hf``, or transformers') and ``preprocessor_config.json`` (of transformers'
image processors). What they and the caller state differently is refused: one of them would be published wrongly.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs

from compatkit.contracts.addresses import local
from compatkit.contracts.codec import loads
from compatkit.errors import FormatError, UsageError
from compatkit.registry.os_errors import environment

CONFIG, PROCESSOR = "config.json", "preprocessor_config.json"
WEIGHTS = ("model.safetensors", "pytorch_model.bin")
"""Names of a snapshot's weights, the safer first."""
OTHERS = (".safetensors", ".bin", ".pth", ".pt")
LARGEST = 2**24
"""Bytes of a JSON file."""
RESAMPLING = ("nearest", "lanczos", "bilinear", "bicubic")
"""Pillow's numbers of its filters."""
LABELS = ("label_names", "id2label", "class_names", "classes", "labels")
FACTS = (
    "model",
    "num_classes",
    "in_chans",
    "size",
    "labels",
    "mean",
    "std",
    "interpolation",
    "crop_pct",
    "crop_mode",
)


@attrs.frozen
class Snapshot:
    """Weights, and what stands beside them.

    Attributes:
        weights: The file.
        facts: By name, of ``FACTS``.
        sources: File that states each.
        kwargs: Further arguments of the network.
        told: Notes on what was chosen and left out.
    """

    weights: Path
    facts: Mapping[str, Any] = attrs.field(factory=dict)
    sources: Mapping[str, str] = attrs.field(factory=dict)
    kwargs: Mapping[str, Any] = attrs.field(factory=dict)
    told: tuple[str, ...] = ()


def read_snapshot(path: str | os.PathLike[str]) -> Snapshot:
    """Return a file of weights, or that of a folder, and what the files beside it state.

    Args:
        path: The file or the folder.

    Raises:
        UsageError: The folder holds no weights or several, two files contradict each other, or images are prepared in
            a way that no contract describes.
        FormatError: A JSON file is damaged.
        EnvironmentFailure: It cannot be read.
    """
    place = Path(local(path, "a file or folder of weights"))
    weights, told = _weights(place) if place.is_dir() else (place, ())
    config, processor = (_table(weights.parent / name) for name in (CONFIG, PROCESSOR))
    facts: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for name, table in ((CONFIG, dict(_of_config(config))), (PROCESSOR, dict(_of_processor(processor)))):
        for fact, value in table.items():
            if fact in facts:
                agree(fact, facts[fact], sources[fact], value, name, weights.parent)
            facts.setdefault(fact, value)
            sources.setdefault(fact, name)
    foreign = [] if "model" in facts else list(config.get("architectures") or ())
    if foreign:
        told += (
            f"{CONFIG} names the network {foreign[0]} of transformers, whose names of tensors are its own",
        )
    labels, more = _usable(facts.get("labels"))
    if labels is None:
        facts.pop("labels", None)
        sources.pop("labels", None)
    arguments = config.get("model_args") or {}
    return Snapshot(
        weights, facts, sources, {} if not isinstance(arguments, dict) else arguments, told + more
    )


def agree(fact: str, value: Any, source: str, other: Any, other_source: str, where: object) -> None:
    """Raise where two sources state different values.

    Args:
        fact: What they state.
        value: By the first.
        source: The first.
        other: By the second.
        other_source: The second.
        where: The folder, for the message.

    Raises:
        UsageError: They differ.
    """
    if not _equal(value, other):
        raise UsageError(
            f"{fact} is {_written(other)} by {other_source} and {_written(value)} by {source} in {where}; one of them "
            "is wrong. Correct or leave out one of them; a file of weights in a folder of its own has nothing beside "
            "it.",
            subject=fact,
        )


def image_notes(data: Any, sources: Mapping[str, str], assumed: str) -> Iterator[str]:
    """Yield how images are prepared, and who says so: mean, std, size, interpolation and crop.

    Args:
        data: The data level of the contract.
        sources: Who states a fact.
        assumed: Who states the others.
    """
    values = {
        "mean": data.mean,
        "std": data.std,
        "size": data.size,
        "interpolation": data.interpolation,
        "crop_pct": data.crop_pct,
        "crop_mode": data.crop_mode,
    }
    for fact, value in values.items():
        yield f"{fact} {_written(value)}: {sources.get(fact, assumed)}"


def _weights(folder: Path) -> tuple[Path, tuple[str, ...]]:
    with environment("list", folder):
        names = sorted(one.name for one in folder.iterdir() if one.is_file())
    usual = [name for name in WEIGHTS if name in names]
    found = usual or [name for name in names if name.endswith(OTHERS)]
    pieces = [name for name in names if name.endswith(".index.json") or "-of-" in name]
    if pieces and not usual:
        raise UsageError(
            f"{folder} holds weights in several files ({', '.join(pieces[:3])}); join them first, as with "
            "safetensors.torch.save_file of one state dict.",
            subject=folder,
        )
    if not found or (len(found) > 1 and not usual):
        there = ", ".join((found or names)[:5]) or "nothing"
        raise UsageError(
            f"{folder} should hold one file of weights, such as {' or '.join(WEIGHTS)}; there is {there}. Name "
            "the file.",
            subject=folder,
        )
    left = [name for name in usual[1:]]
    return folder / found[0], tuple(f"took {found[0]}, not {name} beside it" for name in left)


def _table(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    with environment("read", file), file.open("rb") as opened:
        data = opened.read(LARGEST + 1)
    table = loads(data, what=str(file), max_bytes=LARGEST)
    if not isinstance(table, dict):
        raise FormatError(f"{file} holds no table of facts about the weights beside it.", subject=file)
    return table


def _of_config(config: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the facts of ``config.json``."""
    inner = config.get("pretrained_cfg")
    table = {**config, **(inner if isinstance(inner, dict) else {})}
    if isinstance(model := table.get("architecture"), str):
        yield "model", model.partition(".")[0]
    for name in ("num_classes", "num_labels"):
        if isinstance(table.get(name), int):
            yield "num_classes", table[name]
            break
    if (channels := _channels(table)) is not None:
        yield "in_chans", channels
    sized = table.get("input_size") or table.get("image_size")
    if sized is not None:
        yield "size", _sides(sized, CONFIG)
    for fact, names in {"mean": ("mean", "image_mean"), "std": ("std", "image_std")}.items():
        if (stated := next((table[name] for name in names if table.get(name) is not None), None)) is not None:
            yield fact, _numbers(stated, fact, CONFIG)
    for fact in ("interpolation", "crop_pct", "crop_mode"):
        if table.get(fact) is not None:
            yield fact, table[fact]
    names = next((config[name] for name in LABELS if config.get(name)), table.get("label_names"))
    if names:
        yield "labels", _names(names)


def _channels(table: Mapping[str, Any]) -> int | None:
    sized = table.get("input_size")
    if isinstance(sized, list) and len(sized) == 3:
        return sized[0]
    return next(
        (table[name] for name in ("in_chans", "num_channels") if isinstance(table.get(name), int)), None
    )


def _of_processor(table: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the facts of an image processor of transformers."""
    if not table:
        return
    factor = table.get("rescale_factor", 1 / 255)
    scaled = table.get("do_rescale", True) and math.isclose(factor, 1 / 255, rel_tol=1e-3)
    if not scaled or table.get("rescale_offset"):
        raise UsageError(
            f"{PROCESSOR} does not bring images to the scale 0 to 1 (do_rescale, rescale_factor); a contract describes "
            "images of this scale.",
            subject="rescale_factor",
        )
    if table.get("do_normalize", True):
        for fact, name in (("mean", "image_mean"), ("std", "image_std")):
            if table.get(name) is not None:
                yield fact, _numbers(table[name], fact, PROCESSOR)
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
        yield "size", _sides(table["crop_size"], PROCESSOR)


def _crop(table: Mapping[str, Any], size: Any) -> Iterator[tuple[str, Any]]:
    """Yield size and crop; an edge alone keeps the aspect ratio, and needs a crop to give a size."""
    edge = size.get("shortest_edge") if isinstance(size, dict) else None
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
    before = (edge, edge) if edge is not None else _sides(size, PROCESSOR)
    after = before if crop is None else _sides(crop, PROCESSOR)
    yield "size", after
    yield "crop_pct", after[0] / before[0]
    yield "crop_mode", "squash" if edge is None else "center"


def _sides(value: Any, file: str) -> tuple[int, int]:
    if isinstance(value, dict) and {"height", "width"} <= value.keys():
        value = [value["height"], value["width"]]
    elif isinstance(value, int):
        value = [value, value]
    sides = tuple(value[-2:]) if isinstance(value, list) and len(value) in (2, 3) else ()
    if len(sides) != 2 or not all(type(one) is int and one > 0 for one in sides):
        raise UsageError(
            f"{file}: expected a size as height and width in pixels, got {value!r:.100}.", subject="size"
        )
    return sides[0], sides[1]


def _numbers(value: Any, fact: str, file: str) -> tuple[float, ...]:
    listed = value if isinstance(value, list) else [value]
    if not listed or not all(isinstance(one, int | float) and not isinstance(one, bool) for one in listed):
        raise UsageError(f"{file}: expected numbers as {fact}, got {value!r:.100}.", subject=fact)
    return tuple(map(float, listed))


def _names(value: Any) -> tuple[str, ...]:
    """Return class names in the order of the outputs."""
    if isinstance(value, dict):
        if set(value) != {str(place) for place in range(len(value))}:
            raise UsageError(
                f"{CONFIG}: class names are counted from 0 without gaps, got {sorted(value)[:5]}.",
                subject="labels",
            )
        value = [value[str(place)] for place in range(len(value))]
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise UsageError(f"{CONFIG}: expected class names, got {value!r:.100}.", subject="labels")
    return tuple(value)


def _usable(labels: Iterable[str] | None) -> tuple[tuple[str, ...] | None, tuple[str, ...]]:
    """Return class names that a head can have, and a note on those that are left out."""
    if labels is None:
        return None, ()
    names = tuple(labels)
    if all(name == f"LABEL_{place}" for place, name in enumerate(names)):
        return None, (f"{CONFIG} numbers the classes, and names none",)
    twins = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    if twins:
        return None, (
            f"left out the class names of {CONFIG}: {twins[0]!r} stands there twice; labels takes others",
        )
    return names, ()


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, tuple | list) and isinstance(other, tuple | list):
        if len(one) != len(other) and 1 in (len(one), len(other)):  # one number for all channels
            longer, shorter = (one, other) if len(one) > len(other) else (other, one)
            return all(_equal(value, shorter[0]) for value in longer)
        return len(one) == len(other) and all(map(_equal, one, other))
    if isinstance(one, int | float) and isinstance(other, int | float):
        return math.isclose(one, other, rel_tol=1e-3, abs_tol=1e-6)
    return one == other


def _written(value: Any) -> str:
    if isinstance(value, tuple | list):
        few = [f"{one:.4g}" if isinstance(one, float) else str(one) for one in value[:4]]
        return ", ".join(few) + (f" and {len(value) - 4} more" if len(value) > 4 else "")
    return f"{value:.4g}" if isinstance(value, float) else str(value)

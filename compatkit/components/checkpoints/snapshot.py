"""Read a Hugging Face or timm snapshot: weights, network, classes and preprocessing.

Reads ``config.json`` (timm's ``save_for_hf``, or transformers') and ``preprocessor_config.json`` (transformers' image
processors). Contradictions between them and the caller are refused: one of them would be published wrongly.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from compatkit.components.checkpoints.processor import PROCESSOR, facts_of, not_applied, numbers_of, sides_of
from compatkit.errors import FormatError, UsageError
from compatkit.foundation.addresses import local
from compatkit.foundation.codec import loads
from compatkit.registry.os_errors import environment

CONFIG = "config.json"
WEIGHTS = ("model.safetensors", "pytorch_model.bin")
"""Names of a snapshot's weights, the safer first."""
OTHERS = (".safetensors", ".bin", ".pth", ".pt")
LARGEST = 2**24
"""Bytes of a JSON file."""
LABELS = ("label_names", "id2label", "class_names", "classes", "labels")


@attrs.frozen
class Snapshot:
    """Weights, and what the files beside them state.

    Attributes:
        weights: The file.
        facts: By name: ``model``, ``num_classes``, ``in_chans``, ``size``, ``labels``, and how images are prepared.
        sources: File that states each.
        kwargs: Further arguments of the network.
        notes: Notes on what was chosen and left out.
    """

    weights: Path
    facts: Mapping[str, Any] = attrs.field(factory=dict)
    sources: Mapping[str, str] = attrs.field(factory=dict)
    kwargs: Mapping[str, Any] = attrs.field(factory=dict)
    notes: tuple[str, ...] = ()


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
    source = Path(local(path, "a file or folder of weights"))
    weights, notes = _weights(source) if source.is_dir() else (source, ())
    config, processor = (_table(weights.parent / name) for name in (CONFIG, PROCESSOR))
    facts: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for name, table in (
        (CONFIG, dict(_of_config(config, weights.parent))),
        (PROCESSOR, dict(facts_of(processor))),
    ):
        for fact, value in table.items():
            if fact in facts:
                agree(fact, facts[fact], sources[fact], value, name, weights.parent)
            facts.setdefault(fact, value)
            sources.setdefault(fact, name)
    foreign = [] if "model" in facts else list(config.get("architectures") or ())
    if foreign:
        notes += (
            f"{CONFIG} names the network {foreign[0]} of transformers, whose names of tensors are its own",
        )
    notes += tuple(not_applied(processor))
    labels, more = _usable(facts.get("labels"))
    if labels is None:
        facts.pop("labels", None)
        sources.pop("labels", None)
    arguments = config.get("model_args") or {}
    return Snapshot(
        weights, facts, sources, {} if not isinstance(arguments, dict) else arguments, notes + more
    )


def agree(fact: str, value: Any, source: str, other: Any, other_source: str, where: object) -> None:
    """Raise if two sources state different values.

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
    """Yield how images are preprocessed, each fact with its source: mean, std, size, interpolation and crop.

    Args:
        data: The data level of the contract.
        sources: Source of each fact.
        assumed: Source of the other facts.
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
        names = sorted(entry.name for entry in folder.iterdir() if entry.is_file())
    usual = [name for name in WEIGHTS if name in names]
    candidates = usual or [name for name in names if name.endswith(OTHERS)]
    pieces = [name for name in names if name.endswith(".index.json") or "-of-" in name]
    if pieces and not usual:
        raise UsageError(
            f"{folder} holds weights in several files ({', '.join(pieces[:3])}); join them first, as with "
            "safetensors.torch.save_file of one state dict.",
            subject=folder,
        )
    if not candidates or (len(candidates) > 1 and not usual):
        listed = ", ".join((candidates or names)[:5]) or "nothing"
        raise UsageError(
            f"{folder} should hold one file of weights, such as {' or '.join(WEIGHTS)}; there is {listed}. Name "
            "the file.",
            subject=folder,
        )
    left = [name for name in usual[1:]]
    return folder / candidates[0], tuple(f"took {candidates[0]}, not {name} beside it" for name in left)


def _table(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    with environment("read", file), file.open("rb") as opened:
        data = opened.read(LARGEST + 1)
    table = loads(data, what=str(file), max_bytes=LARGEST)
    if not isinstance(table, dict):
        raise FormatError(f"{file} holds no table of facts about the weights beside it.", subject=file)
    return table


def _of_config(config: Mapping[str, Any], folder: Path) -> Iterator[tuple[str, Any]]:
    """Yield the facts of ``config.json``; entries that state one fact differently are refused."""
    inner = config.get("pretrained_cfg")
    tables = {"": config, "pretrained_cfg.": inner if isinstance(inner, dict) else {}}
    table = {**config, **tables["pretrained_cfg."]}
    if isinstance(model := table.get("architecture"), str):
        yield "model", model.partition(".")[0]
    if (channels := _channels(table)) is not None:
        yield "in_chans", channels
    sized = table.get("input_size") or table.get("image_size")
    if sized is not None:
        yield "size", sides_of(sized, CONFIG)
    for fact, names in {"mean": ("mean", "image_mean"), "std": ("std", "image_std")}.items():
        if (stated := next((table[name] for name in names if table.get(name) is not None), None)) is not None:
            yield fact, numbers_of(stated, fact, CONFIG)
    for fact in ("interpolation", "crop_pct", "crop_mode"):
        if table.get(fact) is not None:
            yield fact, table[fact]
    named = [
        (f"{before}{name} of {CONFIG}", _names(part[name]))
        for before, part in tables.items()
        for name in LABELS
        if part.get(name)
    ]
    counts = [
        (f"{before}{name} of {CONFIG}", part[name])
        for before, part in tables.items()
        for name in ("num_classes", "num_labels")
        if isinstance(part.get(name), int)
    ]
    if counts:
        counts += [(f"the number of {entry}", len(names)) for entry, names in named]
        yield "num_classes", _alike("num_classes", counts, folder)
    if named:
        numbers = config.get("label2id")
        if isinstance(numbers, dict) and numbers:  # of two classes of one name it numbers one
            entry, names = named[0]
            numbered = {
                name: [str(place) for place, other in enumerate(names) if other == name] for name in names
            }
            wrong = [
                name
                for name in {**numbered, **numbers}
                if str(numbers.get(name)) not in numbered.get(name, ())
            ]
            if wrong:
                agree("labels", wrong[:1], f"label2id of {CONFIG}", None, entry, folder)
        yield "labels", _alike("labels", [pair for pair in named if not _numbered(pair[1])] or named, folder)


def _alike(fact: str, stated: Sequence[tuple[str, Any]], folder: Path) -> Any:
    """Return what several entries state alike."""
    (source, value), *others = stated
    for other_source, other in others:
        agree(fact, value, source, other, other_source, folder)
    return value


def _numbered(names: Sequence[str]) -> bool:
    return all(name == f"LABEL_{position}" for position, name in enumerate(names))


def _channels(table: Mapping[str, Any]) -> int | None:
    sized = table.get("input_size")
    if isinstance(sized, list) and len(sized) == 3:
        return sized[0]
    return next(
        (table[name] for name in ("in_chans", "num_channels") if isinstance(table.get(name), int)), None
    )


def _names(value: Any) -> tuple[str, ...]:
    """Return class names in the order of the outputs."""
    if isinstance(value, dict):
        if set(value) != {str(index) for index in range(len(value))}:
            raise UsageError(
                f"{CONFIG}: class names are counted from 0 without gaps, got {sorted(value)[:5]}.",
                subject="labels",
            )
        value = [value[str(index)] for index in range(len(value))]
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise UsageError(f"{CONFIG}: expected class names, got {value!r:.100}.", subject="labels")
    return tuple(value)


def _usable(labels: Iterable[str] | None) -> tuple[tuple[str, ...] | None, tuple[str, ...]]:
    """Return class names that a head can have, and a note on those that are left out."""
    if labels is None:
        return None, ()
    names = tuple(labels)
    if _numbered(names):
        return None, (f"{CONFIG} numbers the classes, and names none",)
    twins = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    if twins:
        warnings.warn(
            f"The parts get no class names: {CONFIG} names two classes {twins[0]!r}. Name all with labels.",
            stacklevel=5,
        )
        return None, (
            f"left out the class names of {CONFIG}: {twins[0]!r} appears twice; labels takes others",
        )
    return names, ()


def _equal(left: Any, right: Any) -> bool:
    if isinstance(left, tuple | list) and isinstance(right, tuple | list):
        if len(left) != len(right) and 1 in (len(left), len(right)):  # one number for all channels
            longer, shorter = (left, right) if len(left) > len(right) else (right, left)
            return all(_equal(value, shorter[0]) for value in longer)
        return len(left) == len(right) and all(map(_equal, left, right))
    if isinstance(left, int | float) and isinstance(right, int | float):
        return math.isclose(left, right, rel_tol=1e-3, abs_tol=1e-6)
    return left == right


def _written(value: Any) -> str:
    if isinstance(value, tuple | list):
        few = [f"{item:.4g}" if isinstance(item, float) else str(item) for item in value[:4]]
        return ", ".join(few) + (f" and {len(value) - 4} more" if len(value) > 4 else "")
    return f"{value:.4g}" if isinstance(value, float) else str(value)

"""Find weights, network, classes and preprocessing of a snapshot of Hugging Face or timm, or of an export.

Reads ``config.json`` of timm (``save_for_hf``) or transformers, ``preprocessor_config.json`` of transformers, and the
description of what compatkit exported; a folder of MLflow has its weights in ``data/``.
Values that contradict each other or the caller are refused: a wrong one would be published.
"""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from compatkit.components.checkpoints.exported import exported_description, network_facts
from compatkit.components.checkpoints.image_processor import (
    PROCESSOR,
    ignored_entries,
    numbers_of,
    preprocessing_of,
    size_of,
)
from compatkit.components.exports.document import Description
from compatkit.errors import FormatError, UsageError
from compatkit.foundation.addresses import local
from compatkit.foundation.codec import loads
from compatkit.registry.os_errors import environment

CONFIG = "config.json"
WEIGHTS = ("model.safetensors", "pytorch_model.bin")
"""File names of the weights, the safer first."""
OTHER_SUFFIXES = (".safetensors", ".bin", ".pth", ".pt")
MLMODEL = "MLmodel"
"""File that makes a folder one of MLflow."""
MLFLOW_WEIGHTS = ("model.pt2", "model.pth")
"""What MLflow's flavour pytorch writes below ``data``."""
MAX_JSON = 2**24
"""Size limit of a JSON file, in bytes."""
LABELS = ("label_names", "id2label", "class_names", "classes", "labels")
"""Entries of ``config.json`` with class names."""


@attrs.frozen
class Snapshot:
    """A file of weights with the metadata of the JSON files next to it.

    Attributes:
        weights: File of the weights.
        metadata: ``model``, ``builder``, ``cut``, ``num_classes``, ``in_chans``, ``size``, ``labels`` and
            preprocessing, as far as known.
        sources: File that each entry comes from.
        kwargs: Further arguments of the network.
        notes: Notes on files chosen and entries left out.
        description: Description of what compatkit exported; None for weights of other programs.
    """

    weights: Path
    metadata: Mapping[str, Any] = attrs.field(factory=dict)
    sources: Mapping[str, str] = attrs.field(factory=dict)
    kwargs: Mapping[str, Any] = attrs.field(factory=dict)
    notes: tuple[str, ...] = ()
    description: Description | None = None


def read_snapshot(path: str | os.PathLike[str]) -> Snapshot:
    """Find the weights and read the metadata next to them.

    Args:
        path: File of the weights, or a folder with one.

    Raises:
        UsageError: The folder contains no weights or several files of weights, two entries contradict each other, a
            contract cannot describe the preprocessing, or an export of compatkit holds no complete network.
        FormatError: A JSON file is damaged.
        EnvironmentFailure: A file cannot be read.
    """
    source = Path(local(path, "a file or folder of weights"))
    weights, notes = _weights(source) if source.is_dir() else (source, ())
    config, processor = (_read_json(weights.parent / name) for name in (CONFIG, PROCESSOR))
    metadata: dict[str, Any] = {}
    sources: dict[str, str] = {}
    description, where = exported_description(weights, source) or (None, "")
    for name, stated in (
        (CONFIG, _config_metadata(config, weights.parent)),
        (PROCESSOR, preprocessing_of(processor)),
        (where, () if description is None else network_facts(description)),
    ):
        for field, value in stated:
            if field in metadata:
                check_agreement(field, metadata[field], sources[field], value, name, weights.parent)
            metadata.setdefault(field, value)
            sources.setdefault(field, name)
    foreign = [] if "model" in metadata else list(config.get("architectures") or ())
    if foreign:
        notes += (f"{CONFIG} names {foreign[0]} of transformers, which has tensor names of its own",)
    notes += tuple(ignored_entries(processor))
    labels, more = _usable(metadata.get("labels"))
    if labels is None:
        metadata.pop("labels", None)
        sources.pop("labels", None)
    arguments = config.get("model_args") if description is None else description.parts[-1].blueprint.kwargs
    return Snapshot(
        weights,
        metadata,
        sources,
        arguments if isinstance(arguments, Mapping) else {},
        notes + more,
        description,
    )


def check_agreement(
    field: str, value: Any, source: str, other: Any, other_source: str, where: object
) -> None:
    """Raise if two sources give different values.

    Args:
        field: Name of the entry.
        value: Value in the first source.
        source: First source.
        other: Value in the second source.
        other_source: Second source.
        where: Folder of the files, for the message.

    Raises:
        UsageError: The values differ.
    """
    if not _equal(value, other):
        raise UsageError(
            f"{where}: {field} is {_formatted(value)} according to {source}, but {_formatted(other)} according to "
            f"{other_source}. Correct one of them, or move the weights to a folder without {CONFIG}.",
            subject=field,
        )


def image_notes(data: Any, sources: Mapping[str, str], assumed: str) -> Iterator[str]:
    """Yield the preprocessing settings of a contract, each with its source.

    Args:
        data: Data level of the contract.
        sources: Known source of each setting.
        assumed: Source of the other settings.
    """
    values = {
        "mean": data.mean,
        "std": data.std,
        "size": data.size,
        "interpolation": data.interpolation,
        "crop_pct": data.crop_pct,
        "crop_mode": data.crop_mode,
    }
    for field, value in values.items():
        yield f"{field} {_formatted(value)}: {sources.get(field, assumed)}"


def _weights(folder: Path) -> tuple[Path, tuple[str, ...]]:
    if (folder / MLMODEL).is_file():
        return _mlflow_weights(folder)
    with environment("list", folder):
        names = sorted(entry.name for entry in folder.iterdir() if entry.is_file())
    usual = [name for name in WEIGHTS if name in names]
    candidates = usual or [name for name in names if name.endswith(OTHER_SUFFIXES)]
    pieces = [name for name in names if name.endswith(".index.json") or "-of-" in name]
    if pieces and not usual:
        raise UsageError(
            f"{folder} contains sharded weights ({', '.join(pieces[:3])}). Merge them into one state dict and save it "
            "with safetensors.torch.save_file.",
            subject=folder,
        )
    if not candidates or (len(candidates) > 1 and not usual):
        listed = ", ".join((candidates or names)[:5]) or "nothing"
        raise UsageError(
            f"{folder}: expected one file of weights, such as {' or '.join(WEIGHTS)}; found {listed}. Name the file.",
            subject=folder,
        )
    return folder / candidates[0], tuple(f"used {candidates[0]}, not {name}" for name in usual[1:])


def _mlflow_weights(folder: Path) -> tuple[Path, tuple[str, ...]]:
    """Return the weights in a folder of MLflow; nothing else in it is read or run."""
    for name in MLFLOW_WEIGHTS:
        if (weights := folder / "data" / name).is_file():
            return weights, (f"used data/{name} of a folder of MLflow",)
    raise UsageError(
        f"{folder} is a folder of MLflow without data/{' or data/'.join(MLFLOW_WEIGHTS)}, the files of its flavour "
        "pytorch. Load it with MLflow where you trust it and save model.state_dict(), preferably as safetensors.",
        subject=folder,
    )


def _read_json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    with environment("read", file), file.open("rb") as opened:
        data = opened.read(MAX_JSON + 1)
    table = loads(data, what=str(file), max_bytes=MAX_JSON)
    if not isinstance(table, dict):
        raise FormatError(f"{file}: expected a JSON object.", subject=file)
    return table


def _config_metadata(config: Mapping[str, Any], folder: Path) -> Iterator[tuple[str, Any]]:
    """Yield name and value of each property in ``config.json``; contradicting entries are refused."""
    inner = config.get("pretrained_cfg")
    tables = {"": config, "pretrained_cfg.": inner if isinstance(inner, dict) else {}}
    table = {**config, **tables["pretrained_cfg."]}
    if isinstance(model := table.get("architecture"), str):
        yield "model", model.partition(".")[0]
    if (channels := _channels(table)) is not None:
        yield "in_chans", channels
    sized = table.get("input_size") or table.get("image_size")
    if sized is not None:
        yield "size", size_of(sized, CONFIG)
    for field, names in {"mean": ("mean", "image_mean"), "std": ("std", "image_std")}.items():
        if (stated := next((table[name] for name in names if table.get(name) is not None), None)) is not None:
            yield field, numbers_of(stated, field, CONFIG)
    for field in ("interpolation", "crop_pct", "crop_mode"):
        if table.get(field) is not None:
            yield field, table[field]
    labels = [
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
        counts += [(f"the number of {entry}", len(names)) for entry, names in labels]
        yield "num_classes", _agreed("num_classes", counts, folder)
    if labels:
        numbers = config.get("label2id")
        if isinstance(numbers, dict) and numbers:  # it has one index for classes with the same name
            entry, names = labels[0]
            numbered = {
                name: [str(index) for index, other in enumerate(names) if other == name] for name in names
            }
            wrong = [
                name
                for name in {**numbered, **numbers}
                if str(numbers.get(name)) not in numbered.get(name, ())
            ]
            if wrong:
                check_agreement("labels", wrong[:1], f"label2id of {CONFIG}", None, entry, folder)
        yield (
            "labels",
            _agreed("labels", [pair for pair in labels if not _numbered(pair[1])] or labels, folder),
        )


def _agreed(field: str, stated: Sequence[tuple[str, Any]], folder: Path) -> Any:
    """Return the value of several entries that must check_agreement."""
    (source, value), *others = stated
    for other_source, other in others:
        check_agreement(field, value, source, other, other_source, folder)
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
                f"{CONFIG}: expected class indices from 0 without gaps, got {sorted(value)[:5]}.",
                subject="labels",
            )
        value = [value[str(index)] for index in range(len(value))]
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise UsageError(f"{CONFIG}: expected class names, got {value!r:.100}.", subject="labels")
    return tuple(value)


def _usable(labels: Iterable[str] | None) -> tuple[tuple[str, ...] | None, tuple[str, ...]]:
    """Return class names if they are usable for a head, else None, with a note on why they were left out."""
    if labels is None:
        return None, ()
    names = tuple(labels)
    if _numbered(names):
        return None, (f"{CONFIG} has only numbers as class names",)
    duplicates = (
        sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
    )
    if duplicates:
        warnings.warn(
            f"Published without class names: {CONFIG} has {duplicates[0]!r} twice. Pass labels.",
            stacklevel=5,
        )
        return None, (f"left out the class names of {CONFIG}: {duplicates[0]!r} appears twice",)
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


def _formatted(value: Any) -> str:
    if isinstance(value, tuple | list):
        few = [f"{item:.4g}" if isinstance(item, float) else str(item) for item in value[:4]]
        return ", ".join(few) + (f" and {len(value) - 4} more" if len(value) > 4 else "")
    return f"{value:.4g}" if isinstance(value, float) else str(value)

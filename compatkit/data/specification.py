"""Data sets as a recipe describes them: a name or path, or a strict table of options."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import attrs

from compatkit.data.dataset import DataSet
from compatkit.data.loading import exists, is_path, load
from compatkit.data.transforms import Shift
from compatkit.errors import DataError, suggest
from compatkit.foundation.limits import Number

KEYS = (
    *("name", "as", "classes", "half", "train", "test", "seed", "channels", "shift"),
    *("hold_out", "damaged", "digest"),
)


def load_spec(
    spec: str | Mapping[str, Any],
    *,
    root: str | os.PathLike[str] | None = None,
    download: bool = False,
    relative_to: str | os.PathLike[str] | None = None,
) -> DataSet:
    """Load a data set as a recipe describes it.

    The keys, all but ``name`` optional, in the order in which they are applied: ``name`` (a name, path or address, see
    ``load``); ``digest`` (``"bytes"`` or ``"unverified"``), ``damaged`` (``"refuse"`` or ``"skip"``) and ``hold_out``
    (a share, drawn by ``seed``), as in ``load``; ``classes`` (names of some classes); ``half`` (1 or 2); ``train`` and
    ``test`` (numbers of images, class-balanced) with ``seed`` (without it, the first images); ``channels`` (``"L"`` or
    ``"RGB"``); ``shift`` (a table of ``hue``, ``brightness``, ``blur``); ``as`` (another name, if one source serves as
    two domains). Example::

        load_spec({"name": "cifar10", "half": 2, "train": 8000, "shift": {"hue": 0.3, "blur": 1.0}})

    Args:
        spec: The table, or just a name or path.
        root: As in ``load``.
        download: As in ``load``.
        relative_to: Folder that relative paths are tried against first (the recipe's).

    Raises:
        DataError: A key is unknown, a value is invalid, or the data set cannot be read.
        UnknownName: No data set has this name.
    """
    table: Mapping[str, Any] = {"name": spec} if isinstance(spec, str | os.PathLike) else spec
    if not isinstance(table, Mapping):
        raise DataError(f"A recipe's data is a name, a path or a table, got {type(spec).__name__}.")
    _check_keys(table, KEYS, "data")
    name = table.get("name")
    if not isinstance(name, str | os.PathLike) or not os.fspath(name):
        raise DataError(f"A recipe's data needs 'name', a data set, a path or an address; got {name!r}.")
    if relative_to is not None and is_path(name) and exists(Path(relative_to) / name):
        name = Path(relative_to) / name
    options = {key: table[key] for key in ("hold_out", "damaged", "digest") if key in table}
    seed = table.get("seed")
    Number(least=0, whole=True, optional=True).check("data", DataError, seed=seed)
    data = load(name, root=root, download=download, seed=seed, **options)
    source = data.source and attrs.evolve(data.source, spec={**table, **data.source.spec})
    if "classes" in table:
        data = data.of_classes(_names(table["classes"]))
    if "half" in table:
        data = _half(data, table["half"])
    data = data.subset(table.get("train"), table.get("test"), seed)
    if "channels" in table:
        data = data.converted(table["channels"])
    if "shift" in table:
        data = _shifted(data, table["shift"])
    if "as" in table:
        data = _renamed(data, table["as"])
    return attrs.evolve(data, source=source)


def _names(classes: Any) -> list[str]:
    if not isinstance(classes, list | tuple) or not all(isinstance(name, str) for name in classes):
        raise DataError(f"data: classes must be a list of names, got {classes!r:.100}.")
    return list(classes)


def _half(data: DataSet, half: Any) -> DataSet:
    if isinstance(half, bool) or half not in (1, 2):
        raise DataError(f"data: half must be 1 or 2, got {half!r}.")
    return data.halves()[half - 1]


def _shifted(data: DataSet, shift: Any) -> DataSet:
    known = [field.name for field in attrs.fields(Shift)]
    if not isinstance(shift, Mapping):
        raise DataError(f"data: shift must be a table of {', '.join(known)}, got {shift!r}.")
    _check_keys(shift, known, "data.shift")
    return data.shifted(**shift)


def _renamed(data: DataSet, name: Any) -> DataSet:
    if not isinstance(name, str) or not name.strip():
        raise DataError(f"data: 'as' must be a name, got {name!r}.")
    return data.renamed(name)


def _check_keys(table: Mapping[str, Any], known: Iterable[str], path: str) -> None:
    for key in table:
        if key not in known:
            hint = suggest(key, known)
            raise DataError(f"{path} has the unknown key {key!r}.{hint} Known are {', '.join(known)}.")

"""Recipes: a training run as a TOML file, read strictly."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from compatkit.errors import UsageError

if TYPE_CHECKING:
    from compatkit.plugins import Use
    from compatkit.training.task import Task
    from compatkit.training.trainer import Trainer

TOP = ("prefix", "regularizers", "trainer", "tasks", "frozen")
TASK = ("name", "data", "backbone", "split", "kwargs", "size", "weights", "augment")
FROZEN = ("heads", "statistics")


@attrs.frozen(eq=False)
class Recipe:
    """A run as it was written down.

    Attributes:
        prefix: Where the parts are published: ``<prefix>/<task>.extractor``.
        frozen_heads: Pattern of released auxiliary heads to train against, or None.
        frozen_statistics: ``"stored"`` or ``"batch"``.
    """

    path: Path
    prefix: str
    trainer: Trainer
    tasks: tuple[Task, ...]
    regularizers: tuple[Use, ...]
    frozen_heads: str | None = None
    frozen_statistics: str = "stored"


def read(path: str | Path, *, root: str | None = None, download: bool = False, **overrides: Any) -> Recipe:
    """Read a recipe and load its data sets.

    Args:
        path: TOML file with ``prefix``, ``regularizers``, ``[trainer]``, ``[[tasks]]`` and ``[frozen]``.
        root: Folder of data sets; None looks where ``compatkit.data.load`` looks.
        download: Whether torchvision may fetch what is missing.
        **overrides: Trainer settings that win over the file's; None is no override.

    Raises:
        UsageError: The file is no TOML, a key is unknown or missing, or a value cannot be used.
    """
    from compatkit.data import load_spec
    from compatkit.plugins import as_use
    from compatkit.training.task import Task
    from compatkit.training.trainer import Trainer

    file = Path(path)
    tables = _parse(file)
    _only(tables, TOP, f"{file}")
    for key in ("prefix", "trainer", "tasks"):
        if key not in tables:
            raise UsageError(f"{file} has no {key!r}; a recipe needs prefix, [trainer] and [[tasks]].")
    settings = _table(tables["trainer"], "trainer", file)
    _only(settings, [field.name for field in attrs.fields(Trainer)], f"{file}: [trainer]")
    settings = {**settings, **{key: value for key, value in overrides.items() if value is not None}}
    tasks = []
    for given in tables["tasks"]:
        entry = dict(_table(given, "tasks", file))
        where = f"{file}: task {entry.get('name', '?')}"
        _only(entry, TASK, where)
        missing = [key for key in ("name", "data", "backbone", "split") if key not in entry]
        if missing:
            raise UsageError(f"{where} lacks {', '.join(missing)}.")
        entry["data"] = load_spec(entry["data"], root=root, download=download)
        if "size" in entry:
            entry["size"] = tuple(entry["size"])
        tasks.append(_made(Task, entry, where))
    frozen = dict(_table(tables.get("frozen", {}), "frozen", file))
    _only(frozen, FROZEN, f"{file}: [frozen]")
    return Recipe(
        file,
        str(tables["prefix"]),
        _made(Trainer, settings, f"{file}: [trainer]"),
        tuple(tasks),
        tuple(as_use(one) for one in tables.get("regularizers", [])),
        frozen.get("heads"),
        frozen.get("statistics", "stored"),
    )


def _parse(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UsageError(f"There is no recipe {file}.") from error
    except IsADirectoryError as error:
        raise UsageError(f"{file} is a folder; name the recipe file in it.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} is no TOML file: {error}") from error


def _table(value: Any, name: str, file: Path) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise UsageError(f"{file}: {name} must be a table, got {type(value).__name__}.")
    return value


def _only(table: Mapping[str, Any], known: Iterable[str], where: str) -> None:
    names = list(known)
    for key in table:
        if key not in names:
            near = difflib.get_close_matches(key, names, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise UsageError(f"{where} has the unknown key {key!r}{hint} Known are {', '.join(names)}.")


def _made(kind: type, settings: Mapping[str, Any], where: str) -> Any:
    try:
        return kind(**settings)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{where}: {error.args[0] if error.args else error}") from error

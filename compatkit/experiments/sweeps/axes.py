"""Read the table ``[sweep]`` of a recipe: axes with their values, and names of the runs."""

from __future__ import annotations

import copy
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from compatkit.data.specification import KEYS
from compatkit.errors import FormatError, InvalidName, UsageError
from compatkit.experiments.recipes import SWEEP
from compatkit.experiments.recipes.values import check_keys
from compatkit.foundation.codec import digest, dumps
from compatkit.registry.names import check_segment

Tables = Mapping[str, Any]

TOP = ("trainer", "regularizers", "tasks", "frozen")
LISTS = ("regularizers", "tasks")
EXAMPLES = {
    "trainer": "trainer.seed",
    "frozen": "frozen.statistics",
    "tasks": "tasks.cut",
    "regularizers": "regularizers.dcc.weight",
}
HEADS = ("heads", "statistics")
MAX_NAME = 56
"""Length of a run's name at most; it is part of the names of components."""


@attrs.frozen
class Axis:
    """Value of the recipe that varies.

    Attributes:
        path: Path as in the recipe: ``"trainer.seed"``, ``"tasks.mnist.cut"``.
        values: Distinct JSON values, at least one.
    """

    path: str
    values: tuple[Any, ...]


def axes_of(tables: Tables, file: Path) -> tuple[Axis, ...]:
    """Return the axes of a sweep in the order of the recipe.

    Args:
        tables: Tables of the recipe.
        file: Path of the recipe, for messages.

    Raises:
        UsageError: The table is missing, or a list is empty or has a value twice.
    """
    table = tables.get(SWEEP)
    where = f"{file}: [{SWEEP}]"
    if table is None:
        raise UsageError(
            f"{file} has no table [{SWEEP}], so it is one run: `compatkit train {file}`. A sweep lists the values that "
            f'vary, for example\n[{SWEEP}]\n"trainer.seed" = [0, 1, 2]'
        )
    if not isinstance(table, Mapping) or not table:
        raise UsageError(f'{where} must be a table of lists: "trainer.seed" = [0, 1, 2]; got {table!r:.100}.')
    axes: dict[str, Axis] = {}
    for path, values in _flat(table):
        if path in axes:
            raise UsageError(f"{where}: {path!r} is written twice; write it once, with all of its values.")
        axes[path] = Axis(path, _values(values, f"{where}: {path!r}"))
    return tuple(axes.values())


def set_values(tables: Tables, values: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """Return the recipe of one run: tables without ``[sweep]``, with the values at their paths.

    Args:
        tables: Tables of the recipe; they are not changed.
        values: Value of each axis, by path.
        file: Path of the recipe, for messages.

    Raises:
        UsageError: A path is no value of a recipe, or two paths are the same value.
    """
    recipe = copy.deepcopy({key: value for key, value in tables.items() if key != SWEEP})
    assigned: dict[tuple[int, str], str] = {}
    # Whole lists first, as a setting of a regularizer needs its entry.
    for path in sorted(values, key=lambda name: name.count(".")):
        where = f"{file}: [{SWEEP}]: {path!r}"
        for table, key in _resolve(recipe, path, where):
            earlier = assigned.setdefault((id(table), key), path)
            if earlier != path:
                raise UsageError(f"{where} and {earlier!r} set the same value; leave one of them out.")
            table[key] = copy.deepcopy(values[path])
    return recipe


def _flat(table: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    """Return paths and values of nested tables, as TOML reads ``trainer.seed = [...]`` without quotes."""
    entries: list[tuple[str, Any]] = []
    for key, value in table.items():
        path = f"{prefix}{key}"
        entries += _flat(value, f"{path}.") if isinstance(value, Mapping) and value else [(path, value)]
    return entries


def _values(values: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(values, list):
        raise UsageError(f"{where} must be a list of the values that vary, got {values!r:.100}.")
    if not values:
        raise UsageError(f"{where} is an empty list. Give it values, or leave it out.")
    distinct: set[bytes] = set()
    for value in values:
        try:
            text = dumps(value)
        except FormatError as error:
            raise UsageError(f"{where} has a value that is not JSON: {error}") from error
        if text in distinct:
            raise UsageError(f"{where} has the value {value!r:.100} twice; give each value once.")
        distinct.add(text)
    return tuple(values)


def _resolve(recipe: dict[str, Any], path: str, where: str) -> list[tuple[dict[str, Any], str]]:
    """Return the tables and keys of a path; most keys are checked later, with the recipe of each run."""
    first, *rest = path.split(".")
    check_keys({first: None}, TOP, where)
    if path == "regularizers":
        return [(recipe, path)]
    if first == "frozen":
        check_keys({name: None for name in rest}, HEADS, where)
    if first == "tasks" and "data" in rest[:-1]:
        check_keys({rest[-1]: None}, KEYS, where)
    entries = recipe.setdefault(first, [] if first in LISTS else {})
    tables = [entries]
    if first in LISTS and isinstance(entries, list):
        tables, rest = _select(entries, rest, first == "tasks", where)
    if not rest:
        raise UsageError(f"{where} must name one value, such as {EXAMPLES[first]!r}.")
    for key in rest[:-1]:
        tables = [_table(table, key, where) for table in tables]
    return [(table, rest[-1]) for table in tables]


def _select(entries: list[Any], rest: list[str], allow_all: bool, where: str) -> tuple[list[Any], list[str]]:
    """Return the tables of a path, and its rest after the name of one; names may contain dots."""
    tables = [_table(entries, index, where) for index in range(len(entries))]
    names = [str(table.get("as", table.get("name"))) for table in tables]
    for end in range(len(rest), 0, -1):
        if names.count(name := ".".join(rest[:end])) == 1:
            return [tables[names.index(name)]], rest[end:]
    if not allow_all and rest:
        raise UsageError(
            f"{where}: a run has no regularizer {rest[0]!r}, or several ({', '.join(names) or 'no regularizers'}); a "
            "setting that varies needs one. To vary the regularizers themselves, list them as tables: "
            '"regularizers" = [[], [{ name = "dcc", weight = 0.5 }]].'
        )
    return tables, rest


def _table(parent: Any, key: Any, where: str) -> dict[str, Any]:
    """Return a table in a table or a list; a name alone stands for a table with this name."""
    value = parent.setdefault(key, {}) if isinstance(parent, dict) else parent[key]
    if isinstance(value, str):
        value = parent[key] = {"name": value}
    if not isinstance(value, dict):
        raise UsageError(f"{where} needs a table, but the recipe has {value!r:.100} there.")
    return value


def names_of(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a name for each run from its values; equal names get a digest.

    Args:
        runs: Varied values of each run, by path.
    """
    names = [_valid("-".join(label(path, value) for path, value in run.items()), run) for run in runs]
    counts = Counter(names)
    return [name if counts[name] == 1 else _short(name, run) for name, run in zip(names, runs, strict=True)]


def label(path: str, value: Any) -> str:
    """Return a word for a value: ``seed0``, ``layer2``, ``identical_init.dcc``, ``none``.

    Args:
        path: Path of the axis, names joined by dots.
        value: TOML value.
    """
    word = path.rsplit(".", 1)[-1]
    if isinstance(value, bool):
        return f"{_word(word)}-{'on' if value else 'off'}"
    if isinstance(value, int | float):
        return f"{_word(word)}{_word(repr(value))}"
    if isinstance(value, list | tuple):
        if value and all(isinstance(item, int | float) for item in value):
            return f"{_word(word)}{'x'.join(_word(repr(item)) for item in value)}"
        return ".".join(label("", item) for item in value) or "none"
    if isinstance(value, Mapping):
        name = _word(str(value.get("as", value.get("name", word))))
        if value.keys() == {"name", "weight"}:
            return f"{name}_{_word(repr(value['weight']))}"
        return f"{name}_{_digest_prefix(value, 4)}"
    return _word(str(value))


def _word(text: str) -> str:
    """Return a text as part of a name, with a digest if it must be changed."""
    plain = re.sub(r"\.\.+", ".", re.sub(r"[^a-z0-9_.-]+", "-", text.lower())).strip("._-")
    return (
        plain if plain == text and len(plain) <= MAX_NAME // 2 else f"{plain[:16]}_{_digest_prefix(text, 4)}"
    )


def _valid(name: str, run: Mapping[str, Any]) -> str:
    if len(name) > MAX_NAME:
        return _short(name, run)
    try:
        return check_segment(name)
    except InvalidName:
        return f"run-{_digest_prefix(run, 8)}"


def _short(name: str, run: Mapping[str, Any]) -> str:
    return f"{name[: MAX_NAME - 9].rstrip('._-')}-{_digest_prefix(run, 8)}"


def _digest_prefix(value: Any, digits: int) -> str:
    return digest(dumps(value)).removeprefix("sha256:")[:digits]

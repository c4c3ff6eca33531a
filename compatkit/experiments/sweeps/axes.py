"""The table ``[sweep]`` of a recipe: which values vary, over which lists, and what the runs are called."""

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
LONGEST = 56
"""Length limit of a run's name, which is part of the names of its components."""


@attrs.frozen
class Axis:
    """One value of the recipe that varies.

    Attributes:
        path: Path as written: ``"trainer.seed"``, ``"tasks.mnist.cut"``.
        values: At least one, all different; JSON values.
    """

    path: str
    values: tuple[Any, ...]


def axes_of(tables: Tables, file: Path) -> tuple[Axis, ...]:
    """Return the axes of a sweep in the order written.

    Args:
        tables: The recipe, parsed.
        file: Its path, for messages.

    Raises:
        UsageError: The table is missing, or a list is empty or holds a value twice.
    """
    table = tables.get(SWEEP)
    where = f"{file}: [{SWEEP}]"
    if table is None:
        raise UsageError(
            f"{file} has no table [{SWEEP}], so it is one run: `compatkit train {file}`. A sweep lists what varies, "
            f'for example\n[{SWEEP}]\n"trainer.seed" = [0, 1, 2]'
        )
    if not isinstance(table, Mapping) or not table:
        raise UsageError(f'{where} must be a table of lists: "trainer.seed" = [0, 1, 2]; got {table!r:.100}.')
    axes: dict[str, Axis] = {}
    for path, values in _flat(table):
        if path in axes:
            raise UsageError(f"{where}: {path!r} is written twice; write it once, with all of its values.")
        axes[path] = Axis(path, _values(values, f"{where}: {path!r}"))
    return tuple(axes.values())


def put(tables: Tables, values: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """Return the recipe of one run: ``tables`` without the sweep, with ``values`` at their paths.

    Args:
        tables: The recipe, parsed; left as it is.
        values: One value for each axis, by its path.
        file: Path of the recipe, for messages.

    Raises:
        UsageError: A path leads to no value of a recipe, or two lead to the same value.
    """
    recipe = copy.deepcopy({key: value for key, value in tables.items() if key != SWEEP})
    taken: dict[tuple[int, str], str] = {}
    # Complete lists come first, so that a setting of one regularizer finds it.
    for path in sorted(values, key=lambda name: name.count(".")):
        where = f"{file}: [{SWEEP}]: {path!r}"
        for table, key in _places(recipe, path, where):
            earlier = taken.setdefault((id(table), key), path)
            if earlier != path:
                raise UsageError(f"{where} and {earlier!r} set the same value; leave one of them out.")
            table[key] = copy.deepcopy(values[path])
    return recipe


def _flat(table: Mapping[str, Any], before: str = "") -> list[tuple[str, Any]]:
    """Return paths and values; ``trainer.seed = [...]`` is a table in a table to TOML."""
    entries: list[tuple[str, Any]] = []
    for key, value in table.items():
        path = f"{before}{key}"
        entries += _flat(value, f"{path}.") if isinstance(value, Mapping) and value else [(path, value)]
    return entries


def _values(values: Any, where: str) -> tuple[Any, ...]:
    if not isinstance(values, list):
        raise UsageError(f"{where} must be a list of the values that vary, got {values!r:.100}.")
    if not values:
        raise UsageError(f"{where} is an empty list. Give it values, or leave it out.")
    seen: set[bytes] = set()
    for value in values:
        try:
            written = dumps(value)
        except FormatError as error:
            raise UsageError(f"{where} has a value that is not JSON: {error}") from error
        if written in seen:
            raise UsageError(f"{where} has the value {value!r:.100} twice; give each value once.")
        seen.add(written)
    return tuple(values)


def _places(recipe: dict[str, Any], path: str, where: str) -> list[tuple[dict[str, Any], str]]:
    """Return the tables and keys of a path in the recipe; most keys are checked with the recipe of each run."""
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
        tables, rest = _named(entries, rest, first == "tasks", where)
    if not rest:
        raise UsageError(f"{where} must name one value, such as {EXAMPLES[first]!r}.")
    for key in rest[:-1]:
        tables = [_table(table, key, where) for table in tables]
    return [(table, rest[-1]) for table in tables]


def _named(entries: list[Any], rest: list[str], every: bool, where: str) -> tuple[list[Any], list[str]]:
    """Return the tables that a path is about, and what follows the name of one; names may hold dots."""
    tables = [_table(entries, place, where) for place in range(len(entries))]
    names = [str(table.get("as", table.get("name"))) for table in tables]
    for end in range(len(rest), 0, -1):
        if names.count(name := ".".join(rest[:end])) == 1:
            return [tables[names.index(name)]], rest[end:]
    if not every and rest:
        raise UsageError(
            f"{where}: a run uses no {rest[0]!r}, or several ({', '.join(names) or 'no regularizers'}); a setting that "
            "varies needs one. To vary which regularizers there are, write them out as tables: "
            '"regularizers" = [[], [{ name = "dcc", weight = 0.5 }]].'
        )
    return tables, rest


def _table(holder: Any, key: Any, where: str) -> dict[str, Any]:
    """Return a table inside a table or a list; a name alone is short for a table with it."""
    value = holder.setdefault(key, {}) if isinstance(holder, dict) else holder[key]
    if isinstance(value, str):
        value = holder[key] = {"name": value}
    if not isinstance(value, dict):
        raise UsageError(f"{where} expects a table, but the recipe has {value!r:.100} there.")
    return value


def names_of(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a name for each run from its own values; a digest is added where two would be equal.

    Args:
        runs: The values that vary, by path.
    """
    names = [_valid("-".join(label(path, value) for path, value in run.items()), run) for run in runs]
    counts = Counter(names)
    return [name if counts[name] == 1 else _short(name, run) for name, run in zip(names, runs, strict=True)]


def label(path: str, value: Any) -> str:
    """Return a word for a value: ``seed0``, ``layer2``, ``identical_init.dcc``, ``none``.

    Args:
        path: Of the axis, names joined by dots.
        value: A TOML value.
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
        return f"{name}_{_mark(value, 4)}"
    return _word(str(value))


def _word(text: str) -> str:
    """Return ``text`` as part of a name, with a digest if it had to be changed."""
    plain = re.sub(r"\.\.+", ".", re.sub(r"[^a-z0-9_.-]+", "-", text.lower())).strip("._-")
    return plain if plain == text and len(plain) <= LONGEST // 2 else f"{plain[:16]}_{_mark(text, 4)}"


def _valid(name: str, run: Mapping[str, Any]) -> str:
    if len(name) > LONGEST:
        return _short(name, run)
    try:
        return check_segment(name)
    except InvalidName:
        return f"run-{_mark(run, 8)}"


def _short(name: str, run: Mapping[str, Any]) -> str:
    return f"{name[: LONGEST - 9].rstrip('._-')}-{_mark(run, 8)}"


def _mark(value: Any, digits: int) -> str:
    return digest(dumps(value)).removeprefix("sha256:")[:digits]

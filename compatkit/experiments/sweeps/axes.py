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
from compatkit.experiments.recipes import SWEEP, task_keys
from compatkit.experiments.recipes.values import only
from compatkit.foundation.codec import digest, dumps
from compatkit.registry.names import check_segment

Tables = Mapping[str, Any]
Address = tuple[str | int, ...]
"""Keys and positions that lead to a value of a recipe."""

TOP = ("trainer", "regularizers", "tasks", "frozen")
KEPT = {
    "checkpoint": "a sweep keeps the checkpoints of its runs itself",
    "progress": "a sweep shows how far all of its runs are",
}
"""Settings of the trainer that a sweep sets itself."""
EXAMPLES = {"trainer": "trainer.seed", "frozen": "frozen.statistics"}
HEADS = ("heads", "statistics")
LONGEST = 56
"""Characters of a name; it stands between the recipe's prefix and the names of the tasks."""


@attrs.frozen
class Axis:
    """One value of the recipe that varies.

    Attributes:
        path: As written: ``"trainer.seed"``, ``"tasks.mnist.cut"``.
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
        raise UsageError(
            f'{where} must be a table of lists such as "trainer.seed" = [0, 1, 2], got {table!r:.100}.'
        )
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
    taken: dict[Address, str] = {}
    # What is named as a whole comes first, so that a setting of one regularizer finds it.
    for path in sorted(values, key=lambda name: name.count(".")):
        where = f"{file}: [{SWEEP}]: {path!r}"
        for address in _addresses(recipe, path, where):
            if address in taken:
                raise UsageError(f"{where} and {taken[address]!r} set the same value; leave one of them out.")
            taken[address] = path
            _put(recipe, address, copy.deepcopy(values[path]))
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
        raise UsageError(
            f"{where} must be a list of the values that it takes, got {values!r:.100}. A value that all runs have is "
            "written in the recipe itself."
        )
    if not values:
        raise UsageError(
            f"{where} is an empty list, so there would be no run. Give it values, or leave it out."
        )
    seen: set[bytes] = set()
    for value in values:
        try:
            written = dumps(value)
        except FormatError as error:
            raise UsageError(f"{where} has a value that cannot be kept: {error}") from error
        if written in seen:
            raise UsageError(f"{where} has the value {value!r:.100} twice; give each value once.")
        seen.add(written)
    return tuple(values)


def _addresses(tables: Tables, path: str, where: str) -> list[Address]:
    """Return the addresses of a path in the recipe; keys are checked with the recipe of each run."""
    first, *rest = path.split(".")
    only({first: None}, TOP, where)
    if first == "tasks":
        return _of_tasks(tables.get("tasks"), rest, where)
    if first == "regularizers":
        return _of_regularizers(tables.get("regularizers", []), rest, where)
    if len(rest) != 1:
        raise UsageError(f"{where} must name one value, such as {EXAMPLES[first]!r}.")
    if first == "frozen":
        only({rest[0]: None}, HEADS, where)
    elif rest[0] in KEPT:
        raise UsageError(f"{where} cannot vary: {KEPT[rest[0]]}.")
    return [(first, rest[0])]


def _of_tasks(tasks: Any, rest: Sequence[str], where: str) -> list[Address]:
    """Return where ``tasks.KEY`` (all tasks) or ``tasks.NAME.KEY`` is; names may hold dots."""
    if not isinstance(tasks, list) or not all(isinstance(task, Mapping) for task in tasks):
        raise UsageError(
            f"{where}: the recipe needs its tasks as tables under [[tasks]]; got {tasks!r:.100}."
        )
    names = [str(task.get("name")) for task in tasks]
    chosen = range(len(tasks))
    for end in range(len(rest) - 1, 0, -1):
        if (name := ".".join(rest[:end])) in names:
            chosen, rest = range(names.index(name), names.index(name) + 1), rest[end:]
            break
    if not rest:
        raise UsageError(f'{where} must name a value of the tasks, such as "tasks.cut".')
    if rest[0] == "name":
        raise UsageError(
            f"{where} cannot vary: each run keeps the names of its tasks, and gets a name of its own."
        )
    if len(rest) > 1:
        only({rest[0]: None}, (*task_keys(), *names), where)
        if len(rest) > 2 or rest[0] not in ("data", "kwargs"):
            raise UsageError(f"{where} leads into a value that has no parts; only data and kwargs have.")
        if rest[0] == "data":
            only({rest[1]: None}, KEYS, where)
    return [("tasks", place, *rest) for place in chosen]


def _of_regularizers(used: Any, rest: Sequence[str], where: str) -> list[Address]:
    """Return where all regularizers are, or one setting of one: ``regularizers.dcc.weight``."""
    if not rest:
        return [("regularizers",)]
    if len(rest) < 2:
        raise UsageError(
            f'{where} must be "regularizers", with lists of names or tables, or name a setting of one, such as '
            f'"regularizers.{rest[0]}.weight".'
        )
    name, setting = ".".join(rest[:-1]), rest[-1]
    called = [_called(use) for use in used] if isinstance(used, list) else []
    if called.count(name) != 1:
        raise UsageError(
            f"{where}: a run uses {called.count(name) or 'no'} {name!r} ({', '.join(called) or 'no regularizers'}); a "
            "setting that varies needs one. To vary which regularizers there are, write them out as tables: "
            '"regularizers" = [[], [{ name = "dcc", weight = 0.5 }]].'
        )
    return [("regularizers", called.index(name), setting)]


def _called(used: Any) -> str:
    return str(used.get("as", used.get("name"))) if isinstance(used, Mapping) else str(used)


def _put(tables: Any, address: Address, value: Any) -> None:
    for key in address[:-1]:
        if isinstance(tables, dict):
            tables.setdefault(key, {})
        if isinstance(tables[key], str):  # a name is short for a table with it
            tables[key] = {"name": tables[key]}
        tables = tables[key]
    if not isinstance(tables, dict):
        raise UsageError(f"The recipe has {tables!r:.100} where the sweep expects a table.")
    tables[address[-1]] = value


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

"""Short names of runs: what differs, in words that a component's name may hold; the same values, the same name."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from compatkit.contracts.codec import digest, dumps
from compatkit.errors import InvalidName
from compatkit.registry.names import check_segment

LONGEST = 56
"""Characters of a name; it stands between the recipe's prefix and the names of the tasks."""


def names_of(runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a name for each run, from its own values alone; a digest is added where two would be the same.

    Args:
        runs: By path, the values that vary.
    """
    names = [_valid("-".join(label(path, value) for path, value in run.items()), run) for run in runs]
    counts = Counter(names)
    return [name if counts[name] == 1 else _short(name, run) for name, run in zip(names, runs, strict=True)]


def label(path: str, value: Any) -> str:
    """Return a word for a value: ``seed0``, ``layer2``, ``identical_init.dcc``, ``none``."""
    word = path.rsplit(".", 1)[-1]
    if isinstance(value, bool):
        return f"{_word(word)}-{'on' if value else 'off'}"
    if isinstance(value, int | float):
        return f"{_word(word)}{_word(repr(value))}"
    if isinstance(value, list | tuple):
        if value and all(isinstance(one, int | float) for one in value):
            return f"{_word(word)}{'x'.join(_word(repr(one)) for one in value)}"
        return ".".join(label("", one) for one in value) or "none"
    if isinstance(value, Mapping):
        name = _word(str(value.get("as", value.get("name", word))))
        if value.keys() == {"name", "weight"}:
            return f"{name}_{_word(repr(value['weight']))}"
        return f"{name}_{_mark(value, 4)}"
    return _word(str(value))


def _word(text: str) -> str:
    """Return ``text`` as part of a name, with a digest where it had to be changed."""
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

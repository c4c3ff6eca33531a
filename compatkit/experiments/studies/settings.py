"""Settings of a run: those of the size, with the ones that a person changes."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from typing import Any

from compatkit.errors import UsageError
from compatkit.experiments.studies.finding import Found, near

_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text", list: "a list"}


def settings_of(found: Found, size: str, changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the settings of a study at a size.

    Args:
        found: The study.
        size: One of its sizes.
        changes: Values in place of the size's, of the same types.

    Raises:
        UsageError: The size or a setting is unknown, or a value is of another type.
    """
    sizes = found.study.sizes
    if size not in sizes:
        raise UsageError(
            f"Study {found.number} has no size {size!r}.{near(size, sizes)} Its sizes are {', '.join(sizes)}.",
            subject=size,
        )
    settings = {name: _plain(value) for name, value in sizes[size].items()}
    for name, value in (changes or {}).items():
        if name not in settings:
            raise UsageError(
                f"Study {found.number} has no setting {name!r}.{near(name, settings)} At size {size!r} there are "
                f"{', '.join(f'{key}={one}' for key, one in settings.items())}.",
                subject=name,
            )
        settings[name] = _like(value, settings[name], f"Study {found.number}: the setting {name!r}")
    return settings


def read_changes(texts: Iterable[str]) -> dict[str, Any]:
    """Return ``NAME=VALUE`` as names and values: written as in TOML, or a bare text.

    Raises:
        UsageError: There is no ``=``.
    """
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"A setting is changed by NAME=VALUE, such as steps=100; got {text!r}.")
        try:
            found[name.strip()] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            found[name.strip()] = value.strip()
    return found


def _like(value: Any, example: Any, what: str) -> Any:
    """Return the value, of the type of the one that it replaces."""
    value, kind = _plain(value), type(example)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not kind:
        raise UsageError(f"{what} is {_WORDS.get(kind, kind.__name__)}, such as {example!r}; got {value!r}.")
    return value


def _plain(value: Any) -> Any:
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value

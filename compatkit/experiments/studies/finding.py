"""Find studies by number among the plugins, and check requested arms and settings."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

import attrs

from compatkit import plugins
from compatkit.errors import CompatkitError, PluginError, UsageError, suggest, type_of
from compatkit.experiments.studies.records import RENAMED
from compatkit.experiments.studies.study import Study
from compatkit.plugins.isolation import Owner

KIND = "studies"
_TYPE_NAMES = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a string",
    list: "a list",
}


@attrs.frozen(eq=False)
class InstalledStudy:
    """Study with its number and the owner of its plugin."""

    number: str
    study: Study
    owner: Owner


def numbers() -> list[str]:
    """Return the numbers of all installed studies in order (0.1, 0.1b, 0.9, 0.10), without importing them."""
    return sorted(plugins.names(KIND), key=_sort_key)


def find(number: str) -> InstalledStudy:
    """Import the study of this number.

    Raises:
        UnknownName: There is no such study; the message suggests similar numbers.
        PluginError: The study is blocked, broken, or provided by two distributions.
    """
    offer = plugins.find(KIND, number)
    study = offer.make({})
    if not isinstance(study, Study):
        raise offer.owner.error(
            f"its factory returned {type_of(study)}; expected a compatkit.experiments.studies.Study."
        )
    return InstalledStudy(number, study, offer.owner)


def find_all() -> tuple[list[InstalledStudy], dict[str, CompatkitError]]:
    """Import all installed studies.

    Returns:
        Working studies, and the errors of the others by number.
    """
    studies: list[InstalledStudy] = []
    broken: dict[str, CompatkitError] = {}
    for number in numbers():
        try:
            studies.append(find(number))
        except PluginError as error:
            broken[number] = error
    return studies, broken


def _sort_key(number: str) -> list[tuple[float, str]]:
    """Return a sort key: 0.1b is after 0.1 and before 0.2, words are after numbers."""
    parts = (re.fullmatch(r"(\d*)(.*)", part) for part in number.split("."))
    return [(float(match[1] or "inf"), match[2]) for match in parts if match is not None]


def settings_of(
    installed: InstalledStudy, size: str, changes: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Return the settings of a study at a size.

    Args:
        installed: Study.
        size: Name of a size of the study.
        changes: Settings to use instead of those of the size, of the same types.

    Raises:
        UsageError: The size or a setting is unknown, or a value is of another type.
    """
    sizes = installed.study.sizes
    if size not in sizes:
        raise UsageError(
            f"Study {installed.number} has no size {size!r}.{suggest(size, sizes)} Its sizes are {', '.join(sizes)}.",
            subject=size,
        )
    settings = {name: _plain(value) for name, value in sizes[size].items()}
    for name, value in ((RENAMED.get(name, name), value) for name, value in (changes or {}).items()):
        if name not in settings:
            raise UsageError(
                f"Study {installed.number} has no setting {name!r}.{suggest(name, settings)} At size {size!r} there "
                f"are {', '.join(f'{key}={default}' for key, default in settings.items())}.",
                subject=name,
            )
        settings[name] = _convert(value, settings[name], f"Study {installed.number}: the setting {name!r}")
    return settings


def read_changes(texts: Iterable[str]) -> dict[str, Any]:
    """Parse ``NAME=VALUE`` texts; a value that is not JSON is a string.

    Raises:
        UsageError: A text has no ``=``.
    """
    changes: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip():
            raise UsageError(f"Expected NAME=VALUE, such as steps=100, got {text!r}.")
        changes[name.strip()] = value.strip()
        with suppress(ValueError):
            changes[name.strip()] = json.loads(value)
    return changes


def _convert(value: Any, default: Any, what: str) -> Any:
    """Return the value with the type of the default, with integers as floats where needed."""
    value, kind = _plain(value), type(default)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is not kind:
        raise UsageError(
            f"{what} is {_TYPE_NAMES.get(kind, kind.__name__)}, such as {default!r}; got {value!r}."
        )
    return value


def _plain(value: Any) -> Any:
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value

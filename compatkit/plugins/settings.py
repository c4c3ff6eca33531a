"""Settings of a plugin: list, check and convert the keyword arguments of its factory."""

from __future__ import annotations

import inspect
import math
import types
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any, Literal, Union, cast, get_args, get_origin

import attrs

from compatkit.foundation.limits import native
from compatkit.plugins.implementations import signature_of
from compatkit.plugins.isolation import Owner, suggestion

RESERVED = ("name", "weight", "as", "as_", "start", "stop", "before", "after")
"""Keys of every regularizer's table in a recipe, which cannot be settings."""


_PLAIN: Mapping[str, type] = {"bool": bool, "int": int, "float": float, "None": type(None)}
_WORDS = {"bool": "True or False", "int": "a whole number", "float": "a number", "None": "None"}


@attrs.frozen
class Setting:
    """One keyword argument of a factory.

    Attributes:
        name: Its name.
        required: Whether it lacks a default.
        default: JSON value (other values as text); None if required.
        annotation: Source text of the annotation, or empty.
        many: Whether it is ``**name``, which accepts any setting.
    """

    name: str
    required: bool
    default: Any = None
    annotation: str = ""
    many: bool = False

    def __str__(self) -> str:
        if self.many:
            return f"**{self.name}"
        kind = f": {self.annotation}" if self.annotation else ""
        return f"{self.name}{kind}" if self.required else f"{self.name}{kind} = {self.default!r}"


def settings_of(factory: Callable[..., Any], owner: Owner, *, filled: int = 0) -> tuple[Setting, ...]:
    """Return the keyword arguments of a factory, in its order.

    Args:
        factory: A function or a class.
        owner: The plugin, for messages.
        filled: Number of leading arguments that compatkit passes; they are not settings.

    Raises:
        PluginError: Python cannot read the factory's arguments.
    """
    try:
        parameters = list(signature_of(factory).parameters.values())[filled:]
    except (TypeError, ValueError) as error:
        raise owner.error(
            f"the arguments of its factory {factory!r} cannot be read ({error}). Register a def or a class."
        ) from error
    settings = []
    for parameter in parameters:
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
            continue
        annotation = "" if parameter.annotation is parameter.empty else parameter.annotation
        text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
        many = parameter.kind is parameter.VAR_KEYWORD
        required = parameter.default is parameter.empty and not many
        has_default = parameter.default is not parameter.empty and parameter.default is not attrs.NOTHING
        default = plain(parameter.default) if has_default else None
        settings.append(Setting(parameter.name, required, default, text, many))
    return tuple(settings)


def takes_one(factory: Callable[..., Any]) -> bool:
    """Return whether the first argument can be passed by position."""
    try:
        first = next(iter(signature_of(factory).parameters.values()), None)
    except (TypeError, ValueError):
        return True  # ``settings_of`` raises for it
    return first is not None and first.kind in (
        first.POSITIONAL_ONLY,
        first.POSITIONAL_OR_KEYWORD,
        first.VAR_POSITIONAL,
    )


def check_settings(values: Mapping[str, Any], known: Sequence[Setting], owner: Owner) -> None:
    """Raise for unknown settings, missing ones, and values of another type.

    Only types of flags and numbers are checked, because any nonempty string counts as a true flag.

    Args:
        values: Settings of the user, by name.
        known: Parameters of the factory.
        owner: Plugin that error messages name.

    Raises:
        PluginError: The message has the known settings and the nearest name.
    """
    legal = [setting.name for setting in known if not setting.many]
    shown = ", ".join(str(setting) for setting in known) or "none"
    if not any(setting.many for setting in known):
        for name in values:
            if name not in legal:
                raise owner.error(f"no setting {name!r}.{suggestion(name, legal)} The settings are: {shown}.")
    for setting in known:
        if setting.required and setting.name not in values:
            raise owner.error(f"the setting {setting.name!r} is needed. The settings are: {shown}.")
        if setting.name in values and not _fits(values[setting.name], setting.annotation):
            expected = " or ".join(_WORDS[part] for part in setting.annotation.split(" | "))
            raise owner.error(f"the setting {setting.name!r} is {expected}; got {values[setting.name]!r}.")


def fits(value: Any, hint: Any) -> bool:
    """Return whether a value has an annotated type: a plain one, a Literal, a union, or a tuple of these.

    ``float`` accepts integers too; True and False do not count as numbers.
    """
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Literal:
        return any(type(value) is type(option) and value == option for option in inner)
    if origin in (Union, types.UnionType):
        return any(fits(value, option) for option in inner)
    if origin is tuple and isinstance(value, tuple):
        each = [inner[0]] * len(value) if inner[1:] == (...,) else inner
        return len(value) == len(each) and all(map(fits, value, each))
    if origin is not None:
        return isinstance(value, origin)
    if hint in (int, float):
        return isinstance(value, Integral if hint is int else Real) and not isinstance(value, bool)
    return hint is Any or isinstance(value, hint)


def _fits(value: Any, annotation: str) -> bool:
    """Return whether a value has an annotated plain type; other types are left to the factory."""
    kinds = [_PLAIN.get(part) for part in annotation.split(" | ")]
    return None in kinds or any(fits(value, kind) for kind in kinds)


def plain(value: Any) -> Any:
    """Convert a value to JSON values; other types and non-finite numbers become strings."""
    value = native(value)
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in cast("Sequence[Any]", value)]
    if isinstance(value, (set, frozenset)):
        return sorted(str(item) for item in cast("frozenset[Any]", value))
    return value.__qualname__ if callable(value) and hasattr(value, "__qualname__") else str(value)

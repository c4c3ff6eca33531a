"""Settings of a plugin: the keyword arguments of its factory, listed, checked and converted to JSON values."""

from __future__ import annotations

import inspect
import math
import types
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any, Literal, Union, cast, get_args, get_origin

import attrs

from compatkit.limits import native
from compatkit.plugins.implementations import signature_of
from compatkit.plugins.isolation import Owner, suggestion

RESERVED = ("name", "weight", "as", "as_", "start", "stop", "before", "after")
"""Words that a run states for any regularizer; none of them can be a setting."""


_PLAIN: Mapping[str, type] = {"bool": bool, "int": int, "float": float, "None": type(None)}
_WORDS = {"bool": "True or False", "int": "a whole number", "float": "a number", "None": "None"}


@attrs.frozen
class Setting:
    """One keyword argument of a factory.

    Attributes:
        required: Whether it lacks a default.
        default: Plain JSON value (other values as their text); None where required.
        annotation: As written, or empty.
        many: Stands for ``**name``: any further setting is taken.
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
        filled: Count of leading arguments that the caller passes by position, which are no settings.

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
    for one in parameters:
        if one.kind in (one.POSITIONAL_ONLY, one.VAR_POSITIONAL):
            continue
        annotation = "" if one.annotation is one.empty else one.annotation
        text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
        many = one.kind is one.VAR_KEYWORD
        required = one.default is one.empty and not many
        given = one.default is not one.empty and one.default is not attrs.NOTHING
        default = plain(one.default) if given else None
        settings.append(Setting(one.name, required, default, text, many))
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


def check_settings(given: Mapping[str, Any], known: Sequence[Setting], owner: Owner) -> None:
    """Raise for settings that the factory lacks, missing ones that it needs, and values of another type.

    Only flags and numbers are compared with their annotation: Python would take a text for a true flag.

    Args:
        given: Settings of the user, by name.
        known: Parameters of the factory.
        owner: For messages.

    Raises:
        PluginError: With the legal settings and the nearest name.
    """
    legal = [one.name for one in known if not one.many]
    shown = ", ".join(str(one) for one in known) or "none"
    if not any(one.many for one in known):
        for name in given:
            if name not in legal:
                raise owner.error(
                    f"there is no setting {name!r}.{suggestion(name, legal)} The settings are: {shown}."
                )
    for one in known:
        if one.required and one.name not in given:
            raise owner.error(f"the setting {one.name!r} is needed. The settings are: {shown}.")
        if one.name in given and not _fits(given[one.name], one.annotation):
            raise owner.error(
                f"the setting {one.name!r} is {_words(one.annotation)}; got {given[one.name]!r}."
            )


def fits(value: Any, hint: Any) -> bool:
    """Return whether a value is of an annotated type: a plain one, a Literal, a union, or a tuple of these.

    ``float`` accepts whole numbers too; True and False, which are whole numbers for Python, are no numbers here.

    Args:
        value: Of a setting.
        hint: Its annotation.
    """
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Literal:
        return any(type(value) is type(one) and value == one for one in inner)
    if origin in (Union, types.UnionType):
        return any(fits(value, one) for one in inner)
    if origin is tuple and isinstance(value, tuple):
        each = [inner[0]] * len(value) if inner[1:] == (...,) else inner
        return len(value) == len(each) and all(map(fits, value, each))
    if origin is not None:
        return isinstance(value, origin)
    if hint in (int, float):
        return isinstance(value, Integral if hint is int else Real) and not isinstance(value, bool)
    return hint is Any or isinstance(value, hint)


def _fits(value: Any, annotation: str) -> bool:
    """Return whether a value is of an annotated plain type; other types are left to the factory."""
    kinds = [_PLAIN.get(part) for part in annotation.split(" | ")]
    return None in kinds or any(fits(value, kind) for kind in kinds)


def _words(annotation: str) -> str:
    return " or ".join(_WORDS[part] for part in annotation.split(" | "))


def plain(value: Any) -> Any:
    """Return a value as JSON values; other types, and numbers that are not finite, become texts."""
    value = native(value)
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in cast("Sequence[Any]", value)]
    if isinstance(value, (set, frozenset)):
        return sorted(str(one) for one in cast("frozenset[Any]", value))
    return value.__qualname__ if callable(value) and hasattr(value, "__qualname__") else str(value)

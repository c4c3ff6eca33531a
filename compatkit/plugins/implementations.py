"""Read the hooks of a plugin, and raise for mistakes that pluggy ignores silently.

pluggy ignores misspelled hooks and missing markers, never passes an argument with a default, and detects a class in
place of an instance only when it calls it.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any, cast

import attrs

from compatkit.errors import type_of
from compatkit.hooks import PROJECT, Effect, Registration, Training
from compatkit.plugins.isolation import Owner, suggestion

PREFIX = PROJECT + "_"
NOT_HOOKS = frozenset({"compatkit_api", "compatkit_autocast", "compatkit_effect"})


@attrs.frozen
class Implementation:
    """One hook that a plugin implements.

    Attributes:
        hook: Name of the specification.
        attribute: Name of the function or method; differs from ``hook`` where ``specname`` is used.
        arguments: Its arguments, in its own order; a subset of the specification's.
    """

    hook: str
    attribute: str
    arguments: tuple[str, ...]
    effect: Effect


def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature without evaluating annotations, which fails on forward references in Python 3.14."""
    if sys.version_info >= (3, 14):
        import annotationlib

        return inspect.signature(function, annotation_format=annotationlib.Format.STRING)
    return inspect.signature(function)


@functools.cache
def arguments_of(layer: type) -> dict[str, tuple[str, ...]]:
    """Return the hooks that ``layer`` (Registration or Training) specifies, with their arguments."""
    return {
        name: tuple(signature_of(function).parameters)[1:]
        for name, function in vars(layer).items()
        if name.startswith(PREFIX)
    }


def implementations(plugin: object, layer: type, owner: Owner) -> tuple[Implementation, ...]:
    """Return the hooks of ``layer`` that a module, an instance, or the instances of a class implement.

    Args:
        plugin: A module, an instance or a class.
        layer: Class of the hook specifications.
        owner: For messages.

    Raises:
        PluginError: A hook is misspelled, unmarked, marked by another project, a wrapper, a generator, or
            takes arguments that are never passed; or there is no hook.
    """
    by_hook: dict[str, Implementation] = {}
    for attribute in dir(plugin):
        static = inspect.getattr_static(plugin, attribute, None)
        if isinstance(static, property):
            if attribute.startswith(PREFIX):
                raise owner.error(
                    f"{attribute!r} is a property; hooks are methods. Drop @property.", attribute
                )
            continue
        if not (attribute.startswith(PREFIX) or _is_method(static)):
            continue  # reading an attribute may run code
        member = getattr(plugin, attribute, None)
        options = _options(member, attribute, owner)
        if options is None:
            continue
        hook = cast("str", options.get("specname") or attribute)
        if hook not in arguments_of(layer):
            if options.get("optionalhook"):
                continue
            raise owner.error(_unknown(hook, layer), hook)
        if hook in by_hook:
            raise owner.error(
                f"{by_hook[hook].attribute!r} and {attribute!r} both implement {hook!r}. Keep one.", hook
            )
        _refuse_options(options, member, hook, owner)
        unbound = inspect.isclass(plugin) and inspect.isfunction(static)
        arguments = _arguments(member, hook, arguments_of(layer)[hook], owner, unbound)
        by_hook[hook] = Implementation(
            hook, attribute, arguments, getattr(member, "compatkit_effect", "host")
        )
    if not by_hook:
        raise owner.error(
            f"{_what(plugin)} implements no hook. Write at least one of {', '.join(arguments_of(layer))}, "
            "and put @compatkit.hookimpl above it."
        )
    return tuple(by_hook[hook] for hook in arguments_of(layer) if hook in by_hook)


def refuse_class(plugin: object, owner: Owner, *, place: str) -> None:
    """Raise for a class in place of an instance; its hooks would lack ``self``.

    Args:
        plugin: The object.
        owner: For the message.
        place: Where it was passed, for the message.

    Raises:
        PluginError: ``plugin`` is a class.
    """
    if inspect.isclass(plugin):
        raise owner.error(
            f"{place} is the class {plugin.__name__!r}, not an instance. Give {plugin.__name__}(...) instead."
        )


def _what(plugin: object) -> str:
    if isinstance(plugin, ModuleType):
        return f"module {plugin.__name__!r}"
    if inspect.isroutine(plugin):
        return f"the function {getattr(plugin, '__name__', plugin)!r}"
    kind = plugin if inspect.isclass(plugin) else type(plugin)
    return f"class {kind.__qualname__!r}"


def _is_method(static: object) -> bool:
    return inspect.isroutine(static) or isinstance(static, (staticmethod, classmethod))


def _options(member: object, attribute: str, owner: Owner) -> dict[str, Any] | None:
    """Return the marker's options; None for a member that does not look like a hook."""
    options = getattr(member, PROJECT + "_impl", None) if inspect.isroutine(member) else None
    if isinstance(options, dict):
        return options
    if not attribute.startswith(PREFIX) or attribute in NOT_HOOKS or not callable(member):
        return None
    if inspect.isclass(member):
        return None
    if not inspect.isroutine(member):
        raise owner.error(
            f"{attribute!r} is {type_of(member)}; a hook is a function or a method. Write it with def.",
            attribute,
        )
    if getattr(member, PROJECT + "_spec", None) is not None:
        raise owner.error(
            f"{attribute!r} is marked with hookspec, which declares hooks. Use @compatkit.hookimpl.",
            attribute,
        )
    marks = _projects(member)
    if marks:
        raise owner.error(
            f"{attribute!r} carries the marker of the project {marks[0]!r}, so it would never be called. "
            "Use @compatkit.hookimpl.",
            attribute,
        )
    raise owner.error(
        f"{attribute!r} has no marker, so it would never be called. Put @compatkit.hookimpl above it, "
        f"or give it a name that does not start with {PREFIX!r}.",
        attribute,
    )


def _projects(member: object) -> list[str]:
    """Return the other projects whose hookimpl marker a function carries."""
    function = getattr(member, "__func__", member)
    marks = getattr(function, "__dict__", {}).items()
    return [
        name.removesuffix("_impl")
        for name, value in marks
        if name.endswith("_impl") and isinstance(value, dict) and "hookwrapper" in value
    ]


def _unknown(hook: str, layer: type) -> str:
    known = arguments_of(layer)
    if layer is Training and hook in arguments_of(Registration):
        return (
            f"{hook!r} registers plugins and belongs to the module of the entry point, "
            "not to the object that the factory returns. Move it there."
        )
    if layer is Registration and hook in arguments_of(Training):
        return (
            f"{hook!r} is a training hook and belongs to the object that the factory returns, "
            "not to the module. Make it a method there."
        )
    return f"there is no hook {hook!r}.{suggestion(hook, known, PREFIX)} The hooks are {', '.join(known)}."


def _refuse_options(options: dict[str, Any], member: object, hook: str, owner: Owner) -> None:
    if options.get("wrapper") or options.get("hookwrapper"):
        raise owner.error(
            f"{hook!r} is a wrapper; hooks are resolved to plain calls once, so nothing can wrap them. "
            "Drop wrapper=True and return the value.",
            hook,
        )
    if options.get("tryfirst") or options.get("trylast"):
        raise owner.error(
            f"{hook!r} asks for tryfirst or trylast; the order is by name and by the run's before= and "
            "after=. Drop the option.",
            hook,
        )
    function = cast("Callable[..., Any]", member)
    if inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function):
        raise owner.error(
            f"{hook!r} is a generator or a coroutine, so a call would run nothing. "
            "Use return, and plain def.",
            hook,
        )


def _arguments(
    member: object, hook: str, known: tuple[str, ...], owner: Owner, unbound: bool
) -> tuple[str, ...]:
    parameters = list(signature_of(cast("Callable[..., Any]", member)).parameters.values())
    if unbound:
        parameters = parameters[1:]
    legal = f"{hook}({', '.join(known)})"
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.KEYWORD_ONLY):
            raise owner.error(
                f"{hook!r} takes {str(parameter)!r}, which hooks never get. "
                f"Name plain arguments of {legal}; leave out those you do not need.",
                hook,
            )
        if parameter.default is not parameter.empty:
            raise owner.error(
                f"argument {parameter.name!r} of {hook!r} has a default, so it would never be passed. "
                f"Drop the default; settings belong to the factory. The hook is {legal}.",
                hook,
            )
        if parameter.name not in known:
            raise owner.error(
                f"{hook!r} takes an argument {parameter.name!r} that the hook does not have."
                f"{suggestion(parameter.name, known)} The hook is {legal}; take any of its arguments.",
                hook,
            )
    return tuple(parameter.name for parameter in parameters)

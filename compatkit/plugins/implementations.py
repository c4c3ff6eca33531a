"""Read the hooks of a plugin, and raise for mistakes that pluggy ignores silently.

pluggy ignores misspelled hooks and missing markers, never passes an argument with a default, and detects a class in
place of an instance only when it calls it.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
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
    known, hooks = arguments_of(layer), dict[str, Implementation]()
    for attribute in dir(plugin):
        static = inspect.getattr_static(plugin, attribute, None)
        marked = hasattr(getattr(static, "__func__", static), PROJECT + "_impl")
        if not (marked or attribute.startswith(PREFIX)) or attribute in NOT_HOOKS:
            continue  # reading an attribute may run code
        member = static if isinstance(static, property) else getattr(plugin, attribute, None)
        options = getattr(member, PROJECT + "_impl", None) if inspect.isroutine(member) else None
        if not isinstance(options, dict):
            if not callable(member) and not isinstance(member, property):
                continue
            raise owner.error(
                f"{attribute!r} is {type_of(member)} and has no marker, so it would never be called. Put "
                f"@compatkit.hookimpl above a function or method, or give it a name that does not start with "
                f"{PREFIX!r}.",
                attribute,
            )
        hook = cast("str", options.get("specname") or attribute)
        if hook not in known:
            raise owner.error(_unknown(hook, layer), hook)
        if hook in hooks:
            raise owner.error(
                f"{hooks[hook].attribute!r} and {attribute!r} both implement {hook!r}. Keep one.", hook
            )
        function = cast("Callable[..., Any]", member)
        _refuse_options(options, function, hook, owner)
        unbound = inspect.isclass(plugin) and inspect.isfunction(static)
        arguments = _arguments(function, hook, known[hook], owner, unbound)
        effect: Effect = getattr(member, "compatkit_effect", "host")
        hooks[hook] = Implementation(hook, attribute, arguments, effect)
    if not hooks:
        raise owner.error(
            f"it implements no hook. Write at least one of {', '.join(known)}, "
            "and put @compatkit.hookimpl above it."
        )
    return tuple(hooks[hook] for hook in known if hook in hooks)


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


def _refuse_options(options: dict[str, Any], function: Callable[..., Any], hook: str, owner: Owner) -> None:
    if wanted := [name for name, value in options.items() if value and name != "specname"]:
        raise owner.error(
            f"{hook!r} is marked with {wanted[0]}; hooks are resolved to plain calls once, and their order is by name "
            "and by the run's before= and after=. Drop the option.",
            hook,
        )
    if inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function):
        raise owner.error(
            f"{hook!r} is a generator or a coroutine, so a call would run nothing. Use return, and plain def.",
            hook,
        )


def _arguments(
    function: Callable[..., Any], hook: str, known: tuple[str, ...], owner: Owner, unbound: bool
) -> tuple[str, ...]:
    parameters = list(signature_of(function).parameters.values())[unbound:]
    legal = f"{hook}({', '.join(known)})"
    for parameter in parameters:
        if parameter.kind not in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
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

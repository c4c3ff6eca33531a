"""Read the hooks of a plugin, and raise for mistakes that pluggy ignores silently.

pluggy ignores misspelled hooks and missing markers, never passes an argument with a default, and accepts a class where
an instance is needed; that fails only at the first call.
"""

from __future__ import annotations

import functools
import inspect
import sys
import warnings
from collections.abc import Callable
from typing import Any, cast

import attrs

from compatkit.errors import type_of
from compatkit.hooks import PROJECT, Effect, Registration, Training
from compatkit.hooks.versions import DEPRECATED
from compatkit.plugins.isolation import Owner, PluginWarning, suggestion

PREFIX = PROJECT + "_"
NOT_HOOKS = frozenset({"compatkit_api", "compatkit_autocast", "compatkit_effect"})


@attrs.frozen
class Implementation:
    """One hook that a plugin implements.

    Attributes:
        hook: Name of the specification.
        attribute: Name of the function or method; differs from ``hook`` where ``specname`` is used.
        argnames: Its arguments, in its own order; a subset of the specification's.
        effect: Its declared side effects: ``pure`` (tensors in, tensors out; may be compiled), ``device`` (changes
            device buffers in place; may be captured) or ``host`` (the default: Python side effects; runs eagerly).
    """

    hook: str
    attribute: str
    argnames: tuple[str, ...]
    effect: Effect


def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature without evaluating annotations, which fails on forward references in Python 3.14."""
    if sys.version_info >= (3, 14):
        import annotationlib

        return inspect.signature(function, annotation_format=annotationlib.Format.STRING)
    return inspect.signature(function)


@functools.cache
def arguments_of(hookspec: type) -> dict[str, tuple[str, ...]]:
    """Return the hooks that ``hookspec`` (Registration or Training) specifies, with their arguments."""
    return {
        name: tuple(signature_of(function).parameters)[1:]
        for name, function in vars(hookspec).items()
        if name.startswith(PREFIX)
    }


def implementations(plugin: object, hookspec: type, owner: Owner) -> tuple[Implementation, ...]:
    """Return the hooks of ``hookspec`` that a module, an instance, or the instances of a class implement.

    Args:
        plugin: A module, an instance or a class.
        hookspec: Class of the hook specifications.
        owner: Plugin that error messages name.

    Raises:
        PluginError: A hook is misspelled, unmarked, marked by another project, a wrapper, a generator, or
            takes arguments that are never passed; or there is no hook.
    """
    known, hooks = arguments_of(hookspec), dict[str, Implementation]()
    for attribute in dir(plugin):
        raw_attribute = inspect.getattr_static(plugin, attribute, None)  # getattr would run properties
        marked = hasattr(getattr(raw_attribute, "__func__", raw_attribute), PROJECT + "_impl")
        if not (marked or attribute.startswith(PREFIX)) or attribute in NOT_HOOKS:
            continue
        member = raw_attribute if isinstance(raw_attribute, property) else getattr(plugin, attribute, None)
        options = getattr(member, PROJECT + "_impl", None) if inspect.isroutine(member) else None
        if not isinstance(options, dict):
            if not callable(member) and not isinstance(member, property):
                continue
            raise owner.error(
                f"{attribute!r} is {type_of(member)} without a marker, so it would never be called. Put "
                f"@compatkit.hookimpl above a function, or choose a name that does not start with {PREFIX!r}.",
                attribute,
            )
        hook = cast("str", options.get("specname") or attribute)
        if hook not in known:
            raise owner.error(_unknown_hook_message(hook, hookspec), hook)
        if hook in hooks:
            raise owner.error(
                f"{hooks[hook].attribute!r} and {attribute!r} both implement {hook!r}. Keep one.", hook
            )
        if (deprecation := DEPRECATED.get(hook.removeprefix(PREFIX))) is not None:
            warnings.warn(
                f"{owner}: {hook} is deprecated since version {deprecation.since} of the hooks and goes with version "
                f"{deprecation.removal}; use {deprecation.replacement}.",
                PluginWarning,
                stacklevel=2,
            )
        function = cast("Callable[..., Any]", member)
        _refuse_options(options, function, hook, owner)
        skip_self = inspect.isclass(plugin) and inspect.isfunction(raw_attribute)
        argnames = _argnames(function, hook, known[hook], owner, skip_self)
        effect: Effect = getattr(member, "compatkit_effect", "host")
        hooks[hook] = Implementation(hook, attribute, argnames, effect)
    if not hooks:
        raise owner.error(
            f"it implements no hook. Write one of {', '.join(known)}, marked with @compatkit.hookimpl."
        )
    return tuple(hooks[hook] for hook in known if hook in hooks)


def refuse_class(plugin: object, owner: Owner, *, argument_name: str) -> None:
    """Raise for a class in place of an instance; its hooks would lack ``self``.

    Args:
        plugin: The object.
        owner: Plugin that error messages name.
        argument_name: Name of the object in the message.

    Raises:
        PluginError: ``plugin`` is a class.
    """
    if inspect.isclass(plugin):
        raise owner.error(
            f"{argument_name} is the class {plugin.__name__!r}, not an instance. Give {plugin.__name__}(...) instead."
        )


def _unknown_hook_message(hook: str, hookspec: type) -> str:
    known = arguments_of(hookspec)
    if hookspec is Training and hook in arguments_of(Registration):
        return f"{hook!r} registers plugins, so it belongs to the module of the entry point. Move it there."
    if hookspec is Registration and hook in arguments_of(Training):
        return f"{hook!r} is a training hook. Make it a method of the object that the factory returns."
    return f"there is no hook {hook!r}.{suggestion(hook, known, PREFIX)} The hooks are {', '.join(known)}."


def _refuse_options(options: dict[str, Any], function: Callable[..., Any], hook: str, owner: Owner) -> None:
    if unsupported := [name for name, value in options.items() if value and name != "specname"]:
        raise owner.error(
            f"{hook!r} is marked with {unsupported[0]}, which compatkit does not support. To order plugins, give "
            "before= or after= where a run lists them.",
            hook,
        )
    if inspect.isgeneratorfunction(function) or inspect.iscoroutinefunction(function):
        raise owner.error(f"{hook!r} is a generator or a coroutine. Use a plain def with return.", hook)


def _argnames(
    function: Callable[..., Any], hook: str, spec_argnames: tuple[str, ...], owner: Owner, skip_self: bool
) -> tuple[str, ...]:
    parameters = list(signature_of(function).parameters.values())
    if skip_self:
        parameters = parameters[1:]
    expected_signature = f"{hook}({', '.join(spec_argnames)})"
    for parameter in parameters:
        if parameter.kind not in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            raise owner.error(
                f"{hook!r} takes {str(parameter)!r}; only positional arguments are passed. Use any of those "
                f"of {expected_signature}.",
                hook,
            )
        if parameter.default is not parameter.empty:
            raise owner.error(
                f"argument {parameter.name!r} of {hook!r} has a default, so it would never be passed. Remove the "
                "default if the hook has this argument; pass a setting to the factory.",
                hook,
            )
        if parameter.name not in spec_argnames:
            raise owner.error(
                f"{hook!r} has no argument {parameter.name!r}.{suggestion(parameter.name, spec_argnames)} The hook is "
                f"{expected_signature}.",
                hook,
            )
    return tuple(parameter.name for parameter in parameters)

"""Import an entry point, check it, and collect the factories that it registers."""

from __future__ import annotations

import functools
import inspect
import re
import sys
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import Distribution, EntryPoint, PackageNotFoundError, distribution
from typing import Any

import attrs

from compatkit.errors import CompatkitError, PluginError, UsageError, type_of
from compatkit.hooks import HOOK_API, HOOK_VERSION, PROJECT, Registration
from compatkit.plugins.implementations import (
    PREFIX,
    Implementation,
    arguments_of,
    implementations,
    refuse_class,
)
from compatkit.plugins.isolation import Owner, PluginWarning, described, restored_state, suggestion
from compatkit.plugins.settings import RESERVED, Setting, check_settings, settings_of, takes_one

WITHOUT = "COMPATKIT_DISABLE_PLUGINS"
KINDS = tuple(name.removeprefix(PREFIX) for name in arguments_of(Registration))
"""Kinds of plugins; each has one registration hook."""
_PASSED = {
    "builders": ("model",),
    "remotes": ("address",),
    "exporters": ("file", "module", "inputs", "description"),
    "rungs": ("inputs",),
}
"""Arguments that compatkit passes by position; all others are settings."""
BUILT_IN_BUILDER = "timm"
"""Name of the built-in builder, reserved."""

BUILD_IN_SET_UP = "Build modules in compatkit_set_up, and pass them to setup.own."
_NAME = re.compile(r"[a-z0-9]([a-z0-9_.-]{0,62}[a-z0-9])?")


@attrs.frozen(eq=False)
class Offer:
    """A factory that a plugin offers under one name.

    Attributes:
        kind: One of KINDS.
        name: Name by which a run uses it.
        factory: Called with the settings as keyword arguments.
        source: File of the plugin, or None.
    """

    kind: str
    name: str
    factory: Callable[..., Any]
    distribution: str | None = None
    version: str | None = None
    source: str | None = None

    @property
    def key(self) -> str:
        """The entry point's name, for example ``regularizers.dcc``."""
        return f"{self.kind}.{self.name}"

    @property
    def owner(self) -> Owner:
        """The owner, for messages."""
        return Owner(self.key, self.distribution, self.version)

    @property
    def settings(self) -> tuple[Setting, ...]:
        """Keyword arguments of the factory, without those that compatkit passes, such as a model's name."""
        return settings_of(self.factory, self.owner, filled=len(_PASSED.get(self.kind, ())))

    def make(self, settings: Mapping[str, Any]) -> Any:
        """Call the factory with checked settings.

        Raises:
            PluginError: A setting is unknown or missing, or the factory refuses a value.
        """
        arguments = shown(settings) or "no settings"
        with self.called(settings, "its factory", f"the factory failed with {arguments}", BUILD_IN_SET_UP):
            return self.factory(**settings)

    @contextmanager
    def called(
        self, settings: Mapping[str, Any], what: str, failed: str, remedy: str, *, drawing: bool = False
    ) -> Iterator[None]:
        """Check settings and name the plugin in errors and warnings of the body, which calls the factory.

        Args:
            settings: Keyword arguments for the factory.
            what: Subject of the warning if the factory changes global state, which is restored.
            failed: Beginning of the error message.
            remedy: End of the warning.
            drawing: Whether the factory may draw from torch's random state.
        """
        check_settings(settings, self.settings, self.owner)
        try:
            with restored_state(drawing=drawing) as changed:
                yield
        except (Exception, SystemExit) as error:
            # data sets raise DataError, a usage error, if files are missing
            keeps_class = self.kind == "data_sets" or not isinstance(error, UsageError)
            if isinstance(error, CompatkitError) and keeps_class:
                error.add_note(f"Raised by {self.owner}, {what}.")
                raise
            raise self.owner.error(f"{failed}: {described(error)}") from error
        if changed:
            warnings.warn(note(changed, self.owner, what, remedy), PluginWarning, stacklevel=4)


def shown(settings: Mapping[str, Any]) -> str:
    """Return settings as in a call, long values cut off."""
    return ", ".join(f"{name}={value!r:.200}" for name, value in settings.items())


@attrs.frozen(eq=False)
class Loaded:
    """A checked import: the offer, its hooks, and warnings.

    Attributes:
        summary: First line of the docstring of the plugin's module; of the factory if the module registers several.
    """

    offer: Offer
    summary: str
    hooks: tuple[Implementation, ...]
    notes: tuple[str, ...]


def load(point: EntryPoint) -> Loaded:
    """Import an entry point and return its offer of that key.

    Raises:
        PluginError: The import fails, or the plugin violates the hook specifications.
    """
    owner = owner_of(point)
    kind, name = check_key(point)
    try:
        with restored_state() as changed:
            plugin = point.load()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise owner.error(
            f"importing {point.value!r} failed: {described(error)}. Repair it, uninstall it, or block it with "
            f"{WITHOUT}={point.name}."
        ) from error
    refuse_class(plugin, owner, argument_name=f"the entry point {point.value!r}")
    check_api(getattr(plugin, "compatkit_api", HOOK_API), owner)
    hooks = implementations(plugin, Registration, owner)
    factories = registered(plugin, hooks, owner, kind)
    if name not in factories:
        raise owner.error(
            f"{PREFIX}{kind} registers {', '.join(factories) or 'nothing'}, not {name!r}.{suggestion(name, factories)} "
            "The entry point's key and the registered name must agree.",
            PREFIX + kind,
        )
    factory = factories[name]
    source = getattr(sys.modules.get(point.module), "__file__", None)
    offer = Offer(kind, name, factory, owner.distribution, owner.version, source)
    if point.name == f"builders.{BUILT_IN_BUILDER}":
        raise owner.error(f"{name!r} is built in. Choose another name.")
    if kind in _PASSED and not takes_one(factory):
        passed = ", ".join(_PASSED[kind])
        raise owner.error(
            f"its factory takes no {_PASSED[kind][0]}. Write it as factory({passed}, **settings)."
        )
    if kind == "regularizers":
        taken = [setting.name for setting in offer.settings if setting.name in RESERVED]
        if taken:
            raise owner.error(f"its factory has a setting {taken[0]!r}, which is reserved. Rename it.")
    summary = _description(plugin, factory, shared=len(factories) > 1)
    remedy = "Its author should not do this at import."
    notes = (note(changed, owner, f"importing {point.value!r}", remedy),) if changed else ()
    return Loaded(offer, summary, hooks, notes)


def check_key(point: EntryPoint) -> tuple[str, str]:
    """Return kind and name of an entry point, whose module is not imported.

    Raises:
        PluginError: There is no such kind.
    """
    kind, _, name = point.name.partition(".")
    if kind not in KINDS:
        raise owner_of(point).error(
            f"the entry point starts with {kind!r}, which is no kind of plugin.{suggestion(kind, KINDS)} Name it "
            f"<kind>.<name>; the kinds are {', '.join(KINDS)}."
        )
    return kind, name


@functools.cache
def own_points() -> Mapping[str, EntryPoint]:
    """Return compatkit's own plugins by key; other distributions are not read."""
    try:
        points = distribution(PROJECT).entry_points
    except PackageNotFoundError:  # run from its sources
        return {}
    return {point.name: point for point in points if point.group == PROJECT}


def own_keys() -> Collection[str]:
    """Return the keys of compatkit's own plugins."""
    return own_points().keys()


@functools.lru_cache(maxsize=256)
def name_and_version(distribution: Distribution) -> tuple[str, str]:
    """Return what a distribution's metadata state; they take a millisecond to read."""
    return distribution.name, distribution.version


def owner_of(point: EntryPoint) -> Owner:
    """Return the owner of an entry point."""
    try:
        distribution, version = name_and_version(point.dist) if point.dist else (None, None)
    except Exception:  # broken metadata may lack a name; the plugin may still work
        distribution, version = None, None
    return Owner(point.name, distribution, version)


def check_api(stated: object, owner: Owner) -> None:
    """Compare ``compatkit_api`` (``1``, any minor version; or ``">=1.1,<3"``) with this version of the hooks."""
    if stated == HOOK_API and type(stated) is int:  # most plugins, which need no parser of ranges
        return
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    try:
        wanted = SpecifierSet(f"=={stated}.*" if type(stated) is int else stated)  # type: ignore[arg-type]
    except (InvalidSpecifier, TypeError):
        raise owner.error(
            f"compatkit_api is {stated!r}; write compatkit_api = {HOOK_API}, or a range such as '>=1.1,<2'."
        ) from None
    if not wanted.contains(HOOK_VERSION):
        raise owner.error(
            f"it needs version {stated} of the hooks; this compatkit has version {HOOK_VERSION}. Install versions that "
            "fit."
        )


def registered(
    plugin: object, hooks: Sequence[Implementation], owner: Owner, kind: str
) -> dict[str, Callable[..., Any]]:
    """Call the registration hook of a kind and return the registered factories by name.

    Args:
        plugin: A module or an instance.
        hooks: Hooks that it implements.
        owner: Plugin that error messages name.
        kind: One of KINDS.

    Raises:
        PluginError: The hook fails, returns a value, or registers something other than a factory.
    """
    hook = PREFIX + kind
    factories: dict[str, Callable[..., Any]] = {}

    def register(name: str, factory: Callable[..., Any]) -> None:
        fault = ""
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            fault = f"the name {name!r}; a name is lower-case letters, digits and '_.-'."
        elif not callable(factory):
            fault = f"{factory!r} as {name!r}, which is not callable. Register a class or a function."
        elif name in factories:
            fault = f"{name!r} twice. Keep one."
        if fault:
            raise owner.error(f"{hook} registers {fault}", hook)
        factories[name] = factory

    for implementation in (each for each in hooks if each.hook == hook):
        arguments = (register,) if implementation.argnames else ()
        try:
            result = getattr(plugin, implementation.attribute)(*arguments)
        except PluginError:
            raise
        except (Exception, SystemExit) as error:
            raise owner.error(f"{hook} failed: {described(error)}", hook) from error
        if result is not None:
            raise owner.error(
                f"{hook} returned {type_of(result)}, which is ignored. Call register(name, factory).", hook
            )
    return factories


def _description(plugin: object, factory: Callable[..., Any], *, shared: bool) -> str:
    """Return the first line of a docstring: the factory's if its module registers several, else the module's."""
    own = inspect.getdoc(factory) if inspect.isroutine(factory) or inspect.isclass(factory) else None
    texts = (own, inspect.getdoc(plugin)) if shared else (inspect.getdoc(plugin), own)
    return first_line(next(filter(None, texts), ""))


def first_line(docstring: str) -> str:
    """Return the first line of a clean docstring, as ``compatkit plugins`` shows it."""
    line = docstring.partition("\n")[0].replace("``", "").removeprefix("Return ")
    return line[:1].upper() + line[1:]


def note(changed: Sequence[str], owner: Owner, when: str, remedy: str) -> str:
    """Return the warning about global state that a plugin changed."""
    return f"{owner}: {when} changed {', '.join(changed)}; it was restored. {remedy}"

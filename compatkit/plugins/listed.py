"""List installed plugins from the metadata of their packages; on request, import them and state which fail.

The metadata hold keys, distributions, versions and modules. What a plugin does is the first line of its module's
docstring, or its factory's, which is read from the source; nothing of it is run.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import io
import tokenize
from collections import Counter
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import EntryPoint
from traceback import format_exception
from typing import Any, Literal

import attrs

from compatkit.errors import PluginError
from compatkit.plugins.discovery import blocked, clash, qualified, rivals
from compatkit.plugins.files import FileDistribution
from compatkit.plugins.installed import installed, is_shadowed
from compatkit.plugins.loading import Loaded, check_key, first_line, load, owner_of
from compatkit.plugins.settings import Setting, plain

Status = Literal["installed", "active", "blocked", "failed", "clash"]


@attrs.frozen(eq=False)
class Listed:
    """A line of ``compatkit plugins``.

    Attributes:
        kind: Kind of the plugin.
        name: Name in recipes and commands.
        status: ``installed``: read from metadata, its import was not tried; ``active``: imported, can be used;
            ``failed``: cannot be used; ``blocked``: by an environment variable; ``clash``: two distributions have the
            same key.
        distribution: Distribution that has it, if known.
        version: Version of the distribution.
        module: Module that its entry point names.
        source: Its file, once imported.
        summary: First line of its docstring.
        order: Default position among the plugins of its kind, from 1.
        models: Names of the models of a builder that lists them, once imported.
        hooks: Hooks implemented, once imported; for a regularizer whose factory is a class, training hooks too.
        settings: Settings of its factory, once imported.
        message: Reason why it cannot be used, or empty.
        traceback: Traceback of the failure, or empty.
        notes: Warnings.
    """

    kind: str
    name: str
    status: Status
    distribution: str | None
    version: str | None
    module: str = ""
    source: str | None = None
    summary: str = ""
    order: int = 0
    models: tuple[str, ...] = ()
    hooks: tuple[str, ...] = ()
    settings: tuple[Setting, ...] = ()
    message: str = ""
    traceback: str = ""
    notes: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """Kind and name, for example ``regularizers.dcc``."""
        return f"{self.kind}.{self.name}"

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return plain(attrs.asdict(self))


def listing(name: str | None = None, *, check: bool = False) -> list[Listed]:
    """List installed plugins from metadata, without importing any; or import each and state which fail.

    Plugins of files that the user names are imported in any case.

    Args:
        name: Only plugins of this name, such as ``"dcc"``, ``"regularizers.dcc"`` or ``"package:dcc"``; None for all.
        check: Whether to import each plugin separately, which tells whether it works, its settings and its hooks.
    """
    points, orders = installed(), Counter[str]()
    by_name: dict[str, list[EntryPoint]] = {}
    for point in points:
        by_name.setdefault(point.name, []).append(point)
    modules, packages = Counter(point.module for point in points), dict[str, ModuleSpec | None]()
    lines: list[Listed] = []
    for point in points:
        kind, _, plain_name = point.name.partition(".")
        orders[kind] += 1
        shown = qualified(point) if is_shadowed(point) else plain_name
        if name is not None and name not in (shown, f"{kind}.{shown}"):
            continue
        owner, order = owner_of(point), orders[kind]
        line = Listed(kind, shown, "installed", owner.distribution, owner.version, point.module, order=order)
        line = _with_status(line, point, by_name[point.name], check)
        if line.status == "installed":
            summary = _summary(point, packages, shared=modules[point.module] > 1)
            line = attrs.evolve(line, summary=summary)
        lines.append(line)
    return lines


def _with_status(line: Listed, point: EntryPoint, same_name: list[EntryPoint], check: bool) -> Listed:
    twins = [other for other in same_name if rivals(other, point)]
    if reason := blocked(point):
        return attrs.evolve(line, status="blocked", message=f"Blocked by {reason}.")
    if len(twins) > 1:
        return attrs.evolve(line, status="clash", message=str(clash(twins)))
    try:
        if check or isinstance(point.dist, FileDistribution):
            return _describe(line, load(point))
        check_key(point)
    except PluginError as error:
        trace = "".join(format_exception(error))
        return attrs.evolve(line, status="failed", message=str(error), traceback=trace)
    return line


def _describe(line: Listed, loaded: Loaded) -> Listed:
    from compatkit.hooks import Training
    from compatkit.plugins.builders import attribute_of, library_of
    from compatkit.plugins.implementations import implementations

    hooks = loaded.hooks
    if line.kind == "regularizers" and isinstance(loaded.offer.factory, type):
        hooks += implementations(loaded.offer.factory, Training, loaded.offer.owner)
    models: tuple[str, ...] = ()
    if line.kind == "builders":
        library_of(loaded.offer)  # raises if it could not be recorded in a blueprint
        models = attribute_of(loaded.offer, "names") or ()
    return attrs.evolve(
        line,
        status="active",
        models=models,
        source=loaded.offer.source,
        summary=loaded.summary,
        hooks=tuple(implementation.hook for implementation in hooks),
        settings=loaded.offer.settings,
        notes=loaded.notes,
    )


def _summary(point: EntryPoint, packages: dict[str, ModuleSpec | None], *, shared: bool) -> str:
    """Return the first line of a docstring from the source of a plugin; empty if it cannot be read.

    Args:
        point: Entry point of the plugin.
        packages: Packages found before.
        shared: Whether its module has several plugins; then the factory's docstring comes first, if the module has a
            line ``register("NAME", FACTORY)`` and defines the factory itself.
    """
    try:
        source, own = _source(point.module, packages), ""
        if shared:
            _, _, rest = source.partition(f' register("{point.name.partition(".")[2]}", ')
            factory = rest.partition(")")[0]
            for word in ("def", "class"):
                _, header, text = source.partition(f"\n{word} {factory}(")
                own = own or (_docstring(header + text, header=True) if factory and header else "")
        return first_line(inspect.cleandoc(own or _docstring(source)))
    except (ImportError, OSError, SyntaxError, ValueError, tokenize.TokenError):
        return ""  # only an import tells what is wrong with it


def _docstring(source: str, *, header: bool = False) -> str:
    """Return the docstring at the beginning of a source, by its tokens: parsing the whole takes 50 times as long.

    Args:
        source: Text of a module, or from ``def`` or ``class`` on.
        header: Whether a logical line precedes it.
    """
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if header:
            header = token.type != tokenize.NEWLINE
        elif token.type == tokenize.STRING:
            text = ast.literal_eval(token.string)
            return text if isinstance(text, str) else ""
        elif token.type not in (tokenize.COMMENT, tokenize.NL, tokenize.INDENT):
            break
    return ""


def _source(module: str, packages: dict[str, ModuleSpec | None]) -> str:
    """Return the source of a module, without importing the packages that hold it; empty if there is none."""
    spec = _spec(module, packages)
    read = getattr(spec and spec.loader, "get_source", None)
    return (read(module) or "") if read is not None else ""


def _spec(module: str, packages: dict[str, ModuleSpec | None]) -> ModuleSpec | None:
    """Find a module without importing the packages that hold it."""
    if module not in packages:
        package = module.rpartition(".")[0]
        if not package:
            packages[module] = importlib.util.find_spec(module)
        else:
            parent = _spec(package, packages)
            paths = None if parent is None else parent.submodule_search_locations
            packages[module] = None if paths is None else PathFinder.find_spec(module, paths)
    return packages[module]

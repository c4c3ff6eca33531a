"""Plugins: which are installed, by their metadata; on request each is imported in a process of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from importlib.util import find_spec

from compatkit.health.observation import Observation
from compatkit.health.probe import Imported
from compatkit.plugins.discovery import blocked, clash, rivals
from compatkit.plugins.installed import installed
from compatkit.plugins.loading import KINDS, owner_of


def plugins(imported: dict[str, Imported] | None) -> Iterator[Observation]:
    """Yield what is found about plugins: one observation a distribution, and one for each that cannot be used.

    Args:
        imported: What came of the import of all plugins, by ``distribution:key``; None if none was imported.
    """
    points = installed()
    counts: dict[str, Counter[str]] = {}
    for point in points:
        owner, kind = owner_of(point), point.name.partition(".")[0]
        distribution = f"{owner.distribution or '?'} {owner.version or '?'}"
        counts.setdefault(distribution, Counter())[kind] += 1
    tried = "" if imported is not None else "; not imported (--plugins does)"
    for distribution, kinds in counts.items():
        shown = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
        yield Observation("plugins", distribution, "ok", f"{shown}{tried}")
    for point in points:
        kind = point.name.partition(".")[0]
        where = f"of {owner_of(point).distribution or 'an unknown distribution'}"
        twins = [other for other in points if rivals(other, point)]
        error = _error(point.module) if imported is None else imported.get(key_of(point), Imported()).error
        if reason := blocked(point):
            yield Observation("plugins", point.name, "ok", f"{where}: blocked by {reason}")
        elif kind not in KINDS:
            remedy = f"Upgrade compatkit or this plugin; the kinds are {', '.join(KINDS)}."
            yield Observation("plugins", point.name, "warning", f"{where}: there is no kind {kind!r}", remedy)
        elif len(twins) > 1:
            if point == twins[0]:
                yield Observation("plugins", point.name, "warning", str(clash(twins)), "Do one of these.")
        elif error:
            remedy = "Install what it needs, or repair or uninstall its package; only runs that name it fail."
            yield Observation("plugins", point.name, "warning", f"{where}: {error}", remedy)


def key_of(point: EntryPoint) -> str:
    """Return ``distribution:key`` of an entry point."""
    return f"{owner_of(point).distribution}:{point.name}"


def _error(module: str) -> str:
    """Return why the top package of a module cannot be found, or empty; nothing is imported."""
    package = module.partition(".")[0]
    try:
        return "" if find_spec(package) is not None else f"there is no module {package!r}"
    except (ImportError, ValueError, AttributeError) as error:
        return f"the module {package!r} cannot be found: {error}"

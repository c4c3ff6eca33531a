"""Installed entry points and their names.

A plain name, ``dcc``, means compatkit's own plugin if it has one of that name. Another distribution's plugin of the
same name is called ``package:dcc``; so are plugins of two distributions with the same name.
"""

from __future__ import annotations

import os
import sys
import warnings
from functools import lru_cache
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from pathlib import PurePath
from typing import Any

import attrs
from packaging.utils import canonicalize_name

from compatkit.hooks import PROJECT
from compatkit.plugins.files import FileDistribution
from compatkit.plugins.files import distributions as files
from compatkit.plugins.isolation import PluginWarning
from compatkit.plugins.loading import name_and_version, own_keys, own_points, owner_of

RENAMED = {
    "metrics.mutual_neighbours": "metrics.mutual_neighbors",
    "metrics.specialisation": "metrics.specialization",
    "regularizers.colourisation": "regularizers.colorization",
}
"""Names of plugins that earlier manifests record under another spelling."""

_warned: set[str] = set()
"""Leftover folders that a warning has named."""


def current(name: str) -> str:
    """Return the present name of a recorded plugin."""
    return RENAMED.get(name, name)


def installed(**chosen: Any) -> list[EntryPoint]:
    """Return entry points of the group and of files that the user names, each once, sorted by key and distribution.

    Folders such as ``~emo-1.0.dist-info`` are left out, with one warning each: pip renames ``demo`` so while it
    replaces it.

    Args:
        **chosen: Filters as for ``entry_points``, such as ``name="regularizers.dcc"``.
    """
    points = [point for point in _points(_import_path()).select(**chosen) if not _is_leftover(point)]
    points += [point for file in files() for point in file.entry_points.select(group=PROJECT, **chosen)]
    by_key = {
        (point.name, str(attrs.evolve(owner_of(point), plugin="")), point.value): point for point in points
    }
    return [by_key[key] for key in sorted(by_key)]


def own(key: str) -> EntryPoint | None:
    """Return compatkit's own plugin of a key, None if it has none; other distributions are not read."""
    files()  # imported at the first look-up of any plugin, which tells of names that are compatkit's
    return own_points().get(key)


def _import_path() -> tuple[tuple[str, float | None], ...]:
    """Return the entries of the import path with the time of their last change, None for those that are missing."""
    paths = map(os.path.abspath, sys.path)
    return tuple((path, os.path.getmtime(path) if os.path.exists(path) else None) for path in paths)


@lru_cache(maxsize=1)
def _points(import_path: tuple[tuple[str, float | None], ...]) -> EntryPoints:
    """Return the group's entry points; a search takes 20 ms if 200 distributions are installed.

    Args:
        import_path: Cache key: a package that is installed or removed changes it.
    """
    return entry_points(group=PROJECT)


def _is_leftover(point: EntryPoint) -> bool:
    folder = str(getattr(point.dist, "_path", ""))
    is_leftover = PurePath(folder).name.startswith("~")
    if is_leftover and folder not in _warned:
        _warned.add(folder)
        message = f"{folder} is a leftover of an interrupted pip; it is ignored. Remove it."
        warnings.warn(message, PluginWarning, stacklevel=4)
    return is_leftover


def package_of(point: EntryPoint) -> str:
    """Return the canonical name of the distribution, or a file's stem; empty if the metadata are broken."""
    try:
        if isinstance(point.dist, FileDistribution):
            return canonicalize_name(point.dist.path.stem)
        return canonicalize_name(name_and_version(point.dist)[0]) if point.dist else ""
    except Exception:  # broken metadata
        return ""


def is_own(point: EntryPoint) -> bool:
    """Return whether a plugin is compatkit's own."""
    return point.name in own_keys() and package_of(point) == PROJECT


def is_shadowed(point: EntryPoint) -> bool:
    """Return whether the plain name of a plugin means compatkit's own plugin."""
    return point.name in own_keys() and package_of(point) != PROJECT


def split_name(name: str, kind: str) -> tuple[str, str]:
    """Return the package (or "") and the plain name of ``dcc``, ``regularizers.dcc`` or ``package:dcc``."""
    package, _, plain = name.rpartition(":")
    return canonicalize_name(package), plain.removeprefix(f"{kind}.")

"""Installed entry points and their names.

A plain name, ``dcc``, means compatkit's own plugin if it has one of that name. Another distribution's plugin of the
same name is called ``package:dcc``, as are two distributions' plugins of one name.
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
from compatkit.plugins.loading import own_keys, owner_of

RENAMED = {
    "metrics.mutual_neighbours": "metrics.mutual_neighbors",
    "metrics.specialisation": "metrics.specialization",
    "regularizers.colourisation": "regularizers.colorization",
}
"""Names of plugins that earlier manifests record under another spelling."""

_warned: set[str] = set()
"""Folders of an interrupted pip that were named."""


def current(name: str) -> str:
    """Return the name that a recorded plugin has today."""
    return RENAMED.get(name, name)


def installed(**chosen: Any) -> list[EntryPoint]:
    """Return entry points of the group and of files that the user names, each once, sorted by key and distribution.

    Folders such as ``~emo-1.0.dist-info`` are left out, with one warning each: pip renames ``demo`` so while it
    replaces it.

    Args:
        **chosen: As ``entry_points`` takes them, such as ``name="regularizers.dcc"``; all without any.
    """
    points = [point for point in _points(_import_path()).select(**chosen) if not _is_leftover(point)]
    points += [point for made in files() for point in made.entry_points.select(group=PROJECT, **chosen)]
    owners = {
        id(point.dist): point for point in points
    }  # metadata of a distribution take a millisecond to read
    named = {key: str(attrs.evolve(owner_of(point), plugin="")) for key, point in owners.items()}
    by_key = {(point.name, named[id(point.dist)], point.value): point for point in points}
    return [by_key[key] for key in sorted(by_key)]


def _import_path() -> tuple[tuple[str, float | None], ...]:
    """Return the entries of the import path with the time of their last change, None for those that are missing."""
    paths = map(os.path.abspath, sys.path)
    return tuple((path, os.path.getmtime(path) if os.path.exists(path) else None) for path in paths)


@lru_cache(maxsize=1)
def _points(import_path: tuple[tuple[str, float | None], ...]) -> EntryPoints:
    """Return the entry points of the group, whose search takes 20 ms where 200 distributions are installed.

    Args:
        import_path: To search again once a package was installed or removed.
    """
    return entry_points(group=PROJECT)


def _is_leftover(point: EntryPoint) -> bool:
    folder = str(getattr(point.dist, "_path", ""))
    left = PurePath(folder).name.startswith("~")
    if left and folder not in _warned:
        _warned.add(folder)
        message = f"{folder} is a leftover of an interrupted pip; it is ignored. Remove it."
        warnings.warn(message, PluginWarning, stacklevel=4)
    return left


def package_of(point: EntryPoint) -> str:
    """Return the canonical name of the distribution, or a file's stem; empty if the metadata are broken."""
    try:
        if isinstance(point.dist, FileDistribution):
            return canonicalize_name(point.dist.path.stem)
        return canonicalize_name(point.dist.name) if point.dist else ""
    except Exception:  # broken metadata
        return ""


def is_own(point: EntryPoint) -> bool:
    """Return whether a plugin is compatkit's own."""
    return point.name in own_keys() and package_of(point) == PROJECT


def is_shadowed(point: EntryPoint) -> bool:
    """Return whether the plain name of a plugin means compatkit's own plugin."""
    return point.name in own_keys() and package_of(point) != PROJECT


def split_name(name: str, kind: str) -> tuple[str, str]:
    """Return the package, or an empty text, and the plain name, of ``dcc``, ``regularizers.dcc``, ``package:dcc``.

    Args:
        name: As it is written.
        kind: Such as ``"regularizers"``.
    """
    package, _, plain = name.rpartition(":")
    return canonicalize_name(package), plain.removeprefix(f"{kind}.")

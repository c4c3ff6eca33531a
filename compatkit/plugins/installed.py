"""Installed entry points and their names.

A plain name, ``dcc``, means compatkit's own plugin if it has one of that name. Another distribution's plugin of the
same name is called ``package:dcc``, as are two distributions' plugins of one name.
"""

from __future__ import annotations

import warnings
from importlib.metadata import Distribution, EntryPoint, entry_points
from pathlib import PurePath
from typing import Any

from packaging.utils import canonicalize_name

from compatkit.hooks import PROJECT
from compatkit.plugins.files import FileDistribution
from compatkit.plugins.files import distributions as files
from compatkit.plugins.isolation import PluginWarning
from compatkit.plugins.loading import own_keys

_WARNED: set[str] = set()
"""Leftover folders that were reported."""


def installed(**chosen: Any) -> list[EntryPoint]:
    """Return entry points of the group and of files that the user names.

    Leftovers of an interrupted pip are ignored, with one warning each.

    Args:
        **chosen: As ``entry_points`` takes them, such as ``name="regularizers.dcc"``; all without any.
    """
    points = entry_points(group=PROJECT, **chosen)
    # Metadata of a distribution take a millisecond to read, and one may have a hundred points.
    left = {key: _is_leftover(dist) for key, dist in {id(point.dist): point.dist for point in points}.items()}
    of_files = [point for made in files() for point in made.entry_points.select(group=PROJECT, **chosen)]
    return [point for point in points if not left[id(point.dist)]] + of_files


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


def _is_leftover(dist: Distribution | None) -> bool:
    """Return whether metadata are left over; pip renames ``demo`` to ``~emo`` while it replaces it."""
    folder = getattr(dist, "_path", None)
    if dist is None or folder is None:
        return False
    name = PurePath(str(folder)).name
    try:
        wanted = dist.metadata["Name"]
    except Exception:  # broken metadata; the plugin may still be fine
        wanted = None
    if not name.startswith("~") and (not wanted or _begins(name, wanted)):
        return False
    if str(folder) not in _WARNED:
        _WARNED.add(str(folder))
        warnings.warn(
            f"{folder} is a leftover of an interrupted pip; it is ignored. Remove it.",
            PluginWarning,
            stacklevel=4,
        )
    return True


def _begins(folder: str, name: str) -> bool:
    return canonicalize_name(folder).startswith(canonicalize_name(name))

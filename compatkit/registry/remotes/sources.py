"""Remotes that a clone fetches missing weights from.

They stand in the user's configuration, by identity and root of the registry: no file of a registry brings about network
access.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from compatkit.errors import IntegrityError
from compatkit.foundation import cache
from compatkit.foundation.configuration import configuration
from compatkit.registry.os_errors import environment

if TYPE_CHECKING:
    from compatkit.registry.remotes.named import SavedRemote


def sources(root: Path, identity: str) -> list[SavedRemote]:
    """Return the remotes that a registry fetches missing weights from; none for most registries.

    Args:
        root: Folder of the registry.
        identity: Its identity.

    Raises:
        FormatError: A file is malformed.
        EnvironmentFailure: A file cannot be read.
    """
    folder = _folder(root, identity)
    if not folder.is_dir():
        return []
    from compatkit.registry.remotes.named import SavedRemote

    with environment("read", folder):
        names = sorted(os.listdir(folder))
    remotes = (SavedRemote.read(folder / name) for name in names if name.endswith(".json"))
    return [remote for remote in remotes if remote is not None]


def add_source(root: Path, identity: str, remote: SavedRemote) -> None:
    """Record a remote that a registry fetches missing weights from.

    Args:
        root: Folder of the registry.
        identity: Its identity.
        remote: Object store or folder that is a registry.

    Raises:
        EnvironmentFailure: The configuration cannot be written.
    """
    name = hashlib.sha256(remote.address.encode()).hexdigest()[:16]
    remote.write(_folder(root, identity) / f"{name}.json", replace=True)


def described(root: Path, identity: str) -> str:
    """Return the remotes of ``sources`` for messages; empty if there are none, or their record is damaged."""
    try:
        return ", ".join(map(str, sources(root, identity)))
    except IntegrityError:
        return ""


def _folder(root: Path, identity: str) -> Path:
    if cache.mirrored(root) is not None:
        return root.parent / "remote"
    return configuration() / "weights" / cache.folder(root, identity).name

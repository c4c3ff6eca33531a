"""Cache folders, outside of registries: one for each user and registry."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from compatkit.foundation.addresses import local

VARIABLE = "COMPATKIT_CACHE"


def folder(root: Path, identity: str) -> Path:
    """Return the cache folder of a registry; it may not exist yet.

    Below COMPATKIT_CACHE, else the user's cache folder. Two copies of a registry share its identity, so the path
    of the root is part of the name.

    Args:
        root: Root of the registry.
        identity: ``Layout.id``.
    """
    location = hashlib.sha256(os.fsencode(os.path.realpath(root))).hexdigest()[:12]
    safe = "".join(character if character.isalnum() or character == "-" else "_" for character in identity)
    return above() / f"{safe[:64]}-{location}"


def mirror(address: str, key: bytes) -> Path:
    """Return the folder for a copy of a remote that is only read; it may not exist yet.

    Args:
        address: Address for messages, without secrets.
        key: Bytes that tell remotes apart.
    """
    folder = _mirrors() / hashlib.sha256(key).hexdigest()[:32]
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    (folder / "address").write_text(address, encoding="utf-8")
    return folder / "registry"


def mirrored(root: str | os.PathLike[str]) -> str | None:
    """Return the address of the remote of which a folder is a copy; None for any other folder."""
    path = Path(root)
    if path.name != "registry" or path.parent.parent != _mirrors():
        return None
    return (path.parent / "address").read_text(encoding="utf-8")


def _mirrors() -> Path:
    return above().absolute() / "mirrors"


def above() -> Path:
    """Return the folder of all caches: COMPATKIT_CACHE, else the user's cache folder."""
    path = os.environ.get(VARIABLE)
    if not path:
        from platformdirs import user_cache_dir

        path = user_cache_dir("compatkit", appauthor=False)
    return Path(local(path, "the cache"))

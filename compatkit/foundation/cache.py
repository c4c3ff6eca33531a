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


def above() -> Path:
    """Return the folder of all caches: COMPATKIT_CACHE, else the user's cache folder."""
    path = os.environ.get(VARIABLE)
    if not path:
        from platformdirs import user_cache_dir

        path = user_cache_dir("compatkit", appauthor=False)
    return Path(local(path, "the cache"))

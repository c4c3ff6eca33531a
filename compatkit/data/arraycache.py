"""Arrays computed from files, such as digests, cached in the user's cache folder; they can always be computed again."""

from __future__ import annotations

import contextlib
import os
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compatkit.foundation.cache import above


def load(key: str) -> dict[str, NDArray[Any]]:
    """Return the arrays cached under a key; empty if the file is missing or damaged."""
    with contextlib.suppress(OSError, ValueError, EOFError, zipfile.BadZipFile, AttributeError):
        with _path(key).open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    return {}


def save(key: str, **arrays: NDArray[Any]) -> None:
    """Write arrays atomically; errors of the file system are ignored.

    Args:
        key: Digest of everything that the arrays are computed from.
        arrays: Arrays by name, not of objects.
    """
    path = _path(key)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, draft = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
        try:
            with os.fdopen(handle, "wb") as file:
                np.savez(file, allow_pickle=False, **arrays)
            os.replace(draft, path)
        except BaseException:
            os.unlink(draft)
            raise


def _path(key: str) -> Path:
    return above() / "images" / f"{key}.npz"

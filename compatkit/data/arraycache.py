"""Arrays that follow from files, such as digests, remembered in the user's cache folder; never needed, only quicker."""

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


def recalled(name: str) -> dict[str, NDArray[Any]]:
    """Return what is remembered under a name; nothing where the file is not there, or damaged."""
    with contextlib.suppress(OSError, ValueError, EOFError, zipfile.BadZipFile, AttributeError):
        with _place(name).open("rb") as file, np.load(file, allow_pickle=False) as columns:
            return {column: columns[column] for column in columns.files}
    return {}


def remember(name: str, **columns: NDArray[Any]) -> None:
    """Write arrays, whole or not at all; where that fails, they are made again next time.

    Args:
        name: Of the file, without its ending: a digest of all that the values follow from.
        columns: Arrays by name, not of objects.
    """
    place = _place(name)
    with contextlib.suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        handle, draft = tempfile.mkstemp(dir=place.parent, suffix=".tmp")
        try:
            with os.fdopen(handle, "wb") as file:
                np.savez(file, allow_pickle=False, **columns)
            os.replace(draft, place)
        except BaseException:
            os.unlink(draft)
            raise


def _place(name: str) -> Path:
    return above() / "images" / f"{name}.npz"

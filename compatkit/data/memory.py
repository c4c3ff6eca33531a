"""Arrays that follow from files, such as digests, remembered in the user's cache folder; never needed, only quicker."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compatkit.foundation.cache import above


def recalled(name: str) -> NDArray[Any] | None:
    """Return what is remembered under a name; None where nothing is, or the file is damaged.

    Returns:
        As it was kept.
    """
    with contextlib.suppress(OSError, ValueError, EOFError):
        return np.load(_place(name), allow_pickle=False)
    return None


def remember(name: str, values: NDArray[Any]) -> None:
    """Write values, whole or not at all; where that fails, they are made again next time.

    Args:
        name: Of the file, without its ending: a digest of all that the values follow from.
        values: Not of objects.
    """
    place = _place(name)
    with contextlib.suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        handle, draft = tempfile.mkstemp(dir=place.parent, suffix=".tmp")
        try:
            with os.fdopen(handle, "wb") as file:
                np.save(file, values, allow_pickle=False)
            os.replace(draft, place)
        except BaseException:
            os.unlink(draft)
            raise


def _place(name: str) -> Path:
    return above() / "images" / f"{name}.npy"

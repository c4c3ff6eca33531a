"""Arrays that follow from files, such as digests, remembered in the user's cache folder; never needed, only quicker."""

from __future__ import annotations

import contextlib
import os
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import IO, Any

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
    _write(_place(name), lambda file: np.save(file, values, allow_pickle=False))


def recalled_table(name: str) -> dict[str, NDArray[Any]] | None:
    """Return cached columns by name; None if there are none, or they are damaged."""
    with contextlib.suppress(OSError, ValueError, EOFError, zipfile.BadZipFile, TypeError):
        with _place(name, ".npz").open("rb") as file, np.load(file, allow_pickle=False) as columns:
            return {column: columns[column] for column in columns.files}
    return None


def remember_table(name: str, columns: Mapping[str, NDArray[Any]]) -> None:
    """Write columns as ``remember`` does, with a checksum."""
    _write(_place(name, ".npz"), partial(np.savez, **columns))


def _write(place: Path, save: Callable[[IO[bytes]], object]) -> None:
    with contextlib.suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        handle, draft = tempfile.mkstemp(dir=place.parent, suffix=".tmp")
        try:
            with os.fdopen(handle, "wb") as file:
                save(file)
            os.replace(draft, place)
        except BaseException:
            os.unlink(draft)
            raise


def _place(name: str, ending: str = ".npy") -> Path:
    return above() / "images" / f"{name}{ending}"

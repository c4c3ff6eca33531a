"""Format of a data set in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from compatkit.data.huggingface import SAVED_FILES
from compatkit.data.imagefiles import EXTENSIONS, entries, image_folders
from compatkit.data.shards import EXTENSION

FolderFormat = Literal["hub", "shards", "classes", "flat"]


def folder_format(folder: Path) -> FolderFormat:
    """Return the format of a folder; if it contains image files, its tables and archives do not count.

    Raises:
        DataError: The folder is missing, or contains a broken link.
        EnvironmentFailure: It cannot be read.
    """
    inside = entries(folder)
    if any(entry.name in SAVED_FILES for entry in inside):
        return "hub"
    if any(entry.name.lower().endswith(EXTENSIONS) for entry in inside):
        return "flat"
    if not any(image_folders(folder)):
        if any(next(folder.glob(f"{prefix}*.parquet"), None) for prefix in ("", "*/", "data/*/")):
            return "hub"
        if any(next(folder.glob(f"{prefix}*{EXTENSION}"), None) for prefix in ("", "*/")):
            return "shards"
    return "classes" if any(entry.is_dir() for entry in inside) else "flat"

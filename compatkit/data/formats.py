"""What kind of data set a folder holds."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from compatkit.data.huggingface import STATES
from compatkit.data.imagefiles import ENDINGS, entries, image_folders
from compatkit.data.shards import ENDING

Kind = Literal["hub", "shards", "classes", "flat"]


def kind_of(folder: Path) -> Kind:
    """Return the kind of a folder; beside image files, tables and archives do not count.

    Raises:
        DataError: The folder is gone, or one of its links is broken.
        EnvironmentFailure: It cannot be read.
    """
    inside = entries(folder)
    if any(entry.name in STATES for entry in inside):
        return "hub"
    if any(entry.name.lower().endswith(ENDINGS) for entry in inside):
        return "flat"
    if not any(image_folders(folder)):
        if any(next(folder.glob(f"{prefix}*.parquet"), None) for prefix in ("", "*/", "data/*/")):
            return "hub"
        if any(next(folder.glob(f"{prefix}*{ENDING}"), None) for prefix in ("", "*/")):
            return "shards"
    return "classes" if any(entry.is_dir() for entry in inside) else "flat"

"""What kind of data set a folder holds."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from compatkit.data.files import ENDINGS, entries, image_folders
from compatkit.data.huggingface import STATES
from compatkit.data.shards import ENDING

Kind = Literal["hub", "shards", "classes", "flat"]


def kind_of(folder: Path) -> Kind:
    """Return what a folder holds; where image files lie, tables and archives beside them do not count.

    Raises:
        DataError: It is gone, or a link of it leads nowhere.
        EnvironmentFailure: It cannot be read.
    """
    inside = entries(folder)
    if any(one.name in STATES for one in inside):
        return "hub"
    if any(one.name.lower().endswith(ENDINGS) for one in inside):
        return "flat"
    if not any(image_folders(folder)):
        if any(next(folder.glob(f"{one}*.parquet"), None) for one in ("", "*/", "data/*/")):
            return "hub"
        if any(next(folder.glob(f"{one}*{ENDING}"), None) for one in ("", "*/")):
            return "shards"
    return "classes" if any(one.is_dir() for one in inside) else "flat"

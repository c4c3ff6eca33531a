"""Entries of an image folder that are not read: each reader of the folder warns of them once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import attrs

from compatkit.data.classnames import NAMES
from compatkit.data.validation import DataWarning, warn_caller
from compatkit.foundation.display import visible

JUNK = (".DS_Store", "Thumbs.db", "desktop.ini", NAMES, "__MACOSX")
"""What file managers leave, and our own lists: never images."""
NOTES = (
    ".txt",
    ".md",
    ".csv",
    ".json",
    ".jsonl",
    ".xml",
    ".yaml",
    ".yml",
    ".toml",
    ".html",
    ".pdf",
    ".parquet",
)
"""Endings of files about images; where there are only these, nothing is said."""
PHOTOS = (
    *(".heic", ".heif", ".avif", ".jxl", ".jp2", ".psd", ".svg", ".ai", ".eps", ".pdf"),
    *(".cr2", ".cr3", ".nef", ".dng", ".arw", ".raf", ".orf", ".rw2", ".raw"),
    *(".mp4", ".mov", ".m4v", ".avi", ".mkv", ".webm", ".mpg"),
)
"""Endings of pictures and videos that are not read."""
HIDDEN_FILES, HIDDEN_FOLDERS = "hidden files", "hidden folders"
LINKS, PIPES, LISTED = "links that lead nowhere", "pipes or devices", "links to folders that are read anyway"
ARCHIVES = (".tar", ".zip", ".gz", ".tgz", ".xz", ".7z", ".rar", ".npz")
"""What images came in; beside class folders nothing is said of them."""
BESIDE = "images beside the class folders"
NO_ENDING = "files without an ending"
SHOWN = 8
"""Kinds that are named."""


def not_read(name: str) -> str:
    """Return why a file is not read, by the ending of its name; empty where the ending does not tell."""
    ending = os.path.splitext(name)[1].lower()
    if ending in PHOTOS:
        return f"{ending} is not read: convert it to JPEG or PNG"
    return f"{ending} is no image" if ending in (*NOTES, *ARCHIVES) else ""


class LeftOutWarning(DataWarning):
    """Files of a folder of images are not read.

    Attributes:
        counts: Files, folders or links by kind: an ending in lower case, or what they are.
    """

    def __init__(self, message: str, counts: Mapping[str, int]) -> None:
        super().__init__(message)
        self.counts = dict(counts)


@attrs.define
class LeftOut:
    """What was left out, by kind: how many, and the first path."""

    kinds: dict[str, tuple[int, str]] = attrs.field(factory=dict)

    def add(self, kind: str, path: str, count: int = 1) -> None:
        """Count what is left out.

        Args:
            kind: What it is.
            path: Of it, or of the first.
            count: How many.
        """
        before, first = self.kinds.get(kind, (0, path))
        self.kinds[kind] = before + count, first

    def add_file(self, name: str, path: str) -> None:
        """Count a file by its ending."""
        if not name.startswith("._") and name not in JUNK:
            self.add(os.path.splitext(name)[1].lower() or NO_ENDING, path)

    def add_all(self, other: LeftOut, folder: str = "") -> None:
        """Count what was left out of a folder below this one."""
        for kind, (count, first) in other.kinds.items():
            self.add(kind, os.path.join(folder, first), count)

    def advice(self, otherwise: str) -> str:
        """Return what to do where no image is read: convert pictures that are there; else ``otherwise``."""
        shown = [
            f"{kind}: {count:,} ({visible(first)})"
            for kind, (count, first) in self.kinds.items()
            if kind in PHOTOS
        ]
        return f"Not read are {', '.join(shown)}. Convert these to JPEG or PNG." if shown else otherwise

    def tell(self, root: Path) -> None:
        """Warn of what was left out below a folder, unless these are notes alone."""
        if not set(self.kinds).difference(NOTES):
            return
        most = sorted(self.kinds.items(), key=lambda item: (item[0] in NOTES, -item[1][0]))
        shown = [f"{kind}: {count:,} ({visible(first)})" for kind, (count, first) in most[:SHOWN]]
        more = f" and {len(most) - SHOWN} more kinds" if len(most) > SHOWN else ""
        warn_caller(
            LeftOutWarning(
                f"{root}: not read are {', '.join(shown)}{more}. To use images among these, convert them to JPEG or "
                "PNG, name them with that ending, and move them into a folder that is not hidden.",
                {kind: count for kind, (count, _) in most},
            )
        )

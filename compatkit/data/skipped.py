"""Files in image folders that are skipped; each reader of a folder warns of them once."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import attrs

from compatkit.data.classnames import CLASSES_FILE
from compatkit.data.validation import DataWarning, warn_caller
from compatkit.foundation.display import visible

JUNK = (".DS_Store", "Thumbs.db", "desktop.ini", CLASSES_FILE, "__MACOSX")
"""Files of file managers, and our own list of classes; they are never images and do not count as skipped."""
NOTES = (
    *(".txt", ".md", ".csv", ".json", ".jsonl", ".xml", ".yaml", ".yml", ".toml"),
    *(".html", ".pdf", ".parquet"),
)
"""Extensions of files about images; nothing is reported if only these are skipped."""
PHOTOS = (
    *(".heic", ".heif", ".avif", ".jxl", ".jp2", ".psd", ".svg", ".ai", ".eps", ".pdf"),
    *(".cr2", ".cr3", ".nef", ".dng", ".arw", ".raf", ".orf", ".rw2", ".raw"),
    *(".mp4", ".mov", ".m4v", ".avi", ".mkv", ".webm", ".mpg"),
)
"""Extensions of pictures and videos in formats that are not supported."""
HIDDEN_FILES, HIDDEN_FOLDERS = "hidden files", "hidden folders"
LINKS, PIPES, LISTED = "links that lead nowhere", "pipes or devices", "links to folders that are read anyway"
ARCHIVES = (".tar", ".zip", ".gz", ".tgz", ".xz", ".7z", ".rar", ".npz")
"""Extensions of archives; next to class folders they are not reported."""
OUTSIDE = "images beside the class folders"
NO_EXTENSION = "files without an ending"
SHOWN = 8
"""Number of kinds listed in a warning."""


def unsupported_format(name: str) -> str:
    """Return the reason why a file is not read, from its extension; empty if the extension gives none."""
    extension = os.path.splitext(name)[1].lower()
    if extension in PHOTOS:
        return f"{extension} is not read: convert it to JPEG or PNG"
    return f"{extension} is no image" if extension in (*NOTES, *ARCHIVES) else ""


class SkippedFilesWarning(DataWarning):
    """Files in a folder of images were skipped.

    Attributes:
        counts: Number of files, folders or links by kind: a lower-case extension or a description.
    """

    def __init__(self, message: str, counts: Mapping[str, int]) -> None:
        super().__init__(message)
        self.counts = dict(counts)


@attrs.define
class SkippedFiles:
    """Skipped files by kind: their number, and the path of the first."""

    kinds: dict[str, tuple[int, str]] = attrs.field(factory=dict)

    def add(self, kind: str, path: str, count: int = 1) -> None:
        """Count skipped files.

        Args:
            kind: A lower-case extension or a description.
            path: Path of the first file.
            count: Number of files.
        """
        before, first = self.kinds.get(kind, (0, path))
        self.kinds[kind] = before + count, first

    def add_file(self, name: str, path: str) -> None:
        """Count a file by its extension."""
        if not name.startswith("._") and name not in JUNK:
            self.add(os.path.splitext(name)[1].lower() or NO_EXTENSION, path)

    def add_all(self, other: SkippedFiles, folder: str = "") -> None:
        """Add the skipped files of a subfolder."""
        for kind, (count, first) in other.kinds.items():
            self.add(kind, os.path.join(folder, first), count)

    def advice(self, default: str) -> str:
        """Return advice for a folder without images: convert the photos that were skipped, else ``default``."""
        photos = [kind for kind in self.kinds if kind in PHOTOS]
        return f"Not read are {self._listed(photos)}. Convert these to JPEG or PNG." if photos else default

    def warn(self, root: Path) -> None:
        """Warn of the files skipped in a folder, unless all are notes."""
        if not set(self.kinds).difference(NOTES):
            return
        kinds = sorted(self.kinds, key=lambda kind: (kind in NOTES, -self.kinds[kind][0]))
        more = f" and {len(kinds) - SHOWN} more kinds" if len(kinds) > SHOWN else ""
        warn_caller(
            SkippedFilesWarning(
                f"{root}: not read are {self._listed(kinds[:SHOWN])}{more}. To use images among these, convert them "
                "to JPEG or PNG in a folder that is not hidden.",
                {kind: self.kinds[kind][0] for kind in kinds},
            )
        )

    def _listed(self, kinds: Iterable[str]) -> str:
        return ", ".join(
            f"{kind}: {self.kinds[kind][0]:,} ({visible(self.kinds[kind][1])})" for kind in kinds
        )

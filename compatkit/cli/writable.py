"""Check that folders and files can be written, before any work is done."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from compatkit.errors import EnvironmentFailure, UsageError


def check_folder(folder: Path, what: str) -> None:
    """Raise for a folder in which nothing can be created.

    Args:
        folder: Folder of the output.
        what: Name of the output, for the message.

    Raises:
        EnvironmentFailure: It is missing, not a folder, or not writable.
    """
    if not folder.exists():
        problem = "does not exist; create it first, or name another"
    elif not folder.is_dir():
        problem = "is not a folder; name another"
    elif not os.access(folder, os.W_OK | os.X_OK):
        problem = "is not writable: read-only, or owned by somebody else; name another"
    else:
        return
    raise EnvironmentFailure(f"{what} cannot be written: {folder} {problem}.", subject=folder)


def check_outputs(paths: Mapping[str, Path]) -> None:
    """Raise for output files that cannot be written.

    Args:
        paths: Path by option.

    Raises:
        UsageError: A path is a folder, or given twice.
        EnvironmentFailure: Its folder is missing or not writable.
    """
    seen: dict[Path, str] = {}
    for option, path in paths.items():
        file = path.absolute()
        if file.is_dir():
            raise UsageError(f"{option} {path} is a folder; name a file in it.", subject=file)
        if file in seen:
            raise UsageError(f"{seen[file]} and {option} both name {path}; one would replace the other.")
        seen[file] = option
        check_folder(file.parent, f"{option} {path}")

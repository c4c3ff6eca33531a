"""Write reports as JSON, and files atomically."""

from __future__ import annotations

import contextlib
import json
import os
import stat
from pathlib import Path
from typing import Any

from compatkit.errors import EnvironmentFailure
from compatkit.foundation.addresses import local


def write(path: str | os.PathLike[str], content: bytes | str) -> Path:
    """Write ``content`` to ``path`` atomically, replacing an older file.

    The bytes are written to a temporary file in the same folder, synced, and renamed with ``os.replace``: a reader sees
    the old file or the new one. Pipes and devices are written directly.

    Args:
        path: Path of the file, in an existing folder.
        content: Bytes, or text written as UTF-8; lone surrogates are written as escapes (valid in JSON).

    Returns:
        The path.

    Raises:
        UsageError: The path is an address, or looks like one.
        EnvironmentFailure: The folder is missing or read-only, the disk is full, and so on.
    """
    target = Path(local(path, "a report"))
    data = content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content
    try:
        if _is_stream(target):
            target.write_bytes(data)
        else:
            _replace(target, data)
    except OSError as error:
        raise EnvironmentFailure(
            f"the report {str(target)!r} could not be written: {error.strerror or error}; name a file in a folder that "
            "exists and that you may write to, with space left. No partial file was left behind.",
            subject=target,
        ) from error
    return target


def write_optional(text: str, path: str | os.PathLike[str] | None) -> str:
    """Return ``text``, after writing it if a path is given.

    Args:
        text: Content of the file.
        path: Path of the file, or None.

    Raises:
        EnvironmentFailure: The file cannot be written.
    """
    if path is not None:
        write(path, text)
    return text


def _is_stream(target: Path) -> bool:
    try:
        mode = target.stat().st_mode
    except FileNotFoundError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISCHR(mode) or stat.S_ISSOCK(mode)


def _replace(target: Path, data: bytes) -> None:
    import secrets

    temporary = target.parent / f".report-{secrets.token_hex(8)}.tmp"
    # os.open, not tempfile: the file then gets the permissions of the user's umask.
    descriptor = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_BINARY", 0), 0o666)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def json_text(value: Any, indent: int | None = 2) -> str:
    """Return JSON that UTF-8 can encode: lone surrogates are written as escapes, and read back as surrogates.

    Args:
        value: JSON values.
        indent: Spaces per level; None for one line.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, indent=indent)
    return text.encode("utf-8", "backslashreplace").decode("utf-8") + "\n"

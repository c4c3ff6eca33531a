"""A watch on a folder: what is in it, and what is touched outside it."""

from __future__ import annotations

import builtins
import io
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def listing(folder: Path | str, prefix: str = "") -> dict[str, tuple[int, ...]]:
    """Return the state of everything below a folder, by relative path."""
    result: dict[str, tuple[int, ...]] = {}
    with os.scandir(folder) as entries:
        for entry in entries:
            state = entry.stat(follow_symlinks=False)
            name = f"{prefix}{entry.name}"
            if stat.S_ISDIR(state.st_mode):
                result[name] = state.st_ino, state.st_mode
                result |= listing(entry.path, f"{name}/")
            else:
                result[name] = state.st_ino, state.st_mode, state.st_size, state.st_mtime_ns
    return result


@contextmanager
def watched(root: Path) -> Iterator[list[str]]:
    """Record every path outside ``root``, and outside the user's cache, that is opened, listed, made or moved."""
    outside: list[str] = []
    allowed = [str(root), *filter(None, [os.environ.get("XDG_CACHE_HOME")])]
    really: list[tuple[Any, str, Any]] = []

    def note(path: Any) -> None:
        if isinstance(path, str | bytes | os.PathLike):
            text = os.path.abspath(os.fsdecode(path))
            if not any(text == inside or text.startswith(f"{inside}{os.sep}") for inside in allowed):
                outside.append(text)

    def replace(module: Any, name: str, paths: int) -> None:
        before = getattr(module, name)
        really.append((module, name, before))

        def noting(*args: Any, **kwargs: Any) -> Any:
            for path in args[:paths]:
                note(path)
            return before(*args, **kwargs)

        setattr(module, name, noting)

    for module, name, paths in (
        *(
            (os, name, 1)
            for name in ("open", "scandir", "listdir", "mkdir", "unlink", "rmdir", "truncate", "chmod")
        ),
        *((os, name, 2) for name in ("link", "rename", "replace", "symlink")),
        (builtins, "open", 1),
        (io, "open", 1),
    ):
        replace(module, name, paths)
    try:
        yield outside
    finally:
        for module, name, before in really:
            setattr(module, name, before)

"""The root folder of a registry, and the layouts that this version can read and write."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import attrs

from compatkit.errors import FormatError, IntegrityError, LayoutError, UsageError
from compatkit.foundation import cache
from compatkit.foundation.addresses import local
from compatkit.foundation.codec import dumps, loads
from compatkit.registry import disk as durable
from compatkit.registry.os_errors import environment

LAYOUT = 1
MARKER = "compatkit.json"
REFS_FILE = "refs.json"
"""File of a remote that repeats the contents of small files; a copy in a folder has no meaning."""
FOLDERS = (
    "blobs/sha256",
    "refs",
    "evidence",
    "policies",
    "signatures",
    "keys",
    "tmp",
    "trash",
    "quarantine",
    "locks",
)
VARIABLE = "COMPATKIT_REGISTRY"
LIMIT = 2**16
"""Maximum size of ``compatkit.json`` in bytes."""


class LayoutTooNew(LayoutError):
    """The layout of a registry is too new for this version to read, or to write."""

    exit_code = IntegrityError.exit_code


@attrs.frozen
class Layout:
    """Content of ``compatkit.json``.

    Attributes:
        layout: Number of the layout.
        min_reader: Lowest layout that a program must know to read.
        min_writer: Lowest layout that a program must know to write.
        hash: Name of the digest function; ``sha256``.
        id: Identity of the registry, the same in its copies.
    """

    layout: int
    min_reader: int
    min_writer: int
    hash: str
    id: str

    def check_writer(self, root: Path | str) -> None:
        """Refuse to write into a layout that this version may only read, and into the copy of a remote.

        Raises:
            LayoutError: ``min_writer`` is above the layout of this version.
            UsageError: It is the copy of a remote.
        """
        check_own(root)
        if self.min_writer > LAYOUT:
            raise LayoutTooNew(
                f"{root} has layout {self.layout}, which requires layout {self.min_writer} to write; this "
                f"compatkit knows layout {LAYOUT} and can only read it. Upgrade compatkit.",
                subject=root,
            )


def check_own(root: Path | str) -> None:
    """Raise if a folder is the copy of a remote in the cache, to which nothing is written.

    Raises:
        UsageError: It is.
    """
    if (address := cache.mirrored(root)) is not None:
        raise UsageError(
            f"{address} is a remote, which is only read. Clone it (`compatkit clone {address} FOLDER`), change the "
            f"clone, and push (`compatkit --registry FOLDER push {address}`).",
            subject=address,
        )


def check_collects(root: Path | str) -> None:
    """Raise if a folder is the copy of a remote in the cache, which says nothing about the files of the remote.

    Raises:
        UsageError: It is.
    """
    if (address := cache.mirrored(root)) is not None:
        raise UsageError(
            f"{address} is a remote; gc works on folders only. Delete files of a remote with the tools of its store; "
            "in a clone, `compatkit gc --json`, also with --withdrawn --purge, lists their paths.",
            subject=address,
        )


def initialize(root: Path, *, exist_ok: bool) -> Layout:
    """Make ``root`` a registry; ``compatkit.json`` is written last, by one process only.

    Args:
        root: Root folder; created if missing.
        exist_ok: Whether an existing registry is opened.

    Raises:
        LayoutError: It is a registry and ``exist_ok`` is False, or one that this version cannot use.
        EnvironmentFailure: The folder cannot be created or written.
    """
    if not (root / MARKER).exists():
        layout = fresh()
        with environment("make a registry in", root):
            durable.step("mkdir", root)
            root.mkdir(parents=True, exist_ok=True)
            for folder in FOLDERS:
                durable.make_folder(root / folder, root)
            if durable.create_once(root / MARKER, dumps(attrs.asdict(layout)), root):
                return layout
    if not exist_ok:
        raise LayoutError(f"{root} is a registry already; open it, or pass exist_ok=True.", subject=root)
    return inspect(root)


def inspect(root: Path) -> Layout:
    """Read ``compatkit.json``.

    Raises:
        LayoutError: The folder is not a registry, or one that this version cannot read.
        FormatError: The file is damaged.
    """
    path = root / MARKER
    opened = durable.read(path, root, limit=LIMIT)
    if opened is None:
        raise LayoutError(
            f"{root} is not a registry: it has no {MARKER}. Create one with `compatkit init {root}`, or name "
            f"another folder (--registry, {VARIABLE}).",
            subject=root,
        )
    return read(opened[0], str(root), str(path))


def fresh() -> Layout:
    """Return the layout of a new registry, with a new identity."""
    from uuid import uuid4

    return Layout(LAYOUT, 1, 1, "sha256", str(uuid4()))


def read(data: bytes, root: str, path: str) -> Layout:
    """Read the content of a ``compatkit.json``.

    Args:
        data: Content of the file.
        root: Name of the registry, for messages.
        path: Name of the file, for messages.

    Raises:
        LayoutError: This version cannot read such a registry.
        FormatError: The file is damaged.
    """
    value: Any = loads(data, what=path)
    keys = ("layout", "min_reader", "min_writer")
    min_reader = value.get("min_reader") if isinstance(value, dict) else None
    if type(min_reader) is int and min_reader > LAYOUT:
        raise LayoutTooNew(
            f"{root} has layout {value.get('layout')}, which requires layout {min_reader} to read; compatkit knows "
            f"layout {LAYOUT}. Upgrade compatkit.",
            subject=root,
        )
    if not isinstance(value, dict) or not all(type(value.get(key)) is int and value[key] > 0 for key in keys):
        raise FormatError(
            f"{path}: expected the numbers {', '.join(keys)}, got {value!r:.200}.", subject=root
        )
    layout = Layout(*(value[key] for key in keys), hash=str(value.get("hash")), id=str(value.get("id", "")))
    if layout.hash != "sha256" or not layout.id:
        raise FormatError(f"{path}: expected hash 'sha256' and an id, got {value!r:.200}.", subject=root)
    return layout


def locate(start: str | os.PathLike[str] | None) -> Path:
    """Return the root that COMPATKIT_REGISTRY names, else the nearest registry, upward from a folder.

    Args:
        start: First folder; None for the current one.

    Raises:
        LayoutError: No registry.
    """
    if variable := os.environ.get(VARIABLE):
        return Path(local(variable, "a registry"))
    first = Path(start) if start is not None else Path.cwd()
    for folder in (first.resolve(), *first.resolve().parents):
        if (folder / MARKER).is_file():
            return folder
    below = next(iter(sorted(path.parent.name for path in first.glob(f"*/{MARKER}"))), None)
    named = f"name one with --registry{'' if below is None else f', such as {below}, which is here'}."
    raise LayoutError(
        f"no registry: {VARIABLE} is not set, and neither {first.resolve()} nor a folder above has a "
        f"{MARKER}. Create one with `compatkit init FOLDER`, or {named}",
        subject=first,
    )

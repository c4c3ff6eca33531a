"""Verify a remote: all small files, and presence, sizes and headers of weights, without downloading weights.

The files are laid out in a scratch folder as they are in the remote, with holes for the tensors, and verified like any
other registry.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from compatkit.errors import LayoutError, UsageError
from compatkit.foundation import cache
from compatkit.foundation.addresses import is_url
from compatkit.foundation.codec import MAX_BYTES
from compatkit.registry import Progress
from compatkit.registry import disk as durable
from compatkit.registry.layout import FOLDERS, MARKER
from compatkit.registry.layout import LIMIT as MARKER_LIMIT
from compatkit.registry.log import LIMIT
from compatkit.registry.maintenance.check import VerificationReport, examine, open_damaged
from compatkit.registry.os_errors import environment
from compatkit.registry.remotes.files import Files
from compatkit.registry.remotes.located import open_address
from compatkit.registry.remotes.reading import SMALL_FILES, is_path
from compatkit.registry.remotes.remote import scratch_folder
from compatkit.registry.weights.header import MAX_HEADER

if TYPE_CHECKING:
    from compatkit.registry.maintenance.loads import LoadCheck
    from compatkit.registry.remotes.named import SavedRemote

START = 2**16
"""Bytes read of each blob: all of most documents, and the header of most weights."""
_JSON = (b'{"', b"{}", b'["', b"[{", b"[[", b"[]")
"""Beginnings of documents; weights begin with the length of their header."""


def verify_remote(
    remote: SavedRemote,
    *,
    patterns: Iterable[str] | None = None,
    download: bool = False,
    loads: LoadCheck | None = None,
    progress: Progress | None = None,
) -> VerificationReport:
    """Verify the files of a remote; change nothing, here and there.

    Args:
        remote: Address and options.
        patterns: As for ``examine``.
        download: Whether to read all weights, too; they need as much free disk space for a while.
        loads: As for ``examine``.
        progress: Function called with done, total and a description.

    Raises:
        LayoutError: There is no registry.
        UsageError: The address cannot be used, or has packages.
        NotFound: A pattern matches nothing.
        EnvironmentFailure: No permission, no network, disk full.
    """
    located = open_address(remote.address, remote.options) if is_url(remote.address) else Path(remote.address)
    if isinstance(located, Path):
        return examine(open_damaged(located), patterns=patterns, loads=loads, progress=progress)
    if not isinstance(located, Files):
        raise UsageError(
            f"{remote} holds images, which are not read in place; pull them, and verify that registry.",
            subject=str(remote),
        )
    with closing(located), scratch_folder() as folder:
        root = Path(folder)
        with environment("write below", root):
            _lay_out(located, root, download, progress)
        store = open_damaged(root)
        try:
            report = examine(store, patterns=patterns, deep=download, loads=loads, progress=progress)
        finally:
            shutil.rmtree(cache.folder(root, store.id), ignore_errors=True)
    faults = tuple(
        attrs.evolve(fault, what=fault.what.replace(folder, str(remote))) for fault in report.faults
    )
    return attrs.evolve(report, address=str(remote), faults=faults)


def _lay_out(files: Files, root: Path, download: bool, progress: Progress | None) -> None:
    for folder in FOLDERS:
        (root / folder).mkdir(parents=True, exist_ok=True)
    marker = files.read(MARKER, 0, MARKER_LIMIT + 1)
    listed = [path for top in ("refs", *SMALL_FILES) for path in files.sizes(top) if is_path(path)]
    blobs = {path: size for path, size in files.sizes("blobs/sha256").items() if is_path(path)}
    if marker is not None:
        (root / MARKER).write_bytes(marker)
    elif not listed and not blobs:
        raise LayoutError(f"{files.url} is not a registry: it has no {MARKER}.", subject=files.url)
    for path, data in files.in_parallel(lambda path: files.read(path, 0, LIMIT + 1), listed):
        if data is not None:
            _write(root / path, data)
    copy = partial(_copy_blob, files, root, blobs, download)
    for done, _ in enumerate(files.in_parallel(copy, sorted(blobs))):
        if progress is not None:
            progress(done, len(blobs), "reading")


def _copy_blob(files: Files, root: Path, sizes: dict[str, int], download: bool, path: str) -> None:
    """Copy a document, or the header of weights, with a hole for the rest; the size is the one listed."""
    size, target = sizes[path], root / path
    data = files.read(path, 0, min(size, START)) if size else b""
    if data is None:
        return  # removed meanwhile
    wanted = size if download or (size <= MAX_BYTES and data[:2] in _JSON) else 8
    if wanted == 8 and len(data) >= 8:
        wanted += min(int.from_bytes(data[:8], "little"), MAX_HEADER)
    _write(target, data)
    with open(target, "r+b") as file:
        file.seek(0, os.SEEK_END)
        while (start := file.tell()) < min(wanted, size):
            piece = files.read(path, start, min(durable.CHUNK, min(wanted, size) - start))
            if not piece:
                break  # shorter than listed
            file.write(piece)
        if file.tell() >= min(wanted, size):
            with suppress(OSError):  # a size that no file can have is reported as wrong
                file.truncate(size)
    target.chmod(0o444)


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)

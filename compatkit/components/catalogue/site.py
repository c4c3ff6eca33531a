"""Write the catalogue of a registry as a folder of pages that open without a server.

The data of components lies in some hundred scripts, told by a checksum of the component's name, which one page shows on
request: a page of its own for each of 10,000 components would take ten times the space and the time.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

import attrs

from compatkit.components.catalogue.details import Details
from compatkit.components.catalogue.overview import overview
from compatkit.components.catalogue.snapshot import Readings, Snapshot
from compatkit.errors import EnvironmentFailure, UsageError
from compatkit.foundation.addresses import local
from compatkit.registry.store import Store
from compatkit.reports.catalogue.pages import PAGES, assets, data_script, page

if TYPE_CHECKING:
    from compatkit.evaluation.conditions import Progress

MARKER = "compatkit-site.json"
"""File by which a folder is known as a catalogue, so that it may be replaced."""
INDEX = "data/index.js"
LISTED_CLASSES = 30
"""Number of class names from which a list has a script of its own, which components share."""
DOCUMENTS = 50
"""Mean number of documents in a script of data, about."""
_OWN_FILE = re.compile(r"assets/[a-z]+\.(?:css|js)|data/(?:index|s-[0-9a-f]+|c-[0-9a-f]+)\.js")


@attrs.frozen
class Site:
    """A written catalogue.

    Attributes:
        folder: Its folder; the front page is ``index.html``.
        files: Number of files.
        bytes: Their size.
        components: Number of names.
        versions: Number of versions.
        seconds: Time that it took.
    """

    folder: Path
    files: int
    bytes: int
    components: int
    versions: int
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return attrs.asdict(self) | {"folder": str(self.folder)}


def write_site(
    store: Store, out: str | os.PathLike[str], *, title: str = "", progress: Progress | None = None
) -> Site:
    """Write the catalogue of a registry; equal registries and trusted keys give equal bytes.

    Args:
        store: The registry.
        out: New folder; an empty one, or a catalogue that compatkit wrote, is replaced.
        title: Title; empty for the name of the registry's folder, or the address of its remote.
        progress: Called with done, total and the component.

    Raises:
        UsageError: ``out`` holds other files, is a link or file, or lies in the registry.
        EnvironmentFailure: It cannot be written; nothing was replaced.
    """
    started, folder = time.perf_counter(), _checked(store, out)
    draft = folder.parent / f".{folder.name[:100]}-{secrets.token_hex(8)}.tmp"
    try:
        draft.mkdir()
        try:
            snapshot = Snapshot.of(Readings(store))
            written = {path: _write(draft, path, data) for path, data in _files(snapshot, title, progress)}
            _put(draft, folder)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    except OSError as error:
        raise EnvironmentFailure(
            f"the catalogue {folder} could not be written: {error.strerror or error}; name a folder in one that exists "
            "and that you may write to, with space left. No partial catalogue was left behind.",
            subject=folder,
        ) from error
    versions = sum(map(len, snapshot.versions.values()))
    seconds = round(time.perf_counter() - started, 3)
    return Site(folder, len(written), sum(written.values()), len(snapshot.versions), versions, seconds)


def _checked(store: Store, out: str | os.PathLike[str]) -> Path:
    """Return the folder to write; raise before anything is read if it must not be replaced."""
    folder = Path(local(out, "a catalogue")).absolute()
    root, real = Path(os.path.realpath(store.root)), Path(os.path.realpath(folder))
    if root == real or root in real.parents or real in root.parents:
        raise UsageError(
            f"{folder} is the registry, lies in it or around it; name a folder outside of {store.root}.",
            subject=folder,
        )
    if not folder.parent.is_dir():
        raise EnvironmentFailure(
            f"the catalogue cannot be written: {folder.parent} is not a folder; create it first.",
            subject=folder,
        )
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise UsageError(
            f"{folder} is a {'link' if folder.is_symlink() else 'file'}; name a new folder.", subject=folder
        )
    if folder.is_dir() and (foreign := _foreign(folder)):
        raise UsageError(
            f"{folder} is not replaced: it holds {foreign}, which is no file of a catalogue. Name a new folder, or "
            "move that file away.",
            subject=folder,
        )
    return folder


def _foreign(folder: Path) -> str:
    """Return an entry of a folder that a catalogue does not have; empty for a catalogue and for an empty folder."""
    entries = sorted(folder.iterdir())
    if not entries:
        return ""
    if not _is_marked(folder / MARKER):
        return next(path.name for path in entries)
    for path in entries:
        if path.is_symlink() or (path.is_dir() and path.name not in ("assets", "data")):
            return path.name
        if path.is_dir():
            for inside in sorted(path.iterdir()):
                if inside.is_symlink() or not _OWN_FILE.fullmatch(f"{path.name}/{inside.name}"):
                    return f"{path.name}/{inside.name}"
        elif path.name not in (*PAGES, MARKER):
            return path.name
    return ""


def _is_marked(path: Path) -> bool:
    try:
        if path.is_symlink() or path.stat().st_size > 2**16:
            return False
        return json.loads(path.read_bytes()).get("kind") == "compatkit-site"
    except (OSError, ValueError, AttributeError):
        return False


def _put(draft: Path, folder: Path) -> None:
    """Give the draft its name; an older catalogue has it until then, but for the time between two renames."""
    if not folder.is_dir() or not any(folder.iterdir()):
        os.replace(draft, folder)
        return
    aside = draft.with_suffix(".old")
    os.rename(folder, aside)
    try:
        os.rename(draft, folder)
    except OSError:
        os.rename(aside, folder)
        raise
    shutil.rmtree(aside, ignore_errors=True)


def _write(draft: Path, path: str, data: bytes) -> int:
    target = draft / path
    with suppress(FileExistsError):
        target.parent.mkdir()
    with open(target, "xb") as file:
        file.write(data)
    return len(data)


def _files(snapshot: Snapshot, title: str, progress: Progress | None) -> Iterator[tuple[str, bytes]]:
    """Yield path and content of each file."""
    front, details = overview(snapshot, title), Details.of_all(snapshot)
    keys = [
        (f"{name}/{chunk}", name, chunk)
        for name in sorted(snapshot.versions)
        for chunk in range(details.chunks(name))
    ]
    digits = 1 if len(keys) <= 16 * DOCUMENTS else 2 if len(keys) <= 256 * DOCUMENTS else 3
    about = {"kind": "compatkit-site", "schema": 1, "title": front.title, "newest": front.newest}
    yield MARKER, f"{json.dumps(about, indent=2)}\n".encode()
    yield from assets().items()
    for name in PAGES:
        yield name, page(name, attrs.asdict(front, recurse=False), digits=digits)
    yield INDEX, data_script(INDEX, front.data)
    scripts = defaultdict[str, list[tuple[str, str, int]]](list)
    for key in keys:
        scripts[f"{crc32(key[0].encode()):08x}"[:digits]].append(key)
    lists: set[str] = set()
    done = 0
    for prefix, members in sorted(scripts.items()):
        documents = []
        for key, name, chunk in members:
            document = details.document(name, chunk)
            for path, classes in _class_lists(document):
                if path not in lists:
                    lists.add(path)
                    yield path, data_script(path, classes)
            documents.append([key, document])
            done += 1
            if progress is not None:
                progress(done, len(keys), name)
        path = f"data/s-{prefix}.js"
        yield path, data_script(path, documents)


def _class_lists(document: dict[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """Replace long lists of class names in a document by the names of their scripts; yield path and list of each."""
    for index, classes in enumerate(document["classes"]):
        if len(classes) > LISTED_CLASSES:
            name = f"c-{sha256(json.dumps(classes).encode()).hexdigest()[:24]}"
            document["classes"][index] = {"count": len(classes), "list": name}
            yield f"data/{name}.js", classes

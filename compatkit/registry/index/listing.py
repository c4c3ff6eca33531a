"""Lists from the tables: a look at two files of each name, and at its aliases where it has any."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from typing import NamedTuple

from compatkit.errors import CompatkitError, IntegrityError
from compatkit.registry.aliases import Aliases
from compatkit.registry.blobs import Objects
from compatkit.registry.index.listed import Listed
from compatkit.registry.index.profiles import profile
from compatkit.registry.index.queries import glob
from compatkit.registry.index.reading import ROUNDS, Reader
from compatkit.registry.index.scanning import settled, stamp

_SQL = (
    "SELECT f.name, f.live, f.aliased, f.stamp, f.error, m.digest, m.stamp, m.error, m.kind, m.parameters, m.model,"
    " m.split FROM folders f LEFT JOIN manifests m ON m.id = f.manifest"
    " WHERE f.versions > 0 AND f.live <> '' AND f.name > ?{fits} ORDER BY f.name LIMIT ?"
)


class _Row(NamedTuple):
    name: str
    live: str
    aliased: int
    stamp: int
    error: str | None
    digest: str | None
    manifest_stamp: int
    manifest_error: str | None
    kind: str
    parameters: int
    model: str
    split: str


def list_names(reader: Reader, pattern: str | None, after: str, limit: int) -> list[Listed]:
    """Return names with versions that are not withdrawn, sorted, beginning after one.

    Damage that came after a manifest was read is seen too, because the state of its file is compared.
    """
    for _ in range(ROUNDS):
        rows = _rows(reader, pattern, after, limit)
        old = [row.name for row in rows if not _holds(reader, row)]
        if not old:
            break
        reader.writer.rescan(old)
    else:
        rows = _rows(reader, pattern, after, limit)
    return _listed(reader, rows)


def _rows(reader: Reader, pattern: str | None, after: str, limit: int) -> list[_Row]:
    fits, values = glob("f.name", pattern)
    rows = reader.tables.connection.execute(_SQL.format(fits=fits), (after, *values, limit))
    return [_Row(*row) for row in rows.fetchall()]


def _holds(reader: Reader, row: _Row) -> bool:
    path = f"{reader.refs}/{row.name}/@versions/{row.live.rpartition(' ')[2]}"
    return reader.is_current(path, row.stamp, row.digest)


def _listed(reader: Reader, rows: Iterable[_Row]) -> list[Listed]:
    root, objects = reader.writer.references.root, reader.writer.objects
    blobs = f"{root}/blobs/sha256"
    lines: list[Listed] = []
    moved: dict[str, int] = {}
    for row in rows:
        versions = tuple(row.live.split(" "))
        error = row.error or row.manifest_error or ""
        if not error and row.digest is not None:
            error = _damage(objects, blobs, row.digest, row.manifest_stamp, moved)
        aliases: dict[str, str] = {}
        if row.aliased and not error:
            try:
                aliases = Aliases(reader.writer.references.folder(row.name), root).all()
            except IntegrityError as problem:
                error = str(problem)
        if error:
            lines.append(Listed(row.name, versions[-1], versions, error=error))
            continue
        facts = (row.kind, row.parameters, row.model, row.split)
        lines.append(Listed(row.name, versions[-1], versions, *facts, aliases))
    reader.writer.restamp(moved)
    return lines


def _damage(objects: Objects, blobs: str, digest: str, mark: int, moved: dict[str, int]) -> str:
    """Return what is wrong with a manifest's file, ``""`` if nothing; its content is read only if its state changed."""
    path = f"{blobs}/{digest[7:9]}/{digest[7:]}"
    try:
        state = os.lstat(path)
    except OSError:
        state = None
    if state is not None and stamp(state) == mark != 0:
        return ""
    try:
        data = objects.read(digest, aside=False)
        profile(data, f"manifest {digest}")
    except CompatkitError as error:
        return str(error)
    if state is not None and settled(state, time.time_ns()):
        moved[digest] = stamp(state)
    return ""

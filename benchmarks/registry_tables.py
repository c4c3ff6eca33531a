"""Floors for names and versions: a bare SQLite index, and bare walks through the files."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TABLE = "CREATE TABLE versions (name TEXT, version TEXT, digest TEXT, kind TEXT, model TEXT, document TEXT)"
INDEXES = (
    "CREATE UNIQUE INDEX pinned ON versions (name, version)",
    "CREATE INDEX modeled ON versions (kind, model)",
    "CREATE TABLE tags (key TEXT, value TEXT, version INTEGER)",
    "CREATE TABLE edges (version INTEGER, digest TEXT)",
)
LATER = (
    "CREATE INDEX tagged ON tags (key, value, version)",
    "CREATE INDEX kept ON edges (digest)",
)


def walk(refs: str) -> Iterator[tuple[str, str, str]]:
    """Yield name, version and path of every version below ``refs``."""
    folders = [("", refs)]
    while folders:
        name, folder = folders.pop()
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name == "@versions":
                    with os.scandir(entry.path) as versions:
                        yield from ((name, version.name, version.path) for version in versions)
                elif entry.is_dir():
                    folders.append((f"{name}/{entry.name}" if name else entry.name, entry.path))


def read(path: str) -> bytes:
    """Return the content of a small file."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.read(descriptor, 2**20)
    finally:
        os.close(descriptor)


def documents(root: Path) -> Iterator[tuple[str, str, str, bytes]]:
    """Yield name, version, digest and manifest of every version."""
    blobs = f"{root}/blobs/sha256"
    for name, version, path in walk(f"{root}/refs"):
        digest = read(path)[7:71].decode()
        yield name, version, digest, read(f"{blobs}/{digest[:2]}/{digest}")


def rebuild(root: Path, path: Path) -> int:
    """Read all files into new tables with the indexes of the queries; return the number of versions."""
    path.unlink(missing_ok=True)
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute("BEGIN")
    for statement in (TABLE, *INDEXES[2:]):
        connection.execute(statement)
    versions: list[tuple[Any, ...]] = []
    tags: list[tuple[Any, ...]] = []
    edges: list[tuple[Any, ...]] = []
    for number, (name, version, digest, data) in enumerate(documents(root), 1):
        value = json.loads(data)
        versions.append((name, version, digest, value["kind"], value["blueprint"]["model"], data.decode()))
        tags.extend((key, tag, number) for key, tag in value["about"]["tags"].items())
        edges.append((number, value["payload"]["file"]["blob"][7:]))
    connection.executemany("INSERT INTO versions VALUES (?, ?, ?, ?, ?, ?)", versions)
    connection.executemany("INSERT INTO tags VALUES (?, ?, ?)", tags)
    connection.executemany("INSERT INTO edges VALUES (?, ?)", edges)
    for statement in (*INDEXES[:2], *LATER):
        connection.execute(statement)
    connection.execute("COMMIT")
    connection.close()
    return len(versions)


def names(refs: str) -> list[str]:
    """Return the sorted names with a folder of versions."""
    with_versions: list[str] = []
    folders = [("", refs)]
    while folders:
        name, folder = folders.pop()
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name == "@versions":
                    with_versions.append(name)
                elif entry.is_dir():
                    folders.append((f"{name}/{entry.name}" if name else entry.name, entry.path))
    return sorted(with_versions)


def latest(folder: str) -> str:
    """Return the latest version in a folder, and read its file."""
    with os.scandir(folder) as entries:
        version = ".".join(map(str, max(tuple(map(int, entry.name.split("."))) for entry in entries)))
    read(f"{folder}/{version}")
    return version


def dead_from_files(root: Path) -> int:
    """Count the unreferenced blobs from the files alone."""
    alive: set[str] = set()
    for _, _, digest, data in documents(root):
        alive |= {digest, json.loads(data)["payload"]["file"]["blob"][7:]}
    return sum(name not in alive for name, _ in blobs(root))


def blobs(root: Path) -> Iterator[tuple[str, float]]:
    """Yield name and modification time of every blob; garbage collection depends on its age."""
    with os.scandir(f"{root}/blobs/sha256") as shards:
        for shard in shards:
            with os.scandir(shard.path) as entries:
                for entry in entries:
                    yield entry.name, entry.stat(follow_symlinks=False).st_mtime

"""Where the bytes of a registry are: by name, and by folder."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import attrs

from compatkit.registry import disk as durable
from compatkit.registry.blobs import Objects
from compatkit.registry.index.lookup import Index
from compatkit.registry.os_errors import environment

_HEXADECIMAL = re.compile("[0-9a-f]{64}")
_SEVERAL = ""
"""Stands for more than one name."""


@attrs.frozen
class Amount:
    """A number of files and of bytes in them."""

    files: int = 0
    bytes: int = 0

    @classmethod
    def of(cls, sizes: Iterable[int]) -> Amount:
        """Count and add up the sizes of files."""
        every = list(sizes)
        return cls(len(every), sum(every))


@attrs.frozen
class NameUsage:
    """What one name keeps: everything that its versions lead to, withdrawn ones and the parts they came from included.

    Attributes:
        own: What no other name keeps.
        shared: What other names keep too.
    """

    name: str
    own: Amount
    shared: Amount


@attrs.frozen
class Usage:
    """Files and bytes of a registry.

    Attributes:
        names: Those asked for, sorted.
        blobs: All blobs.
        unreferenced: Blobs that no version and no result leads to; ``compatkit gc`` tells which of them may go.
        evidence: Results of measurements with the files that point at them.
        trash: Blobs that were taken out, and not deleted yet.
        quarantine: Damaged files.
        drafts: Unfinished files in ``tmp``.
    """

    names: tuple[NameUsage, ...]
    blobs: Amount
    unreferenced: Amount
    evidence: Amount
    trash: Amount
    quarantine: Amount
    drafts: Amount

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return attrs.asdict(self)


def usage(index: Index, objects: Objects, pattern: str | None = None) -> Usage:
    """Return what takes how much; damaged versions and manifests count as leading nowhere.

    Args:
        index: Knows what refers to what.
        objects: The blobs.
        pattern: Glob over names; None tells all.

    Raises:
        IntegrityError: A folder of the registry is a symbolic link.
        EnvironmentFailure: No right to read, device failed.
    """
    root = objects.root
    with environment("read", root):
        sizes = {digest: state.st_size for digest, state in objects.each()}
        edges: dict[str, list[str]] = {}
        for source, target in index.edges():
            edges.setdefault(source, []).append(target)
        roots: dict[str, list[str]] = {}
        for name, digest in index.roots():
            roots.setdefault(name, []).append(digest)
        owners = _owners(roots, edges)
        pointers = dict(_pointers(root))
        results = _reached(pointers, edges)
        asked = sorted(name for name in roots if pattern is None or fnmatchcase(name, pattern))
        own = _own(owners, sizes)
        return Usage(
            tuple(
                NameUsage(name, own.get(name, Amount()), _shared(roots[name], edges, owners, sizes))
                for name in asked
            ),
            Amount.of(sizes.values()),
            Amount.of(
                size for digest, size in sizes.items() if digest not in owners and digest not in results
            ),
            Amount.of([*pointers.values(), *(sizes[digest] for digest in results if digest in sizes)]),
            *(Amount.of(_files(root, folder)) for folder in ("trash", "quarantine", "tmp")),
        )


def _owners(roots: Mapping[str, list[str]], edges: Mapping[str, list[str]]) -> dict[str, str]:
    """Return the only name that leads to each digest, ``_SEVERAL`` where there are more.

    A digest is passed on at most twice: for the first name, and when it turns out that there are several.
    """
    owners: dict[str, str] = {}
    for name, digests in roots.items():
        left = [(digest, name) for digest in digests]
        while left:
            digest, owner = left.pop()
            before = owners.get(digest)
            if before in (owner, _SEVERAL):
                continue
            owners[digest] = owner if before is None else _SEVERAL
            left += [(one, owners[digest]) for one in edges.get(digest, ())]
    return owners


def _own(owners: Mapping[str, str], sizes: Mapping[str, int]) -> dict[str, Amount]:
    found: dict[str, list[int]] = {}
    for digest, name in owners.items():
        if name != _SEVERAL and digest in sizes:
            found.setdefault(name, []).append(sizes[digest])
    return {name: Amount.of(each) for name, each in found.items()}


def _shared(
    roots: list[str], edges: Mapping[str, list[str]], owners: Mapping[str, str], sizes: Mapping[str, int]
) -> Amount:
    return Amount.of(
        sizes[digest]
        for digest in _reached(roots, edges)
        if owners.get(digest) == _SEVERAL and digest in sizes
    )


def _reached(roots: Iterable[str], edges: Mapping[str, list[str]]) -> set[str]:
    found, left = set[str](), list(roots)
    while left:
        digest = left.pop()
        if digest not in found:
            found.add(digest)
            left += edges.get(digest, ())
    return found


def _pointers(root: Path) -> Iterator[tuple[str, int]]:
    """Yield the digest of every result with the size of the file that points at it."""
    folder = root / "evidence"
    durable.check_folders(folder, root)
    left = [(str(folder), 0)]
    while left:
        path, depth = left.pop()
        for entry in _entries(path):
            if not _HEXADECIMAL.fullmatch(entry.name):
                continue
            if depth < 3 and entry.is_dir(follow_symlinks=False):
                left.append((entry.path, depth + 1))
            elif depth == 3 and entry.is_file(follow_symlinks=False):
                yield f"sha256:{entry.name}", entry.stat(follow_symlinks=False).st_size


def _files(root: Path, name: str) -> Iterator[int]:
    durable.check_folders(root / name, root)
    for entry in _entries(str(root / name)):
        state = entry.stat(follow_symlinks=False)
        if stat.S_ISREG(state.st_mode):
            yield state.st_size


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as found:
            return list(found)
    except FileNotFoundError:
        return []

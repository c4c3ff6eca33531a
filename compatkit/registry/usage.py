"""Where the bytes of a registry are: by name, and by folder."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import attrs

from compatkit.registry import disk as durable
from compatkit.registry.blobs import Objects
from compatkit.registry.index.lookup import Index
from compatkit.registry.os_errors import environment
from compatkit.registry.reach import walk
from compatkit.registry.scan import ASIDE, Aside, Blob, Obstacle, ResultPointer, scan


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
        found = _scanned(root)
        edges: dict[str, list[str]] = {}
        for source, target in index.edges():
            edges.setdefault(source, []).append(target)
        roots: dict[str, list[str]] = {}
        for name, digest in index.roots():
            roots.setdefault(name, []).append(digest)

        def named(digest: str) -> list[str]:
            return edges.get(digest, [])

        kept = {name: set(walk(digests, named)) for name, digests in roots.items()}
        owners = Counter(digest for digests in kept.values() for digest in digests)
        results = set(walk(found.pointers, named))
        sizes = found.blobs

        def amount(name: str, *, shared: bool) -> Amount:
            return Amount.of(sizes[one] for one in kept[name] & sizes.keys() if (owners[one] > 1) == shared)

        asked = sorted(name for name in roots if pattern is None or fnmatchcase(name, pattern))
        return Usage(
            tuple(NameUsage(one, amount(one, shared=False), amount(one, shared=True)) for one in asked),
            Amount.of(sizes.values()),
            Amount.of(sizes[one] for one in sizes.keys() - owners.keys() - results),
            Amount.of([*found.pointers.values(), *(sizes[one] for one in results & sizes.keys())]),
            *(Amount.of(found.aside[folder]) for folder in ("trash", "quarantine", "tmp")),
        )


@attrs.define
class _Scanned:
    """Sizes of files: of blobs by digest, of pointers by the digest of their result, of what lies aside by folder."""

    blobs: dict[str, int] = attrs.field(factory=dict)
    pointers: dict[str, int] = attrs.field(factory=dict)
    aside: dict[str, list[int]] = attrs.field(factory=lambda: defaultdict(list))


def _scanned(root: Path) -> _Scanned:
    found = _Scanned()
    for one in scan(root, "evidence", "blobs", *ASIDE):
        if isinstance(one, Obstacle):
            durable.check_folders(root / one.path, root)  # refuses a link
        if one.entry is None or not one.entry.is_file(follow_symlinks=False):
            continue
        try:
            size = one.entry.stat(follow_symlinks=False).st_size
        except FileNotFoundError:
            continue  # taken out or finished at this moment
        if isinstance(one, Blob):
            found.blobs[one.digest] = size
        elif isinstance(one, ResultPointer):
            found.pointers[f"sha256:{one.result}"] = size
        elif isinstance(one, Aside):
            found.aside[one.folder].append(size)
    return found

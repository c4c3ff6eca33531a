"""Disk usage of a registry, by name and by folder."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from fnmatch import fnmatchcase
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
    """Disk usage of a name: everything that its versions lead to, including withdrawn ones and ancestors.

    Attributes:
        own: What no other name uses.
        shared: What other names use too.
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
        unreferenced: Blobs that no version and no result leads to; ``compatkit gc`` shows which of them may go.
        evidence: Results of measurements, and the files that point at them.
        trash: Blobs that gc moved to ``trash/`` and has not deleted yet.
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
    """Return the disk usage of names and folders; damaged versions and manifests lead nowhere.

    Args:
        index: Tells what refers to what.
        objects: The blobs.
        pattern: Glob over names; None takes all.

    Raises:
        IntegrityError: A folder of the registry is a symbolic link.
        EnvironmentFailure: No right to read, device failed.
    """
    root = objects.root
    blobs: dict[str, int] = {}
    pointers: dict[str, int] = {}  # by the digest of the result
    aside: dict[str, list[int]] = {folder: [] for folder in ASIDE}
    with environment("read", root):
        for place in scan(root, "evidence", "blobs", *ASIDE):
            if isinstance(place, Obstacle):
                durable.check_folders(root / place.path, root)  # refuses a link
            if not isinstance(place, Blob | ResultPointer | Aside):
                continue
            state = durable.file_state(root / place.path)
            if state is None:
                continue  # taken out or finished at this moment
            if isinstance(place, Blob):
                blobs[place.digest] = state.st_size
            elif isinstance(place, ResultPointer):
                pointers[f"sha256:{place.result}"] = state.st_size
            else:
                aside[place.folder].append(state.st_size)
        edges: dict[str, list[str]] = defaultdict(list)
        for source, target in index.edges():
            edges[source].append(target)
        roots: dict[str, list[str]] = defaultdict(list)
        for name, digest in index.roots():
            roots[name].append(digest)

    def reached(starts: Iterable[str]) -> set[str]:
        return set(walk(starts, lambda digest: edges.get(digest, ())))

    reachable = {name: reached(digests) for name, digests in roots.items()}
    owners = Counter(digest for digests in reachable.values() for digest in digests)
    results = reached(pointers)

    def amount(name: str, *, shared: bool) -> Amount:
        return Amount.of(
            blobs[digest] for digest in reachable[name] & blobs.keys() if (owners[digest] > 1) == shared
        )

    matching = sorted(name for name in roots if pattern is None or fnmatchcase(name, pattern))
    return Usage(
        tuple(
            NameUsage(place, amount(place, shared=False), amount(place, shared=True)) for place in matching
        ),
        blobs=Amount.of(blobs.values()),
        unreferenced=Amount.of(blobs[place] for place in blobs.keys() - owners.keys() - results),
        evidence=Amount.of([*pointers.values(), *(blobs[place] for place in results & blobs.keys())]),
        trash=Amount.of(aside["trash"]),
        quarantine=Amount.of(aside["quarantine"]),
        drafts=Amount.of(aside["tmp"]),
    )

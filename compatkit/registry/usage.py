"""Disk usage of a registry, by name and by folder."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import cache
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import attrs

from compatkit.errors import IntegrityError
from compatkit.foundation.codec import MAX_BYTES
from compatkit.registry import disk as durable
from compatkit.registry.document_graph import NamedDigest, names, walk
from compatkit.registry.layout_scan import ASIDE, Aside, Blob, Obstacle, ResultPointer, scan
from compatkit.registry.os_errors import environment

if TYPE_CHECKING:
    from compatkit.registry.blobs import Objects
    from compatkit.registry.refs import References


@attrs.frozen
class Amount:
    """A number of files and of bytes in them."""

    files: int = 0
    bytes: int = 0

    @classmethod
    def of(cls, sizes: Iterable[int]) -> Amount:
        """Count and add up the sizes of files."""
        counted = list(sizes)
        return cls(len(counted), sum(counted))


@attrs.frozen
class NameUsage:
    """Disk usage of a name: all blobs reachable from its versions, including withdrawn versions and ancestors.

    Attributes:
        name: Name of the components.
        own: Blobs that no other name uses.
        shared: Blobs that other names use too.
    """

    name: str
    own: Amount
    shared: Amount


@attrs.frozen
class Usage:
    """Disk usage of a registry.

    Attributes:
        names: Usage of the selected names, sorted.
        blobs: All blobs.
        unreferenced: Blobs not reachable from any version or result; ``compatkit gc`` lists those that can be deleted.
        evidence: Measured results, and the files that point at them.
        trash: Blobs in ``trash/``, which gc deletes later.
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


def usage(references: References, objects: Objects, pattern: str | None = None) -> Usage:
    """Return the disk usage of names and folders; damaged versions and manifests are skipped.

    Args:
        references: Names and versions of the registry.
        objects: Blobs of the registry.
        pattern: Glob over names; None takes all.

    Raises:
        IntegrityError: A folder of the registry is a symbolic link.
        EnvironmentFailure: No read permission, or the device failed.
    """
    root = objects.root
    blobs: dict[str, int] = {}
    pointers: dict[str, int] = {}  # by the digest of the result
    aside: dict[str, list[int]] = {folder: [] for folder in ASIDE}
    with environment("read", root):
        for entry in scan(root, "evidence", "blobs", *ASIDE):
            state = durable.file_state(root / entry.path)
            if isinstance(entry, Obstacle):
                durable.check_folders(root / entry.path, root)  # refuses a link
            elif state is None:
                continue  # not a file, or removed by another process
            elif isinstance(entry, Blob):
                blobs[entry.digest] = state.st_size
            elif isinstance(entry, ResultPointer):
                pointers[f"sha256:{entry.result}"] = state.st_size
            elif isinstance(entry, Aside):
                aside[entry.folder].append(state.st_size)

    @cache
    def successors(step: NamedDigest) -> tuple[NamedDigest, ...]:
        digest, role = step
        if role != "payload" and 0 < blobs.get(digest, 0) <= MAX_BYTES:
            with suppress(IntegrityError):
                return names(objects.read(digest, quarantine=False), digest, component=False)
        return ()

    def reached(digests: Iterable[str]) -> set[str]:
        steps = walk(((digest, "component") for digest in digests), successors, key=itemgetter(0))
        return {digest for digest, _ in steps}

    roots: dict[str, list[str]] = defaultdict(list)
    for name, version in references.each():
        with suppress(IntegrityError):
            if digest := references.digest(name, version):
                roots[name].append(digest)
    reachable = {name: reached(digests) for name, digests in roots.items()}
    owners = Counter(digest for digests in reachable.values() for digest in digests)
    results = reached(pointers)

    def amount(name: str, *, shared: bool) -> Amount:
        return Amount.of(
            blobs[digest] for digest in reachable[name] & blobs.keys() if (owners[digest] > 1) == shared
        )

    matching = sorted(name for name in roots if pattern is None or fnmatchcase(name, pattern))
    return Usage(
        tuple(NameUsage(name, amount(name, shared=False), amount(name, shared=True)) for name in matching),
        blobs=Amount.of(blobs.values()),
        unreferenced=Amount.of(blobs[digest] for digest in blobs.keys() - owners.keys() - results),
        evidence=Amount.of([*pointers.values(), *(blobs[digest] for digest in results & blobs.keys())]),
        trash=Amount.of(aside["trash"]),
        quarantine=Amount.of(aside["quarantine"]),
        drafts=Amount.of(aside["tmp"]),
    )

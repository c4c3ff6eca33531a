"""Measured results: immutable blobs, found by the two functions that were measured and the conditions.

``evidence/<extractor>/<head>/<conditions>/<result>``: three digests, and one small file a result that points at
its blob. Extractor and head stand there by function digest, so that a PATCH keeps its evidence and another
keyword argument does not; the conditions are everything else that a figure depends on. What is in a document is said
by ``compatkit.registry.results``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from compatkit.contracts.codec import MAX_BYTES, digest, dumps, is_digest
from compatkit.contracts.manifest import Edge
from compatkit.errors import IntegrityError
from compatkit.registry import disk as durable
from compatkit.registry.blobs import Objects
from compatkit.registry.os_errors import environment
from compatkit.registry.results import FOLDER, FUNCTION, StoredResult, to_bytes

if TYPE_CHECKING:
    from compatkit.registry.index.lookup import Index

_HEXADECIMAL = re.compile("[0-9a-f]{64}")


@attrs.frozen(eq=False)
class Evidence:
    """The results below ``<root>/evidence``; any number a key, none ever rewritten.

    Attributes:
        root: Of the registry.
        objects: Its blobs.
        index: Answers for many pairs at once.
    """

    root: Path
    objects: Objects
    index: Index

    def keep(
        self,
        extractor: str,
        head: str,
        *,
        conditions: Mapping[str, Any],
        settings: Mapping[str, Any],
        figures: Mapping[str, Any],
        measured_as: Mapping[str, Any] | None = None,
    ) -> Edge:
        """Keep a result as a document that names its own key; the same result again changes nothing.

        Args:
            extractor: Function digest, ``value:sha256:...``.
            head: The same.
            conditions: The key: all that the figures depend on beside the two functions. JSON values.
            settings: How it was measured. JSON values.
            figures: What came out. JSON values.
            measured_as: References under which the parts were known; decides nothing.

        Raises:
            EnvironmentFailure: Disk full, no right to write.
        """
        document = to_bytes(extractor, head, conditions, settings, figures, measured_as=measured_as)
        return self.record(extractor, head, conditions, document)

    def kept(self, extractors: Sequence[str], heads: Sequence[str]) -> list[StoredResult]:
        """Return the results of every extractor with every head, oldest first; damaged ones say so.

        The one door through which checks and matrices read: a pair without results costs nothing.

        Args:
            extractors: Function digests.
            heads: The same.

        Raises:
            IntegrityError: A folder below ``evidence`` is a symbolic link.
            EnvironmentFailure: The files cannot be read.
        """
        found = self.index.results(extractors, heads)
        return sorted(found, key=lambda one: (one.written, one.digest))

    def record(self, extractor: str, head: str, conditions: Mapping[str, Any], result: bytes) -> Edge:
        """Keep a result durably; the same result again changes nothing, but mends a damaged pointer.

        Args:
            extractor: Function digest, ``value:sha256:...``.
            head: The same.
            conditions: JSON values: metric and version, data digest, policy, seed, ...
            result: Canonical JSON.

        Raises:
            IntegrityError: A link or folder stands where the pointer belongs.
            EnvironmentFailure: Disk full, no right to write.
        """
        edge = self.objects.put(result)
        folder = self._folder(extractor, head) / _hexadecimal(digest(dumps(dict(conditions))))
        path, line = folder / _hexadecimal(edge.blob), f"{edge.blob}\n".encode()
        with environment("write", folder):
            made = durable.create_once(
                path, line, self.root, lambda: self.objects.hold(edge.blob) or self.objects.put(result)
            )
            found = None if made else durable.read(path, self.root, limit=len(line) + 1)
            if found is not None and found[0] != line:
                durable.replace_file(path, line, root=self.root)  # its name says what it should hold
        return edge

    def results(self, extractor: str, head: str) -> list[bytes]:
        """Return all results of a pair, oldest first.

        Raises:
            IntegrityError: A pointer or its blob is damaged.
        """
        return [self.result(pointer) for pointer in self.pointers(extractor, head)]

    def pointers(self, extractor: str, head: str) -> list[Path]:
        """Return the files that point at the results of a pair, oldest first."""
        folder = self._folder(extractor, head)
        with environment("read", folder):
            return sorted(_files(folder), key=lambda path: (path.stat().st_mtime_ns, path.name))

    def result(self, pointer: Path) -> bytes:
        """Return the result that a file points at.

        Raises:
            IntegrityError: The pointer or its blob is damaged.
        """
        return self.objects.read(self._pointed(pointer), most=MAX_BYTES)

    def partners(self, extractor: str) -> set[str]:
        """Return the function digests of all heads that have results with an extractor.

        One look at a folder, where asking for the results of every pair would be one a pair.
        """
        folder = self._folder(extractor)
        with environment("read", folder):
            if not folder.is_dir():
                return set()
            names = [entry.name for entry in os.scandir(folder) if entry.is_dir(follow_symlinks=False)]
        return {f"{FUNCTION}{name}" for name in names if _HEXADECIMAL.fullmatch(name)}

    def _folder(self, *functions: str) -> Path:
        folder = self.root.joinpath(FOLDER, *map(_hexadecimal, functions))
        durable.check_folders(folder, self.root)
        return folder

    def _pointed(self, path: Path) -> str:
        read = durable.read(path, self.root, limit=128)
        text = read[0].decode("ascii", "replace").strip() if read is not None else ""
        if not is_digest(text) or _hexadecimal(text) != path.name:
            raise IntegrityError(
                f"{path} should hold the digest that it is named by, got {text!r:.80}. "
                "`compatkit verify --repair` moves it to quarantine.",
                subject=path,
            )
        return text


def _files(folder: Path) -> Iterator[Path]:
    """Yield the pointers two levels below ``folder``; unknown files are left alone."""
    if not folder.is_dir():
        return
    for conditions in os.scandir(folder):
        if conditions.is_dir(follow_symlinks=False):
            for pointer in os.scandir(conditions.path):
                if len(pointer.name) == 64 and pointer.is_file(follow_symlinks=False):
                    yield Path(pointer.path)


def _hexadecimal(value: str) -> str:
    return value.rpartition(":")[2]

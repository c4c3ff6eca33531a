"""Measured results: immutable documents, found by the two functions that were measured and the conditions.

``evidence/<extractor>/<head>/<conditions>/<result>``: three digests, and one small file a result that points at
its blob. Extractor and head stand there by function digest, so that a PATCH keeps its evidence and another
keyword argument does not. A document names the two functions and its conditions itself, so that one that lies under
another key is no result of that key. Beside them the registry knows the envelope only: ``conditions`` are the key,
``settings`` say how it was measured, ``figures`` what came out.
"""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import attrs

from compatkit.contracts.manifest import Edge
from compatkit.errors import FormatError, IntegrityError
from compatkit.foundation.codec import decode, digest, dumps
from compatkit.registry import disk as durable
from compatkit.registry.blobs import Objects
from compatkit.registry.local_cache import LocalCache
from compatkit.registry.os_errors import environment
from compatkit.registry.signing.signatures import Signatures

if TYPE_CHECKING:
    from compatkit.registry.signing.trust import Trusted

MAX_BYTES = 2**20
"""Of one result; a thousand class names take 20,000."""
FOLDER = "evidence"
FUNCTION = "value:sha256:"
"""Prefix of a function digest; folders are named by what follows it."""
Values = Mapping[str, Any]


_POINTER_BYTES = 128
_HEXADECIMAL = re.compile("[0-9a-f]{64}")


class UnsignedEvidence(UserWarning):
    """Measured results that no trusted key signed were left out, where signatures are required."""


@attrs.frozen(eq=False)
class StoredResult:
    """One result of a pair, as it is kept.

    Attributes:
        extractor: Function digest, ``value:sha256:...``.
        head: The same.
        digest: Of the document, ``sha256:...``.
        written: When the pointer was made, in ns since 1970: tells newer from older, as far as copies keep it.
        conditions: The key.
        settings: How it was measured; equal ones are one object. Do not change it.
        figures: What came out.
        error: Why nothing of it is known; ``""`` for a sound one.
    """

    extractor: str
    head: str
    digest: str
    written: int
    conditions: Values
    settings: Values
    figures: Values
    error: str = ""


@attrs.frozen(kw_only=True)
class _Document:
    extractor: str
    head: str
    conditions: Values
    settings: Values
    figures: Values
    measured_as: Any
    kind: Literal["result"]
    schema: Literal[1] = 1


def to_bytes(
    extractor: str,
    head: str,
    conditions: Values,
    settings: Values,
    figures: Values,
    *,
    measured_as: Values | None = None,
) -> bytes:
    """Return the document as canonical JSON.

    Args:
        extractor: Function digest.
        head: The same.
        conditions: JSON values.
        settings: JSON values.
        figures: JSON values.
        measured_as: References under which the parts were known; for people, decides nothing.
    """
    return dumps(
        _Document(
            extractor=extractor,
            head=head,
            conditions=conditions,
            settings=settings,
            figures=figures,
            measured_as=measured_as or {},
            kind="result",
        )
    )


def from_bytes(data: bytes, extractor: str, head: str, key: str, what: str) -> tuple[Values, Values, Values]:
    """Return conditions, settings and figures of a result that lies under a key.

    Args:
        data: The document.
        extractor: Function digest that it lies under.
        head: The same.
        key: Hexadecimal digest of the conditions that it lies under.
        what: Which result, for messages.

    Raises:
        FormatError: It is no result, or one of another key.
    """
    try:
        document: _Document = decode(_Document, data, what=what, max_bytes=MAX_BYTES)
    except FormatError as error:
        raise FormatError(f"{error} So it does not say what it depends on; measure again.") from None
    if (document.extractor, document.head, key_of(document.conditions)) != (extractor, head, key):
        raise FormatError(
            f"{what} lies under the key of another pair, or of other conditions, than it was measured with."
        )
    return document.conditions, document.settings, document.figures


def key_of(conditions: Any) -> str:
    """Return the hexadecimal digest that conditions are filed under."""
    return digest(dumps(conditions)).rpartition(":")[2]


@attrs.frozen(eq=False)
class Evidence:
    """The results below ``<root>/evidence``; any number a key, none ever rewritten.

    Attributes:
        root: Of the registry.
        objects: Its blobs.
        trusted: Whose signature a result must have to count; None counts all.
        local_cache: Cache of documents that were read before; None reads each again.
    """

    root: Path
    objects: Objects
    trusted: Trusted | None = None
    local_cache: LocalCache | None = None

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

    def results(self, extractors: Sequence[str], heads: Sequence[str]) -> list[StoredResult]:
        """Return the results of every extractor with every head, oldest first; damaged ones say so.

        The one door through which checks, matrices and policies read: a pair without results costs nothing. Where
        signatures are required, results that no trusted key signed are left out with an ``UnsignedEvidence`` warning.

        Args:
            extractors: Function digests.
            heads: The same.

        Raises:
            IntegrityError: A folder below ``evidence`` is a symbolic link.
            EnvironmentFailure: The files cannot be read.
        """
        wanted, results = set(heads), list[StoredResult]()
        for extractor in dict.fromkeys(extractors):
            if shared := wanted & self.partners(extractor):
                results += self._of_extractor(extractor, sorted(shared))
        results = self._trusted(results)
        return sorted(results, key=lambda result: (result.written, result.digest))

    def _trusted(self, results: list[StoredResult]) -> list[StoredResult]:
        if self.trusted is None or not results:
            return results
        from compatkit.registry.signing.checks import check_signature

        signatures, trusted = Signatures(self.root), self.trusted
        signed = [
            result
            for result in results
            if any(
                check_signature(data, result.digest, trusted).valid for data in signatures.of(result.digest)
            )
        ]
        if left := len(results) - len(signed):
            warnings.warn(
                f"{left:,} of {len(results):,} measured results are left out: no trusted key signed them. Whoever "
                "measured them can do so (`compatkit sign EXTRACTORS HEADS --evidence --key KEY`), or measure again.",
                UnsignedEvidence,
                stacklevel=4,
            )
        return signed

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
        folder = self._folder(extractor, head) / key_of(dict(conditions))
        path, line = folder / _hexadecimal(edge.blob), f"{edge.blob}\n".encode()
        with environment("write", folder):
            made = durable.create_once(
                path, line, self.root, lambda: self.objects.retain(edge.blob) or self.objects.put(result)
            )
            opened = None if made else durable.read(path, self.root, limit=len(line) + 1)
            if opened is not None and opened[0] != line:
                durable.replace_file(path, line, root=self.root)  # its name says what it should hold
        return edge

    def partners(self, extractor: str) -> set[str]:
        """Return the function digests of all heads that have results with an extractor.

        One look at a folder, where asking for the results of every pair would be one a pair.
        """
        return {f"{FUNCTION}{entry.name}" for entry in _entries(self._folder(extractor), folders=True)}

    def _of_extractor(self, extractor: str, heads: Sequence[str]) -> Iterator[StoredResult]:
        """Yield results; each pointer is compared, and a document that was found sound before is not read again."""
        known = {} if self.local_cache is None else self.local_cache.results(extractor)
        fresh: dict[str, str] = {}
        for head in heads:
            for key in _entries(self._folder(extractor, head), folders=True):
                for pointer in _entries(Path(key.path), folders=False):
                    place, error = f"{head}/{key.name}/{pointer.name}", ""
                    document: tuple[Values, Values, Values] = ({}, {}, {})
                    try:
                        if not self._points(pointer):
                            continue  # it was there a moment ago
                        if place in known:
                            document = tuple(json.loads(known[place]))
                        else:
                            data = self.objects.read(
                                f"sha256:{pointer.name}", max_bytes=MAX_BYTES, quarantine=False
                            )
                            document = from_bytes(
                                data, extractor, head, key.name, f"the result {pointer.name}"
                            )
                            fresh[place] = json.dumps(document)
                    except IntegrityError as problem:
                        error = str(problem)
                    written = os.lstat(pointer.path).st_mtime_ns
                    yield StoredResult(extractor, head, f"sha256:{pointer.name}", written, *document, error)
        if self.local_cache is not None and fresh:
            self.local_cache.remember_results(extractor, fresh)

    def _points(self, pointer: os.DirEntry[str]) -> bool:
        """Return whether a pointer exists; raise if it does not hold the digest that it is named by."""
        opened = durable.read(pointer.path, None, limit=_POINTER_BYTES)
        if opened is not None and opened[0].strip() != f"sha256:{pointer.name}".encode():
            raise FormatError(
                f"{pointer.path} should hold the digest that it is named by, got {opened[0]!r:.80}. "
                "`compatkit verify --repair` mends it, or moves it to quarantine."
            )
        return opened is not None

    def _folder(self, *functions: str) -> Path:
        folder = self.root.joinpath(FOLDER, *map(_hexadecimal, functions))
        durable.check_folders(folder, self.root)
        return folder


def _hexadecimal(value: str) -> str:
    return value.rpartition(":")[2]


def _entries(folder: Path, *, folders: bool) -> list[os.DirEntry[str]]:
    """Return the folders, or the plain files, that are named by digests; nothing where there is no folder."""
    with environment("read", folder):
        try:
            with os.scandir(folder) as entries:
                return [
                    entry
                    for entry in entries
                    if _HEXADECIMAL.fullmatch(entry.name)
                    and (
                        entry.is_dir(follow_symlinks=False)
                        if folders
                        else entry.is_file(follow_symlinks=False)
                    )
                ]
        except (FileNotFoundError, NotADirectoryError):
            return []

"""Measured results: immutable documents, stored by the functions of both parts and the conditions of the measurement.

``evidence/<extractor>/<head>/<conditions>/<result>``: three digests, and one small file for each result that points to
its blob. Extractor and head are given by function digest, so that a PATCH keeps its evidence and another keyword
argument does not. A document repeats the two functions and its conditions; one that was moved to another key does not
count. Apart from these the registry only knows three parts of a document: ``conditions`` are the key, ``settings``
describe the measurement, ``figures`` are its results.
"""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import attrs

from compatkit.errors import FormatError, IntegrityError
from compatkit.foundation.codec import decode, digest, dumps
from compatkit.registry import disk as durable
from compatkit.registry.blobs import Objects
from compatkit.registry.layout import check_own
from compatkit.registry.local_cache import LocalCache
from compatkit.registry.os_errors import environment

if TYPE_CHECKING:
    from compatkit.contracts.manifest import Edge
    from compatkit.registry.signing.private_keys import SigningKey
    from compatkit.registry.signing.trust import Trusted

MAX_BYTES = 2**20
"""Maximum size of a result; a thousand class names take 20,000 bytes."""
FOLDER = "evidence"
FUNCTION = "value:sha256:"
"""Prefix of a function digest; folders are named by the rest."""
Values = Mapping[str, Any]


_POINTER_BYTES = 128
_HEXADECIMAL = re.compile("[0-9a-f]{64}")


class UnsignedEvidence(UserWarning):
    """Warning that measured results without a trusted signature are ignored, where signatures are required."""


@attrs.frozen(eq=False)
class StoredResult:
    """One stored result of a pair.

    Attributes:
        extractor: Function digest of the extractor, ``value:sha256:...``.
        head: Function digest of the head.
        digest: Digest of the document, ``sha256:...``.
        written: Modification time of the pointer in ns since 1970, which orders results if copies keep it.
        conditions: Key of the result.
        settings: Settings of the measurement; equal ones are one object, which must not be changed.
        figures: Measured values.
        error: Description of the damage, in which case the values are empty; else ``""``.
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
        extractor: Function digest of the extractor.
        head: Function digest of the head.
        conditions: Key of the result, JSON values.
        settings: Settings of the measurement, JSON values.
        figures: Measured values, JSON values.
        measured_as: References of the parts when they were measured; for people only.
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
    """Return conditions, settings and figures of a document.

    Args:
        data: Content of the document.
        extractor: Function digest in its path.
        head: Function digest in its path.
        key: Hexadecimal digest of the conditions in its path.
        what: Description of the result, for messages.

    Raises:
        FormatError: The document is damaged, or was measured with other parts or conditions.
    """
    try:
        document: _Document = decode(_Document, data, what=what, max_bytes=MAX_BYTES)
    except FormatError as error:
        raise FormatError(f"{error} Measure again.") from None
    if (document.extractor, document.head, key_of(document.conditions)) != (extractor, head, key):
        raise FormatError(f"{what} is stored for another pair or other conditions than it was measured with.")
    return document.conditions, document.settings, document.figures


def key_of(conditions: Any) -> str:
    """Return the hexadecimal digest of conditions."""
    return digest(dumps(conditions)).rpartition(":")[2]


@attrs.frozen(eq=False)
class Evidence:
    """Results below ``<root>/evidence``: any number for a key, never rewritten.

    Attributes:
        root: Root folder of the registry.
        objects: Blobs of the registry.
        trusted: Keys of which one must have signed a result; None counts all results.
        local_cache: Cache of documents that were read before; None reads each again.
        key: Function that returns the private key that signs recorded results, or None; reading does not call it.
    """

    root: Path
    objects: Objects
    trusted: Trusted | None = None
    local_cache: LocalCache | None = None
    key: Callable[[], SigningKey | None] = lambda: None

    def add(
        self,
        extractor: str,
        head: str,
        *,
        conditions: Mapping[str, Any],
        settings: Mapping[str, Any],
        figures: Mapping[str, Any],
        measured_as: Mapping[str, Any] | None = None,
    ) -> Edge:
        """Store a result as a document with its own key; storing an equal result changes nothing.

        Args:
            extractor: Function digest of the extractor, ``value:sha256:...``.
            head: Function digest of the head.
            conditions: Everything that the figures depend on except the two functions, JSON values.
            settings: Settings of the measurement, JSON values.
            figures: Measured values, JSON values.
            measured_as: References of the parts when they were measured; for people only.

        Raises:
            EnvironmentFailure: Disk full, no permission to write.
        """
        document = to_bytes(extractor, head, conditions, settings, figures, measured_as=measured_as)
        return self.record(extractor, head, conditions, document)

    def results(self, extractors: Sequence[str], heads: Sequence[str]) -> list[StoredResult]:
        """Return the results of every extractor with every head, oldest first; damaged ones have an ``error``.

        Checks, matrices and policies all read results here; a pair without results costs nothing. If signatures are
        required, results without a trusted signature are ignored with an ``UnsignedEvidence`` warning.

        Args:
            extractors: Function digests of extractors.
            heads: Function digests of heads.

        Raises:
            IntegrityError: A folder below ``evidence`` is a symbolic link.
            EnvironmentFailure: The files cannot be read.
        """
        head_set, results = set(heads), list[StoredResult]()
        for extractor in dict.fromkeys(extractors):
            if measured := head_set & self.partners(extractor):
                results += self._of_extractor(extractor, sorted(measured))
        results = self._trusted(results)
        return sorted(results, key=lambda result: (result.written, result.digest))

    def _trusted(self, results: list[StoredResult]) -> list[StoredResult]:
        if self.trusted is None or not results:
            return results
        from compatkit.registry.signing.checks import check_signature
        from compatkit.registry.signing.signatures import Signatures

        signatures, trusted = Signatures(self.root), self.trusted
        signed = [
            result
            for result in results
            if any(
                check_signature(data, result.digest, trusted).valid
                for data in signatures.of(result.digest, trusted)
            )
        ]
        if unsigned := len(results) - len(signed):
            warnings.warn(
                f"{unsigned:,} of {len(results):,} measured results are ignored: no trusted key signed them. Sign "
                "them (`compatkit sign EXTRACTORS HEADS --evidence --key KEY`), or measure again.",
                UnsignedEvidence,
                stacklevel=4,
            )
        return signed

    def record(self, extractor: str, head: str, conditions: Mapping[str, Any], result: bytes) -> Edge:
        """Store a result durably; storing an equal result again only repairs a damaged pointer.

        Args:
            extractor: Function digest of the extractor, ``value:sha256:...``.
            head: Function digest of the head.
            conditions: Metric and version, data digest, policy, seed, ...; JSON values.
            result: Document as canonical JSON.

        Raises:
            IntegrityError: The path of the pointer is a link or folder.
            UsageError: The registry is the copy of a remote.
            EnvironmentFailure: Disk full, no permission to write.
        """
        check_own(self.root)
        edge = self.objects.put(result)
        folder = self._folder(extractor, head) / key_of(dict(conditions))
        path, line = folder / _hexadecimal(edge.blob), f"{edge.blob}\n".encode()
        if (key := self.key()) is not None:
            from compatkit.registry.signing.signatures import Signatures

            Signatures(self.root).add(edge.blob, key.sign(edge.blob, None).to_bytes())
        with environment("write", folder):
            created = durable.create_once(
                path, line, self.root, lambda: self.objects.retain(edge.blob) or self.objects.put(result)
            )
            opened = None if created else durable.read(path, self.root, limit=len(line) + 1)
            if opened is not None and opened[0] != line:
                durable.replace_file(path, line, root=self.root)
        return edge

    def extractors(self) -> set[str]:
        """Return the function digests of all extractors that have results."""
        return {f"{FUNCTION}{entry.name}" for entry in _entries(self._folder(), folders=True)}

    def partners(self, extractor: str) -> set[str]:
        """Return the function digests of all heads that have results with an extractor.

        It reads one folder, while reading the results of every pair would read one for each.
        """
        return {f"{FUNCTION}{entry.name}" for entry in _entries(self._folder(extractor), folders=True)}

    def _of_extractor(self, extractor: str, heads: Sequence[str]) -> Iterator[StoredResult]:
        """Yield results; every pointer is verified, and a document that was verified before is not read again."""
        known = {} if self.local_cache is None else self.local_cache.results(extractor)
        fresh: dict[str, str] = {}
        for head in heads:
            for key in _entries(self._folder(extractor, head), folders=True):
                for pointer in _entries(Path(key.path), folders=False):
                    path, error = f"{head}/{key.name}/{pointer.name}", ""
                    document: tuple[Values, Values, Values] = ({}, {}, {})
                    try:
                        if not self._is_sound(pointer):
                            continue  # removed in the meantime
                        if path in known:
                            document = tuple(json.loads(known[path]))
                        else:
                            data = self.objects.read(
                                f"sha256:{pointer.name}", max_bytes=MAX_BYTES, quarantine=False
                            )
                            document = from_bytes(
                                data, extractor, head, key.name, f"the result {pointer.name}"
                            )
                            fresh[path] = json.dumps(document)
                    except IntegrityError as problem:
                        error = str(problem)
                    written = os.lstat(pointer.path).st_mtime_ns
                    yield StoredResult(extractor, head, f"sha256:{pointer.name}", written, *document, error)
        if self.local_cache is not None and fresh:
            self.local_cache.remember_results(extractor, fresh)

    def _is_sound(self, pointer: os.DirEntry[str]) -> bool:
        """Return whether a pointer exists; raise if its content is not the digest in its name."""
        opened = durable.read(pointer.path, None, limit=_POINTER_BYTES)
        if opened is not None and opened[0].strip() != f"sha256:{pointer.name}".encode():
            raise FormatError(
                f"{pointer.path} should contain the digest in its name, got {opened[0]!r:.80}. "
                "`compatkit verify --repair` repairs it, or moves it to quarantine."
            )
        return opened is not None

    def _folder(self, *functions: str) -> Path:
        folder = self.root.joinpath(FOLDER, *map(_hexadecimal, functions))
        durable.check_folders(folder, self.root)
        return folder


def _hexadecimal(value: str) -> str:
    return value.rpartition(":")[2]


def _entries(folder: Path, *, folders: bool) -> list[os.DirEntry[str]]:
    """Return the folders, or the regular files, named by digests; none if the folder is missing."""
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

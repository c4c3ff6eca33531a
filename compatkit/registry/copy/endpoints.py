"""Interfaces of the two ends of a transfer: the origin is read and not trusted, the target is also written."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import TYPE_CHECKING, TypeVar

import attrs

from compatkit.contracts.manifest import Payload
from compatkit.errors import CompatkitError, EnvironmentFailure, IntegrityError
from compatkit.foundation.codec import MAX_BYTES
from compatkit.foundation.codec import digest as digest_of
from compatkit.registry import resolving
from compatkit.registry.copy.report import Refusal
from compatkit.registry.document_graph import Role
from compatkit.registry.log import NUMBER
from compatkit.registry.names import Reference
from compatkit.registry.refs import References
from compatkit.registry.settings import FOLDER, MAX_ENTRIES, SettingsInForce, rules_from
from compatkit.registry.signing.signatures import FILE as SIGNATURE
from compatkit.registry.signing.signatures import FOLDER as SIGNATURES
from compatkit.registry.signing.signatures import LIMIT_PER_MANIFEST, readable
from compatkit.registry.weights.header import check_header
from compatkit.registry.weights.tensorfile import tensor_digest

if TYPE_CHECKING:
    from compatkit.registry.signing.trust import Trusted
    from compatkit.registry.withdrawals import Tombstone

Refused = TypeVar("Refused", bound=CompatkitError)
CopyProgress = Callable[[int], None]
"""Function called with the number of bytes of each copied piece; may raise to stop."""


@attrs.frozen
class ComponentBlob:
    """A blob of a component.

    Attributes:
        digest: Digest of the blob.
        role: Role in the document that refers to it.
        owner: Component for messages.
        size: Expected number of bytes, or None.
        payload: Description in the manifest, if the blob is weights.
        function: Function digest, if the blob is a manifest.
        children: Digests that the blob refers to.
    """

    digest: str
    role: Role
    owner: str
    size: int | None = None
    payload: Payload | None = None
    function: str | None = None
    children: tuple[str, ...] = ()

    def check_size(self, actual: int) -> None:
        """Compare the size with that in the manifest.

        Args:
            actual: Number of bytes.

        Raises:
            IntegrityError: The sizes differ.
        """
        if self.size is not None and actual != self.size:
            raise IntegrityError(
                f"{self.owner}: expected {self.size} bytes of {self.digest}, as in the manifest, got {actual}.",
                subject=self.digest,
            )

    def check_weights(self, data: memoryview) -> None:
        """Compare weights with the tensors of their manifest.

        Args:
            data: Content of the weights file.

        Raises:
            IntegrityError: The tensors differ.
            FormatError: Not a strict safetensors file.
        """
        if self.payload is None:
            return
        header = check_header(data)
        actual = tensor_digest(data, header)
        if (actual, len(header.tensors)) != (self.payload.tensors, self.payload.count):
            raise IntegrityError(
                f"{self.owner}: expected {self.payload.count} tensors {self.payload.tensors} in {self.digest}, as in "
                f"the manifest, got {len(header.tensors)} tensors {actual}. It was not imported.",
                subject=self.digest,
            )


@attrs.frozen
class OpenBlob:
    """A blob that is open for reading.

    Attributes:
        source: Path or address, for messages.
        size: Number of bytes.
        read: Function that returns up to the given number of further bytes; empty at the end.
    """

    source: str
    size: int
    read: Callable[[int], bytes]


@attrs.frozen
class SmallFile:
    """A small file that is created once and never changed.

    Attributes:
        path: Path relative to the registry.
        data: Content.
        prepare: Function called right before it is created; ensures that the blobs it refers to exist.
    """

    path: str
    data: bytes
    prepare: Callable[[], object] | None = None


@attrs.define(eq=False)
class Origin(ABC):
    """Registry or packages that components are read from.

    Attributes:
        address: Address for messages, without secrets.
        advice: Remedy for messages about missing or damaged files.
        references: Names and versions; for a remote only those of loaded names.
        refused: Entries that could not be read.
        scratch: Local folder that mirrors the names of a remote for ``references``; empty for a local registry.
    """

    address: str = attrs.field(init=False)
    advice: str = attrs.field(init=False)
    references: References = attrs.field(init=False)
    scratch: str = attrs.field(init=False, default="")
    refused: list[Refusal] = attrs.field(init=False, factory=list)
    _by_digest: dict[str, list[Reference]] = attrs.field(init=False, factory=lambda: defaultdict(list))

    @abstractmethod
    def size(self, digest: str) -> int | None:
        """Return the size of a blob in bytes, or None."""

    @abstractmethod
    def open(self, digest: str, owner: str) -> AbstractContextManager[OpenBlob]:
        """Open a blob that a component needs.

        Args:
            digest: Digest of the blob.
            owner: Component for messages.

        Raises:
            IntegrityError: The blob is missing, or not a plain file.
            EnvironmentFailure: The blob cannot be read.
        """

    def fetch(self, blob: ComponentBlob) -> None:  # noqa: B027 - nothing to do for a remote
        """Make weights available that a local registry left in its own remote."""

    @abstractmethod
    def list_small_files(self, folders: Sequence[str]) -> list[str]:
        """Return the paths of all files in folders, relative to the registry, sorted."""

    @abstractmethod
    def read_small_file(self, path: str) -> bytes | None:
        """Return the content of a small file, truncated one byte after its limit; None if it is missing."""

    def read_small_files(self, paths: Sequence[str]) -> Iterator[tuple[str, bytes | None]]:
        """Yield paths and contents of small files; a remote fetches many in parallel."""
        for path in paths:
            yield path, self.read_small_file(path)

    def versions_of(self, digest: str) -> list[Reference]:
        """Return all readable versions with a manifest, including withdrawn ones."""
        if not self._by_digest:
            for name, version in self.references.each():
                with suppress(IntegrityError):  # raised where this version is requested
                    if (name_digest := self.references.digest(name, version)) is not None:
                        self._by_digest[name_digest].append(Reference(name, version, digest=name_digest))
        return self._by_digest.get(digest, [])

    def names(self) -> list[str]:
        """Return all names that have a version, sorted."""
        return self.references.names()

    def matching(self, pattern: str) -> list[str]:
        """Return the names that a pattern matches, sorted.

        Args:
            pattern: Reference whose name may be a glob.

        Raises:
            InvalidName: Not a valid name or pattern.
        """
        return resolving.matching_names(pattern, self.names())

    def is_in_use(self, digest: str) -> bool:
        """Return whether a manifest is known to have a version that was not withdrawn, without a costly look."""
        return False

    def load(self, names: Iterable[str]) -> None:  # noqa: B027 - nothing to do for a local registry
        """Load the versions, tombstones and aliases of some names into ``references``."""

    def prefetch(self, digests: Iterable[str]) -> None:  # noqa: B027 - nothing to do for a local registry
        """Fetch documents that are read next, many in parallel."""

    def is_withdrawn(self, reference: Reference) -> bool:
        """Return whether a version was withdrawn."""
        with self.translate_errors():
            return reference.version in self.references.withdrawn(reference.name)

    def digest(self, reference: Reference) -> str | None:
        """Return the manifest digest of a version, or None.

        Raises:
            IntegrityError: The file of the version does not contain a digest.
        """
        if reference.version is None:
            return None
        with self.translate_errors():
            return self.references.digest(reference.name, reference.version)

    def tombstone(self, reference: Reference) -> Tombstone | None:
        """Return the tombstone of a version, or None."""
        if reference.version is None:
            return None
        with self.translate_errors():
            return self.references.tombstone(reference.name, reference.version)

    def missing(self, digest: str, owner: str) -> IntegrityError:
        """Return the error for a missing blob that a component needs."""
        return IntegrityError(f"{owner}: {self.address} lacks {digest}. {self.advice}", subject=digest)

    def document(self, digest: str, owner: str) -> bytes:
        """Return the bytes of a manifest, result or other document that a component needs.

        Raises:
            IntegrityError: The document is missing or too long, or its bytes do not match the digest.
            EnvironmentFailure: The document cannot be read.
        """
        with self.open(digest, owner) as blob:
            data = bytearray()
            if blob.size <= MAX_BYTES:
                while len(data) <= MAX_BYTES and (piece := blob.read(MAX_BYTES + 1 - len(data))):
                    data += piece
        if max(len(data), blob.size) > MAX_BYTES:
            message = f"{blob.source}: expected a document of {owner} of at most {MAX_BYTES} bytes, got more."
            raise IntegrityError(message, subject=blob.source)
        check_digest(digest, digest_of(data), blob.source, owner)
        return bytes(data)

    def translate_error(self, error: Refused) -> Refused:
        """Return an error whose message names the address instead of the scratch folder, unless this machine failed."""
        if not self.scratch or isinstance(error, EnvironmentFailure):
            return error
        error.args = (str(error).replace(self.scratch, self.address), *error.args[1:])
        return error

    @contextmanager
    def translate_errors(self) -> Iterator[None]:
        """Translate errors about ``references`` that are raised in the block; see ``translate_error``."""
        try:
            yield
        except CompatkitError as error:
            self.translate_error(error)
            raise


@attrs.define(eq=False)
class Target(Origin):
    """Registry that components are copied to; it can be read, too."""

    @abstractmethod
    def identity(self) -> str:
        """Return the identity of the registry; empty if it is missing."""

    def rules(self) -> SettingsInForce:
        """Return the settings in force."""
        paths = {path: path.rpartition("/")[2] for path in self.list_small_files([FOLDER])}
        numbers = {path: int(number) for path, number in paths.items() if NUMBER.fullmatch(number)}
        wanted = sorted(numbers, key=numbers.__getitem__)[:MAX_ENTRIES]
        contents = {numbers[path]: data or b"" for path, data in self.read_small_files(wanted)}
        return rules_from(self.identity() if contents else "", contents, self.signatures_of)

    def signatures_of(self, digest: str, trusted: Trusted) -> list[bytes]:
        """Return the unverified signatures of a digest, of more than 1,000 those of trusted keys."""
        folder = f"{SIGNATURES}/{digest.removeprefix('sha256:')}"
        names = [path.rpartition("/")[2] for path in self.list_small_files([folder])]
        names = readable([name for name in names if SIGNATURE.fullmatch(name)], trusted)
        paths = [f"{folder}/{name}" for name in names[:LIMIT_PER_MANIFEST]]
        return [data for _, data in self.read_small_files(paths) if data is not None]

    @abstractmethod
    def begin(self) -> None:
        """Prepare for writing; create the registry if it is missing.

        Raises:
            LayoutError: This version of compatkit may not write the layout.
            EnvironmentFailure: The registry cannot be written.
        """

    @abstractmethod
    def sizes(self, digests: Sequence[str]) -> Mapping[str, int | None]:
        """Return the size of each blob in bytes, or None."""

    @abstractmethod
    def has(self, digest: str) -> bool:
        """Return whether a blob exists, and protect it from garbage collection."""

    @abstractmethod
    def copy(self, origin: Origin, blob: ComponentBlob, copied: CopyProgress) -> bool:
        """Copy a blob unless a valid copy exists; return whether it was copied.

        Args:
            origin: Registry or packages to read it from.
            blob: Expected digest and size, and the component.
            copied: Called with the number of bytes of each copied piece.

        Raises:
            IntegrityError: The blob is missing in the origin, or its bytes do not match.
            EnvironmentFailure: The blob cannot be read or written; no incomplete one remains.
        """

    def settle(self) -> None:
        """Ensure that copied blobs can be read, before anything refers to them."""

    @abstractmethod
    def create(self, files: Sequence[SmallFile]) -> set[str]:
        """Create small files; return the paths that existed already.

        Raises:
            EnvironmentFailure: A file cannot be written.
        """

    @abstractmethod
    def replace(self, path: str, data: bytes) -> None:
        """Write a small file, or replace it."""

    @abstractmethod
    def remove(self, path: str) -> None:
        """Remove a small file, if it exists."""

    def current_digest(self, reference: Reference) -> str | None:
        """Return the manifest digest of a version as it is now, even if ``references`` were read earlier."""
        return self.digest(reference)


def check_digest(expected: str, actual: str, source: str, owner: str) -> None:
    """Compare the digest of a blob with the expected one.

    Args:
        expected: Digest in the document that refers to the blob.
        actual: Digest of the bytes.
        source: Path or address of the blob, for messages.
        owner: Component that needs the blob, for messages.

    Raises:
        IntegrityError: The digests differ.
    """
    if actual != expected:
        raise IntegrityError(
            f"{owner}: expected {expected} in {source}, got {actual}. It was not imported; import from another copy.",
            subject=expected,
        )

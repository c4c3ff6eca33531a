"""Interface of plugins that store components as packages, one per version, such as images of a container registry."""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

import attrs

from compatkit.errors import CompatkitError, LayoutError
from compatkit.foundation.cache import above as cache_folder
from compatkit.foundation.codec import digest as digest_of
from compatkit.foundation.codec import dumps, is_digest, loads
from compatkit.registry import disk
from compatkit.registry.names import VERSION
from compatkit.registry.os_errors import environment

__all__ = [
    "VERSION",
    "Package",
    "PackageFile",
    "PackageFolder",
    "PackageStore",
    "WrittenPackage",
    "cache_folder",
    "digest_of",
    "dumps",
    "is_digest",
    "loads",
]

Role = Literal["manifest", "weights", "blob", "signature"]
Refuse = Callable[[str, CompatkitError], None]
"""Function called with the name of an unreadable package and the error."""
Read = Callable[[str], memoryview]
"""Function that returns the verified content of a file, by digest."""


@attrs.frozen
class PackageFile:
    """A file of a package.

    Attributes:
        digest: ``sha256:...`` of the content.
        size: Size in bytes.
        role: Role in the package.
        title: File name for users, or empty; for a signature, its file name in a registry.
        signs: For a signature, the digest of the manifest.
    """

    digest: str
    size: int
    role: Role
    title: str = ""
    signs: str = ""


@attrs.frozen
class Package:
    """A version of a component with everything it refers to.

    Attributes:
        name: Name of the component.
        version: MAJOR.MINOR.PATCH.
        files: Manifest of the component; then its other files, manifests of parents, and signatures.
        kind: Kind of the component, or empty.
        texts: Title, description and license of the component, if present.
    """

    name: str
    version: str
    files: tuple[PackageFile, ...]
    kind: str = ""
    texts: Mapping[str, str] = attrs.field(factory=dict)


@attrs.frozen
class WrittenPackage:
    """Result of writing a package.

    Attributes:
        created: Whether the version is new.
        blobs: Size of each new file by digest.
    """

    created: bool
    blobs: Mapping[str, int]


class PackageStore(ABC):
    """Packages at an address. Results are not trusted; methods may raise any error."""

    advice: str = "Copy it there again."
    """Remedy for messages about missing or damaged files."""
    parallel: int = 1
    """Number of packages that may be written at a time, in threads."""
    exclusive: bool = True
    """Whether one of several writers of a version wins; if not, pushes say so."""

    @abstractmethod
    def packages(self, refuse: Refuse) -> Iterator[Package]:
        """Yield all packages of components.

        Args:
            refuse: Function called with each package that cannot be read.

        Raises:
            LayoutError: There are no packages of this format.
        """

    def named_packages(self, patterns: Sequence[str], refuse: Refuse) -> Iterator[Package]:
        """Yield at least the packages of some components; by default all, which is right where reading them is cheap.

        Args:
            patterns: Names, or globs such as ``digits/*``.
            refuse: As for ``packages``.

        Raises:
            LayoutError: There are no packages of this format.
        """
        return self.packages(refuse)

    def exists(self, names: Sequence[str]) -> bool:
        """Return whether there are packages of this format, so that none are written to a mistyped address.

        Args:
            names: Names of the components that are going to be written.
        """
        try:
            next(self.packages(lambda what, error: None), None)
        except LayoutError:
            return False
        return True

    @abstractmethod
    def size(self, digest: str) -> int | None:
        """Return the size of a file in bytes, or None."""

    @abstractmethod
    def read(self, digest: str, start: int, count: int) -> bytes | None:
        """Return up to ``count`` bytes of a file from ``start`` on, or None.

        Args:
            digest: Digest of the file.
            start: First byte.
            count: Maximum number of bytes.
        """

    @abstractmethod
    def begin(self) -> None:
        """Prepare for writing; create the collection if it is missing.

        Raises:
            LayoutError: The address contains something else.
        """

    @abstractmethod
    def write(self, package: Package, read: Read) -> WrittenPackage:
        """Write a package, files first.

        Args:
            package: Package to write.
            read: Function that returns the content of its files.

        Raises:
            VersionExists: The version exists with another component.
        """

    @abstractmethod
    def finish(self) -> None:
        """Make the written packages visible."""

    def close(self) -> None:  # noqa: B027 - optional
        """Close what is open, such as connections and temporary files; later calls may open it again."""

    def label(self, name: str, version: str) -> str:
        """Return the name of a package in other programs, for messages.

        Args:
            name: Name of the component.
            version: Version of the component.
        """
        return f"{name}:{version}"


@attrs.frozen
class PackageFolder:
    """Files of an untrusted folder: links in it are not followed, and files are replaced atomically.

    Attributes:
        root: Path of the folder; may itself be a link.
    """

    root: Path

    def check(self, path: str) -> None:
        """Check that a folder and its parents are neither links nor files.

        Raises:
            IntegrityError: One of them is.
        """
        disk.check_folders(self.root / path, self.root)

    def size(self, path: str) -> int | None:
        """Return the size of a file in bytes, or None."""
        try:
            return os.lstat(self.root / path).st_size
        except FileNotFoundError:
            return None

    def read(self, path: str, start: int, count: int) -> bytes | None:
        """Return up to ``count`` bytes of a plain file from ``start`` on, or None.

        Raises:
            IntegrityError: The path is a link, or not a plain file.
            EnvironmentFailure: The file cannot be read.
        """
        with environment("read", self.root / path):
            descriptor = disk.open_plain(self.root / path, self.root)
            if descriptor is None:
                return None
            with os.fdopen(descriptor, "rb") as file:
                file.seek(start)
                return file.read(count)

    def holds(self, path: str, digest: str, size: int) -> bool:
        """Return whether a path is a plain file with this content.

        Args:
            path: Path of the file.
            digest: Expected ``sha256:...``.
            size: Expected size in bytes.
        """
        file = self.root / path
        with environment("read", file):
            if file.is_symlink() or not file.is_file() or file.stat().st_size != size:
                return False
            with open(file, "rb") as content:
                return f"sha256:{hashlib.file_digest(content, 'sha256').hexdigest()}" == digest

    def replace(self, path: str, data: bytes | memoryview) -> None:
        """Write or replace a file atomically and durably.

        Args:
            path: Path of the file, in an existing folder.
            data: New content.

        Raises:
            EnvironmentFailure: Disk full, no write permission.
        """
        disk.replace_file(self.root / path, data)

    def make(self, path: str) -> None:
        """Create a folder and its parents.

        Raises:
            EnvironmentFailure: No write permission.
        """
        with environment("write below", self.root):
            (self.root / path).mkdir(parents=True, exist_ok=True)

    def names(self) -> list[str]:
        """Return the names of files and folders in it; none if it does not exist."""
        with environment("read", self.root):
            return sorted(os.listdir(self.root)) if self.root.exists() else []

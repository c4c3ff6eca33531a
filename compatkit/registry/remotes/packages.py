"""What a plugin implements to carry components as packages, one per version, such as images of a container registry."""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Literal

import attrs

from compatkit.errors import CompatkitError
from compatkit.foundation.codec import dumps, is_digest, loads
from compatkit.registry import disk
from compatkit.registry.os_errors import environment

__all__ = [
    "Package",
    "PackageFile",
    "PackageFolder",
    "PackageStore",
    "WrittenPackage",
    "dumps",
    "is_digest",
    "loads",
]

Role = Literal["manifest", "weights", "blob", "signature"]
Refuse = Callable[[str, CompatkitError], None]
"""Called with what cannot be read and the error."""
Read = Callable[[str], memoryview]
"""Returns the verified bytes of a file by digest."""


@attrs.frozen
class PackageFile:
    """A file of a package.

    Attributes:
        digest: ``sha256:...`` of its bytes.
        size: Number of bytes.
        role: What it is.
        title: Name of the file for people, or empty; of a signature its name in a registry.
        signs: Digest of the manifest that a signature is for.
    """

    digest: str
    size: int
    role: Role
    title: str = ""
    signs: str = ""


@attrs.frozen
class Package:
    """A version of a component with everything that it refers to.

    Attributes:
        name: Of the component.
        version: MAJOR.MINOR.PATCH.
        files: The component's manifest first; then its other files, parents' manifests and signatures.
        kind: Of the component, or empty.
        texts: Title, description and license of the component, those that it has.
    """

    name: str
    version: str
    files: tuple[PackageFile, ...]
    kind: str = ""
    texts: Mapping[str, str] = attrs.field(factory=dict)


@attrs.frozen
class WrittenPackage:
    """What writing a package changed.

    Attributes:
        created: Whether the version is new.
        blobs: Size of each new file by digest.
    """

    created: bool
    blobs: Mapping[str, int]


class PackageStore(ABC):
    """Packages in one place. Nothing that it returns is trusted; its methods may raise anything."""

    advice: str = "Copy it there again."
    """What to do if something in it is missing or damaged."""

    @abstractmethod
    def packages(self, refuse: Refuse) -> Iterator[Package]:
        """Yield all packages of components.

        Args:
            refuse: Called with each package that cannot be read.

        Raises:
            LayoutError: There is nothing of this format.
        """

    @abstractmethod
    def size(self, digest: str) -> int | None:
        """Return the size of a file in bytes, or None."""

    @abstractmethod
    def read(self, digest: str, start: int, count: int) -> bytes | None:
        """Return at most ``count`` bytes of a file from ``start`` on, or None.

        Args:
            digest: Of the file.
            start: First byte.
            count: Most bytes.
        """

    @abstractmethod
    def begin(self) -> None:
        """Prepare for writing, in a new or an existing place.

        Raises:
            LayoutError: Something else is there.
        """

    @abstractmethod
    def write(self, package: Package, read: Read) -> WrittenPackage:
        """Write a package, files first.

        Args:
            package: The version.
            read: Returns the bytes of its files.

        Raises:
            VersionExists: The version is another component there.
        """

    @abstractmethod
    def finish(self) -> None:
        """Make the written packages visible."""

    def label(self, name: str, version: str) -> str:
        """Return what other programs call a package, for messages.

        Args:
            name: Of the component.
            version: Of the component.
        """
        return f"{name}:{version}"


@attrs.frozen
class PackageFolder:
    """Files of a folder that may be hostile: no link below it is followed, and files are replaced atomically.

    Attributes:
        root: The folder; may be a link itself.
    """

    root: Path

    def check(self, path: str) -> None:
        """Check that a folder and its parents are no links and no files, where they exist.

        Raises:
            IntegrityError: One is.
        """
        disk.check_folders(self.root / path, self.root)

    def size(self, path: str) -> int | None:
        """Return the size of a file in bytes, or None."""
        try:
            return os.lstat(self.root / path).st_size
        except FileNotFoundError:
            return None

    def read(self, path: str, start: int, count: int) -> bytes | None:
        """Return at most ``count`` bytes of a plain file from ``start`` on, or None.

        Raises:
            IntegrityError: A link, or no plain file.
            EnvironmentFailure: It cannot be read.
        """
        with environment("read", self.root / path):
            descriptor = disk.open_plain(self.root / path, self.root)
            if descriptor is None:
                return None
            with os.fdopen(descriptor, "rb") as file:
                file.seek(start)
                return file.read(count)

    def holds(self, path: str, digest: str, size: int) -> bool:
        """Return whether a plain file has these bytes.

        Args:
            path: Of the file.
            digest: ``sha256:...``.
            size: Number of bytes.
        """
        file = self.root / path
        with environment("read", file):
            if file.is_symlink() or not file.is_file() or file.stat().st_size != size:
                return False
            with open(file, "rb") as content:
                return f"sha256:{hashlib.file_digest(content, 'sha256').hexdigest()}" == digest

    def replace(self, path: str, data: bytes | memoryview) -> None:
        """Write a file atomically and durably, or replace it.

        Args:
            path: Of the file, in an existing folder.
            data: The content.

        Raises:
            EnvironmentFailure: Disk full, no write permission.
        """
        disk.replace_file(self.root / path, data)

    def make(self, path: str) -> None:
        """Make a folder and its parents.

        Raises:
            EnvironmentFailure: No write permission.
        """
        with environment("write below", self.root):
            (self.root / path).mkdir(parents=True, exist_ok=True)

    def names(self) -> list[str]:
        """Return the names of its files and folders; none if it does not exist."""
        with environment("read", self.root):
            return sorted(os.listdir(self.root)) if self.root.exists() else []

"""Signature files of a registry: ``<root>/signatures/<manifest digest>/<key>-<sha256>.json``, created once.

The file name contains the first 16 digits of the key and the sha256 of the file. Signatures do not protect a manifest
from garbage collection. Their content is untrusted until verified; files with other names are ignored.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from compatkit.errors import (
    IntegrityError,
    MalformedSignature,
    MissingDependency,
    OtherDigest,
    SignatureError,
)
from compatkit.foundation.codec import digest as digest_of
from compatkit.registry import disk as durable
from compatkit.registry.names import check_digest
from compatkit.registry.os_errors import environment

if TYPE_CHECKING:
    from compatkit.registry.signing.trust import Trusted

FOLDER = "signatures"
FILE = re.compile(r"[0-9a-f]{16}-[0-9a-f]{64}\.json")
LIMIT_PER_MANIFEST = 1_000
"""Maximum number of signatures read for one manifest."""


@attrs.frozen(eq=False)
class Signatures:
    """Signature files of a registry.

    Attributes:
        root: Folder of the registry.
    """

    root: Path

    def folder(self, digest: str) -> Path:
        """Return the folder of a manifest's signatures, which may not exist.

        Raises:
            InvalidName: ``digest`` is not a digest.
        """
        return self.root / FOLDER / check_digest(digest).removeprefix("sha256:")

    def add(self, digest: str, data: bytes) -> bool:
        """Store a signature of a manifest; return False if it exists.

        Args:
            digest: Digest of the manifest, which need not exist.
            data: Envelope; format and subject are checked, but not the key.

        Raises:
            MalformedSignature: The envelope is malformed, or a damaged file has the same name.
            OtherDigest: The signature is of another manifest.
            EnvironmentFailure: Disk full, no write permission.
        """
        path = self.folder(digest) / file_name(data, digest)
        with environment("create", path):
            created = durable.create_once(path, data, self.root)
        if not created and self.read(path) != data:
            raise MalformedSignature(
                f"{path} exists with another content than its name. Run `compatkit verify --repair`, then sign again.",
                subject=path,
            )
        return created

    def files(self, digest: str, trusted: Trusted | None = None) -> list[Path]:
        """Return the paths of a manifest's signatures, sorted.

        Args:
            digest: Digest of the manifest.
            trusted: Keys whose signatures alone are returned if there are more than 1,000, so that strangers cannot
                make a component unreadable by adding signatures.

        Raises:
            SignatureError: There are more than 1,000 of these keys.
            IntegrityError: A folder is a link.
            EnvironmentFailure: A file cannot be read.
        """
        folder = self.folder(digest)
        durable.check_folders(folder, self.root)
        with environment("read", folder):
            try:
                names = sorted(name for name in os.listdir(folder) if FILE.fullmatch(name))
            except FileNotFoundError:
                return []
        names = readable(names, trusted)
        if len(names) > LIMIT_PER_MANIFEST:
            raise SignatureError(
                f"{folder}: expected at most {LIMIT_PER_MANIFEST} signatures, got {len(names)}. Remove unneeded ones.",
                subject=folder,
            )
        return [folder / name for name in names]

    def of(self, digest: str, trusted: Trusted | None = None) -> list[bytes]:
        """Return the unverified contents of a manifest's signatures, each truncated one byte after the limit.

        Args:
            digest: Digest of the manifest.
            trusted: Same as for ``files``.

        Raises:
            SignatureError: There are more than 1,000 of these keys.
            IntegrityError: A folder is a link.
            EnvironmentFailure: A file cannot be read.
        """
        return [data for path in self.files(digest, trusted) if (data := self.read(path)) is not None]

    def read(self, path: Path) -> bytes | None:
        """Return a signature, truncated one byte after the limit; empty if not a plain file, None if missing."""
        from compatkit.registry.signing.envelope import LIMIT

        try:
            return durable.read_finished(path, self.root, limit=LIMIT + 1)
        except IntegrityError:
            return b""  # a link, pipe or folder: malformed as a signature, and reported by verify


def readable(names: Sequence[str], trusted: Trusted | None) -> Sequence[str]:
    """Return the names of a manifest's signature files of certain keys, if there are more than 1,000.

    Args:
        names: Names of all its signature files.
        trusted: Keys; their distrusted ones are left out too if they have too many.
    """
    if trusted is None:
        return names
    for keys in ((*trusted.keys, *trusted.distrusted), (*trusted.keys,)):
        if len(names) > LIMIT_PER_MANIFEST:
            prefixes = {key.partition(":")[2][:16] for key in keys}
            names = [name for name in names if name[:16] in prefixes]
    return names


def is_made_by_its_key(data: bytes) -> bool:
    """Return whether a well-formed signature is by the key that it names; False without ``cryptography``."""
    from compatkit.registry.signing.envelope import parse
    from compatkit.registry.signing.keys import verifies

    envelope, _ = parse(data)
    try:
        return verifies(envelope.key, envelope.signature, envelope.signed)
    except MissingDependency:
        return False


def file_name(data: bytes, digest: str) -> str:
    """Return the name of the file with a signature of a manifest.

    Raises:
        MalformedSignature: The signature is malformed.
        OtherDigest: The signature is of another manifest.
    """
    from compatkit.registry.signing.envelope import parse

    envelope, statement = parse(data)
    if statement.digest != digest:
        raise OtherDigest(f"expected a signature of {digest}, got one of {statement.digest}.")
    return f"{envelope.key.partition(':')[2][:16]}-{digest_of(data).removeprefix('sha256:')}.json"

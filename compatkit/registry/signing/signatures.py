"""Where signatures are kept: ``<root>/signatures/<manifest digest>/<key>-<sha256>.json``, small files created once.

The name holds the first 16 digits of the key and the sha256 of the file. Signatures point at a manifest and keep
nothing alive. What is read here may be hostile until it was verified; files with other names are left alone.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import attrs

from compatkit.errors import IntegrityError, MalformedSignature, OtherDigest, SignatureError
from compatkit.foundation.codec import digest as digest_of
from compatkit.registry import disk as durable
from compatkit.registry.names import check_digest
from compatkit.registry.os_errors import environment
from compatkit.registry.signing.envelope import LIMIT, opened

FOLDER = "signatures"
FILE = re.compile(r"[0-9a-f]{16}-[0-9a-f]{64}\.json")
MOST = 1_000
"""Signatures of one manifest that are read."""


@attrs.frozen(eq=False)
class Signatures:
    """The signatures below a registry's root."""

    root: Path

    def folder(self, digest: str) -> Path:
        """Return where the signatures of a manifest are; it may not exist.

        Raises:
            InvalidName: Not a digest.
        """
        return self.root / FOLDER / check_digest(digest).removeprefix("sha256:")

    def add(self, digest: str, data: bytes) -> bool:
        """Keep a signature of a manifest; False if it is here already.

        Args:
            digest: Of the manifest, which need not be here.
            data: An envelope; its form and subject are looked at, no key is needed.

        Raises:
            MalformedSignature: It is none, or a damaged one has its name.
            OtherDigest: It is over another manifest.
            EnvironmentFailure: Disk full, no right to write.
        """
        path = self.folder(digest) / file_name(data, digest)
        with environment("create", path):
            made = durable.create_once(path, data, self.root)
        if not made and self.read(path) != data:
            raise MalformedSignature(
                f"{path} is there already, but holds other bytes than its name says. `compatkit verify --repair` moves "
                "it to quarantine; then it can be made again.",
                subject=path,
            )
        return made

    def files(self, digest: str) -> list[Path]:
        """Return the files that are named as signatures of a manifest, sorted.

        Raises:
            SignatureError: There are more than 1,000.
            IntegrityError: A link stands in the place of a folder.
            EnvironmentFailure: They cannot be read.
        """
        folder = self.folder(digest)
        durable.check_folders(folder, self.root)
        with environment("read", folder):
            try:
                names = sorted(name for name in os.listdir(folder) if FILE.fullmatch(name))
            except FileNotFoundError:
                return []
        if len(names) > MOST:
            raise SignatureError(
                f"{folder} holds {len(names)} signatures; at most {MOST} are read. Remove those that nobody needs.",
                subject=folder,
            )
        return [folder / name for name in names]

    def of(self, digest: str) -> list[bytes]:
        """Return the signatures of a manifest as they are, unverified; what is too long or no plain file comes cut off.

        Raises:
            SignatureError: There are more than 1,000.
            IntegrityError: A link stands in the place of a folder.
            EnvironmentFailure: They cannot be read.
        """
        return [data for path in self.files(digest) if (data := self.read(path)) is not None]

    def read(self, path: Path) -> bytes | None:
        """Return at most one byte more than a signature may have; nothing where no plain file stands, None if gone."""
        try:
            return durable.read_finished(path, self.root, limit=LIMIT + 1)
        except IntegrityError:
            return b""  # a link, pipe or folder: as a signature it is malformed, and the examination names it


def file_name(data: bytes, digest: str) -> str:
    """Return the name of a signature's file.

    Args:
        data: Content of the file.
        digest: Of the manifest that should be signed.

    Raises:
        MalformedSignature: It is no signature.
        OtherDigest: It is over another manifest.
    """
    envelope, statement = opened(data)
    if statement.digest != digest:
        raise OtherDigest(f"the signature is over {statement.digest}, not over {digest}.")
    return f"{envelope.key.partition(':')[2][:16]}-{digest_of(data).removeprefix('sha256:')}.json"

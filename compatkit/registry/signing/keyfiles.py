"""Key files: PEM as everybody reads it, with the key's name and end in the lines above, which other programs skip.

    # compatkit public key
    name: alice
    expires: 2027-01-31T00:00:00Z
    -----BEGIN PUBLIC KEY-----
    MCowBQYDK2VwAyEA...
    -----END PUBLIC KEY-----

Public keys are read and written without the library ``cryptography``: RFC 8410 puts the same 12 bytes before all of
them.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
from datetime import datetime
from pathlib import Path

import attrs

from compatkit.errors import KeyFileError, KeyTypeError
from compatkit.registry.layout import MARKER
from compatkit.registry.os_errors import environment
from compatkit.registry.signing import moments
from compatkit.registry.signing.envelope import KEY_ID

SHOWN = len("ed25519:") + 16
"""Characters of a key that messages show; where it is to be trusted, they show all."""
LIMIT = 2**14
"""Bytes; no key file is longer."""
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._@+-]{0,62}[A-Za-z0-9])?")
_BLOCK = re.compile(
    r"-----BEGIN ([A-Z0-9 ]{1,40})-----\n((?:(?!-----)[^\n]*\n)+)-----END \1-----\s*", re.ASCII
)
_SUBJECT = bytes.fromhex("302a300506032b6570032100")
"""What RFC 8410 puts before the 32 bytes of a public key."""
_KINDS = {
    "2a864886f70d010101": "RSA",
    "2a8648ce3d0201": "ECDSA",
    "2a8648ce380401": "DSA",
    "2b656e": "X25519",
    "2b656f": "X448",
    "2b6571": "Ed448",
}
"""Kinds of keys by their object identifiers in DER, in hex."""
PUBLIC, PRIVATE, ENCRYPTED = "PUBLIC KEY", "PRIVATE KEY", "ENCRYPTED PRIVATE KEY"


@attrs.frozen
class PublicKey:
    """Whose signatures are recognised by it.

    Attributes:
        id: The key itself: ``ed25519:`` and 64 hex digits.
        name: What whoever trusts it calls it; may be empty.
        expires: When it ends, None if it does not.
    """

    id: str
    name: str = ""
    expires: datetime | None = None

    def __str__(self) -> str:
        return f"{self.name} ({self.id[:SHOWN]})" if self.name else self.id[:SHOWN]

    def to_bytes(self) -> bytes:
        """Return the key file."""
        body = base64.b64encode(_SUBJECT + bytes.fromhex(self.id.partition(":")[2])).decode()
        pem = f"-----BEGIN {PUBLIC}-----\n{body}\n-----END {PUBLIC}-----\n"
        return f"# compatkit public key\n{notes(self.name, self.expires)}{pem}".encode()

    @classmethod
    def from_bytes(cls, data: bytes, *, what: str) -> PublicKey:
        """Read a key file.

        Raises:
            KeyTypeError: A key of another kind, or a private one.
            KeyFileError: No key file.
        """
        block = Block.read(data, what=what)
        if block.label != PUBLIC:
            hint = ""
            if "PRIVATE" in block.label:
                hint = " Never hand that on: its public half is in the file that ends with .pub."
            raise KeyTypeError(
                f"{what}: a {PUBLIC} is expected, this is a {block.label}.{hint}", subject=what
            )
        der = block.content(what)
        if not der.startswith(_SUBJECT) or len(der) != len(_SUBJECT) + 32:
            kind = next((name for code, name in _KINDS.items() if code in der[:32].hex()), "an unknown kind")
            raise KeyTypeError(f"{what} holds a public key of {kind}; Ed25519 is expected.", subject=what)
        return cls(f"ed25519:{der[len(_SUBJECT) :].hex()}", block.name, block.expires)

    @classmethod
    def parse(cls, text: str) -> PublicKey:
        """Read a key as it is written in a line: ``ed25519:`` and 64 hex digits.

        Raises:
            KeyFileError: Written otherwise.
        """
        if not KEY_ID.fullmatch(text):
            raise KeyFileError(f"{text!r:.100} is no key: expected 'ed25519:' and 64 lower-case hex digits.")
        return cls(text)


@attrs.frozen
class Block:
    """The one PEM block of a file, and what stands above it.

    Attributes:
        label: ``"PUBLIC KEY"``, ...
        pem: The block.
        name: Of the key, else empty.
        expires: When it ends, None if it does not.
    """

    label: str
    pem: bytes
    name: str
    expires: datetime | None

    @classmethod
    def read(cls, data: bytes, *, what: str) -> Block:
        """Take a key file apart.

        Raises:
            KeyFileError: No PEM block, more than one, or a line above it that is not known.
        """
        text = data.decode("ascii", "replace").replace("\r\n", "\n")
        above, begin, _ = text.partition("-----BEGIN ")
        match = _BLOCK.fullmatch(text[len(above) :]) if begin and len(data) <= LIMIT else None
        if match is None:
            raise KeyFileError(
                f"{what} is no key file: one PEM block (-----BEGIN ...) of at most {LIMIT} bytes is expected, got "
                f"{len(data)} bytes. `compatkit keys new NAME` makes a pair of files.",
                subject=what,
            )
        facts = _facts(above, what)
        if (name := facts.get("name", "")) and not _NAME.fullmatch(name):
            raise KeyFileError(f"{what}: {_rule(name)}", subject=what)
        expires = None
        if (ends := facts.get("expires")) is not None and (expires := moments.read(ends)) is None:
            raise KeyFileError(
                f"{what}: 'expires' is a moment such as 2027-01-31T00:00:00Z, got {ends!r:.80}.", subject=what
            )
        return cls(match[1], text[len(above) :].encode("ascii", "replace"), name, expires)

    def content(self, what: str) -> bytes:
        """Return the bytes in the block.

        Raises:
            KeyFileError: It is no base64.
        """
        body = "".join(self.pem.decode().split("-----")[2].split())
        try:
            return base64.b64decode(body, validate=True)
        except (binascii.Error, ValueError):
            raise KeyFileError(f"{what}: what stands in the PEM block is no base64.", subject=what) from None


def check_key_name(name: str) -> str:
    """Return ``name`` if a key can be called so.

    Raises:
        KeyFileError: Other characters, or too long.
    """
    if not _NAME.fullmatch(name):
        raise KeyFileError(_rule(name))
    return name


def notes(name: str, expires: datetime | None) -> str:
    """Return the lines above a block."""
    ends = "" if expires is None else f"expires: {moments.written(expires)}\n"
    return (f"name: {name}\n" if name else "") + ends


def read_small(path: Path, what: str) -> bytes:
    """Return a file of the user's own, links followed; at most one byte beyond the limit.

    Raises:
        KeyFileError: There is no such file.
        EnvironmentFailure: It cannot be read.
    """
    if not path.is_file():
        raise KeyFileError(f"{what}: there is no file {path}.", subject=path)
    with environment("read", path), open(path, "rb") as file:
        return file.read(LIMIT + 1)


def inside_a_registry(path: Path) -> Path | None:
    """Return the registry in whose folder a path lies; None if it lies in none."""
    return next((one for one in path.resolve().parents if os.path.lexists(one / MARKER)), None)


def _facts(above: str, what: str) -> dict[str, str]:
    facts: dict[str, str] = {}
    for line in above.split("\n"):
        if not line.strip() or line.startswith("#"):
            continue
        label, colon, value = line.partition(":")
        if not colon or label not in ("name", "expires") or label in facts:
            raise KeyFileError(
                f"{what}: above the key there may be '# ...', one 'name: ...' and one 'expires: ...', got "
                f"{line!r:.80}.",
                subject=what,
            )
        facts[label] = value.strip()
    return facts


def _rule(name: str) -> str:
    return (
        f"{name!r:.80} is no name of a key: use 1 to 64 letters, digits, '.', '_', '@', '+', '-', with a letter or "
        "digit at both ends."
    )

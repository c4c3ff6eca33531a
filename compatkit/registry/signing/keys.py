"""Ed25519 keys and their files: standard PEM, with the key's name and end of validity in the lines above it.

    # compatkit public key
    name: alice
    expires: 2027-01-31T00:00:00Z
    -----BEGIN PUBLIC KEY-----
    MCowBQYDK2VwAyEA...
    -----END PUBLIC KEY-----

The library ``cryptography`` is imported here and in ``signer`` only. Ed25519 public keys are read without it, because
importing its parsers takes longer than everything else.

Source: RFC 8032 (Ed25519), RFC 8410 (its keys in PKCS #8 and SubjectPublicKeyInfo).
"""

from __future__ import annotations

import base64
import re
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import attrs

from compatkit.errors import KeyFileError, KeyTypeError, MissingDependency
from compatkit.registry.os_errors import environment
from compatkit.registry.signing import dates
from compatkit.registry.signing.envelope import KEY_ID

PREFIX = len("ed25519:") + 16
"""Number of characters of a key shown in messages, unless they ask the user to trust it."""
LIMIT = 2**14
"""Maximum size of a key file in bytes."""
_DER_PREFIX = bytes.fromhex("302a300506032b6570032100")
"""Prefix of the 32 bytes of a public key in RFC 8410."""
PUBLIC = "PUBLIC KEY"
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._@+-]{0,62}[A-Za-z0-9])?")
_BLOCK = re.compile(r"-----BEGIN ([A-Z0-9 ]{1,40})-----\n(?:(?!-----)[^\n]*\n)+-----END \1-----\s*", re.ASCII)


def check_installed() -> None:
    """Check that ``cryptography`` is installed, before any work is done.

    Raises:
        MissingDependency: ``cryptography`` is not installed.
    """
    try:
        import cryptography.hazmat.primitives.asymmetric.ed25519  # noqa: F401
    except ImportError as error:
        raise MissingDependency(
            "Keys and signatures need the library cryptography, which is not installed. Run: "
            f"pip install 'compatkit[signing]' ({error})",
            subject="cryptography",
        ) from error


@attrs.frozen
class PublicKey:
    """A public key.

    Attributes:
        id: The key itself: ``ed25519:`` and 64 hex digits.
        name: Name given by the user; may be empty.
        expires: End of validity, or None.
    """

    id: str
    name: str = ""
    expires: datetime | None = None

    def __str__(self) -> str:
        return f"{self.name} ({self.id[:PREFIX]})" if self.name else self.id[:PREFIX]

    def to_bytes(self) -> bytes:
        """Return the key file."""
        body = base64.b64encode(_DER_PREFIX + bytes.fromhex(self.id.removeprefix("ed25519:"))).decode()
        pem = f"-----BEGIN {PUBLIC}-----\n{body}\n-----END {PUBLIC}-----\n"
        return f"# compatkit public key\n{header_lines(self)}{pem}".encode()

    @classmethod
    def from_bytes(cls, data: bytes, *, what: str) -> PublicKey:
        """Read a key file.

        Args:
            data: Content of the file.
            what: Description of the file for messages.

        Raises:
            KeyTypeError: The key is private, or of another kind.
            KeyFileError: The file is not a key file.
        """
        file = parse_key_file(data, what)
        if file.label != PUBLIC:
            hint = " Never share it; share the .pub file." if "PRIVATE" in file.label else ""
            raise KeyTypeError(f"{what}: expected a {PUBLIC}, got a {file.label}.{hint}", subject=what)
        with suppress(ValueError):
            der = base64.b64decode("".join(file.pem.decode().split("-----")[2].split()), validate=True)
            if der.startswith(_DER_PREFIX) and len(der) == len(_DER_PREFIX) + 32:
                return cls(f"ed25519:{der[len(_DER_PREFIX) :].hex()}", file.name, file.expires)
        raise _not_ed25519(file.pem, what)

    @classmethod
    def parse(cls, text: str) -> PublicKey:
        """Parse a key written as ``ed25519:`` and 64 hex digits.

        Raises:
            KeyFileError: The text is malformed.
        """
        if not KEY_ID.fullmatch(text):
            raise KeyFileError(f"Expected 'ed25519:' and 64 lower-case hex digits, got {text!r:.100}.")
        return cls(text)


def verifies(key: str, signature: bytes, data: bytes) -> bool:
    """Return whether a signature of some bytes is by a key.

    Args:
        key: ``ed25519:`` and 64 hex digits.
        signature: Signature of 64 bytes.
        data: Signed bytes.

    Raises:
        MissingDependency: ``cryptography`` is not installed.
    """
    check_installed()
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(key.removeprefix("ed25519:"))).verify(
            signature, data
        )
    except (InvalidSignature, ValueError):  # ValueError: not a point on the curve
        return False
    return True


def check_key_name(name: str) -> str:
    """Return ``name`` if it is a valid name of a key.

    Raises:
        KeyFileError: The name has invalid characters, or is too long.
    """
    if not _NAME.fullmatch(name):
        raise KeyFileError(
            "Expected a key name of 1 to 64 letters, digits, '.', '_', '@', '+', '-', with a letter or digit at both "
            f"ends, got {name!r:.80}."
        )
    return name


def read_small(path: Path, what: str) -> bytes:
    """Return the content of a user's file, truncated one byte after the limit; links are followed.

    Args:
        path: Path of the file.
        what: Description of the file for messages.

    Raises:
        KeyFileError: There is no such file.
        EnvironmentFailure: It cannot be read.
    """
    if not path.is_file():
        raise KeyFileError(f"{what}: there is no file {path}.", subject=path)
    with environment("read", path), open(path, "rb") as file:
        return file.read(LIMIT + 1)


class KeyFile(NamedTuple):
    """Content of a key file.

    Attributes:
        label: Label of the PEM block, such as ``"PUBLIC KEY"``.
        pem: The PEM block.
        name: Name of the key, or empty.
        expires: End of validity, or None.
    """

    label: str
    pem: bytes
    name: str
    expires: datetime | None


def parse_key_file(data: bytes, what: str) -> KeyFile:
    """Parse a key file.

    Args:
        data: Content of the file.
        what: Description of the file for messages.

    Raises:
        KeyFileError: There is no PEM block, more than one, or an unknown line above it.
    """
    text = data.decode("ascii", "replace").replace("\r\n", "\n")
    header, begin, _ = text.partition("-----BEGIN ")
    block = text[len(header) :]
    match = _BLOCK.fullmatch(block) if begin and len(data) <= LIMIT else None
    if match is None:
        raise KeyFileError(
            f"{what}: expected a key file with one PEM block (-----BEGIN ...) and at most {LIMIT} bytes, got "
            f"{len(data)} bytes. `compatkit keys new NAME` creates a key.",
            subject=what,
        )
    lines = [line for line in header.split("\n") if line.strip() and not line.startswith("#")]
    fields = {label: value.strip() for label, _, value in (line.partition(":") for line in lines)}
    expires = dates.parse_time(fields.get("expires", ""))
    known = fields.keys() <= {"name", "expires"} and len(fields) == len(lines)
    if not known or ("expires" in fields) != (expires is not None):
        raise KeyFileError(
            f"{what}: expected comments, 'name: ...' and 'expires: ...' with a time such as 2027-01-31T00:00:00Z above "
            f"the key, got {lines!r:.160}.",
            subject=what,
        )
    try:
        name = check_key_name(fields["name"]) if fields.get("name") else ""
    except KeyFileError as error:
        raise KeyFileError(f"{what}: {error}", subject=what) from None
    return KeyFile(match[1], block.encode("ascii", "replace"), name, expires)


def header_lines(key: PublicKey) -> str:
    """Return the lines above the PEM block of a key file."""
    ends = "" if key.expires is None else f"expires: {dates.format_time(key.expires)}\n"
    return (f"name: {key.name}\n" if key.name else "") + ends


def _not_ed25519(pem: bytes, what: str) -> KeyFileError:
    """Return the error for a PEM block that is not an Ed25519 public key."""
    check_installed()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        kind = kind_of(load_pem_public_key(pem))
    except (ValueError, UnsupportedAlgorithm) as error:
        return KeyFileError(f"{what} is not a readable public key: {error}", subject=what)
    return KeyTypeError(f"{what}: expected an Ed25519 public key, got {kind}.", subject=what)


def kind_of(key: object) -> str:
    """Return the kind of a key of ``cryptography``, such as ``"RSA"``."""
    return type(key).__name__.strip("_").removesuffix("PrivateKey").removesuffix("PublicKey")

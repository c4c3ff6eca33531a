"""The only door to the library ``cryptography``: Ed25519 keys, made, read, written, used.

Source: RFC 8032 (Ed25519), RFC 8410 (its keys in PKCS #8 and SubjectPublicKeyInfo).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING

from compatkit.errors import KeyFileError, KeyTypeError, MissingDependency, WrongPassphrase

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

PREFIX = "ed25519:"


@contextmanager
def installed() -> Iterator[None]:
    """Say how to install ``cryptography`` where it is needed and missing.

    Raises:
        MissingDependency: It is missing.
    """
    try:
        yield
    except ImportError as error:
        raise MissingDependency(
            "Signatures are made and verified by the library cryptography, which is not installed. Run: "
            f"pip install 'compatkit[signing]' ({error})",
            subject="cryptography",
        ) from error


def check_installed() -> None:
    """See to it that signatures can be made and verified here, before any work is done.

    Raises:
        MissingDependency: ``cryptography`` is not installed.
    """
    with installed():
        import_module("cryptography.hazmat.primitives.asymmetric.ed25519")


def generate() -> Ed25519PrivateKey:
    """Return a new private key from the system's randomness."""
    with installed():
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    return Ed25519PrivateKey.generate()


def identity(private: Ed25519PrivateKey) -> str:
    """Return ``ed25519:`` and the public key in hex."""
    return f"{PREFIX}{private.public_key().public_bytes_raw().hex()}"


def to_pem(private: Ed25519PrivateKey, passphrase: bytes | None) -> bytes:
    """Return a private key as PKCS #8 in PEM, encrypted if there is a passphrase."""
    with installed():
        from cryptography.hazmat.primitives.serialization import (
            BestAvailableEncryption,
            Encoding,
            NoEncryption,
            PrivateFormat,
        )
    protection = NoEncryption() if passphrase is None else BestAvailableEncryption(passphrase)
    return private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, protection)


def from_der(der: bytes, passphrase: bytes | None, *, what: str) -> Ed25519PrivateKey:
    """Return the private key in PKCS #8.

    Args:
        der: The bytes in a PEM block.
        passphrase: None for a key that is not encrypted.
        what: For messages.

    Raises:
        WrongPassphrase: It is encrypted with another.
        KeyTypeError: It is a key of another kind.
        KeyFileError: It is damaged.
    """
    with installed():
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_der_private_key
    try:
        found = load_der_private_key(der, passphrase)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        if passphrase is not None and "passw" in str(error).lower():
            raise WrongPassphrase(f"{what}: the passphrase does not open this key.", subject=what) from None
        raise KeyFileError(f"{what} is no private key that can be read: {error}", subject=what) from None
    if not isinstance(found, Ed25519PrivateKey):
        kind = type(found).__name__.strip("_").removesuffix("PrivateKey")
        raise KeyTypeError(
            f"{what} holds a private key of the kind {kind}; Ed25519 is expected. `compatkit keys new NAME` makes one.",
            subject=what,
        )
    return found


def verify(key: str, signature: bytes, data: bytes) -> bool:
    """Tell whether a key made a signature over these bytes.

    Args:
        key: ``ed25519:`` and 64 hex digits.
        signature: 64 bytes.
        data: Any.
    """
    with installed():
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(key.removeprefix(PREFIX))).verify(signature, data)
    except (InvalidSignature, ValueError):  # the latter: no point of the curve
        return False
    return True

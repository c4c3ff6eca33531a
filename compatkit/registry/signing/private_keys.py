"""Private keys: create, save and load them, and sign digests."""

from __future__ import annotations

import os
import stat
import warnings
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from compatkit.errors import KeyExpired, KeyFileError, KeyTypeError, WrongPassphrase
from compatkit.foundation.addresses import local
from compatkit.foundation.configuration import configuration
from compatkit.registry.layout import MARKER
from compatkit.registry.os_errors import environment
from compatkit.registry.signing import dates
from compatkit.registry.signing.envelope import Envelope, Statement
from compatkit.registry.signing.keys import (
    PublicKey,
    check_installed,
    check_key_name,
    header_lines,
    kind_of,
    parse_key_file,
    read_small,
)

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


PASSPHRASE = "COMPATKIT_KEY_PASSPHRASE"
"""Environment variable with the passphrase of a private key, for unattended programs."""
PRIVATE, ENCRYPTED = "PRIVATE KEY", "ENCRYPTED PRIVATE KEY"


class KeyWarning(UserWarning):
    """The file of a private key is readable by other users."""


@attrs.frozen(eq=False)
class SigningKey:
    """A private key.

    Attributes:
        public: Public key, with name and end of validity.
    """

    public: PublicKey
    _private: Ed25519PrivateKey = attrs.field(repr=False)

    @classmethod
    def new(cls, name: str, *, expires: datetime | None = None) -> SigningKey:
        """Create a key.

        Args:
            name: Name of 1 to 64 letters, digits and ``._@+-``.
            expires: End of validity, or None.

        Raises:
            KeyFileError: The name is not valid.
            MissingDependency: ``cryptography`` is not installed.
        """
        check_installed()
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return cls._of(Ed25519PrivateKey.generate(), check_key_name(name), expires)

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], *, passphrase: str | Callable[[], str] | None = None
    ) -> SigningKey:
        """Read a private key from PKCS #8 in PEM; warn (``KeyWarning``) if others may read the file.

        Args:
            path: Path of the file.
            passphrase: Passphrase of an encrypted key, or a function that returns it; None reads
                COMPATKIT_KEY_PASSPHRASE.

        Raises:
            WrongPassphrase: The key is encrypted, and the passphrase is missing or wrong.
            KeyTypeError: The key is public, or of another kind.
            KeyFileError: The file is missing, or not a key file.
            MissingDependency: ``cryptography`` is not installed.
        """
        key_path = Path(local(path, "a key")).expanduser()
        what = f"the key {key_path}"
        file = parse_key_file(read_small(key_path, what), what)
        if file.label not in (PRIVATE, ENCRYPTED):
            expected = f"{what}: expected a {PRIVATE} in PKCS #8, as `compatkit keys new NAME` creates"
            raise KeyTypeError(f"{expected}, got a {file.label}.", subject=key_path)
        _warn_if_exposed(key_path)
        secret = _passphrase(passphrase, what) if file.label == ENCRYPTED else None
        return cls._of(_private_key(file.pem, secret, what), file.name, file.expires)

    @classmethod
    def _of(cls, private: Ed25519PrivateKey, name: str, expires: datetime | None) -> SigningKey:
        identity = f"ed25519:{private.public_key().public_bytes_raw().hex()}"
        return cls(PublicKey(identity, name, expires), private)

    def save(self, path: str | os.PathLike[str], *, passphrase: str | None = None) -> Path:
        """Write the private key to ``path``, readable only by its owner, and the public key next to it as ``.pub``.

        Args:
            path: Path of the private key.
            passphrase: Passphrase for encryption; None writes the key unencrypted.

        Returns:
            Path of the public key.

        Raises:
            KeyFileError: A file exists already, or the path is inside a registry.
            WrongPassphrase: The passphrase is empty.
            EnvironmentFailure: A file cannot be written; neither remains.
        """
        from cryptography.hazmat.primitives.serialization import (
            BestAvailableEncryption,
            Encoding,
            NoEncryption,
            PrivateFormat,
        )

        file = Path(local(path, "a key")).expanduser().absolute()
        public_path = file.with_suffix(".pub")
        if (shared := _inside_a_registry(file)) is not None:
            raise KeyFileError(
                f"{file} is in the registry {shared}, which others read; use another folder.", subject=file
            )
        for target in (file, public_path):
            if os.path.lexists(target):
                raise KeyFileError(
                    f"{target} exists and is not overwritten; use another path.", subject=target
                )
        if file == public_path:
            raise KeyFileError(f"{file}: .pub is the suffix of public keys; name it .pem.", subject=file)
        if passphrase == "":
            raise WrongPassphrase("Expected a passphrase or None, got an empty one.")
        protection = NoEncryption() if passphrase is None else BestAvailableEncryption(passphrase.encode())
        pem = self._private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, protection)
        header = f"# compatkit private key: keep it to yourself\n{header_lines(self.public)}"
        _create(file, header.encode() + pem, 0o600)
        try:
            _create(public_path, self.public.to_bytes(), 0o644)
        except BaseException:
            with suppress(OSError):
                os.unlink(file)
            raise
        return public_path

    def sign(
        self,
        digest: str,
        name: str | None,
        *,
        expires: datetime | None = None,
        now: datetime | None = None,
        is_change: bool = False,
    ) -> Envelope:
        """Sign a manifest, or an entry of a log.

        Args:
            digest: Digest of the manifest or entry.
            name: ``name@version`` to sign, None for any name; of an entry its path relative to the root.
            expires: End of the signature's validity, at most that of the key.
            now: Time of signing; None for the current time.
            is_change: Whether ``digest`` is that of an entry of a log.

        Raises:
            KeyExpired: The key has expired.
        """
        moment = dates.now() if now is None else now
        if self.public.expires is not None and self.public.expires <= moment:
            raise KeyExpired(
                f"the key {self.public} expired on {dates.format_time(self.public.expires)}. Create one with "
                "`compatkit keys new NAME`, and distribute its .pub file.",
                subject=self.public.id,
            )
        ends = min((end for end in (expires, self.public.expires) if end is not None), default=None)
        statement = Statement(digest, name, self.public.id, moment, ends, is_change)
        unsigned = Envelope(statement.to_bytes(), self.public.id, b"")
        return attrs.evolve(unsigned, signature=self._private.sign(unsigned.signed))


def key_folder() -> Path:
    """Return the user's folder of private keys."""
    return configuration() / "keys"


def key_file(key: str | os.PathLike[str]) -> Path:
    """Return the file of a private key.

    Args:
        key: Path of the file, or name of a key in the user's folder.

    Raises:
        KeyFileError: There is no such key.
    """
    file, own = Path(key).expanduser(), key_folder() / f"{os.fspath(key)}.pem"
    if file.exists():
        return file
    if len(Path(key).parts) != 1 or not own.exists():
        raise KeyFileError(
            f"There is no key {key}, neither here nor at {own}. See `compatkit keys new`.", subject=key
        )
    return own


def _private_key(pem: bytes, passphrase: bytes | None, what: str) -> Ed25519PrivateKey:
    check_installed()
    from cryptography.exceptions import InternalError, UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(pem, passphrase)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        # With a wrong passphrase the padding is valid once in 256 times; then the content fails to parse.
        if passphrase is not None and isinstance(error, ValueError):
            raise WrongPassphrase(
                f"{what}: the passphrase is wrong, or the file is damaged: {error}.", subject=what
            ) from None
        raise KeyFileError(f"{what} is not a readable private key: {error}", subject=what) from None
    except InternalError:  # wrong length for its kind, which OpenSSL's message does not mention
        raise KeyFileError(
            f"{what} is not a readable private key: its length is wrong.", subject=what
        ) from None
    if not isinstance(key, Ed25519PrivateKey):
        raise KeyTypeError(
            f"{what}: expected an Ed25519 private key, got {kind_of(key)}. `compatkit keys new NAME` creates one.",
            subject=what,
        )
    return key


def _passphrase(source: str | Callable[[], str] | None, what: str) -> bytes:
    passphrase = (
        source if isinstance(source, str) else os.environ.get(PASSPHRASE) or (source() if source else "")
    )
    if not passphrase:
        raise WrongPassphrase(
            f"{what} is encrypted. Enter its passphrase on a terminal, or set {PASSPHRASE}.",
            subject=what,
        )
    return passphrase.encode()


def _inside_a_registry(path: Path) -> Path | None:
    """Return the registry whose folder contains a path, or None."""
    return next((folder for folder in path.resolve().parents if os.path.lexists(folder / MARKER)), None)


def _warn_if_exposed(file: Path) -> None:
    mode = stat.S_IMODE(os.stat(file).st_mode)
    if os.name != "nt" and mode & 0o077:
        warnings.warn(
            f"others may read the private key {file} (mode {mode:o}): chmod 600 {file}. If somebody did, create a new "
            "key and let others distrust this one.",
            KeyWarning,
            stacklevel=3,
        )
    if (shared := _inside_a_registry(file)) is not None:
        warnings.warn(
            f"the private key {file} is in the registry {shared}, which others read: create a new key elsewhere, and "
            "let others distrust this one.",
            KeyWarning,
            stacklevel=3,
        )


def _create(path: Path, data: bytes, mode: int) -> None:
    """Create a file that must not exist, with its permissions from the start."""
    with environment("create", path):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0), mode)
        try:
            with os.fdopen(descriptor, "wb") as file:
                if os.name != "nt":
                    os.fchmod(file.fileno(), mode)
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            with suppress(OSError):
                os.unlink(path)
            raise

"""Private keys: made, kept in files of their own that only their owner reads, and used to sign manifests."""

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
from compatkit.registry.os_errors import environment
from compatkit.registry.signing import ed25519, moments
from compatkit.registry.signing.envelope import Envelope
from compatkit.registry.signing.keyfiles import (
    ENCRYPTED,
    PRIVATE,
    Block,
    PublicKey,
    check_key_name,
    inside_a_registry,
    notes,
    read_small,
)
from compatkit.registry.signing.statement import Statement

if TYPE_CHECKING:
    from compatkit.registry.signing.ed25519 import Ed25519PrivateKey

PASSPHRASE = "COMPATKIT_KEY_PASSPHRASE"
"""Environment variable that holds the passphrase of a private key, for programs that nobody watches."""


class KeyWarning(UserWarning):
    """A private key lies where others may read it."""


@attrs.frozen(eq=False)
class SigningKey:
    """A private key.

    Attributes:
        public: Its public half, with name and end.
    """

    public: PublicKey
    _private: Ed25519PrivateKey = attrs.field(repr=False)

    @classmethod
    def new(cls, name: str, *, expires: datetime | None = None) -> SigningKey:
        """Make a key.

        Raises:
            KeyFileError: It cannot be called so.
            MissingDependency: ``cryptography`` is not installed.
        """
        private = ed25519.generate()
        return cls(PublicKey(ed25519.identity(private), check_key_name(name), expires), private)

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], *, passphrase: str | Callable[[], str] | None = None
    ) -> SigningKey:
        """Read a private key from PKCS #8 in PEM; a ``KeyWarning`` says where others may read the file too.

        Args:
            path: Of the file.
            passphrase: Of an encrypted key, or what asks for it; None takes COMPATKIT_KEY_PASSPHRASE.

        Raises:
            WrongPassphrase: It is encrypted, and the passphrase is missing or another.
            KeyTypeError: A key of another kind, or a public one.
            KeyFileError: No key file, or none there.
            MissingDependency: ``cryptography`` is not installed.
        """
        file = Path(path).expanduser()
        what = f"the key {file}"
        block = Block.read(read_small(file, what), what=what)
        if block.label not in (PRIVATE, ENCRYPTED):
            hint = (
                "sign with the file of the private key"
                if "PUBLIC" in block.label
                else "`compatkit keys new NAME` makes one"
            )
            raise KeyTypeError(
                f"{what}: a {PRIVATE} in PKCS #8 is expected, this is a {block.label}; {hint}.", subject=file
            )
        _warn_of_rights(file)
        secret = _passphrase(passphrase, what) if block.label == ENCRYPTED else None
        private = ed25519.from_der(block.content(what), secret, what=what)
        return cls(PublicKey(ed25519.identity(private), block.name, block.expires), private)

    def save(self, path: str | os.PathLike[str], *, passphrase: str | None = None) -> Path:
        """Write the private key to ``path``, for its owner only, and the public one beside it, with the suffix .pub.

        Returns:
            The public key's file.

        Raises:
            KeyFileError: A file is there already, or the place is inside a registry, which others read.
            WrongPassphrase: It is empty.
            EnvironmentFailure: They cannot be written; neither is left.
        """
        file = Path(path).expanduser().absolute()
        shared, beside = inside_a_registry(file), file.with_suffix(".pub")
        if shared is not None:
            raise KeyFileError(
                f"{file} lies in the registry {shared}, which others read and copy; keep a private key elsewhere.",
                subject=file,
            )
        for one in (file, beside):
            if os.path.lexists(one):
                raise KeyFileError(
                    f"{one} is there already and is not overwritten; name another file.", subject=one
                )
        if file == beside:
            raise KeyFileError(f"{file}: .pub is the suffix of public keys; name it .pem.", subject=file)
        if passphrase == "":
            raise WrongPassphrase("An empty passphrase protects nothing; give none, or one of some words.")
        secret = None if passphrase is None else passphrase.encode()
        above = (
            f"# compatkit private key: keep it to yourself\n{notes(self.public.name, self.public.expires)}"
        )
        _create(file, above.encode() + ed25519.to_pem(self._private, secret), 0o600)
        try:
            _create(beside, self.public.to_bytes(), 0o644)
        except BaseException:
            with suppress(OSError):
                os.unlink(file)
            raise
        return beside

    def sign(
        self,
        digest: str,
        name: str | None,
        *,
        expires: datetime | None = None,
        now: datetime | None = None,
    ) -> Envelope:
        """Vouch for a manifest.

        Args:
            digest: Of the manifest.
            name: ``name@version`` that it is signed as; None vouches for the bytes under any name.
            expires: When the signature ends, at the latest when the key does.
            now: When it is signed; None takes this second.

        Raises:
            KeyExpired: The key is past its end.
        """
        moment = moments.now() if now is None else now
        ends = [one for one in (expires, self.public.expires) if one is not None]
        if self.public.expires is not None and self.public.expires <= moment:
            raise KeyExpired(
                f"the key {self.public} ended on {moments.written(self.public.expires)}, and nothing is signed with it "
                "any more. Make a new one (`compatkit keys new NAME`), and hand its .pub on.",
                subject=self.public.id,
            )
        statement = Statement(digest, name, self.public.id, moment, min(ends) if ends else None)
        unsigned = Envelope(statement.to_bytes(), self.public.id, b"")
        return attrs.evolve(unsigned, signature=self._private.sign(unsigned.signed))


def _passphrase(given: str | Callable[[], str] | None, what: str) -> bytes:
    found = given if isinstance(given, str) else os.environ.get(PASSPHRASE) or (given() if given else "")
    if not found:
        raise WrongPassphrase(
            f"{what} is encrypted: its passphrase is asked for on a terminal, or taken from {PASSPHRASE}.",
            subject=what,
        )
    return found.encode()


def _warn_of_rights(file: Path) -> None:
    mode = stat.S_IMODE(os.stat(file).st_mode)
    if os.name != "nt" and mode & 0o077:
        warnings.warn(
            f"the private key {file} has the mode {mode:o}, so others may read it: chmod 600 {file}, and if somebody "
            "did, make a new key and have this one distrusted.",
            KeyWarning,
            stacklevel=3,
        )
    if (shared := inside_a_registry(file)) is not None:
        warnings.warn(
            f"the private key {file} lies in the registry {shared}, which others read and copy: make a new key "
            "elsewhere, and have this one distrusted.",
            KeyWarning,
            stacklevel=3,
        )


def _create(path: Path, data: bytes, mode: int) -> None:
    """Create a file that must not be there, with these rights from the first byte on."""
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

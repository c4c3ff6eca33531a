"""Ed25519 keys and their files: PEM as other programs read it, with the key's name and end in the lines above.

    # compatkit public key
    name: alice
    expires: 2027-01-31T00:00:00Z
    -----BEGIN PUBLIC KEY-----
    MCowBQYDK2VwAyEA...
    -----END PUBLIC KEY-----

This is the only file that imports the library ``cryptography``, and public keys of the right kind are read without it:
importing its parsers takes longer than anything else that is done with them.

Source: RFC 8032 (Ed25519), RFC 8410 (its keys in PKCS #8 and SubjectPublicKeyInfo).
"""

from __future__ import annotations

import base64
import os
import re
import stat
import warnings
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import attrs

from compatkit.errors import KeyExpired, KeyFileError, KeyTypeError, MissingDependency, WrongPassphrase
from compatkit.registry.layout import MARKER
from compatkit.registry.os_errors import environment
from compatkit.registry.signing import dates
from compatkit.registry.signing.envelope import KEY_ID, Envelope, Statement

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

SHOWN = len("ed25519:") + 16
"""Characters of a key that messages show; where it is to be trusted, they show all."""
LIMIT = 2**14
"""Bytes; no key file is longer."""
PASSPHRASE = "COMPATKIT_KEY_PASSPHRASE"
"""Environment variable that holds the passphrase of a private key, for programs that run unattended."""
_INFO = bytes.fromhex("302a300506032b6570032100")
"""What RFC 8410 puts before the 32 bytes of a public key."""
PUBLIC, PRIVATE, ENCRYPTED = "PUBLIC KEY", "PRIVATE KEY", "ENCRYPTED PRIVATE KEY"
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._@+-]{0,62}[A-Za-z0-9])?")
_BLOCK = re.compile(r"-----BEGIN ([A-Z0-9 ]{1,40})-----\n(?:(?!-----)[^\n]*\n)+-----END \1-----\s*", re.ASCII)


class KeyWarning(UserWarning):
    """A private key lies where others may read it."""


def check_installed() -> None:
    """Check that ``cryptography`` is installed, before any work is done.

    Raises:
        MissingDependency: It is not.
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
    """A public key: identifies whoever signs with its private half.

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
        body = base64.b64encode(_INFO + bytes.fromhex(self.id.removeprefix("ed25519:"))).decode()
        pem = f"-----BEGIN {PUBLIC}-----\n{body}\n-----END {PUBLIC}-----\n"
        return f"# compatkit public key\n{_lines(self)}{pem}".encode()

    @classmethod
    def from_bytes(cls, data: bytes, *, what: str) -> PublicKey:
        """Read a key file.

        Args:
            data: Content of the file.
            what: What messages call it.

        Raises:
            KeyTypeError: A key of another kind, or a private one.
            KeyFileError: No key file.
        """
        file = _taken_apart(data, what)
        if file.label != PUBLIC:
            hint = ""
            if "PRIVATE" in file.label:
                hint = " Never hand that on: its public half is in the file that ends with .pub."
            raise KeyTypeError(f"{what}: a {PUBLIC} is expected, this is a {file.label}.{hint}", subject=what)
        with suppress(ValueError):
            der = base64.b64decode("".join(file.pem.decode().split("-----")[2].split()), validate=True)
            if der.startswith(_INFO) and len(der) == len(_INFO) + 32:
                return cls(f"ed25519:{der[len(_INFO) :].hex()}", file.name, file.expires)
        raise _not_ed25519(file.pem, what)

    @classmethod
    def parse(cls, text: str) -> PublicKey:
        """Read a key as it is written in a line: ``ed25519:`` and 64 hex digits.

        Raises:
            KeyFileError: Written otherwise.
        """
        if not KEY_ID.fullmatch(text):
            raise KeyFileError(f"{text!r:.100} is no key: expected 'ed25519:' and 64 lower-case hex digits.")
        return cls(text)


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

        Args:
            name: 1 to 64 letters, digits and ``._@+-``.
            expires: When it ends; None if it does not.

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
        place = Path(path).expanduser()
        what = f"the key {place}"
        file = _taken_apart(read_small(place, what), what)
        if file.label not in (PRIVATE, ENCRYPTED):
            hint = (
                "sign with the file of the private key"
                if "PUBLIC" in file.label
                else "`compatkit keys new NAME` makes one"
            )
            raise KeyTypeError(
                f"{what}: a {PRIVATE} in PKCS #8 is expected, this is a {file.label}; {hint}.", subject=place
            )
        _warn_if_exposed(place)
        secret = _passphrase(passphrase, what) if file.label == ENCRYPTED else None
        return cls._of(_private_key(file.pem, secret, what), file.name, file.expires)

    @classmethod
    def _of(cls, private: Ed25519PrivateKey, name: str, expires: datetime | None) -> SigningKey:
        identity = f"ed25519:{private.public_key().public_bytes_raw().hex()}"
        return cls(PublicKey(identity, name, expires), private)

    def save(self, path: str | os.PathLike[str], *, passphrase: str | None = None) -> Path:
        """Write the private key to ``path``, readable by its owner only, and the public one beside it as ``.pub``.

        Args:
            path: Of the private key.
            passphrase: Encrypts it; None leaves it open.

        Returns:
            The public key's file.

        Raises:
            KeyFileError: A file is there already, or the place is inside a registry, which others read.
            WrongPassphrase: It is empty.
            EnvironmentFailure: They cannot be written; neither is left.
        """
        from cryptography.hazmat.primitives.serialization import (
            BestAvailableEncryption,
            Encoding,
            NoEncryption,
            PrivateFormat,
        )

        file = Path(path).expanduser().absolute()
        beside = file.with_suffix(".pub")
        if (shared := _inside_a_registry(file)) is not None:
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
        protection = NoEncryption() if passphrase is None else BestAvailableEncryption(passphrase.encode())
        pem = self._private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, protection)
        above = f"# compatkit private key: keep it to yourself\n{_lines(self.public)}"
        _create(file, above.encode() + pem, 0o600)
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
        """Sign a manifest.

        Args:
            digest: Of the manifest.
            name: ``name@version`` that it is signed as; None vouches for the bytes under any name.
            expires: When the signature ends, at the latest when the key does.
            now: When it is signed; None takes this second.

        Raises:
            KeyExpired: The key is past its end.
        """
        moment = dates.now() if now is None else now
        if self.public.expires is not None and self.public.expires <= moment:
            raise KeyExpired(
                f"the key {self.public} ended on {dates.written(self.public.expires)}, and nothing is signed with it "
                "any more. Make a new one (`compatkit keys new NAME`), and hand its .pub on.",
                subject=self.public.id,
            )
        ends = min((one for one in (expires, self.public.expires) if one is not None), default=None)
        statement = Statement(digest, name, self.public.id, moment, ends)
        unsigned = Envelope(statement.to_bytes(), self.public.id, b"")
        return attrs.evolve(unsigned, signature=self._private.sign(unsigned.signed))


def verifies(key: str, signature: bytes, data: bytes) -> bool:
    """Tell whether a key made a signature over these bytes.

    Args:
        key: ``ed25519:`` and 64 hex digits.
        signature: 64 bytes.
        data: Any.

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
    except (InvalidSignature, ValueError):  # the latter: no point of the curve
        return False
    return True


def check_key_name(name: str) -> str:
    """Return ``name`` if a key can be called so.

    Raises:
        KeyFileError: Other characters, or too long.
    """
    if not _NAME.fullmatch(name):
        raise KeyFileError(
            f"{name!r:.80} is no name of a key: use 1 to 64 letters, digits, '.', '_', '@', '+', '-', with a letter or "
            "digit at both ends."
        )
    return name


def read_small(path: Path, what: str) -> bytes:
    """Return a file of the user's own, following links; at most one byte beyond the limit.

    Raises:
        KeyFileError: There is no such file.
        EnvironmentFailure: It cannot be read.
    """
    if not path.is_file():
        raise KeyFileError(f"{what}: there is no file {path}.", subject=path)
    with environment("read", path), open(path, "rb") as file:
        return file.read(LIMIT + 1)


class _KeyFile(NamedTuple):
    """The one PEM block of a file, with its label, and what stands above it."""

    label: str
    pem: bytes
    name: str
    expires: datetime | None


def _taken_apart(data: bytes, what: str) -> _KeyFile:
    """Return the parts of a key file.

    Raises:
        KeyFileError: No PEM block, more than one, or an unknown line above it.
    """
    text = data.decode("ascii", "replace").replace("\r\n", "\n")
    above, begin, _ = text.partition("-----BEGIN ")
    block = text[len(above) :]
    match = _BLOCK.fullmatch(block) if begin and len(data) <= LIMIT else None
    if match is None:
        raise KeyFileError(
            f"{what} is no key file: one PEM block (-----BEGIN ...) of at most {LIMIT} bytes is expected, got "
            f"{len(data)} bytes. `compatkit keys new NAME` makes a pair of files.",
            subject=what,
        )
    facts: dict[str, str] = {}
    for line in above.split("\n"):
        if line.strip() and not line.startswith("#"):
            label, _, value = line.partition(":")
            if label not in ("name", "expires") or label in facts:
                raise KeyFileError(
                    f"{what}: above the key there may be '# ...', one 'name: ...' and one 'expires: ...', got "
                    f"{line!r:.80}.",
                    subject=what,
                )
            facts[label] = value.strip()
    try:
        name = check_key_name(facts["name"]) if facts.get("name") else ""
    except KeyFileError as error:
        raise KeyFileError(f"{what}: {error}", subject=what) from None
    expires = dates.read(facts["expires"]) if "expires" in facts else None
    if "expires" in facts and expires is None:
        raise KeyFileError(
            f"{what}: 'expires' is a moment such as 2027-01-31T00:00:00Z, got {facts['expires']!r:.80}.",
            subject=what,
        )
    return _KeyFile(match[1], block.encode("ascii", "replace"), name, expires)


def _lines(key: PublicKey) -> str:
    """Return the lines above a block."""
    ends = "" if key.expires is None else f"expires: {dates.written(key.expires)}\n"
    return (f"name: {key.name}\n" if key.name else "") + ends


def _private_key(pem: bytes, passphrase: bytes | None, what: str) -> Ed25519PrivateKey:
    check_installed()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        found = load_pem_private_key(pem, passphrase)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        if passphrase is not None and "passw" in str(error).lower():
            raise WrongPassphrase(f"{what}: the passphrase does not open this key.", subject=what) from None
        raise KeyFileError(f"{what} is no private key that can be read: {error}", subject=what) from None
    if not isinstance(found, Ed25519PrivateKey):
        raise KeyTypeError(
            f"{what} holds a private key of the kind {_kind(found)}; Ed25519 is expected. `compatkit keys new NAME` "
            "makes one.",
            subject=what,
        )
    return found


def _not_ed25519(pem: bytes, what: str) -> KeyFileError:
    """Return what is wrong with a block that should hold a public key."""
    check_installed()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        kind = _kind(load_pem_public_key(pem))
    except (ValueError, UnsupportedAlgorithm) as error:
        return KeyFileError(f"{what} is no public key that can be read: {error}", subject=what)
    return KeyTypeError(f"{what} holds a public key of the kind {kind}; Ed25519 is expected.", subject=what)


def _kind(key: object) -> str:
    return type(key).__name__.strip("_").removesuffix("PrivateKey").removesuffix("PublicKey")


def _passphrase(given: str | Callable[[], str] | None, what: str) -> bytes:
    found = given if isinstance(given, str) else os.environ.get(PASSPHRASE) or (given() if given else "")
    if not found:
        raise WrongPassphrase(
            f"{what} is encrypted: its passphrase is asked for on a terminal, or taken from {PASSPHRASE}.",
            subject=what,
        )
    return found.encode()


def _inside_a_registry(path: Path) -> Path | None:
    """Return the registry in whose folder a path lies; None if it lies in none."""
    return next((one for one in path.resolve().parents if os.path.lexists(one / MARKER)), None)


def _warn_if_exposed(file: Path) -> None:
    mode = stat.S_IMODE(os.stat(file).st_mode)
    if os.name != "nt" and mode & 0o077:
        warnings.warn(
            f"the private key {file} has the mode {mode:o}, so others may read it: chmod 600 {file}, and if somebody "
            "did, make a new key and have this one distrusted.",
            KeyWarning,
            stacklevel=3,
        )
    if (shared := _inside_a_registry(file)) is not None:
        warnings.warn(
            f"the private key {file} lies in the registry {shared}, which others read and copy: make a new key "
            "elsewhere, and have this one distrusted.",
            KeyWarning,
            stacklevel=3,
        )


def _create(path: Path, data: bytes, mode: int) -> None:
    """Create a file that must not exist, with these permissions from the first byte on."""
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

"""Trusted keys: a folder of public keys in the user's configuration, never in a registry.

A key in ``<key in hex>.pub`` is trusted unless ``<key in hex>.distrusted`` exists next to it, with time and reason.
Every ``*.pub`` in a folder counts, whatever its name, so that a team can keep such a folder with its code.

Only ``Trusted.of`` turns an argument (a folder, a file, a key) into trusted keys. A key that the user distrusts is
never trusted, even if the argument contains it.
"""

from __future__ import annotations

import os
import re
import stat
import warnings
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import TypeAlias

import attrs

from compatkit.errors import FormatError, KeyFileError, UnknownName
from compatkit.foundation.addresses import local
from compatkit.foundation.codec import dumps, loads
from compatkit.foundation.configuration import configuration
from compatkit.registry import disk as durable
from compatkit.registry.os_errors import environment
from compatkit.registry.signing import dates
from compatkit.registry.signing.envelope import KEY_ID
from compatkit.registry.signing.keys import LIMIT, PublicKey, check_key_name, read_small

VARIABLE = "COMPATKIT_TRUST"
"""Environment variable with another folder of trusted keys."""
FILE_LIMIT = 10_000
"""Maximum number of files in a folder of keys."""
_DISTRUSTED = re.compile(r"([0-9a-f]{64})\.distrusted")

Trust: TypeAlias = "Trusted | bool | str | os.PathLike[str] | Iterable[str | os.PathLike[str]] | None"
"""Trusted keys: the user's own folder (True or None), another folder, a file of a public key, a key as
``ed25519:...``, or several of these."""


class TrustWarning(UserWarning):
    """Other users may change the trusted keys."""


@attrs.frozen
class Distrust:
    """Record that a key was distrusted.

    Attributes:
        time: Time, UTC.
        reason: Reason; may be empty.
    """

    time: str
    reason: str

    def __str__(self) -> str:
        return f"{self.time}: {self.reason}" if self.reason else self.time


@attrs.frozen
class Trusted:
    """Trusted keys.

    Attributes:
        keys: Keys by identity.
        distrusted: Keys that are never trusted, even if they are among ``keys``.
        source: Path or argument that the keys are from, for messages.
    """

    keys: Mapping[str, PublicKey]
    distrusted: Mapping[str, Distrust] = attrs.field(factory=dict)
    source: str = ""

    @classmethod
    def of(cls, trust: Trust = None) -> Trusted:
        """Return the trusted keys of an argument, without those that the user distrusts; see ``Trust``.

        Raises:
            KeyFileError: The folder or file is missing, or a file is not a key.
            EnvironmentFailure: A file cannot be read.
        """
        trusted = cls._parse(trust)
        own = {} if trust is None or trust is True else Folder.of_user().distrusted()
        return attrs.evolve(trusted, distrusted={**own, **trusted.distrusted}) if own else trusted

    @classmethod
    def _parse(cls, trust: Trust) -> Trusted:
        if isinstance(trust, Trusted):
            return trust
        if trust is None or trust is True:
            return Folder.of_user().read()
        if trust is False or trust == "":
            raise KeyFileError(f"Expected a folder, file or key to trust, got {trust!r}.")
        if isinstance(trust, str) and trust.startswith("ed25519:"):
            key = PublicKey.parse(trust)
            return cls({key.id: key}, source=trust)
        if isinstance(trust, (str, os.PathLike)):
            return _read_path(Path(local(trust, "trusted keys")).expanduser())
        several = [cls._parse(member) for member in trust]
        return cls(
            _by_id(key for trusted in several for key in trusted.keys.values()),
            {key: value for trusted in several for key, value in trusted.distrusted.items()},
            ", ".join(trusted.source for trusted in several),
        )

    def intersection(self, other: Trusted) -> Trusted:
        """Return the keys that both trust, and all that either distrusts.

        Args:
            other: Other trusted keys.
        """
        keys = {key: public for key, public in self.keys.items() if key in other.keys}
        source = " and ".join(filter(None, (self.source, other.source)))
        return Trusted(keys, {**other.distrusted, **self.distrusted}, source)


@attrs.frozen
class Folder:
    """A folder of trusted keys.

    Attributes:
        path: Path of the folder.
    """

    path: Path

    @classmethod
    def of_user(cls) -> Folder:
        """Return the folder in COMPATKIT_TRUST, or else the one in the user's configuration."""
        if path := os.environ.get(VARIABLE):
            return cls(Path(local(path, "the folder of trusted keys")).expanduser())
        return cls(configuration() / "trusted")

    def read(self) -> Trusted:
        """Return the keys in the folder; none if it does not exist.

        Raises:
            KeyFileError: A file is malformed.
            EnvironmentFailure: A file cannot be read.
        """
        names = self._names()
        paths = [self.path / name for name in names if name.endswith(".pub") and not name.startswith(".")]
        keys = [PublicKey.from_bytes(read_small(path, str(path)), what=str(path)) for path in paths]
        return Trusted(_by_id(keys), self._distrusted(names), str(self.path))

    def distrusted(self) -> dict[str, Distrust]:
        """Return the distrusted keys; no other file is read.

        Raises:
            KeyFileError: A file is malformed.
            EnvironmentFailure: A file cannot be read.
        """
        return self._distrusted(self._names())

    def _distrusted(self, names: Iterable[str]) -> dict[str, Distrust]:
        matches = (match for name in names if (match := _DISTRUSTED.fullmatch(name)))
        return {f"ed25519:{entry[1]}": _read_distrust(self.path / entry[0]) for entry in matches}

    def trust(
        self, key: PublicKey, *, name: str | None = None, expires: datetime | None = None, again: bool = False
    ) -> PublicKey:
        """Trust a key.

        Args:
            key: Key, received from its owner and not through the registry.
            name: New name of the key; None keeps the name.
            expires: End of trust; None keeps that of the key.
            again: Whether to trust the key even if it was distrusted.

        Raises:
            KeyFileError: The key was distrusted, or its name is invalid.
            EnvironmentFailure: The file cannot be written.
        """
        trusted = PublicKey(key.id, check_key_name(name or key.name or "unnamed"), expires or key.expires)
        before = self.distrusted().get(key.id)
        if before is not None and not again:
            raise KeyFileError(
                f"{trusted} was distrusted on {before}. Use --again only if its owner explains why.",
                subject=key.id,
            )
        self._write(f"{_hex(key.id)}.pub", trusted.to_bytes())
        if before is not None:
            note = self.path / f"{_hex(key.id)}.distrusted"
            with environment("remove", note):
                os.unlink(note)
                durable.sync_folder(self.path)
        return trusted

    def distrust(self, which: str, reason: str = "") -> PublicKey:
        """Distrust a key permanently; its name remains known for messages.

        Args:
            which: Name, identity, or a prefix of the hex digits.
            reason: Reason that is shown with each signature by the key.

        Raises:
            UnknownName: No key matches, or several do.
            EnvironmentFailure: The file cannot be written.
        """
        key = self.find(which)
        if key.id not in self.distrusted():
            note = {"reason": reason, "time": dates.format_time(dates.now())}
            self._write(f"{_hex(key.id)}.distrusted", dumps(note))
        return key

    def find(self, which: str) -> PublicKey:
        """Return the key with a name, an identity or a prefix of its digits.

        Raises:
            UnknownName: No key matches, or several do.
        """
        known = self.read().keys
        if KEY_ID.fullmatch(which):
            return known.get(which) or PublicKey(which)
        digits = which.removeprefix("ed25519:")
        matches = [key for key in known.values() if key.name == which]
        matches = matches or [
            key for key in known.values() if len(digits) >= 8 and _hex(key.id).startswith(digits)
        ]
        if len(matches) == 1:
            return matches[0]
        listing = "; ".join(map(str, matches or known.values())) or "none"
        raise UnknownName(
            f"{which!r:.80} matches {len(matches)} keys in {self.path}; use the digits of one: {listing}.",
            subject=which,
        )

    def _names(self) -> list[str]:
        with environment("read", self.path):
            try:
                mode = os.stat(self.path).st_mode
                names = sorted(os.listdir(self.path))
            except FileNotFoundError:
                return []
        if os.name != "nt" and mode & stat.S_IWOTH:
            warnings.warn(
                f"everybody may write to {self.path} and change the trusted keys: chmod o-w {self.path}",
                TrustWarning,
                stacklevel=4,
            )
        if len(names) > FILE_LIMIT:
            raise KeyFileError(f"{self.path}: expected at most {FILE_LIMIT} files, got {len(names)}.")
        return names

    def _write(self, name: str, data: bytes) -> None:
        with environment("create", self.path):
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        durable.replace_file(self.path / name, data)


def _by_id(keys: Iterable[PublicKey]) -> dict[str, PublicKey]:
    """Return keys by identity; a duplicate keeps the earlier end of validity."""
    by_id: dict[str, PublicKey] = {}
    for key in keys:
        before = by_id.get(key.id, key)
        ends = [twin.expires for twin in (before, key) if twin.expires is not None]
        by_id[key.id] = attrs.evolve(before, expires=min(ends) if ends else None)
    return by_id


def _read_path(path: Path) -> Trusted:
    if path.is_dir():
        return Folder(path).read()
    if not path.exists():
        raise KeyFileError(
            f"There is no folder or file {path}. Use a folder of public keys (*.pub), a file of one, or 'ed25519:...'.",
            subject=path,
        )
    key = PublicKey.from_bytes(read_small(path, str(path)), what=str(path))
    note = path.with_name(f"{_hex(key.id)}.distrusted")
    distrusted = {key.id: _read_distrust(note)} if note.exists() else {}
    return Trusted({key.id: key}, distrusted, str(path))


def _read_distrust(path: Path) -> Distrust:
    try:
        value = loads(read_small(path, str(path)), what=str(path), max_bytes=LIMIT)
    except FormatError as error:
        value = str(error)
    if not isinstance(value, dict) or not all(
        isinstance(value.get(field), str) for field in ("time", "reason")
    ):
        raise KeyFileError(
            f"{path}: expected an object with reason and time, got {value!r:.200}. Remove it, and run `compatkit keys "
            "distrust` again.",
            subject=path,
        )
    return Distrust(value["time"], value["reason"])


def _hex(key: str) -> str:
    return key.partition(":")[2]

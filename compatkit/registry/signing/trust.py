"""Whom a user trusts: a folder of public keys in the user's own configuration, never in a registry.

``<key in hex>.pub`` is trusted; ``<key in hex>.distrusted`` beside it ends that, with time and reason, until it is
removed. Every ``*.pub`` in a folder counts, whatever it is called, so that a team can keep such a folder with its code.

``Trusted.of`` is the only way from what a caller names (a folder, a file, a key) to the keys that count. A key that the
user distrusts never counts, also where the caller names this very key.
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
from compatkit.registry import disk as durable
from compatkit.registry.os_errors import environment
from compatkit.registry.signing import dates
from compatkit.registry.signing.envelope import KEY_ID
from compatkit.registry.signing.keys import LIMIT, PublicKey, check_key_name, read_small

VARIABLE = "COMPATKIT_TRUST"
"""Environment variable that names another folder of trusted keys."""
MOST = 10_000
"""Keys in a folder; more are a mistake."""
_DISTRUSTED = re.compile(r"([0-9a-f]{64})\.distrusted")

Trust: TypeAlias = "Trusted | bool | str | os.PathLike[str] | Iterable[str | os.PathLike[str]] | None"
"""Whom to trust: the user's own folder (True or None), another folder, a file of a public key, a key as
``ed25519:...``, or several of these."""


class TrustWarning(UserWarning):
    """Others may change whom this user trusts."""


@attrs.frozen
class Distrust:
    """When (UTC) and why a key was distrusted."""

    time: str
    reason: str

    def __str__(self) -> str:
        return f"{self.time}: {self.reason}" if self.reason else self.time


@attrs.frozen
class Trusted:
    """The keys whose signatures count.

    Attributes:
        keys: By their identity.
        distrusted: Keys that never count, also if they are among ``keys``.
        source: Where the keys are from, for messages.
    """

    keys: Mapping[str, PublicKey]
    distrusted: Mapping[str, Distrust] = attrs.field(factory=dict)
    source: str = ""

    @classmethod
    def of(cls, trust: Trust = None) -> Trusted:
        """Return the keys that ``trust`` means, without those that the user distrusts; see ``Trust``.

        Raises:
            KeyFileError: There is no such folder or file, or a file in it is no key.
            EnvironmentFailure: It cannot be read.
        """
        found = cls._named(trust)
        own = {} if trust is None or trust is True else Folder.of_user().distrusted()
        return attrs.evolve(found, distrusted={**own, **found.distrusted}) if own else found

    @classmethod
    def _named(cls, trust: Trust) -> Trusted:
        if isinstance(trust, Trusted):
            return trust
        if trust is None or trust is True:
            return Folder.of_user().read()
        if trust is False or trust == "":
            raise KeyFileError(f"Whom to trust is a folder, a file or a key; {trust!r} names nobody.")
        if isinstance(trust, str) and trust.startswith("ed25519:"):
            key = PublicKey.parse(trust)
            return cls({key.id: key}, source=trust)
        if isinstance(trust, (str, os.PathLike)):
            return _at(Path(local(trust, "whom to trust")).expanduser())
        several = [cls._named(one) for one in trust]
        return cls(
            _joined(key for one in several for key in one.keys.values()),
            {key: value for one in several for key, value in one.distrusted.items()},
            ", ".join(one.source for one in several),
        )


@attrs.frozen
class Folder:
    """A folder of trusted keys."""

    path: Path

    @classmethod
    def of_user(cls) -> Folder:
        """Return the folder that COMPATKIT_TRUST names, else that in the user's configuration."""
        if named := os.environ.get(VARIABLE):
            return cls(Path(local(named, "the folder of trusted keys")).expanduser())
        return cls(configuration() / "trusted")

    def read(self) -> Trusted:
        """Return the keys in the folder; none where there is no folder.

        Raises:
            KeyFileError: A file in it is no key, or no note of distrust: nothing is guessed.
            EnvironmentFailure: It cannot be read.
        """
        names = self._names()
        paths = [self.path / one for one in names if one.endswith(".pub") and not one.startswith(".")]
        keys = [PublicKey.from_bytes(read_small(one, str(one)), what=str(one)) for one in paths]
        return Trusted(_joined(keys), self._notes(names), str(self.path))

    def distrusted(self) -> dict[str, Distrust]:
        """Return when and why keys were distrusted; no other file is read.

        Raises:
            KeyFileError: A file is no note of distrust: nothing is guessed.
            EnvironmentFailure: It cannot be read.
        """
        return self._notes(self._names())

    def _notes(self, names: Iterable[str]) -> dict[str, Distrust]:
        found = (match for name in names if (match := _DISTRUSTED.fullmatch(name)))
        return {f"ed25519:{one[1]}": _note(self.path / one[0]) for one in found}

    def trust(
        self, key: PublicKey, *, name: str | None = None, expires: datetime | None = None, again: bool = False
    ) -> PublicKey:
        """Trust a key from now on.

        Args:
            key: Came from its owner, another way than the registry.
            name: What to call it; None keeps its own.
            expires: When to stop; None keeps its own end.
            again: Trust it although it was distrusted.

        Raises:
            KeyFileError: It was distrusted, or has no name, or one that it cannot have.
            EnvironmentFailure: It cannot be written.
        """
        kept = PublicKey(key.id, check_key_name(name or key.name or "unnamed"), expires or key.expires)
        before = self.distrusted().get(key.id)
        if before is not None and not again:
            raise KeyFileError(
                f"{kept} was distrusted on {before}. Trust it with --again only if its owner tells you why.",
                subject=key.id,
            )
        self._write(f"{_hex(key.id)}.pub", kept.to_bytes())
        if before is not None:
            note = self.path / f"{_hex(key.id)}.distrusted"
            with environment("remove", note):
                os.unlink(note)
                durable.sync_folder(self.path)
        return kept

    def distrust(self, which: str, reason: str = "") -> PublicKey:
        """Trust a key no more, for good; its name stays known for messages.

        Args:
            which: Its name, identity, or the beginning of its hex digits.
            reason: Shown with each signature by the key.

        Raises:
            UnknownName: No key, or several, are called so.
            EnvironmentFailure: It cannot be written.
        """
        key = self.find(which)
        if key.id not in self.distrusted():
            note = {"reason": reason, "time": dates.written(dates.now())}
            self._write(f"{_hex(key.id)}.distrusted", dumps(note))
        return key

    def find(self, which: str) -> PublicKey:
        """Return the key that a name, an identity or the beginning of its digits means.

        Raises:
            UnknownName: None, or several.
        """
        known = self.read().keys
        if KEY_ID.fullmatch(which):
            return known.get(which) or PublicKey(which)
        digits = which.removeprefix("ed25519:")
        found = [one for one in known.values() if one.name == which]
        found = found or [
            one for one in known.values() if len(digits) >= 8 and _hex(one.id).startswith(digits)
        ]
        if len(found) == 1:
            return found[0]
        told = "; ".join(map(str, found or known.values())) or "none"
        raise UnknownName(
            f"{which!r:.80} is {'no key' if not found else f'the name of {len(found)} keys'} in {self.path}; "
            f"{'name one by its digits' if found else 'there are'}: {told}.",
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
                f"everybody may write into {self.path}, and so change whom you trust: chmod o-w {self.path}",
                TrustWarning,
                stacklevel=4,
            )
        if len(names) > MOST:
            raise KeyFileError(f"{self.path} holds {len(names)} files; at most {MOST} are read as keys.")
        return names

    def _write(self, name: str, data: bytes) -> None:
        with environment("make", self.path):
            self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        durable.replace_file(self.path / name, data)


def _joined(keys: Iterable[PublicKey]) -> dict[str, PublicKey]:
    """Return keys by their identity; one that is there twice ends where the first of both does."""
    found: dict[str, PublicKey] = {}
    for key in keys:
        before = found.get(key.id, key)
        ends = [one.expires for one in (before, key) if one.expires is not None]
        found[key.id] = attrs.evolve(before, expires=min(ends) if ends else None)
    return found


def configuration() -> Path:
    """Return the user's own folder for what is no cache."""
    from platformdirs import user_config_path

    return user_config_path("compatkit", appauthor=False)


def _at(path: Path) -> Trusted:
    if path.is_dir():
        return Folder(path).read()
    if not path.exists():
        raise KeyFileError(
            f"Whom to trust: there is no folder or file {path}. Name a folder of public keys (*.pub), a file of one, "
            "or a key 'ed25519:...'.",
            subject=path,
        )
    key = PublicKey.from_bytes(read_small(path, str(path)), what=str(path))
    note = path.with_name(f"{_hex(key.id)}.distrusted")
    distrusted = {key.id: _note(note)} if note.exists() else {}
    return Trusted({key.id: key}, distrusted, str(path))


def _note(path: Path) -> Distrust:
    try:
        value = loads(read_small(path, str(path)), what=str(path), max_bytes=LIMIT)
    except FormatError as error:
        value = str(error)
    if not isinstance(value, dict) or not all(isinstance(value.get(one), str) for one in ("time", "reason")):
        raise KeyFileError(
            f"{path} should hold when and why the key was distrusted ({{'reason': '', 'time': ''}}), got "
            f"{value!r:.200}. Remove it, and write it anew with `compatkit keys distrust`.",
            subject=path,
        )
    return Distrust(value["time"], value["reason"])


def _hex(key: str) -> str:
    return key.partition(":")[2]

"""Whom a user trusts: a folder of public keys in the user's own configuration, never in a registry.

``<key in hex>.pub`` is trusted; ``<key in hex>.distrusted`` beside it ends that, with time and reason, until it is
removed. Every ``*.pub`` in a folder counts, whatever it is called, so that a team can keep such a folder with its code.
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

from compatkit.contracts.codec import dumps, loads
from compatkit.errors import FormatError, KeyFileError, UnknownName
from compatkit.registry import disk as durable
from compatkit.registry.os_errors import environment
from compatkit.registry.signing import moments
from compatkit.registry.signing.envelope import KEY_ID
from compatkit.registry.signing.keyfiles import LIMIT, PublicKey, check_key_name, read_small

VARIABLE = "COMPATKIT_TRUST"
"""Environment variable that names another folder of trusted keys."""
MOST = 10_000
"""Keys in a folder; more are a mistake."""
_DISTRUSTED = re.compile(r"([0-9a-f]{64})\.distrusted")

Trust: TypeAlias = "Trusted | bool | str | os.PathLike[str] | Iterable[str | os.PathLike[str]] | None"
"""What says whom to trust: the user's own folder (True or None), another folder, a file of a public key, a key as
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
        distrusted: Keys that do not count any more, also if they are among ``keys``.
        source: Where they are from, for messages.
    """

    keys: Mapping[str, PublicKey]
    distrusted: Mapping[str, Distrust] = attrs.field(factory=dict)
    source: str = ""

    @classmethod
    def of(cls, trust: Trust = None) -> Trusted:
        """Return whom ``trust`` means; see ``Trust``.

        Raises:
            KeyFileError: There is no such folder or file, or a file in it is no key.
            EnvironmentFailure: It cannot be read.
        """
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
            return _at(Path(trust).expanduser())
        several = [cls.of(one) for one in trust]
        return cls(
            joined(key for one in several for key in one.keys.values()),
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
            return cls(Path(named).expanduser())
        return cls(configuration() / "trusted")

    def read(self) -> Trusted:
        """Return the keys in the folder; none where there is no folder.

        Raises:
            KeyFileError: A file in it is no key, or no note of distrust: nothing is guessed.
            EnvironmentFailure: It cannot be read.
        """
        keys: list[PublicKey] = []
        distrusted: dict[str, Distrust] = {}
        for name in self._names():
            path = self.path / name
            if match := _DISTRUSTED.fullmatch(name):
                distrusted[f"ed25519:{match[1]}"] = _distrust(path)
            elif name.endswith(".pub") and not name.startswith("."):
                keys.append(PublicKey.from_bytes(read_small(path, str(path)), what=str(path)))
        return Trusted(joined(keys), distrusted, str(self.path))

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
        before = self.read().distrusted.get(key.id)
        if before is not None and not again:
            raise KeyFileError(
                f"{kept} was distrusted on {before}. Trust it with --again only if its owner tells you why.",
                subject=key.id,
            )
        self._write(f"{_hex(key.id)}.pub", kept.to_bytes())
        if before is not None:
            with environment("remove", self._distrusted(key.id)):
                os.unlink(self._distrusted(key.id))
                durable.sync_folder(self.path)
        return kept

    def distrust(self, which: str, reason: str = "") -> PublicKey:
        """Trust a key no more, for good; its name stays known for messages.

        Args:
            which: Its name, identity, or the beginning of its hex digits.
            reason: Shown to whoever meets a signature of it.

        Raises:
            UnknownName: No key, or several, are called so.
            EnvironmentFailure: It cannot be written.
        """
        key = self.find(which)
        if key.id not in self.read().distrusted:
            note = {"reason": reason, "time": moments.written(moments.now())}
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

    def _distrusted(self, key: str) -> Path:
        return self.path / f"{_hex(key)}.distrusted"

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


def joined(keys: Iterable[PublicKey]) -> dict[str, PublicKey]:
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
    return Trusted({key.id: key}, source=str(path))


def _distrust(path: Path) -> Distrust:
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

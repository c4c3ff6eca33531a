"""Named remotes: addresses with options that the user saved, one file each in the user's configuration.

``NAME:`` stands for the address wherever a remote is accepted. A registry never holds such a file.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs

from compatkit.errors import CompatkitError, FormatError, UnknownName, UsageError, near
from compatkit.foundation.addresses import FILES, REMOTE, is_url, normalized, remote_name, shown
from compatkit.foundation.codec import dumps, loads
from compatkit.foundation.configuration import configuration
from compatkit.foundation.credentials import has_secret
from compatkit.registry import disk as durable
from compatkit.registry.os_errors import environment

LIMIT = 2**16
"""Maximum size of a saved remote in bytes."""
_KEYS = frozenset(("address", "options", "trusted"))
_SECRET_OPTION = re.compile(
    r"secret|password|passwd|passphrase|token|credential|auth|cookie|private|(^|_)(key|pkey|pass|sas|headers)$",
    re.I,
)
_SWITCH = re.compile(r"allow_|look_for_|use_", re.I)
"""Options that only say whether secrets are looked for elsewhere."""


@attrs.frozen
class SavedRemote:
    """A remote that the user saved.

    Attributes:
        address: Address, or absolute path of a folder; without secrets.
        options: Keyword arguments for the plugin of the address.
        trusted: Whether pulls follow its moves of aliases and its withdrawals.
    """

    address: str
    options: Mapping[str, Any] = attrs.field(factory=dict)
    trusted: bool = False

    @classmethod
    def of(
        cls, address: str, options: Mapping[str, Any] | None = None, *, trusted: bool = False
    ) -> SavedRemote:
        """Check what is to be saved; nothing is contacted.

        Args:
            address: Address, or path of a folder.
            options: Keyword arguments for the plugin of the address.
            trusted: Whether pulls follow its moves of aliases and its withdrawals.

        Raises:
            UsageError: The address is malformed, or a secret would be saved; or options are given for a folder.
        """
        if (name := remote_name(address)) is not None:
            raise UsageError(f"{name}: is a name itself; expected an address or a folder.", subject=address)
        text, options = normalized(address), dict(options or {})
        _check_no_secret(text, options)
        if not is_url(text):
            if options:
                raise UsageError(f"{text} is a folder, which takes no options ({', '.join(options)}).")
            text = str(Path(text).expanduser().absolute())
        return cls(text, options, trusted)

    @classmethod
    def read(cls, path: Path) -> SavedRemote | None:
        """Return the content of a file; None if there is none.

        Raises:
            FormatError: It is malformed.
            EnvironmentFailure: It cannot be read.
        """
        with environment("read", path):
            try:
                with open(path, "rb") as file:
                    data = file.read(LIMIT + 1)
            except FileNotFoundError:
                return None
        value = loads(data, what=str(path), max_bytes=LIMIT)
        kinds = {"address": str, "options": dict, "trusted": bool}
        if (
            not isinstance(value, dict)
            or value.keys() != _KEYS
            or not all(type(value[key]) is kind for key, kind in kinds.items())
        ):
            raise FormatError(
                f"{path}: expected an object with address, options and trusted, got {value!r:.200}. Remove the file, "
                "and save the remote again.",
                subject=path,
            )
        return cls.of(value["address"], value["options"], trusted=value["trusted"])

    def write(self, path: Path, *, replace: bool) -> bool:
        """Write a file that only the user can read, in one step; return False if it exists and is not replaced.

        Args:
            path: Path of the file.
            replace: Whether to replace an existing file.

        Raises:
            EnvironmentFailure: It cannot be written; an existing file is unchanged.
        """
        with environment("write", path):
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor, draft = tempfile.mkstemp(prefix=".", suffix=".part", dir=path.parent)  # mode 0600
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(dumps(self.to_json()))
                    file.flush()
                    os.fsync(file.fileno())
                if replace:
                    os.replace(draft, path)
                else:
                    os.link(draft, path)
                durable.sync_folder(path.parent)
            except FileExistsError:
                return False
            finally:
                with suppress(FileNotFoundError):
                    os.unlink(draft)
        return True

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {"address": self.address, "options": dict(self.options), "trusted": self.trusted}

    def __str__(self) -> str:
        return shown(self.address)


def add(name: str, remote: SavedRemote, *, replace: bool = False) -> None:
    """Save a remote under a name.

    Args:
        name: Name, without the colon.
        remote: Address, options and trust.
        replace: Whether to replace a remote of this name.

    Raises:
        UsageError: The name is malformed, or taken and ``replace`` is False.
        EnvironmentFailure: The configuration cannot be written.
    """
    path = _path(_check(name))
    if not remote.write(path, replace=replace):
        raise UsageError(
            f"{name}: is {_described(name)} already. Choose another name, or replace it (--replace).",
            subject=name,
        )


def remove(name: str) -> None:
    """Forget a named remote; the remote itself is not touched.

    Raises:
        UnknownName: There is no such name.
        EnvironmentFailure: The configuration cannot be written.
    """
    path = _path(_check(name))
    with environment("remove", path):
        try:
            os.unlink(path)
        except FileNotFoundError:
            raise _unknown(name) from None
        durable.sync_folder(path.parent)


def get(name: str) -> SavedRemote:
    """Return the remote of a name.

    Args:
        name: Name, without the colon.

    Raises:
        UnknownName: There is no such name.
        FormatError: Its file is malformed.
        EnvironmentFailure: Its file cannot be read.
    """
    remote = SavedRemote.read(_path(_check(name)))
    if remote is None:
        raise _unknown(name)
    return remote


def find(address: object) -> SavedRemote | None:
    """Return the saved remote that ``NAME:`` stands for; None if the address is not written like that.

    Raises:
        UnknownName: There is no such name.
    """
    name = remote_name(address)
    return None if name is None else get(name)


def names() -> list[str]:
    """Return the names of all saved remotes, sorted.

    Raises:
        EnvironmentFailure: The configuration cannot be read.
    """
    return sorted(_listed())


def suggestion(path: Path) -> str:
    """Return a sentence about the remote with the name of a folder that is no registry; empty if there is none."""
    with suppress(CompatkitError):
        if path.name in _listed():
            return f" The remote of this name is written {path.name}: with a colon."
    return ""


def _listed() -> Iterator[str]:
    folder = configuration() / "remotes"
    with environment("read", folder):
        entries = os.listdir(folder) if folder.is_dir() else []
    for entry in entries:
        if entry.endswith(".json") and remote_name(f"{entry.removesuffix('.json')}:") is not None:
            yield entry.removesuffix(".json")


def _path(name: str) -> Path:
    return configuration() / "remotes" / f"{name}.json"


def _check(name: str) -> str:
    if name in REMOTE | FILES:
        raise UsageError(f"{name} is the scheme of an address; choose another name.", subject=name)
    if remote_name(f"{name}:") is None:
        raise UsageError(
            f"Expected a name of 2 to 64 lower-case letters, digits, '-' and '_' that begins with a letter, such as "
            f"team, got {name!r:.80}.",
            subject=name,
        )
    return name


def _described(name: str) -> str:
    try:
        return str(get(name))
    except CompatkitError as error:
        return f"unreadable ({error})"


def _unknown(name: str) -> UnknownName:
    known = names()
    close = near(name, known, 1) or known[:5]
    listing = f"Saved are {', '.join(f'{other}:' for other in close)}" if close else "None is saved"
    return UnknownName(
        f"There is no remote {name}:. {listing}; `compatkit remote add {name} ADDRESS` saves it. A folder of this name "
        f"is written ./{name}:",
        subject=f"{name}:",
    )


def _check_no_secret(address: str, options: Mapping[str, Any]) -> None:
    """Raise if an address or an option looks like it has a secret, which would lie in a file."""
    if has_secret(address):
        plain = shown(address).partition("?")[0]
        raise UsageError(
            f"{plain} comes with a user, password or signature, which is not saved. Leave it out, and use the "
            "credentials of the back end: its environment variables, files or agent (docs/reference/remotes.md).",
            subject=plain,
        )
    for key, value in options.items():
        nested = value if isinstance(value, Mapping) else {}
        for word in (key, *map(str, nested)):
            if _SECRET_OPTION.search(word) and not (isinstance(value, bool) or _SWITCH.match(word)):
                raise UsageError(
                    f"The option {key} may hold a secret, which is not saved. Leave it out, and use the credentials of "
                    "the back end: its environment variables, files or agent (docs/reference/remotes.md).",
                    subject=key,
                )
        _check_nested(key, value)


def _check_nested(key: str, value: Any) -> None:
    """Refuse secrets in addresses among the values of an option, such as a proxy's."""
    values = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else [value]
    for text in values:
        if isinstance(text, Mapping | list):
            _check_nested(key, text)
        elif isinstance(text, str) and "://" in text:
            _check_no_secret(text, {})

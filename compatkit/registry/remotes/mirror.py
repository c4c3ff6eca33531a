"""Names and versions of a remote, mirrored into a scratch folder: they are then read by the rules of any registry.

Only paths that a registry may have are mirrored, so that nothing is written elsewhere; what is too long for its kind is
cut off, so that whoever reads it refuses it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

import attrs

from compatkit.errors import InvalidName
from compatkit.registry import cache
from compatkit.registry.names import VERSION, check_alias, check_name
from compatkit.registry.os_errors import environment
from compatkit.registry.refs import LIMIT, References
from compatkit.registry.remotes.files import Files

_NUMBER = re.compile("[1-9][0-9]{0,8}")
_LISTED = ".listed"
"""A file that stands for the versions of a name that were listed and not fetched; it is no version."""


def scratch() -> TemporaryDirectory[str]:
    """Return a new folder of this process, in the user's cache folder if that can be written.

    Raises:
        EnvironmentFailure: The system's folder for temporary files cannot be written either.
    """
    try:
        cache.above().mkdir(parents=True, exist_ok=True)
        return TemporaryDirectory(prefix="remote-", dir=cache.above())
    except OSError:
        with environment("make a folder beside", cache.above()):
            return TemporaryDirectory(prefix="compatkit-")


def mirrored(root: Path, path: str, data: bytes) -> None:
    """Write a file into a scratch folder.

    Raises:
        EnvironmentFailure: It cannot be written.
    """
    with environment("write", root / path):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)


@attrs.define(eq=False)
class Mirror:
    """What lies below ``refs`` in a remote.

    Attributes:
        files: Of the remote.
        listed: Paths of versions, tombstones, aliases and moves by the name that they belong to.
        fetched: Names whose files are here.
        references: Reads what is here.
    """

    files: Files
    listed: dict[str, list[str]] = attrs.field(factory=dict)
    fetched: set[str] = attrs.field(factory=set)
    references: References = attrs.field(init=False)
    _folder: TemporaryDirectory[str] = attrs.field(init=False, factory=scratch)

    def __attrs_post_init__(self) -> None:
        """Look at nothing yet."""
        self.references = References(self.root)

    @property
    def root(self) -> Path:
        """The scratch folder."""
        return Path(self._folder.name)

    def refresh(self) -> None:
        """List all names anew; nothing that was fetched counts any more."""
        self.close()
        self._folder = scratch()
        self.references = References(self.root)
        self.fetched.clear()
        found: dict[str, list[str]] = defaultdict(list)
        for path in self.files.listed("refs"):
            if (name := owner(path)) is not None:
                found[name].append(path)
        self.listed = {name: sorted(paths) for name, paths in found.items()}
        for name in self.names():
            mirrored(self.root, f"refs/{name}/@versions/{_LISTED}", b"")

    def names(self) -> list[str]:
        """Return all names that have a version, sorted."""
        return sorted(
            name for name, paths in self.listed.items() if any("/@versions/" in path for path in paths)
        )

    def fetch(self, names: Iterable[str]) -> None:
        """Fetch the files of names that are listed, many at once."""
        wanted = [name for name in sorted(set(names) - self.fetched) if name in self.listed]
        paths = [path for name in wanted for path in self.listed[name]]
        for path, content in self.files.at_once(lambda path: self.files.read(path, 0, LIMIT + 1), paths):
            if content is not None:
                mirrored(self.root, path, content)
        self.fetched.update(wanted)

    def close(self) -> None:
        """Remove the scratch folder."""
        self._folder.cleanup()


def owner(path: str) -> str | None:
    """Return the name that a path below ``refs`` belongs to; None if no registry has such a file."""
    name, mark, rest = path.removeprefix("refs/").partition("/@")
    parts = rest.split("/")
    try:
        if not mark or not check_name(name):
            return None
        if parts[0] in ("versions", "tombstones"):
            return name if len(parts) == 2 and VERSION.fullmatch(parts[1]) else None
        if parts[0] == "aliases":
            return name if len(parts) == 2 and check_alias(parts[1]) else None
        if parts[0] == "log" and len(parts) == 3 and _NUMBER.fullmatch(parts[2]):
            return name if check_alias(parts[1]) else None
    except InvalidName:
        return None
    return None

"""The changes that a repair is made of: each looks again before it acts, is atomic, and deletes nothing.

What stood in a place goes to ``quarantine/``, or a second name of it does, before anything else takes the place. A
crash between two steps leaves more files there, never fewer elsewhere, and the same repair can be made again.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import attrs

from compatkit.errors import IntegrityError
from compatkit.registry import disk as durable
from compatkit.registry.maintenance.contents import PIECE, read_content
from compatkit.registry.os_errors import environment

Doubt = Callable[[Path], bool]
"""Whether what is at a path is still damaged."""


@attrs.frozen
class Mender:
    """Changes files below a root.

    Attributes:
        root: Of the registry.
    """

    root: Path

    def set_aside(self, path: str, damaged: Doubt) -> bool:
        """Move a damaged file to ``quarantine``; False if it is gone or no longer damaged."""
        full = self.root / path
        with environment("move to quarantine", full):
            durable.check_folders(full.parent, self.root)
            if not os.path.lexists(full) or not damaged(full):
                return False
            away = self._away(full)
            durable.move(full, away)
            durable.sync_folder(away.parent)
            durable.sync_folder(full.parent)
        return True

    def rewrite(self, path: str, data: bytes, damaged: Doubt) -> bool:
        """Put other content in the place of a damaged file, in one step; a second name of the old one is kept.

        A folder that stands there cannot be replaced in one step; it is moved away first.
        """
        full = self.root / path
        with environment("rewrite", full):
            durable.make_folder(full.parent, self.root)
            if os.path.lexists(full):
                if not damaged(full):
                    return False
                self._keep(full)
            durable.replace_file(full, data, root=self.root)
            durable.sync_up(full.parent, self.root)
        return True

    def create(self, path: str, data: bytes) -> bool:
        """Create a small file; False if there is one."""
        with environment("create", self.root / path):
            return durable.create_once(self.root / path, data, self.root)

    def put_back(self, place: str, digest: str, origin: str) -> bool:
        """Move a blob from where it lies to its place; False if something is there already.

        Raises:
            IntegrityError: It is not the blob.
        """
        full, source = self.root / place, self.root / origin
        with environment("put back", full):
            durable.check_folders(source.parent, self.root)
            durable.make_folder(full.parent, self.root)
            if os.path.lexists(full):
                return False
            actual = read_content(source, self.root, lambda size: None).digest
            if actual != digest:
                raise _other_bytes(source, digest, actual)
            self.give_rights(origin, self._readable())
            durable.move(source, full)
            durable.sync_up(full.parent, self.root)
            durable.sync_folder(source.parent)
        return True

    def copy_in(self, place: str, digest: str, source: Path, root: Path) -> bool:
        """Copy a blob from another registry, in pieces; False if something is in its place already.

        Args:
            place: Where it belongs.
            digest: What its bytes must be.
            source: The file in the other registry.
            root: Of the other registry.

        Raises:
            IntegrityError: The other registry has other bytes.
        """
        full = self.root / place
        with environment("copy to", full):
            durable.make_folder(full.parent, self.root)
            durable.make_folder(self.root / "tmp", self.root)
            if os.path.lexists(full):
                return False
            draft = durable.temporary(self.root / "tmp")
            pieces = _pieces(source, root)
            (actual,) = durable.write(draft, pieces, root=self.root, meanwhile=[lambda: _digest(draft)])
            try:
                if actual != digest:
                    raise _other_bytes(source, digest, actual)
                if not durable.link(draft, full):
                    durable.move(draft, full)
                durable.sync_up(full.parent, self.root)
            except FileExistsError:
                return False
            finally:
                durable.discard(draft)
        return True

    def give_rights(self, path: str, mode: int) -> bool:
        """Give a file or folder these rights; False if it has them."""
        full = self.root / path
        with environment("change the rights of", full):
            durable.check_folders(full.parent, self.root)
            try:
                state = os.lstat(full)
            except FileNotFoundError:
                return False  # it was moved away
            if stat.S_ISLNK(state.st_mode) or stat.S_IMODE(state.st_mode) == mode:
                return False
            durable.step("chmod", full)
            os.chmod(full, mode)
        return True

    def make_folder(self, path: str) -> bool:
        """Make a folder; False if it is there."""
        full = self.root / path
        with environment("make", full):
            if full.is_dir():
                return False
            durable.make_folder(full, self.root)
            durable.sync_up(full.parent, self.root)
        return True

    def _readable(self) -> int:
        return stat.S_IMODE(os.stat(self.root).st_mode) & 0o444

    def _away(self, path: Path) -> Path:
        folder = self.root / "quarantine"
        durable.make_folder(folder, self.root)
        return folder / f"{path.name[:128]}-{durable.temporary(folder).name}"

    def _keep(self, path: Path) -> None:
        """Give a damaged file a second name in ``quarantine``; where that is not possible, move or copy it there."""
        away, mode = self._away(path), os.lstat(path).st_mode
        if stat.S_ISDIR(mode):
            durable.move(path, away)
        elif not durable.link(path, away):
            found = durable.read(path, self.root) if stat.S_ISREG(mode) else None
            if found is None:
                durable.move(path, away)
            else:
                durable.write(away, [found[0]], root=self.root)
        durable.sync_folder(away.parent)


def _pieces(path: Path, root: Path) -> Iterator[bytes]:
    """Yield the content of a file of a registry; it is read as it is asked for."""
    descriptor = durable.open_plain(path, root)
    if descriptor is None:
        raise FileNotFoundError(2, os.strerror(2), str(path))
    with os.fdopen(descriptor, "rb") as file:
        while piece := file.read(PIECE):
            yield piece


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


def _other_bytes(path: Path, expected: str, actual: str) -> IntegrityError:
    return IntegrityError(
        f"{path} was to be taken for {expected}, but holds {actual}; it is left where it is. Name another copy of the "
        "registry (--from ROOT), or publish the component again.",
        subject=path,
    )

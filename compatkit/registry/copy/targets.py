"""Where components shall be too: what can be written, in terms that a folder and an object store have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import attrs

from compatkit.registry import disk as durable
from compatkit.registry.copy.closure import Carrier
from compatkit.registry.copy.sources import Folder, Source
from compatkit.registry.copy.transfer import Transfer
from compatkit.registry.names import Version
from compatkit.registry.os_errors import environment

if TYPE_CHECKING:
    from compatkit.registry.store import Store


@attrs.frozen
class Note:
    """A small file that is created once, with its whole content.

    Attributes:
        path: Relative to the registry.
        data: Its content.
        ready: Sees to it that what it refers to is there.
    """

    path: str
    data: bytes
    ready: Callable[[], object] | None = None


class Target(Source):
    """A registry that components can be copied to.

    Attributes:
        examines: Whether what is there already is held against what a new manifest promises of it.
    """

    examines = False

    @abstractmethod
    def begin(self) -> None:
        """Make it a registry if it is none yet.

        Raises:
            LayoutError: It is one that this version may not write.
            EnvironmentFailure: It cannot be written.
        """

    @abstractmethod
    def lacking(self, sizes: Mapping[str, int | None]) -> list[str]:
        """Return which blobs are not there, or have another size than expected (None: any)."""

    @abstractmethod
    def carrier(self, source: Source, arrived: Callable[[int], None]) -> Carrier:
        """Return what takes blobs from a source to here; ``arrived`` is told of bytes, and may raise to stop."""

    def settle(self) -> None:
        """See that what was brought is there, before anything refers to it."""

    @abstractmethod
    def create(self, notes: Sequence[Note]) -> set[str]:
        """Create small files that must not exist, and return the paths that were taken.

        Raises:
            EnvironmentFailure: They cannot be written.
        """

    @abstractmethod
    def replace(self, path: str, data: bytes) -> None:
        """Put a small file in the place of another, or of none."""

    @abstractmethod
    def remove(self, path: str) -> None:
        """Remove a small file, if it is there."""

    @abstractmethod
    def digest_now(self, name: str, version: Version) -> str | None:
        """Return the manifest digest that a version points at, as of now.

        Raises:
            IntegrityError: The file does not hold a digest.
        """


@attrs.frozen(eq=False)
class IntoFolder(Folder, Target):
    """A registry in a folder, into which components come.

    Attributes:
        store: The registry.
        resumes: Whether what has come of a large blob is kept where the source fails.
    """

    store: Store
    resumes: bool = True
    examines = True

    def begin(self) -> None:
        """See that it may be written."""
        self.store.layout.check_writer(self.store.root)

    def lacking(self, sizes: Mapping[str, int | None]) -> list[str]:
        """Return which blobs are not here, or have another size than expected."""
        there = {one: self.store.objects.size(one) for one in sizes}
        return [one for one, size in sizes.items() if there[one] is None or size not in (None, there[one])]

    def carrier(self, source: Source, arrived: Callable[[int], None]) -> Transfer:
        """Return what copies blobs into this registry."""
        return Transfer(source, self.store.objects, resumes=self.resumes, arrived=arrived)

    def create(self, notes: Sequence[Note]) -> set[str]:
        """Create small files that must not exist, one after the other, durably."""
        taken: set[str] = set()
        for note in notes:
            path = self.root / note.path
            with environment("create", path):
                if not durable.create_once(path, note.data, self.root, note.ready):
                    taken.add(note.path)
        return taken

    def replace(self, path: str, data: bytes) -> None:
        """Put a small file in the place of another, atomically."""
        with environment("create", self.root / path):
            durable.make_folder((self.root / path).parent, self.root)
        durable.replace_file(self.root / path, data, root=self.root)

    def remove(self, path: str) -> None:
        """Remove a small file."""
        durable.discard(self.root / path)

    def digest_now(self, name: str, version: Version) -> str | None:
        """Return the manifest digest that a version points at."""
        return self.store.references.digest(name, version)

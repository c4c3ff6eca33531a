"""Copying one blob of this machine to a remote, verified before it leaves."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from compatkit.errors import EnvironmentFailure
from compatkit.registry.blobs import Objects
from compatkit.registry.copy.places import Examine, check_size, place
from compatkit.registry.remotes.files import Files

LARGE = 2**23
"""Bytes; larger blobs are uploaded from their file, in parts where the back end takes parts."""


@attrs.frozen(eq=False)
class Upload:
    """Copies blobs to a remote.

    Attributes:
        source: Blobs of this machine's registry.
        files: Of the remote.
        there: Bytes that the remote has for digests, as far as that is known; kept up to date.
        arrived: Told how many bytes have left; may raise to stop.
    """

    source: Objects
    files: Files
    there: dict[str, int | None]
    arrived: Callable[[int], None]

    def holds(self, digest: str) -> bool:
        """Tell whether the remote has a blob."""
        return self.there.get(digest) is not None

    def bring(self, digest: str, size: int | None, whose: str, examine: Examine | None = None) -> bool:
        """See to it that the remote has a blob; True if it was copied.

        Raises:
            IntegrityError: It is missing or damaged here, or of another size than its manifest says.
            EnvironmentFailure: It cannot be read or written.
        """
        data = memoryview(self.source.view(digest))
        check_size(digest, size, len(data), whose)
        if self.there.get(digest) == len(data):
            return False
        path = place(digest)
        if len(data) <= LARGE:
            self.files.put(path, bytes(data))
            self.arrived(len(data))
        else:
            self._upload(path, digest, len(data))
        self.there[digest] = len(data)
        return True

    def _upload(self, path: str, digest: str, size: int) -> None:
        self.files.upload(path, self.source.path(digest), self.arrived)
        came = self.files.size(path)
        if came != size:
            raise EnvironmentFailure(
                f"{self.files.url}/{path} should have {size} bytes after it was written, it has {came}. "
                "The same command goes on where it was.",
                subject=path,
            )

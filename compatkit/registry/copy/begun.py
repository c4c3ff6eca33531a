"""What has come of a large blob, kept where its source failed, so that the next call goes on behind it.

A draft is named ``<process>-<16 hex>``; one that is kept ends in the first digits of its digest. Nobody writes into a
file of that name: who goes on gives it a name of its own first, which only one process can do. What is kept is not
trusted: the whole is hashed. A collection of garbage deletes it like any other draft.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import attrs

from compatkit.errors import IntegrityError
from compatkit.registry import disk as durable

_PROCESS = re.compile("[1-9][0-9]{0,9}")


class Hash(Protocol):
    """A hash that is fed piece by piece."""

    def update(self, data: bytes, /) -> None:
        """Go on with further bytes."""
        ...

    def hexdigest(self) -> str:
        """Return the digest of what came so far."""
        ...


@attrs.define(eq=False)
class Begun:
    """The draft of one blob.

    Attributes:
        root: Of the registry that the blob comes into.
        draft: Where the blob is written, in ``tmp``.
        digest: Of the blob.
        count: Bytes that an earlier call left.
    """

    root: Path
    draft: Path
    digest: str
    count: int = 0

    def take(self, size: int | None) -> Hash | None:
        """Take over what an earlier call left, as the draft; return its hash, None if there is nothing of use."""
        for kept in self._kept():
            try:
                durable.move(kept, self.draft)
                hashed = hashlib.sha256()
                for piece in self._pieces():
                    hashed.update(piece)
                    self.count += len(piece)
            except (OSError, IntegrityError):
                self.forget()  # another process was faster, or it is no file that can be read
                continue
            if self.count and (size is None or self.count <= size):
                return hashed
            self.forget()
        return None

    def forget(self) -> None:
        """Begin with the first byte."""
        durable.discard(self.draft)
        self.count = 0

    def write(self, pieces: Iterable[durable.Buffer]) -> None:
        """Append pieces; where they end with an error that is not this disk's, what has come is kept."""
        try:
            durable.extend(self.draft, pieces, root=self.root)
        except (OSError, IntegrityError):
            raise  # a full disk wants its room back, and wrong bytes are of no use
        except BaseException:
            self._keep()
            raise

    def _keep(self) -> None:
        with suppress(OSError):
            if os.lstat(self.draft).st_size >= durable.CHUNK:
                durable.move(self.draft, self.draft.with_name(f"{os.getpid()}-{self._mark}"))

    @property
    def _mark(self) -> str:
        return self.digest.removeprefix("sha256:")[:16]

    def _kept(self) -> list[Path]:
        found = sorted(self.draft.parent.glob(f"*-{self._mark}"))
        return [path for path in found if _PROCESS.fullmatch(path.name.removesuffix(f"-{self._mark}"))]

    def _pieces(self) -> Iterator[bytes]:
        descriptor = durable.open_plain(self.draft, self.root)
        if descriptor is None:
            raise FileNotFoundError(self.draft)
        try:
            while piece := os.read(descriptor, durable.CHUNK):
                yield piece
        finally:
            os.close(descriptor)

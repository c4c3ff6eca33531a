"""What must be kept: every digest that can be reached from a reference, found in the files alone.

Nothing is decided by what kind of bytes a digest is said to be: a digest is kept or it is not.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection
from pathlib import Path

import attrs

from compatkit.contracts.codec import MAX_BYTES
from compatkit.contracts.codec import digest as digest_of
from compatkit.errors import FormatError, IntegrityError
from compatkit.registry import disk as durable
from compatkit.registry.documents import Found, How, names
from compatkit.registry.gc.peeking import entries, opened
from compatkit.registry.gc.roots import Root, Roots
from compatkit.registry.os_errors import environment

Progress = Callable[[int, int, str], None]

LOOKS = 4
"""How often everything is looked at where something is missing."""
PAUSE = 0.05
"""Seconds between two looks: without hard links a version can be seen before its publisher has looked back, who then
puts what was collected meanwhile again, or takes the version away."""
_PEEK = 2**16


@attrs.frozen
class Marks:
    """What a look at the files found.

    Attributes:
        alive: Digests that must be kept.
        spared: Weights that nothing but long withdrawn versions uses; in ``alive`` too, unless they may go.
        versions: Number of versions, withdrawn ones included.
        empty: Folders for references and results that hold nothing.
    """

    alive: frozenset[str]
    spared: frozenset[str]
    versions: int
    empty: tuple[Path, ...]


class _Missing(IntegrityError):
    """What something refers to is not there."""


@attrs.define(eq=False)
class Marker:
    """Finds what must be kept; documents are read once, however often it looks.

    Attributes:
        root: Of the registry.
        lost: Digests whose loss the caller accepts: that they cannot be read is no reason to stop.
    """

    root: Path
    lost: frozenset[str] = frozenset()
    _documents: dict[str, tuple[Found, ...]] = attrs.field(factory=dict, init=False)
    _trash: dict[str, list[str]] = attrs.field(factory=dict, init=False)
    _shards: set[str] = attrs.field(factory=set, init=False)
    _blobs: str = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._blobs = f"{self.root}/blobs/sha256"

    def mark(
        self,
        intent: Callable[[str, os.stat_result], bool],
        withdrawn: Callable[[os.stat_result], bool] | None = None,
        progress: Progress | None = None,
        known: Collection[str] | None = None,
    ) -> Marks:
        """Look at everything that refers to something.

        Args:
            intent: Whether a draft in ``tmp`` still counts, by its name and state.
            withdrawn: Whether a tombstone is old enough that the weights of its version may go; None keeps them all.
            progress: Told how many references were followed.
            known: What versions refer to, if somebody knows it; None opens their files, which alone is sure.

        Raises:
            IntegrityError: A reference or document is missing, and stays so, or damaged, so that what it refers to is
                not known.
            EnvironmentFailure: No right to read, device failed.
        """
        for _ in range(LOOKS - 1):
            try:
                return self._marks(intent, withdrawn, progress, known)
            except _Missing:
                time.sleep(PAUSE)
        return self._marks(intent, withdrawn, progress, known)

    def _marks(
        self,
        intent: Callable[[str, os.stat_result], bool],
        withdrawn: Callable[[os.stat_result], bool] | None,
        progress: Progress | None,
        known: Collection[str] | None,
    ) -> Marks:
        """Do what ``mark`` says, once."""
        self._shards.clear()
        self._trash = trashed(self.root)
        roots = Roots(self.root, opening=known is None)
        try:
            every = list(roots.read(intent))
            graves = roots.graves(withdrawn) if withdrawn is not None else frozenset()
            walk = _Walk(self, _gone(every, graves))
            last = [one for one in every if one.version in graves]
            first = [one for one in every if one.version not in graves]
            for done, one in enumerate((*first, *last)):
                if progress is not None and done % 256 == 0:
                    progress(done, len(every), "following references")
                walk.follow(one, sparing=done >= len(first))
        except OSError as error:
            with environment("read", Path(error.filename or self.root)):
                raise
        versions = sum(one.version is not None for one in every)
        walk.alive.update(known or ())
        return Marks(frozenset(walk.alive), frozenset(walk.spared - walk.alive), versions, tuple(roots.empty))

    def document(self, digest: str, how: How, whose: str, firm: bool) -> tuple[Found, ...] | None:
        """Return what a blob names, nothing if it is no document; None if it was not read.

        Args:
            digest: Of the blob.
            how: As what it is named.
            whose: By whom, for messages.
            firm: Whether it must be there.
        """
        known = self._documents.get(digest)
        if known is not None:
            return known
        found = self._content(digest, peek=how == "named", patient=firm)
        if found is None and firm and digest not in self.lost:
            raise self._refusal(digest, whose, "is missing, from trash/ too", _Missing)
        if found is None or (how == "named" and not found[0].startswith(b"{")):
            return None
        if digest in self.lost:
            return ()
        data, size = found
        if size > MAX_BYTES:
            if how == "component":
                raise self._refusal(digest, whose, f"has {size} bytes, more than any document")
            return ()
        if (actual := digest_of(data)) != digest:
            raise self._refusal(digest, whose, f"holds other bytes than its name promises, {actual}")
        try:
            self._documents[digest] = names(data, digest, component=firm and how == "component")
        except FormatError as error:
            raise self._refusal(digest, whose, f"cannot be read ({error})") from error
        return self._documents[digest]

    def _content(self, digest: str, *, peek: bool, patient: bool) -> tuple[bytes, int] | None:
        """Return a blob's bytes, and how many there are, from its place or from ``trash/``; None if it is nowhere.

        They are neither verified nor moved, and cut off after what a document may have.

        Args:
            digest: Of the blob.
            peek: Return only the beginning, unless that is the beginning of a document.
            patient: Look again: another process may move it at this moment, out or back.
        """
        name = digest[7:]
        shard = name[:2]
        if shard not in self._shards:
            durable.check_folders(self.root / "blobs" / "sha256" / shard, self.root)
            self._shards.add(shard)
        path = f"{self._blobs}/{shard}/{name}"
        found = _read(path, peek)
        for _ in range(3 if patient else 1):
            for place in () if found is not None else (*self._trash.get(name, ()), path):
                found = _read(place, peek) if found is None else found
            if found is None:
                self._trash = trashed(self.root)
        return found

    def _refusal(
        self, digest: str, whose: str, what: str, kind: type[IntegrityError] = IntegrityError
    ) -> IntegrityError:
        name = digest.removeprefix("sha256:")
        return kind(
            f"{self.root}/blobs/sha256/{name[:2]}/{name} {what}, and {whose} refers to it: what it refers to in turn "
            "is not known, so nothing is collected. `compatkit verify` tells what is damaged and how to mend it. If it "
            f"is lost for good, `compatkit gc --lost {digest}` goes on without it.",
            subject=digest,
        )


@attrs.define(eq=False)
class _Walk:
    """One way through the documents.

    Attributes:
        gone: Manifests of withdrawn versions whose weights may go.
    """

    marker: Marker
    gone: set[str]
    alive: set[str] = attrs.field(factory=set)
    spared: set[str] = attrs.field(factory=set)
    _entered: set[str] = attrs.field(factory=set)

    def follow(self, root: Root, *, sparing: bool) -> None:
        """Keep what a reference leads to; if ``sparing``, all but the weights of what is gone."""
        ahead: list[tuple[str, How, str, bool]] = [(root.digest, root.how, root.whose, root.firm)]
        while ahead:
            digest, how, whose, firm = ahead.pop()
            if sparing and how == "payload" and whose in self.gone:
                self.spared.add(digest)
                continue
            self.alive.add(digest)
            if how == "payload" or digest in self._entered:
                continue
            firm = firm and how != "named"
            found = self.marker.document(digest, how, whose, firm)
            if found is not None:
                self._entered.add(digest)
                firm = (
                    firm and how == "component"
                )  # publishing looks for what manifests refer to, and no further
                ahead.extend((named, as_what, digest, firm) for named, as_what in found)


def _gone(every: list[Root], graves: frozenset[tuple[str, str]]) -> set[str]:
    buried = {one.digest for one in every if one.version in graves}
    return buried - {one.digest for one in every if one.version is not None and one.version not in graves}


def _read(path: str, peek: bool) -> tuple[bytes, int] | None:
    file = opened(path)
    if file is None:
        return None
    descriptor, size = file
    try:
        data = os.read(descriptor, _PEEK)
        if 0 < len(data) < size <= MAX_BYTES and (data.startswith(b"{") or not peek):
            with os.fdopen(descriptor, "rb", closefd=False) as rest:
                data += rest.read(MAX_BYTES)
        return data, size
    finally:
        os.close(descriptor)


def trashed(root: Path) -> dict[str, list[str]]:
    """Return the paths of the blobs in ``trash``, by the hexadecimal digits of their names."""
    folder = root / "trash"
    durable.check_folders(folder, root)
    found: dict[str, list[str]] = {}
    for entry in entries(str(folder)):
        found.setdefault(entry.name[:64], []).append(entry.path)
    return found

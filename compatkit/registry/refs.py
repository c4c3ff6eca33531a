"""Names and versions on disk: small files that point at manifests, each created once and never rewritten."""

from __future__ import annotations

import os
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path

import attrs

from compatkit.errors import IntegrityError, InvalidName
from compatkit.registry import disk as durable
from compatkit.registry.log import LIMIT
from compatkit.registry.names import VERSION, Bump, Range, Version, check_name, check_segment, numbers_of
from compatkit.registry.os_errors import environment
from compatkit.registry.withdrawals import Tombstone, Withdrawals

LINE_LIMIT = 320
"""Maximum size of a valid version file in bytes."""
_LINE = re.compile(rb"(sha256:[0-9a-f]{64})(?: ([a-z0-9._/-]+@[0-9.]+))?\n")


@attrs.frozen(eq=False)
class References:
    """Names and versions of a registry: the files below ``<root>/refs``.

    Attributes:
        root: Folder of the registry.
    """

    root: Path

    def folder(self, name: str) -> Path:
        """Return the folder of a name.

        Raises:
            InvalidName: ``name`` is not a component name.
        """
        return self.root / f"refs/{check_name(name)}"

    def names(self) -> list[str]:
        """Return all names that have a version, sorted; other files and folders are ignored."""
        refs = self.root / "refs"
        with environment("read", refs):
            durable.check_folders(refs, self.root)
            return sorted(_names(str(refs), "", 3))

    def each(self) -> Iterator[tuple[str, Version]]:
        """Yield all versions of all names, including withdrawn and damaged ones."""
        for name in self.names():
            for version in self.versions(name):
                yield name, version

    def versions(self, name: str) -> list[Version]:
        """Return the versions of a name in ascending order, including withdrawn ones; empty for an unknown name.

        An empty file does not count, because without hard links an interrupted publish leaves one. A damaged file
        counts, so that no older version silently replaces it.
        """
        return [Version(*number) for number in self._listed(name).finished()]

    def latest(self, name: str, within: Range | None = None) -> Version | None:
        """Return the last version that was not withdrawn; None if there is none.

        Args:
            name: Name of the component.
            within: Range that the version must be in.
        """
        listing = self._listed(name)
        withdrawn = {numbers_of(version) for version in self.withdrawn(name)}
        for number in reversed(listing.numbers):
            version = Version(*number)
            if (
                number not in withdrawn
                and (within is None or version in within)
                and listing.is_finished(number)
            ):
                return version
        return None

    def neighbors(self, name: str, version: Version) -> tuple[Version | None, tuple[Version, ...]]:
        """Return the versions just below and above a version number.

        Args:
            name: Name of the component.
            version: Version number, free or used.

        Returns:
            The last version below, of any major line, that was not withdrawn, or None; and all used numbers above in
            the same major line, in ascending order.
        """
        listing = self._listed(name)
        withdrawn = {numbers_of(version) for version in self.withdrawn(name)}
        wanted = numbers_of(version)
        position = bisect_left(listing.numbers, wanted)
        lower = (
            number
            for number in reversed(listing.numbers[:position])
            if number not in withdrawn and listing.is_finished(number)
        )
        below = next(lower, None)
        above = tuple(
            Version(*number)
            for number in listing.numbers[position:]
            if number > wanted and number[0] == version.major
        )
        return None if below is None else Version(*below), above

    def used_numbers(self, name: str) -> set[Version]:
        """Return the used version numbers, including withdrawn versions, empty files and dropped numbers."""
        kinds = ("@versions", "@dropped")
        return {Version(*number) for kind in kinds for number in self._listed(name, kind).numbers}

    def next_number(self, name: str, version: Version, bump: Bump) -> Version:
        """Return the first number after a version, in steps of ``bump``, that is not used.

        Args:
            name: Name of the component.
            version: Version of the component.
            bump: Step, not ``"none"``.
        """
        folders = [self.folder(name) / kind for kind in ("@versions", "@dropped")]
        for folder in folders:
            durable.check_folders(folder, self.root)
        target = version.bumped(bump)
        while any(os.path.lexists(folder / str(target)) for folder in folders):
            target = target.bumped(bump)
        return target

    def digest(self, name: str, version: Version) -> str | None:
        """Return the manifest digest of a version; None if there is no such version.

        Args:
            name: Name of the component.
            version: Version of the component.

        Raises:
            IntegrityError: The version file is damaged.
        """
        path = f"{self.root}/refs/{check_name(name)}/@versions/{version}"
        durable.check_folders(os.path.dirname(path), self.root)
        return self._digest(path, name, version)

    def digests(
        self, name: str, versions: Iterable[Version]
    ) -> Iterator[tuple[Version, str | IntegrityError | None]]:
        """Yield each of several versions of a name with the result of ``digest``, or the error that it would raise.

        Args:
            name: Name of the component.
            versions: Versions that ``versions`` has just returned, which has checked their folder.
        """
        folder = f"{self.root}/refs/{check_name(name)}/@versions"
        for version in versions:
            try:
                yield version, self._digest(f"{folder}/{version}", name, version)
            except IntegrityError as error:
                yield version, error

    def _digest(self, path: str, name: str, version: Version) -> str | None:
        data = durable.read_finished(path, None, limit=LIMIT)
        if data is None:
            return None
        if (digest := digest_in(data, f"{name}@{version}")) is not None:
            return digest
        if (line := read_line(data)) is None:
            fault = f"should hold one line, 'sha256:' with 64 hex digits and '{name}@{version}', got {data[:80]!r}"
        else:
            fault = f"is the file of {line[1]}: files of versions were exchanged, copied or renamed"
        raise IntegrityError(
            f"{name}@{version} is damaged: {path} {fault}. "
            "`compatkit verify --repair` repairs it if possible; or restore it from another copy of the registry.",
            subject=Path(path),
        )

    def create(
        self,
        name: str,
        version: Version,
        digest: str,
        ready: Callable[[], object] | None = None,
        *,
        others: Sequence[Path] = (),
    ) -> bool:
        """Create a version durably, as the last step of publishing; return False if the number is used.

        Args:
            name: Name of the component.
            version: Version number.
            digest: Digest of the manifest.
            ready: Function called right before the file is linked; may raise to stop.
            others: Further folders of the registry that become durable with it.

        Raises:
            EnvironmentFailure: Disk full, no write permission, ...; the version does not exist.
        """
        path, line = self.folder(name) / f"@versions/{version}", version_line(f"{name}@{version}", digest)
        with environment("create", path):
            return durable.create_once(path, line, self.root, ready, others=others)

    def withdrawals(self, name: str) -> Withdrawals:
        """Return the withdrawals of the versions of a name."""
        return Withdrawals(check_name(name), self.root)

    def tombstone(self, name: str, version: Version) -> Tombstone | None:
        """Return the reason and time of a withdrawal; None if the version is not withdrawn."""
        return self.withdrawals(name).tombstone(version)

    def withdrawn(self, name: str) -> set[Version]:
        """Return the withdrawn versions of a name."""
        return self.withdrawals(name).versions()

    def _listed(self, name: str, kind: str = "@versions") -> _Listing:
        """Return the version numbers that name the entries of a folder."""
        folder = self.folder(name) / kind
        durable.check_folders(folder, self.root)
        with environment("read", folder):
            try:
                return _Listing(str(folder), _numbers(tuple(os.listdir(folder))))
            except FileNotFoundError:
                return _Listing(str(folder), ())


@attrs.frozen
class _Listing:
    """Version numbers that name the files of a folder, in ascending order."""

    folder: str
    numbers: Sequence[tuple[int, int, int]]

    def is_finished(self, number: tuple[int, int, int]) -> bool:
        """Return whether a file has content."""
        major, minor, patch = number
        try:
            return os.lstat(f"{self.folder}/{major}.{minor}.{patch}").st_size > 0
        except FileNotFoundError:
            return False

    def finished(self) -> list[tuple[int, int, int]]:
        """Return the numbers of files that have content."""
        return [number for number in self.numbers if self.is_finished(number)]


def version_line(label: str, digest: str) -> bytes:
    """Return the content of a version file.

    Args:
        label: Name and version, ``name@version``.
        digest: Digest of the manifest.
    """
    return f"{digest} {label}\n".encode()


def digest_in(data: bytes, label: str) -> str | None:
    """Return the manifest digest in a version file; None if the file is damaged or belongs to another version.

    Args:
        data: Content of the file.
        label: Expected ``name@version``.
    """
    line = read_line(data)
    return line[0] if line is not None and line[1] in ("", label) else None


def read_line(data: bytes) -> tuple[str, str] | None:
    """Read a version file.

    Returns:
        Digest and ``name@version`` in the file (empty in old files without it); None if the file is damaged.
    """
    match = _LINE.fullmatch(data)
    return None if match is None else (match[1].decode(), (match[2] or b"").decode())


def _names(folder: str, name: str, depth: int) -> Iterator[str]:
    """Yield a name if it has a version, and the names below it, of at most ``depth`` further segments."""
    try:
        with os.scandir(folder) as entries:
            inside = [entry.name for entry in entries if _is_listed(entry)]
    except (FileNotFoundError, NotADirectoryError):
        return
    if name and "@versions" in inside and _has_entry(f"{folder}{os.sep}@versions"):
        yield name
    for segment in inside if depth else ():
        if segment != "@versions" and _is_segment(segment):
            below = f"{name}/{segment}" if name else segment
            yield from _names(f"{folder}{os.sep}{segment}", below, depth - 1)


def _is_listed(entry: os.DirEntry[str]) -> bool:
    return entry.name == "@versions" or (
        not entry.name.startswith("@") and entry.is_dir(follow_symlinks=False)
    )


def _has_entry(folder: str) -> bool:
    try:
        with os.scandir(folder) as entries:
            return next(entries, None) is not None
    except (FileNotFoundError, NotADirectoryError):
        return False


def _is_segment(text: str) -> bool:
    try:
        return bool(check_segment(text))
    except InvalidName:
        return False


@lru_cache(8)  # a publish lists the same folders several times
def _numbers(files: tuple[str, ...]) -> tuple[tuple[int, int, int], ...]:
    """Return the version numbers among file names, in ascending order; others are stray files of an editor."""
    return tuple(sorted(filter(None, map(_number, files))))


@lru_cache(2**14)
def _number(file: str) -> tuple[int, int, int] | None:
    match = VERSION.fullmatch(file)
    return None if match is None else (int(match[1]), int(match[2]), int(match[3]))

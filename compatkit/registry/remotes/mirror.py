"""Mirror of a remote's names and versions in a scratch folder, where they are read like those of a local registry.

Only valid paths of a registry are mirrored, so nothing is written elsewhere; too long files are truncated, and then
refused on reading. What is in the remote is always listed first. Contents come from ``refs.json`` where that has what
is listed, and from the files themselves otherwise.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import attrs

from compatkit.errors import CompatkitError, EnvironmentFailure, InvalidName
from compatkit.registry.log import LIMIT
from compatkit.registry.names import ENTRY_NAME, VERSION, Version, check_alias, check_name
from compatkit.registry.os_errors import environment
from compatkit.registry.refs import digest_in
from compatkit.registry.remotes import refs_file
from compatkit.registry.remotes.files import MAX_REQUESTS, Files
from compatkit.registry.remotes.refs_file import RefsFile

PAGE = 1000
"""Number of files that object stores list in one request."""
USUAL_PAGES = 8
"""Number of requests for which all names are listed at once: most components have parents, which may have any name."""
SMALL_REFS = 2**20
"""Size in bytes up to which ``refs.json`` is written after every change; a longer one only after many."""
FEW_CHANGES = 0.01
"""Share of the files that a longer ``refs.json`` may lack."""
_MIRRORED = re.compile(
    rf"refs/(?P<name>[^@]+)/@(?:versions/{VERSION.pattern}|tombstones/{ENTRY_NAME.pattern}|"
    rf"dropped/{VERSION.pattern}/[1-9][0-9]{{0,8}}|published/{VERSION.pattern}|"
    r"aliases/(?P<alias>[^/]+)|log/(?P<moved>[^/]+)/[1-9][0-9]{0,8})"
)
_VERSIONS = "/@versions/"
_LISTED = ".listed"
"""Placeholder in the mirror for versions that were listed and not fetched."""


@attrs.define(eq=False)
class Mirror:
    """Mirror of the files below ``refs``.

    Attributes:
        files: Files of the remote.
        folder: Scratch folder.
        notes: What a user should know about ``refs.json``.
        counts: Known numbers of files in top-level folders of the remote, exact or not.
    """

    files: Files
    folder: str
    notes: list[str] = attrs.field(init=False, factory=list)
    counts: dict[str, int] = attrs.field(init=False, factory=dict)
    _saved: RefsFile | None = attrs.field(init=False, default=None)
    _listed: dict[str, dict[str, str]] = attrs.field(init=False, factory=lambda: defaultdict(dict))
    _is_complete: bool = attrs.field(init=False, default=False)
    _knows_versions: bool = attrs.field(init=False, default=False)
    _fetched: set[str] = attrs.field(init=False, factory=set)
    _contents: dict[str, bytes] = attrs.field(init=False, factory=dict)
    _written: dict[str, bytes | None] = attrs.field(init=False, factory=dict)
    _versions: dict[str, list[tuple[str, str]]] = attrs.field(init=False, factory=lambda: defaultdict(list))

    # --- listing

    def names(self) -> list[str]:
        """Return all names that have a version, sorted."""
        self._list_all()
        return sorted(name for name in self._listed if self._has_version(name))

    def has(self, name: str) -> bool:
        """Return whether a name has a version."""
        self._list([name])
        return self._has_version(name)

    def paths(self, name: str) -> list[str]:
        """Return the paths of the versions, tombstones, aliases and logs of a name, sorted."""
        self._list([name])
        return sorted(self._listed.get(name, {}))

    def lacks(self, path: str) -> bool:
        """Return whether a file was not there when its name was listed; False if that has not been done."""
        name = owner(path)
        if name is None or not (self._is_complete or name in self._listed):
            return False
        return path not in self._listed.get(name, {})

    def pages(self, top: str) -> int:
        """Return the estimated number of requests that list a top-level folder."""
        self._read_saved()
        if (count := self.counts.get(top)) is not None:
            return count // PAGE + 1
        return 1 if top == "refs" and self._has_fingerprints else MAX_REQUESTS

    def count(self, top: str, more: int, *, of: int | None = None) -> None:
        """Note how many files a top-level folder has.

        Args:
            top: Name of the folder.
            more: Number of new files.
            of: Number of the other files, if they were listed.
        """
        if of is not None or top in self.counts:
            self.counts[top] = (self.counts.get(top, 0) if of is None else of) + more

    def _list(self, names: Iterable[str]) -> None:
        if self._is_complete or not (missing := sorted(set(names) - self._listed.keys())):
            return
        if self.pages("refs") <= max(len(missing), USUAL_PAGES):
            self._list_all()
            return
        for name, listed in self.files.in_parallel(lambda name: self._in_folder(f"refs/{name}"), missing):
            self._listed.setdefault(name, {})
            self._add(listed)

    def _list_all(self) -> None:
        if not self._is_complete:
            self._read_saved()
            listed = self._in_folder("refs")
            self.count("refs", 0, of=len(listed))
            self._add(listed)
            self._is_complete = True

    def _in_folder(self, folder: str) -> Mapping[str, str]:
        """Return the fingerprints of the files in a folder; empty ones if the store has none."""
        if self._has_fingerprints:
            return self.files.fingerprints(folder)
        return dict.fromkeys(self.files.sizes(folder), "")

    def _add(self, listed: Mapping[str, str]) -> None:
        saved = self._read_saved().files
        new: set[str] = set()
        for path, fingerprint in listed.items():
            if (name := owner(path)) is None or path in self._listed.get(name, {}):
                continue
            self._listed[name][path] = fingerprint
            content = saved.get(path)
            if content is not None and self.files.fingerprint(content.encode()) == fingerprint:
                self._learn(name, path, content.encode()[: LIMIT + 1])
            if _VERSIONS in path:
                new.add(name)
        for name in new:
            write_scratch(self.folder, f"refs/{name}{_VERSIONS}{_LISTED}", b"")

    def _has_version(self, name: str) -> bool:
        return any(_VERSIONS in path for path in self._listed.get(name, {}))

    # --- contents

    def load(self, names: Iterable[str]) -> None:
        """Mirror the small files of names, of which those that are not in ``refs.json`` are read in parallel."""
        wanted = sorted(set(names) - self._fetched)
        self._list(wanted)
        paths = {path: name for name in wanted for path in self._listed.get(name, {})}
        unknown = [path for path in paths if path not in self._contents]
        for path, content in self.files.in_parallel(
            lambda path: self.files.read(path, 0, LIMIT + 1), unknown
        ):
            if content is not None:
                self._learn(paths[path], path, content)
        for path in paths:
            if path in self._contents:
                write_scratch(self.folder, path, self._contents[path])
        self._fetched.update(wanted)

    def known_versions(self, digest: str) -> list[tuple[str, Version]]:
        """Return the versions of a manifest among the version files whose content is known."""
        return sorted(
            (name, Version.parse(path.rpartition("/")[2])) for name, path in self._versions.get(digest, ())
        )

    def versions(self, digest: str) -> list[tuple[str, Version]]:
        """Return the versions of a manifest, among all names."""
        self._list_all()
        if not self._knows_versions:
            self.load(
                name
                for name, listed in self._listed.items()
                if any(_VERSIONS in path and path not in self._contents for path in listed)
            )
            self._knows_versions = True
        return self.known_versions(digest)

    def _learn(self, name: str, path: str, content: bytes) -> None:
        self._contents[path] = content
        if _VERSIONS in path:
            label = f"{name}@{path.rpartition('/')[2]}"
            if (digest := digest_in(content, label)) is not None:
                self._versions[digest].append((name, path))

    # --- refs.json

    def write(self, path: str, data: bytes | None) -> None:
        """Note that a file was written, or removed, so that ``refs.json`` says so."""
        if owner(path) is not None:
            self._written[path] = data

    def save(self) -> None:
        """Write ``refs.json`` anew, if it lacks too much of what the remote has; a failure is noted."""
        if not self._has_fingerprints:
            return
        saved, files = self._read_saved(), dict(self._worth_saving())
        lacking = sum(saved.files.get(path) != content for path, content in files.items())
        if not lacking or (saved.size > SMALL_REFS and lacking < FEW_CHANGES * len(files)):
            return
        data = RefsFile(files, self.counts).to_bytes()
        try:
            if data is not None:
                self.files.put(refs_file.PATH, data)
        except EnvironmentFailure as error:
            self.notes.append(f"{refs_file.PATH} was not written, so pulls take more requests: {error}")

    def _worth_saving(self) -> Iterator[tuple[str, str]]:
        """Yield what is in ``refs.json`` and may still hold, and what is known to hold."""
        for path, content in self._read_saved().files.items():
            name = owner(path)
            is_listed = name is not None and (self._is_complete or name in self._listed)
            if name is not None and not is_listed:
                yield path, content
        known = {
            path: content
            for listed in self._listed.values()
            for path, fingerprint in listed.items()
            if (content := self._contents.get(path)) is not None
            and self.files.fingerprint(content) == fingerprint
        }
        for path, data in (known | self._written).items():
            if data is not None and len(data) <= LIMIT and (text := refs_file.as_text(data)) is not None:
                yield path, text

    def _read_saved(self) -> RefsFile:
        if self._saved is None:
            self._saved = RefsFile()
            if self._has_fingerprints:
                address = f"{self.files.url}/{refs_file.PATH}"
                try:
                    data = self.files.read(refs_file.PATH, 0, refs_file.LIMIT + 1)
                    self._saved = RefsFile() if data is None else refs_file.read(data, address)
                except CompatkitError as error:
                    self.notes.append(f"{address} is not used, so more requests are made: {error}")
            self.counts.update(self._saved.counts)
        return self._saved

    @property
    def _has_fingerprints(self) -> bool:
        return self.files.fingerprint(b"") is not None


def write_scratch(folder: str, path: str, data: bytes) -> None:
    """Write a file into a scratch folder, at a path relative to it."""
    file = Path(folder, path)
    with environment("write", file):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)


def owner(path: str) -> str | None:
    """Return the component name of a path in ``refs``; None if the path is not part of the layout."""
    match = _MIRRORED.fullmatch(path)
    if match is None:
        return None
    try:
        if alias := match["alias"] or match["moved"]:
            check_alias(alias)
        return check_name(match["name"])
    except InvalidName:
        return None

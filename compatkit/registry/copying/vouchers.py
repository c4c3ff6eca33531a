"""Signatures beside manifests, as they travel: small files below ``signatures/<manifest>/``, not understood here."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

import attrs

from compatkit.errors import IntegrityError
from compatkit.registry.copying.sources import Source
from compatkit.registry.copying.targets import Note, Target
from compatkit.registry.references import LIMIT

Accept = Callable[[str, Sequence[bytes], str], None]
"""Is given a manifest's digest, its signatures as they were found, and ``name@version``; refuses by an exception."""
FOLDER = "signatures"
MOST = 1_000
"""Signatures of one manifest that are read."""
_FILE = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,199}")


@attrs.frozen
class Vouchers:
    """The signatures of some manifests in a source.

    Attributes:
        by_digest: Path and content of each, by manifest digest.
        broken: Why those of a manifest cannot be read, by its digest.
    """

    by_digest: dict[str, dict[str, bytes]] = attrs.field(factory=dict)
    broken: dict[str, IntegrityError] = attrs.field(factory=dict)

    def read(self, source: Source, digests: Iterable[str]) -> None:
        """Read the signatures of manifests; files with other names are left alone."""
        folders = {f"{FOLDER}/{one.removeprefix('sha256:')}": one for one in digests}
        paths: dict[str, list[str]] = defaultdict(list)
        for path in source.notes(sorted(folders)):
            folder, _, name = path.rpartition("/")
            if folder in folders and _FILE.fullmatch(name):
                paths[folder].append(path)
        for folder in [one for one, found in paths.items() if len(found) > MOST]:
            said = (
                f"{source.where}/{folder} holds {len(paths.pop(folder))} signatures; at most {MOST} are read."
            )
            self.broken[folders[folder]] = IntegrityError(said, subject=folder)
        for path, content in source.read_notes([one for found in paths.values() for one in found]):
            digest = folders[path.rpartition("/")[0]]
            if content is not None and len(content) > LIMIT:
                said = f"{source.where}/{path} has more than {LIMIT} bytes, too many for a signature."
                self.broken[digest] = IntegrityError(said, subject=path)
            elif content is not None:
                self.by_digest.setdefault(digest, {})[path] = content

    def of(self, digest: str) -> list[bytes]:
        """Return the signatures of a manifest, in the order of their names.

        Raises:
            IntegrityError: There are more than 1,000, or one is longer than any signature.
        """
        if digest in self.broken:
            raise self.broken[digest]
        return [content for _, content in sorted(self.by_digest.get(digest, {}).items())]

    def copy(self, target: Target, digests: Iterable[str]) -> int:
        """Copy the signatures of manifests; return how many are new there. What is there stays as it is."""
        wanted = [one for one in digests if one in self.by_digest and one not in self.broken]
        there = set(target.notes([f"{FOLDER}/{one.removeprefix('sha256:')}" for one in wanted]))
        notes = [
            Note(path, content)
            for one in wanted
            for path, content in sorted(self.by_digest[one].items())
            if path not in there
        ]
        return len(notes) - len(target.create(notes))

"""Signatures beside manifests, as they travel: small files below ``signatures/<manifest>/``, verified by nobody here.

Only what is a signature of its manifest by its form travels; whose it is, and whether it counts, ``Accept`` says.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

import attrs

from compatkit.errors import IntegrityError, MalformedSignature, SignatureError
from compatkit.registry.copy.places import Note, Source, Target
from compatkit.registry.copy.report import Refusal
from compatkit.registry.signing.signatures import FILE, FOLDER, MOST, file_name


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
            if folder in folders and FILE.fullmatch(name):
                paths[folder].append(path)
        for folder in [one for one, found in paths.items() if len(found) > MOST]:
            said = (
                f"{source.where}/{folder} holds {len(paths.pop(folder))} signatures; at most {MOST} are read."
            )
            self.broken[folders[folder]] = IntegrityError(said, subject=folder)
        for path, content in source.read_notes([one for found in paths.values() for one in found]):
            digest = folders[path.rpartition("/")[0]]
            if content is not None:
                self.by_digest.setdefault(digest, {})[path] = content

    def of(self, digest: str) -> list[bytes]:
        """Return the signatures of a manifest, in the order of their names.

        Raises:
            IntegrityError: There are more than 1,000.
        """
        if digest in self.broken:
            raise self.broken[digest]
        return [content for _, content in sorted(self.by_digest.get(digest, {}).items())]

    def sound(self, digest: str) -> Iterator[tuple[str, bytes]]:
        """Yield path and content of what is a signature of a manifest, by its form, in the order of their names."""
        for path, content in sorted(self.by_digest.get(digest, {}).items()):
            if _wrong(path, content, digest) is None:
                yield path, content

    def unsound(self, where: str, digests: Iterable[str]) -> Iterator[Refusal]:
        """Yield what has the name of a signature and is none of its manifest.

        Args:
            where: What people call the source.
            digests: Of the manifests.
        """
        for digest in digests:
            for path, content in sorted(self.by_digest.get(digest, {}).items()):
                if (error := _wrong(path, content, digest)) is not None:
                    yield Refusal(path, type(error)(f"{where}/{path} stays behind: {error}", subject=path))

    def copy(self, target: Target, digests: Iterable[str]) -> int:
        """Copy the signatures of manifests; return how many are new there. What is there stays as it is."""
        wanted = [one for one in digests if one in self.by_digest and one not in self.broken]
        there = set(target.notes([f"{FOLDER}/{one.removeprefix('sha256:')}" for one in wanted]))
        notes = [
            Note(path, content) for one in wanted for path, content in self.sound(one) if path not in there
        ]
        return len(notes) - len(target.create(notes))


def _wrong(path: str, content: bytes, digest: str) -> SignatureError | None:
    """Return why a file is no signature of a manifest."""
    try:
        name = file_name(content, digest)
    except SignatureError as error:
        return error
    if path.rpartition("/")[2] != name:
        return MalformedSignature(f"its name should be {name}, after the key and the bytes that it holds.")
    return None

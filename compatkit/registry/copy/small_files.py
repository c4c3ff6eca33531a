"""Copy signatures of manifests, and results of pairs; existing files never change.

Policies are not copied, because they apply to one registry.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import attrs

from compatkit.errors import CompatkitError, IntegrityError, MalformedSignature, SignatureError
from compatkit.registry.copy.endpoints import ComponentBlob, Origin, SmallFile, Target
from compatkit.registry.copy.report import Refusal
from compatkit.registry.evidence import FOLDER as EVIDENCE
from compatkit.registry.signing.signatures import (
    FILE,
    FOLDER,
    LIMIT_PER_MANIFEST,
    file_name,
    is_made_by_its_key,
)

if TYPE_CHECKING:
    from compatkit.registry.copy.blobs import BlobCopier

_HEXADECIMAL = re.compile("[0-9a-f]{64}")
UNVERIFIED = LIMIT_PER_MANIFEST // 2
"""Number of signatures of one manifest above which only those that their key made are copied.

Otherwise strangers could add so many in the name of a trusted key that none of them is read any more.
"""


@attrs.frozen
class SignatureFiles:
    """Unverified signatures of some manifests in an origin.

    Attributes:
        origin: Origin of the signatures.
        by_digest: Contents by manifest digest and path.
        broken: Errors of manifests with too many signatures, by manifest digest.
    """

    origin: Origin
    by_digest: dict[str, dict[str, bytes]] = attrs.field(factory=dict)
    broken: dict[str, IntegrityError] = attrs.field(factory=dict)

    def read(self, digests: Iterable[str]) -> None:
        """Read the signatures of manifests; files with other names are ignored."""
        folders = {_signature_folder(digest): digest for digest in digests}
        paths: dict[str, list[str]] = defaultdict(list)
        for path in self.origin.list_small_files(sorted(folders)):
            folder, _, name = path.rpartition("/")
            if folder in folders and FILE.fullmatch(name):
                paths[folder].append(path)
        wanted: list[str] = []
        for folder, folder_paths in paths.items():
            if len(folder_paths) > LIMIT_PER_MANIFEST:
                limit = f"expected at most {LIMIT_PER_MANIFEST} signatures, got {len(folder_paths)}"
                message = f"{self.origin.address}/{folder}: {limit}."
                self.broken[folders[folder]] = IntegrityError(message, subject=folder)
            else:
                wanted += folder_paths
        for path, content in self.origin.read_small_files(wanted):
            if content is not None:
                self.by_digest.setdefault(folders[path.rpartition("/")[0]], {})[path] = content

    def of(self, digest: str) -> list[bytes]:
        """Return the signatures of a manifest in the order of their file names.

        Raises:
            IntegrityError: There are more than 1,000.
        """
        if digest in self.broken:
            raise self.broken[digest]
        return [content for _, content in sorted(self.by_digest.get(digest, {}).items())]

    def split_valid(self, digests: Iterable[str]) -> tuple[list[SmallFile], list[Refusal]]:
        """Return the well-formed signatures of manifests, and refusals of the other files."""
        valid: list[SmallFile] = []
        refused: list[Refusal] = []
        for digest in digests:
            for path, content in sorted(self.by_digest.get(digest, {}).items()):
                try:
                    name = file_name(content, digest)
                    if path.rpartition("/")[2] != name:
                        raise MalformedSignature(f"expected the file name {name}, from its key and content.")
                    valid.append(SmallFile(path, content))
                except SignatureError as error:
                    error.args = (f"{self.origin.address}/{path} is not copied: {error}",)
                    error.subject = path
                    refused.append(Refusal(path, error))
        return valid, refused

    def copy(self, target: Target, digests: Sequence[str]) -> tuple[int, list[Refusal]]:
        """Copy the signatures of manifests; existing files stay unchanged.

        Returns:
            Number of new files, and refusals of files that are not signatures of their manifest.
        """
        valid, refused = self.split_valid(digests)
        existing = set(
            target.list_small_files(
                [_signature_folder(digest) for digest in digests if digest in self.by_digest]
            )
        )
        counts = Counter(path.rpartition("/")[0] for path in existing)
        new: list[SmallFile] = []
        for file in valid:
            folder = file.path.rpartition("/")[0]
            if file.path not in existing and (counts[folder] < UNVERIFIED or is_made_by_its_key(file.data)):
                counts[folder] += 1
                new.append(file)
        return len(new) - len(target.create(new)), refused


def _signature_folder(digest: str) -> str:
    return f"{FOLDER}/{digest.removeprefix('sha256:')}"


class ResultCopies(NamedTuple):
    """Outcome of copying results.

    Attributes:
        copied: Number of new results.
        left_out: Number of results of measurements that the target has.
        digests: Digests of the origin's results that the target has now.
    """

    copied: int
    left_out: int
    digests: list[str]


def copy_results(
    copier: BlobCopier,
    functions: Sequence[str],
    refuse: Callable[[str, CompatkitError], None],
    *,
    every: bool,
    follow: bool,
) -> ResultCopies:
    """Copy the results of all pairs of components, and everything that the results refer to.

    Args:
        copier: Blobs of the transfer.
        functions: Function digests of the components.
        refuse: Called with the path of a damaged result and the error; the others are copied.
        every: Whether to also verify the results that the target has, with everything that they refer to.
        follow: Whether to copy further results of measurements that the target has; the newest one counts there.

    Returns:
        Number of new results, number of results left out, and the digests of all results of the origin.

    Raises:
        EnvironmentFailure: Disk or network failed.
    """
    origin, target = copier.origin, copier.target
    paths = _result_paths(origin, functions)
    existing = set(_result_paths(target, functions))
    measured = set() if follow else {path.rpartition("/")[0] for path in existing}
    wanted = [path for path in paths if path in existing or path.rpartition("/")[0] not in measured]
    left_out = len(paths) - len(wanted)
    digests: dict[str, str] = {}
    for path, content in origin.read_small_files([path for path in wanted if every or path not in existing]):
        digest = f"sha256:{path.rpartition('/')[2]}"
        if content == f"{digest}\n".encode():
            digests[path] = digest
            continue
        message = (
            f"{origin.address}/{path}: expected the digest in its name, got {content or b''!r:.80}. {origin.advice} Or "
            "do not copy results."
        )
        refuse(path, IntegrityError(message, subject=path))
    copier.add([ComponentBlob(digest, "blob", f"the result {path}") for path, digest in digests.items()])
    needs: dict[str, list[str]] = {}
    for path, digest in digests.items():
        try:
            needs[path] = copier.blobs_of(digest)
        except CompatkitError as error:
            refuse(path, error)
    needed = list(dict.fromkeys(blob for blobs in needs.values() for blob in blobs))
    failed = copier.copy_all(needed if every else copier.missing(needed))
    files: list[SmallFile] = []
    for path, blobs in needs.items():
        if (failure := next((failed[blob] for blob in blobs if blob in failed), None)) is not None:
            refuse(path, failure)
            continue
        line = f"{digests[path]}\n".encode()
        files.append(SmallFile(path, line, lambda blobs=blobs: [copier.copy(blob) for blob in blobs]))
    copied = len(files) - len(target.create(files))
    present = [*(path for path in wanted if path in existing), *(file.path for file in files)]
    return ResultCopies(
        copied, left_out, list(dict.fromkeys(f"sha256:{path.rpartition('/')[2]}" for path in present))
    )


def _result_paths(registry: Origin, functions: Iterable[str]) -> list[str]:
    """Return the paths of result files of pairs of ``functions``."""
    known = {function.rpartition(":")[2] for function in functions}
    split = (
        path.split("/")
        for path in registry.list_small_files([f"{EVIDENCE}/{function}" for function in sorted(known)])
    )
    return [
        "/".join(names)
        for names in split
        if len(names) == 5 and known.issuperset(names[1:3]) and all(map(_HEXADECIMAL.fullmatch, names[3:]))
    ]

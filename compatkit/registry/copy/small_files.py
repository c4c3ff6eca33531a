"""Copy signatures of manifests, results of pairs, and logs of aliases.

Existing files never change. An alias moves only if one side's log is a prefix of the other's. Policies are not copied,
because they apply to one registry.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

import attrs

from compatkit.errors import CompatkitError, IntegrityError, MalformedSignature, SignatureError
from compatkit.registry.aliases import Aliases
from compatkit.registry.copy.blobs import BlobCopier
from compatkit.registry.copy.endpoints import ComponentBlob, Origin, SmallFile, Target
from compatkit.registry.copy.report import Refusal, TransferReport, on_refusal
from compatkit.registry.evidence import FOLDER as EVIDENCE
from compatkit.registry.names import Reference, Version
from compatkit.registry.signing.signatures import FILE, FOLDER, LIMIT_PER_MANIFEST, file_name

_HEXADECIMAL = re.compile("[0-9a-f]{64}")
_NUMBER = re.compile("[1-9][0-9]{0,8}")


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
        new = [file for file in valid if file.path not in existing]
        return len(new) - len(target.create(new)), refused


def _signature_folder(digest: str) -> str:
    return f"{FOLDER}/{digest.removeprefix('sha256:')}"


def copy_results(
    copier: BlobCopier,
    functions: Sequence[str],
    refuse: Callable[[str, CompatkitError], None],
    *,
    every: bool,
) -> tuple[int, list[str]]:
    """Copy the results of all pairs of components, and everything that the results refer to.

    Args:
        copier: Blobs of the transfer.
        functions: Function digests of the components.
        refuse: Called with the path of a damaged result and the error; the others are copied.
        every: Whether to also verify the results that the target has, with everything that they refer to.

    Returns:
        Number of new results, and the digests of all results of the origin.

    Raises:
        EnvironmentFailure: Disk or network failed.
    """
    origin, target = copier.origin, copier.target
    paths = _result_paths(origin, functions)
    existing = set() if every else set(_result_paths(target, functions))
    digests: dict[str, str] = {}
    for path, content in origin.read_small_files([path for path in paths if path not in existing]):
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
    return len(files) - len(target.create(files)), [f"sha256:{path.rpartition('/')[2]}" for path in paths]


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


def follow_aliases(origin: Origin, target: Target, names: list[str], report: TransferReport) -> None:
    """Repeat the origin's changes of aliases in the target.

    Args:
        origin: Registry whose logs are followed.
        target: Registry whose aliases are changed.
        names: Names of components.
        report: Report to add moved aliases and refusals to.

    Raises:
        EnvironmentFailure: An alias cannot be read or written.
    """
    logs = [f"refs/{name}/@log" for name in names]
    folders = sorted({path.rpartition("/")[0] for path in origin.list_small_files(logs)})
    target_logs = _read_logs(target, folders)
    for folder, origin_log in sorted(_read_logs(origin, folders).items()):
        what = folder.removeprefix("refs/").replace("/@log/", ":")
        target_log = target_logs.get(folder, {})
        with (
            on_refusal(lambda error, what=what: report.refused.append(Refusal(what, error))),
            origin.translate_errors(),
            target.translate_errors(),
        ):
            diverged = _follow_alias(origin, target, folder, origin_log, target_log)
            if diverged is not None:
                report.diverged.append(diverged)
            elif origin_log.keys() - target_log.keys():
                report.aliases.append(what)


def _read_logs(registry: Origin, folders: list[str]) -> dict[str, dict[int, bytes]]:
    """Return the contents of numbered log files by folder and number."""
    paths = [
        path for path in registry.list_small_files(folders) if _NUMBER.fullmatch(path.rpartition("/")[2])
    ]
    files: dict[str, dict[int, bytes]] = defaultdict(dict)
    for path, content in registry.read_small_files(paths):
        folder, _, number = path.rpartition("/")
        if content and folder in folders:  # an empty file was cut off while it was written
            files[folder][int(number)] = content
    return files


def _follow_alias(
    origin: Origin, target: Target, folder: str, origin_log: dict[int, bytes], target_log: dict[int, bytes]
) -> str | None:
    """Move an alias if the origin's log extends the target's log.

    Args:
        origin: Registry whose log is followed.
        target: Registry whose alias is changed.
        folder: Folder of the alias's log.
        origin_log: Lines of the origin's log by number.
        target_log: Lines of the target's log by number.

    Returns:
        Why the alias stays unchanged; None if it moved or nothing was new.

    Raises:
        FormatError: The origin's log is damaged.
    """
    name, alias = folder.removeprefix("refs/").rsplit("/@log/", 1)
    moves = _aliases(origin, name).log(alias)
    last = moves[-1].after if moves else None
    agree = all(origin_log[number] == target_log[number] for number in origin_log.keys() & target_log.keys())
    new = sorted(origin_log.keys() - target_log.keys())
    if agree and not new and len(target_log) > len(origin_log):
        return None  # the target's log continues the origin's
    complete = sorted(origin_log) == list(range(1, len(origin_log) + 1))
    if not (complete and agree and all(number > max(target_log, default=0) for number in new)):
        current = _aliases(target, name).get(alias) or "removed"
        return f"{name}:{alias} is {last or 'removed'} in {origin.address} and {current} in {target.address}"
    if new and last is not None and target.current_digest(Reference(name, Version.parse(last))) is None:
        return f"{name}:{alias} is {last} in {origin.address}, which is not in {target.address}"
    for number in new:
        if target.create([SmallFile(f"{folder}/{number}", origin_log[number])]):
            return f"{name}:{alias} was moved concurrently in {target.address}"
    # the pointer follows the log, even if an earlier call was interrupted between the two
    pointer = f"refs/{name}/@aliases/{alias}"
    line = None if last is None else f"{last} {max(origin_log)}\n".encode()
    if target.read_small_file(pointer) != line:
        target.remove(pointer) if line is None else target.replace(pointer, line)
    return None


def _aliases(registry: Origin, name: str) -> Aliases:
    return Aliases(registry.references.folder(name), registry.references.root)

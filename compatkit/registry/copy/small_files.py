"""Copy signatures of manifests, results of pairs, and logs of aliases.

Existing files never change, and an alias moves only if one side's log is a prefix of the other's. Policies are not
copied: they are promises of one registry.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

import attrs

from compatkit.errors import CompatkitError, IntegrityError, MalformedSignature, SignatureError
from compatkit.registry.aliases import Aliases
from compatkit.registry.copy.endpoints import ComponentBlob, Origin, SmallFile, Target
from compatkit.registry.copy.report import Moved, Refusal, refusing
from compatkit.registry.copy.transfer import Transfer
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
        for path in self.origin.small_files(sorted(folders)):
            folder, _, name = path.rpartition("/")
            if folder in folders and FILE.fullmatch(name):
                paths[folder].append(path)
        wanted: list[str] = []
        for folder, inside in paths.items():
            if len(inside) > LIMIT_PER_MANIFEST:
                limit = f"expected at most {LIMIT_PER_MANIFEST} signatures, got {len(inside)}"
                what = f"{self.origin.where}/{folder}: {limit}."
                self.broken[folders[folder]] = IntegrityError(what, subject=folder)
            else:
                wanted += inside
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

    def valid_and_refused(self, digests: Iterable[str]) -> tuple[list[SmallFile], list[Refusal]]:
        """Return the well-formed signatures of manifests, and refusals of the other files."""
        sound: list[SmallFile] = []
        refused: list[Refusal] = []
        for digest in digests:
            for path, content in sorted(self.by_digest.get(digest, {}).items()):
                try:
                    name = file_name(content, digest)
                    if path.rpartition("/")[2] != name:
                        raise MalformedSignature(f"expected the file name {name}, from its key and content.")
                    sound.append(SmallFile(path, content))
                except SignatureError as error:
                    error.args = (f"{self.origin.where}/{path} is not copied: {error}",)
                    error.subject = path
                    refused.append(Refusal(path, error))
        return sound, refused

    def copy(self, target: Target, digests: Sequence[str]) -> tuple[int, list[Refusal]]:
        """Copy the signatures of manifests; existing files stay unchanged.

        Returns:
            Number of new files, and refusals of files that are not signatures of their manifest.
        """
        sound, refused = self.valid_and_refused(digests)
        existing = set(
            target.small_files([_signature_folder(digest) for digest in digests if digest in self.by_digest])
        )
        new = [file for file in sound if file.path not in existing]
        return len(new) - len(target.create(new)), refused


def _signature_folder(digest: str) -> str:
    return f"{FOLDER}/{digest.removeprefix('sha256:')}"


def copy_results(
    transfer: Transfer,
    functions: Sequence[str],
    refuse: Callable[[str, CompatkitError], None],
    *,
    every: bool,
) -> tuple[int, list[str]]:
    """Copy the results of all pairs of parts, and everything the results refer to.

    Args:
        transfer: The transfer.
        functions: Function digests of the parts.
        refuse: Called with the path of a damaged result and the error; the others are copied.
        every: Verify also the results that the target has, with everything they refer to.

    Returns:
        Number of new results, and the digests of all results of the origin.

    Raises:
        EnvironmentFailure: Disk or network failed.
    """
    origin, target = transfer.origin, transfer.target
    paths = _result_paths(origin, functions)
    existing = set() if every else set(_result_paths(target, functions))
    digests: dict[str, str] = {}
    for path, content in origin.read_small_files([path for path in paths if path not in existing]):
        digest = f"sha256:{path.rpartition('/')[2]}"
        if content == f"{digest}\n".encode():
            digests[path] = digest
            continue
        why = (
            f"{origin.where}/{path}: expected the digest in its name, got {content or b''!r:.80}. {origin.advice} Or "
            "do not copy results."
        )
        refuse(path, IntegrityError(why, subject=path))
    transfer.add([ComponentBlob(digest, "blob", f"the result {path}") for path, digest in digests.items()])
    needs: dict[str, list[str]] = {}
    for path, digest in digests.items():
        try:
            needs[path] = transfer.blobs_of(digest)
        except CompatkitError as error:
            refuse(path, error)
    needed = list(dict.fromkeys(part for parts in needs.values() for part in parts))
    failed = transfer.copy_all(needed if every else transfer.missing(needed))
    files: list[SmallFile] = []
    for path, parts in needs.items():
        if (wrong := next((failed[part] for part in parts if part in failed), None)) is not None:
            refuse(path, wrong)
            continue
        line = f"{digests[path]}\n".encode()
        files.append(SmallFile(path, line, lambda parts=parts: [transfer.copy(part) for part in parts]))
    return len(files) - len(target.create(files)), [f"sha256:{path.rpartition('/')[2]}" for path in paths]


def _result_paths(registry: Origin, functions: Iterable[str]) -> list[str]:
    """Return the paths of result files of pairs of ``functions``."""
    known = {function.rpartition(":")[2] for function in functions}
    split = (
        path.split("/")
        for path in registry.small_files([f"{EVIDENCE}/{function}" for function in sorted(known)])
    )
    return [
        "/".join(steps)
        for steps in split
        if len(steps) == 5 and known.issuperset(steps[1:3]) and all(map(_HEXADECIMAL.fullmatch, steps[3:]))
    ]


def follow_aliases(origin: Origin, target: Target, names: list[str], done: Moved) -> None:
    """Repeat the origin's alias moves in the target.

    Args:
        origin: Registry with the moves.
        target: Registry whose aliases move.
        names: Names of components.
        done: Report that receives moves and refusals.

    Raises:
        EnvironmentFailure: They cannot be read or written.
    """
    logs = [f"refs/{name}/@log" for name in names]
    folders = sorted({path.rpartition("/")[0] for path in origin.small_files(logs)})
    target_logs = _numbered(target, folders)
    for folder, theirs in sorted(_numbered(origin, folders).items()):
        what = folder.removeprefix("refs/").replace("/@log/", ":")
        ours = target_logs.get(folder, {})
        with (
            refusing(lambda error, what=what: done.refused.append(Refusal(what, error))),
            origin.translating(),
            target.translating(),
        ):
            apart = _follow(origin, target, folder, theirs, ours)
            if apart is not None:
                done.apart.append(apart)
            elif theirs.keys() - ours.keys():
                done.aliases.append(what)


def _numbered(registry: Origin, folders: list[str]) -> dict[str, dict[int, bytes]]:
    """Return the numbered files of folders by folder and number."""
    paths = [path for path in registry.small_files(folders) if _NUMBER.fullmatch(path.rpartition("/")[2])]
    files: dict[str, dict[int, bytes]] = defaultdict(dict)
    for path, content in registry.read_small_files(paths):
        folder, _, number = path.rpartition("/")
        if content and folder in folders:  # an empty file was cut off while it was written
            files[folder][int(number)] = content
    return files


def _follow(
    origin: Origin, target: Target, folder: str, theirs: dict[int, bytes], ours: dict[int, bytes]
) -> str | None:
    """Move an alias as the origin's log ``theirs`` extends the target's log ``ours``.

    Returns:
        Why the alias stays unchanged; None if it moved or nothing was new.

    Raises:
        FormatError: The origin's log is damaged.
    """
    name, alias = folder.removeprefix("refs/").rsplit("/@log/", 1)
    moves = _aliases(origin, name).log(alias)
    last = moves[-1].after if moves else None
    agree = all(theirs[number] == ours[number] for number in theirs.keys() & ours.keys())
    new = sorted(theirs.keys() - ours.keys())
    if agree and not new and len(ours) > len(theirs):
        return None  # the target's log continues the origin's
    complete = sorted(theirs) == list(range(1, len(theirs) + 1))
    if not (complete and agree and all(number > max(ours, default=0) for number in new)):
        current = _aliases(target, name).get(alias) or "removed"
        return f"{name}:{alias} is {last or 'removed'} in {origin.where} and {current} in {target.where}"
    if new and last is not None and target.current_digest(Reference(name, Version.parse(last))) is None:
        return f"{name}:{alias} is {last} in {origin.where}, which is not in {target.where}"
    for number in new:
        if target.create([SmallFile(f"{folder}/{number}", theirs[number])]):
            return f"{name}:{alias} was moved concurrently in {target.where}"
    # the pointer follows the log, even if an earlier call was interrupted between the two
    pointer = f"refs/{name}/@aliases/{alias}"
    line = None if last is None else f"{last} {max(theirs)}\n".encode()
    if target.small_file(pointer) != line:
        target.remove(pointer) if line is None else target.replace(pointer, line)
    return None


def _aliases(registry: Origin, name: str) -> Aliases:
    return Aliases(registry.references.folder(name), registry.references.root)

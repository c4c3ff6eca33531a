"""The small files of a move beside versions: signatures of manifests, results of pairs, logs of aliases.

Nothing that was decided on either side is undone: files are created once, and an alias follows only where one side's
log is the beginning of the other's. Policies do not move: they are what one registry promises.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

import attrs

from compatkit.errors import (
    CompatkitError,
    EnvironmentFailure,
    IntegrityError,
    MalformedSignature,
    SignatureError,
)
from compatkit.registry.aliases import Aliases
from compatkit.registry.copy.places import ComponentBlob, Note, Origin, Target
from compatkit.registry.copy.report import Moved, Refusal
from compatkit.registry.copy.transfer import Transfer
from compatkit.registry.evidence import FOLDER as EVIDENCE
from compatkit.registry.names import Reference, Version
from compatkit.registry.signing.signatures import FILE, FOLDER, MOST, file_name
from compatkit.registry.store import Store

_HEXADECIMAL = re.compile("[0-9a-f]{64}")
_NUMBER = re.compile("[1-9][0-9]{0,8}")


@attrs.frozen
class SignatureFiles:
    """The signatures of some manifests in an origin; not verified, for ``Accept`` says which count.

    Attributes:
        origin: Where they are.
        by_digest: Path and content of each, by manifest digest.
        broken: Why those of a manifest cannot be read, by its digest.
    """

    origin: Origin
    by_digest: dict[str, dict[str, bytes]] = attrs.field(factory=dict)
    broken: dict[str, IntegrityError] = attrs.field(factory=dict)

    def read(self, digests: Iterable[str]) -> None:
        """Read the signatures of manifests; files with other names are left alone."""
        folders = {_signature_folder(one): one for one in digests}
        paths: dict[str, list[str]] = defaultdict(list)
        for path in self.origin.notes(sorted(folders)):
            folder, _, name = path.rpartition("/")
            if folder in folders and FILE.fullmatch(name):
                paths[folder].append(path)
        for folder, found in paths.items():
            if len(found) > MOST:
                self.broken[folders[folder]] = IntegrityError(
                    f"{self.origin.where}/{folder} holds {len(found)} signatures; at most {MOST} are read.",
                    subject=folder,
                )
        wanted = [
            one for folder, found in paths.items() if folders[folder] not in self.broken for one in found
        ]
        for path, content in self.origin.read_notes(wanted):
            if content is not None:
                self.by_digest.setdefault(folders[path.rpartition("/")[0]], {})[path] = content

    def of(self, digest: str) -> list[bytes]:
        """Return the signatures of a manifest, in the order of their names.

        Raises:
            IntegrityError: There are more than 1,000.
        """
        if digest in self.broken:
            raise self.broken[digest]
        return [content for _, content in sorted(self.by_digest.get(digest, {}).items())]

    def sorted_out(self, digests: Iterable[str]) -> tuple[list[Note], list[Refusal]]:
        """Return what is a signature of its manifest, by its form, and what only has the name of one."""
        sound: list[Note] = []
        refused: list[Refusal] = []
        for digest in digests:
            for path, content in sorted(self.by_digest.get(digest, {}).items()):
                try:
                    name = file_name(content, digest)
                    if path.rpartition("/")[2] != name:
                        raise MalformedSignature(
                            f"its name should be {name}, after the key and the bytes that it holds."
                        )
                    sound.append(Note(path, content))
                except SignatureError as error:
                    error.args = (f"{self.origin.where}/{path} stays behind: {error}",)
                    error.subject = path
                    refused.append(Refusal(path, error))
        return sound, refused

    def copy(self, target: Target, digests: Sequence[str]) -> tuple[int, list[Refusal]]:
        """Copy the signatures of manifests; what is there stays as it is.

        Args:
            target: Where to copy.
            digests: Of the manifests.

        Returns:
            How many are new there, and what was left behind because it is no signature of its manifest.
        """
        sound, refused = self.sorted_out(digests)
        there = set(target.notes([_signature_folder(one) for one in digests if one in self.by_digest]))
        new = [one for one in sound if one.path not in there]
        return len(new) - len(target.create(new)), refused


def _signature_folder(digest: str) -> str:
    return f"{FOLDER}/{digest.removeprefix('sha256:')}"


def copy_results(
    transfer: Transfer,
    functions: Sequence[str],
    refuse: Callable[[str, CompatkitError], None],
    *,
    anew: bool,
) -> tuple[int, list[str]]:
    """Copy the results of every pair of parts with whatever they refer to.

    Args:
        transfer: Of the move.
        functions: Function digests of the parts.
        refuse: Called with the path of a result that is damaged, and why; the others move.
        anew: Check that what results refer to is there and good, also where the target has the result already.

    Returns:
        How many are new there, and the digests of all of the origin.

    Raises:
        EnvironmentFailure: Disk or network failed.
    """
    origin, target = transfer.origin, transfer.target
    paths = _result_paths(origin, functions)
    there = set() if anew else set(_result_paths(target, functions))
    digests: dict[str, str] = {}
    for path, content in origin.read_notes([one for one in paths if one not in there]):
        digest = f"sha256:{path.rpartition('/')[2]}"
        if content == f"{digest}\n".encode():
            digests[path] = digest
            continue
        why = (
            f"{origin.where}/{path} should hold the digest that it is named by, got {content or b''!r:.80}. "
            f"{origin.advice} Or leave the results behind."
        )
        refuse(path, IntegrityError(why, subject=path))
    transfer.take([ComponentBlob(one, "blob", f"the result {path}") for path, one in digests.items()])
    needs: dict[str, list[str]] = {}
    for path, digest in digests.items():
        try:
            needs[path] = transfer.of(digest)
        except CompatkitError as error:
            refuse(path, error)
    needed = list(dict.fromkeys(part for held in needs.values() for part in held))
    failed = transfer.bring_all(needed if anew else transfer.lacking(needed))
    notes: list[Note] = []
    for path, held in needs.items():
        if (wrong := next((failed[one] for one in held if one in failed), None)) is not None:
            refuse(path, wrong)
            continue
        line = f"{digests[path]}\n".encode()
        notes.append(Note(path, line, lambda held=held: [transfer.bring(one) for one in held]))
    return len(notes) - len(target.create(notes)), [f"sha256:{path.rpartition('/')[2]}" for path in paths]


def _result_paths(place: Origin, functions: Iterable[str]) -> list[str]:
    """Return the paths of the files that point at results of pairs of ``functions``."""
    known = {one.rpartition(":")[2] for one in functions}
    found = (path.split("/") for path in place.notes([f"{EVIDENCE}/{one}" for one in sorted(known)]))
    return [
        "/".join(one)
        for one in found
        if len(one) == 5 and known.issuperset(one[1:3]) and all(map(_HEXADECIMAL.fullmatch, one[3:]))
    ]


def follow_aliases(origin: Origin, target: Target, names: list[str], done: Moved) -> None:
    """Let the aliases of some names follow those of the origin.

    Args:
        origin: Registry to follow.
        target: Registry whose aliases move.
        names: Of components.
        done: Gets the moves and the refusals.

    Raises:
        EnvironmentFailure: They cannot be read or written.
    """
    logs = [f"refs/{name}/@log" for name in names]
    folders = sorted({path.rpartition("/")[0] for path in origin.notes(logs)})
    here = _numbered(target, folders)
    for folder, theirs in sorted(_numbered(origin, folders).items()):
        what = folder.removeprefix("refs/").replace("/@log/", ":")
        mine = here.get(folder, {})
        try:
            with origin.translating(), target.translating():
                apart = _follow(origin, target, folder, theirs, mine)
        except EnvironmentFailure:
            raise
        except CompatkitError as error:
            done.refused.append(Refusal(what, error))
            continue
        if apart is not None:
            done.apart.append(apart)
        elif theirs.keys() - mine.keys():
            done.aliases.append(what)


def _numbered(place: Origin, folders: list[str]) -> dict[str, dict[int, bytes]]:
    """Return the numbered files of folders."""
    paths = [one for one in place.notes(folders) if _NUMBER.fullmatch(one.rpartition("/")[2])]
    found: dict[str, dict[int, bytes]] = defaultdict(dict)
    for path, content in place.read_notes(paths):
        folder, _, number = path.rpartition("/")
        if content and folder in folders:  # an empty file is one that was cut off: nothing changed
            found[folder][int(number)] = content
    return found


def _follow(
    origin: Origin, target: Target, folder: str, theirs: dict[int, bytes], here: dict[int, bytes]
) -> str | None:
    """Let an alias follow; return why it stays as it is, None if it moved or nothing was new.

    Args:
        origin: Where the log is that is followed.
        target: Where the alias moves.
        folder: Of the log, relative to a registry.
        theirs: The origin's log, by number.
        here: The target's.

    Raises:
        FormatError: The origin's log is damaged.
    """
    name, alias = folder.removeprefix("refs/").rsplit("/@log/", 1)
    moves = _aliases(origin, name).log(alias)
    last = moves[-1].after if moves else None
    agree = all(theirs[one] == here[one] for one in theirs.keys() & here.keys())
    new = sorted(theirs.keys() - here.keys())
    if agree and not new and len(here) > len(theirs):
        return None  # it has moved on there
    whole = sorted(theirs) == list(range(1, len(theirs) + 1))
    if not (whole and agree and all(one > max(here, default=0) for one in new)):
        there = _aliases(target, name).get(alias)
        return f"{name}:{alias} is {last or 'removed'} in {origin.where} and {there or 'removed'} in {target.where}"
    if new and last is not None and target.digest_now(Reference(name, Version.parse(last))) is None:
        return f"{name}:{alias} is {last} in {origin.where}, which is not in {target.where}"
    for number in new:
        if target.create([Note(f"{folder}/{number}", theirs[number])]):
            return f"{name}:{alias} was moved in {target.where} at this moment"
    # the pointer says what the log says, also where an earlier call was cut off between both
    pointer = f"refs/{name}/@aliases/{alias}"
    line = None if last is None else f"{last} {max(theirs)}\n".encode()
    if target.note(pointer) != line:
        target.remove(pointer) if line is None else target.replace(pointer, line)
    return None


def set_aliases(origin: Origin, store: Store, names: list[str]) -> list[str]:
    """Set the aliases of some names as they are in the origin, wherever they point here; return those that moved.

    Args:
        origin: Registry to follow.
        store: Registry whose aliases move.
        names: Of components.
    """
    moved: list[str] = []
    for name in names:
        alive, here = {str(version) for version in store.versions(name)}, store.aliases(name)
        for alias, version in _aliases(origin, name).all().items():
            if version in alive and here.get(alias) != version:
                store.set_alias(name, alias, version)
                moved.append(f"{name}:{alias}")
    return moved


def _aliases(place: Origin, name: str) -> Aliases:
    return Aliases(place.references.folder(name), place.references.root)

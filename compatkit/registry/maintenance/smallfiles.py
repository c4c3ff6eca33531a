"""The small files of a registry: versions, tombstones, aliases, policies, pointers to results, signatures.

For each kind, what a sound one holds, and the faults of those that are not sound.
"""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import attrs

from compatkit.contracts.codec import loads
from compatkit.contracts.manifest import Manifest, from_bytes
from compatkit.errors import EnvironmentFailure, FormatError, IntegrityError, InvalidName, SignatureError
from compatkit.registry import disk as durable
from compatkit.registry.aliases import AliasEntry
from compatkit.registry.maintenance.faults import answer, shown
from compatkit.registry.maintenance.survey import Name, Survey, odd_kind
from compatkit.registry.names import Version
from compatkit.registry.policylog import FOLDER, file_name, understood
from compatkit.registry.refs import LIMIT, pointed, read_line
from compatkit.registry.scan import AliasMove, AliasPointer, Place, PolicyFile, TombstoneFile, VersionFile
from compatkit.registry.signing.envelope import LIMIT as SIGNATURE_LIMIT
from compatkit.registry.signing.signatures import file_name as signature_name
from compatkit.registry.steps import untrue

PATIENCE = 1.0
"""Seconds; a shorter version file that is younger may be one that another process is writing at this moment."""
_CUT_OFF = re.compile(
    rb"|s|sh|sha|sha2|sha25|sha256|sha256:[0-9a-f]{0,64}|sha256:[0-9a-f]{64} [a-z0-9._/@-]*"
)
"""What is left of the line of a version when its writing was cut off."""
_NUMBER = re.compile("[0-9]{1,18}")


@attrs.frozen
class Published:
    """A version file that holds a digest."""

    name: str
    version: Version
    digest: str

    def __str__(self) -> str:
        return f"{self.name}@{self.version}"


# --- what they hold


def read_json(content: bytes) -> Any:
    """Return the JSON value in a small file, None where it holds none."""
    try:
        return loads(content, what="file")
    except FormatError:
        return None


def is_cut_off(content: bytes) -> bool:
    """Tell whether a version file holds the beginning of what one holds, or nothing."""
    return _CUT_OFF.fullmatch(content) is not None


def is_tombstone(content: bytes) -> bool:
    """Tell whether a tombstone can be read."""
    value = read_json(content)
    return isinstance(value, dict) and isinstance(value.get("reason"), str)


def is_result_pointer(content: bytes, result: str) -> bool:
    """Tell whether a pointer to a result holds the digest that it is named by."""
    return content.strip() == f"sha256:{result}".encode()


def read_move(content: bytes, number: int) -> AliasEntry | None:
    """Return what an entry of an alias's log says; None if it is damaged."""
    value = read_json(content)
    if not isinstance(value, dict) or not {"from", "to", "time"} <= value.keys():
        return None
    if not all(value[key] is None or _is_version(value[key]) for key in ("from", "to")):
        return None
    return AliasEntry(number, value["from"], value["to"], str(value["time"]))


def read_pointer(content: bytes) -> tuple[str, int] | None:
    """Return version and number of an alias's pointer, 0 where it has no number; None if it is damaged."""
    words = content.decode("ascii", "replace").split()
    if not 1 <= len(words) <= 2 or not _is_version(words[0]):
        return None
    number = words[1] if len(words) == 2 else "0"
    return (words[0], int(number)) if _NUMBER.fullmatch(number) else None


def signature_fault(content: bytes, digest: str, name: str) -> str | None:
    """Return why a file is no signature of a manifest under this name; None if it is one."""
    if len(content) > SIGNATURE_LIMIT:
        return f"a signature has at most {SIGNATURE_LIMIT} bytes"
    try:
        expected = signature_name(content, digest)
    except SignatureError as error:
        return str(error)
    if expected != name:
        return f"its name says other bytes; these belong to {os.path.basename(expected)}: {shown(content)}"
    return None


def age(path: Path) -> float:
    """Return how many seconds ago a file was written; infinity where that cannot be told, or lies ahead."""
    try:
        seconds = time.time() - os.lstat(path).st_mtime
    except OSError:
        return math.inf
    return seconds if seconds >= 0 else math.inf


def _is_version(text: Any) -> bool:
    try:
        return bool(Version.parse(text))
    except InvalidName:
        return False


# --- whether they are sound


def small_file(survey: Survey, place: Place, whose: tuple[str, ...] = ()) -> bytes | None:
    """Return the content of a file of at most 64 KiB; None, and a fault, where that is not possible."""
    full = survey.root / place.path
    try:
        if odd := odd_kind(full, os.lstat(full).st_mode, "file"):
            survey.findings.add(odd[0], place, odd[1], whose)
            return None
        found = durable.read(full, survey.root, limit=LIMIT + 1)
    except FileNotFoundError:
        return None  # it was removed while the rest was looked at
    except IntegrityError as error:  # a folder above it became a link in the meantime
        survey.findings.add("symlink", place, str(error), whose)
        return None
    except (OSError, EnvironmentFailure) as error:
        survey.findings.add("unreadable", place, answer(error), whose)
        return None
    return None if found is None else found[0]


def read_versions(survey: Survey, wanted: Callable[[str, Version], bool]) -> list[Published]:
    """Return every version that is wanted and points at a digest; report the others."""
    return [
        Published(name, version, digest)
        for name, held in sorted(survey.names.items())
        for version in sorted(held.versions)
        if wanted(name, version) and (digest := _digest(survey, name, version)) is not None
    ]


def _digest(survey: Survey, name: str, version: Version) -> str | None:
    place, whose = survey.names[name].versions[version], (f"{name}@{version}",)
    content = small_file(survey, place, whose)
    if content is not None and is_cut_off(content) and (left := PATIENCE - age(survey.root / place.path)) > 0:
        time.sleep(min(left, PATIENCE))
        content = small_file(survey, place, whose)
    if content is None:
        return None
    if (digest := pointed(content, whose[0])) is not None:
        return digest
    expected = f"expected 'sha256:', 64 hex digits and {whose[0]}, got"
    if (line := read_line(content)) is not None:
        survey.findings.add("version-exchanged", place, f"it is the file of {line[1]}", whose)
    elif is_cut_off(content):
        what = f"{expected} the first {len(content)} bytes: a publish was cut off"
        survey.findings.add("version-torn", place, what, whose)
    else:
        survey.findings.add("version-content", place, f"{expected} {shown(content)}", whose)
    return None


def check_numbers(survey: Survey, versions: Sequence[Published], read: Callable[[str], bytes | None]) -> None:
    """Report versions whose number is too small a step from the one below them; withdrawn ones promise nothing.

    Args:
        survey: What is there.
        versions: Those that are looked at.
        read: Returns the bytes of a document; None where it is missing or damaged, which is told elsewhere.
    """
    digests = {(one.name, one.version): one.digest for one in versions}
    for name in dict.fromkeys(one.name for one in versions):
        held = survey.names[name]
        last: tuple[str, Manifest | None] = "", None
        for below, version in pairwise(sorted(held.versions.keys() - held.tombstones.keys())):
            after = digests.get((name, version))
            if after is None:
                continue
            before = digests.get((name, below)) or _pointed(survey, held.versions[below])
            if before == after:
                continue
            old = last[1] if last[0] == before else _manifest(before, read)
            last = after, _manifest(after, read)
            why = untrue((below, old), (version, last[1])) if old and last[1] else ""
            if why:
                survey.findings.add("version-step", held.versions[version], why, (f"{name}@{version}",))


def _pointed(survey: Survey, place: VersionFile) -> str:
    """Return the digest of a version that is not itself looked at; empty where its file does not tell."""
    try:
        found = durable.read(survey.root / place.path, survey.root, limit=LIMIT)
    except (EnvironmentFailure, IntegrityError):
        return ""
    return (pointed(found[0], f"{place.name}@{place.version}") if found is not None else None) or ""


def _manifest(digest: str, read: Callable[[str], bytes | None]) -> Manifest | None:
    data = read(digest) if digest else None
    try:
        return None if data is None else from_bytes(data)
    except FormatError:
        return None


def check_tombstones(survey: Survey, wanted: Callable[[str, Version], bool]) -> None:
    """Report tombstones that cannot be read, or of versions that are not there."""
    for name, held in sorted(survey.names.items()):
        for version, place in sorted(held.tombstones.items()):
            whose = (f"{name}@{version}",)
            content = small_file(survey, place, whose) if wanted(name, version) else None
            if content is None:
                continue
            if not is_tombstone(content):
                what = f"expected an object with reason and time, got {shown(content)}"
                survey.findings.add("tombstone-damaged", place, what, whose)
            if version not in held.versions and not survey.is_hidden(f"refs/{name}/@versions"):
                what = f"{name} has no version {version}; one that is published under this number is withdrawn at once"
                survey.findings.add("tombstone-orphan", place, what, whose)
    for (name, version), place in sorted(survey.withdrawals.items()):
        whose = (f"{name}@{version}",)
        if not wanted(name, version) or name not in survey.names:
            continue
        held, tombstone = survey.names[name], f"refs/{name}/@tombstones/{version}"
        content = small_file(survey, place, whose)
        if content is not None and not is_tombstone(content):
            what = f"expected an object with reason and time, got {shown(content)}"
            survey.findings.add("tombstone-damaged", place, what, whose)
        is_lost = version in held.versions and version not in held.tombstones
        if is_lost and not survey.is_hidden(os.path.dirname(tombstone)) and not survey.is_there(tombstone):
            what = f"{place.path} remembers that {name}@{version} was withdrawn"
            survey.findings.add("tombstone-missing", TombstoneFile(tombstone, name, version), what, whose)


def check_aliases(survey: Survey, wanted: Callable[[str], bool]) -> None:
    """Report aliases that cannot be read, contradict their logs, or point at nothing; and gaps in logs."""
    for name, held in sorted(survey.names.items()):
        if wanted(name):
            for alias in sorted({*held.aliases, *held.moves}):
                place = AliasPointer(f"refs/{name}/@aliases/{alias}", name, alias)
                _check_alias(survey, held, place, (f"{name}:{alias}",))


def _check_alias(survey: Survey, held: Name, place: AliasPointer, whose: tuple[str]) -> None:
    name, alias, add = place.name, place.alias, survey.findings.add
    log = AliasMove(f"refs/{name}/@log/{alias}", name, alias, 0)
    numbers = sorted(held.moves.get(alias, ()))
    for _, reached, missing in _gaps(numbers, lambda number: survey.root / f"{log.path}/{number}"):
        what = f"move {missing} is not there, move {reached} is: readers may stop before it"
        add("alias-log-gap", log, what, whose)
    moves = dict(_moves(survey, held.moves.get(alias, {}), whose))
    whole, last = numbers == list(range(1, len(moves) + 1)), numbers[-1] if numbers else 0
    version, number = None, 0
    if alias in held.aliases:
        content = small_file(survey, place, whose)
        if content is None:
            return
        pointer = read_pointer(content)
        if pointer is None:
            what = f"expected a version and the number of its move, such as '1.2.0 3', got {shown(content)}"
            add("alias-damaged", place, what, whose)
            return
        version, number = pointer
    if number in moves and moves[number].after != version:
        what = f"the pointer says {version}, move {number} of its log says {moves[number].after or 'nothing'}"
        add("alias-damaged", place, what, whose)
        return
    if survey.is_hidden(log.path) or survey.is_hidden(f"refs/{name}/@aliases"):
        return
    if number > last:
        if survey.is_there(f"{log.path}/{number}"):
            return  # somebody moved it since the folder was listed
        add("alias-log-gap", log, f"the pointer names move {number}, the log ends with {last}", whose)
    elif whole and number < last and (version or moves[last].after):
        add("alias-behind", place, f"the pointer is of move {number}, the log ends with {last}", whose)
    if moves:
        version = moves[max(moves)].after  # whatever the pointer says
    if version is not None and whole and not survey.is_hidden(f"refs/{name}/@versions"):
        target = Version.parse(version)
        if target not in held.versions and not survey.is_there(f"refs/{name}/@versions/{version}"):
            add("alias-dangling", place, f"it points at {version}, which {name} does not have", whose)
        elif target in held.tombstones:
            add("alias-withdrawn", place, f"it points at {version}, which was withdrawn", whose)


def _moves(
    survey: Survey, files: dict[int, AliasMove], whose: tuple[str]
) -> Iterator[tuple[int, AliasEntry]]:
    """Yield the moves that can be read, by number; report the others."""
    for number, place in sorted(files.items()):
        content = small_file(survey, place, whose)
        if content is None:
            continue
        move = read_move(content, number)
        if move is None:
            what = f"expected an object with from, to and time, got {shown(content)}"
            survey.findings.add("alias-log-damaged", place, what, whose)
        else:
            yield number, move


def _gaps(numbers: Sequence[int], path: Callable[[int], Path]) -> Iterator[tuple[int, int, str]]:
    """Yield the first number that is missing before another, that other, and in words what is missing.

    Args:
        numbers: Those that were found, rising; they should begin with 1.
        path: Where a number belongs; it may have come since the others were found.
    """
    for before, number in pairwise([0, *numbers]):
        first = before + 1
        if number > first and not os.path.lexists(path(first)):
            yield first, number, f"{first}" if number == first + 1 else f"{first} to {number - 1}"


def check_policies(survey: Survey) -> None:
    """Report changes of policies that cannot be read or are not there."""
    for scope, files in sorted(survey.policies.items()):
        numbers = sorted(files)
        place = partial(policy_file, scope)
        for first, reached, missing in _gaps(numbers, lambda one, place=place: survey.root / place(one).path):
            what = f"{missing} {'is' if reached == first + 1 else 'are'} not there, {reached} is: its history is lost"
            survey.findings.add("policy-gap", place(first), what, (scope,))
        for number in numbers:
            content = small_file(survey, files[number], (scope,))
            try:
                if content is not None:
                    understood(content, scope, number)
            except FormatError as error:
                since = (
                    "Nothing in its scope is published" if number == numbers[-1] else "A later change holds"
                )
                what = f"expected a policy of {scope}, got {shown(content or b'')}: {error} {since}"
                survey.findings.add("policy-damaged", files[number], what, (scope,))


def policy_file(scope: str, number: int) -> PolicyFile:
    """Return where a change of the policy of a scope belongs."""
    return PolicyFile(f"{FOLDER}/{file_name(scope, number)}", scope, number)


def check_results(survey: Survey, label: Callable[[str, str], str]) -> list[tuple[str, str]]:
    """Return in words which pair was measured, and the digest, of each pointer to a result; report damaged ones.

    Args:
        survey: What is there.
        label: Says in words which pair two function digests are.
    """
    found: list[tuple[str, str]] = []
    for one in survey.results:
        whose = label(one.extractor, one.head)
        content = small_file(survey, one, (whose,))
        if content is None:
            continue
        if is_result_pointer(content, one.result):
            found.append((whose, f"sha256:{one.result}"))
        else:
            what = f"expected the digest in its name, got {shown(content)}"
            survey.findings.add("evidence-damaged", one, what, (whose,))
    return found


def check_signatures(
    survey: Survey, users: Callable[[str], tuple[str, ...]], here: Collection[str] | None
) -> None:
    """Report signatures that are damaged, or of manifests that are not here and that nobody misses.

    Args:
        survey: What is there.
        users: Returns who uses a blob.
        here: All blobs, or None where not all were looked at.
    """
    orphans: dict[str, int] = {}
    for one in survey.signatures:
        digest = f"sha256:{one.signed}"
        whose = users(digest)
        content = small_file(survey, one, whose)
        if content is None:
            continue
        if (wrong := signature_fault(content, digest, one.file)) is not None:
            survey.findings.add("signature-damaged", one, wrong, whose)
        elif here is not None and digest not in here and not whose:
            orphans[one.signed] = orphans.get(one.signed, 0) + 1
    for signed, count in orphans.items():
        what = f"{count} of a manifest that is not here; good again if it comes"
        survey.findings.add("signature-orphan", f"signatures/{signed}", what)

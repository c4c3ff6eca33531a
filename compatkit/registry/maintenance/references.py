"""Check what refers to blobs: versions and their numbers, aliases, policies, results, signatures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import NamedTuple

from compatkit.contracts.manifest import Manifest
from compatkit.errors import EnvironmentFailure, IntegrityError
from compatkit.registry.aliases import read_move, read_pointer
from compatkit.registry.maintenance.survey import NameFiles, Survey
from compatkit.registry.names import Version
from compatkit.registry.policylog import FOLDER, file_name
from compatkit.registry.refs import LIMIT, pointed, read_line
from compatkit.registry.scan import AliasMove, AliasPointer, PolicyFile, TombstoneFile, VersionFile
from compatkit.registry.steps import untrue


class Published(NamedTuple):
    """A version file that contains a digest."""

    name: str
    version: Version
    digest: str
    label: str


def read_versions(survey: Survey, wanted: Callable[[str, Version], bool]) -> list[Published]:
    """Return the wanted versions that point to a digest; report damaged ones."""
    versions: list[Published] = []
    for name, files in sorted(survey.names.items()):
        for version, place in sorted(files.versions.items()):
            label = f"{name}@{version}"
            if wanted(name, version) and (line := read_line(survey.read(place, (label,)) or b"")):
                versions.append(Published(name, version, line[0], label))
    return versions


class Numbers:
    """Checks whether the number of a version is a large enough step from the one below; ignores withdrawn ones."""

    def __init__(
        self, survey: Survey, versions: Sequence[Published], read: Callable[[str], Manifest | None]
    ) -> None:
        """Prepare.

        Args:
            survey: The files; gets the faults.
            versions: Versions to check.
            read: Returns a manifest; None if missing or damaged, which is reported elsewhere.
        """
        self._survey, self._read = survey, read
        self._digests = {(published.name, published.version): published.digest for published in versions}
        self._below: dict[tuple[str, Version], Version] = {}
        for name in dict.fromkeys(published.name for published in versions):
            files = survey.names[name]
            rising = sorted(files.versions.keys() - files.tombstones.keys())
            self._below.update(((name, version), below) for below, version in pairwise(rising))

    def check(self, published: Published) -> None:
        """Report the number of a version if it understates the change."""
        below = self._below.get((published.name, published.version))
        if below is None or published.version.major > below.major:  # no change needs more
            return
        files = self._survey.names[published.name]
        before = self._digests.get((published.name, below)) or _pointed(self._survey, files.versions[below])
        if before == published.digest:
            return
        old, new = self._read(before), self._read(published.digest)
        if old and new and (why := untrue((below, old), (published.version, new))):
            self._survey.findings.add(
                "version-step", files.versions[published.version], why, (published.label,)
            )


def _pointed(survey: Survey, place: VersionFile) -> str:
    """Return the digest of a version that is not itself checked; empty if its file is damaged."""
    with suppress(EnvironmentFailure, IntegrityError):
        content = survey.content(place.path, LIMIT) or b""
        return pointed(content, f"{place.name}@{place.version}") or ""
    return ""


def check_tombstones(survey: Survey, wanted: Callable[[str, Version], bool]) -> None:
    """Report wanted tombstones that are unreadable, lost, or of missing versions."""
    for name, files in sorted(survey.names.items()):
        for version, place in sorted(files.tombstones.items()):
            if not wanted(name, version):
                continue
            affected = (f"{name}@{version}",)
            survey.read(place, affected)
            if version not in files.versions and not survey.is_hidden(f"refs/{name}/@versions"):
                what = f"{name} has no version {version}; one that is published under this number is withdrawn at once"
                survey.findings.add("tombstone-orphan", place, what, affected)

    for (name, version), place in sorted(survey.withdrawals.items()):
        affected = (f"{name}@{version}",)
        if not wanted(name, version) or name not in survey.names:
            continue
        survey.read(place, affected)
        files, path = survey.names[name], f"refs/{name}/@tombstones/{version}"
        is_lost = version in files.versions and version not in files.tombstones
        if is_lost and not survey.is_hidden(f"refs/{name}/@tombstones") and not survey.is_there(path):
            what = f"{place.path} records that {name}@{version} was withdrawn"
            survey.findings.add("tombstone-missing", TombstoneFile(path, name, version), what, affected)


def check_aliases(survey: Survey, wanted: Callable[[str], bool]) -> None:
    """Report aliases that are unreadable, contradict their logs, or point to nothing; and gaps in logs."""
    for name, files in sorted(survey.names.items()):
        for alias in sorted({*files.aliases, *files.moves}) if wanted(name) else ():
            _check_alias(survey, files, AliasPointer(f"refs/{name}/@aliases/{alias}", name, alias))


def _check_alias(survey: Survey, of_name: NameFiles, place: AliasPointer) -> None:
    name, alias, add = place.name, place.alias, survey.findings.add
    affected = (f"{name}:{alias}",)
    files, log = of_name.moves.get(alias, {}), f"refs/{name}/@log/{alias}"
    numbers = sorted(files)
    for first, reached, missing in _gaps(survey, numbers, f"{log}/{{}}".format):
        what = f"move {missing} is not there, move {reached} is: its history is lost"
        add("alias-log-gap", AliasMove(f"{log}/{first}", name, alias, first), what, affected)
    contents = {number: survey.read(files[number], affected) for number in numbers}
    moves = {
        number: move
        for number, content in contents.items()
        if content and (move := read_move(content, number)) is not None
    }
    last = numbers[-1] if numbers else 0
    version, number = None, 0
    if alias in of_name.aliases:
        content = survey.read(place, affected)
        pointer = read_pointer(content) if content is not None else None
        if pointer is None:
            return
        version, number = pointer
    if number in moves and moves[number].after != version:
        what = f"the pointer says {version}, move {number} of its log says {moves[number].after or 'nothing'}"
        add("alias-damaged", place, what, affected)
        return
    if survey.is_hidden(log) or survey.is_hidden(f"refs/{name}/@aliases"):
        return
    if number > last and not survey.is_there(
        f"{log}/{number}"
    ):  # else it was moved after the folder was listed
        add("alias-damaged", place, f"the pointer names move {number}, the log ends with {last}", affected)
        return
    if moves:
        version = moves[max(moves)].after  # the log takes precedence over the pointer
    if version is not None and not survey.is_hidden(f"refs/{name}/@versions"):
        target = Version.parse(version)
        if target not in of_name.versions and not survey.is_there(f"refs/{name}/@versions/{version}"):
            add("alias-dangling", place, f"it points at {version}, which {name} does not have", affected)
        elif target in of_name.tombstones:
            add("alias-withdrawn", place, f"it points at {version}, which was withdrawn", affected)


def _gaps(
    survey: Survey, numbers: Sequence[int], path: Callable[[int], str]
) -> Iterator[tuple[int, int, str]]:
    """Yield the gaps in a log: first missing number, number after the gap, and a description of the missing ones.

    Args:
        survey: The files.
        numbers: Existing numbers, ascending; they should begin with 1.
        path: Returns the path of a number, which may have been created since the listing.
    """
    for before, number in pairwise([0, *numbers]):
        first = before + 1
        if number > first and not survey.is_there(path(first)):
            yield first, number, f"{first}" if number == first + 1 else f"{first} to {number - 1}"


def check_policies(survey: Survey) -> None:
    """Report changes of policies that are unreadable or missing."""
    for scope, files in sorted(survey.policies.items()):
        for first, reached, missing in _gaps(
            survey, sorted(files), lambda number, scope=scope: policy_file(scope, number).path
        ):
            what = f"change {missing} is not there, change {reached} is: its history is lost"
            survey.findings.add("policy-gap", policy_file(scope, first), what, (scope,))
        for _, place in sorted(files.items()):
            survey.read(place, (scope,))


def policy_file(scope: str, number: int) -> PolicyFile:
    """Return the place of a change of the policy of a scope.

    Args:
        scope: A name or glob.
        number: Of the change, from 1.
    """
    return PolicyFile(f"{FOLDER}/{file_name(scope, number)}", scope, number)


def check_results(survey: Survey, label: Callable[[str, str], str]) -> list[tuple[str, str]]:
    """Return description of the pair and digest of each sound pointer to a result; report damaged ones.

    Args:
        survey: The files.
        label: Describes the pair of two function digests.
    """
    labeled = [(label(pointer.extractor, pointer.head), pointer) for pointer in survey.results]
    return [
        (affected, f"sha256:{pointer.result}")
        for affected, pointer in labeled
        if survey.read(pointer, (affected,)) is not None
    ]


def check_signatures(survey: Survey, users: Callable[[str], tuple[str, ...]]) -> None:
    """Report signatures that are damaged, or of manifests that are neither here nor used.

    Args:
        survey: The files.
        users: Returns the references that use a blob.
    """
    orphans = Counter[str]()
    for signature in survey.signatures:
        digest = f"sha256:{signature.signed}"
        affected = users(digest)
        if survey.read(signature, affected) is not None and digest not in survey.blobs and not affected:
            orphans[signature.signed] += 1
    for signed, count in orphans.items():
        what = f"{count} of a manifest that is not here; good again if it comes"
        survey.findings.add("signature-orphan", f"signatures/{signed}", what)

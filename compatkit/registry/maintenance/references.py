"""Check the references to blobs: versions and their numbers, aliases, policies, results, signatures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from compatkit.errors import EnvironmentFailure, IntegrityError, SignatureError
from compatkit.foundation.codec import digest as digest_of
from compatkit.registry.aliases import read_move, read_pointer
from compatkit.registry.layout_scan import AliasMove, AliasPointer, PolicyFile, TombstoneFile, VersionFile
from compatkit.registry.log import LIMIT
from compatkit.registry.names import Reference, Version, numbers_of
from compatkit.registry.policy_scopes import FOLDER, file_name
from compatkit.registry.refs import digest_in
from compatkit.registry.settings import rules_of
from compatkit.registry.signing.signatures import Signatures
from compatkit.registry.withdrawals import entry_path

if TYPE_CHECKING:
    from compatkit.contracts.manifest import Manifest
    from compatkit.registry.maintenance.survey import NameFiles, Survey


class Published(NamedTuple):
    """A version file that contains a digest.

    Attributes:
        name: Name of the component.
        version: Version number.
        digest: Digest of the manifest.
        label: ``name@version``.
    """

    name: str
    version: Version
    digest: str
    label: str


def read_versions(survey: Survey, wanted: Callable[[str, Version], bool]) -> list[Published]:
    """Return the wanted versions that point to a digest; report damaged ones."""
    versions: list[Published] = []
    for name, files in sorted(survey.names.items()):
        for version in sorted(files.versions, key=numbers_of):
            label = f"{name}@{version}"
            if wanted(name, version) and (digest := survey.manifest_of(files.versions[version], label)):
                versions.append(Published(name, version, digest, label))
    return versions


class StepChecks:
    """Checks whether version numbers are large enough steps from the previous version that was not withdrawn."""

    def __init__(
        self, survey: Survey, versions: Sequence[Published], read: Callable[[str], Manifest | None]
    ) -> None:
        """Initialize.

        Args:
            survey: Files of the registry; faults are added to it.
            versions: Versions to check.
            read: Function that returns a manifest; None if missing or damaged, which is reported elsewhere.
        """
        self._survey, self._read = survey, read
        self._digests = {published.label: published.digest for published in versions}
        self._below: dict[str, Version] = {}
        for name in dict.fromkeys(published.name for published in versions):
            files = survey.names[name]
            remaining = sorted(files.versions.keys() - files.withdrawn, key=numbers_of)
            self._below.update((f"{name}@{version}", below) for below, version in pairwise(remaining))

    def check(self, published: Published) -> None:
        """Report the number of a version if it is too small a step for the change."""
        below = self._below.get(published.label)
        if below is None or published.version.major > below.major:  # no change needs more
            return
        files = self._survey.names[published.name]
        before = self._digests.get(f"{published.name}@{below}") or _digest_of(
            self._survey, files.versions[below]
        )
        if before == published.digest:
            return
        from compatkit.registry.version_bumps import why_understated

        old, new = self._read(before), self._read(published.digest)
        if old and new and (why := why_understated((below, old), (published.version, new))):
            self._survey.findings.add(
                "version-step", files.versions[published.version], why, (published.label,)
            )


def _digest_of(survey: Survey, entry: VersionFile) -> str:
    """Return the digest of a version outside the checked ones; empty if its file is damaged."""
    with suppress(EnvironmentFailure, IntegrityError):
        content = survey.content(entry.path, LIMIT) or b""
        return digest_in(content, f"{entry.name}@{entry.version}") or ""
    return ""


def check_tombstones(survey: Survey, wanted: Callable[[str, Version], bool]) -> None:
    """Report wanted withdrawals and restorations that are unreadable, lost, or of missing versions."""
    for name, files in sorted(survey.names.items()):
        for version, entries in sorted(files.tombstones.items()):
            if not wanted(name, version):
                continue
            affected = (f"{name}@{version}",)
            for _, entry in sorted(entries.items()):
                survey.read(entry, affected)
            if version not in files.versions and not survey.is_hidden(f"refs/{name}/@versions"):
                what = f"{name} has no version {version}; a new one would be withdrawn at once"
                survey.findings.add("tombstone-orphan", entries[max(entries)], what, affected)

    for entry in sorted(survey.withdrawals):
        name, version, number = entry[1:]
        affected = (f"{name}@{version}",)
        if not wanted(name, version) or name not in survey.names:
            continue
        survey.read(entry, affected)
        files, path = survey.names[name], entry_path(name, version, number)
        is_lost = version in files.versions and number not in files.tombstones.get(version, {})
        if is_lost and not survey.is_hidden(f"refs/{name}/@tombstones") and not survey.exists(path):
            what = (
                f"{entry.path} records that {name}@{version} was {'withdrawn' if number % 2 else 'restored'}"
            )
            survey.findings.add(
                "tombstone-missing", TombstoneFile(path, name, version, number), what, affected
            )


def check_drops(
    survey: Survey, wanted: Callable[[str, Version], bool], versions: Sequence[Published], *, complete: bool
) -> None:
    """Report damaged records of dropped numbers, and dropped components without another name.

    Args:
        survey: Files of the registry; faults are added to it.
        wanted: Whether to check a version.
        versions: Versions that were read.
        complete: Whether these are all versions of the registry.
    """
    published_digests = {published.digest for published in versions}
    for name, files in sorted(survey.names.items()):
        for version, entries in sorted(files.drops.items()):
            if not wanted(name, version):
                continue
            from compatkit.registry.drop_records import read_drop

            affected, last = (f"{name}@{version}",), None
            for number, entry in sorted(entries.items()):
                content = survey.read(entry, affected)
                last = read_drop(content, number) if content is not None else last
            path = f"refs/{name}/@versions/{version}"
            if last is None or not complete or last.digest in published_digests or survey.exists(path):
                continue
            remaining = Reference.parse(last.kept)
            if not survey.exists(f"refs/{remaining.name}/@versions/{remaining.version}"):
                what = f"{last.digest} was kept as {last.kept}, which is missing"
                survey.findings.add("dropped-unnamed", entries[last.number], what, affected)


def check_aliases(survey: Survey, wanted: Callable[[str], bool]) -> None:
    """Report aliases that are unreadable, contradict their logs, or point to nothing; and gaps in logs."""
    for name, files in sorted(survey.names.items()):
        for alias in sorted({*files.aliases, *files.moves}) if wanted(name) else ():
            _check_alias(survey, files, AliasPointer(f"refs/{name}/@aliases/{alias}", name, alias))


def _check_alias(survey: Survey, name_files: NameFiles, entry: AliasPointer) -> None:
    name, alias, add = entry.name, entry.alias, survey.findings.add
    affected = (f"{name}:{alias}",)
    files, log = name_files.moves.get(alias, {}), f"refs/{name}/@log/{alias}"
    numbers = sorted(files)
    for first, next_number, missing in _gaps(survey, numbers, f"{log}/{{}}".format):
        what = f"move {missing} is missing, but move {next_number} exists"
        add("alias-log-gap", AliasMove(f"{log}/{first}", name, alias, first), what, affected)
    contents = {number: survey.read(files[number], affected) for number in numbers}
    moves = {
        number: move
        for number, content in contents.items()
        if content and (move := read_move(content, number)) is not None
    }
    last = numbers[-1] if numbers else 0
    version, number = None, 0
    if alias in name_files.aliases:
        content = survey.read(entry, affected)
        pointer = read_pointer(content) if content is not None else None
        if pointer is None:
            return
        version, number = pointer
    if number in moves and moves[number].after != version:
        what = (
            f"version {version} in the pointer, {moves[number].after or 'none'} in move {number} of its log"
        )
        add("alias-damaged", entry, what, affected)
        return
    if survey.is_hidden(log) or survey.is_hidden(f"refs/{name}/@aliases"):
        return
    if number > last and not survey.exists(
        f"{log}/{number}"
    ):  # else it was moved after the folder was listed
        add(
            "alias-damaged",
            entry,
            f"expected move {number}, as in the pointer, but the log ends with {last}",
            affected,
        )
        return
    if moves:
        version = moves[max(moves)].after  # the log takes precedence over the pointer
    if version is not None and not survey.is_hidden(f"refs/{name}/@versions"):
        target = Version.parse(version)
        if target not in name_files.versions and not survey.exists(f"refs/{name}/@versions/{version}"):
            add("alias-dangling", entry, f"it points to {version}, which is missing", affected)
        elif target in name_files.withdrawn:
            add("alias-withdrawn", entry, f"it points to {version}, which was withdrawn", affected)


def _gaps(
    survey: Survey, numbers: Sequence[int], path: Callable[[int], str]
) -> Iterator[tuple[int, int, str]]:
    """Yield the gaps in a log: first missing number, number after the gap, and a description of the missing ones."""
    for before, number in pairwise([0, *numbers]):
        first = before + 1
        if number > first and not survey.exists(path(first)):  # it may have been created since the listing
            yield first, number, f"{first}" if number == first + 1 else f"{first} to {number - 1}"


def check_settings(survey: Survey) -> None:
    """Report changes of the settings that do not count, and unsigned moves of protected aliases."""
    rules = rules_of(survey.root)
    errors = {change.number: change.error for change in rules.history if change.error}
    for entry in survey.settings:
        if entry.number in errors:
            survey.findings.add("settings-refused", entry, errors[entry.number])
    signatures = Signatures(survey.root)
    for name, files in sorted(survey.names.items()):
        for alias in sorted(filter(rules.settings.protects, files.moves)):
            for _, entry in sorted(files.moves[alias].items()):
                data = survey.content(entry.path, LIMIT) or b""
                with suppress(EnvironmentFailure, IntegrityError):
                    try:
                        rules.check_entry(entry.path, data, signatures.of)
                    except SignatureError as error:
                        survey.findings.add("alias-unsigned", entry, str(error), (f"{name}:{alias}",))


def check_publications(survey: Survey) -> None:
    """Report records of publications that cannot be read."""
    for entry in survey.publications:
        survey.read(entry, (f"{entry.name}@{entry.version}",))


def check_policies(survey: Survey) -> None:
    """Report changes of policies that are unreadable or missing."""
    for scope, files in sorted(survey.policies.items()):
        for first, next_number, missing in _gaps(
            survey, sorted(files), lambda number, scope=scope: policy_file(scope, number).path
        ):
            what = f"change {missing} is missing, but change {next_number} exists"
            survey.findings.add("policy-gap", policy_file(scope, first), what, (scope,))
        for _, entry in sorted(files.items()):
            survey.read(entry, (scope,))


def policy_file(scope: str, number: int) -> PolicyFile:
    """Return the entry of a numbered change of the policy of a scope."""
    return PolicyFile(f"{FOLDER}/{file_name(scope, number)}", scope, number)


def check_results(survey: Survey, label: Callable[[str, str], str]) -> list[tuple[str, str]]:
    """Return label and digest of each sound pointer to a result; report damaged ones.

    Args:
        survey: Files of the registry; faults are added to it.
        label: Function that describes a pair of function digests.
    """
    results: list[tuple[str, str]] = []
    for pointer in survey.results:
        pair = label(pointer.extractor, pointer.head)
        if survey.read(pointer, (pair,)) is not None:
            results.append((pair, f"sha256:{pointer.result}"))
    return results


def check_signatures(survey: Survey, users: Callable[[str], tuple[str, ...]]) -> None:
    """Report damaged signatures, and signatures of manifests and entries that are missing and not used."""
    orphans = Counter[str]()
    for signature in survey.signatures:
        digest = f"sha256:{signature.signed}"
        affected = users(digest)
        content = survey.read(signature, affected)
        if content is None or digest in survey.blobs or affected:
            continue
        from compatkit.registry.signing.envelope import parse

        statement = parse(content)[1]
        entry = survey.content(str(statement.name), LIMIT) if statement.is_change else None
        if entry is None or digest_of(entry) != digest:
            orphans[signature.signed] += 1
    for signed, count in orphans.items():
        what = f"{count} of a missing manifest or entry; valid again once it is copied here"
        survey.findings.add("signature-orphan", f"signatures/{signed}", what)

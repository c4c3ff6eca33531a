"""Changes of names that both sides of a transfer have: moves of aliases, withdrawals and restorations.

Each is an entry of a log. An entry is copied only if the target's log is a prefix of the origin's, so that nothing
recorded there is lost. What the target lacks is added: new aliases, and new versions with their withdrawals. What
exists stays as it is unless the settings ask to follow; what is not followed is offered in the report. Where signatures
are required, each copied entry must be signed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

import attrs

from compatkit.errors import CompatkitError, FormatError, SignatureError
from compatkit.foundation.codec import digest as digest_of
from compatkit.registry.aliases import Aliases
from compatkit.registry.copy.endpoints import Origin, SmallFile, Target
from compatkit.registry.copy.report import OfferedChange, Refusal, TransferReport, Withdrawal, on_refusal
from compatkit.registry.copy.settings import TransferSettings
from compatkit.registry.copy.small_files import SignatureFiles
from compatkit.registry.log import NUMBER
from compatkit.registry.names import Reference, Version
from compatkit.registry.settings import SettingsInForce
from compatkit.registry.withdrawals import entry_path, second_path

if TYPE_CHECKING:
    from compatkit.registry.store import Store

Entries = Mapping[int, SmallFile]
"""Entries of one log by number."""


@attrs.define(eq=False)
class ChangeFollower:
    """Copies entries of logs to the target of a transfer, or offers them.

    Attributes:
        origin: Registry whose changes are followed; not trusted.
        target: Registry that is changed.
        settings: Settings of the transfer.
        report: Report to add changes, offers and refusals to.
        signatures: Signatures in the origin.
        rules: Settings of the target.
        restore: Function that restores a version by calling its second argument; raises if the target does not admit
            the version.
    """

    origin: Origin
    target: Target
    settings: TransferSettings
    report: TransferReport
    signatures: SignatureFiles
    rules: SettingsInForce
    restore: Callable[[Reference, Callable[[], None]], None]

    # --- withdrawals

    def withdraw_new(self, references: Iterable[Reference]) -> set[Reference]:
        """Copy the withdrawals of versions that the target does not have yet, so that none is usable for a moment.

        Returns:
            The versions that were withdrawn.
        """
        withdrawn: set[Reference] = set()
        for reference, entries, existing in self._withdrawals(references):
            if new := new_entries(entries, existing):
                self._create_withdrawals(reference, new)
                if reference in self.origin_withdrawn([reference]):
                    self._report_withdrawn(reference)
                    withdrawn.add(reference)
        return withdrawn

    def take_back(self, reference: Reference, store: Store) -> None:
        """Restore another component that was published here under a number whose withdrawal had just arrived.

        Args:
            reference: Version in the origin.
            store: Registry that is the target.
        """
        reason = f"The withdrawal is of {reference.digest} in {self.origin.address}, not of this component"
        withdrawals = store.references.withdrawals(reference.name)
        withdrawals.append(_version(reference), reason, restore=True, author=store.author)

    def follow_withdrawals(self, references: Iterable[Reference]) -> None:
        """Copy or offer the withdrawals and restorations of versions that the target had before the transfer."""
        references = list(references)
        withdrawn = self.origin_withdrawn(references)
        for reference, entries, existing in self._withdrawals(references):
            with on_refusal(partial(self._refuse, str(reference))):
                self._follow_withdrawal(reference, entries, existing, is_withdrawn=reference in withdrawn)

    def _follow_withdrawal(
        self, reference: Reference, entries: Entries, existing: Entries, *, is_withdrawn: bool
    ) -> None:
        """Copy or offer the withdrawal or restoration of a version, if origin and target differ in it."""
        self._copy_signatures(_common(entries, existing))
        was_withdrawn = max(existing, default=0) % 2 == 1
        if was_withdrawn == is_withdrawn:
            return
        new = new_entries(entries, existing)
        if not new:
            self.report.withdrawn.append(Withdrawal(reference, self._reason(self.target, reference)))
            return
        kind = "restoration" if was_withdrawn else "withdrawal"
        reason = self._reason(self.origin, reference, max(entries))
        offer = OfferedChange(kind, str(reference), reason, "--follow-withdrawals")
        is_restricted = bool(self.rules.settings.maintainers)
        if not self._may_follow(offer, self.settings.follow_withdrawals, new, is_restricted):
            return
        create = partial(self._create_withdrawals, reference, new)
        if was_withdrawn:
            self.restore(reference, create)
        else:
            create()
        self._report_withdrawn(reference)

    def origin_withdrawn(self, references: Iterable[Reference]) -> set[Reference]:
        """Return the versions that the origin has withdrawn."""
        with self.origin.translate_errors():
            return {
                reference
                for reference in references
                if reference.version in self.origin.references.withdrawn(reference.name)
            }

    def check_withdrawal(self, reference: Reference) -> None:
        """Raise if the withdrawals of a version in the origin cannot be read, or lack a required signature.

        Raises:
            FormatError: An entry is damaged, or the version would not be withdrawn in the target.
            SignatureError: An entry has no trusted signature.
        """
        for _, entries, existing in self._withdrawals([reference]):
            with self.origin.translate_errors():
                self.origin.references.withdrawals(reference.name).log(_version(reference))
            if max({*existing, *(new_entries(entries, existing) or ())}, default=0) % 2 == 0:
                raise FormatError(
                    f"{reference} is withdrawn in {self.origin.address}, by the entries {sorted(entries)} of its log, "
                    f"which do not follow the entries {sorted(existing)} of {self.target.address}: expected 1 and the "
                    "numbers after it, without gaps.",
                    subject=str(reference),
                )
            self._check_signed(entries.values())

    def _withdrawals(self, references: Iterable[Reference]) -> Iterator[tuple[Reference, Entries, Entries]]:
        """Yield versions that either side has withdrawn at some time, with the entries of origin and target."""
        numbers: dict[str, list[Mapping[Version, list[int]]]] = {}
        sides = self.origin, self.target
        for reference in references:
            if reference.name not in numbers:
                numbers[reference.name] = [
                    side.references.withdrawals(reference.name).numbers() for side in sides
                ]
            found = [by_version.get(_version(reference), []) for by_version in numbers[reference.name]]
            if any(found):
                entries, existing = (
                    _read(
                        side,
                        {number: entry_path(reference.name, reference.version, number) for number in each},
                    )
                    for side, each in zip(sides, found, strict=True)
                )
                yield reference, entries, existing

    def _create_withdrawals(self, reference: Reference, new: Entries) -> None:
        if self.settings.dry_run:
            return
        self._copy_signatures(new)
        for number, file in sorted(new.items()):
            second = SmallFile(second_path(reference.name, reference.version, number), file.data)
            self.target.create([second])
            self.target.create([file])

    def _report_withdrawn(self, reference: Reference) -> None:
        self.report.withdrawn.append(Withdrawal(reference, self._reason(self.origin, reference)))

    def _reason(self, side: Origin, reference: Reference, number: int | None = None) -> str:
        with side.translate_errors():
            withdrawals = side.references.withdrawals(reference.name)
            log = withdrawals.log(_version(reference))
        entry = next((entry for entry in reversed(log) if number in (None, entry.number)), None)
        return "" if entry is None else entry.reason

    # --- aliases

    def follow_aliases(self, names: list[str]) -> None:
        """Copy or offer the moves of the origin's aliases.

        Args:
            names: Names of components.

        Raises:
            EnvironmentFailure: An alias cannot be read or written.
        """
        logs = [f"refs/{name}/@log" for name in names]
        folders = sorted({path.rpartition("/")[0] for path in self.origin.list_small_files(logs)})
        target_logs = _read_logs(self.target, folders)
        for folder, entries in sorted(_read_logs(self.origin, folders).items()):
            what = folder.removeprefix("refs/").replace("/@log/", ":")
            with (
                on_refusal(partial(self._refuse, what)),
                self.origin.translate_errors(),
                self.target.translate_errors(),
            ):
                self._follow_alias(folder, entries, target_logs.get(folder, {}))

    def _follow_alias(self, folder: str, entries: Entries, existing: Entries) -> None:
        """Copy or offer the moves of one alias.

        Args:
            folder: Folder of the alias's log.
            entries: Moves in the origin.
            existing: Moves in the target.

        Raises:
            FormatError: A log is damaged.
        """
        name, alias = folder.removeprefix("refs/").rsplit("/@log/", 1)
        self._copy_signatures(_common(entries, existing))
        origin, target, what = self.origin.address, self.target.address, f"{name}:{alias}"
        moves = _aliases(self.origin, name).log(alias)
        last = moves[-1].after if moves else None
        if entries.keys() < existing.keys() and _agree(entries, existing):
            return  # the target's log continues the origin's
        current = _aliases(self.target, name).get(alias)
        new = new_entries(entries, existing)
        if new is None:
            text = f"{what} is {last or 'removed'} in {origin} and {current or 'removed'} in {target}"
            self.report.diverged.append(text)
            return
        if new:
            if last is not None and not self._is_in_target(Reference(name, Version.parse(last))):
                text = f"{what} is {last} in {origin}, which is not in {target}, or another component there"
                self.report.diverged.append(text)
                return
            offer = OfferedChange(
                "alias", what, f"{current or 'none'} -> {last or 'removed'}", "--follow-aliases"
            )
            is_absent = current is None and not existing
            is_asked = (
                self.settings.follow_aliases or is_absent or self._is_half_copied(name, alias, existing)
            )
            is_protected = self.rules.settings.protects(alias)
            if not self._may_follow(offer, is_asked, new, is_protected):
                return
            if not self.settings.dry_run:
                self._copy_signatures(new)
                for _, file in sorted(new.items()):
                    if self.target.create([file]):
                        self.report.diverged.append(f"{what} was moved concurrently in {target}")
                        return
            self.report.aliases.append(what)
        if not self.settings.dry_run:
            self._point(name, alias, last, max(entries, default=0))

    def _is_half_copied(self, name: str, alias: str, existing: Entries) -> bool:
        """Return whether an interrupted transfer left the moves of a new alias without its pointer, written last."""
        moves = _aliases(self.target, name).log(alias)
        is_pointed = self.target.read_small_file(f"refs/{name}/@aliases/{alias}") is not None
        return bool(existing and moves) and moves[-1].after is not None and not is_pointed

    def _is_in_target(self, reference: Reference) -> bool:
        """Return whether the target has the same component under this name and version, or will have it."""
        planned = {(version.name, version.version): version.digest for version in self.report.created}
        existing = planned.get((reference.name, reference.version)) or self.target.current_digest(reference)
        return existing is not None and existing == self.origin.digest(reference)

    def _point(self, name: str, alias: str, version: str | None, number: int) -> None:
        """Let the pointer follow the log, even if an earlier transfer was interrupted between the two."""
        pointer = f"refs/{name}/@aliases/{alias}"
        line = None if version is None else f"{version} {number}\n".encode()
        if self.target.read_small_file(pointer) != line:
            self.target.remove(pointer) if line is None else self.target.replace(pointer, line)

    # --- what may be followed

    def _refuse(self, what: str, error: CompatkitError) -> None:
        self.report.refused.append(Refusal(what, self.origin.translate_error(error)))

    def _may_follow(
        self, offer: OfferedChange, is_requested: bool, new: Entries, is_restricted: bool
    ) -> bool:
        """Return whether entries may be copied; otherwise report them as an offer.

        Args:
            offer: Change to report.
            is_requested: Whether the change is requested.
            new: Entries to copy.
            is_restricted: Whether only maintainers of the target may make the change.
        """
        try:
            self._check_signed(new.values())
            if is_restricted:
                self._check_maintained(new.values())
        except SignatureError as error:
            self.report.offered.append(attrs.evolve(offer, error=error))
            return False
        if not is_requested:
            self.report.offered.append(offer)
        return is_requested

    def _check_signed(self, files: Iterable[SmallFile]) -> None:
        if not self.settings.trusted:
            return
        from compatkit.registry.signing.checks import check_change

        by_digest = {digest_of(file.data): file for file in files}
        self.signatures.read(by_digest)
        for digest, file in by_digest.items():
            for trusted in self.settings.trusted:
                check_change(file.path, file.data, self.signatures.of(digest), trusted)

    def _check_maintained(self, files: Iterable[SmallFile]) -> None:
        by_digest = {digest_of(file.data): file for file in files}
        self.signatures.read(by_digest)
        for file in by_digest.values():
            self.rules.check_entry(file.path, file.data, lambda digest, keys: self.signatures.of(digest))

    def _copy_signatures(self, entries: Entries) -> None:
        if self.settings.dry_run:
            return
        digests = [digest_of(file.data) for file in entries.values()]
        self.signatures.read(digests)
        copied, refused = self.signatures.copy(self.target, digests)
        self.report.signatures += copied
        self.report.refused += refused


def new_entries(entries: Entries, existing: Entries) -> Entries | None:
    """Return the entries that extend an existing log; None if the logs contradict each other, or have gaps.

    Args:
        entries: Entries of the origin.
        existing: Entries of the target.
    """
    new = {number: file for number, file in entries.items() if number not in existing}
    is_complete = sorted(entries) == list(range(1, len(entries) + 1))
    is_later = all(number > max(existing, default=0) for number in new)
    return new if is_complete and is_later and _agree(entries, existing) else None


def _common(entries: Entries, existing: Entries) -> Entries:
    return {number: file for number, file in entries.items() if existing.get(number) == file}


def _agree(entries: Entries, existing: Entries) -> bool:
    return len(_common(entries, existing)) == len(entries.keys() & existing.keys())


def _read(side: Origin, paths: Mapping[int, str]) -> Entries:
    """Return the files of a log; an empty file was cut off while it was written."""
    contents = dict(side.read_small_files(list(paths.values())))
    return {number: SmallFile(path, content) for number, path in paths.items() if (content := contents[path])}


def _read_logs(side: Origin, folders: list[str]) -> dict[str, Entries]:
    """Return the numbered files of each folder."""
    paths: dict[str, dict[int, str]] = defaultdict(dict)
    for path in side.list_small_files(folders):
        folder, _, number = path.rpartition("/")
        if folder in folders and NUMBER.fullmatch(number):
            paths[folder][int(number)] = path
    contents = dict(side.read_small_files([path for files in paths.values() for path in files.values()]))
    return {
        folder: {
            number: SmallFile(path, content) for number, path in files.items() if (content := contents[path])
        }
        for folder, files in paths.items()
    }


def _version(reference: Reference) -> Version:
    return reference.version or Version(0, 0, 0)


def _aliases(side: Origin, name: str) -> Aliases:
    return Aliases(side.references.folder(name), side.references.root)

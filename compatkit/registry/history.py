"""The history of a name: its versions, withdrawals and alias moves, read from their files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import attrs

from compatkit.errors import CompatkitError, FormatError, IntegrityError, NotFound
from compatkit.registry.aliases import Aliases
from compatkit.registry.drop_records import drop_log, read_drop
from compatkit.registry.maintenance.survey import NameFiles, Survey
from compatkit.registry.names import Bump, Version, check_name, is_digest
from compatkit.registry.publications import PublicationRecord, publication
from compatkit.registry.version_bumps import published_change
from compatkit.registry.versions.diff import Difference, diff
from compatkit.registry.withdrawals import Tombstone

if TYPE_CHECKING:
    from compatkit.contracts.manifest import Manifest
    from compatkit.registry.layout_scan import AliasMove, DropFile, TombstoneFile
    from compatkit.registry.store import Store

What = Literal["published", "withdrawn", "restored", "dropped", "alias"]
REASONS = 3
"""Maximum number of reasons listed for a version step."""


@attrs.frozen
class HistoryEntry:
    """One event.

    Attributes:
        when: UTC, ISO 8601, to the second, as recorded; for a version without a record it is the modification time of
            its file, which copies of a registry may have changed. Empty if unknown.
        what: ``"published"``, ``"withdrawn"``, ``"restored"``, ``"dropped"`` or ``"alias"``.
        version: The version that was published, withdrawn, restored or dropped, or to which an alias moved; empty if
            that was removed.
        detail: The version step with its reasons, the reason of a withdrawal or drop, or the move of an alias.
        step: Required step from the previous version; None for the first version, withdrawals and aliases.
        damaged: Whether a file could not be read; ``detail`` names it.
        by: Author: key, or user as they called themselves; empty if not recorded.
        commit: Git commit of the author's folder; empty if not recorded.
    """

    when: str
    what: What
    version: str
    detail: str
    step: Bump | None = None
    damaged: bool = False
    by: str = ""
    commit: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return attrs.asdict(self)


def log(store: Store, name: str, files: NameFiles | None = None) -> list[HistoryEntry]:
    """Return the history of a name, newest first; each damaged file is an entry of its own.

    Manifests are compared, no weights are read. The previous version is the next lower number.

    Args:
        store: Files of the registry.
        name: Name of a component.
        files: Files of the name, from a survey of many names; None lists them.

    Raises:
        NotFound: The registry has no files of this name.
        InvalidName: The name is not valid.
    """
    check_name(name)
    if files is None:
        survey = Survey(store.root)
        survey.scan(f"refs/{name}")
        if name not in survey.names:
            store.versions(name)  # raises with similar names
            raise NotFound(f"no component is named {name!r}.", subject=name)
        files = survey.names[name]
    entries = list(_published(store, name, files))
    for alias, moves in sorted(files.moves.items()):
        entries += [_moved(store, move, alias) for _, move in sorted(moves.items())]
    for _, tombstones in sorted(files.tombstones.items()):
        entries += [_withdrawn(store, tombstone) for _, tombstone in sorted(tombstones.items())]
    for _, records in sorted(files.drops.items()):
        entries += [_dropped(store, record) for _, record in sorted(records.items())]
    # entries of the same second keep their logical order: clocks of files and logs are coarse
    return sorted(reversed(entries), key=lambda entry: int(_timestamp(entry.when)), reverse=True)


def change_between(store: Store, old: str, new: str) -> Difference:
    """Return the changes between two components; for two versions of one name, with the published version steps.

    Args:
        store: Files of the registry.
        old: Reference of the old component, or digest of its manifest.
        new: Reference of the new component, or digest of its manifest.

    Raises:
        NotFound: A reference does not resolve.
        IntegrityError: A manifest is missing or damaged.
    """
    before, after = store.manifest(old), store.manifest(new)
    if not is_digest(old) and not is_digest(new):
        left, right = store.resolve(old), store.resolve(new)
        if left.name == right.name and left.version is not None and right.version is not None:
            admitted = f"{right.name}@{right.version}" in store.policies.admitted(right.name)
            return published_change((left.version, before), (right.version, after), admitted=admitted)
    return diff(before, after)


def _damaged(store: Store, path: str, what: What, version: str, error: CompatkitError) -> HistoryEntry:
    """Return the entry for a file that cannot be read, at the time of its last change."""
    modified = _iso(_modified(store.root / path))
    return HistoryEntry(modified, what, version, f"damaged: {error}", damaged=True)


def _published(store: Store, name: str, files: NameFiles) -> Iterator[HistoryEntry]:
    before: tuple[Version, Manifest] | None = None
    admitted = store.policies.admitted(name)
    for version, version_file in sorted(files.versions.items()):
        try:
            digest = store.references.digest(name, version)
            manifest = store.manifest(str(digest)) if digest is not None else None
        except CompatkitError as error:
            yield _damaged(store, version_file.path, "published", str(version), error)
            continue
        if manifest is None:
            continue  # removed in the meantime
        step, detail = None, "the first version"
        if before is not None:
            step, detail = _step(before, (version, manifest), f"{name}@{version}" in admitted)
        record = _record(store, name, version, digest)
        when = record.time if record is not None else _iso(_modified(store.root / version_file.path))
        by, commit = (record.by, record.commit) if record is not None else ("", "")
        yield HistoryEntry(when, "published", str(version), detail, step, by=by, commit=commit)
        before = version, manifest


def _record(store: Store, name: str, version: Version, digest: str | None) -> PublicationRecord | None:
    """Return the record of a publication; None if it is missing, damaged or of another component."""
    with suppress(CompatkitError):
        record = publication(store.root, name, version)
        return record if record is not None and record.digest == digest else None
    return None


def _step(
    before: tuple[Version, Manifest], after: tuple[Version, Manifest], admitted: bool
) -> tuple[Bump, str]:
    change = published_change(before, after, admitted=admitted)
    if change.bump == "none":
        return "none", f"the same as {before[0]}"
    reasons = [
        reason
        for grouped in change.by_level().values()
        for bump, reason in grouped
        if bump == change.bump  # reasons of smaller steps do not explain it
    ]
    unique = dict.fromkeys(reasons)
    more = f"; and {len(unique) - REASONS} more" if len(unique) > REASONS else ""
    return change.bump, f"{change.bump} from {before[0]}: {'; '.join(list(unique)[:REASONS])}{more}"


def _withdrawn(store: Store, file: TombstoneFile) -> HistoryEntry:
    version, what = str(file.version), "withdrawn" if file.number % 2 else "restored"
    try:
        tombstone = store.references.withdrawals(file.name).entry(file.version, file.number)
    except CompatkitError as error:
        return _damaged(store, file.path, what, version, error)
    tombstone = tombstone or Tombstone("", "")
    return HistoryEntry(
        tombstone.time, what, version, tombstone.reason, by=tombstone.by, commit=tombstone.commit
    )


def _dropped(store: Store, file: DropFile) -> HistoryEntry:
    version = str(file.version)
    try:
        content = drop_log(store.references, file.name, file.version).read(file.number) or b""
    except CompatkitError as error:
        return _damaged(store, file.path, "dropped", version, error)
    record = read_drop(content, file.number)
    if record is None:
        error = FormatError(
            f"{store.root / file.path} cannot be read; run `compatkit verify`.", subject=file.path
        )
        return _damaged(store, file.path, "dropped", version, error)
    detail = f"{record.reason}; kept as {record.kept}"
    with suppress(IntegrityError):
        if store.references.digest(file.name, file.version) == record.digest:
            detail += "; the number is its own again, or dropping it was interrupted"
    return HistoryEntry(record.time, "dropped", version, detail, by=record.by, commit=record.commit)


def _moved(store: Store, file: AliasMove, alias: str) -> HistoryEntry:
    try:
        move = Aliases(store.references.folder(file.name), store.root).move(alias, file.number)
    except CompatkitError as error:
        return _damaged(store, file.path, "alias", "", error)
    if move is None:
        return HistoryEntry("", "alias", "", f":{alias} did not move: writing the move was interrupted")
    origin = "" if move.before is None else f"{move.before} "
    detail = f":{alias} {origin}-> {move.after or 'nothing'}"
    return HistoryEntry(move.time, "alias", move.after or "", detail, by=move.by, commit=move.commit)


def _modified(path: Path) -> float:
    try:
        return os.lstat(path).st_mtime
    except OSError:
        return 0.0


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds") if seconds > 0 else ""


def _timestamp(when: str) -> float:
    try:
        return datetime.fromisoformat(when).timestamp()
    except ValueError:
        return 0.0

"""The history of a name: versions, withdrawals and moves of aliases, from the files that each of them left."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import attrs

from compatkit.contracts.manifest import Manifest
from compatkit.errors import CompatkitError, NotFound
from compatkit.registry.aliases import Aliases
from compatkit.registry.layout_scan import AliasMove, TombstoneFile
from compatkit.registry.maintenance.survey import NameFiles, Survey
from compatkit.registry.names import Bump, Version, check_name, is_digest
from compatkit.registry.refs import Tombstone
from compatkit.registry.version_bumps import published_change
from compatkit.registry.versions.diff import Difference, diff

if TYPE_CHECKING:
    from compatkit.registry.store import Store

What = Literal["published", "withdrawn", "alias"]
REASONS = 3
"""Reasons of a step that are listed, the largest first."""


@attrs.frozen
class HistoryEntry:
    """One thing that happened.

    Attributes:
        when: UTC, ISO 8601, to the second. Withdrawals and moves of aliases record it; for a version it is the
            modification time of its file, which copies of a registry may have changed. Empty if unknown.
        what: ``"published"``, ``"withdrawn"`` or ``"alias"``.
        version: The version that was published or withdrawn, or that an alias points at since; empty if removed.
        detail: The least step and why, the reason of a withdrawal, or how an alias moved.
        step: Least step from the previous version, of a published one; None for others and the first.
        damaged: Whether files could not be read; ``detail`` says which.
    """

    when: str
    what: What
    version: str
    detail: str
    step: Bump | None = None
    damaged: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return attrs.asdict(self)


def log(store: Store, name: str) -> list[HistoryEntry]:
    """Return the history of a name, newest first; damaged files become entries of their own.

    Manifests are compared, no weights are read. The previous version is the next lower number.

    Args:
        store: The registry.
        name: Of a component.

    Raises:
        NotFound: Nothing is kept for this name.
        InvalidName: Not a component name.
    """
    check_name(name)
    survey = Survey(store.root)
    survey.scan(f"refs/{name}")
    if name not in survey.names:
        store.versions(name)  # says which names are near
        raise NotFound(f"no component is named {name!r}.", subject=name)
    files = survey.names[name]
    entries = list(_published(store, name, files))
    for alias, moves in sorted(files.moves.items()):
        entries += [_moved(store, place, alias) for _, place in sorted(moves.items())]
    entries += [_withdrawn(store, place) for _, place in sorted(files.tombstones.items())]
    # in one second, what must come first does; files and logs have coarse clocks
    return sorted(reversed(entries), key=lambda entry: int(_seconds(entry.when)), reverse=True)


def change_between(store: Store, old: str, new: str) -> Difference:
    """Return the changes between two components; for two versions of one name, with the steps that were published.

    Args:
        store: The registry.
        old: Reference of the old component, or digest of its manifest.
        new: The same of the new one.

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
    written = _iso(_written(store.root / path))
    return HistoryEntry(written, what, version, f"damaged: {error}", damaged=True)


def _published(store: Store, name: str, files: NameFiles) -> Iterator[HistoryEntry]:
    before: tuple[Version, Manifest] | None = None
    admitted = store.policies.admitted(name)
    for version, place in sorted(files.versions.items()):
        try:
            digest = store.references.digest(name, version)
            manifest = store.manifest(str(digest)) if digest is not None else None
        except CompatkitError as error:
            yield _damaged(store, place.path, "published", str(version), error)
            continue
        if manifest is None:
            continue  # it was removed at this moment
        step, detail = None, "the first version"
        if before is not None:
            step, detail = _step(before, (version, manifest), f"{name}@{version}" in admitted)
        written = _iso(_written(store.root / place.path))
        yield HistoryEntry(written, "published", str(version), detail, step)
        before = version, manifest


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
        if bump == change.bump  # a smaller step explains nothing about the larger
    ]
    unique = dict.fromkeys(reasons)
    more = f"; and {len(unique) - REASONS} more" if len(unique) > REASONS else ""
    return change.bump, f"{change.bump} from {before[0]}: {'; '.join(list(unique)[:REASONS])}{more}"


def _withdrawn(store: Store, place: TombstoneFile) -> HistoryEntry:
    version = str(place.version)
    try:
        tombstone = store.references.tombstone(place.name, place.version) or Tombstone("", "")
    except CompatkitError as error:
        return _damaged(store, place.path, "withdrawn", version, error)
    return HistoryEntry(tombstone.time, "withdrawn", version, tombstone.reason)


def _moved(store: Store, place: AliasMove, alias: str) -> HistoryEntry:
    try:
        move = Aliases(store.references.folder(place.name), store.root).move(alias, place.number)
    except CompatkitError as error:
        return _damaged(store, place.path, "alias", "", error)
    if move is None:
        return HistoryEntry("", "alias", "", f":{alias} did not move: its move was cut off")
    origin = "" if move.before is None else f"{move.before} "
    return HistoryEntry(
        move.time, "alias", move.after or "", f":{alias} {origin}-> {move.after or 'nothing'}"
    )


def _written(path: Path) -> float:
    try:
        return os.lstat(path).st_mtime
    except OSError:
        return 0.0


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds") if seconds > 0 else ""


def _seconds(when: str) -> float:
    try:
        return datetime.fromisoformat(when).timestamp()
    except ValueError:
        return 0.0

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
from compatkit.registry.aliases import read_move
from compatkit.registry.maintenance.files import read_json
from compatkit.registry.maintenance.survey import Survey
from compatkit.registry.names import Bump, Version, check_name, is_digest
from compatkit.registry.steps import published_change
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
    survey.look(f"refs/{name}")
    if name not in survey.names:
        store.versions(name)  # says which names are near
        raise NotFound(f"no component is named {name!r}.", subject=name)
    events = [*_published(store, survey, name), *_withdrawn(survey, name), *_moved(survey, name)]
    order = {"published": 0, "alias": 1, "withdrawn": 2}
    events.sort(key=lambda event: (int(event[0]), order[event[1].what], event[2]), reverse=True)
    return [entry for _, entry, _ in events]


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


Dated = tuple[float, HistoryEntry, int]
"""Seconds, the entry, and the number that decides among those of one second: files and logs have coarse clocks."""


def _published(store: Store, survey: Survey, name: str) -> Iterator[Dated]:
    before: tuple[Version, Manifest] | None = None
    admitted = store.policies.admitted(name)
    for number, version in enumerate(sorted(survey.names[name].versions)):
        written = _written(survey.root / f"refs/{name}/@versions/{version}")
        try:
            digest = store.references.digest(name, version)
            manifest = store.manifest(str(digest)) if digest is not None else None
        except CompatkitError as error:
            detail = f"damaged: {error}"
            yield (
                written,
                HistoryEntry(_iso(written), "published", str(version), detail, damaged=True),
                number,
            )
            continue
        if manifest is None:
            continue  # it was removed at this moment
        step, detail = None, "the first version"
        if before is not None:
            step, detail = _step(before, (version, manifest), f"{name}@{version}" in admitted)
        yield written, HistoryEntry(_iso(written), "published", str(version), detail, step), number
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


def _withdrawn(survey: Survey, name: str) -> Iterator[Dated]:
    for number, (version, place) in enumerate(sorted(survey.names[name].tombstones.items())):
        value = read_json(survey.read(place) or b"")
        if isinstance(value, dict) and isinstance(value.get("reason"), str):
            when = str(value.get("time", ""))
            entry = HistoryEntry(when, "withdrawn", str(version), value["reason"])
        else:
            detail = f"damaged: {place.path} does not say why"
            entry = HistoryEntry(
                _iso(_written(survey.root / place.path)), "withdrawn", str(version), detail, damaged=True
            )
        yield _seconds(entry.when), entry, number


def _moved(survey: Survey, name: str) -> Iterator[Dated]:
    for alias, files in sorted(survey.names[name].moves.items()):
        for number, place in sorted(files.items()):
            move = read_move(survey.read(place) or b"", number)
            if move is None:
                when = _iso(_written(survey.root / place.path))
                detail = f"damaged: {place.path} does not say where :{alias} went"
                yield _seconds(when), HistoryEntry(when, "alias", "", detail, damaged=True), number
                continue
            detail = f":{alias} {move.before or 'nothing'} -> {move.after or 'nothing'}"
            if move.before is None:
                detail = f":{alias} -> {move.after or 'nothing'}"
            yield _seconds(move.time), HistoryEntry(move.time, "alias", move.after or "", detail), number


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

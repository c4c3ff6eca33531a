"""The front page of a catalogue: counts, health, the newest versions, and a row for each name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import attrs

from compatkit.components.catalogue.fits import stage, stages
from compatkit.components.catalogue.signers import key_label, shown_time
from compatkit.components.catalogue.snapshot import Snapshot
from compatkit.components.catalogue.texts import Rows, error_line, line
from compatkit.errors import CompatkitError
from compatkit.foundation.addresses import shown
from compatkit.foundation.cache import mirrored
from compatkit.registry.index.search import SearchResult
from compatkit.registry.signing.trust import Trusted

DATA_SET = "dataset"
"""Tag with the data set that a part was trained on."""
NEWEST, MAX_TAGS = 8, 30
MAX_TITLE = 120


@attrs.define(eq=False)
class _Table:
    """Texts that rows refer to by number."""

    texts: dict[str, int] = attrs.field(factory=dict)

    def number(self, text: str) -> int:
        return self.texts.setdefault(text, len(self.texts))


@attrs.frozen
class Overview:
    """What the front page shows.

    Attributes:
        title: Name of the registry.
        newest: Time of the newest publication that is recorded.
        names: Number of names.
        versions: Number of versions, with withdrawn ones.
        withdrawn: Number of withdrawn versions.
        results: Number of kept results.
        kinds: Number of names by kind.
        health: What is known of the state of the files.
        recent: Reference, kind, when and by whom, of the newest versions.
        data: Rows of the table with the texts that they refer to, as JSON values.
        rows: Address, and the texts of the row, of each name: the table without scripts.
    """

    title: str
    newest: str
    names: int
    versions: int
    withdrawn: int
    results: int
    kinds: Rows
    health: Rows
    recent: list[tuple[str, ...]]
    data: dict[str, Any]
    rows: list[tuple[str, ...]]


def overview(snapshot: Snapshot, title: str = "") -> Overview:
    """Return what the front page of a catalogue shows.

    Args:
        snapshot: The registry.
        title: Title; empty for the name of the registry's folder, or the address of its remote.
    """
    shown_versions = {name: snapshot.shown(name) for name in snapshot.versions}
    every = [version for versions in snapshot.versions.values() for version in versions]
    withdrawn = sum(version.withdrawn for version in every)
    kinds = Counter(version.kind.replace("_", " ") for version in shown_versions.values())
    data, rows = _rows(snapshot, shown_versions.values())
    results = snapshot.results
    return Overview(
        title=line(title or _title(snapshot)),
        newest=shown_time(snapshot.newest) if snapshot.newest else "",
        names=len(shown_versions) + len(snapshot.damaged),
        versions=len(every),
        withdrawn=withdrawn,
        results=len(results),
        kinds=[
            (kind, f"{count:,}")
            for kind, count in sorted(kinds.items(), key=lambda item: (-item[1], item[0]))
        ],
        health=_health(snapshot),
        recent=_recent(snapshot, every),
        data=data,
        rows=rows,
    )


def _title(snapshot: Snapshot) -> str:
    root = snapshot.store.root
    address = mirrored(root)
    return root.name if address is None else shown(address)


def _rows(
    snapshot: Snapshot, versions: Iterable[SearchResult]
) -> tuple[dict[str, Any], list[tuple[str, ...]]]:
    """Return the rows of the table for scripts, and those of the plain list."""
    texts, plain, words = _Table(), [], stages()
    rows: list[list[Any]] = []
    for version in versions:
        tags = [
            f"{line(key, 100)}={line(value, 100)}" for key, value in sorted(version.tags.items())[:MAX_TAGS]
        ]
        data_set = line(version.tags.get(DATA_SET, ""), 100)
        record = snapshot.readings.published(version)
        when = "" if record is None else shown_time(record.time)
        fit, every = stage(snapshot, version), snapshot.versions[version.name]
        kind, title = version.kind.replace("_", " "), line(version.title, MAX_TITLE)
        network = line(version.model, 100), line(version.cut, 100)
        rows.append(
            [
                version.name,
                version.version,
                texts.number(kind),
                texts.number(network[0]),
                texts.number(network[1]),
                version.parameters,
                version.bytes,
                title,
                texts.number(data_set),
                [texts.number(tag) for tag in tags],
                fit,
                when,
                len(every),
                sum(one.withdrawn for one in every),
            ]
        )
        withdrawn = ", withdrawn" if version.withdrawn else ""
        where = " @ ".join(filter(None, network))
        texts_of_row = (version.version + withdrawn, kind, where, data_set, words[fit][0], when[:10], title)
        plain.append((str(version), version.name, *texts_of_row))
    return {"texts": [*texts.texts], "rows": rows, "stages": words, "damaged": list(snapshot.damaged)}, plain


def _recent(snapshot: Snapshot, every: Iterable[SearchResult]) -> list[tuple[str, ...]]:
    records = [
        (record.time, str(version), version, record.by)
        for version in every
        if not version.withdrawn and (record := snapshot.readings.published(version)) is not None
    ]
    records.sort(key=lambda item: item[:2], reverse=True)
    trusted = _trusted()
    return [
        (
            label,
            version.kind.replace("_", " "),
            shown_time(time),
            key_label(by, trusted) if by else "not recorded",
        )
        for time, label, version, by in records[:NEWEST]
    ]


def _trusted() -> Trusted:
    try:
        return Trusted.of()
    except CompatkitError:
        return Trusted({})


def _health(snapshot: Snapshot) -> Rows:
    """Return what is known of the files without reading them."""
    store = snapshot.store
    rows: Rows = []
    try:
        damaged = store.index.status().damaged
        rows.append(("versions with a damaged file", f"{damaged:,}" if damaged else "none known"))
        settings = store.rules.settings
        rows.append(("signatures required", "yes" if settings.require_signature else "no"))
        aside = _entries(snapshot, "quarantine")
        rows.append(("files in quarantine", f"{aside:,}" if aside else "none"))
    except CompatkitError as error:
        rows.append(("problem", error_line(store, error)))
    if snapshot.results.damaged:
        rows.append(("kept results that cannot be read", f"{snapshot.results.damaged:,}"))
    last = store.local_cache.verification()
    rows.append(
        ("last verify on this computer", str(last or "none known; compatkit verify reads every file"))
    )
    return rows


def _entries(snapshot: Snapshot, folder: str) -> int:
    path = snapshot.store.root / folder
    return sum(1 for _ in path.iterdir()) if path.is_dir() and not path.is_symlink() else 0

"""Registry of 100,000 versions: open, look up, list, collect garbage, rebuild the index."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Callable
from sqlite3 import Connection
from typing import Any

import registry_tables as bare
from contest import Contestant, Gate, Row, compete, expect, lines, say
from registry_large import COLORS, EACH, LONG, LargeRegistry, fill
from registry_mlflow import MlflowRegistry
from registry_settings import Settings

from compatkit.registry.index.lookup import Index
from compatkit.registry.index.query import Query
from compatkit.registry.maintenance.gc import plan
from compatkit.registry.store import Store

PAGE = 200
"""Number of requested rows of a search."""
CALLS = 200
"""Calls per turn for operations of microseconds."""
FIVE = Gate(5)
SELECT = "prepared SELECT (sqlite3)"
Check = Callable[[Any], object]


def scale(settings: Settings) -> list[str]:
    """Measure every operation that many versions could slow down."""
    large = fill(settings)
    rival = MlflowRegistry.with_versions(settings.folder / "scale-mlflow", settings.versions, EACH, COLORS)
    index, connection = large.store.index, sqlite3.connect(large.tables)
    index.refresh()
    groups = _finding, _latest, _searching, _listing, _collecting
    table = [line for group in groups for line in group(settings, large, index, connection, rival)]
    return [*table, *_rebuilding(settings, large, index)]


def _is(what: str, expected: object) -> Check:
    return lambda actual: expect(what, actual, expected)


def _finding(
    settings: Settings,
    large: LargeRegistry,
    index: Index,
    connection: Connection,
    rival: MlflowRegistry | None,
) -> list[str]:
    say("finding")
    store, (name, version) = large.store, large.wanted
    query = "SELECT digest, document FROM versions WHERE name = ? AND version = ?"
    pinned = f"{name}@{version}"
    path = f"{store.root}/refs/{name}/@versions/{version}"
    same = _is("the digest", bare.read(path)[7:71].decode())

    def opened() -> str:
        fresh = sqlite3.connect(large.tables)
        digest = fresh.execute(query, (name, version)).fetchone()[0]
        fresh.close()
        return digest

    def turn(work: Callable[[], Any], check: Check | None = same) -> Contestant:
        return Contestant(work, check=check, calls=CALLS)

    start, file = "sqlite3.connect, SELECT, close", "read of the version's file"
    files = "read of both files, sha256, json.loads"
    contestants = {
        SELECT: turn(lambda: connection.execute(query, (name, version)).fetchone()[0]),
        start: turn(opened),
        file: turn(lambda: bare.read(path)[7:71].decode()),
        files: turn(lambda: _document(f"{store.root}/blobs/sha256", path), None),
        "opened": turn(lambda: _digest(Store.open(store.root), pinned)),
        "resolve": turn(lambda: _digest(store, pinned)),
        "manifest": turn(lambda: store.manifest(pinned), None),
        **(rival.get() if rival else {}),
    }
    times = compete(contestants, settings.rounds, settings.seed)
    others = [label for label in contestants if label.startswith("MLflow")]
    rows = [
        Row(f"open, and look one version up ({large.versions:,} versions)", start, "opened", FIVE),
        Row("look a version up: its digest, from its file (Store.resolve)", SELECT, "resolve", FIVE, others),
        Row("the same, beside the file alone", file, "resolve"),
        Row("read a manifest, verified and field by field (Store.manifest)", files, "manifest"),
    ]
    return lines(rows, times)


def _digest(store: Store, pinned: str) -> str:
    return str(store.resolve(pinned).digest)[7:]


def _document(blobs: str, path: str) -> Any:
    digest = bare.read(path)[7:71].decode()
    data = bare.read(f"{blobs}/{digest[:2]}/{digest}")
    expect("the digest", hashlib.sha256(data).hexdigest(), digest)
    return json.loads(data)


def _latest(
    settings: Settings,
    large: LargeRegistry,
    index: Index,
    connection: Connection,
    rival: MlflowRegistry | None,
) -> list[str]:
    say(f"the latest of {large.long:,}")
    store, folder = large.store, f"{large.store.root}/refs/{LONG}/@versions"
    same = _is("the latest", f"1.{large.long - 1}.0")
    scan, latest = "os.scandir, parse, max, read of its file", Query(pattern=LONG, latest=True, limit=1)
    contestants = {
        scan: Contestant(lambda: bare.latest(folder), check=same),
        "known": Contestant(lambda: str(store.resolve(LONG).version), check=same),
        "anew": Contestant(lambda: str(Store.open(store.root).resolve(LONG).version), check=same),
        "index": Contestant(lambda: index.search(latest)[0].version, check=same),
    }
    times = compete(contestants, settings.rounds, settings.seed)
    rows = [
        Row(f"the latest of {large.long:,} versions of one name", scan, "known", FIVE),
        Row("the same, in a registry that is opened anew", scan, "anew", FIVE),
        Row("the same, from the index", scan, "index"),
    ]
    return lines(rows, times)


def _searching(
    settings: Settings,
    large: LargeRegistry,
    index: Index,
    connection: Connection,
    rival: MlflowRegistry | None,
) -> list[str]:
    say("searching")
    sql = (
        "SELECT v.name, v.version, v.digest FROM tags t JOIN versions v ON v.rowid = t.version"
        " WHERE t.key = 'color' AND t.value = ? ORDER BY v.name, v.version LIMIT ?"
    )
    rows = connection.execute(sql, ("7", PAGE)).fetchall()
    query, same = Query(tags={"color": "7"}, limit=PAGE), _is("rows found", len(rows))
    expect(
        "what is found",
        [(match.name, match.version, match.digest[7:]) for match in index.search(query)],
        rows,
    )
    floor = f"{SELECT} of {len(rows)} rows"

    def reopened() -> int:
        fresh = Index.of(large.store.root, large.store.id)
        count = len(fresh.search(query))
        fresh.close()
        return count

    contestants = {
        floor: Contestant(lambda: len(connection.execute(sql, ("7", PAGE)).fetchall()), check=same, calls=10),
        "search": Contestant(lambda: len(index.search(query)), check=same, calls=10),
        "anew": Contestant(reopened, check=same),
        **(rival.search(PAGE, same) if rival else {}),
    }
    times = compete(contestants, settings.rounds, settings.seed)
    others = [label for label in contestants if label.startswith("MLflow")]
    table = [
        Row(f"versions with a tag ({len(rows)} rows)", floor, "search", FIVE, others),
        Row("the same, index opened anew", floor, "anew"),
        *(
            Row("versions with a tag, beside MLflow", label, "search", Gate(1 / 20, text="20 x faster"))
            for label in others
        ),
    ]
    return lines(table, times)


def _listing(
    settings: Settings,
    large: LargeRegistry,
    index: Index,
    connection: Connection,
    rival: MlflowRegistry | None,
) -> list[str]:
    say("listing")
    sql = "SELECT DISTINCT name FROM versions ORDER BY name"
    same, refs = _is("names", large.names), f"{large.store.root}/refs"
    floor, walk = "SELECT DISTINCT (sqlite3)", "walk through the folders (os.scandir), sorted"
    contestants = {
        floor: Contestant(lambda: [name for (name,) in connection.execute(sql)], check=same),
        walk: Contestant(lambda: bare.names(refs), check=same),
        "store": Contestant(large.store.names, check=same),
        "listing": Contestant(lambda: [entry.name for entry in index.listing()], check=same),
        **(rival.names(_is("names", len(large.names) - 1)) if rival else {}),
    }
    times = compete(contestants, settings.rounds, settings.seed)
    others = [label for label in contestants if label.startswith("MLflow")]
    rows = [
        Row(f"list {len(large.names):,} names (Store.names)", walk, "store", FIVE, others),
        Row("list them with latest version, kind, network (ls)", floor, "listing"),
        *(
            Row("list names, beside MLflow", label, "store", Gate(1 / 50, text="50 x faster"))
            for label in others
        ),
    ]
    return lines(rows, times)


def _collecting(
    settings: Settings,
    large: LargeRegistry,
    index: Index,
    connection: Connection,
    rival: MlflowRegistry | None,
) -> list[str]:
    say("collecting garbage, dry")
    root, same = large.store.root, _is("dead blobs", large.dead)
    files = "read all files, json.loads, scandir of the blobs, stat"
    contestants = {
        files: Contestant(lambda: bare.dead_from_files(root), check=same),
        "plan": Contestant(lambda: len(plan(large.store).blobs), check=same),
    }
    times = compete(contestants, max(3, settings.rounds // 2), settings.seed)
    rows = [
        Row(f"gc, dry run ({large.dead:,} dead blobs)", files, "plan", FIVE),
    ]
    return lines(rows, times)


def _rebuilding(settings: Settings, large: LargeRegistry, index: Index) -> list[str]:
    say("rebuilding the index")
    other, same = large.tables.with_name("rebuilt.sqlite"), _is("versions", large.versions)
    floor = "walk, read, json.loads, insert, indexes (sqlite3)"

    def rebuilt() -> None:
        index.rebuild()

    contestants = {
        floor: Contestant(lambda: bare.rebuild(large.store.root, other), check=same),
        "ours": Contestant(
            rebuilt, check=lambda _: expect("versions", index.status().versions, large.versions)
        ),
    }
    times = compete(contestants, max(2, settings.rounds // 3), settings.seed)
    index.close()
    return lines([Row(f"rebuild the index of {large.versions:,} versions", floor, "ours", Gate(3))], times)

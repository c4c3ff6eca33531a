"""Many versions: the index answers within a small multiple of what bare SQLite and bare reading take beside it."""

from __future__ import annotations

import hashlib
import json
import os
import random
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
from handmade import Hand, part, tagged

from compatkit.contracts.manifest import to_bytes
from compatkit.registry.index import stamps
from compatkit.registry.index.lookup import Index

EACH = 5
"""Versions of a name."""
LONG = "long/one"
TAG, KINDS = 40, ("extractor", "head")


@attrs.frozen
class Large:
    """A registry of many versions, and the same facts in tables of bare SQLite.

    Attributes:
        names: How many names have ``EACH`` versions; as many manifests there are.
        long: How many versions ``LONG`` has.
        path: Of the bare tables.
    """

    root: Path
    names: int
    long: int
    path: Path

    @property
    def versions(self) -> int:
        return self.names * EACH + self.long

    def asked(self, count: int) -> list[tuple[str, str]]:
        chosen = random.Random(0).sample(range(self.names), min(count, self.names))
        return [(f"ns{entry % 100}/part{entry:05}", f"1.0.{entry % EACH}") for entry in chosen]


def make(folder: Path, names: int, long: int) -> Large:
    """Write the files directly; version k of name i points at manifest i + 7919 k."""
    hand = Hand.init(folder / "parts")
    plain = [to_bytes(part(kind, "net0", about=tagged(color="c0", number="n0"))).decode() for kind in KINDS]
    digests = []
    for number in range(names):
        text = (
            plain[number % 2].replace('"net0"', f'"net{number % 50}"').replace('"c0"', f'"c{number % TAG}"')
        )
        data = text.replace('"n0"', f'"n{number}"').encode()
        digest = hashlib.sha256(data).hexdigest()
        place = f"{hand.root}/blobs/sha256/{digest[:2]}"
        os.makedirs(place, exist_ok=True)
        Path(f"{place}/{digest}").write_bytes(data)
        digests.append(digest)
    for number in range(names):
        place = f"{hand.root}/refs/ns{number % 100}/part{number:05}/@versions"
        os.makedirs(place)
        for patch in range(EACH):
            Path(f"{place}/1.0.{patch}").write_text(f"sha256:{digests[(number + patch * 7919) % names]}\n")
    place = f"{hand.root}/refs/{LONG}/@versions"
    os.makedirs(place)
    for patch in range(long):
        Path(f"{place}/1.{patch // 100}.{patch % 100}").write_text(f"sha256:{digests[patch % names]}\n")
    return Large(hand.root, names, long, folder / "bare.sqlite")


def bare_rebuild(large: Large) -> sqlite3.Connection:
    """Walk, read, parse, insert, four indexes; nothing is checked."""
    large.path.unlink(missing_ok=True)
    made = sqlite3.connect(large.path, isolation_level=None)
    made.execute("BEGIN")
    made.execute("CREATE TABLE v (name, version, digest)")
    made.execute("CREATE TABLE m (digest, kind, model, color, number, title, bytes, parameters, document)")
    versions, refs = [], f"{large.root}/refs"
    for folder, _, files in os.walk(refs):
        if folder.endswith("/@versions"):
            for file in files:
                with open(f"{folder}/{file}") as opened:
                    versions.append((folder[len(refs) + 1 : -10], file, opened.read().strip()))
    made.executemany("INSERT INTO v VALUES (?, ?, ?)", versions)
    rows = []
    for digest in dict.fromkeys(digest for _, _, digest in versions):
        with open(f"{large.root}/blobs/sha256/{digest[7:9]}/{digest[7:]}") as opened:
            document = opened.read()
        value = json.loads(document)
        about, payload = value["about"], value["payload"]
        facts = (value["kind"], value["blueprint"]["model"], about["tags"]["color"], about["tags"]["number"])
        rows.append(
            (digest, *facts, about["title"], payload["file"]["bytes"], payload["parameters"], document)
        )
    made.executemany("INSERT INTO m VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)
    for index in ("v (name, version)", "v (digest)", "m (color, number)", "m (kind, model)", "m (digest)"):
        made.execute(f"CREATE INDEX i{abs(hash(index))} ON {index}")
    made.execute("COMMIT")
    return made


def ratio(bare: Callable[[], object], ours: Callable[[], object], turns: int = 5) -> float:
    """Return our processor time as a multiple of the bare code's; both take turns, the least counts."""
    least = [float("inf"), float("inf")]
    for _ in range(turns):
        for side, work in enumerate((bare, ours)):
            start = time.process_time()
            work()
            least[side] = min(least[side], time.process_time() - start)
    return least[1] / least[0]


def ratios(large: Large, index: Index, bare: sqlite3.Connection) -> dict[str, float]:
    """Return what each answer takes, as a multiple of bare SQL on a connection that is open."""
    columns = (
        "v.name, v.version, m.digest, m.kind, m.model, m.color, m.number, m.title, m.bytes, m.parameters"
    )
    first = f"SELECT {columns} FROM v JOIN m ON m.digest = v.digest WHERE v.name = ? AND v.version = ?"
    some = f"SELECT {columns} FROM m JOIN v ON v.digest = m.digest WHERE m.%s ORDER BY v.name, v.version LIMIT 200"
    request = large.asked(1)

    def run(sql: str, *values: object) -> list[Any]:
        return bare.execute(sql, values).fetchall()

    def opened() -> None:
        made = sqlite3.connect(large.path)
        made.execute(first, request[0]).fetchone()
        made.close()

    def ours_opened() -> None:
        made = Index.of(large.root, "id")
        made.search(pattern=request[0][0], limit=1)
        made.close()

    return {
        "tag": ratio(
            lambda: run(some % "color = 'c3'"), lambda: index.search(tags={"color": "c3"}, limit=200)
        ),
        "kind": ratio(
            lambda: run(some % "kind = 'head' AND m.model = 'net7'"),
            lambda: index.search(kind="head", model="net7", limit=200),
        ),
        "open": ratio(lambda: [opened() for _ in range(20)], lambda: [ours_opened() for _ in range(20)]),
    }


def check_answers(large: Large, index: Index, bare: sqlite3.Connection) -> None:
    assert index.count() == large.versions and index.status().names == large.names + 1
    (versions,) = bare.execute("SELECT count(*) FROM v JOIN m USING (digest) WHERE color = 'c3'").fetchone()
    assert index.count(tags={"color": "c3"}) == versions == len(index.search(tags={"color": "c3"}))
    for name, version in large.asked(20):
        (result,) = (component for component in index.search(pattern=name) if component.version == version)
        sql = "SELECT m.digest, kind, model FROM v JOIN m USING (digest) WHERE name = ? AND version = ?"
        assert bare.execute(sql, (name, version)).fetchone() == (result.digest, result.kind, result.model)
    last = f"1.{(large.long - 1) // 100}.{(large.long - 1) % 100}"
    assert [component.version for component in index.search(pattern=LONG, latest=True)] == [last]
    (line,) = index.listing(LONG)
    assert line.version == last and len(line.versions) == large.long
    assert len(index.listing()) == large.names + 1


@pytest.mark.case("H")
def test_two_thousand_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stamps, "SETTLED_NS", 0)
    large = make(tmp_path, 360, 200)
    index, bare = Index.of(large.root, "id"), bare_rebuild(large)
    check_answers(large, index, bare)
    assert (
        max(ratios(large, index, bare).values()) < 20
    )  # small tables say little; the large ones have the gates
    bare.close()


@pytest.mark.slow
@pytest.mark.case("H")
@pytest.mark.timeout(1800)
def test_a_hundred_thousand_versions_and_one_name_with_ten_thousand(tmp_path: Path) -> None:
    large = make(tmp_path, 20_000, 10_000)
    index = Index.of(large.root, "id")
    time.sleep(2.1)  # until the last file's time can be trusted
    opened: list[sqlite3.Connection] = []

    def bare_once() -> None:
        opened.append(bare_rebuild(large))

    rebuilt = ratio(bare_once, index.rebuild, turns=2)
    bare = opened[-1]
    check_answers(large, index, bare)
    result = ratios(large, index, bare)
    assert rebuilt <= 3, f"rebuilding takes {rebuilt:.1f} times the bare work"
    assert {what: round(times, 1) for what, times in result.items() if times > 5} == {}
    again, start = Index.of(large.root, "id"), time.perf_counter()
    assert again.refresh() == 0
    looked = time.perf_counter() - start
    assert looked < 0.1, "a quiet registry costs one look"
    Path(large.root / "tmp" / "draft").write_bytes(b"")
    start = time.perf_counter()
    assert again.refresh() == 0
    looked = time.perf_counter() - start
    assert looked < 10 * _walk(large.root), "a look at all folders takes longer than ten bare walks"
    for entry in opened:
        entry.close()


def _walk(root: Path) -> float:
    start = time.perf_counter()
    for _ in os.walk(root / "refs"):
        pass
    return time.perf_counter() - start

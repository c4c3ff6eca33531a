"""The history of a name: what was published and why it was a new version, withdrawn, and pointed at."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from compatkit.components.registry import Registry
from compatkit.contracts.manifest import About
from compatkit.errors import InvalidName, NotFound
from compatkit.registry import withdrawals
from compatkit.registry.history import HistoryEntry, log
from compatkit.registry.names import Version
from compatkit.registry.store import Store

Publish = Callable[..., Any]
DAY = 24 * 3600
START = 1_700_006_400
"""2023-11-15 at midnight, UTC."""


@pytest.fixture
def busy_store(store: Store, publish: Publish, monkeypatch: pytest.MonkeyPatch) -> Store:
    """A registry in which one thing happened each day."""
    day = 0

    def next_day() -> str:
        nonlocal day
        day += 1
        return f"2023-11-{15 + day:02}T00:00:00+00:00"

    monkeypatch.setattr(withdrawals, "now", next_day)
    monkeypatch.setattr("compatkit.registry.aliases.now", next_day)

    def on(version: str) -> None:
        """Let the time of the file stand for the publication, as in registries from before."""
        next_day()
        (store.root / f"refs/a/b/@published/{version}").unlink()
        path = store.root / f"refs/a/b/@versions/{version}"
        os.utime(path, (START + day * DAY, START + day * DAY))

    publish(store, "a/b")
    on("1.0.0")
    store.set_alias("a/b", "prod", "1.0.0")
    publish(store, "a/b", about=About(title="the first, with a title"))
    on("1.0.1")
    publish(store, "a/b", value=1)
    on("2.0.0")
    store.set_alias("a/b", "prod", "2.0.0")
    store.withdraw("a/b", "1.0.0", "trained on the test set")
    store.set_alias("a/b", "prod", None)
    return store


def shown(entries: list[HistoryEntry]) -> list[tuple[str, ...]]:
    return [(entry.when[8:10], entry.what, entry.version, entry.detail) for entry in entries]


def test_everything_that_happened_newest_first(busy_store: Store) -> None:
    assert shown(log(busy_store, "a/b")) == [
        ("22", "alias", "", ":prod 2.0.0 -> nothing"),
        ("21", "withdrawn", "1.0.0", "trained on the test set"),
        ("20", "alias", "2.0.0", ":prod 1.0.0 -> 2.0.0"),
        ("19", "published", "2.0.0", "major from 1.0.1: new weights, without a passed measurement"),
        ("18", "published", "1.0.1", "patch from 1.0.0: for people only"),
        ("17", "alias", "1.0.0", ":prod -> 1.0.0"),
        ("16", "published", "1.0.0", "the first version"),
    ]


def test_steps_are_values_for_programs(busy_store: Store) -> None:
    steps = {entry.version: entry.step for entry in log(busy_store, "a/b") if entry.what == "published"}
    assert steps == {"1.0.0": None, "1.0.1": "patch", "2.0.0": "major"}
    assert log(busy_store, "a/b")[0].to_json() == {
        "when": "2023-11-22T00:00:00+00:00",
        "what": "alias",
        "version": "",
        "detail": ":prod 2.0.0 -> nothing",
        "step": None,
        "damaged": False,
        "by": busy_store.author.by,
        "commit": busy_store.author.commit,
    }


@pytest.mark.parametrize("admitted", [False, True])
def test_a_version_that_was_measured_or_let_in_keeps_its_step(
    store: Store, publish: Publish, manifest_of: Publish, put: Publish, admitted: bool
) -> None:
    """Two manifests do not show whether new weights were measured; the number and the policy's log do."""
    publish(store, "a/b")
    store.publish("a/b", manifest_of(put(store, 1)), measured=True)
    if admitted:
        store.policies.admit("a/*", store.resolve("a/b@1.1.0"))
    ending = "let in unmeasured" if admitted else "published as measured"
    entry = log(store, "a/b")[0]
    assert (entry.version, entry.step) == ("1.1.0", "minor")
    assert entry.detail == f"minor from 1.0.0: new weights, {ending}"
    registry = Registry(store)
    digests = [f"a/b@{store.resolve(f'a/b@{version}').digest}" for version in ("1.0.0", "1.1.0")]
    for pair in (("a/b@1.0.0", "a/b@1.1.0"), digests):
        difference = registry.diff(*pair)
        assert difference.bump == "minor" and ending in str(difference)
    assert registry.diff("a/b@1.1.0", "a/b@1.0.0").bump == "major", "back again, nothing was measured"
    bare = [digest.partition("@")[2] for digest in digests]
    assert registry.diff(*bare).bump == "major", "manifests without a name have no numbers"


def test_a_number_that_no_measurement_excuses_proves_nothing(store: Store, publish: Publish) -> None:
    """New weights as a PATCH: nobody can have published that, and the log does not make it look so."""
    publish(store, "a/b")
    other = str(publish(store, "a/c", value=1).digest)
    store.references.create("a/b", Version.parse("1.0.1"), other, lambda: None)
    assert [(entry.version, entry.step) for entry in log(store, "a/b")] == [
        ("1.0.1", "major"),
        ("1.0.0", None),
    ]


def test_within_one_second_what_must_come_first_does(store: Store, publish: Publish) -> None:
    publish(store, "a")
    for version in (None, "1.0.0", None):
        store.set_alias("a", "prod", version or "1.0.0") if version else store.set_alias("a", "prod", None)
    store.withdraw("a", "1.0.0", "wrong")
    os.utime(store.root / "refs/a/@versions/1.0.0", (START, START))
    for path in (store.root / "refs/a").rglob("*"):
        if path.is_file() and path.parent.name != "@versions":
            path.chmod(0o644)
            text = path.read_text()
            path.write_text(text if '"time"' not in text else _at(text))
    assert [entry.what for entry in log(store, "a")] == ["withdrawn", "alias", "alias", "published"]


def _at(text: str) -> str:
    from compatkit.foundation.codec import dumps, loads

    return dumps(loads(text.encode(), what="file") | {"time": "2023-11-15T00:00:00+00:00"}).decode()


def test_many_reasons_are_counted(
    store: Store, manifest_of: Callable[..., Any], put: Callable[..., Any]
) -> None:
    plain = manifest_of(put(store))
    port = plain.contract.structural.outputs[0]
    for dtype in ("float32", "float64"):
        ports = tuple(attrs.evolve(port, name=f"port{number}", dtype=dtype) for number in range(5))
        structural = attrs.evolve(plain.contract.structural, outputs=ports)
        store.publish("a", attrs.evolve(plain, contract=attrs.evolve(plain.contract, structural=structural)))
    detail = log(store, "a")[0].detail
    assert detail.startswith("major from 1.0.0: ") and detail.endswith("; and 2 more")
    assert [f"port{number}" in detail for number in range(5)] == [True] * 3 + [False] * 2


@pytest.mark.case("E1")
@pytest.mark.parametrize(
    ("place", "what", "detail"),
    [
        ("@versions/2.0.0", "published", "a/b@2.0.0 is damaged"),
        ("@tombstones/1.0.0", "withdrawn", "/1.0.0: "),
        ("@log/prod/2", "alias", "expected an object with from and to"),
    ],
)
def test_a_damaged_entry_is_shown_and_the_others_too(
    busy_store: Store, place: str, what: str, detail: str
) -> None:
    path = busy_store.root / "refs/a/b" / place
    path.chmod(0o644)
    path.write_bytes(b"x" * 72)
    entries = log(busy_store, "a/b")
    (damaged,) = (entry for entry in entries if entry.damaged)
    assert damaged.what == what and damaged.detail.startswith("damaged: ") and detail in damaged.detail
    assert damaged.when and len(entries) == 7


@pytest.mark.case("E1")
def test_a_version_without_its_manifest_is_shown_and_the_next_is_compared_with_the_one_before(
    busy_store: Store,
) -> None:
    digest = str(busy_store.resolve("a/b@1.0.1").digest)
    busy_store.objects.path(digest).unlink()
    entries = {entry.version: entry for entry in log(busy_store, "a/b") if entry.what == "published"}
    assert entries["1.0.1"].damaged and "is missing" in entries["1.0.1"].detail
    assert entries["2.0.0"].detail.startswith("major from 1.0.0: ")


def test_a_name_that_only_has_a_tombstone_has_a_history_too(busy_store: Store) -> None:
    for path in (busy_store.root / "refs/a/b/@versions").iterdir():
        path.unlink()
    assert {entry.what for entry in log(busy_store, "a/b")} == {"withdrawn", "alias"}


def test_an_unknown_name_and_a_name_that_is_none(busy_store: Store, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="perhaps a/b"):
        log(busy_store, "a/bb")
    with pytest.raises(NotFound):
        log(busy_store, "a")
    with pytest.raises(InvalidName):
        log(busy_store, "../a")

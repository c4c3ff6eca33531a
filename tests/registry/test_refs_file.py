"""``refs.json`` saves requests and changes no answer, whatever stands in it."""

from __future__ import annotations

import hashlib
import json
import random
import unicodedata
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest
from far import EXTRACTOR, HEAD, Fault, content, write

from compatkit.errors import NotFound
from compatkit.registry.copy.settings import TransferSettings
from compatkit.registry.maintenance.check import examine
from compatkit.registry.remotes import mirror, refs_file
from compatkit.registry.remotes.address import locate
from compatkit.registry.remotes.files import Files
from compatkit.registry.remotes.pushpull import pull, push
from compatkit.registry.remotes.refs_file import PATH
from compatkit.registry.store import Store
from compatkit_plugins.remotes._filesystem import FileSystemStore

Publish = Callable[..., Any]
FOLLOW = TransferSettings().following()


@attrs.frozen(eq=False)
class Tagged(FileSystemStore):
    """Files in memory, whose listings have MD5s as S3's have.

    Attributes:
        own_keys: Whether the tags are others, as in a bucket that is encrypted with keys of its own.
        protected: Whether ``refs.json`` cannot be written.
    """

    own_keys: bool = False
    protected: bool = False

    def fingerprint(self, data: bytes) -> str:
        return hashlib.md5(data).hexdigest()

    def fingerprints(self, folder: str) -> dict[str, str]:
        contents = {path: self.read(path, 0, 2**20) or b"" for path in self.sizes(folder)}
        tags = {path: self.fingerprint(data) for path, data in contents.items()}
        return {path: f"{tag[:-1]}?" for path, tag in tags.items()} if self.own_keys else tags

    def put(self, path: str, data: bytes) -> None:
        if self.protected and path == PATH:
            raise PermissionError(13, "Access Denied", path)
        super().put(path, data)


def tagged(address: str, **settings: bool) -> Files:
    located = locate(address)
    assert isinstance(located, Files) and isinstance(located.store, FileSystemStore)
    return Files(Tagged(located.store.system, located.store.root, **settings), address)


@pytest.fixture
def remote(memory: str) -> Files:
    return tagged(memory)


@pytest.fixture
def many(tmp_path: Path, publish: Publish) -> Store:
    """A registry of 60 components, of which some are withdrawn or have aliases."""
    store = Store.init(tmp_path / "many")
    for number in range(60):
        publish(store, f"zone{number % 7}/net{number}.head", number, kind="head")
    store.set_alias("zone1/net1.head", "prod", "1.0.0")
    store.withdraw("zone2/net2.head", "1.0.0", "too slow")
    return store


def saved(remote: Files) -> Mapping[str, str]:
    """Return the contents in ``refs.json``."""
    data = remote.read(PATH, 0, 2**26)
    return {} if data is None else refs_file.read(data, PATH).files


def actual(remote: Files) -> dict[str, str]:
    """Return what the files below ``refs`` hold, each read by itself."""
    return {path: (remote.read(path, 0, 2**20) or b"").decode() for path in remote.sizes("refs")}


def pulled(remote: Files, folder: Path, *patterns: str, **settings: Any) -> dict[str, bytes]:
    """Return the content of a registry with what a pull brought."""
    store = Store.init(folder, exist_ok=True)
    pull(store, remote, patterns or None, settings=TransferSettings(**settings))
    return content(store.root)


def without_refs_file(remote: Files, folder: Path, *patterns: str) -> dict[str, bytes]:
    """Return the content of a registry with what a pull brings where there is no ``refs.json``."""
    assert isinstance(remote.store, FileSystemStore)
    plain = Files(FileSystemStore(remote.store.system, remote.store.root), remote.url)
    return pulled(plain, folder, *patterns)


def test_it_holds_what_the_files_hold(source: Store, remote: Files):
    push(source, remote)
    assert saved(remote) == actual(remote) and len(saved(remote)) > 8


def test_few_requests_pull_one_part_of_many_and_push_nothing(
    store: Store, many: Store, remote: Files, monkeypatch: pytest.MonkeyPatch
):
    push(many, remote)
    fault = Fault(monkeypatch)
    push(many, remote)
    assert len(fault.calls) < 12 and not fault.written()
    fault.calls.clear()
    pull(store, remote, ["zone3/net3.head"])
    assert store.names() == ["zone3/net3.head"] and len(fault.calls) <= 10 and not fault.written()
    fault.calls.clear()
    pull(store, remote)
    assert not [path for operation, path in fault.calls if operation == "read" and path.startswith("refs/")]
    assert content(store.root) == content(many.root)


def test_without_it_the_same_comes_by_more_requests(
    tmp_path: Path, many: Store, remote: Files, monkeypatch: pytest.MonkeyPatch
):
    push(many, remote)
    remote.remove(PATH)
    fault = Fault(monkeypatch)
    assert pulled(remote, tmp_path / "here") == content(many.root)
    assert len([path for operation, path in fault.calls if operation == "read" and "refs/" in path]) > 60
    assert not fault.written(), "a pull never writes"
    push(many, remote)
    assert fault.written() == [PATH] and saved(remote) == actual(remote)


def test_signatures_that_are_here_are_not_read_again(
    store: Store, source: Store, remote: Files, monkeypatch: pytest.MonkeyPatch
):
    push(source, remote)
    path = next(iter(remote.sizes("signatures")))
    fault = Fault(monkeypatch)
    pull(store, remote)
    assert ("read", path) in fault.calls
    fault.calls.clear()
    pull(store, remote)
    assert ("read", path) not in fault.calls
    write(store, path, b"damaged")
    pull(store, remote)
    assert ("read", path) in fault.calls


def test_a_file_that_is_not_listed_is_not_asked_for(
    store: Store, source: Store, remote: Files, monkeypatch: pytest.MonkeyPatch
):
    for record in (source.root / "refs").rglob("@published/*"):
        record.unlink()
    push(source, remote)
    fault = Fault(monkeypatch)
    pull(store, remote).check()
    assert not [path for operation, path in fault.calls if operation == "read" and path.startswith("refs/")]
    assert content(store.root) == content(source.root)


# --- what changed since it was written


def test_changes_by_other_programs_count(tmp_path: Path, source: Store, remote: Files):
    push(source, remote)
    old, first = remote.read(PATH, 0, 2**20), pulled(remote, tmp_path / "first")
    refs = f"refs/{HEAD}"
    other = actual(remote)[f"{refs}/@versions/1.0.0"].split()[0]
    remote.put(f"{refs}/@versions/2.0.0", f"{other} {HEAD}@2.0.0\n".encode())  # as long as before
    remote.put(f"{refs}/@versions/3.0.0", f"{other} {HEAD}@3.0.0\n".encode())
    remote.put(f"{refs}/@tombstones/3.0.0", b'{"reason":"slow","time":"2026-01-01T00:00:00Z"}\n')
    remote.remove(f"refs/{EXTRACTOR}/@versions/1.0.0")
    remote.remove(f"{refs}/@log/prod/2")
    assert remote.read(PATH, 0, 2**20) == old
    second = pulled(remote, tmp_path / "second")
    assert second == without_refs_file(remote, tmp_path / "third") != first
    assert second[f"{refs}/@versions/2.0.0"].decode().split()[0] == other
    assert f"{refs}/@tombstones/3.0.0" in second and f"refs/{EXTRACTOR}/@versions/1.0.0" not in second


def test_a_push_corrects_it(source: Store, remote: Files, publish: Publish):
    push(source, remote)
    remote.put(
        PATH, json.dumps({"schema": 1, "files": {"refs/gone/@versions/1.0.0": "x"}, "counts": {}}).encode()
    )
    publish(source, HEAD, 9, kind="head", version="4.0.0")
    push(source, remote, [HEAD])
    assert f"refs/{HEAD}/@versions/4.0.0" in saved(remote)
    push(source, remote)
    assert saved(remote) == actual(remote)


def test_of_two_pushers_the_last_writes_it_and_both_count(
    tmp_path: Path, many: Store, source: Store, remote: Files
):
    push(source, remote)
    first = remote.read(PATH, 0, 2**20) or b""
    push(many, remote)
    remote.put(PATH, first)  # as if the first had been slower
    assert pulled(remote, tmp_path / "here") == content(source.root) | content(many.root)


def test_random_changes_give_what_plain_reading_gives(tmp_path: Path, publish: Publish, remote: Files):
    chance = random.Random(5)
    teams = [Store.init(tmp_path / f"team{number}") for number in range(3)]
    for step in range(12):
        team = chance.choice(teams)
        name = f"net{chance.randrange(3)}.head"
        publish(team, name, chance.randrange(200), kind="head")
        versions = [str(version) for version in team.references.versions(name)]
        if chance.random() < 0.5:
            team.set_alias(name, "prod", versions[-1])
        if chance.random() < 0.3:
            team.withdraw(name, versions[0], "old")
        before = remote.read(PATH, 0, 2**20)
        push(team, remote)
        if before is not None and chance.random() < 0.3:
            remote.put(PATH, before)
        ours = pulled(remote, tmp_path / f"ours{step}", *([name] if chance.random() < 0.5 else []))
        assert ours
        theirs = without_refs_file(remote, tmp_path / f"theirs{step}")
        assert ours.items() <= theirs.items()
        pull(Store.open(tmp_path / f"ours{step}"), remote, settings=FOLLOW)
        assert content(tmp_path / f"ours{step}") == theirs


# --- what stands in it


def swapped(files: Mapping[str, str]) -> dict[str, str]:
    """Let each file hold what another one of its kind holds."""
    digests = sorted({text.split()[0] for text in files.values() if text.startswith("sha256:")})
    return {
        path: text.replace(text.split()[0], digests[digests.index(text.split()[0]) - 1])
        if text.startswith("sha256:")
        else text.replace("0", "1")
        for path, text in files.items()
    }


@pytest.mark.parametrize(
    "lie",
    [
        swapped,
        lambda files: dict.fromkeys(files, ""),
        lambda files: dict.fromkeys(files, "x" * 10**5),
        lambda files: {path.replace("1.0.0", "9.0.0"): text for path, text in files.items()},
        lambda files: {
            f"refs/new/@versions/{n}.0.0": f"sha256:{'a' * 64} new@{n}.0.0\n" for n in range(1, 99)
        },
        lambda files: {f"../../{path}": text for path, text in files.items()},
        lambda files: {"/etc/passwd": "x", "refs/../../../x/@versions/1.0.0": "y", "": "z"},
    ],
)
def test_lies_change_nothing(
    tmp_path: Path, source: Store, remote: Files, lie: Callable[[Mapping[str, str]], dict[str, str]]
):
    push(source, remote)
    expected = pulled(remote, tmp_path / "before")
    value = {"schema": 1, "files": lie(saved(remote)), "counts": {"blobs": 10**30, "refs": 0, "evidence": -5}}
    remote.put(PATH, json.dumps(value).encode())
    assert pulled(remote, tmp_path / "after") == expected
    assert pulled(remote, tmp_path / "one", HEAD).items() <= expected.items()
    push(source, remote)
    assert saved(remote) == actual(remote)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[]",
        b"null",
        b"{}",
        b'{"schema":2,"files":{},"counts":{}}',
        b'{"schema":1,"files":[],"counts":{}}',
        b'{"schema":1,"files":{"refs/a/@versions/1.0.0":1},"counts":{}}',
        b'{"schema":1,"files":{},"counts":{"blobs":"1"}}',
        b'{"schema":1,"files":{},"counts":{"blobs":1.5}}',
        b'{"schema":1,"files":{},"files":{},"counts":{}}',
        b"[" * 10**5,
    ],
)
def test_a_damaged_one_is_noted_and_replaced(store: Store, source: Store, remote: Files, data: bytes):
    push(source, remote)
    remote.put(PATH, data)
    report = pull(store, remote).check()
    assert content(store.root) == content(source.root)
    assert [note for note in report.notes if f"{remote.url}/{PATH}" in note]
    push(source, remote)
    assert saved(remote) == actual(remote)


def test_one_that_is_too_long_is_neither_used_nor_written(
    store: Store, source: Store, remote: Files, monkeypatch: pytest.MonkeyPatch
):
    push(source, remote)
    monkeypatch.setattr(refs_file, "LIMIT", 100)
    assert pull(store, remote).check().notes and content(store.root) == content(source.root)
    before = remote.read(PATH, 0, 2**20)
    push(source, remote)
    assert remote.read(PATH, 0, 2**20) == before


def test_contents_that_json_would_change_are_left_out(tmp_path: Path, source: Store, remote: Files):
    push(source, remote)
    reason = unicodedata.normalize("NFD", "zu groß für Käufer")
    remote.put(f"refs/{HEAD}/@tombstones/2.0.0", f'{{"reason":"{reason}","time":"x"}}\n'.encode())
    remote.put(f"refs/{HEAD}/@tombstones/2.0.0~2", b"\xff\n")
    expected = without_refs_file(remote, tmp_path / "plain")
    push(source, remote)
    assert f"refs/{HEAD}/@tombstones/2.0.0" not in saved(remote)
    assert pulled(remote, tmp_path / "here") == expected


# --- when it is written


def test_a_dry_run_writes_none(source: Store, remote: Files):
    push(source, remote)
    remote.remove(PATH)
    push(source, remote, settings=TransferSettings(dry_run=True))
    assert remote.size(PATH) is None


def test_one_that_cannot_be_written_is_a_note(tmp_path: Path, source: Store, memory: str):
    remote = tagged(memory, protected=True)
    report = push(source, remote).check()
    assert len(report.created) == 3 and any(PATH in note for note in report.notes)
    assert pulled(remote, tmp_path / "here") == content(source.root)


def test_a_long_one_is_written_after_many_changes(
    many: Store, remote: Files, publish: Publish, monkeypatch: pytest.MonkeyPatch
):
    push(many, remote)
    monkeypatch.setattr(mirror, "SMALL_REFS", 0)
    monkeypatch.setattr(mirror, "FEW_CHANGES", 0.04)
    for value in (201, 202, 203):
        before = remote.read(PATH, 0, 2**20)
        publish(many, f"late{value}.head", value, kind="head")
        push(many, remote)
        assert (remote.read(PATH, 0, 2**20) == before) == (value < 203)
    assert saved(remote) == actual(remote)


def test_a_store_with_other_tags_is_read_file_by_file(
    tmp_path: Path, source: Store, memory: str, monkeypatch: pytest.MonkeyPatch
):
    remote = tagged(memory, own_keys=True)
    push(source, remote)
    assert pulled(remote, tmp_path / "here") == content(source.root)
    fault = Fault(monkeypatch)
    push(source, remote)
    assert not fault.written()


# --- registries and names


def test_a_remote_that_was_copied_into_a_folder_is_a_registry(tmp_path: Path, source: Store, remote: Files):
    push(source, remote)
    folder = tmp_path / "copied"
    for path in (
        *(
            path
            for top in ("blobs", "refs", "evidence", "signatures", "withdrawals")
            for path in remote.sizes(top)
        ),
        "compatkit.json",
        PATH,
    ):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(remote.read(path, 0, 2**20) or b"")
    for name in ("policies", "keys", "tmp", "trash", "quarantine", "locks"):
        (folder / name).mkdir()
    copied = Store.open(folder)
    report = examine(copied)
    assert report.sound and PATH not in str(report)
    (folder / PATH).write_text("anything")
    assert examine(copied).sound and content(folder) == content(source.root)


def test_a_name_without_wildcards_is_looked_up_by_itself(
    store: Store, many: Store, remote: Files, monkeypatch: pytest.MonkeyPatch
):
    push(many, remote)
    remote.put(PATH, json.dumps({"schema": 1, "files": {}, "counts": {"refs": 10**6}}).encode())
    fault = Fault(monkeypatch)
    pull(store, remote, ["zone3/net3.head@^1", "zone4/net4.head"])
    assert store.names() == ["zone3/net3.head", "zone4/net4.head"]
    listed = [path for operation, path in fault.calls if operation == "list" and path.startswith("refs")]
    assert sorted(listed) == ["refs/zone3/net3.head", "refs/zone4/net4.head"]


def test_an_unknown_name_is_told_with_those_that_exist(store: Store, many: Store, remote: Files):
    push(many, remote)
    for pattern in ("zone3/net33.head", "zone3/net3", "zone3"):
        with pytest.raises(NotFound) as caught:
            pull(store, remote, [pattern])
        assert "zone3/net3.head" in str(caught.value)
    assert not content(store.root)

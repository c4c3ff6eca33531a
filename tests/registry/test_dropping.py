"""A number is freed only where nothing is lost and nothing relies on it; every reader of the registry knows of it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from compatkit.contracts.manifest import Parent
from compatkit.errors import FormatError, NotFound, UsageError, VersionTooSmall
from compatkit.foundation.codec import dumps, loads
from compatkit.registry import disk as durable
from compatkit.registry.drop_records import drop_log, last_drop, read_drop
from compatkit.registry.dropping import drop
from compatkit.registry.history import log
from compatkit.registry.layout_scan import DropFile
from compatkit.registry.maintenance.check import examine
from compatkit.registry.maintenance.faults import CODES
from compatkit.registry.maintenance.gc import plan
from compatkit.registry.maintenance.repair import plan as plan_repair
from compatkit.registry.names import Reference, Version
from compatkit.registry.policies import Images, Policy
from compatkit.registry.remotes.pushpull import import_components, pull
from compatkit.registry.restoring import restore
from compatkit.registry.second_names import copy
from compatkit.registry.store import Store

Publish = Callable[..., Any]
EYE, HAND, REASON = "digits/eye", "digits/hand", "taken by the other team"
FIRST = Version(1, 0, 0)
DATA = Images("mnist/test", "data:sha256:" + "a" * 64)


def names(store: Store) -> list[str]:
    return [f"{name}@{version}" for name, version in store.references.each()]


def record_path(store: Store, number: int = 1) -> Path:
    return store.root / f"refs/{EYE}/@dropped/1.0.0/{number}"


@pytest.fixture
def copied(store: Store, publish: Publish) -> Store:
    """A version that has a second number, so that the first can be dropped."""
    publish(store, EYE)
    copy(store, f"{EYE}@1.0.0", f"{EYE}@2.0.0")
    return store


def test_the_number_is_free_the_component_stays_and_the_record_says_why(copied: Store):
    digest = str(copied.resolve(f"{EYE}@1.0.0").digest)
    record = drop(copied, f"{EYE}@1.0.0", REASON)
    assert names(copied) == [f"{EYE}@2.0.0"]
    assert copied.resolve(EYE) == Reference(EYE, Version(2, 0, 0), digest=digest)
    assert (record.number, record.digest, record.kept, record.reason) == (1, digest, f"{EYE}@2.0.0", REASON)
    fields = {"digest": digest, "kept": f"{EYE}@2.0.0", "reason": REASON, "time": record.time}
    content = record_path(copied).read_bytes()
    assert content == dumps({**fields, **copied.author.fields()})
    assert last_drop(drop_log(copied.references, EYE, FIRST)) == record == read_drop(content, 1)
    assert examine(copied).sound
    assert [fault.code for fault in examine(copied).faults] == ["trash"]


def test_whoever_asks_for_the_number_is_told(copied: Store):
    drop(copied, f"{EYE}@1.0.0", REASON)
    with pytest.raises(NotFound) as missing:
        copied.resolve(f"{EYE}@1.0.0")
    assert REASON in str(missing.value) and f"{EYE}@2.0.0" in str(missing.value)
    assert missing.value.subject == f"{EYE}@1.0.0"


def test_a_name_without_versions_still_says_where_its_component_is(store: Store, publish: Publish):
    digest = publish(store, EYE).digest
    copy(store, EYE, "other/eye")
    drop(store, f"{EYE}@1.0.0", REASON)
    with pytest.raises(NotFound) as missing:
        store.resolve(f"{EYE}@1.0.0")
    assert f"other/eye@{digest}" in str(missing.value)
    assert store.resolve(f"other/eye@{digest}").digest == digest
    with pytest.raises(NotFound):
        store.resolve(EYE)
    assert [entry.what for entry in log(store, EYE)] == ["dropped"]
    assert not examine(store, patterns=[EYE]).count("error")


def test_a_second_call_returns_the_record_of_the_first(copied: Store):
    first = drop(copied, f"{EYE}@1.0.0", REASON)
    assert drop(copied, f"{EYE}@1.0.0", "another reason") == first
    assert not record_path(copied, 2).exists()


def test_it_may_be_kept_under_another_name(store: Store, publish: Publish):
    publish(store, EYE)
    copy(store, EYE, "other/eye")
    assert drop(store, f"{EYE}@1.0.0", REASON).kept == "other/eye@1.0.0"
    assert names(store) == ["other/eye@1.0.0"] and store.names() == ["other/eye"]
    assert examine(store).sound


# --- what must stay


@pytest.mark.parametrize("reference", [EYE, f"{EYE}:best", f"{EYE}@^1"])
def test_a_number_is_named(copied: Store, reference: str):
    with pytest.raises(UsageError):
        drop(copied, reference, REASON)
    with pytest.raises(UsageError):
        drop(copied, f"{EYE}@1.0.0", "  ")
    with pytest.raises(NotFound):
        drop(copied, f"{EYE}@7.0.0", REASON)
    assert names(copied) == [f"{EYE}@1.0.0", f"{EYE}@2.0.0"]


def refused(store: Store, reference: str = f"{EYE}@1.0.0") -> str:
    """Return why a number is not dropped; nothing has changed."""
    before = names(store)
    with pytest.raises(UsageError) as error:
        drop(store, reference, REASON)
    assert error.value.subject == reference and names(store) == before
    assert not record_path(store).exists()
    return str(error.value)


def test_the_only_name_of_a_component_stays_and_the_error_has_the_command(store: Store, publish: Publish):
    publish(store, EYE)
    publish(store, EYE, 1, "3.0.0")
    message = refused(store)
    assert f"`compatkit copy {EYE}@1.0.0 --as {EYE}@4.0.0`" in message
    copy(store, f"{EYE}@1.0.0", f"{EYE}@4.0.0")
    drop(store, f"{EYE}@1.0.0", REASON)
    assert names(store) == [f"{EYE}@3.0.0", f"{EYE}@4.0.0"]


def test_a_withdrawn_name_does_not_count_as_another(copied: Store):
    copied.withdraw(EYE, "2.0.0", "wrong")
    refused(copied)


@pytest.mark.parametrize("restored", [False, True])
def test_a_number_that_was_ever_withdrawn_is_not_used_again(copied: Store, restored: bool):
    copied.withdraw(EYE, "1.0.0", "wrong")
    if restored:
        restore(copied, EYE, "1.0.0", "right after all")
    refused(copied)


def test_an_alias_moves_first_and_the_error_has_the_command(copied: Store):
    copied.set_alias(EYE, "prod", "1.0.0")
    assert f"`compatkit alias {EYE} prod VERSION`" in refused(copied)
    copied.set_alias(EYE, "prod", "2.0.0")
    drop(copied, f"{EYE}@1.0.0", REASON)
    assert copied.resolve(f"{EYE}:prod").version == Version(2, 0, 0)
    assert examine(copied).sound


@pytest.fixture
def pair(copied: Store, publish: Publish) -> Store:
    """An extractor with a second number in another line and a head that was trained with it."""
    parents = (Parent("trained_with", str(copied.resolve(EYE).digest)),)
    publish(copied, HAND, 9, kind="head", parents=parents)
    copy(copied, HAND, f"{HAND}@2.0.0")
    return copied


@pytest.mark.parametrize(
    ("scope", "mode", "dropped"),
    [
        (EYE, "backward", EYE),
        (HAND, "forward", EYE),
        ("digits/*", "full", EYE),
        (HAND, "forward_transitive", HAND),
        ("digits/*", "full", HAND),
    ],
)
def test_the_number_of_a_released_pair_stays_under_a_policy(pair: Store, scope: str, mode: Any, dropped: str):
    pair.set_policy(scope, Policy(scope=scope, mode=mode, data=DATA))
    message = refused(pair, f"{dropped}@1.0.0")
    assert f"`compatkit policy clear '{scope}'`" in message
    pair.set_policy(scope, None)
    drop(pair, f"{dropped}@1.0.0", REASON)


@pytest.mark.parametrize(
    ("scope", "mode", "dropped"),
    [(EYE, "backward", HAND), (EYE, "forward", EYE), (HAND, "backward", EYE), ("other/*", "full", EYE)],
)
def test_a_policy_that_is_not_about_the_pair_by_this_number_lets_it_go(
    pair: Store, scope: str, mode: Any, dropped: str
):
    pair.set_policy(scope, Policy(scope=scope, mode=mode, data=DATA))
    drop(pair, f"{dropped}@1.0.0", REASON)
    assert examine(pair).sound


@pytest.mark.parametrize("across", [False, True])
def test_another_number_in_the_line_of_the_policy_stands_in(pair: Store, across: bool):
    pair.set_policy(EYE, Policy(scope=EYE, mode="backward", data=DATA, across_major=across))
    if not across:
        refused(pair)
        copy(pair, f"{EYE}@1.0.0", f"{EYE}@1.0.1")
    requirement = pair.policy_requirement(EYE, pair.manifest(EYE), version="1.2.0")
    drop(pair, f"{EYE}@1.0.0", REASON)
    after = pair.policy_requirement(EYE, pair.manifest(EYE), version="1.2.0")
    assert across or requirement.partners == after.partners


# --- who may use the number


def test_the_next_publication_does_not_use_the_number(store: Store, publish: Publish):
    publish(store, EYE)
    copy(store, EYE, "other/eye")
    drop(store, f"{EYE}@1.0.0", REASON)
    assert store.next_version(EYE, store.manifest("other/eye")) == Version(2, 0, 0)
    assert str(publish(store, EYE, 5)) == f"{EYE}@2.0.0"


def test_an_explicit_number_may_be_used_within_the_rules(copied: Store, publish: Publish):
    drop(copied, f"{EYE}@1.0.0", REASON)
    assert str(publish(copied, EYE, 7, "1.0.0")) == f"{EYE}@1.0.0"
    assert examine(copied).sound
    copy(copied, f"{EYE}@1.0.0", "other/eye")
    copy(copied, f"{EYE}@1.0.0", f"{EYE}@1.0.5")
    record = drop(copied, f"{EYE}@1.0.0", "again")
    assert record.number == 2
    with pytest.raises(VersionTooSmall):
        publish(copied, EYE, 8, "1.0.0")


@pytest.mark.parametrize("bring", ["import", "pull"])
def test_the_number_of_another_registry_comes_in(copied: Store, publish: Publish, tmp_path: Path, bring: str):
    other = Store.init(tmp_path / "other")
    theirs = publish(other, EYE, 5)
    mine = copied.resolve(EYE)
    drop(copied, f"{EYE}@1.0.0", REASON)
    if bring == "import":
        import_components(other, copied, [EYE])
    else:
        pull(copied, str(other.root)).check()
    assert copied.resolve(f"{EYE}@1.0.0").digest == theirs.digest
    assert copied.resolve(f"{EYE}@2.0.0").digest == mine.digest
    assert examine(copied).sound


def test_nothing_that_was_opened_before_gives_the_old_answer(copied: Store, publish: Publish, tmp_path: Path):
    """The index, resolution and manifests of an open store follow."""
    other = Store.init(tmp_path / "other")
    theirs, mine = publish(other, EYE, 5), copied.resolve(EYE)

    def found() -> dict[str, str]:
        return {match.version: match.digest for match in copied.index.search(pattern=EYE)}

    assert found() == {"1.0.0": mine.digest, "2.0.0": mine.digest}
    assert copied.manifest(f"{EYE}@1.0.0") == copied.manifest(EYE)
    drop(copied, f"{EYE}@1.0.0", REASON)
    assert found() == {"2.0.0": mine.digest}
    assert [row.version for row in copied.index.listing()] == ["2.0.0"]
    pull(copied, str(other.root)).check()
    assert found() == {"1.0.0": theirs.digest, "2.0.0": mine.digest}
    assert copied.manifest(f"{EYE}@1.0.0") == other.manifest(EYE)
    copied.check_number(EYE, Version(2, 0, 0), str(mine.digest))


# --- verify, repair, history, garbage collection, mirror


def test_the_history_has_the_drop_with_its_reason(copied: Store):
    drop(copied, f"{EYE}@1.0.0", REASON)
    (entry,) = (entry for entry in log(copied, EYE) if entry.what == "dropped")
    assert entry.version == "1.0.0" and not entry.damaged
    assert REASON in entry.detail and f"{EYE}@2.0.0" in entry.detail
    copy(copied, EYE, f"{EYE}@1.0.0")
    (entry,) = (entry for entry in log(copied, EYE) if entry.what == "dropped")
    assert "again" in entry.detail
    overwrite(record_path(copied), b"{}\n")
    (entry,) = (entry for entry in log(copied, EYE) if entry.what == "dropped")
    assert entry.damaged


def overwrite(path: Path, data: bytes) -> None:
    path.chmod(0o644)
    path.write_bytes(data)


@pytest.mark.parametrize(
    "content", [b"", b"{}\n", b"?", b'{"digest":1,"kept":"a@1.0.0","reason":"","time":""}\n']
)
def test_a_damaged_record_is_a_warning_and_the_number_stays_used(copied: Store, content: bytes):
    drop(copied, f"{EYE}@1.0.0", REASON)
    overwrite(record_path(copied), content)
    report = examine(copied)
    (fault,) = (fault for fault in report.faults if fault.severity != "info")
    assert (fault.code, fault.affected, report.sound) == ("dropped-damaged", (f"{EYE}@1.0.0",), True)
    assert isinstance(fault.entry, DropFile) and CODES[fault.code].severity == "warning"
    plan_repair(report).apply()
    assert {fault.severity for fault in examine(copied).faults} == {"info"}
    assert FIRST in copied.references.used_numbers(EYE)


def test_a_record_comes_back_from_a_copy(copied: Store, tmp_path: Path):
    import shutil

    drop(copied, f"{EYE}@1.0.0", REASON)
    shutil.copytree(copied.root, tmp_path / "copy")
    content = record_path(copied).read_bytes()
    overwrite(record_path(copied), b"{}\n")
    plan_repair(examine(copied), source=Store.open(tmp_path / "copy")).apply()
    assert record_path(copied).read_bytes() == content


def test_a_component_that_lost_its_other_name_comes_back_by_the_record(copied: Store):
    digest = copied.resolve(EYE).digest
    drop(copied, f"{EYE}@1.0.0", REASON)
    (copied.root / f"refs/{EYE}/@versions/2.0.0").unlink()
    report = examine(copied)
    (fault,) = (fault for fault in report.faults if fault.severity == "error")
    assert (fault.code, fault.affected) == ("dropped-unnamed", (f"{EYE}@1.0.0",))
    (action,) = plan_repair(report).actions
    assert action.path == f"refs/{EYE}/@versions/1.0.0"
    plan_repair(report).apply()
    assert examine(copied).sound and copied.resolve(f"{EYE}@1.0.0").digest == digest


def test_a_repair_from_an_older_copy_does_not_bring_a_dropped_version_back(copied: Store, tmp_path: Path):
    import shutil

    shutil.copytree(copied.root, tmp_path / "copy")
    drop(copied, f"{EYE}@1.0.0", REASON)
    pointer = copied.root / f"refs/{EYE}/@aliases/best"
    pointer.parent.mkdir()
    pointer.write_bytes(b"1.0.0\n")  # by hand, without a move
    report = examine(copied)
    assert [fault.code for fault in report.faults if fault.severity == "error"] == ["alias-dangling"]
    repair = plan_repair(report, source=Store.open(tmp_path / "copy"))
    assert not repair.actions and [fault.code for fault in repair.left] == ["alias-dangling"]


def test_odd_files_among_the_records_are_named(copied: Store):
    drop(copied, f"{EYE}@1.0.0", REASON)
    folder = copied.root / f"refs/{EYE}/@dropped"
    (folder / "1.0").mkdir()
    (folder / "1.0.0/01").write_bytes(b"")
    faults = {fault.path: fault.code for fault in examine(copied).faults if fault.severity != "info"}
    assert faults == {f"refs/{EYE}/@dropped/1.0": "misnamed", f"refs/{EYE}/@dropped/1.0.0/01": "misnamed"}


def test_garbage_collection_removes_the_old_file_and_nothing_else(copied: Store):
    drop(copied, f"{EYE}@1.0.0", REASON)
    (trashed,) = (copied.root / "trash").iterdir()
    assert trashed.read_bytes().endswith(f"{EYE}@1.0.0\n".encode())
    young = plan(copied)
    assert len(young.waiting) == 1 and young.is_empty
    assert plan(copied, grace=timedelta(0), alone=True).apply().deleted == 1
    assert not [*(copied.root / "trash").iterdir()]
    copied.load_state(copied.manifest(EYE), verify="always")
    assert examine(copied).faults == ()


def test_a_remote_says_why_a_number_is_missing(copied: Store, tmp_path: Path, memory: str):
    from compatkit.registry.copy.settings import TransferSettings
    from compatkit.registry.remotes.pushpull import push

    drop(copied, f"{EYE}@1.0.0", REASON)
    push(copied, memory, settings=TransferSettings(create=True)).check()
    import fsspec

    system, folder = fsspec.filesystem("memory"), memory.removeprefix("memory:/")
    assert not system.exists(f"{folder}/refs/{EYE}/@dropped")  # a drop is one registry's own
    system.pipe_file(f"{folder}/refs/{EYE}/@dropped/1.0.0/1", record_path(copied).read_bytes())
    with pytest.raises(NotFound) as missing:
        pull(Store.init(tmp_path / "new"), memory, [f"{EYE}@1.0.0"])
    assert REASON in str(missing.value)


# --- other processes


def meanwhile(monkeypatch: pytest.MonkeyPatch, operation: str, part: str, act: Callable[[], object]) -> None:
    """Let another process do something right before a step."""
    done = False

    def step(name: str, path: Path) -> None:
        nonlocal done
        if not done and name == operation and part in str(path):
            done = True
            act()

    monkeypatch.setattr(durable, "step", step)


def test_an_alias_that_was_set_meanwhile_brings_the_version_back(
    copied: Store, monkeypatch: pytest.MonkeyPatch
):
    meanwhile(monkeypatch, "rename", "trash", lambda: copied.set_alias(EYE, "prod", "1.0.0"))
    with pytest.raises(UsageError):
        drop(copied, f"{EYE}@1.0.0", REASON)
    assert copied.resolve(f"{EYE}:prod").version == FIRST
    assert examine(copied).sound


def test_whoever_sets_an_alias_learns_that_the_version_was_dropped_meanwhile(
    copied: Store, monkeypatch: pytest.MonkeyPatch
):
    meanwhile(monkeypatch, "link", "@log", lambda: drop(Store.open(copied.root), f"{EYE}@1.0.0", REASON))
    with pytest.raises(NotFound) as missing:
        copied.set_alias(EYE, "prod", "1.0.0")
    assert missing.value.subject == f"{EYE}@1.0.0"
    copied.set_alias(EYE, "prod", "2.0.0")
    assert examine(copied).sound


def test_two_that_keep_it_as_each_other_lose_nothing(copied: Store, monkeypatch: pytest.MonkeyPatch):
    meanwhile(monkeypatch, "rename", "trash", lambda: drop(Store.open(copied.root), f"{EYE}@2.0.0", "other"))
    with pytest.raises(UsageError):
        drop(copied, f"{EYE}@1.0.0", REASON)
    assert names(copied) == [f"{EYE}@1.0.0"]
    assert examine(copied).sound


def test_a_number_that_another_took_meanwhile_is_not_removed(
    copied: Store, publish: Publish, monkeypatch: pytest.MonkeyPatch
):
    def take() -> None:
        drop(Store.open(copied.root), f"{EYE}@1.0.0", REASON)
        publish(copied, EYE, 7, "1.0.0")

    meanwhile(monkeypatch, "rename", "trash", take)
    with pytest.raises(UsageError):
        drop(copied, f"{EYE}@1.0.0", REASON)
    assert copied.resolve(f"{EYE}@1.0.0").digest != copied.resolve(f"{EYE}@2.0.0").digest
    assert examine(copied).sound


def test_two_that_drop_the_same_number_both_succeed(copied: Store, monkeypatch: pytest.MonkeyPatch):
    meanwhile(monkeypatch, "rename", "trash", lambda: drop(Store.open(copied.root), f"{EYE}@1.0.0", REASON))
    drop(copied, f"{EYE}@1.0.0", REASON)
    assert names(copied) == [f"{EYE}@2.0.0"]


def test_a_damaged_policy_or_alias_counts_as_relying(copied: Store, publish: Publish):
    parents = (Parent("trained_with", str(copied.resolve(EYE).digest)),)
    publish(copied, HAND, 9, kind="head", parents=parents)
    copied.set_policy(EYE, Policy(scope=EYE, mode="backward", data=DATA))
    (path,) = (copied.root / "policies").iterdir()
    overwrite(path, b"{}\n")
    with pytest.raises(FormatError):
        drop(copied, f"{EYE}@1.0.0", REASON)
    assert f"{EYE}@1.0.0" in names(copied)


# --- interrupted


def states(root: Path) -> tuple[bool, bool]:
    """Return whether the record and the version exist."""
    store = Store.open(root)
    assert examine(store).sound
    version = f"{EYE}@1.0.0" in names(store)
    return record_path(store).exists(), version


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_interrupted_at_every_step_it_is_sound_and_can_be_repeated(
    tmp_path: Path, publish: Publish, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
):
    import shutil

    base = Store.init(tmp_path / "base")
    publish(base, EYE)
    copy(base, f"{EYE}@1.0.0", f"{EYE}@2.0.0")
    seen: set[tuple[bool, bool]] = set()
    for number in range(1000):
        shutil.copytree(base.root, tmp_path / str(number))
        store, left = Store.open(tmp_path / str(number)), number

        def step(operation: str, path: Path) -> None:
            nonlocal left
            left -= 1
            if left == -1:
                raise error(5, "interrupted")

        with monkeypatch.context() as patched:
            patched.setattr(durable, "step", step)
            try:
                drop(store, f"{EYE}@1.0.0", REASON)
            except BaseException as raised:
                assert isinstance(raised, KeyboardInterrupt) or "interrupted" in str(raised)
        seen.add(states(store.root))
        drop(store, f"{EYE}@1.0.0", REASON)
        assert names(store) == [f"{EYE}@2.0.0"] and not record_path(store, 2).exists()
        assert loads(record_path(store).read_bytes(), what="record")["reason"] == REASON
        if left >= 0:
            break
    assert number > 10 and seen == {(False, True), (True, True), (True, False)}

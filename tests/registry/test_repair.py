"""A repair says what it would do, does that, deletes nothing, and can be cut off and made again at any step."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from damages import (
    EXTRACTOR,
    HEAD,
    NEW,
    OLD,
    TOP,
    Damage,
    Parts,
    as_pipe,
    build,
    manifest_of,
    overwrite,
    put,
    rows,
    table,
    weights,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import compatkit as ck
from compatkit.errors import CompatkitError, LayoutError, UsageError
from compatkit.foundation.codec import dumps, loads
from compatkit.registry import disk as durable
from compatkit.registry.maintenance.check import VerificationReport, examine, open_damaged
from compatkit.registry.maintenance.repair import plan
from compatkit.registry.maintenance.repair_plan import RepairPlan
from compatkit.registry.names import Version
from compatkit.registry.store import Store

EVERY = table(one="code")
COPIED = [entry for entry in EVERY if entry.values[0].mended == "copy"]
MENDED = [(damage, place) for _, damage in rows() if damage.mended != "no" for place in damage.places]


class Killed(BaseException):
    """The process is no more."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Parts:
    """A sound registry with one of everything; only to be copied."""
    return build(tmp_path_factory.mktemp("whole") / "parts")


@pytest.fixture
def parts(whole: Parts, tmp_path: Path) -> Parts:
    return whole.copy(tmp_path / "parts")


@pytest.fixture
def copy(whole: Parts) -> Store:
    """Another copy of the registry, which is only read."""
    return whole.store


def planned(parts: Parts, source: Store | None = None) -> RepairPlan:
    return plan(examine(open_damaged(parts.root)), source=source)


def words(plan: RepairPlan) -> str:
    return "\n".join([*(action.words for action in plan.actions), *(name.remedy for name in plan.left)])


def serious(soundness: VerificationReport) -> list[str]:
    """Return codes and paths of what is more than a remark."""
    return [f"{fault.code} {fault.path}" for fault in soundness.faults if fault.severity != "info"]


def contents(root: Path) -> set[str]:
    """Return the digests of all files, wherever they are."""
    files = (path for path in root.rglob("*") if stat.S_ISREG(path.lstat().st_mode))
    return {hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


@pytest.mark.case("A9", "C1", "E1")
@pytest.mark.parametrize(("damage", "place"), EVERY)
def test_the_plan_says_what_it_does_and_mends_it(
    parts: Parts, copy: Store, damage: Damage, place: str
) -> None:
    damage.do(parts.root / parts.path(place))
    before, saved = examine(parts.store), contents(parts.root)
    result = plan(before, source=copy if damage.mended == "copy" else None)
    assert damage.words in words(result)
    outcomes = result.apply()
    assert not [outcome.error for outcome in outcomes if outcome.error]
    assert contents(parts.root) >= saved
    after = examine(parts.store)
    if damage.mended == "no":
        assert not result.actions and serious(after) == serious(before) and len(result.left) == 1
    else:
        assert serious(after) == [] and not result.left
        assert all(outcome.done for outcome in outcomes)
    assert loads(dumps(result.to_json()), what="JSON")["kind"] == "repair-plan"


@pytest.mark.parametrize(("damage", "place"), COPIED)
def test_without_a_copy_it_says_what_is_missing(parts: Parts, damage: Damage, place: str) -> None:
    damage.do(parts.root / parts.path(place))
    result = planned(parts)
    saved = contents(parts.root)
    assert not [entry.error for entry in result.apply() if entry.error]
    assert contents(parts.root) >= saved
    after = examine(parts.store)
    assert bool(serious(after)) == bool(result.left)
    assert all(
        "copy" in name.remedy or "compatkit alias" in name.remedy or "--from" in name.remedy
        for name in result.left
    )
    again = plan(after)
    assert again.actions == () and len(again.left) == len(result.left)


def struck(parts: Parts) -> Parts:
    """Return a registry after a damage of each kind that a repair changes something for."""
    kinds = dict(rows())
    for name, place in STRUCK:
        kinds[name].do(parts.root / parts.path(place))
    return parts


STRUCK = (
    ("blob: cut off", "weights"),
    ("blob: in trash", "run"),
    ("blob: writable", "parent"),
    ("version: torn", "new"),
    ("tombstone: zero bytes", "tombstone"),
    ("alias: a folder", "alias"),
    ("log: a move removed", "log/1"),
    ("pointer: text", "pointer"),
    ("keys: removed", "keys"),
)
"""A damage for each kind of change that a repair makes."""


@pytest.mark.case("D1")
@pytest.mark.parametrize("stride", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_a_repair_killed_at_any_step_leaves_nothing_worse_and_is_finished_by_the_next(
    whole: Parts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, copy: Store, stride: int
) -> None:
    root = tmp_path / "parts"
    parts = struck(whole.copy(root))
    before, saved = examine(parts.store), contents(root)
    assert before.count("error") + before.count("warning") == len(STRUCK)
    result, number, died = plan(before, source=copy), 0, True
    while died:
        shutil.rmtree(root)
        struck(whole.copy(root))
        with monkeypatch.context() as patched:
            patched.setattr(durable, "step", dying(number))
            try:
                result.apply()
                died = False
            except Killed:
                number += stride
        assert contents(root) >= saved
        after = examine(parts.store)
        assert after.count("error") <= before.count("error")
        plan(after, source=copy).apply()
        assert serious(examine(parts.store)) == []
    assert number > 80


def dying(number: int) -> Callable[[str, Path], None]:
    """Return a step that ends the process before step ``number``, counted from 0, and before all that follow."""
    left = number

    def step(operation: str, path: Path) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise Killed

    return step


@pytest.mark.case("C2", "C3")
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS])
def test_an_action_that_fails_says_why_and_does_not_stop_the_others(
    parts: Parts, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    to_trash = parts.root / "trash" / f"{Path(parts.path('run')).name}-1-00"
    (parts.root / parts.path("run")).rename(to_trash)
    overwrite(parts.root / parts.path("tombstone"), b"x")

    def fail(operation: str, path: Path) -> None:
        if operation in ("rename", "link") and path.name == Path(parts.path("run")).name:
            raise OSError(code, os.strerror(code), str(path))

    monkeypatch.setattr(durable, "step", fail)
    outcomes = planned(parts).apply()
    assert [outcome.done for outcome in outcomes] == [False, True]
    assert errno.errorcode[code] in outcomes[0].error and outcomes[0].code == "environment"
    assert [fault.code for fault in examine(parts.store).faults if fault.code != "quarantine"] == [
        "blob-in-trash",
        "trash",
    ]


@pytest.mark.case("C4")
def test_a_repair_needs_no_hard_links(parts: Parts, copy: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(*args: object, **kwargs: object) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    struck(parts)
    as_pipe(parts.root / parts.path("log/3"))
    saved = contents(parts.root)
    monkeypatch.setattr(durable.os, "link", no_links)
    outcomes = planned(parts, copy).apply()
    assert not [outcome.error for outcome in outcomes if outcome.error] and contents(parts.root) >= saved
    assert serious(examine(parts.store)) == []


def test_a_withdrawn_version_never_comes_back_to_life(
    parts: Parts, copy: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = parts.root / parts.path("tombstone")
    sound = path.read_bytes()
    overwrite(path, b"garbage")
    (parts.root / parts.path("withdrawal")).unlink()
    result = planned(parts)
    assert not result.actions and [fault.code for fault in result.left] == ["tombstone-damaged"]
    assert Version(1, 0, 0) not in parts.store.versions(EXTRACTOR)
    seen: list[bool] = []
    monkeypatch.setattr(durable, "step", lambda operation, place: seen.append(path.exists()))
    planned(parts, copy).apply()
    assert all(seen) and len(seen) > 3
    assert path.read_bytes() == sound and Version(1, 0, 0) not in parts.store.versions(EXTRACTOR)
    assert [file.read_bytes() for file in (parts.root / "quarantine").iterdir()] == [b"garbage"]


def test_a_lost_last_move_is_not_made_up(parts: Parts, copy: Store) -> None:
    path = parts.root / parts.path("log/3")
    move = path.read_bytes()
    path.unlink()
    result = planned(parts)
    assert not result.actions and [fault.code for fault in result.left] == ["alias-damaged"]
    planned(parts, copy).apply()
    assert path.read_bytes() == move and examine(parts.store).faults == ()
    path.unlink()
    parts.store.set_alias(HEAD, "prod", "1.0.0")
    assert parts.store.aliases(HEAD) == {"prod": "1.0.0"} and examine(parts.store).faults == ()


def test_a_version_that_was_cut_off_is_left_and_its_number_free_without_it(parts: Parts) -> None:
    store = parts.store
    path = parts.root / f"refs/{EXTRACTOR}/@versions/3.0.0"
    for content in (b"", b"sha256:0"):
        path.write_bytes(content)
        result = planned(parts)
        assert not result.actions and "its number is free again" in words(result)
    path.unlink()
    assert str(store.publish(EXTRACTOR, manifest_of(put(store, weights(9))))) == f"{EXTRACTOR}@3.0.0"


def test_a_copy_gives_back_a_manifest_and_all_that_it_keeps(parts: Parts, copy: Store) -> None:
    for place in ("manifest", "weights", "run"):
        (parts.root / parts.path(place)).unlink()
    before = examine(parts.store)
    assert [fault.code for fault in before.faults] == [
        "manifest-missing"
    ]  # nobody can know what else is gone
    plan(before, source=copy).apply()
    assert examine(parts.store).faults == ()


def test_a_copy_with_the_same_identity_decides_where_a_version_points(parts: Parts, copy: Store) -> None:
    path = parts.root / parts.path("top")
    overwrite(path, f"{parts.blobs['run']}\n".encode())
    (fault,) = (entry for entry in examine(parts.store).faults if entry.severity == "error")
    assert fault.code == "version-target"
    stranger = Store.init(parts.root.parent / "stranger")
    for place in ("run", "manifest", "weights", "parent", "parent weights"):
        stranger.put_blob((copy.root / parts.path(place)).read_bytes())
    stranger.references.create(HEAD, Version(1, 0, 0), parts.blobs["manifest"])
    assert not planned(parts, stranger).actions
    planned(parts, copy).apply()
    assert path.read_bytes().decode() == f"{parts.blobs['manifest']} {HEAD}@1.0.0\n"
    assert serious(examine(parts.store)) == []


def test_a_plan_changes_nothing(whole: Parts, parts: Parts) -> None:
    struck(parts)
    before = examine(parts.store)
    assert len(plan(before, source=whole.store).actions) > len(STRUCK)
    assert examine(parts.store) == before


def test_bytes_from_a_damaged_copy_are_not_taken(whole: Parts, parts: Parts, tmp_path: Path) -> None:
    copy = whole.copy(tmp_path / "copy").store
    (parts.root / parts.path("weights")).unlink()
    overwrite(copy.root / parts.path("weights"), b"x" * 100)
    (outcome,) = planned(parts, copy).apply()
    assert not outcome.done and "expected sha256:" in outcome.error and outcome.code == "integrity"
    assert not (parts.root / parts.path("weights")).exists() and list((parts.root / "tmp").iterdir()) == []


@pytest.mark.parametrize("folder", ["trash", "quarantine"])
def test_a_bad_copy_is_not_taken(parts: Parts, folder: str) -> None:
    path = parts.root / parts.path("run")
    data = path.read_bytes()
    path.unlink()
    (parts.root / folder / f"{path.name}-1-00").write_bytes(b"x")
    (fault,) = (entry for entry in examine(parts.store).faults if entry.severity == "error")
    assert fault.code == "blob-missing" and not planned(parts).actions
    (parts.root / folder / f"{path.name}-2-00").write_bytes(data)
    planned(parts).apply()
    assert path.read_bytes() == data and path.stat().st_mode & 0o777 == 0o444


def test_large_blobs_are_copied_in_pieces(parts: Parts, copy: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    from compatkit.registry.maintenance import repair_plan

    monkeypatch.setattr(repair_plan, "CHUNK_SIZE", 1000)
    monkeypatch.setattr(durable, "JOINED", 999)
    (parts.root / parts.path("weights")).unlink()
    written: list[str] = []
    monkeypatch.setattr(durable, "step", lambda operation, path: written.append(operation))
    planned(parts, copy).apply()
    assert written.count("write") == -(-len((copy.root / parts.path("weights")).read_bytes()) // 1000)
    assert examine(parts.store).faults == ()


def test_what_was_mended_in_the_meantime_is_left_alone(parts: Parts, copy: Store) -> None:
    good = {
        place: (parts.root / parts.path(place)).read_bytes()
        for place in ("weights", "tombstone", "alias", "pointer")
    }
    for place in good:
        overwrite(parts.root / parts.path(place), b"x")
    result = planned(parts, copy)
    assert len(result.actions) == 5
    for place, data in good.items():
        overwrite(parts.root / parts.path(place), data)
    assert [entry.done for entry in result.apply()] == [False] * 5
    assert examine(parts.store).faults == () and list((parts.root / "quarantine").iterdir()) == []


def test_an_alias_without_a_log_cannot_be_told(parts: Parts) -> None:
    shutil.rmtree(parts.root / parts.path("log"))
    path = parts.root / parts.path("alias")
    overwrite(path, b"nonsense")
    result = planned(parts)
    assert "set the alias again" in words(result)
    result.apply()
    assert serious(examine(parts.store)) == [] and parts.store.aliases(HEAD) == {}


def test_a_last_move_that_nothing_tells_gives_way_to_the_one_before(parts: Parts) -> None:
    overwrite(parts.root / parts.path("log/3"), b"{")
    overwrite(parts.root / parts.path("alias"), b"2.0.0 2\n")
    result = planned(parts)
    assert "log/prod/3 to quarantine/: this move is lost" in words(result)
    result.apply()
    assert serious(examine(parts.store)) == [] and parts.store.aliases(HEAD) == {"prod": "2.0.0"}


def test_moves_that_are_gone_come_from_a_copy_or_stay_gone(parts: Parts, copy: Store) -> None:
    log = parts.store.alias_log(HEAD, "prod")
    for place in ("log/1", "log/2"):
        (parts.root / parts.path(place)).unlink()
    assert not planned(parts).actions and "--from" in planned(parts).left[0].remedy
    assert parts.store.aliases(HEAD) == {"prod": "1.0.0"} and parts.store.alias_log(HEAD, "prod") == log[2:]
    planned(parts, copy).apply()
    assert parts.store.alias_log(HEAD, "prod") == log and examine(parts.store).faults == ()


def test_an_absurd_number_of_a_move_gives_way_to_the_log(parts: Parts) -> None:
    overwrite(parts.root / parts.path("alias"), b"1.0.0 999999999999\n")
    planned(parts).apply()
    assert serious(examine(parts.store)) == [] and parts.store.aliases(HEAD) == {"prod": "1.0.0"}


def test_an_alias_that_was_removed_stays_so(parts: Parts) -> None:
    stale = (parts.root / parts.path("alias")).read_bytes()
    parts.store.set_alias(HEAD, "prod", None)
    (parts.root / parts.path("alias")).write_bytes(stale)
    assert examine(parts.store).faults == () and not planned(parts).actions
    assert parts.store.aliases(HEAD) == {}


@pytest.mark.case("E4")
def test_a_damaged_marker_is_written_anew_with_its_identity_if_that_can_be_read(parts: Parts) -> None:
    path, identity = parts.root / "compatkit.json", parts.store.id
    data = path.read_bytes()
    for damaged in (data[:-3], b"\0" + data):
        overwrite(path, damaged)
        planned(parts).apply()
        assert serious(examine(parts.store)) == [] and parts.store.id == identity
    overwrite(path, data.replace(b'"layout":1', b'"layout":2')[:-3])
    result = planned(parts)
    assert not result.actions and "upgrade" in result.left[0].remedy


@pytest.mark.case("E4")
@pytest.mark.parametrize("content", [b"", b"{", None])
def test_a_damaged_marker_is_left_to_people_and_nothing_is_changed_before(
    parts: Parts, content: bytes | None
) -> None:
    path = parts.root / "compatkit.json"
    sound = path.read_bytes()
    overwrite(parts.root / parts.path("run"), b"x")
    path.unlink() if content is None else overwrite(path, content)
    with pytest.raises(CompatkitError):
        ck.Registry.open(parts.root)
    maintenance = ck.Registry.open(parts.root, damaged=True).maintenance
    result = maintenance.repair(maintenance.verify())
    (left,) = (fault for fault in result.left if fault.path == "compatkit.json")
    assert "compatkit init" in left.remedy
    with pytest.raises(CompatkitError):
        result.apply()
    assert (parts.root / parts.path("run")).read_bytes() == b"x"
    path.unlink(missing_ok=True)
    path.write_bytes(sound)
    maintenance.repair(maintenance.verify()).apply()
    assert not (parts.root / parts.path("run")).exists()


@pytest.mark.case("E4")
def test_a_registry_that_may_only_be_read_is_not_repaired(parts: Parts) -> None:
    path = parts.root / "compatkit.json"
    value: Any = loads(path.read_bytes(), what="marker")
    overwrite(path, dumps(value | {"min_writer": 2}))
    overwrite(parts.root / parts.path("run"), b"x")
    result = planned(parts)
    with pytest.raises(LayoutError, match="can only read"):
        result.apply()


def test_a_registry_is_no_copy_of_itself(parts: Parts) -> None:
    with pytest.raises(UsageError, match="the registry itself"):
        planned(parts, Store.open(parts.root))


def test_a_registry_of_other_parts_gives_what_it_has(parts: Parts, tmp_path: Path) -> None:
    other = Store.init(tmp_path / "other")
    other.put_blob((parts.root / parts.path("run")).read_bytes())
    for place in ("run", "weights"):
        (parts.root / parts.path(place)).unlink()
    result = planned(parts, other)
    assert len(result.actions) == 1 and [name.path for name in result.left] == [parts.path("weights")]
    result.apply()
    assert serious(examine(parts.store)) == [f"blob-missing {parts.path('weights')}"]


def test_a_quick_look_is_repaired_after_reading_what_it_doubts(parts: Parts, copy: Store) -> None:
    path = parts.root / parts.path("weights")
    overwrite(path, path.read_bytes()[:-1])
    result = plan(examine(parts.store, deep=False), source=copy)
    assert [action.words.split()[0] for action in result.actions] == ["move", "copy"]
    result.apply()
    assert examine(parts.store, deep=True).sound


@pytest.mark.parametrize("victim", [TOP, NEW, OLD])
def test_a_pattern_repairs_only_its_own(parts: Parts, copy: Store, victim: str) -> None:
    places = {TOP: "run", NEW: "parent weights", OLD: "old weights"}
    for place in places.values():
        overwrite(parts.root / parts.path(place), b"x")
    plan(examine(parts.store, patterns=[OLD]), source=copy).apply()
    damaged = {fault.path for fault in examine(parts.store).faults if fault.severity == "error"}
    assert (parts.path(places[victim]) in damaged) == (victim != OLD)


CHECKS = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]


@pytest.mark.case("A9", "C1", "D1")
@settings(max_examples=10, deadline=None, suppress_health_check=CHECKS)
@given(several=st.lists(st.integers(0, len(MENDED) - 1), min_size=2, max_size=5))
def test_random_damages_together_are_mended_as_far_as_the_copy_reaches(
    whole: Parts, tmp_path_factory: Any, several: list[int]
) -> None:
    damages_together(whole, tmp_path_factory, several)


@pytest.mark.slow
@settings(max_examples=200, deadline=None, suppress_health_check=CHECKS)
@given(several=st.lists(st.integers(0, len(MENDED) - 1), min_size=2, max_size=5))
def test_many_damages_together_are_mended_as_far_as_the_copy_reaches(
    whole: Parts, tmp_path_factory: Any, several: list[int]
) -> None:
    damages_together(whole, tmp_path_factory, several)


def damages_together(whole: Parts, tmp_path_factory: Any, several: list[int]) -> None:
    folder = tmp_path_factory.mktemp("random")
    parts = whole.copy(folder / "parts")
    for damage, place in (MENDED[number] for number in several):
        path = (
            parts.root / parts.path(place) if place != "pointer" else next(iter(_pointers(parts.root)), None)
        )
        if (
            path is not None
            and path.exists()
            and not path.is_symlink()
            and (place in _FOLDERS or path.is_file())
        ):
            # one damage may leave nothing for the next: what is thrown away needs a trash
            with suppress(FileNotFoundError, NotADirectoryError):
                damage.do(path)
    saved, before = contents(parts.root), examine(parts.store)
    outcomes = plan(before, source=whole.store).apply()
    assert not [outcome.error for outcome in outcomes if outcome.error] and contents(parts.root) >= saved
    second = plan(examine(parts.store), source=whole.store)
    second.apply()
    after = examine(parts.store)
    assert after.count("error") <= before.count("error") and not plan(after, source=whole.store).actions


_FOLDERS = ("tmp", "trash", "quarantine", "locks", "keys", "signatures", "policies")


def _pointers(root: Path) -> list[Path]:
    return [path for path in (root / "evidence").rglob("*") if len(path.name) == 64 and path.is_file()]

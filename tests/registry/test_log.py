"""Numbered logs under attack: what an alias points at is what its last move says, whatever happens to other files."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from compatkit.errors import CompatkitError, FormatError
from compatkit.registry.log import Log
from compatkit.registry.maintenance.check import examine
from compatkit.registry.maintenance.repair import plan
from compatkit.registry.store import Store

Publish = Callable[..., object]
NAME, PROD = "a/b", "a/b:prod"


@pytest.fixture
def moved(store: Store, publish: Publish) -> Store:
    """Three versions; prod went from the first to the third and back to the second."""
    for value in range(3):
        publish(store, NAME, value=value)
    for version in ("1.0.0", "3.0.0", "2.0.0"):
        store.set_alias(NAME, "prod", version)
    return store


def pointer(store: Store) -> Path:
    return store.root / "refs/a/b/@aliases/prod"


def entry(store: Store, number: int) -> Path:
    return store.root / f"refs/a/b/@log/prod/{number}"


def overwrite(path: Path, data: bytes) -> None:
    path.chmod(0o644)
    path.write_bytes(data)


def points_at(store: Store) -> str:
    return str(Store.open(store.root).resolve(PROD).version)


def points_or_refuses(store: Store) -> str:
    try:
        return points_at(store)
    except CompatkitError:
        return "refused"


def codes(store: Store) -> set[str]:
    return {fault.code for fault in examine(store).faults}


def test_no_flipped_bit_in_the_pointer_moves_an_alias_and_verify_names_each(moved: Store):
    whole = pointer(moved).read_bytes()
    assert whole == b"2.0.0 3\n"
    for at, bit in itertools.product(range(len(whole) - 1), range(8)):
        flipped = bytearray(whole)
        flipped[at] ^= 1 << bit
        overwrite(pointer(moved), bytes(flipped))
        assert points_or_refuses(moved) in ("2.0.0", "refused"), bytes(flipped)
        if flipped.split() != whole.split():
            assert codes(moved) & {"alias-damaged", "alias-log-gap"}, bytes(flipped)


def test_no_flipped_bit_in_the_last_move_moves_an_alias(moved: Store):
    whole = entry(moved, 3).read_bytes()
    seen = set[str]()
    for at, bit in itertools.product(range(len(whole)), range(8)):
        flipped = bytearray(whole)
        flipped[at] ^= 1 << bit
        overwrite(entry(moved, 3), bytes(flipped))
        seen.add(points_or_refuses(moved))
    assert seen == {"2.0.0", "refused"}


def test_an_alias_whose_files_disagree_is_settled_by_setting_it_again(moved: Store):
    overwrite(entry(moved, 3), entry(moved, 3).read_bytes().replace(b'"to":"2', b'"to":"3'))
    with pytest.raises(FormatError, match="says that move 3 leads to 2"):
        moved.resolve(PROD)
    moved.set_alias(NAME, "prod", "1.0.0")
    assert points_at(moved) == "1.0.0"


@pytest.mark.parametrize("number", [1, 2])
def test_a_move_that_is_gone_from_the_middle_changes_nothing_and_verify_names_it(moved: Store, number: int):
    entry(moved, number).unlink()
    for line in (b"2.0.0 3\n", b"1.0.0 1\n", b"1.0.0 2\n"):
        overwrite(pointer(moved), line)
        assert points_at(moved) == "2.0.0"
    assert "alias-log-gap" in codes(moved)
    moved.set_alias(NAME, "prod", "1.0.0", expected="2.0.0")
    assert entry(moved, 4).exists() and not entry(moved, number).exists(), "history is not made up"


def test_the_last_move_that_is_gone_is_missed_at_once_and_settled_by_setting_the_alias(moved: Store):
    entry(moved, 3).unlink()
    assert points_or_refuses(moved) == "refused" and "alias-damaged" in codes(moved)
    plan(examine(moved)).apply()
    assert points_or_refuses(moved) == "refused", "a repair makes up no move"
    moved.set_alias(NAME, "prod", "2.0.0")
    assert points_at(moved) == "2.0.0"


def test_a_pointer_far_beyond_its_log_is_not_believed_by_a_repair(moved: Store):
    overwrite(pointer(moved), b"1.0.0 7\n")
    assert points_or_refuses(moved) == "refused"
    plan(examine(moved)).apply()
    assert points_at(moved) == "2.0.0" and not entry(moved, 7).exists()


def test_a_damaged_last_move_is_refused_and_not_passed_over(moved: Store):
    overwrite(entry(moved, 3), entry(moved, 3).read_bytes().replace(b"2.0.0", b"2.0.x"))
    with pytest.raises(FormatError, match="verify --repair"):
        points_at(moved)


def test_a_move_that_was_cut_off_moved_nothing_and_its_number_is_used_up(moved: Store):
    entry(moved, 4).write_bytes(b"")
    assert points_at(moved) == "2.0.0"
    moved.set_alias(NAME, "prod", "1.0.0")
    assert points_at(moved) == "1.0.0" and entry(moved, 5).exists() and not entry(moved, 4).read_bytes()


def test_a_move_brings_a_pointer_up_that_says_something_else(moved: Store):
    overwrite(pointer(moved), b"1.0.0 7\n")
    moved.set_alias(NAME, "prod", "2.0.0")
    assert pointer(moved).read_bytes() == b"2.0.0 3\n" and not entry(moved, 4).exists()


def test_a_pointer_without_a_log_is_all_there_is(moved: Store):
    for number in (1, 2, 3):
        entry(moved, number).unlink()
    assert points_at(moved) == "2.0.0"
    moved.set_alias(NAME, "prod", "1.0.0", expected="2.0.0")
    assert [(alias_entry.number, alias_entry.before) for alias_entry in moved.alias_log(NAME, "prod")] == [
        (1, "2.0.0")
    ]


@pytest.mark.parametrize("prefix", ["", "scope@"])
def test_entries_of_writers_at_once_stand_one_after_the_other(tmp_path: Path, prefix: str):
    """Each writes down how many entries it saw: no two can have seen the same, and none is overwritten."""
    log = Log(tmp_path, tmp_path / "log", prefix)
    Log(tmp_path, tmp_path / "log", "other@").append(lambda numbers: b"x")

    def add(writer: int) -> int | None:
        return log.append(lambda numbers: f"{writer} {len(numbers)}".encode())

    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(add, range(24)))
    assert sorted(built or 0 for built in made) == log.numbers() == list(range(1, 25))
    assert [log.read(number) for number in log.numbers()] == [
        f"{made.index(number)} {number - 1}".encode() for number in range(1, 25)
    ]


def test_what_is_no_number_is_no_entry(tmp_path: Path):
    log = Log(tmp_path, tmp_path / "log", "a@")
    (tmp_path / "log").mkdir()
    for name in ("a@0", "a@01", "a@1.tmp", "b@1", "aa@1", "a@-1", "a@", "1"):
        (tmp_path / "log" / name).write_bytes(b"x")
    assert log.numbers() == [] and log.read(1) is None
    assert log.append(lambda numbers: None) is None and log.append(lambda numbers: b"y") == 1
    assert log.numbers() == [1] and log.read(1) == b"y"

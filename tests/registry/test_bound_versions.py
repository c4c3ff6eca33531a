"""Files of versions state name, number and digest; withdrawals are remembered: what was exchanged or lost is found."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compatkit.errors import CompatkitError, IntegrityError, NotFound
from compatkit.registry.maintenance import gc
from compatkit.registry.maintenance.check import examine
from compatkit.registry.maintenance.repair import plan
from compatkit.registry.names import Version
from compatkit.registry.refs import digest_in, read_line, version_line
from compatkit.registry.remotes.pushpull import pull
from compatkit.registry.store import Store

Publish = Callable[..., Any]
NAME, OTHER = "a/b", "a/c"


@pytest.fixture
def filled(store: Store, publish: Publish) -> Store:
    for value in range(3):
        publish(store, NAME, value=value)
        publish(store, OTHER, value=value + 10)
    return store


def file(store: Store, version: str, name: str = NAME) -> Path:
    return store.root / f"refs/{name}/@versions/{version}"


def exchange(path: Path, other: Path) -> None:
    aside = path.with_name("aside")
    path.rename(aside)
    other.rename(path)
    aside.rename(other)


def errors(store: Store) -> list[tuple[str, str]]:
    return [(fault.code, fault.path) for fault in examine(store).faults if fault.severity == "error"]


def repair(store: Store) -> None:
    assert not [entry.error for entry in plan(examine(store)).apply() if entry.error]


PAIRS = [((NAME, "1.0.0"), (NAME, "2.0.0")), ((NAME, "3.0.0"), (OTHER, "3.0.0"))]


@pytest.mark.parametrize(("first", "other"), PAIRS, ids=["numbers", "names"])
def test_versions_that_were_exchanged_are_refused_named_and_restored_from_a_copy(
    filled: Store, first: tuple[str, str], other: tuple[str, str], tmp_path: Path
):
    copy = Store.open(shutil.copytree(filled.root, tmp_path / "copy"))
    names = {pair: f"{pair[0]}@{pair[1]}" for pair in (first, other)}
    digests = {name: filled.resolve(name).digest for name in names.values()}
    exchange(file(filled, first[1], first[0]), file(filled, other[1], other[0]))
    store = Store.open(filled.root)
    for mine, theirs in ((first, other), (other, first)):
        with pytest.raises(IntegrityError, match=f"is the file of {names[theirs]}"):
            store.resolve(names[mine])
        with pytest.raises(CompatkitError, match="is damaged"):
            store.manifest(names[mine])
    assert errors(store) == sorted(
        ("version-exchanged", f"refs/{name}/@versions/{version}") for name, version in (first, other)
    )
    result = {str(hit) for hit in store.index.search()}
    assert not result & set(names.values())
    plan(examine(store)).apply()
    assert len(errors(store)) == 2  # which of them is right is not guessed
    plan(examine(store), source=copy).apply()
    assert errors(store) == [] and {name: store.resolve(name).digest for name in names.values()} == digests


def test_a_range_does_not_step_over_an_exchanged_version_in_silence(filled: Store):
    exchange(file(filled, "2.0.0"), file(filled, "3.0.0"))
    for reference in (NAME, f"{NAME}@^3"):
        with pytest.raises(IntegrityError, match="exchanged"):
            Store.open(filled.root).resolve(reference)


def test_a_file_that_was_copied_to_a_free_number_is_no_version(filled: Store):
    file(filled, "9.0.0").write_bytes(file(filled, "1.0.0").read_bytes())
    with pytest.raises(IntegrityError, match=r"is the file of a/b@1\.0\.0"):
        filled.resolve(f"{NAME}@9.0.0")
    assert errors(filled) == [("version-exchanged", f"refs/{NAME}/@versions/9.0.0")]
    file(filled, "9.0.0").unlink()
    assert errors(filled) == []


def test_one_file_over_another_is_told_and_the_overwritten_one_comes_from_a_copy(
    filled: Store, tmp_path: Path
):
    copy = Store.open(shutil.copytree(filled.root, tmp_path / "copy"))
    digest = filled.resolve(f"{NAME}@2.0.0").digest
    file(filled, "2.0.0").chmod(0o644)
    file(filled, "2.0.0").write_bytes(file(filled, "1.0.0").read_bytes())
    report = examine(filled)
    assert [fault.code for fault in report.faults if fault.severity == "error"] == ["version-exchanged"]
    plan(report, source=copy).apply()
    assert errors(filled) == [] and filled.resolve(f"{NAME}@2.0.0").digest == digest


def test_nothing_is_collected_while_versions_are_exchanged(filled: Store):
    """Weights of a withdrawn version may go: with the files exchanged those of the other would."""
    filled.withdraw(NAME, "1.0.0", "wrong")
    exchange(file(filled, "1.0.0"), file(filled, "2.0.0"))
    with pytest.raises(IntegrityError, match="is the file of"):
        gc.plan(filled)


def test_files_from_before_are_read_as_ever(filled: Store):
    digests = {str(entry): filled.resolve(f"{NAME}@{entry}").digest for entry in filled.versions(NAME)}
    for version, digest in digests.items():
        file(filled, version).chmod(0o644)
        file(filled, version).write_text(f"{digest}\n")
    store = Store.open(filled.root)
    assert {str(entry): store.resolve(f"{NAME}@{entry}").digest for entry in store.versions(NAME)} == digests
    assert errors(store) == [] and len(store.index.search()) == 6


def test_every_flipped_bit_in_what_a_file_states_of_itself_is_seen(filled: Store):
    path = file(filled, "1.0.0")
    whole = path.read_bytes()
    first = f"{NAME}@1.0.0"
    assert whole == version_line(first, str(filled.resolve(first).digest)) and read_line(whole)
    for at in range(71, len(whole)):
        for bit in range(8):
            flipped = bytearray(whole)
            flipped[at] ^= 1 << bit
            assert digest_in(bytes(flipped), first) is None, bytes(flipped)


@pytest.mark.parametrize("size", [0, 1, 7, 40, 71, 72, 75])
def test_no_beginning_of_a_line_is_a_line(size: int):
    assert read_line(version_line("a/b@1.0.0", f"sha256:{'1' * 64}")[:size]) is None


# Withdrawals


def test_a_tombstone_that_was_removed_is_missed_and_written_again(filled: Store):
    filled.withdraw(NAME, "2.0.0", "leaks")
    tombstone = filled.root / f"refs/{NAME}/@tombstones/2.0.0"
    before = tombstone.read_bytes()
    tombstone.unlink()
    assert errors(filled) == [("tombstone-missing", f"refs/{NAME}/@tombstones/2.0.0")]
    repair(filled)
    assert tombstone.read_bytes() == before and errors(filled) == []
    with pytest.raises(NotFound, match="leaks"):
        Store.open(filled.root).resolve(f"{NAME}@2.0.0")


def test_a_folder_of_a_name_that_came_from_an_old_backup_is_seen(filled: Store, tmp_path: Path):
    backup = shutil.copytree(filled.root / "refs", tmp_path / "backup")
    filled.withdraw(NAME, "1.0.0", "wrong")
    shutil.rmtree(filled.root / "refs")
    shutil.copytree(backup, filled.root / "refs")
    assert errors(filled) == [("tombstone-missing", f"refs/{NAME}/@tombstones/1.0.0")]
    assert [fault.code for fault in examine(filled, patterns=[NAME]).faults] == ["tombstone-missing"]
    assert not examine(filled, patterns=[OTHER]).faults


def test_a_version_that_is_withdrawn_again_is_remembered(filled: Store):
    """Also one that an earlier program withdrew, or one that was cut off between the two files."""
    filled.withdraw(NAME, "1.0.0", "first reason")
    trace = filled.root / "withdrawals/a%2fb@1.0.0"
    assert trace.read_bytes() == (filled.root / f"refs/{NAME}/@tombstones/1.0.0").read_bytes()
    trace.unlink()
    assert errors(filled) == [], "registries from before have none"
    filled.withdraw(NAME, "1.0.0", "second reason")
    assert b"first reason" in trace.read_bytes()


def test_a_damaged_tombstone_gets_its_reason_back(filled: Store):
    filled.withdraw(NAME, "1.0.0", "leaks")
    tombstone = filled.root / f"refs/{NAME}/@tombstones/1.0.0"
    tombstone.chmod(0o644)
    tombstone.write_bytes(b"garbage")
    repair(filled)
    result = filled.tombstone(NAME, Version(1, 0, 0))
    assert result is not None and result.reason == "leaks" and errors(filled) == []


def test_what_comes_along_is_remembered_too(filled: Store, tmp_path: Path):
    filled.withdraw(NAME, "1.0.0", "leaks")
    registry = Store.init(tmp_path / "there")
    pull(registry, str(filled.root))
    assert (registry.root / "withdrawals/a%2fb@1.0.0").exists()
    (registry.root / f"refs/{NAME}/@tombstones/1.0.0").unlink()
    assert [code for code, _ in errors(registry)] == ["tombstone-missing"]


def test_a_withdrawal_of_what_is_not_here_is_of_no_consequence(store: Store):
    folder = store.root / "withdrawals"
    folder.mkdir()
    (folder / "gone%2fname@1.0.0").write_bytes(b'{"reason":"x","time":"y"}\n')
    (folder / "no-number").write_bytes(b"")
    assert [(fault.code, fault.severity) for fault in examine(store).faults] == [("misnamed", "warning")]

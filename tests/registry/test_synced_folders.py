"""Folders are synced again unless nothing changed since this process synced them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from compatkit.registry import disk as durable
from compatkit.registry import synced_folders


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Let every folder count as settled, and record those that are synced."""
    monkeypatch.setattr(synced_folders, "SETTLED_NS", -(10**18))
    monkeypatch.setattr(synced_folders, "is_local", lambda device: True)
    seen: list[Path] = []
    monkeypatch.setattr(
        durable, "step", lambda operation, path: seen.append(path) if operation == "sync-folder" else None
    )
    return seen


def folders(root: Path) -> Path:
    (root / "blobs" / "00").mkdir(parents=True)
    return root / "blobs" / "00"


def test_unchanged_folders_are_synced_once(tmp_path: Path, synced: list[Path]):
    leaf = folders(tmp_path)
    durable.sync_up(leaf, tmp_path)
    assert synced == [leaf, leaf.parent, tmp_path]
    durable.sync_up(leaf, tmp_path)
    assert len(synced) == 3


def test_several_folders_are_synced_with_their_parents_once_each(tmp_path: Path, synced: list[Path]):
    leaf = folders(tmp_path)
    (tmp_path / "refs").mkdir()
    durable.sync_up(leaf, tmp_path, tmp_path / "refs", leaf.parent)
    assert synced == [leaf, leaf.parent, tmp_path, tmp_path / "refs"]


def test_the_error_of_any_folder_is_raised(
    tmp_path: Path, synced: list[Path], monkeypatch: pytest.MonkeyPatch
):
    leaf = folders(tmp_path)
    last = tmp_path.stat().st_ino

    def fail(descriptor: int) -> None:
        if os.fstat(descriptor).st_ino == last:
            raise OSError(5, "the device failed")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match="device"):
            durable.sync_up(leaf, tmp_path)
    synced.clear()
    durable.sync_up(leaf, tmp_path)
    assert synced == [tmp_path]  # the others were synced before it


def test_a_folder_with_a_new_a_lost_or_a_renamed_entry_is_synced_again(tmp_path: Path, synced: list[Path]):
    leaf = folders(tmp_path)
    changes = (
        lambda: (leaf / "a").write_bytes(b""),
        lambda: os.rename(leaf / "a", leaf / "b"),
        lambda: os.link(leaf / "b", leaf / "c"),
        lambda: os.unlink(leaf / "b"),
    )
    for change in changes:
        durable.sync_up(leaf, tmp_path)
        synced.clear()
        change()
        durable.sync_up(leaf, tmp_path)
        assert synced == [leaf]


def test_a_folder_that_was_made_anew_is_synced_with_its_parent(tmp_path: Path, synced: list[Path]):
    leaf = folders(tmp_path)
    durable.sync_up(leaf, tmp_path)
    synced.clear()
    leaf.rmdir()
    leaf.mkdir()
    durable.sync_up(leaf, tmp_path)
    assert synced == [leaf, leaf.parent]


def test_a_folder_that_changed_a_moment_ago_is_not_remembered(
    tmp_path: Path, synced: list[Path], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(synced_folders, "SETTLED_NS", 2 * 10**9)
    leaf = folders(tmp_path)
    for _ in range(2):
        durable.sync_up(leaf, tmp_path)
    assert synced.count(leaf) == 2


def test_nothing_is_remembered_where_times_of_folders_may_be_made_up(
    tmp_path: Path, synced: list[Path], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(synced_folders, "is_local", lambda device: False)
    leaf = folders(tmp_path)
    for _ in range(2):
        durable.sync_up(leaf, tmp_path)
    assert len(synced) == 6


def test_a_folder_whose_sync_failed_is_synced_again(
    tmp_path: Path, synced: list[Path], monkeypatch: pytest.MonkeyPatch
):
    leaf = folders(tmp_path)

    def fail(descriptor: int) -> None:
        raise OSError(5, "the device failed")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match="device"):
            durable.sync_up(leaf, tmp_path)
    durable.sync_up(leaf, tmp_path)
    assert synced.count(leaf) == 2


def test_pieces_of_all_sizes_are_written_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(durable, "JOINED", 10)
    pieces = [b"a" * size for size in (3, 10, 1, 0, 9, 11, 4, 4, 4, 30, 2)]
    pieces = [piece.replace(b"a", bytes([97 + number])) for number, piece in enumerate(pieces)]
    durable.write(tmp_path / "file", pieces)
    assert (tmp_path / "file").read_bytes() == b"".join(pieces)

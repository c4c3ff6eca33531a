"""A catalogue as a folder: equal bytes for equal registries, and what is never replaced."""

from __future__ import annotations

from pathlib import Path

import hostile
import pytest

import compatkit as ck
from compatkit.components.catalogue import site as module
from compatkit.errors import EnvironmentFailure, UsageError


@pytest.fixture
def registry(tmp_path: Path) -> ck.Registry:
    return ck.Registry(hostile.build(tmp_path / "parts"))


def content(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


def test_the_same_registry_gives_the_same_bytes(
    registry: ck.Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = registry.site(tmp_path / "one")
    monkeypatch.setenv("COMPATKIT_CACHE", str(tmp_path / "cache"))
    ck.Registry(tmp_path / "parts").site(tmp_path / "two")
    assert content(tmp_path / "one") == content(tmp_path / "two")
    assert (first.components, first.versions) == (1, 2)
    assert first.files == len(content(tmp_path / "one"))
    assert first.bytes == sum(map(len, content(tmp_path / "one").values()))


def test_an_older_catalogue_is_replaced_whole(registry: ck.Registry, tmp_path: Path) -> None:
    out = tmp_path / "out"
    registry.site(out)
    (out / "data/s-0.js").write_text("old")
    registry.site(out, title="new title")
    assert not (out / "data/s-0.js").exists() and b"new title" in (out / "index.html").read_bytes()
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize("name", ["notes.txt", "data/mine.txt", ".git", "assets/folder/x"])
def test_other_files_are_kept(registry: ck.Registry, tmp_path: Path, name: str) -> None:
    out = tmp_path / "out"
    registry.site(out)
    (out / name).parent.mkdir(exist_ok=True)
    (out / name).write_text("mine")
    before = content(out)
    with pytest.raises(UsageError) as refused:
        registry.site(out)
    assert refused.value.subject == out and content(out) == before


def test_a_folder_that_is_no_catalogue_a_file_and_a_link_are_refused(
    registry: ck.Registry, tmp_path: Path
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/index.html").write_text("mine")
    (tmp_path / "file").write_text("mine")
    registry.site(tmp_path / "site")
    (tmp_path / "link").symlink_to(tmp_path / "site")
    for name in ("folder", "file", "link", "parts", "parts/site", "."):
        with pytest.raises(UsageError):
            registry.site(tmp_path / name)
    with pytest.raises(EnvironmentFailure):
        registry.site(tmp_path / "missing/site")


def test_a_failure_leaves_the_older_catalogue(
    registry: ck.Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    registry.site(out)
    before, write, calls = content(out), module._write, []

    def full(draft: Path, path: str, data: bytes) -> int:
        calls.append(path)
        if len(calls) > 5:
            raise OSError(28, "No space left on device")
        return write(draft, path, data)

    monkeypatch.setattr(module, "_write", full)
    with pytest.raises(EnvironmentFailure):
        registry.site(out)
    assert content(out) == before and not list(tmp_path.glob(".*"))


def test_a_damaged_component_is_named_and_the_rest_is_shown(registry: ck.Registry, tmp_path: Path) -> None:
    store = registry.store
    digest = str(store.resolve(hostile.NAME).digest)
    path = store.objects.path(digest)
    hostile.put_in_place(path, b"{}")
    registry.site(tmp_path / "out")
    data = b"".join(content(tmp_path / "out").values())
    assert b"team/one" in data and str(tmp_path).encode() not in data

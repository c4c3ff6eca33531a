"""What stands where a file of the registry should: links, pipes, sockets, devices, folders, shared hard links."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hostile import NAME, build, clear, kinds, read_everything, stand_in
from watching import listing, watched

from compatkit.errors import CompatkitError, IntegrityError, InvalidName
from compatkit.registry.store import Store

pytestmark = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
KINDS = (
    "compatkit.json",
    "manifest",
    "weights",
    "version",
    "tombstone",
    "alias",
    "move",
    "evidence",
    "result",
)
STAND_INS = ("link", "dangling link", "link to itself", "folder", "pipe", "socket", "device")
PASSED_OVER = {(kind, entry) for kind in ("evidence", "alias") for entry in STAND_INS}
"""A result that is no plain file is as if it had not been measured; a pointer is not read where a log tells."""


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("template") / "parts").root


@pytest.fixture
def parts(template: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(template, tmp_path / "parts"))


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    made = tmp_path / "outside"
    made.mkdir()
    return made


@pytest.mark.case("C1")
@pytest.mark.parametrize("file_kind", STAND_INS)
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_plain_file_is_never_read_and_never_waited_for(
    parts: Path, outside: Path, kind: str, file_kind: str
):
    store = Store.open(parts)
    path = kinds(store)[kind]
    try:
        stand_in(path, file_kind, outside)
    except PermissionError:
        pytest.skip("only the superuser makes devices")
    before, around, start = listing(store.root), listing(outside), time.monotonic()
    with watched(store.root) as touched:
        errors = read_everything(store.root)
    assert time.monotonic() - start < 5
    assert touched == [] and listing(outside) == around
    assert listing(store.root) == before
    if (kind, file_kind) not in PASSED_OVER:
        assert any(isinstance(error, IntegrityError) and str(path) in str(error) for error in errors), errors


@pytest.mark.case("C1")
@pytest.mark.parametrize("kind", ["manifest", "weights", "result"])
def test_a_blob_that_was_swapped_for_a_hard_link_is_moved_away_and_its_twin_is_left_alone(
    parts: Path, outside: Path, kind: str
):
    store = Store.open(parts)
    path, twin = kinds(store)[kind], outside / "twin"
    twin.write_bytes(b"private")
    twin.chmod(0o600)
    path.unlink()
    os.link(twin, path)
    errors = read_everything(store.root)
    message = "does not match its digest", "a damaged copy is in"  # the index may have seen it first
    assert any(words in str(error) for error in errors for words in message), errors
    assert twin.read_bytes() == b"private" and twin.stat().st_mode & 0o777 == 0o600
    assert [entry.samefile(twin) for entry in (store.root / "quarantine").iterdir()] == [True]


@pytest.mark.case("C1")
def test_nothing_is_ever_written_into_a_file_that_is_there(parts: Path, outside: Path):
    store = Store.open(parts)
    twins = {path: outside / str(at) for at, path in enumerate(kinds(store).values())}
    for path, twin in twins.items():
        os.link(path, twin)
    before = {twin: twin.read_bytes() for twin in twins.values()}
    store.set_alias(NAME, "prod", None)
    store.set_alias(NAME, "prod", "2.0.0")
    store.withdraw(NAME, "2.0.0", "again")
    store.publish(
        NAME,
        store.manifest(
            str(Store.open(store.root).references.digest(NAME, store.references.versions(NAME)[0]))
        ),
    )
    assert {twin: twin.read_bytes() for twin in twins.values()} == before


@pytest.mark.case("C1")
def test_the_root_itself_may_be_reached_through_a_link(parts: Path, tmp_path: Path):
    store = Store.open(parts)
    (tmp_path / "link").symlink_to(store.root)
    assert read_everything(tmp_path / "link") == []


FOLDERS = [
    "refs/team",
    "refs/team/one",
    "refs/team/one/@versions",
    "refs/team/one/@tombstones",
    "refs/team/one/@aliases",
    "refs/team/one/@log",
    "refs/team/one/@log/prod",
    "blobs/sha256/SHARD",
    "evidence/FUNCTION",
    "quarantine",
    "trash",
]


@pytest.mark.case("C1")
@pytest.mark.parametrize("folder", FOLDERS)
def test_no_file_is_read_or_written_through_a_link_in_place_of_a_folder(
    parts: Path, outside: Path, monkeypatch: pytest.MonkeyPatch, folder: str
):
    store = Store.open(parts)
    files = kinds(store)
    names = folder.replace("SHARD", files["manifest"].parent.name)
    names = names.replace("FUNCTION", files["evidence"].relative_to(store.root).parts[1])
    here = store.root / names
    here.rename(outside / "moved")
    here.symlink_to(outside / "moved")
    around = listing(outside)
    opened: list[str] = []
    really = os.open

    def noting(path: str, *rest: int, **kwargs: int) -> int:
        opened.append(os.path.realpath(path))
        return really(path, *rest, **kwargs)

    monkeypatch.setattr(os, "open", noting)
    errors = read_everything(store.root)
    writes: list[Callable[[], object]] = [
        lambda: store.set_alias(NAME, "prod", "2.0.0", expected=None),
        lambda: store.set_alias(NAME, "best", "2.0.0"),
        lambda: store.withdraw(NAME, "2.0.0", "no longer"),
        lambda: Store.open(store.root).publish(
            NAME, store.manifest(f"sha256:{files['manifest'].name}"), version="9.0.0"
        ),
    ]
    for write in writes:
        try:
            write()
        except CompatkitError as error:
            errors.append(error)
    assert [path for path in opened if path.startswith(str(outside))] == []
    assert listing(outside) == around
    if folder not in ("quarantine", "trash"):
        assert any("is a symbolic link" in str(entry) and "not followed" in str(entry) for entry in errors), (
            errors
        )


UNSAFE = [
    *(
        "../x",
        "a/../x",
        "..\\x",
        "a\\..\\x",
        "/etc",
        "/",
        "C:\\x",
        "C:/x",
        "D:rel",
        "\\\\server\\share",
        "\\x",
        "//x/y",
    ),
    *(
        "a/../../x\\y",
        "@versions",
        "a/@aliases",
        ".",
        "..",
        "a\0b",
        "CON",
        "nul.txt",
        "a.",
        "a ",
        "a" * 300,
    ),
    *("\u0430", "e\u0301", "\u202ea", "\U0001f600", "\ud800", "A", "team/One"),
]


@pytest.mark.case("B1", "B3", "B4")
@pytest.mark.parametrize("name", UNSAFE, ids=ascii)
def test_a_name_that_is_a_path_touches_nothing(parts: Path, tmp_path: Path, name: str):
    store = Store.open(parts)
    manifest, before = store.manifest(NAME), listing(tmp_path)
    calls: list[Callable[[], object]] = [
        lambda: store.publish(name, manifest),
        lambda: store.resolve(name),
        lambda: store.manifest(f"{name}@1.0.0"),
        lambda: store.versions(name),
        lambda: store.aliases(name),
        lambda: store.set_alias(name, "prod", "1.0.0"),
        lambda: store.set_alias(NAME, name, "2.0.0"),
        lambda: store.alias_log(NAME, name),
        lambda: store.resolve(f"{NAME}:{name}"),
        lambda: store.publish(NAME, manifest, version=name),
        lambda: store.withdraw(NAME, name, "reason"),
        lambda: store.tombstone(NAME, name),
        lambda: store.tombstone(name, "1.0.0"),
        lambda: store.read_blob(f"sha256:{name}"),
        lambda: store.read_blob(name),
        lambda: store.resolve(f"{NAME}@sha256:{name}"),
    ]
    with watched(store.root) as touched:
        for call in calls:
            with pytest.raises(InvalidName):
                call()
    assert touched == [] and listing(tmp_path) == before


@pytest.mark.case("B4")
def test_a_file_system_that_folds_case_brings_no_two_names_together(
    parts: Path, monkeypatch: pytest.MonkeyPatch
):
    store = Store.open(parts)
    (store.root / "refs" / "Team" / "ONE" / "@versions").mkdir(parents=True)
    (store.root / "refs" / "Team" / "ONE" / "@versions" / "1.0.0").write_bytes(b"sha256:" + b"0" * 64 + b"\n")
    assert store.names() == [NAME]  # a folder in capitals is nobody's, and no lookup of ours asks for one
    clear(store.root / "refs" / "Team")
    assert all(path == path.casefold() for path in listing(store.root))
    folding(store.root, monkeypatch)
    assert read_everything(store.root) == [] and Store.open(store.root).names() == [NAME]
    for twin in ("Team/one", "team/ONE", "TEAM/One@2.0.0"):
        with pytest.raises(InvalidName, match="a-z"):
            store.resolve(twin)


def folding(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let lookups below ``root`` find names whatever their case."""

    def fold(path: object) -> object:
        text = os.fsdecode(path) if isinstance(path, str | bytes | os.PathLike) else ""
        return f"{root}{text.removeprefix(str(root)).lower()}" if text.startswith(str(root)) else path

    for name in ("open", "stat", "lstat", "scandir", "listdir"):
        really = getattr(os, name)
        monkeypatch.setattr(
            os, name, lambda path, *rest, really=really, **kwargs: really(fold(path), *rest, **kwargs)
        )

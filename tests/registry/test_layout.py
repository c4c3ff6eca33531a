"""The root folder: made once, found from below, refused when too new, light to open."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from compatkit.errors import EnvironmentFailure, FormatError, LayoutError
from compatkit.registry.store import Store


def rewrite(store: Store, **changes: Any) -> None:
    marker = store.root / "compatkit.json"
    value = {**json.loads(marker.read_bytes()), **changes}
    marker.unlink()
    marker.write_text(json.dumps(value))


def test_init_makes_the_folders_and_the_marker(tmp_path: Path):
    store = Store.init(tmp_path / "deep" / "parts")
    marker = json.loads((store.root / "compatkit.json").read_bytes())
    assert {**marker, "id": ""} == {"layout": 1, "min_reader": 1, "min_writer": 1, "hash": "sha256", "id": ""}
    for folder in ("blobs/sha256", "refs", "evidence", "tmp", "trash", "quarantine", "locks"):
        assert (store.root / folder).is_dir()


def test_init_again_needs_exist_ok_and_changes_nothing(store: Store):
    with pytest.raises(LayoutError, match="registry already"):
        Store.init(store.root)
    assert Store.init(store.root, exist_ok=True).id == store.id


def test_init_beside_other_files_leaves_them(tmp_path: Path):
    (tmp_path / "paper.tex").write_text("x")
    Store.init(tmp_path)
    assert (tmp_path / "paper.tex").read_text() == "x"


def test_init_where_a_file_stands_is_an_error_of_the_surroundings(tmp_path: Path):
    (tmp_path / "parts").write_text("x")
    for root in (tmp_path / "parts", tmp_path / "parts" / "below"):
        with pytest.raises(EnvironmentFailure, match=r"a file stands|is a file") as caught:
            Store.init(root)
        assert caught.value.exit_code == 4


def test_a_folder_without_a_marker_is_no_registry(tmp_path: Path):
    with pytest.raises(LayoutError, match="compatkit init") as caught:
        Store.open(tmp_path)
    assert caught.value.exit_code == 2


@pytest.mark.case("E4")
def test_a_layout_that_is_too_new_is_refused(store: Store):
    rewrite(store, layout=3, min_reader=2, min_writer=3)
    with pytest.raises(
        LayoutError, match=r"has layout 3, which requires layout 2 to read.*Upgrade"
    ) as caught:
        Store.open(store.root)
    assert caught.value.exit_code == 3
    with pytest.raises(LayoutError):
        Store.init(store.root, exist_ok=True)


@pytest.mark.case("E4")
def test_a_layout_that_is_too_new_to_write_is_read(store: Store, publish: Callable[..., Any]):
    reference = publish(store, "a")
    rewrite(store, layout=2, min_writer=2, surprise=True)
    reader = Store.open(store.root)
    assert reader.resolve("a") == reference
    for write in (
        lambda: reader.put_blob(b"x"),
        lambda: reader.publish("b", reader.manifest("a")),
        lambda: reader.set_alias("a", "prod", "1.0.0"),
        lambda: reader.withdraw("a", "1.0.0", "x"),
    ):
        with pytest.raises(LayoutError, match="can only read"):
            write()


@pytest.mark.parametrize(
    "changes",
    [{"hash": "md5"}, {"layout": "1"}, {"min_reader": None}, {"id": None, "hash": 3}, {"min_writer": 0}],
)
def test_a_marker_that_says_something_else_is_refused(store: Store, changes: dict[str, Any]):
    rewrite(store, **changes)
    with pytest.raises(FormatError):
        Store.open(store.root)


@pytest.mark.case("E1", "E4")
@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"{", b"[]", b'{"layout":1,"layout":1}', b'{"layout":NaN}', b"\x80\x04.", b"[" * 10_000),
        b'{"layout":1,"min_reader":1,"min_writer":1,"hash":"sha256","id":"' + b"x" * 2**20 + b'"}',
        b'{"layout":1,"min_reader":1,"min_writer":1,"hash":"sha256","id":"x"}' + bytes(8),
    ],
    ids=lambda content: ascii(content[:16]),
)
def test_a_damaged_marker_is_refused(store: Store, content: bytes):
    (store.root / "compatkit.json").unlink()
    (store.root / "compatkit.json").write_bytes(content)
    with pytest.raises((FormatError, LayoutError)):
        Store.open(store.root)


def test_find_looks_at_the_variable_then_upwards(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    below = store.root / "refs" / "x"
    below.mkdir()
    assert Store.find(below).id == store.id
    monkeypatch.chdir(below)
    assert Store.find().id == store.id
    other = Store.init(tmp_path / "other")
    monkeypatch.setenv("COMPATKIT_REGISTRY", str(other.root))
    assert Store.find().id == other.id
    monkeypatch.setenv("COMPATKIT_REGISTRY", str(tmp_path))
    with pytest.raises(LayoutError):
        Store.find()


def test_find_says_where_it_looked(tmp_path: Path):
    with pytest.raises(LayoutError, match="COMPATKIT_REGISTRY is not set"):
        Store.find(tmp_path)


def test_listing_and_showing_import_nothing_heavy(store: Store, publish: Callable[..., Any]):
    publish(store, "a")
    program = (
        "import sys\n"
        "from compatkit.registry.store import Store\n"
        "store = Store.open(sys.argv[1])\n"
        "assert store.manifest(store.names()[0]).kind == 'extractor' and store.aliases('a') == {}\n"
        "heavy = {'torch', 'numpy', 'timm', 'safetensors', 'sklearn', 'matplotlib', 'cattrs'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", program, str(store.root)], check=True)

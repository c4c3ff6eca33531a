"""import: components of another registry come with what belongs to them; a failure leaves nothing named."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from handmade import blobs_in

from compatkit.registry.store import Store

HEAD, EXTRACTOR = "digits/left.head", "digits/left.extractor"


def test_everything_comes_into_a_new_registry(run: Any, parts: Path, untouched: Any, tmp_path: Path) -> None:
    with untouched(parts):
        result = run("--registry", tmp_path / "copy", "import", parts)
    assert result.code == 0 and f"made the registry {tmp_path / 'copy'}" in result.err
    assert f"{HEAD}@1.0.0" in result.out and "new" in result.out and "copied" in result.out
    assert f"next: compatkit --registry {tmp_path / 'copy'} show digits/" in result.out
    source, copy = Store.open(parts), Store.open(tmp_path / "copy")
    assert copy.names() == source.names() and copy.id != source.id
    assert list(blobs_in(copy)) == list(blobs_in(source))
    assert run("--registry", tmp_path / "copy", "verify").code == 0
    again = run("--registry", tmp_path / "copy", "import", parts)
    assert (
        "were there already" in again.out
        and "copied 0 blobs (0 bytes), 0 results" in again.out
        and "next:" not in again.out
    )


def test_a_head_brings_its_extractor(run: Any, parts: Path, tmp_path: Path) -> None:
    document = run("--registry", tmp_path / "copy", "import", parts, HEAD, "--json").json
    assert {built["reference"] for built in document["made"]} >= {f"{HEAD}@1.0.0", f"{EXTRACTOR}@1.0.0"}
    assert document["blobs"] > 3 and document["bytes"] > 10_000 and document["existing"] == []
    checked = run("--registry", tmp_path / "copy", "check", EXTRACTOR, HEAD)
    assert checked.code == 0 and "promise one-network" in checked.out


def test_aliases_come_along(run: Any, parts: Path, tmp_path: Path) -> None:
    run("alias", HEAD, "prod", "1.0.0")
    result = run("--registry", tmp_path / "copy", "import", parts, "--latest")
    assert result.code == 0 and f"moved {HEAD}:prod" in result.out
    assert Store.open(tmp_path / "copy").aliases(HEAD) == {"prod": "1.0.0"}


def test_a_number_that_is_taken_is_refused(run: Any, parts: Path, tmp_path: Path, untouched: Any) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(parts, copy)
    digest = Store.open(parts).resolve(EXTRACTOR).digest
    path = copy / "refs" / HEAD / "@versions" / "1.0.0"
    path.chmod(0o644)
    path.write_text(f"{digest}\n")
    with untouched(copy / "refs"), untouched(copy / "blobs"):
        result = run("--registry", copy, "import", parts)
    assert (
        result.code == 2
        and f"{HEAD}@1.0.0 is {digest} in " in result.err
        and "nothing was imported" in result.err
    )


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("nowhere",), 2, "nowhere"),
        (("parts", "nothing*"), 2, "matches no component"),
        (("parts", "No Name"), 2, "is not valid"),
        ((), 2, "SOURCE"),
    ],
)
def test_what_cannot_be_imported_leaves_nothing(
    run: Any, parts: Path, tmp_path: Path, words: tuple[str, ...], code: int, message: str
) -> None:
    result = run("--registry", tmp_path / "copy", "import", *words)
    assert result.code == code and message in result.err
    assert not (tmp_path / "copy").exists()


def test_a_registry_is_not_imported_into_itself(run: Any, parts: Path) -> None:
    result = run("import", parts)
    assert result.code == 2 and "this registry itself" in result.err


def test_damage_in_the_source_is_told(
    run: Any, parts: Path, tmp_path: Path, damage: Any, untouched: Any
) -> None:
    digest = Store.open(parts).manifest(HEAD).payload.file.blob
    damage(digest)
    with untouched(parts):
        result = run("--registry", tmp_path / "copy", "import", parts, "--json")
    assert (
        result.code == 3
        and result.json["error"]["code"] == "integrity"
        and digest in result.json["error"]["message"]
    )
    assert Store.open(tmp_path / "copy").names() == []

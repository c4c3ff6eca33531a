"""push, pull and clone on the command line: what people read, what programs read, and the exit codes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import fsspec
import pytest
from handmade import blobs_in

from compatkit.registry.copy.transfer import ComponentTransfer
from compatkit.registry.store import Store

HEAD, EXTRACTOR = "digits/left.head", "digits/left.extractor"


def test_a_registry_is_pushed_cloned_and_pulled(run: Any, parts: Path, remote: str, tmp_path: Path) -> None:
    result = run("push", remote, "--create")
    assert (
        result.code == 0 and f"{HEAD}@1.0.0" in result.out and "new" in result.out and "pushed" in result.out
    )
    again = run("push", remote)
    assert "versions were there already" in again.out and "pushed 0 blobs (0 bytes)" in again.out
    cloned = run("clone", remote, tmp_path / "copy")
    assert cloned.code == 0 and f"made the registry {tmp_path / 'copy'}" in cloned.err
    assert f"next: compatkit --registry {tmp_path / 'copy'} ls" in cloned.out
    pulled = run("--registry", tmp_path / "new", "pull", remote, HEAD)
    assert pulled.code == 0 and f"made the registry {tmp_path / 'new'}" in pulled.err
    assert f"next: compatkit --registry {tmp_path / 'new'} show digits/" in pulled.out
    source, copy = Store.open(parts), Store.open(tmp_path / "copy")
    assert copy.names() == source.names() and copy.id != source.id
    assert list(blobs_in(copy)) == list(blobs_in(source))
    assert run("--registry", tmp_path / "copy", "verify").code == 0
    checked = run("--registry", tmp_path / "new", "check", EXTRACTOR, HEAD)
    assert checked.code == 0 and "promise one-network" in checked.out


def test_a_mistyped_remote_is_not_made(run: Any, parts: Path, remote: str, untouched: Any) -> None:
    assert run("push", remote, "--create").code == 0
    mistyped = f"{remote}s"
    for words in (("push", mistyped), ("push", mistyped, "--dry-run"), ("pull", mistyped)):
        with untouched(parts):
            error = run(*words, "--json").json["error"]
        assert error["code"] == "layout" and mistyped in error["message"], words
    assert f"Did you mean {remote}? " in run("push", mistyped).err
    assert not Path(mistyped).exists() and not fsspec.filesystem("memory").exists(mistyped)
    cloned = run("clone", mistyped, parts.parent / "copy")
    assert cloned.code == 2 and not (parts.parent / "copy").exists()
    assert run("push", mistyped, "--create", "--dry-run").code == 0
    assert not Path(mistyped).exists() and not fsspec.filesystem("memory").exists(mistyped)


def test_a_plan_lists_what_would_move(
    run: Any, parts: Path, memory: str, tmp_path: Path, untouched: Any
) -> None:
    result = run("push", "--create", memory, EXTRACTOR, "--dry-run")
    assert result.code == 0 and "would be new" in result.out and "Nothing was changed." in result.out
    weights = Store.open(parts).manifest(EXTRACTOR).payload.file
    assert weights.blob in result.out and not fsspec.filesystem("memory").exists(memory)
    planned = run("push", "--create", memory, EXTRACTOR, "--dry-run", "--json").json
    assert planned["planned"] and {"digest", "bytes", "owner"} == set(planned["objects"][0])
    assert planned["bytes"] == sum(entry["bytes"] for entry in planned["objects"]) > weights.bytes
    run("push", "--create", memory)
    wanted = run("--registry", tmp_path / "new", "pull", memory, EXTRACTOR, "--dry-run", "--json").json
    assert wanted["bytes"] == planned["bytes"] and not (tmp_path / "new").exists()


def test_programs_are_told_everything(run: Any, parts: Path, memory: str, tmp_path: Path) -> None:
    run("alias", HEAD, "prod", "1.0.0")
    run("withdraw", "digits/right.head@1.0.0", "--reason", "wrong")
    run("push", "--create", memory)
    output = run("--registry", tmp_path / "new", "pull", memory, "--json").json
    assert {built["reference"] for built in output["made"]} == {
        f"{name}@1.0.0" for name in Store.open(parts).names()
    }
    assert output["aliases"] == [f"{HEAD}:prod"] and output["refused"] == [] and not output["planned"]
    assert output["withdrawn"] == [{"reference": "digits/right.head@1.0.0", "reason": "wrong"}]


def test_what_is_refused_is_told_and_the_rest_comes(
    run: Any, parts: Path, memory: str, tmp_path: Path, untouched: Any
) -> None:
    run("push", "--create", memory)
    copy = tmp_path / "copy"
    shutil.copytree(parts, copy)
    digest = Store.open(parts).resolve(EXTRACTOR).digest
    path = copy / "refs" / HEAD / "@versions" / "1.0.0"
    path.chmod(0o644)
    path.write_text(f"{digest}\n")
    with untouched(copy / "refs"):
        output = run("--registry", copy, "pull", memory)
    assert output.code == 2 and f"{HEAD}@1.0.0" in output.out and "refused" in output.out
    text = " ".join(output.out.split())
    assert (
        f"is {digest} in {copy}" in text and f"{Store.open(parts).resolve(HEAD).digest} in {memory}" in text
    )
    result = run("--registry", copy, "pull", memory, "--json")
    assert result.code == 2 and [refusal["code"] for refusal in result.json["refused"]] == ["version-exists"]


def test_tampering_is_told_with_its_own_exit_code(run: Any, parts: Path, memory: str, tmp_path: Path) -> None:
    run("push", "--create", memory)
    digest = Store.open(parts).manifest(HEAD).payload.file.blob
    path = f"{memory}/blobs/sha256/{digest[7:9]}/{digest[7:]}"
    system = fsspec.filesystem("memory")
    system.pipe_file(path, system.cat_file(path)[:-1] + b"?")
    result = run("--registry", tmp_path / "new", "pull", memory)
    assert result.code == 3 and digest in result.out and "got sha256:" in " ".join(result.out.split())
    assert EXTRACTOR in Store.open(tmp_path / "new").names()
    assert HEAD not in Store.open(tmp_path / "new").names()


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("pull", "nowhere"), 2, "compatkit.json"),
        (("pull", "memory://nowhere"), 2, "compatkit.json"),
        (("pull", "parts", "nothing*"), 2, "matches no component"),
        (("pull", "nonsense://x"), 2, "not an address"),
        (("pull", "memory://x", "--option", "secret"), 2, "an option key=value"),
        (("pull", "parts", "--option", "a=1"), 2, "takes no options (a)"),
        (("pull", "parts", "--jobs", "0"), 2, "--jobs"),
        (("pull",), 2, "REMOTE"),
    ],
)
def test_what_cannot_be_pulled_leaves_nothing(
    run: Any, parts: Path, tmp_path: Path, words: tuple[str, ...], code: int, message: str
) -> None:
    result = run("--registry", tmp_path / "copy", *words)
    assert result.code == code and message in " ".join(result.err.split())
    assert not (tmp_path / "copy").exists()


@pytest.mark.parametrize("target", ["parts", "work"])
def test_a_clone_needs_a_new_folder(run: Any, parts: Path, memory: str, target: str) -> None:
    run("push", "--create", memory)
    result = run("clone", memory, parts if target == "parts" else parts.parent)
    assert result.code == 2 and (
        "pull REMOTE" in result.err if target == "parts" else "other files" in result.err
    )


def test_options_reach_the_file_system(
    run: Any, parts: Path, memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fsspec.implementations.memory import MemoryFileSystem

    seen: dict[str, Any] = {}

    class Seeing(MemoryFileSystem):
        protocol = "seeing"

        def __init__(self, *args: Any, **options: Any) -> None:
            seen.update(options)
            super().__init__(*args, **options)

        @classmethod
        def _strip_protocol(cls, path: Any) -> Any:
            return super()._strip_protocol(str(path).replace("seeing://", "memory://"))

    fsspec.register_implementation("seeing", Seeing, clobber=True)
    monkeypatch.setattr("compatkit_plugins.remotes.fsspec.PROTOCOLS", ("seeing",))
    words = (
        "--option",
        "endpoint_url=http://127.0.0.1:9000",
        "--option",
        'client={"verify": false}',
        "--option",
        "anon=true",
    )
    assert run("push", "--create", memory.replace("memory", "seeing"), *words).code == 0
    assert seen["endpoint_url"] == "http://127.0.0.1:9000"
    assert seen["client"] == {"verify": False} and seen["anon"] is True


def test_an_interruption_says_how_to_go_on(
    run: Any, parts: Path, memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: Any, *words: Any, **others: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ComponentTransfer, "run", interrupted)
    result = run("push", "--create", memory)
    assert result.code == 130 and "Interrupted" in result.err


def test_text_from_a_remote_cannot_drive_the_terminal(
    run: Any, parts: Path, memory: str, tmp_path: Path
) -> None:
    run("push", "--create", memory)
    escape = b'{"reason":"\\u001b[31mred","time":"2020-01-01T00:00:00+00:00"}\n'
    fsspec.filesystem("memory").pipe_file(f"{memory}/refs/{HEAD}/@tombstones/1.0.0", escape)
    fsspec.filesystem("memory").pipe_file(f"{memory}/refs/{EXTRACTOR}/@versions/1.0.0", b"\x1b[31m\n")
    result = run("--registry", tmp_path / "new", "pull", memory)
    assert result.code == 3 and "red" in result.out and "\x1b" not in result.out + result.err


def test_components_go_through_an_image_layout(run: Any, parts: Path, tmp_path: Path, untouched: Any) -> None:
    with untouched(parts):
        output = run("push", f"oci-layout://{tmp_path}/layout", "*.extractor", "*.head", "--create")
    assert output.code == 0 and f"{HEAD}@1.0.0" in output.out and "pushed" in output.out
    listed = json.loads((tmp_path / "layout" / "index.json").read_bytes())["manifests"]
    assert len(listed) == 4
    result = run("--registry", tmp_path / "copy", "pull", f"oci-layout://{tmp_path}/layout", HEAD, "--json")
    assert result.code == 0 and {built["reference"] for built in result.json["made"]} == {
        f"{HEAD}@1.0.0",
        f"{EXTRACTOR}@1.0.0",
    }
    assert run("--registry", tmp_path / "copy", "verify").code == 0
    checked = run("--registry", tmp_path / "copy", "check", EXTRACTOR, HEAD)
    assert checked.code == 0 and "promise one-network" in checked.out
    rest = run("--registry", tmp_path / "copy", "pull", f"oci-layout://{tmp_path}/layout")
    assert "2 versions were there already" in rest.out and "next: compatkit --registry" in rest.out


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("pull", "oci-layout://nowhere"), 2, "is no OCI image layout"),
        (("pull", "oci-layout://parts"), 2, "is no OCI image layout"),
    ],
)
def test_what_is_no_layout_leaves_nothing(
    run: Any, parts: Path, tmp_path: Path, words: tuple[str, ...], code: int, message: str
) -> None:
    result = run("--registry", tmp_path / "copy", *words)
    assert result.code == code and message in result.err and not (tmp_path / "copy").exists()


def test_an_export_of_what_is_not_there_leaves_nothing(run: Any, parts: Path, tmp_path: Path) -> None:
    result = run("push", f"oci-layout://{tmp_path}/layout", "nothing", "--create")
    assert result.code == 2 and not (tmp_path / "layout").exists()
    result = run("push", f"oci-layout://{parts}", "--create")
    assert result.code == 2 and "other files" in result.err


def test_changes_of_what_is_here_are_offered_and_made_when_asked_for(
    run: Any, parts: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    run("alias", HEAD, "prod", "1.0.0")
    assert run("clone", parts, copy).code == 0
    run("withdraw", f"{HEAD}@1.0.0", "--reason", "trained on the test set")
    run("alias", HEAD, "prod", "--remove")
    result = run("--registry", copy, "pull", parts)
    assert result.code == 0 and "--follow-aliases --follow-withdrawals" in " ".join(result.out.split())
    assert f"withdrawal of {HEAD}@1.0.0: trained on the test set" in " ".join(result.out.split())
    assert Store.open(copy).aliases(HEAD) == {"prod": "1.0.0"} and not Store.open(copy).references.withdrawn(
        HEAD
    )
    shown = json.loads(run("--registry", copy, "pull", parts, "--json").out)["offered"]
    assert [(offer["kind"], offer["what"], offer["option"], offer["code"]) for offer in shown] == [
        ("withdrawal", f"{HEAD}@1.0.0", "--follow-withdrawals", None),
        ("alias", f"{HEAD}:prod", "--follow-aliases", None),
    ]
    result = run("--registry", copy, "pull", parts, "--follow-aliases", "--follow-withdrawals")
    assert result.code == 0 and "offered" not in result.out
    assert Store.open(copy).aliases(HEAD) == {} and Store.open(copy).references.withdrawn(HEAD)
    assert run("restore", f"{HEAD}@1.0.0").code == 2
    assert run("restore", HEAD, "--reason", "it was not").code == 2
    assert run("restore", f"{HEAD}@1.0.0", "--reason", "it was not").code == 0
    assert run("restore", f"{HEAD}@1.0.0", "--reason", "it was not").code == 2
    assert "restored" in run("log", HEAD).out

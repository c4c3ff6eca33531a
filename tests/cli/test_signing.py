"""keys, sign, signatures, and the options that sign and require signatures elsewhere."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from measured import cell, keep

from compatkit.cli import private_keys as signing
from compatkit.registry.store import Store

HEAD, EXTRACTOR = "digits/left.head", "digits/left.extractor"


@pytest.fixture
def alice(run: Any, tmp_path: Path) -> Path:
    """A pair of key files that is not trusted yet; returns the private one."""
    assert run("keys", "new", "alice", "--out", tmp_path / "alice.pem").code == 0
    return tmp_path / "alice.pem"


def trust(run: Any, key: Path) -> None:
    assert run("keys", "trust", key.with_suffix(".pub")).code == 0


def test_the_whole_way(run: Any, parts: Path, tmp_path: Path) -> None:
    result = run("keys", "new", "alice", "--expires", "365d")
    private = tmp_path / "config" / "compatkit" / "keys" / "alice.pem"
    assert result.code == 0 and str(private) in result.out and "ed25519:" in result.out
    assert f"next: compatkit keys trust {private.with_suffix('.pub')}" in result.out
    result = run("sign", "digits/*.head", "--key", "alice")
    assert result.code == 0 and f"signed {HEAD}@1.0.0, until 20" in result.out
    assert "next: compatkit signatures 'digits/*.head'" in result.out
    assert "signed before" in run("sign", "digits/*.head", "--key", "alice").out
    result = run("sign", "digits/*.head", "--all", "--key", "alice")
    assert "signed before" in result.out and "next: compatkit signatures 'digits/*.head' --all" in result.out
    result = run("signatures", HEAD)
    assert (
        result.code == 1
        and "unknown-signer" in result.out
        and "keys trust ed25519:" in " ".join(result.out.split())
    )
    assert "no key is trusted" in result.err
    assert "not verified, for no key is trusted" in " ".join(run("show", HEAD).out.split())
    assert run("keys", "trust", private.with_suffix(".pub")).code == 0
    result = run("signatures", HEAD)
    assert (
        result.code == 0
        and f"signed  {HEAD}@1.0.0" in result.out
        and "good" in result.out
        and "alice" in result.out
    )
    result = run("signatures")
    assert result.code == 1 and f"refused  {EXTRACTOR}@1.0.0" in result.out and "unsigned" in result.out
    assert "alice (ed25519:" in run("show", HEAD).out and "signatures" not in run("show", EXTRACTOR).out
    listed = run("keys", "list", "--json").json["keys"]
    assert [(entry["name"], entry["state"]) for entry in listed] == [("alice", "trusted")]
    assert run("keys", "distrust", "alice", "--reason", "laptop stolen").code == 0
    result = run("signatures", HEAD)
    assert result.code == 1 and "key-distrusted" in result.out and "laptop stolen" in result.out
    assert "none counts: key-distrusted" in run("show", HEAD).out
    result = run("keys", "trust", private.with_suffix(".pub"))
    assert result.code == 2 and "laptop stolen" in result.err and "--again" in result.err
    assert run("keys", "trust", private.with_suffix(".pub"), "--again").code == 0
    assert run("signatures", HEAD).code == 0
    assert run("verify").code == 0


def test_json_tells_all_of_it(run: Any, parts: Path, alice: Path) -> None:
    made = run(
        "keys", "new", "bob", "--out", alice.with_name("bob.pem"), "--expires", "2999-01-31", "--json"
    ).json
    assert made["name"] == "bob" and made["expires"] == "2999-01-31T00:00:00Z" and made["encrypted"] is False
    assert made["private"].endswith("bob.pem") and made["public"].endswith("bob.pub")
    signed = run("sign", HEAD, "--key", alice, "--expires", "1h", "--json").json
    assert signed[0]["reference"] == f"{HEAD}@1.0.0" and signed[0]["made"] and signed[0]["expires"]
    trusted = run("keys", "trust", alice.with_suffix(".pub"), "--as", "al", "--json").json
    assert (trusted["name"], trusted["state"], trusted["key"]) == ("al", "trusted", signed[0]["signer"])
    (result,) = run("signatures", HEAD, "--json").json
    assert (
        result["good"]
        and result["code"] is None
        and result["digest"] == Store.open(parts).resolve(HEAD).digest
    )
    (first,) = result["signatures"]
    assert first["good"] and first["signer_name"] == "al" and first["signed_as"] == f"{HEAD}@1.0.0"
    output = run("signatures", HEAD, EXTRACTOR, "--json")
    assert output.code == 1 and [each["code"] for each in output.json] == [None, "unsigned"]
    shown = run("show", HEAD, "--json").json
    assert shown["signatures_verified"] and shown["signatures"][0]["good"]
    shown = run("show", EXTRACTOR, "--json").json
    assert shown["signatures"] == [] and not shown["signatures_verified"]
    gone = run("keys", "--json", "distrust", "al").json
    assert gone["state"] == "distrusted" and gone["note"]


def test_a_forged_signature_is_3_and_an_unsigned_component_1(run: Any, parts: Path, alice: Path) -> None:
    trust(run, alice)
    run("sign", HEAD, "--key", alice)
    (path,) = (entry for entry in (parts / "signatures").rglob("*.json"))
    other = parts / "signatures" / str(Store.open(parts).resolve(EXTRACTOR).digest).removeprefix("sha256:")
    shutil.copytree(path.parent, other)
    output = run("signatures", EXTRACTOR)
    assert (
        output.code == 3
        and "signature-other-digest" in output.out
        and "expected a signature of" in output.out
    )
    path.chmod(0o644)
    path.write_text("{}")
    assert run("signatures", HEAD).code == 3
    result = run("verify", "--json")
    assert result.code == 3 and {fault["code"] for fault in result.json["faults"]} == {"signature-damaged"}
    assert run("verify", "--repair").code == 0
    assert run("signatures", HEAD).code == 1


def test_whom_to_trust_may_be_said_each_time(run: Any, parts: Path, alice: Path, tmp_path: Path) -> None:
    run("sign", HEAD, "--key", alice)
    public = alice.with_suffix(".pub")
    key = json.loads(run("keys", "trust", public, "--trusted", tmp_path / "team", "--json").out)["key"]
    assert run("signatures", HEAD).code == 1
    for whom in (tmp_path / "team", public, key):
        assert run("signatures", HEAD, "--trusted", whom).code == 0
    assert run("keys", "list", "--trusted", tmp_path / "team").out.count("alice") == 1
    assert "no keys in" in run("keys", "list").out
    result = run("signatures", HEAD, "--trusted", tmp_path / "nobody")
    assert result.code == 2 and "no folder or file" in result.err


def test_what_is_recombined_measured_or_imported_may_be_required_to_be_signed(
    run: Any, parts: Path, alice: Path, tmp_path: Path
) -> None:
    public = alice.with_suffix(".pub")
    copy = tmp_path / "copy"
    commands = [
        ("recombine", EXTRACTOR, HEAD, "--no-measure"),
        ("matrix", EXTRACTOR, HEAD),
        ("--registry", copy, "import", parts, HEAD),
    ]
    for command in commands:
        result = run(*command, "--trusted", public)
        assert result.code == 1 and "[unsigned]" in result.err
        result = run(*command, "--require-signature", "--json")
        assert result.code == 1 and result.json["error"]["code"] == "unsigned"
    assert not copy.exists()
    assert run("sign", "digits/left.*", "--key", alice).code == 0
    for command in commands:
        assert run(*command, "--trusted", public).code == 0
    assert Store.open(copy).signatures.of(str(Store.open(copy).resolve(HEAD).digest))
    result = run("--registry", copy, "import", parts, "digits/right.head", "--trusted", public)
    assert result.code == 1 and "digits/right.head@1.0.0" in result.err


def test_what_is_pulled_cloned_or_read_from_a_layout_may_be_required_to_be_signed(
    run: Any, parts: Path, alice: Path, tmp_path: Path
) -> None:
    public, copy, layout = alice.with_suffix(".pub"), tmp_path / "copy", tmp_path / "layout"
    assert run("push", f"oci-layout://{layout}", "--create").code == 0
    commands = [
        ("--registry", copy, "pull", parts),
        ("--registry", copy, "pull", f"oci-layout://{layout}"),
        ("clone", parts, tmp_path / "clone"),
    ]
    for command in commands:
        result = run(*command, "--trusted", public)
        text = " ".join(result.out.split())
        assert result.code == 1 and f"[unsigned] {HEAD}@1.0.0 (sha256:" in text and "compatkit sign" in text
    shutil.rmtree(tmp_path / "clone")
    for command in commands:
        result = run(*command, "--require-signature", "--json")  # the user trusts nobody yet
        assert result.code == 1 and {refusal["code"] for refusal in result.json["refused"]} == {"unsigned"}
        assert not result.json["made"] and not result.json["objects"]
    assert Store.open(copy).names() == [] == Store.open(tmp_path / "clone").names()
    shutil.rmtree(tmp_path / "clone")
    assert run("sign", "digits/*", "--key", alice).code == 0
    assert run("push", f"oci-layout://{layout}", "--create").code == 0
    for command in commands:
        assert run(*command, "--require-signature").code == 1  # signed, by somebody unknown
        shutil.rmtree(tmp_path / "clone", ignore_errors=True)
    trust(run, alice)
    for command in commands:
        assert run(*command, "--require-signature").code == 0
        shutil.rmtree(copy, ignore_errors=True)
    result = run("--registry", tmp_path / "none", "pull", parts, "--trusted", tmp_path / "nobody")
    assert result.code == 2 and "no folder or file" in result.err and not (tmp_path / "none").exists()


def test_an_import_says_that_signatures_came(run: Any, parts: Path, alice: Path, tmp_path: Path) -> None:
    run("sign", HEAD, "--key", alice)
    assert ", 1 signature" in run("--registry", tmp_path / "copy", "import", parts, HEAD).out
    result = run(
        "--registry", tmp_path / "other", "import", parts, HEAD, "--trusted", alice.with_suffix(".pub")
    )
    assert result.code == 0 and "or not signed" in result.out


def test_what_is_published_may_be_signed_at_once(run: Any, recipe: Any, parts: Path, alice: Path) -> None:
    trust(run, alice)
    result = run("train", recipe(), "--prefix", "new", "--sign-with", alice)
    assert result.code == 0 and "published new/left.head@1.0.0 and signed it" in result.out
    assert run("signatures", "new/*").code == 0
    arguments = ("split", "simple_cnn", "--cut", "forward_features", "--size", "16x16")
    result = run(*arguments, "--publish", "cut/net", "--sign-with", alice, "--json").json
    assert [entry["reference"] for entry in result["signed"]] == [
        "cut/net.extractor@1.0.0",
        "cut/net.head@1.0.0",
    ]
    assert run("signatures", "cut/*").code == 0
    result = run(*arguments, "--sign-with", alice)
    assert result.code == 2 and "--publish" in result.err


def test_a_key_that_cannot_be_used_is_known_before_the_training(run: Any, recipe: Any, parts: Path) -> None:
    result = run("train", recipe(), "--prefix", "new", "--sign-with", "nobody")
    assert result.code == 2 and "There is no key nobody" in result.err and "training images" not in result.err
    assert not Store.open(parts).names("new/*")


def test_passphrases_come_from_the_environment_or_a_person(
    run: Any, parts: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    file = tmp_path / "closed.pem"
    result = run("keys", "new", "alice", "--out", file, "--passphrase")
    assert result.code == 2 and "COMPATKIT_KEY_PASSPHRASE" in result.err and not file.exists()
    monkeypatch.setenv("COMPATKIT_KEY_PASSPHRASE", "correct horse")
    result = run("keys", "new", "alice", "--out", file)
    assert result.code == 0 and "(encrypted)" in result.out and "ENCRYPTED" in file.read_text()
    assert run("sign", HEAD, "--key", file).code == 0
    monkeypatch.setenv("COMPATKIT_KEY_PASSPHRASE", "battery staple")
    result = run("sign", HEAD, "--key", file, "--json")
    assert result.code == 2 and result.json["error"]["code"] == "wrong-passphrase"
    monkeypatch.delenv("COMPATKIT_KEY_PASSPHRASE")
    assert "[wrong-passphrase]" in run("sign", HEAD, "--key", file).err
    monkeypatch.setattr(signing, "ask", lambda prompt, confirm=False: "correct horse")
    assert run("sign", HEAD, "--key", file).code == 0


@pytest.mark.usefixtures("parts")
def test_what_keys_cannot_be(run: Any, alice: Path, tmp_path: Path, parts: Path) -> None:
    public = alice.with_suffix(".pub")
    (tmp_path / "bare.pub").write_text("".join(public.read_text().splitlines(keepends=True)[2:]))
    for words, expected in {
        ("keys", "new", "a b"): "Expected a key name",
        ("keys", "new", "al", "--expires", "soon"): "Expected a duration",
        ("keys", "new", "al", "--expires", "2020-01-31"): "Expected an end after",
        ("keys", "new", "alice", "--out", alice): "not overwritten",
        ("keys", "new", "al", "--out", parts / "al.pem"): "is in the registry",
        ("keys", "trust", alice): "Never share it",
        ("keys", "trust", tmp_path / "none"): "there is no file",
        ("keys", "trust", "ed25519:12"): "Expected 'ed25519:'",
        ("keys", "trust", tmp_path / "bare.pub"): "--as NAME",
        ("keys", "distrust", "nobody"): "matches 0 keys in",
        ("sign", HEAD, "--key", public): "expected a PRIVATE KEY",
        ("sign", HEAD): "--key",
        ("sign", "--key", alice): "REF",
        ("sign", "nobody", "--key", alice): "no component is named",
        ("signatures", "nobody"): "no component is named",
    }.items():
        result = run(*words)
        assert result.code == 2 and expected in " ".join(result.err.split()), words
    assert run("keys", "trust", tmp_path / "bare.pub", "--as", "al").code == 0


def test_texts_in_keys_and_reasons_cannot_drive_the_terminal(run: Any, parts: Path, alice: Path) -> None:
    trust(run, alice)
    run("sign", HEAD, "--key", alice)
    assert run("keys", "distrust", "alice", "--reason", "\x1b[2J").code == 0
    for item in (
        run("signatures", HEAD),
        run("keys", "list"),
        run("show", HEAD),
        run("keys", "trust", alice.with_suffix(".pub")),
    ):
        assert "\x1b[2J" not in item.out + item.err


def test_a_damaged_folder_of_trust_is_told_and_show_still_shows(
    run: Any, parts: Path, alice: Path, tmp_path: Path
) -> None:
    run("sign", HEAD, "--key", alice)
    folder = tmp_path / "config" / "compatkit" / "trusted"
    folder.mkdir(parents=True)
    (folder / "broken.pub").write_text("?")
    assert run("signatures", HEAD).code == 2
    result = run("show", HEAD)
    assert result.code == 0 and "were not verified" in result.err and "broken.pub" in result.err
    assert run("show", EXTRACTOR).err == ""


@pytest.mark.filterwarnings("default::compatkit.registry.evidence.UnsignedEvidence")
def test_measured_results_are_signed_and_count_where_signatures_are_required(
    run: Any, parts: Path, alice: Path
) -> None:
    store = Store.open(parts)
    keep(store, store.manifest(EXTRACTOR), store.manifest(HEAD), cell(policy="batch"))
    trust(run, alice)
    assert run("sign", "digits/left.*", "--key", alice).code == 0

    def checked() -> Any:
        return run("check", EXTRACTOR, HEAD, "--require-signature", "--json")

    result = checked()
    assert result.json["evidence"] == "none" and "1 of 1 measured results are ignored" in result.err
    signed = run("sign", "digits/*.extractor", "digits/*.head", "--evidence", "--key", alice, "--json").json
    assert [entry["made"] for entry in signed] == [True]
    result = run("sign", EXTRACTOR, HEAD, "--evidence", "--key", alice)
    assert result.code == 0 and "signed 0 measured results; 1 were signed before" in result.out
    assert checked().json["evidence"] == "compatible"
    assert run("verify").code == 0


@pytest.mark.parametrize("words", [(EXTRACTOR,), (EXTRACTOR, HEAD, "--all"), (EXTRACTOR, HEAD, "--unnamed")])
def test_results_are_signed_by_extractors_and_heads_alone(
    run: Any, parts: Path, alice: Path, words: tuple[str, ...]
) -> None:
    result = run("sign", *words, "--evidence", "--key", alice)
    assert result.code == 2 and "two REF" in " ".join(result.err.split())


def test_the_owner_of_a_key_reads_its_name_in_the_log(run: Any, parts: Path) -> None:
    assert run("keys", "new", "alice").code == 0
    assert run("alias", HEAD, "prod", "1.0.0", "--sign-with", "alice").code == 0
    assert "by alice (ed25519:" in " ".join(run("log", HEAD).out.split())

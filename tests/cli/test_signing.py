"""keys, sign, signatures, and the options that sign and require signatures elsewhere."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from measured import cell, keep

from compatkit.cli import sign as signing
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
    said = run("keys", "new", "alice", "--expires", "365d")
    private = tmp_path / "config" / "compatkit" / "keys" / "alice.pem"
    assert said.code == 0 and str(private) in said.out and "ed25519:" in said.out
    assert f"next: compatkit keys trust {private.with_suffix('.pub')}" in said.out
    said = run("sign", "digits/*.head", "--key", "alice")
    assert said.code == 0 and f"signed {HEAD}@1.0.0, until 20" in said.out
    assert "next: compatkit signatures 'digits/*.head'" in said.out
    assert "signed before" in run("sign", "digits/*.head", "--key", "alice").out
    said = run("sign", "digits/*.head", "--all", "--key", "alice")
    assert "signed before" in said.out and "next: compatkit signatures 'digits/*.head' --all" in said.out
    said = run("signatures", HEAD)
    assert (
        said.code == 1
        and "unknown-signer" in said.out
        and "keys trust ed25519:" in " ".join(said.out.split())
    )
    assert "no key is trusted" in said.err
    assert "not verified, for no key is trusted" in " ".join(run("show", HEAD).out.split())
    assert run("keys", "trust", private.with_suffix(".pub")).code == 0
    said = run("signatures", HEAD)
    assert (
        said.code == 0 and f"signed  {HEAD}@1.0.0" in said.out and "good" in said.out and "alice" in said.out
    )
    said = run("signatures")
    assert said.code == 1 and f"refused  {EXTRACTOR}@1.0.0" in said.out and "unsigned" in said.out
    assert "alice (ed25519:" in run("show", HEAD).out and "signatures" not in run("show", EXTRACTOR).out
    listed = run("keys", "list", "--json").json["keys"]
    assert [(one["name"], one["state"]) for one in listed] == [("alice", "trusted")]
    assert run("keys", "distrust", "alice", "--reason", "laptop stolen").code == 0
    said = run("signatures", HEAD)
    assert said.code == 1 and "key-distrusted" in said.out and "laptop stolen" in said.out
    assert "none counts: key-distrusted" in run("show", HEAD).out
    said = run("keys", "trust", private.with_suffix(".pub"))
    assert said.code == 2 and "laptop stolen" in said.err and "--again" in said.err
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
    (found,) = run("signatures", HEAD, "--json").json
    assert (
        found["good"] and found["code"] is None and found["digest"] == Store.open(parts).resolve(HEAD).digest
    )
    (one,) = found["signatures"]
    assert one["good"] and one["signer_name"] == "al" and one["signed_as"] == f"{HEAD}@1.0.0"
    said = run("signatures", HEAD, EXTRACTOR, "--json")
    assert said.code == 1 and [each["code"] for each in said.json] == [None, "unsigned"]
    shown = run("show", HEAD, "--json").json
    assert shown["signatures_verified"] and shown["signatures"][0]["good"]
    shown = run("show", EXTRACTOR, "--json").json
    assert shown["signatures"] == [] and not shown["signatures_verified"]
    gone = run("keys", "--json", "distrust", "al").json
    assert gone["state"] == "distrusted" and gone["note"]


def test_a_forged_signature_is_3_and_an_unsigned_component_1(run: Any, parts: Path, alice: Path) -> None:
    trust(run, alice)
    run("sign", HEAD, "--key", alice)
    (path,) = (one for one in (parts / "signatures").rglob("*.json"))
    other = parts / "signatures" / str(Store.open(parts).resolve(EXTRACTOR).digest).removeprefix("sha256:")
    shutil.copytree(path.parent, other)
    said = run("signatures", EXTRACTOR)
    assert said.code == 3 and "signature-other-digest" in said.out and "expected a signature of" in said.out
    path.chmod(0o644)
    path.write_text("{}")
    assert run("signatures", HEAD).code == 3
    found = run("verify", "--json")
    assert found.code == 3 and {one["code"] for one in found.json["faults"]} == {"signature-damaged"}
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
    said = run("signatures", HEAD, "--trusted", tmp_path / "nobody")
    assert said.code == 2 and "no folder or file" in said.err


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
        said = run(*command, "--trusted", public)
        assert said.code == 1 and "[unsigned]" in said.err
        said = run(*command, "--require-signature", "--json")
        assert said.code == 1 and said.json["error"]["code"] == "unsigned"
    assert not copy.exists()
    assert run("sign", "digits/left.*", "--key", alice).code == 0
    for command in commands:
        assert run(*command, "--trusted", public).code == 0
    assert Store.open(copy).signatures.of(str(Store.open(copy).resolve(HEAD).digest))
    said = run("--registry", copy, "import", parts, "digits/right.head", "--trusted", public)
    assert said.code == 1 and "digits/right.head@1.0.0" in said.err


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
        said = run(*command, "--trusted", public)
        told = " ".join(said.out.split())
        assert said.code == 1 and f"[unsigned] {HEAD}@1.0.0 (sha256:" in told and "compatkit sign" in told
    shutil.rmtree(tmp_path / "clone")
    for command in commands:
        said = run(*command, "--require-signature", "--json")  # the user trusts nobody yet
        assert said.code == 1 and {one["code"] for one in said.json["refused"]} == {"unsigned"}
        assert not said.json["made"] and not said.json["objects"]
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
    said = run("--registry", tmp_path / "none", "pull", parts, "--trusted", tmp_path / "nobody")
    assert said.code == 2 and "no folder or file" in said.err and not (tmp_path / "none").exists()


def test_an_import_says_that_signatures_came(run: Any, parts: Path, alice: Path, tmp_path: Path) -> None:
    run("sign", HEAD, "--key", alice)
    assert ", 1 signature" in run("--registry", tmp_path / "copy", "import", parts, HEAD).out
    said = run(
        "--registry", tmp_path / "other", "import", parts, HEAD, "--trusted", alice.with_suffix(".pub")
    )
    assert said.code == 0 and "or not signed" in said.out


def test_what_is_published_may_be_signed_at_once(run: Any, recipe: Any, parts: Path, alice: Path) -> None:
    trust(run, alice)
    said = run("train", recipe(), "--prefix", "new", "--sign-with", alice)
    assert said.code == 0 and "published new/left.head@1.0.0 and signed it" in said.out
    assert run("signatures", "new/*").code == 0
    arguments = ("split", "simple_cnn", "--cut", "forward_features", "--size", "16x16")
    said = run(*arguments, "--publish", "cut/net", "--sign-with", alice, "--json").json
    assert [one["reference"] for one in said["signed"]] == ["cut/net.extractor@1.0.0", "cut/net.head@1.0.0"]
    assert run("signatures", "cut/*").code == 0
    said = run(*arguments, "--sign-with", alice)
    assert said.code == 2 and "--publish" in said.err


def test_a_key_that_cannot_be_used_is_known_before_the_training(run: Any, recipe: Any, parts: Path) -> None:
    said = run("train", recipe(), "--prefix", "new", "--sign-with", "nobody")
    assert said.code == 2 and "There is no key nobody" in said.err and "training images" not in said.err
    assert not Store.open(parts).names("new/*")


def test_passphrases_come_from_the_environment_or_a_person(
    run: Any, parts: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    file = tmp_path / "closed.pem"
    said = run("keys", "new", "alice", "--out", file, "--passphrase")
    assert said.code == 2 and "COMPATKIT_KEY_PASSPHRASE" in said.err and not file.exists()
    monkeypatch.setenv("COMPATKIT_KEY_PASSPHRASE", "correct horse")
    said = run("keys", "new", "alice", "--out", file)
    assert said.code == 0 and "(encrypted)" in said.out and "ENCRYPTED" in file.read_text()
    assert run("sign", HEAD, "--key", file).code == 0
    monkeypatch.setenv("COMPATKIT_KEY_PASSPHRASE", "battery staple")
    said = run("sign", HEAD, "--key", file, "--json")
    assert said.code == 2 and said.json["error"]["code"] == "wrong-passphrase"
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
        said = run(*words)
        assert said.code == 2 and expected in " ".join(said.err.split()), words
    assert run("keys", "trust", tmp_path / "bare.pub", "--as", "al").code == 0


def test_texts_in_keys_and_reasons_cannot_drive_the_terminal(run: Any, parts: Path, alice: Path) -> None:
    trust(run, alice)
    run("sign", HEAD, "--key", alice)
    assert run("keys", "distrust", "alice", "--reason", "\x1b[2J").code == 0
    for said in (
        run("signatures", HEAD),
        run("keys", "list"),
        run("show", HEAD),
        run("keys", "trust", alice.with_suffix(".pub")),
    ):
        assert "\x1b[2J" not in said.out + said.err


def test_a_damaged_folder_of_trust_is_told_and_show_still_shows(
    run: Any, parts: Path, alice: Path, tmp_path: Path
) -> None:
    run("sign", HEAD, "--key", alice)
    folder = tmp_path / "config" / "compatkit" / "trusted"
    folder.mkdir(parents=True)
    (folder / "broken.pub").write_text("?")
    assert run("signatures", HEAD).code == 2
    said = run("show", HEAD)
    assert said.code == 0 and "were not verified" in said.err and "broken.pub" in said.err
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

    said = checked()
    assert said.json["evidence"] == "none" and "1 of 1 measured results are left out" in said.err
    signed = run("sign", "digits/*.extractor", "digits/*.head", "--evidence", "--key", alice, "--json").json
    assert [one["made"] for one in signed] == [True]
    said = run("sign", EXTRACTOR, HEAD, "--evidence", "--key", alice)
    assert said.code == 0 and "signed 0 measured results; 1 were signed before" in said.out
    assert checked().json["evidence"] == "compatible"
    assert run("verify").code == 0


@pytest.mark.parametrize("words", [(EXTRACTOR,), (EXTRACTOR, HEAD, "--all"), (EXTRACTOR, HEAD, "--unnamed")])
def test_results_are_signed_by_extractors_and_heads_alone(
    run: Any, parts: Path, alice: Path, words: tuple[str, ...]
) -> None:
    said = run("sign", *words, "--evidence", "--key", alice)
    assert said.code == 2 and "two REF" in " ".join(said.err.split())

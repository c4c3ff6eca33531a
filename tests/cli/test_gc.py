"""gc: what could be deleted is shown first, and deleted only when told to."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

import compatkit as ck
from compatkit.registry.store import Store

HEAD = "digits/left.head"


def leave(parts: Path, data: bytes = b"nothing refers to this", hours: float = 48) -> str:
    """Put bytes that nothing refers to, as if some time ago; return their digest."""
    store = Store.open(parts)
    digest = store.put_blob(data).blob
    then = time.time() - hours * 3600
    os.utime(store.objects.path(digest), (then, then))
    return digest


@pytest.mark.usefixtures("parts")
def test_a_registry_with_nothing_to_collect(run: Any) -> None:
    result = run("gc")
    assert result.code == 0 and "nothing to collect" in result.out and "next:" not in result.out
    assert "nothing to collect" in run("gc", "--delete").out
    assert run("gc", "--delete", "--json").json["collected"] is None


def test_without_delete_nothing_is_changed(run: Any, parts: Path, untouched: Any) -> None:
    leave(parts)
    with untouched(parts):
        result = run("gc")
    assert result.code == 0
    assert "blobs that nothing refers to      1  22 bytes  go to trash/" in result.out
    assert "Nothing was changed." in result.out and result.out.endswith("next: compatkit gc --delete\n")


def test_delete_takes_out_and_a_day_later_deletes(run: Any, parts: Path) -> None:
    digest = leave(parts)
    result = run("gc", "--delete")
    assert (
        result.code == 0
        and "took out 1 blob (22 bytes)" in result.out
        and "after 24 h in trash/" in result.out
    )
    assert "freed 0 bytes" in result.out and "next:" not in result.out
    (away,) = (parts / "trash").iterdir()
    assert away.name.startswith(digest[7:])
    assert "stay" in run("gc").out
    os.utime(away, (1, 1))
    assert "are deleted" in run("gc").out
    assert "freed 22 bytes" in run("gc", "--delete").out and not list((parts / "trash").iterdir())
    assert run("ls").code == 0


def test_json_says_everything(run: Any, parts: Path) -> None:
    digest = leave(parts)
    leave(parts, b"young", hours=1)
    document = run("gc", "--json").json
    assert [blob["digest"] for blob in document["plan"]["blobs"]] == [digest] and document[
        "collected"
    ] is None
    assert document["plan"]["totals"]["young"] == {"files": 1, "bytes": 5}
    document = run("--json", "gc", "--delete").json
    assert document["collected"]["moved"] == [digest] and document["collected"]["moved_bytes"] == 22


def test_a_short_grace_is_for_who_is_alone(run: Any, parts: Path) -> None:
    leave(parts, hours=0.5)
    result = run("gc", "--grace", "10m", "--delete")
    assert result.code == 2 and "--alone" in result.err
    result = run("gc", "--grace", "10m", "--alone")
    assert result.out.endswith("next: compatkit gc --alone --grace 600s --delete\n")
    assert "took out 1 blob" in run("gc", "--alone", "--grace", "600s", "--delete").out
    assert "freed 22 bytes" in run("gc", "--alone", "--grace", "0", "--delete").out


@pytest.mark.usefixtures("parts")
@pytest.mark.parametrize("grace", ["24", "1.5h", "soon", "-1h", "", "h"])
def test_a_time_that_cannot_be_read(run: Any, grace: str) -> None:
    result = run("gc", "--grace", grace)
    assert result.code == 2 and "--grace" in result.err


def test_weights_of_withdrawn_versions(run: Any, parts: Path) -> None:
    run("withdraw", f"{HEAD}@1.0.0", "--reason", "wrong")
    for path in parts.rglob("*"):
        os.utime(path, (time.time() - 10**6,) * 2)
    assert "nothing to collect" in run("gc").out
    result = run("gc", "--withdrawn")
    assert (
        "weights of withdrawn versions" in result.out
        and "next: compatkit gc --withdrawn --delete" in result.out
    )
    assert "took out 1 blob" in run("gc", "--withdrawn", "--delete").out
    assert run("log", HEAD).code == 0


def test_the_registry_is_named_again_in_the_next_command(run: Any, parts: Path) -> None:
    leave(parts)
    assert run("--registry", "parts", "gc").out.endswith("next: compatkit --registry parts gc --delete\n")


def test_damage_is_told_and_nothing_is_deleted(run: Any, parts: Path, untouched: Any) -> None:
    leave(parts)
    digest = str(Store.open(parts).resolve(HEAD).digest)
    path = parts / "blobs/sha256" / digest[7:9] / digest[7:]
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:-2])
    with untouched(parts):
        for words in (("gc",), ("gc", "--delete")):
            result = run(*words)
            assert (
                result.code == 3
                and f"{HEAD}@1.0.0 refers to it" in result.err
                and "compatkit verify" in result.err
            )
    result = run("gc", "--json")
    assert result.json["error"]["code"] == "integrity"
    assert run("gc", "--lost", digest, "--delete").code == 0
    assert run("gc", "--lost", "nonsense").code == 2


def test_weights_of_a_withdrawn_version_are_purged_at_once(run: Any, parts: Path, untouched: Any) -> None:
    blob = Store.open(parts).manifest(HEAD).payload.file.blob
    assert run("withdraw", f"{HEAD}@1.0.0", "--reason", "leaked").code == 0
    words = ("gc", f"{HEAD}@*", "--withdrawn", "--purge")
    with untouched(parts):
        result = run(*words)
    assert result.code == 0 and f"would purge the weights of {HEAD}@1.0.0: 1 file" in result.out
    assert result.out.endswith(f"next: compatkit gc '{HEAD}@*' --withdrawn --purge --delete\n")
    result = run(*words, "--delete", "--json")
    assert result.code == 0 and result.json["applied"] and result.json["weights"][0]["digest"] == blob
    assert not [path for path in parts.rglob("*") if blob[7:] in path.name]
    assert run("verify").code == 0
    assert "nothing to purge" in run("gc", "--withdrawn", "--purge", "--delete").out


def test_weights_that_are_needed_are_told_and_the_exit_code_says_so(run: Any, parts: Path) -> None:
    assert run("withdraw", "digits/left.extractor@1.0.0", "--reason", "leaked").code == 0
    assert run("gc", "--withdrawn", "--purge").code == 0
    result = run("gc", "--withdrawn", "--purge", "--delete")
    assert result.code == 1 and f"{HEAD}@1.0.0 needs them" in result.err.replace("\n", " ")
    assert ck.Registry(parts).load(HEAD)


@pytest.mark.parametrize(
    "words",
    [
        ("--purge",),
        ("--withdrawn", "--purge", "--alone"),
        ("--withdrawn", "--purge", "--grace", "7d"),
        (HEAD,),
        (HEAD, "--withdrawn"),
    ],
)
def test_words_that_do_not_fit_together(
    run: Any, parts: Path, untouched: Any, words: tuple[str, ...]
) -> None:
    with untouched(parts):
        result = run("gc", *words, "--json")
    assert result.code == 2 and result.json["error"]["code"] == "usage"


def test_a_pattern_of_a_purge_matches_a_withdrawn_version(run: Any, parts: Path) -> None:
    result = run("gc", HEAD, "--withdrawn", "--purge", "--json")
    assert result.code == 2 and result.json["error"]["code"] == "not-found"


def test_old_versions_are_withdrawn_by_a_rule(run: Any, parts: Path, untouched: Any) -> None:
    store = Store.open(parts)
    for major in (2, 3, 4):
        store.publish(HEAD, store.manifest(f"{HEAD}@1.0.0"), version=f"{major}.0.0")
    store.set_alias(HEAD, "prod", "2.0.0")
    words = ("withdraw", "digits/*", "--keep", "2", "--reason", "too old")
    with untouched(parts):
        result = run(*words, "--dry-run")
    assert result.code == 0 and f"would withdraw {HEAD}@1.0.0" in result.out
    assert f"{HEAD}@2.0.0  the alias prod points at it" in result.out
    result = run(*words, "--json").json
    assert result["withdrawn"] == [f"{HEAD}@1.0.0"] and not result["dry_run"]
    assert {"reference": f"{HEAD}@2.0.0", "why": "the alias prod points at it"} in result["kept"]
    note = store.tombstone(HEAD, "1.0.0")
    assert note is not None and note.reason == "too old"
    assert "withdrew 0 versions" in run(*words).out
    assert run("withdraw", HEAD, "--reason", "x", "--dry-run").code == 2
    assert run("withdraw", f"{HEAD}@2.0.0", "--keep", "2", "--reason", "x").code == 2
    assert run("withdraw", HEAD, "--keep", "0", "--reason", "x").code == 2

"""gc: what could be deleted is shown first, and deleted only when told to."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

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
    said = run("gc")
    assert said.code == 0 and "nothing to collect" in said.out and "next:" not in said.out
    assert "nothing to collect" in run("gc", "--delete").out
    assert run("gc", "--delete", "--json").json["collected"] is None


def test_without_delete_nothing_is_changed(run: Any, parts: Path, untouched: Any) -> None:
    leave(parts)
    with untouched(parts):
        said = run("gc")
    assert said.code == 0
    assert "blobs that nothing refers to      1  22 bytes  go to trash/" in said.out
    assert "Nothing was changed." in said.out and said.out.endswith("next: compatkit gc --delete\n")


def test_delete_takes_out_and_a_day_later_deletes(run: Any, parts: Path) -> None:
    digest = leave(parts)
    said = run("gc", "--delete")
    assert said.code == 0 and "took out 1 blob (22 bytes)" in said.out and "after 24 h in trash/" in said.out
    assert "freed 0 bytes" in said.out and "next:" not in said.out
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
    said = run("gc", "--json").json
    assert [one["digest"] for one in said["plan"]["blobs"]] == [digest] and said["collected"] is None
    assert said["plan"]["totals"]["young"] == {"files": 1, "bytes": 5}
    said = run("--json", "gc", "--delete").json
    assert said["collected"]["moved"] == [digest] and said["collected"]["moved_bytes"] == 22


def test_a_short_grace_is_for_who_is_alone(run: Any, parts: Path) -> None:
    leave(parts, hours=0.5)
    said = run("gc", "--grace", "10m", "--delete")
    assert said.code == 2 and "--alone" in said.err
    said = run("gc", "--grace", "10m", "--alone")
    assert said.out.endswith("next: compatkit gc --alone --grace 600s --delete\n")
    assert "took out 1 blob" in run("gc", "--alone", "--grace", "600s", "--delete").out
    assert "freed 22 bytes" in run("gc", "--alone", "--grace", "0", "--delete").out


@pytest.mark.usefixtures("parts")
@pytest.mark.parametrize("grace", ["24", "1.5h", "soon", "-1h", "", "h"])
def test_a_time_that_cannot_be_read(run: Any, grace: str) -> None:
    said = run("gc", "--grace", grace)
    assert said.code == 2 and "--grace" in said.err


def test_weights_of_withdrawn_versions(run: Any, parts: Path) -> None:
    run("withdraw", f"{HEAD}@1.0.0", "--reason", "wrong")
    for path in parts.rglob("*"):
        os.utime(path, (time.time() - 10**6,) * 2)
    assert "nothing to collect" in run("gc").out
    said = run("gc", "--withdrawn")
    assert (
        "weights of withdrawn versions" in said.out and "next: compatkit gc --withdrawn --delete" in said.out
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
            said = run(*words)
            assert (
                said.code == 3 and f"{HEAD}@1.0.0 refers to it" in said.err and "compatkit verify" in said.err
            )
    said = run("gc", "--json")
    assert said.json["error"]["code"] == "integrity"
    assert run("gc", "--lost", digest, "--delete").code == 0
    assert run("gc", "--lost", "nonsense").code == 2

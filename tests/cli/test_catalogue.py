"""``compatkit site`` and ``compatkit serve`` as programs: documents, refusals, and how serving ends."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import hostile
import pytest
from documented import check_document


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A registry, which is the current one; the current folder is beside it."""
    hostile.build(tmp_path / "parts")
    monkeypatch.setenv("COMPATKIT_REGISTRY", str(tmp_path / "parts"))
    return tmp_path / "parts"


def test_site_prints_what_it_wrote(run: Any, parts: Path, tmp_path: Path) -> None:
    document = run("site", "out", "--title", "our parts", "--json").json
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert document.pop("seconds") > 0
    assert document == {
        "folder": str(tmp_path / "out"),
        "files": len(files),
        "bytes": sum(path.stat().st_size for path in files),
        "components": 1,
        "versions": 2,
    }
    assert "<h1><bdi>our parts</bdi></h1>" in (tmp_path / "out/index.html").read_text()
    again = run("site", "out")
    assert again.code == 0 and "1 component in 2 versions" in again.out
    assert again.out.splitlines()[-1] == f"open {tmp_path / 'out/index.html'}"


def test_site_leaves_other_folders_alone(run: Any, parts: Path, tmp_path: Path, untouched: Any) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/cat.png").write_bytes(b"mine")
    (tmp_path / "file").write_bytes(b"mine")
    for out in ("photos", "file", "parts", "parts/site", "."):
        with untouched(tmp_path):
            refused = run("site", out, "--json")
        assert refused.code == 2 and refused.json["error"]["code"] == "usage"
    missing = run("site", "missing/out", "--json")
    assert missing.code == 4 and missing.json["error"]["code"] == "environment"


@pytest.mark.parametrize(
    "words",
    [
        ("--port", "65536"),
        ("--port", "-1"),
        ("--port", "http"),
        ("--host", "0.0.0.0"),
        ("--host", "::"),
        ("--host", "192.0.2.1"),
        ("--host", "example.org"),
        ("--host", "127.0.0.1:80"),
        ("extra",),
    ],
    ids="-".join,
)
def test_serve_refuses_ports_that_are_none_and_addresses_that_others_reach(
    run: Any, parts: Path, words: tuple[str, ...]
) -> None:
    refused = run("serve", *words, "--json")
    assert refused.code == 2 and refused.json["error"]["code"] == "usage"


def test_serve_refuses_a_used_port(run: Any, parts: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        refused = run("serve", "--port", other.getsockname()[1], "--json")
    assert refused.code == 4 and refused.json["error"]["code"] == "environment"


@pytest.mark.parametrize("words", [("site", "out"), ("serve", "--port", "0")], ids=" ".join)
@pytest.mark.parametrize("name", ["missing", "folder"])
def test_what_is_no_registry_is_refused(run: Any, tmp_path: Path, words: tuple[str, ...], name: str) -> None:
    (tmp_path / "folder").mkdir()
    refused = run("--registry", name, *words, "--json")
    assert refused.code != 0 and refused.json["error"]["code"]
    assert not (tmp_path / "out").exists() and not (tmp_path / "missing").exists()


def test_serve_refuses_a_remote(run: Any, parts: Path, memory: str) -> None:
    assert run("push", "--create", memory).code == 0
    refused = run("--registry", memory, "serve", "--port", "0", "--json")
    assert refused.code == 2 and refused.json["error"]["code"] == "usage"


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)])
def test_serve_runs_until_it_is_stopped(parts: Path, number: signal.Signals, code: int) -> None:
    words = ["serve", "--port", "0", "--json"]
    command = [sys.executable, "-m", "compatkit", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            check_document(words, line)
            with urllib.request.urlopen(json.loads(line)["url"], timeout=60) as answer:
                assert answer.status == 200 and b"<bdi>parts</bdi>" in answer.read()
            process.send_signal(number)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, out, err) == (code, "", "")

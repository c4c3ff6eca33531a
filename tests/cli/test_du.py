"""du: bytes by name and by folder, for people and for programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attrs
from click.testing import CliRunner
from handmade import Hand, part

from compatkit.cli.command_line import CommandLine
from compatkit.cli.du import du_command


def run(hand: Hand, *words: str) -> Any:
    result = CliRunner().invoke(du_command, [*words, "--registry", str(hand.root)], obj=CommandLine())
    assert result.exit_code == 0 and result.stderr == "", result.output
    return result.stdout


def filled(tmp_path: Path) -> Hand:
    hand = Hand.init(tmp_path / "parts")
    weights = hand.put(b"w" * 2_000_000)
    file = attrs.evolve(part().payload.file, blob=weights, bytes=2_000_000)
    digest = hand.put(part(payload=attrs.evolve(part().payload, file=file)))
    hand.publish("digits/a", "1.0.0", digest)
    hand.publish("digits/b", "1.0.0", hand.put(part("head")))
    hand.put(b"u" * 500)
    return hand


def test_du_tells_bytes_by_name_and_by_folder(tmp_path: Path) -> None:
    lines = run(filled(tmp_path)).splitlines()
    assert lines[0].split() == ["name", "its", "own"] or lines[0].split() == ["name", "its", "own", "shared"]
    assert lines[1].split()[:3] == ["digits/a", "2.0", "MB"] and lines[2].startswith("digits/b")
    folders = "\n".join(lines[4:])
    assert "all blobs" in folders and "500 bytes" in folders and "trash/" in folders


def test_du_as_json(tmp_path: Path) -> None:
    document = json.loads(run(filled(tmp_path), "*/a", "--json"))
    (name,) = document["names"]
    assert name["name"] == "digits/a" and name["own"]["files"] == 2 and name["own"]["bytes"] > 2_000_000
    assert document["unreferenced"] == {"files": 1, "bytes": 500} and document["blobs"]["files"] == 4


def test_du_of_nothing(tmp_path: Path) -> None:
    hand = Hand.init(tmp_path / "parts")
    assert run(hand).startswith("no components yet\n")
    assert run(filled(tmp_path / "more"), "none*").startswith("no components match 'none*'\n")

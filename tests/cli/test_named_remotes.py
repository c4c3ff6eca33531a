"""``compatkit remote``, and names of remotes in other commands."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def test_remotes_are_added_listed_shown_and_removed(run: Any, parts: Path, tmp_path: Path):
    added = run("remote", "add", "team", str(tmp_path / "far"), "--trusted")
    assert added.code == 0 and "--registry team: ls" in added.out + added.err
    assert run("remote", "list", "--json").json == [
        {"name": "team", "address": str(tmp_path / "far"), "options": {}, "trusted": True}
    ]
    assert "team:" in run("remote", "list").out and "follow" in run("remote", "show", "team:").out
    assert run("push", "team:", "--create").code == 0
    assert run("clone", "team:", "mine").code == 0
    assert run("remote", "add", "team", "s3://bucket/x", "--option", "anon=true").code == 2
    assert run("remote", "add", "team", "s3://bucket/x", "--option", "anon=true", "--replace").code == 0
    shown = run("remote", "show", "team", "--json").json
    assert shown == {"name": "team", "address": "s3://bucket/x", "options": {"anon": True}, "trusted": False}
    assert run("remote", "remove", "team").code == 0
    assert run("pull", "team:").code == 2 and run("remote", "remove", "team").code == 2
    assert run("remote", "list").code == 0


def test_a_folder_of_the_name_is_mentioned(run: Any, parts: Path):
    Path("team").mkdir()
    assert "./team" in run("remote", "add", "team", "s3://bucket/x").out


def test_secrets_are_refused_and_not_printed(run: Any, parts: Path):
    refused = run("remote", "add", "team", "s3://KEY:SECRET@bucket/x")
    assert refused.code == 2 and "SECRET" not in refused.out + refused.err
    assert run("remote", "list", "--json").json == []

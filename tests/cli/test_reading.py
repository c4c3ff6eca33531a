"""init, ls, show, plugins: what they print for people and programs, where the registry comes from."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import attrs
import pytest
from distributions import Install, install

import compatkit as ck
from compatkit.cli import COMMANDS
from compatkit.foundation.codec import dumps
from compatkit.registry.store import Store

__all__ = ["install"]

KINDS = "builders", "data_sets", "metrics", "regularizers", "studies"


def test_help_names_every_command_and_the_first_steps(run: Any) -> None:
    result = run("--help")
    assert result.code == 0 and all(f"  {name} " in result.out for name in COMMANDS)
    assert "compatkit demo" in result.out and "Exit codes" in result.out


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_and_takes_json(run: Any, command: str) -> None:
    result = run(command, "--help")
    assert result.code == 0
    listed = result.out.partition("Commands:")[2].partition("Examples:")[0]
    parts = re.findall(r"^  (\w+) ", listed, re.MULTILINE)  # of a group, each
    helps = [run(command, part, "--help").out for part in parts] or [result.out]
    assert all("--json" in entry for entry in helps)


def test_the_version(run: Any) -> None:
    assert run("--version").out == f"compatkit, version {ck.__version__}\n"


def test_a_misspelt_command_or_option_gets_a_suggestion(run: Any) -> None:
    result = run("recombin")
    assert result.code == 2 and "Did you mean 'recombine'?" in result.err
    result = run("ls", "--jsn")
    assert result.code == 2 and "--json" in result.err
    result = run("show", "--json")
    assert (
        result.code == 2
        and result.json["error"]["code"] == "usage"
        and "REF" in result.json["error"]["message"]
    )


def test_init_makes_a_registry_and_says_what_comes_next(run: Any, tmp_path: Path) -> None:
    result = run("init", tmp_path / "new")
    assert (
        result.code == 0
        and f"made the registry {tmp_path / 'new'}" in result.out
        and "next: compatkit" in result.out
    )
    again = run("init", tmp_path / "new", "--json")
    assert again.json == {
        "root": str(tmp_path / "new"),
        "id": Store.open(tmp_path / "new").id,
        "created": False,
    }


@pytest.mark.usefixtures("parts")
def test_ls_aligns_its_columns(run: Any) -> None:
    result = run("ls")
    lines = result.out.splitlines()
    assert result.code == 0 and result.err == "" and len(lines) == 6
    assert lines[0].split() == ["name", "version", "kind", "parameters", "network"]
    assert lines[1].split() == "digits/left.extractor 1.0.0 extractor 18,800 resnet8_cifar @ layer2".split()
    assert len({line.index("resnet8") for line in lines[1:]}) == 1
    assert max(map(len, lines)) <= 90


def test_ls_shows_aliases_and_takes_a_pattern(run: Any, parts: Path) -> None:
    Store.open(parts).set_alias("digits/left.head", "prod", "1.0.0")
    result = run("ls", "*.head", "--json")
    assert [line["name"] for line in result.json] == ["digits/left.head", "digits/right.head"]
    assert result.json[0]["aliases"] == {"prod": "1.0.0"} and result.json[0]["versions"] == ["1.0.0"]
    assert ":prod=1.0.0" in run("ls", "*.head").out
    result = run("ls", "nothing*")
    assert result.code == 2 and result.out == "" and "'nothing*' matches none of 5 names" in result.err
    assert run("ls", "nothing*", "--json").json["error"]["code"] == "not-found"
    assert "names like digits/left.head" in run("ls", "digits/left.hed").err


@pytest.mark.usefixtures("parts")
def test_show_tells_what_a_head_takes_gives_and_was_trained_against(run: Any) -> None:
    result = run("show", "digits/left.head")
    for expected in (
        "digits/left.head@1.0.0",
        "N x 32 x H x W",
        "N x 3 (NC",
        "0, 1, 2",
        "auxiliary head dcc",
        "left/train",
    ):
        assert expected in result.out
    assert max(map(len, result.out.splitlines())) <= 120
    document = run("show", "digits/left.head@^1", "--json").json
    assert document["version"] == "1.0.0" and document["manifest"]["kind"] == "head"
    assert document["manifest"]["parents"][0]["relation"] == "trained_with"


def test_plugins_lists_what_is_installed(run: Any) -> None:
    output = run("plugins")
    assert output.code == 0
    lines = output.out.splitlines()
    assert [line for line in lines if line in KINDS] == list(KINDS)
    assert max(map(len, lines)) <= 100 and all("``" not in line for line in lines)
    for name in ("dcc", "accuracy", "digits", "timm", "mnist", "3.1"):
        assert [line for line in lines if line.split()[0:1] == [name] and len(line.split()) > 3], name
    result = {f"{entry['kind']}.{entry['name']}": entry for entry in run("plugins", "--json").json}
    assert result["regularizers.dcc"]["status"] == "installed" and result["metrics.accuracy"]["order"] == 1
    assert result["builders.timm"]["distribution"] == "compatkit"
    assert all(match["summary"] for match in result.values())


def test_plugins_imports_none_and_checks_on_request(
    run: Any, install: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    install("bad", {"metrics.bad_of_tests": "zoo_bad"}, {"zoo_bad": "raise OSError('no license')"})
    listed = run("plugins", "metrics.")
    assert listed.code == 0 and "none was imported" in " ".join(listed.out.split())
    assert "zoo_bad" not in sys.modules
    monkeypatch.setenv("COMPATKIT_PLUGINS", "bad,accuracy")
    checked = run("plugins", "--check")
    assert checked.code == 1 and "none was imported" not in checked.out
    checks = {entry["name"]: entry["status"] for entry in run("plugins", "--check", "--json").json}
    assert (
        checks["bad_of_tests"] == "failed" and checks["accuracy"] == "active" and checks["dcc"] == "blocked"
    )
    one = run("plugins", "bad_of_tests", "--json")
    assert one.code == 0 and one.json[0]["status"] == "failed"
    traced = run("plugins", "bad_of_tests", "--trace")
    assert traced.code == 1 and "zoo_bad.py" in traced.out
    monkeypatch.setenv("COMPATKIT_PLUGINS", "accuracy")
    assert run("plugins", "--check", "--quiet").code == 0


def test_plugins_are_found_by_a_word_and_one_is_shown_in_full(run: Any) -> None:
    result = run("plugins", "Rotation")
    assert "rotation_prediction" in result.out and "dcc" not in result.out and "settings" not in result.out
    first = run("plugins", "dcc")
    assert first.code == 0 and first.out.startswith("regularizers.dcc  active  compatkit")
    for word in ("set_up, losses", "classes: ", "of the regularizers", "dcc.py"):
        assert word in first.out
    assert run("plugins", "regularizers.dcc").out == first.out
    assert [entry["name"] for entry in run("plugins", "dcc", "--json").json] == ["dcc"]
    none = run("plugins", "nothing-like-it")
    assert none.code == 1 and "nothing has 'nothing-like-it'" in none.out
    assert run("plugins", "nothing-like-it", "--json").json == []


@pytest.mark.parametrize("words", [("pull", "x"), ("train", "recipe.toml")])
def test_a_remote_as_registry_to_write_to_is_told_what_works(
    run: Any, monkeypatch: Any, words: tuple[str, ...]
) -> None:
    error = run("--registry", "s3://bucket/parts", *words, "--json").json["error"]
    assert error["code"] == "usage" and "compatkit clone s3://bucket/parts FOLDER" in error["message"]
    monkeypatch.setenv("COMPATKIT_REGISTRY", "s3://bucket/parts")
    assert run(*words, "--json").json["error"] == error


def test_the_registry_is_named_before_or_after_the_command(run: Any, parts: Path, monkeypatch: Any) -> None:
    monkeypatch.delenv("COMPATKIT_REGISTRY")
    before, after = run("--registry", parts, "ls"), run("ls", "--registry", parts)
    assert before.code == 0 and before.out == after.out and "left.head" in after.out
    assert run("--registry", parts / "none", "ls", "--registry", parts).out == after.out


def test_json_may_be_asked_for_before_the_command(run: Any, parts: Path) -> None:
    assert run("--json", "ls").json == run("ls", "--json").json != []


def test_the_registry_is_found_by_variable_or_above_the_current_folder(
    run: Any, parts: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    expected = run("ls").out
    monkeypatch.delenv("COMPATKIT_REGISTRY")
    deep = parts / "some" / "where"
    deep.mkdir(parents=True)
    monkeypatch.chdir(deep)
    assert run("ls").out == expected
    monkeypatch.chdir(tmp_path)
    result = run("ls")
    assert result.code == 2 and "compatkit init FOLDER" in result.err and "--registry" in result.err
    monkeypatch.setenv("COMPATKIT_REGISTRY", str(parts))
    assert run("ls").out == expected


def test_text_from_a_registry_cannot_drive_the_terminal(run: Any, parts: Path) -> None:
    store = Store.open(parts)
    manifest = store.manifest("digits/left.head")
    about = attrs.evolve(manifest.about, title="\x1b[2Jgone", description="two\nlines \u202ereversed")
    store.publish("evil", attrs.evolve(manifest, about=about))
    result = run("show", "evil")
    assert "\x1b" not in result.out and "\\x1b[2Jgone" in result.out and "\u202e" not in result.out
    assert json.loads(run("show", "evil", "--json").out)["manifest"]["about"]["title"] == "\x1b[2Jgone"
    (parts / "settings").mkdir()
    for number in (1, 2):
        settings = {"protected_aliases": ["\x1b[2J"], "maintainers": ["ed25519:" + "0" * 64]}
        entry = {"registry": store.id, "settings": settings if number == 1 else {"\x1b[2J": 1}}
        data = dumps({**entry, "by": "\x1b[2J\u202e", "time": "\x1b[2J\n\u202e"})
        (parts / f"settings/{number}").write_bytes(data)
    shown = run("settings", "show").out
    assert "\x1b" not in shown and "\u202e" not in shown and shown.count("change ") == 2


def test_ls_lists_the_rest_when_one_manifest_is_damaged(run: Any, parts: Path, damage: Any) -> None:
    damage(str(Store.open(parts).resolve("digits/left.head").digest))
    result = run("ls")
    assert result.code == 3
    assert "digits/right.head" in result.out and re.search(r"digits/left.head +1\.0\.0 +damaged", result.out)
    assert "damaged digits/left.head" in result.err and "does not match its digest" in result.err
    machine = run("ls", "--json")
    assert machine.code == 3 and "error" in machine.json[1] and "error" not in machine.json[0]

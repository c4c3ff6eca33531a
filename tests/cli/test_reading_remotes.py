"""Commands that read, with a remote as their registry."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import compatkit as ck

HEAD, EXTRACTOR = "digits/left.head", "digits/left.extractor"


@pytest.fixture
def team(run: Any, parts: Path, memory: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A named remote with everything of ``parts``, which is no longer there."""
    assert run("push", memory, "--create").code == 0
    assert run("remote", "add", "team", memory).code == 0
    parts.rename(parts.with_name("away"))
    monkeypatch.delenv("COMPATKIT_REGISTRY")
    return memory


@pytest.mark.parametrize(
    "words",
    [
        ("ls",),
        ("ls", "digits/*"),
        ("show", HEAD),
        ("search", "--kind", "head"),
        ("log", HEAD),
        ("diff", HEAD, "digits/right.head"),
        ("check", EXTRACTOR, HEAD),
        ("signatures", HEAD),
        ("policy", "show"),
        ("du",),
        ("index",),
    ],
)
def test_what_a_remote_shows_is_what_its_registry_shows(
    words: tuple[str, ...], run: Any, parts: Path, team: str
):
    local = run("--registry", "away", *words)
    far = run("--registry", "team:", *words)
    assert far.code == local.code, far
    assert team in far.err and team not in local.err
    if words[0] not in ("log", "du", "index"):  # they tell times and places
        assert far.out.replace("team:", "away") == local.out
    assert "/mirrors/" not in far.out + far.err


def test_a_remote_is_named_by_address_and_by_the_environment(
    run: Any, team: str, monkeypatch: pytest.MonkeyPatch
):
    assert HEAD in run("--registry", team, "ls").out
    monkeypatch.setenv("COMPATKIT_REGISTRY", "team:")
    assert HEAD in run("ls").out
    assert run("--registry", "none:", "ls").code == 2


def test_weights_are_loaded_from_a_remote(run: Any, team: str):
    result = run("--registry", "team:", "export", HEAD, "head.safetensors")
    assert result.code == 0, result
    assert Path("head.safetensors").stat().st_size


@pytest.mark.parametrize(
    "words",
    [
        ("alias", HEAD, "prod", "1.0.0"),
        ("withdraw", f"{HEAD}@1.0.0", "--reason", "wrong"),
        ("drop", f"{HEAD}@1.0.0", "--reason", "wrong"),
        ("copy", HEAD, "--as", "other/head"),
        ("pull", "away"),
        ("import", "away"),
        ("verify", "--repair"),
        ("verify", "--from", "away"),
        ("gc",),
        ("gc", "--withdrawn", "--purge", "--delete"),
        ("split", "resnet8_cifar", "--cut", "layer2", "--publish", "a/b"),
    ],
)
def test_commands_that_write_are_refused_with_the_way_that_works(words: tuple[str, ...], run: Any, team: str):
    result = run("--registry", "team:", *words)
    assert result.code == 2, result
    assert "lone" in result.err and "/mirrors/" not in result.out + result.err


def test_settings_of_a_remote_are_changed_in_place(run: Any, team: str):
    result = run("--registry", "team:", "settings", "set", "--protect", "prod")
    assert result.code == 2 and "settings set --remote team:" in result.err


def test_the_disk_usage_of_a_remote_does_not_pass_for_its_size(run: Any, team: str):
    assert "not counted" in run("--registry", "team:", "du").err
    assert "not counted" not in run("--registry", "away", "du").err


def test_errors_name_the_remote_and_not_its_copy(run: Any, team: str):
    result = run("--registry", "team:", "show", "no/such.head")
    assert result.code == 2 and team in result.err and "/mirrors/" not in result.err


def test_a_registry_in_python_is_shown_with_the_address_of_its_remote(run: Any, team: str):
    assert str(ck.Registry("team:")).startswith(f"Registry({team!r})")


def test_a_remote_is_verified(run: Any, team: str):
    result = run("--registry", "team:", "verify", "--json")
    assert result.code == 0 and (result.json["root"], result.json["sound"]) == (team, True)
    assert run("--registry", "team:", "verify", "--download").code == 0
    assert run("--registry", "away", "verify", "--download").code == 2


def test_a_clone_without_weights_says_so_and_loads(run: Any, team: str):
    assert run("clone", "team:", "mine", "--without-weights").code == 0
    assert "weights-remote" in run("--registry", "mine", "verify").out
    assert run("--registry", "mine", "export", HEAD, "head.safetensors").code == 0
    assert run("--registry", "mine", "pull", "team:", "--without-weights").code == 0
    assert run("--registry", "mine", "pull", "team:").code == 0
    assert "weights-remote" not in run("--registry", "mine", "verify").out


@pytest.mark.filterwarnings("default:The figures are not kept")
def test_figures_that_are_measured_on_a_remote_are_not_kept(run: Any, team: str):
    words = ("recombine", EXTRACTOR, "digits/right.head")
    local = run("--registry", "away", *words)
    far = run("--registry", "team:", *words)
    assert far.code == local.code == 0, (local, far)
    assert "not kept" in far.err and "not kept" not in local.err

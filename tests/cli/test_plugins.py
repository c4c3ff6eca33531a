"""Plugins on the command line: whose fault an error is and where, two of one name, the list and one in full."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from distributions import Install, install

__all__ = ["install"]

SOURCE = """
import torch
from compatkit import hookimpl

@hookimpl
def compatkit_regularizers(register):
    register("mine", Mine)

class Mine:
    '''Pulls features to nothing.

    More of it.'''
    @hookimpl
    def compatkit_losses(self, step):
        return self.of(step)

    def of(self, step):
        BODY
"""
Recipe = Callable[..., Path]


@pytest.fixture
def mine(install: Install, recipe: Recipe) -> Callable[[str], Path]:
    """Install a plugin whose loss is computed by a line, and return a recipe that names it."""

    def write(body: str) -> Path:
        install("demo", {"regularizers.mine": "demo_mine"}, {"demo_mine": SOURCE.replace("BODY", body)})
        return recipe(('"identical_init", "dcc"', '"mine"'))

    return write


def test_an_exception_of_a_plugin_names_file_and_line(run: Any, mine: Any, tmp_path: Path) -> None:
    path = mine("return {'x': torch.ones(2) @ torch.ones(3)}")
    output = run("--registry", tmp_path / "parts", "train", path)
    assert output.code == 2 and "Traceback" not in output.err
    assert "[plugin] Plugin 'mine' failed in compatkit_losses: RuntimeError:" in output.err
    assert "demo_mine.py:18)" in output.err
    for words in (("--traceback", "train", path), ("train", path, "--traceback")):
        whole = run("--registry", tmp_path / "parts", *words)
        assert whole.code == 2 and "[plugin] Plugin 'mine' failed" in whole.err
        assert "return {'x': torch.ones(2) @ torch.ones(3)}" in whole.err and "Traceback" in whole.err
    result = run("--registry", tmp_path / "parts", "train", path, "--json", "--traceback")
    assert result.json["error"]["code"] == "plugin" and "demo_mine.py:18)" in result.json["error"]["message"]


@pytest.mark.parametrize(
    ("body", "code", "names"),
    [
        ("return {'x': step.features.mean() * float('nan')}", "training", "plugin 'mine' computed it"),
        ("step.features.mul_(2); return {'x': step.features.mean()}", "plugin", "wrote into step.features"),
        ("step.batch.images.zero_(); return {}", "plugin", "wrote into step.batch.images"),
    ],
)
def test_broken_losses_are_errors_that_name_the_plugin(
    run: Any, mine: Any, tmp_path: Path, body: str, code: str, names: str
) -> None:
    result = run("--registry", tmp_path / "parts", "train", mine(body), "--json").json["error"]
    assert result["code"] == code
    assert "'mine'" in result["message"] and names in result["message"]


def test_a_blocked_distribution_settles_a_clash(
    run: Any, install: Install, mine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = mine("return {'x': step.features.mean()}")
    install("twin", {"regularizers.mine": "twin_mine"}, {"twin_mine": "raise RuntimeError('imported')"})
    words = "--registry", tmp_path / "parts", "train", path, "--explain", "--json"
    refused = run(*words).json["error"]
    assert refused["code"] == "plugin" and "COMPATKIT_DISABLE_PLUGINS=twin" in refused["message"]
    monkeypatch.setenv("COMPATKIT_DISABLE_PLUGINS", "twin")
    assert run(*words).code == 0
    monkeypatch.setenv("COMPATKIT_DISABLE_PLUGINS", "twin,demo")
    assert "blocked by COMPATKIT_DISABLE_PLUGINS" in run(*words).json["error"]["message"]

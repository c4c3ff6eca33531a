"""The name and the folder that the command line gives to a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import compatkit as ck
from compatkit.experiments.recipes import STATE


def test_the_command_names_a_run_after_its_folder(
    run: Any, recipe: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    infos: list[ck.RunInfo] = []
    info = ck.Trainer.info

    def kept(*arguments: Any, **keywords: Any) -> ck.RunInfo:
        infos.append(info(*arguments, **keywords))
        return infos[-1]

    monkeypatch.setattr(ck.Trainer, "info", kept)
    out = tmp_path / "tonight"
    assert run("train", recipe(), "--registry", tmp_path / "parts", "--out", out).code == 0
    assert (infos[0].name, infos[0].folder, infos[0].dry) == ("tonight", out, False) and (
        out / STATE
    ).exists()
    infos.clear()
    assert run("train", recipe(), "--registry", tmp_path / "parts", "--explain").code == 0
    assert infos[0].dry and infos[0].folder is None

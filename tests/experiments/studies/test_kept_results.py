"""Kept results are found and continued by the commands that their tables print, whatever settings were called then."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import attrs
import pytest

from compatkit.experiments.studies import records
from compatkit.experiments.studies import run as carry_out
from compatkit.experiments.studies.finding import find, read_changes, settings_of

RESULTS = Path(__file__).parents[3] / "docs" / "results"


def command_of(folder: Path) -> tuple[str, dict[str, str], list[str]]:
    """Return the number, options and changed settings of the command that a table prints."""
    printed = re.search(r"^    compatkit study run (.*)$", (folder / "table.md").read_text(), re.MULTILINE)
    assert printed is not None
    number, *words = shlex.split(printed[1])
    pairs = list(zip(words[::2], words[1::2], strict=True))
    return number, dict(pairs), [value for name, value in pairs if name == "--set"]


def test_every_kept_run_has_the_settings_of_the_printed_command() -> None:
    folders = sorted(path.parent for path in RESULTS.rglob(records.FILE))
    differing: dict[str, object] = {}
    for folder in folders:
        number, options, changes = command_of(folder)
        study = find(number)
        settings = settings_of(study, options.get("--size", "cpu"), read_changes(changes))
        plan = {"study": number, "size": options.get("--size", "cpu"), **settings}
        for record in records.read(folder):
            if record.measured and (record.plan != plan or record.arm not in study.study.arms):
                differing[str(folder.relative_to(RESULTS))] = record.arm, record.plan, plan
    assert len(folders) > 90 and not differing


def test_runs_with_former_names_of_settings_are_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both runs are recorded with ``backbone`` and ``split``, and the command says the old names too."""
    plain = next(record for record in records.read(RESULTS / "4.9") if record.arm == "scratch")
    former = {new: old for old, new in records.RENAMED.items()}
    settings = {former.get(name, name): value for name, value in plain.settings.items()} | {
        "backbone": "lenet_5"
    }
    assert {"backbone", "split"} <= settings.keys() and not {"model", "cut"} & settings.keys()
    for seed in (0, 1):
        records.append(tmp_path, attrs.evolve(plain, seed=seed, settings=settings))
    before = (tmp_path / records.FILE).read_bytes()

    def refuse(*args: object) -> None:
        raise AssertionError("a kept run is carried out again")

    monkeypatch.setattr("compatkit.experiments.studies.running.carry_out_run", refuse)
    document = carry_out("4.9", tmp_path, seeds=2, arms=("scratch",), changes={"backbone": "lenet_5"})
    assert (tmp_path / records.FILE).read_bytes() == before
    assert (document["settings"]["model"], document["settings"]["cut"]) == ("lenet_5", "forward_features")
    words = shlex.split(document["command"])
    assert words[words.index("--set") + 1] == 'model="lenet_5"'
    lines = [json.loads(line)["settings"] for line in before.splitlines()]
    assert all("model" not in line and line["backbone"] == "lenet_5" for line in lines)

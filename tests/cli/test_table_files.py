"""--csv and --latex of commands that report: the same rows as Python's, in files."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

import compatkit as ck

LEFT, RIGHT = "digits/left.extractor", "digits/right.extractor"
HEADS = "digits/left.head", "digits/right.head"
PAIR = "--data", "left.npz", "--rungs", "statistics"


@pytest.mark.usefixtures("parts")
@pytest.mark.parametrize(
    ("words", "rows", "expected"),
    [
        (("check", "digits/*.extractor", "*.head"), 4, {"extractor": f"{LEFT}@1.0.0", "wiring": "direct"}),
        (("metric", LEFT, HEADS[0], "accuracy"), 1, {"metric": "accuracy", "status": "ok"}),
        (
            (
                "similarity",
                f"{LEFT}+{HEADS[0]}",
                f"{RIGHT}+{HEADS[1]}",
                "--layers",
                "layer?",
                "--metric",
                "cka",
            ),
            18,
            {"metric": "cka", "this": "layer1", "other": "layer1"},
        ),
        (("bridge", LEFT, HEADS[1], *PAIR), 1, {"extractor": f"{LEFT}@1.0.0", "rung": "statistics"}),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_results_are_written_as_tables(
    run: Any, tmp_path: Path, words: tuple[str, ...], rows: int, expected: dict[str, str]
) -> None:
    files = tmp_path / "rows.csv", tmp_path / "rows.tex"
    result = run(*words, "--csv", files[0], "--latex", files[1])
    assert result.code in (0, 1) and all(f"wrote {file}" in result.out for file in files)
    with open(files[0], newline="") as file:
        read = list(csv.DictReader(file))
    assert len(read) == rows and expected.items() <= read[0].items(), read
    assert r"\toprule" in files[1].read_text()


@pytest.mark.usefixtures("parts")
def test_outcomes_of_policies_of_several_parts_are_one_table(run: Any, parts: Path, tmp_path: Path) -> None:
    for name in (LEFT, RIGHT):
        words = (
            "--mode",
            "backward",
            "--data",
            f"{name[7:-10]}/test",
            "--across-major",
            "--tolerance",
            ".99",
        )
        assert run("policy", "set", name, *words).code == 0
    registry = ck.Registry.open(parts)
    for name, other in ((LEFT, f"{RIGHT}@1.0.0"), (RIGHT, f"{LEFT}@1.0.0")):
        manifest, state = registry.store.manifest(other), registry.load(other).state_dict()
        registry.publish(manifest, name, state=state, version="2.0.0")
    file = tmp_path / "rows.csv"
    result = run("policy", "test", LEFT, RIGHT, "--csv", file, "--latex", tmp_path / "rows.tex", "--json")
    assert result.code == 0
    with open(file, newline="") as opened:
        read = list(csv.DictReader(opened))
    answers = [outcome["answers"][0] for outcome in result.json]
    assert [(row["extractor"], row["head"]) for row in read] == [
        (f"{LEFT}@2.0.0", f"{HEADS[0]}@1.0.0"),
        (f"{RIGHT}@2.0.0", f"{HEADS[1]}@1.0.0"),
    ]
    assert [float(row["accuracy"]) for row in read] == [answer["accuracy"]["accuracy"] for answer in answers]
    assert [row["passed"] for row in read] == ["yes", "yes"]
    assert (tmp_path / "rows.tex").read_text().count("digits/") == 6

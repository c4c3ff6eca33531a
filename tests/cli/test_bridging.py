"""``compatkit bridge``: what each rung gave, for people and programs; what is kept, and what is refused."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

import compatkit as ck

PAIR = ("digits/left.extractor", "digits/right.head")


@pytest.fixture
def work(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the trained registry, which is the current folder's."""
    shutil.copytree(trained, tmp_path / "work")
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("COMPATKIT_REGISTRY", "parts")
    monkeypatch.setenv("COMPATKIT_DATA", str(tmp_path / "work"))
    return tmp_path / "work"


def test_the_ladder_is_told_kept_and_found_again(run: Any, work: Path) -> None:
    asked = ("--data", "left.npz", "--rungs", "statistics,ridge", "--all", "--publish", "pairs/lr")
    said = run("bridge", *PAIR, *asked)
    found = run("bridge", *PAIR, *asked[:-2], "--json").json
    fits = found["says"] != "no fit"
    assert said.code == (0 if fits else 1)
    table = said.out.splitlines()
    assert table[0].split() == ["rung", "agreement", "R2", "accuracy", "images", "seconds"]
    assert [line.split()[0] for line in table[1:3]] == ["statistics", "ridge"]
    chosen = next(one for one in found["steps"] if one["rung"] == found["chosen"])
    assert f"{chosen['agreement']['share']:.3f}" in said.out and chosen["accuracy"]["images"] == 48
    assert found["facts"]["held_out"] == 24 and found["published"] is None
    if fits:
        assert "published recombination pairs/lr@1.0.0" in said.out
        assert ck.Registry.open("parts").manifest("pairs/lr").kind == "recombination"
    else:
        assert "not published: it does not fit" in said.out


@pytest.mark.usefixtures("work")
def test_bad_requests_say_what_to_do(run: Any) -> None:
    said = run("bridge", *PAIR, "--data", "left.npz", "--rungs", "rigde")
    assert said.code == 2 and "Did you mean 'ridge'?" in said.err
    said = run("bridge", *PAIR, "--data", "left.npz", "--on", "dst")
    assert said.code == 2 and "pass head_data=" in said.err
    said = run("bridge", "digits/nobody.extractor", PAIR[1], "--data", "left.npz")
    assert said.code != 0 and "digits/nobody.extractor" in said.err
    assert run("bridge", *PAIR).code == 2


@pytest.mark.usefixtures("work")
def test_a_matrix_is_filled_through_a_rung(run: Any) -> None:
    sides = ("digits/*.extractor", "digits/*.head")
    plain = {(one["extractor"], one["head"]): one for one in run("matrix", *sides, "--json").json["cells"]}
    found = run("matrix", *sides, "--bridge", "ridge", "--json").json["cells"]
    for cell in found:
        same = plain[cell["extractor"], cell["head"]]
        if cell["settings"]["own"]:
            assert "adapters" not in cell["settings"] and cell["restricted"] == same["restricted"]
        else:
            assert "by ridge, fitted on 24 images" in cell["settings"]["adapters"]
            assert cell["restricted"]["count"] == same["restricted"]["count"]
    again = run("matrix", *sides, "--bridge", "ridge")
    assert again.code == 0 and "4 taken from what was measured before, 0 measured now" in again.out
    best = run("matrix", *sides, "--bridge", "best", "--html", "page.html", "--json").json["cells"]
    own = [one for one in best if one["settings"]["own"]]
    told = next(one for one in best if not one["settings"]["own"])["findings"]
    assert any(line.startswith("Bridged by ") for line in told)
    assert any(line.startswith("Rung statistics: agreement") and "accuracy" in line for line in told)
    page = Path("page.html").read_text()
    assert "Bridged by " in page and page.count('<svg class="ladder"') == len(best) - len(own)
    assert run("matrix", *sides, "--fill", "none", "--json").json["cells"] == list(plain.values())
    said = run("matrix", *sides, "--bridge", "finetune")
    assert said.code == 2 and "puts no adapter between the parts" in said.err
    said = run("matrix", *sides, "--bridge", "ridge", "--fill", "none")
    assert said.code == 2 and "--fill none does not read" in said.err

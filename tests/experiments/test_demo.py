"""The demo with very few steps: what it makes, and that it says plainly what it found and where it wrote."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest
from markupsafe import escape
from small import data_set

from compatkit.cli import main
from compatkit.experiments import demo
from compatkit.registry.store import Store
from compatkit.reports.matrix import Matrix

ARMS = ["none", "iiw", "iiw-dcc"]


@pytest.fixture(scope="module")
def messages() -> list[str]:
    return []


@pytest.fixture(scope="module")
def demo_run(tmp_path_factory: pytest.TempPathFactory, messages: list[str]) -> demo.Demo:
    """One run with all arms, on small data and a small network: the demo's own are tested elsewhere."""
    sets = {name: data_set(name, count=64, seed=seed) for seed, name in enumerate(demo.DOMAINS.values())}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "load", lambda name: sets[name])
        patch.setattr(demo, "MODEL", "resnet8_cifar")
        folder = tmp_path_factory.mktemp("demo") / "out"
        return demo.run(folder, steps=1, say=messages.append, progress=False)


def test_every_arm_is_published_and_measured(demo_run: demo.Demo, messages: list[str]) -> None:
    names = Store.open(demo_run.files["registry"]).names()
    assert {name.split("/")[1] for name in names} == set(ARMS)
    shared = [name for name in names if "shared." in name]
    assert shared == ["demo/iiw-dcc/shared.dcc"]
    assert (
        len(demo_run.matrix.extractors) == len(demo_run.matrix.heads) == 6
        and len(demo_run.matrix.cells) == 36
    )
    assert list(demo_run.own) == list(demo_run.recombined) == ARMS
    html = demo_run.files["html"].read_text()
    assert (
        html.startswith("<!doctype html>") and f"<h1>{demo.HEADLINE.replace(chr(39), '&#39;')}</h1>" in html
    )
    assert str(escape(demo_run.finding)) in html
    assert demo_run.files["png"].read_bytes().startswith(b"\x89PNG")
    assert [line.split(":")[0] for line in messages if "training 2 networks" in line] == [
        f"arm {arm}" for arm in ARMS
    ]


def test_the_means_are_of_the_arms_own_cells(demo_run: demo.Demo) -> None:
    cells = {(cell.extractor, cell.head): cell.restricted for cell in demo_run.matrix.cells}

    def accuracy(arm: str, extractor: str, head: str) -> float:
        figure = cells[f"demo/{arm}/{extractor}.extractor@1.0.0", f"demo/{arm}/{head}.head@1.0.0"]
        assert figure is not None
        return figure.accuracy

    for arm in ARMS:
        own = [accuracy(arm, name, name) for name in demo.DOMAINS]
        crossed = [accuracy(arm, "handwritten", "typeset"), accuracy(arm, "typeset", "handwritten")]
        assert demo_run.own[arm] == sum(own) / 2 and demo_run.recombined[arm] == sum(crossed) / 2


@pytest.mark.parametrize(
    ("recombined", "shows"),
    [
        ({"none": 0.1, "iiw": 0.3, "iiw-dcc": 0.8}, True),
        ({"none": 0.1, "iiw": 0.8, "iiw-dcc": 0.3}, False),
        ({"none": 0.3, "iiw": 0.3, "iiw-dcc": 0.8}, False),
    ],
)
def test_the_effect_shows_only_where_every_arm_is_better_than_the_one_before(
    recombined: Mapping[str, float], shows: bool
) -> None:
    assert demo.Demo(recombined, recombined, Matrix((), (), ()), {}).shows is shows


@pytest.mark.parametrize("shows", [True, False])
def test_the_command_says_what_it_found_and_where_it_wrote(
    demo_run: demo.Demo, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, shows: bool
) -> None:
    figures = {"none": 0.1, "iiw": 0.4, "iiw-dcc": 0.8 if shows else 0.2}
    request: list[Any] = []

    def run(*words: Any, **settings: Any) -> demo.Demo:
        request.append((words, settings["steps"], settings["seed"]))
        return attrs.evolve(demo_run, recombined=figures)

    monkeypatch.setattr(demo, "run", run)
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit) as end:
        main(["demo", "--out", "somewhere", "--steps", "7", "--seed", "2"])
    out = capsys.readouterr().out
    assert end.value.code == 0 and request == [((Path("somewhere"),), 7, 2)]
    text = " ".join(out.split())
    assert ("does NOT show" in text) is not shows
    assert (f"they reach 0.80 of {demo_run.own['iiw-dcc']:.2f}" in text) is shows
    rows = [line.split() for line in out.splitlines() if line.split()[:1] == ["iiw-dcc"]]
    assert rows == [["iiw-dcc", f"{demo_run.own['iiw-dcc']:.3f}", f"{figures['iiw-dcc']:.3f}"]]
    assert all(str(path) in out for path in demo_run.files.values())
    assert max(map(len, out.splitlines())) <= 130

    with pytest.raises(SystemExit):
        main(["demo", "--json"])
    value = json.loads(capsys.readouterr().out)
    assert value["effect_shows"] is shows and value["recombined"] == figures
    assert value["files"] == {name: str(path) for name, path in demo_run.files.items()}


def test_a_folder_that_cannot_be_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(SystemExit) as end:
        main(["demo", "--out", str(tmp_path / "file"), "--steps", "1"])
    assert end.value.code == 4 and "error [environment]" in capsys.readouterr().err

"""``compatkit bridge``: what each rung gave, for people and programs; what is kept, and what is refused."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
from small import data_set, write_pack

import compatkit as ck
from compatkit.components.bridges import building, inputs
from compatkit.components.bridges.published import Bridges
from compatkit.errors import EnvironmentFailure

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
    arguments = ("--data", "left.npz", "--rungs", "statistics,ridge", "--all", "--publish", "pairs/lr")
    result = run("bridge", *PAIR, *arguments)
    document = run("bridge", *PAIR, *arguments[:-2], "--json").json
    fits = document["says"] == "fit"
    assert result.code == (0 if fits else 1)
    table = result.out.splitlines()
    assert table[0].split() == ["rung", "agreement", "kappa", "R2", "accuracy", "images", "seconds"]
    assert [line.split()[0] for line in table[1:3]] == ["statistics", "ridge"]
    chosen = next(step for step in document["steps"] if step["rung"] == document["chosen"])
    assert f"{chosen['agreement']['share']:.3f}" in result.out and chosen["accuracy"]["images"] == 48
    assert document["facts"]["held_out"] == 24 and document["published"] is None
    if fits:
        assert "published recombination pairs/lr@1.0.0" in result.out
        assert ck.Registry.open("parts").store.manifest("pairs/lr").kind == "recombination"
    else:
        assert "not published: " in result.out


@pytest.mark.usefixtures("work")
def test_bad_requests_say_what_to_do(run: Any) -> None:
    result = run("bridge", *PAIR, "--data", "left.npz", "--rungs", "rigde")
    assert result.code == 2 and "Did you mean 'ridge'?" in result.err
    result = run("bridge", *PAIR, "--data", "left.npz", "--on", "dst")
    assert result.code == 2 and "pass head_data=" in result.err
    result = run("bridge", "digits/nobody.extractor", PAIR[1], "--data", "left.npz")
    assert result.code != 0 and "digits/nobody.extractor" in result.err
    assert run("bridge", *PAIR).code == 2


@pytest.mark.parametrize(
    ("name", "taken", "kind"),
    [
        ("digits/left.extractor", "digits/left.extractor", "recombination"),
        ("pairs/lr", "pairs/lr.adapter", "adapter"),
        ("pairs/lr", "pairs/lr.head", "head"),
    ],
)
def test_a_name_of_another_kind_is_refused_before_any_work(
    run: Any, work: Path, monkeypatch: pytest.MonkeyPatch, name: str, taken: str, kind: str
) -> None:
    registry = ck.Registry.open("parts")
    if taken not in registry.store.names():
        old = registry.store.manifest("digits/left.extractor")
        registry.publish(old, taken, state=registry.store.load_state(old))
    monkeypatch.setattr(ck.Registry, "bridge", lambda *args, **kwargs: pytest.fail("it was climbed first"))
    before = registry.store.names()
    result = run("bridge", *PAIR, "--data", "left.npz", "--publish", name)
    text = " ".join(result.err.split())
    assert result.code == 2 and registry.store.names() == before
    assert f"{taken}@1.0.0 is of kind extractor, and this would be of kind {kind}" in text
    assert "Choose another name" in text and registry.store.resolve(taken).version is not None


@pytest.mark.usefixtures("work")
def test_a_bridge_is_published_again_as_the_same_version(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its record holds the seconds of the fit: here both take none."""
    for module in (building, inputs):
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: 0.0))
    arguments = ("--data", "left.npz", "--rungs", "direct", "--publish", "pairs/lr", "--json")
    monkeypatch.setattr("compatkit.components.bridges.judging.Judgment.verdict", "fit")
    first = run("bridge", *PAIR, *arguments)
    again = run("bridge", *PAIR, *arguments)
    assert again.code == first.code and again.json["published"] == first.json["published"]


@pytest.mark.usefixtures("work")
def test_a_matrix_is_filled_through_a_rung(run: Any) -> None:
    sides = ("digits/*.extractor", "digits/*.head")
    plain = {
        (entry["extractor"], entry["head"]): entry for entry in run("matrix", *sides, "--json").json["cells"]
    }
    result = run("matrix", *sides, "--bridge", "ridge", "--json").json["cells"]
    for cell in result:
        same = plain[cell["extractor"], cell["head"]]
        if cell["settings"]["own"]:
            assert "adapters" not in cell["settings"] and cell["restricted"] == same["restricted"]
        else:
            assert "by ridge, fitted on 24 images" in cell["settings"]["adapters"]
            assert cell["restricted"]["count"] == same["restricted"]["count"]
    again = run("matrix", *sides, "--bridge", "ridge")
    assert again.code == 0 and "4 taken from recorded results, 0 measured now" in again.out
    assert "bridge ridge in 2 cells" in again.out and "bridge" not in run("matrix", *sides).out
    best = run("matrix", *sides, "--bridge", "best", "--html", "page.html", "--json").json["cells"]
    own = [row for row in best if row["settings"]["own"]]
    message = next(row for row in best if not row["settings"]["own"])["findings"]
    assert any(line.startswith("Bridged by ") for line in message)
    assert any(line.startswith("Rung statistics: agreement") and "accuracy" in line for line in message)
    page = Path("page.html").read_text()
    assert "Bridged by " in page and page.count("<h3>Ladder of bridges</h3>") == len(best) - len(own)
    assert run("matrix", *sides, "--fill", "none", "--json").json["cells"] == list(plain.values())
    output = run("matrix", *sides, "--bridge", "finetune")
    assert output.code == 2 and "The rung finetune needs labels" in output.err
    output = run("matrix", *sides, "--bridge", "ridge", "--bn-policy", "running", "--data", "nowhere")
    assert output.code == 2 and "A bridge to " in output.err and "Use bn_policy 'batch' or" in output.err
    output = run("matrix", *sides, "--bridge", "ridge", "--fill", "none")
    assert output.code == 2 and "--bridge needs images to fit on" in output.err


def test_test_images_that_nobody_named_are_left_out_where_the_head_does_not_know_their_classes(
    run: Any, work: Path
) -> None:
    write_pack(work, data_set("letters", classes=("a", "b", "c")))
    arguments = ("--rungs", "statistics,ridge", "--all", "--json")
    known = run("bridge", *PAIR, "--data", "left", *arguments)
    assert known.json["steps"][0]["accuracy"] is not None and "warning" not in known.err
    other = run("bridge", *PAIR, "--data", "letters", *arguments)
    assert (
        other.code in (0, 1)
        and "accuracy is not measured: digits/right.head has no class of letters/test" in other.err
    )
    assert all(step["accuracy"] is None for step in other.json["steps"])
    assert all(step["agreement"]["images"] == 24 for step in other.json["steps"])
    registry = ck.Registry.open("parts")
    names = registry.store.manifest("digits/right.head")
    contract = attrs.evolve(names.contract, data=attrs.evolve(names.contract.data, labels=None))
    nameless = attrs.evolve(names, contract=contract)
    registry.publish(nameless, "digits/bare.head", state=registry.store.load_state(names))
    bare = run("bridge", PAIR[0], "digits/bare.head", "--data", "left", *arguments)
    assert "accuracy is not measured: digits/bare.head has no class names" in bare.err
    assert "--test" not in bare.err  # no test images could measure it
    tested = run("bridge", PAIR[0], "digits/bare.head", "--data", "left", "--test", "left")
    assert tested.code == 2 and "has no class names" in tested.err
    for step, same in zip(bare.json["steps"], known.json["steps"], strict=True):
        assert step["accuracy"] is None and step["agreement"] == same["agreement"]
    refused = run("bridge", *PAIR, "--data", "letters", "--test", "letters")
    assert refused.code == 2 and "none in common" in refused.err


@pytest.mark.usefixtures("work")
def test_bridges_are_fitted_for_the_rows_and_columns_of_the_matrix(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    fitted: list[tuple[str, str]] = []
    whole = Bridges.between

    def noted(*args: Any, **kwargs: Any) -> Any:
        result = whole(*args, **kwargs)
        fitted[:] = result
        return result

    monkeypatch.setattr(Bridges, "between", noted)
    left, right = "digits/left.extractor@1.0.0", "digits/right.head@1.0.0"
    result = run("matrix", "digits/*", "digits/*", "--bridge", "ridge", "--json")
    assert result.code == 0 and len(result.json["cells"]) == 4
    assert set(fitted) == {(left, right), ("digits/right.extractor@1.0.0", "digits/left.head@1.0.0")}
    narrow = run("matrix", "digits/left*", "digits/right.head", "--bridge", "ridge", "--json")
    assert len(narrow.json["cells"]) == 1 and fitted == [(left, right)]
    shared = run("matrix", "digits/*", "digits/shared.dcc", "--bridge", "ridge", "--json")
    assert shared.code == 0 and len(shared.json["cells"]) == 2 and not fitted
    assert "digits/shared.dcc@1.0.0 has no bridge: a shared head" in shared.err
    monkeypatch.setattr(Bridges, "between", lambda *args, **kwargs: pytest.fail("fitted first"))
    nothing = run("matrix", "digits/*", "digits/*", "--bridge", "ridge", "--where", "model=vgg*")
    assert nothing.code == 2 and "Unknown filter 'model'" in nothing.err


def test_show_tells_how_a_kept_bridge_was_fitted_and_how_well_it_does(run: Any, work: Path) -> None:
    registry = ck.Registry.open("parts")
    bridge = registry.bridge(*PAIR, ck.data.load("left").train, rungs=["ridge"])
    published = registry.publish(bridge, "pairs/lr")
    facts = registry.store.manifest("pairs/lr.adapter").training
    text = " ".join(run("show", published["adapter"]).out.split())
    left = f"{facts['residual']:.1%} of the variance left"
    assert f"fitted by ridge, on 24 images, in {facts['seconds']:.2f} s, {left}" in text
    share = f"{bridge.agreement.accuracy:.3f} with the head's own network on 24 held-out images"
    assert f"agreement {share}" in text
    assert "agreement" not in run("show", PAIR[0]).out


@pytest.mark.usefixtures("work")
def test_a_doubtful_bridge_is_published_only_when_told(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compatkit.components.bridges.judging.Judgment.verdict", "doubtful")
    arguments = ("bridge", *PAIR, "--data", "left.npz", "--rungs", "direct")
    output = run(*arguments, "--publish", "pairs/doubted")
    assert output.code == 1 and "--accept-doubtful" in output.out
    assert run(*arguments, "--publish", "pairs/doubted", "--json").json["published"] is None
    assert "pairs/doubted" not in ck.Registry.open("parts").store.names()
    assert run(*arguments).code == 0  # only looked at
    result = run(*arguments, "--publish", "pairs/doubted", "--accept-doubtful")
    assert result.code == 0 and "published recombination pairs/doubted@1.0.0" in result.out
    alone = run(*arguments, "--accept-doubtful")
    assert alone.code == 2 and "--publish" in alone.err


def test_the_rung_of_the_page_runs_as_the_page_says(run: Any, work: Path) -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "how_to" / "plugins" / "rungs.md").read_text()
    (text,) = re.findall(r"^```python\n(# rescaled\.py\n.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (work / "rescaled.py").write_text(text)
    arguments = ("--data", "left.npz", "--rungs", "direct,rescaled", "--all", "--json")
    result = run("--plugin", "rescaled.py", "bridge", *PAIR, *arguments)
    assert result.code in (0, 1), result.err
    rescaled = result.json["steps"][1]
    assert rescaled["rung"] == "rescaled" and rescaled["agreement"]["images"] == 24


@pytest.mark.usefixtures("work")
def test_sets_are_bridged_published_and_taken_the_next_time(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    sets = (
        "digits/*.extractor",
        "digits/*.head",
        "--rungs",
        "ridge",
        "--publish",
        "pairs",
        "--accept-doubtful",
    )
    result = run("bridge", *sets, "--json")
    rows = result.json["pairs"]
    assert result.code == 0 and [(row["extractor"], row["head"]) for row in rows] == [
        ("digits/left.extractor@1.0.0", "digits/right.head@1.0.0"),
        ("digits/right.extractor@1.0.0", "digits/left.head@1.0.0"),
    ]
    names = ["pairs/digits.left--digits.right", "pairs/digits.right--digits.left"]
    assert [row["published"] for row in rows] == [f"{name}@1.0.0" for name in names]
    monkeypatch.setattr(building, "bridge_pair", lambda *_: pytest.fail("made again"))
    again = run("bridge", *sets)
    assert again.code == 0 and "2 pairs bridged" in again.out and "2 published" in again.out
    lines = [line.split() for line in again.out.splitlines()]
    assert lines[0] == ["extractor", "head", "rung", "verdict", "agreement", "kappa", "accuracy", "published"]
    assert [line[-1] for line in lines[1:3]] == [f"{name}@1.0.0" for name in names]
    assert float(lines[1][-4]) == round(rows[0]["agreement"], 3) and 0 <= rows[0]["accuracy"] <= 1
    matrix = run("matrix", *sets[:2], "--bridge", "ridge", "--json")
    assert matrix.code == 0 and matrix.json["settings"]["cells"] == {"taken": 0, "measured": 4}


@pytest.mark.usefixtures("work")
def test_processes_bridge_and_measure_the_pairs_of_a_matrix(run: Any) -> None:
    sets = ("digits/*.extractor", "digits/*.head")
    here = run("matrix", *sets, "--bridge", "best", "--json").json["cells"]
    Path("parts/evidence").rename("measured-here")
    there = run("matrix", *sets, "--bridge", "best", "--workers", "2", "--json")
    assert there.code == 0 and there.json["settings"]["cells"] == {"taken": 0, "measured": 4}
    for cell, same in zip(there.json["cells"], here, strict=True):
        assert cell["restricted"] == same["restricted"] and cell["settings"] == same["settings"]


@pytest.mark.usefixtures("work")
@pytest.mark.filterwarnings("always::UserWarning")
def test_a_pair_whose_process_died_is_told_with_the_exit_code(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answers(self: Any, work: Any, jobs: list[str], labels: list[str]) -> Any:
        for position, (job, label) in enumerate(zip(jobs, labels, strict=True)):
            yield (
                position,
                EnvironmentFailure("SIGKILL") if label.endswith("+ digits/right.head") else work(job),
            )

    monkeypatch.setattr("compatkit.plugins.launching.Launcher.answers", answers)
    sets = ("digits/*.extractor", "digits/*.head")
    result = run("bridge", *sets, "--rungs", "ridge", "--workers", "2", "--json")
    assert result.code == 1 and "digits/right.head@1.0.0 was not bridged: SIGKILL" in result.err
    assert [row["reason"] for row in result.json["pairs"]] == [None, "SIGKILL"]
    matrix = run("matrix", *sets, "--bridge", "ridge", "--workers", "2", "--json")
    assert matrix.code == 1 and len(matrix.json["cells"]) == 4
    assert "digits/right.head@1.0.0 was not bridged: SIGKILL" in matrix.err


@pytest.mark.usefixtures("work")
@pytest.mark.parametrize(
    ("words", "subject"),
    [
        (("digits/*.extractor", PAIR[1], "--labels", "left"), "--labels"),
        (("digits/*.extractor", PAIR[1], "--all"), "--all"),
        (("digits/*.extractor", PAIR[1], "--png", "ladder.png"), "--png"),
        (("digits/*.extractor", PAIR[1], "--tag", "a=b"), "--tag"),
        (("digits/*.extractor", PAIR[1], "--until", ".5"), "--until"),
        (("digits/*.extractor", PAIR[1], "--rungs", "ridge,stitch"), "--rungs"),
        ((*PAIR, "--data", "left", "--workers", "2"), "--workers"),
        ((*PAIR, "--data", "left", "--cluster", "ray://head:1"), "--cluster"),
        (PAIR, "--data"),
    ],
)
def test_options_of_one_pair_and_of_sets_are_told_apart(
    run: Any, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], subject: str
) -> None:
    monkeypatch.setattr(Bridges, "between", lambda *_, **__: pytest.fail("bridged first"))
    result = run("bridge", *words)
    assert result.code == 2 and subject in result.err

"""Arms of the user: how they are written, what is refused before anything is trained, and what the results say."""

from __future__ import annotations

import io
import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from small import data_set, write_pack

import compatkit as ck
from compatkit.errors import FormatError, PluginError, UnknownName, UsageError
from compatkit.experiments.studies import find, numbers, read
from compatkit.experiments.studies import run as carry_out
from compatkit.experiments.studies.arms import Arm, arms_of

TINY = {"model": "resnet8_cifar", "train": 24, "test": 24, "steps": 1, "batch_size": 8, "test_batch": 24}

PLUGIN = '''
"""Pulls the mean of the features to a value."""

from compatkit import hookimpl

compatkit_api = 1


class Centered:
    def __init__(self, to: float = 0.0, words: tuple = ()):
        self.to = to

    @hookimpl
    def compatkit_losses(self, step):
        return {"centered": (step.features.mean() - self.to).square()}


@hookimpl
def compatkit_regularizers(register):
    register("centered", Centered)
'''


@pytest.fixture
def centered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    file = tmp_path / f"centered_{tmp_path.name}.py"
    file.write_text(PLUGIN)
    monkeypatch.setenv("COMPATKIT_PLUGIN_FILES", str(file))
    yield file
    sys.modules.pop(file.stem, None)


@pytest.fixture(scope="module")
def packs(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("packs")
    for seed, name in enumerate(("mnist", "usps")):
        write_pack(folder, data_set(name, classes=tuple("0123456789"), size=(16, 16), count=40, seed=seed))
    return str(folder)


def test_a_comma_separates_arms_a_plus_plugins_and_a_colon_settings(centered: Path) -> None:
    text = 'dcc,none,mine=dcc+centered:weight=.01:to=1e+2:words=["a,b","c:d+e"], other = l2_sp:alpha=3e-1 '
    first, second, mine, other = arms_of(find("3.1"), [text])
    assert (first, second) == (Arm("none", "none"), Arm("dcc", "dcc"))  # in the study's order
    assert (mine.name, mine.base) == ("mine", "none")
    assert mine.added == (
        ck.use("dcc"),
        ck.use("centered", weight=0.01, to=100.0, words=["a,b", "c:d+e"]),
    )
    assert mine.versions[0].startswith("compatkit ") and mine.versions[1].startswith(
        f"{centered.name} sha256-"
    )
    assert other.added == (ck.use("l2_sp", alpha=0.3),)
    again = arms_of(find("3.1"), [mine.text])
    assert again == (mine,)
    assert (
        arms_of(find("3.1"), [{"mine": ["dcc", {"name": "centered", "weight": 0.01, "to": 100.0}]}])[0].name
        == "mine"
    )


def test_a_plugin_may_be_named_with_its_package_and_an_instance() -> None:
    (arm,) = arms_of(find("3.1"), ["mine=compatkit:dcc:as=second:start=5"])
    assert arm.added == (ck.use("compatkit:dcc", as_="second", start=5),)
    assert arms_of(find("3.1"), [arm.text]) == (arm,)


@pytest.mark.parametrize(
    ("text", "error", "subject"),
    [
        ("non", UsageError, "non"),
        ("mine=dc", UnknownName, None),
        ("mine=dcc:weights=1", PluginError, None),
        ("mine=dcc:weight=-1", PluginError, None),
        ("mine=dcc:weight", UnknownName, None),
        ("mine=dcc:weight=1:steps", UsageError, "mine"),
        ("mine=dcc:weight=1:weight=2", UsageError, "mine"),
        ("mine=", UsageError, "mine"),
        ("mine=dcc+dcc", PluginError, None),
        ("Mine=dcc", UsageError, "Mine"),
        ("none=dcc", UsageError, "none"),
        ("mine=dcc,mine=l2_sp", UsageError, "mine"),
        (3, UsageError, None),
        ({"mine": "dcc"}, UsageError, "mine"),
        ({"mine": []}, UsageError, "mine"),
    ],
    ids=repr,
)
def test_a_wrong_arm_is_refused_before_anything_is_trained(
    text: Any, error: type[Exception], subject: str | None, tmp_path: Path
) -> None:
    with pytest.raises(error) as raised:
        carry_out("3.1", tmp_path / "out", arms=[text], seeds=1)
    if subject is not None:
        assert raised.value.subject == subject  # type: ignore[attr-defined]
    assert not (tmp_path / "out").exists()


def test_a_name_that_is_nearly_right_is_suggested() -> None:
    with pytest.raises(UsageError, match="Did you mean 'iiw"):
        arms_of(find("3.1"), ["iw"])
    with pytest.raises(UnknownName, match=r"Arm mine: .*'dcc'"):
        arms_of(find("3.1"), ["mine=dc"])


def test_each_study_takes_arms_of_others_or_says_why_not() -> None:
    takes = set()
    for number in numbers():
        installed = find(number)
        try:
            (arm,) = arms_of(installed, ["mine=dcc"])
        except UsageError as refusal:
            assert refusal.subject == "mine" and installed.study.extends is None
        else:
            assert arm.base == installed.study.extends
            takes.add(number)
    assert takes == {
        *("0.1", "0.1b", "0.2", "0.3", "0.4", "0.6", "0.7"),
        *("3.1", "3.1b", "3.5", "3.6", "3.12", "tuning"),
    }


def test_an_arm_is_the_baseline_with_its_plugins_and_the_results_say_so(
    centered: Path, packs: str, tmp_path: Path
) -> None:
    pandas = pytest.importorskip("pandas")
    out = tmp_path / "out"
    settings: dict[str, Any] = {"data": packs, "seeds": 1, "changes": TINY}
    document = carry_out(
        "3.1", out, arms=["none,mine=centered:weight=0,far=centered:to=50:weight=100"], **settings
    )
    by_arm = {
        arm: {row["metric"]: row["values"] for row in document["results"] if row["arm"] == arm}
        for arm in ("none", "mine", "far")
    }
    assert by_arm["mine"] == by_arm["none"]  # weight 0 is left out: the same run bit by bit
    assert by_arm["far"] != by_arm["none"]
    assert document["own_arms"]["far"][0] | {"version": ""} == {
        "name": "centered",
        "weight": 100.0,
        "to": 50,
        "version": "",
    }
    assert "far is not an arm of the study" in " ".join(document["notes"])
    assert "far (not the study's)" in (out / "table.md").read_text()
    words = shlex.split(document["command"])
    assert arms_of(find("3.1"), [words[words.index("--arms") + 1]])[-1].name == "far"

    before = (out / "runs.jsonl").read_bytes()
    assert carry_out("3.1", out, arms=["none", {"mine": [ck.use("centered", weight=0)]}], **settings)[
        "results"
    ]
    assert (out / "runs.jsonl").read_bytes() == before  # nothing is repeated
    with pytest.raises(UsageError) as other:
        carry_out("3.1", out, arms=["mine=centered:weight=2"], **settings)
    assert other.value.subject == "mine"

    frame = carry_out("3.1", out, arms=["none,mine=centered:weight=0"], **settings).to_dataframe()
    assert list(frame["arm"].unique()) == ["none", "mine"]
    table = pandas.read_csv(io.StringIO(read(out).to_csv()))
    assert table["value"].tolist() == frame["value"].tolist()  # all digits
    assert set(table["own_arm"]) == {"no", "yes"}


def test_results_of_a_folder_are_one_figure_a_row_and_a_latex_table_of_means(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    document = {
        "schema": 1,
        "study": "9",
        "size": "cpu",
        "seeds": [0, 1],
        "seconds": {"a_b%": [1.5, 2.5]},
        "results": [
            {"arm": "a_b%", "metric": "loss", "unit": "nats", "values": [1 / 3, None]},
            {"arm": "a_b%", "metric": "own", "unit": "1", "values": [0.25, 0.75]},
        ],
    }
    (tmp_path / "results.json").write_text(json.dumps(document))
    results = read(tmp_path)
    frame = results.to_dataframe()
    assert frame[["arm", "seed", "metric", "unit"]].values.tolist() == [
        ["a_b%", 0, "loss", "nats"],
        ["a_b%", 1, "loss", "nats"],
        ["a_b%", 0, "own", "1"],
        ["a_b%", 1, "own", "1"],
    ]
    assert frame["value"].tolist()[0] == 1 / 3 and frame["value"].isna().tolist() == [
        False,
        True,
        False,
        False,
    ]
    latex = results.to_latex()
    assert r"a\_b\%" in latex and "loss (nats)" in latex and "0.500" in latex


@pytest.mark.parametrize(
    "content",
    [
        None,
        "[]",
        "{}",
        '{"schema": 2}',
        '{"schema": 1, "results": 3, "seeds": [], "seconds": {}, "study": "", "size": ""}',
    ],
)
def test_a_folder_without_whole_results_is_refused(content: str | None, tmp_path: Path) -> None:
    if content is None:
        with pytest.raises(UsageError) as missing:
            read(tmp_path)
        assert missing.value.subject == tmp_path
        return
    (tmp_path / "results.json").write_text(content)
    with pytest.raises(FormatError) as error:
        read(tmp_path)
    assert error.value.subject == tmp_path / "results.json"

"""Study 3.1: arms, the pairs of domains, and figures that can be checked by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from small import data_set, quick, write_pack

import compatkit as ck
from compatkit.errors import UsageError
from compatkit.experiments.studies import Run, find
from compatkit.experiments.studies import run as carry_out
from compatkit.experiments.studies.finding import settings_of
from compatkit.experiments.studies.records import read
from compatkit.experiments.studies.runs import StudyData
from compatkit_studies import _pairs, recombination
from compatkit_studies._pairs import COMBINATIONS, ORDERS, measure, ordered, tasks_of, uses_of, values_of
from compatkit_studies.recombination import train

RESULTS = Path(__file__).parents[3] / "docs" / "results"
TINY = {"model": "resnet8_cifar", "train": 48, "test": 48, "steps": 2, "batch_size": 8}


def tasks() -> list[ck.Task]:
    return [
        ck.Task(name, data_set(name, seed=seed), "resnet8_cifar", "layer2", size=(16, 16))
        for seed, name in enumerate(("left", "right"))
    ]


def run_of(arm: str, **changes: Any) -> Run:
    return Run("3.1", arm, 0, settings_of(find("3.1"), "cpu", changes), StudyData("3.1"))


def cell(extractor: str, head: str, accuracy: float, policy: str = "batch") -> dict[str, Any]:
    return {"extractor": extractor, "head": head, "policy": policy, "accuracy": accuracy, "chance": 0.1}


def test_every_arm_names_the_plugins_it_says() -> None:
    turned = ck.use("rotation_prediction", half_turn="rotate", views="mixed")
    equal = ck.use("identical_init", class_layer="identical")
    assert {arm: uses_of(run_of(arm), arm) for arm in COMBINATIONS} == {
        "none": [],
        "iiw": [equal],
        "rp": [turned],
        "dcc": ["dcc"],
        "iiw+rp": [equal, turned],
        "iiw+dcc": [equal, "dcc"],
        "rp+dcc": [turned, "dcc"],
        "iiw+rp+dcc": [equal, turned, "dcc"],
    }


@pytest.mark.parametrize("arm", ["none", "incremental-back", "incremental-batch", "upper-bound"])
def test_an_arm_is_trained_published_and_measured_under_every_policy(arm: str) -> None:
    run = run_of(arm, steps=1, batch_size=8)
    rows = measure(run, train(run, tasks()), tasks())
    assert [(row["extractor"], row["head"]) for row in rows[:4]] == [
        ("left", "left"),
        ("left", "right"),
        ("right", "left"),
        ("right", "right"),
    ]
    assert {(row["extractor"], row["head"], row["policy"]) for row in rows} == {
        (left, right, policy)
        for left in ("left", "right")
        for right in ("left", "right")
        for policy in ("batch", "reestimate", "running")
    }


def test_the_upper_bound_is_two_runs_with_rotation_heads_of_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At a rate of 1e-30 what is compared is what the networks started from."""
    for module in (_pairs, recombination):
        monkeypatch.setattr(module, "trainer_of", lambda run: quick(steps=1, lr=1e-30))
    first, other = train(run_of("upper-bound"), tasks())
    assert (list(first.tasks), list(other.tasks)) == (["left"], ["right"])
    assert list(first.auxiliary) == list(other.auxiliary) == ["rotation"]
    assert first.tasks["left"].initial != other.tasks["right"].initial
    heads = [dict(fit.auxiliary["rotation"].module.named_parameters()) for fit in (first, other)]
    assert not any(
        torch.allclose(value, heads[1][name], atol=1e-6)
        for name, value in heads[0].items()
        if value.ndim > 1  # scales and shifts start at 1 and 0 everywhere
    )


@pytest.mark.parametrize(
    ("folder", "size", "classes"),
    [
        ("digits", "cpu", "rolled"),
        ("digits-exchanged", "cpu", "exchanged"),
        ("digits-own", "cpu", "own"),
        ("halves-own", "halves", "own"),
    ],
)
def test_runs_that_are_shown_are_runs_of_the_study_as_it_is(folder: str, size: str, classes: str) -> None:
    """So that the same command goes on from them."""
    records = read(RESULTS / folder)
    result = find("3.1")
    settings = settings_of(result, size, {"classes": classes})
    assert records
    for record in records:
        assert (record.study, record.size, record.settings) == ("3.1", size, settings)
        assert record.arm in result.study.arms


def test_values_are_means_of_both_directions() -> None:
    cells = [cell("a", "a", 0.9), cell("b", "b", 1.0), cell("a", "b", 0.5), cell("b", "a", 0.7)]
    for policy, (value, other) in {"running": (0.2, 0.4), "reestimate": (0.3, 0.5)}.items():
        cells += [cell("a", "a", 0.0, policy), cell("a", "b", value, policy), cell("b", "a", other, policy)]
    assert values_of(cells) == pytest.approx(
        {
            "own": 0.95,
            "recombined": 0.6,
            "one-way": 0.5,
            "other-way": 0.7,
            "reestimated": 0.4,
            "running": 0.3,
            "chance": 0.1,
        }
    )
    largest = {("a", "b"): 0.4, ("b", "a"): 0.5}
    for value in cells:
        value["all_outputs"] = largest.get((value["extractor"], value["head"]), 1.0)
    assert values_of(cells)["all-outputs"] == pytest.approx(0.45)


def test_a_pair_that_is_none_is_refused() -> None:
    with pytest.raises(UsageError, match="'pair' must be digits, objects or halves; got 'letters'"):
        tasks_of(run_of("none", pair="letters"))


def test_classes_of_the_second_set_stand_at_the_rows_that_the_order_says() -> None:
    """Ten classes as CIFAR-10 and STL-10 have them: exchanged in pairs, or rolled by a third."""
    names = tuple("abcdefghij")
    data = data_set("letters", classes=names, count=40)
    assert [ordered(data, order).classes for order in ORDERS] == [
        names,
        tuple("acbdefhgij"),
        tuple("defghijabc"),
    ]
    rolled = ordered(data, "rolled")
    assert rolled.train.images.tobytes() == data.train.images.tobytes()
    selected = [[item.classes[label] for label in item.labels] for item in (data.train, rolled.train)]
    assert selected[0] == selected[1]  # the same image is of the same class
    with pytest.raises(UsageError, match="'classes' must be one of own, exchanged, rolled; got 'shuffled'"):
        ordered(data, "shuffled")


def test_an_order_leaves_the_first_network_as_it_is_and_moves_the_rows_of_the_second() -> None:
    """With IIW, class layers start equal by row: in the own order the same class's, rolled another's."""
    data = data_set("letters", classes=tuple("abcdef"), count=24)

    def rows(order: str, class_layer: str) -> tuple[torch.Tensor, torch.Tensor]:
        inputs = [
            ck.Task(name, value, "resnet8_cifar", "layer2", size=16)
            for name, value in (("left", data), ("right", ordered(data, order)))
        ]
        uses = uses_of(run_of("iiw", class_layer=class_layer), "iiw")
        fit = quick(steps=0).fit(inputs, uses)
        places = [inputs[1].data.classes.index(name) for name in data.classes]
        left, right = (fit.tasks[name].head.state_dict()["fc.weight"] for name in ("left", "right"))
        return left, right[places]

    left, right = rows("own", "identical")
    assert torch.equal(left, right)
    left, right = rows("rolled", "identical")
    assert not any(torch.equal(entry, other) for entry, other in zip(left, right, strict=True))
    assert torch.equal(left, right.roll(-2, 0))
    left, right = rows("own", "own")
    assert not any(torch.equal(entry, other) for entry, other in zip(left, right, strict=True))


def write_noise(folder: Path) -> None:
    """Packs of noise in place of the real data sets."""
    for seed, (name, channels) in enumerate({"mnist": 1, "usps": 1, "cifar10": 3, "stl10": 3}.items()):
        write_pack(folder, data_set(name, seed=seed, channels=channels, count=96))


@pytest.mark.parametrize(
    ("size", "names", "images"),
    [
        ("cpu", ["mnist", "usps"], 48),
        ("halves", ["plain", "shifted"], 48),
        ("paper", ["cifar10", "stl10"], 96),
    ],
)
def test_every_size_has_its_pair_of_domains(tmp_path: Path, size: str, names: list[str], images: int) -> None:
    write_noise(tmp_path)
    changes = {} if size == "paper" else {"train": 48, "test": 48}
    settings = settings_of(find("3.1"), size, changes)
    made = tasks_of(Run("3.1", "none", 0, settings, StudyData("3.1", str(tmp_path))))
    assert [task.name for task in made] == names
    assert all((len(task.data.train), len(task.data.test)) == (images, images) for task in made)
    assert {task.augment for task in made} == {() if size == "cpu" else ("crop", "flip")}


def test_the_study_runs_through_its_door(tmp_path: Path) -> None:
    write_noise(tmp_path)
    result = carry_out("3.1", tmp_path / "out", seeds=1, arms=["iiw"], data=str(tmp_path), changes=TINY)
    assert {row["metric"] for row in result["results"]} == {
        measure.name for measure in find("3.1").study.measures
    }
    line = json.loads((tmp_path / "out" / "runs.jsonl").read_text())
    assert len(line["kept"]["cells"]) == 12 and set(line["data"]) >= {"mnist/train", "usps/test"}

"""Studies 3.2, 3.3, 3.6, 3.7 and 3.8: what their arms train, and figures that can be checked by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
import torch
from small import data_set, quick, write_pack

import compatkit as ck
from compatkit.adapters.cutting.planning import plan
from compatkit.experiments.studies import Outcome, Run, find
from compatkit.experiments.studies import run as carry_out
from compatkit.experiments.studies.finding import settings_of
from compatkit.experiments.studies.runs import StudyData
from compatkit_studies import common_classes, joint_incremental, pretrained_init, same_data
from compatkit_studies._pairs import BOUND, incremental, values_of
from compatkit_studies.common_classes import classes_of
from compatkit_studies.pretrained_init import pretrain, turned
from compatkit_studies.split_point import ARMS, split_of

TINY: dict[str, Any] = {"model": "resnet8_cifar", "train": 48, "test": 48, "steps": 1, "batch_size": 8}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Packs of noise in place of the real data sets."""
    for seed, (name, channels) in enumerate(
        {"mnist": 1, "usps": 1, "fashion-mnist": 1, "cifar10": 3}.items()
    ):
        write_pack(tmp_path, data_set(name, seed=seed, channels=channels, count=96))
    return tmp_path


def run_of(data: Path, study: str, arm: str, size: str = "cpu", seed: int = 0, **changes: Any) -> Run:
    return Run(
        study, arm, seed, settings_of(find(study), size, {**TINY, **changes}), StudyData(study, str(data))
    )


def carried_out(data: Path, study: str, arm: str, **changes: Any) -> tuple[dict[str, float], dict[str, Any]]:
    """Return the measures of one run that went through the door with its pictures, and what it keeps."""
    out = data / "out"
    result = carry_out(study, out, seeds=1, arms=[arm], data=str(data), changes={**TINY, **changes})
    assert all((out / name).stat().st_size > 1000 for name in result["files"] if name.endswith(".png"))
    values = {row["metric"]: row["values"][0] for row in result["results"]}
    return values, json.loads((out / "runs.jsonl").read_text())["kept"]


def tasks() -> list[ck.Task]:
    return [
        ck.Task(name, data_set(name, seed=seed), "resnet8_cifar", "layer2", size=16)
        for seed, name in enumerate(("left", "right"))
    ]


def made_up(
    own: float, recombined: float, names: tuple[str, str] = ("mnist", "usps")
) -> list[dict[str, Any]]:
    """Return cells of two networks, alike under every policy."""
    return [
        {
            "extractor": left,
            "head": right,
            "policy": policy,
            "accuracy": own if left == right else recombined,
            "all_outputs": own if left == right else recombined,
            "chance": 0.1,
        }
        for policy in ("batch", "reestimate", "running")
        for left in names
        for right in names
    ]


def test_a_later_network_starts_where_the_first_did_and_moves_none_of_its_heads() -> None:
    first, second = incremental(
        tasks()[::-1], ["identical_init", "rotation_prediction", "dcc"], quick(steps=1), "batch"
    )
    assert (list(first.tasks), list(second.tasks)) == (["right"], ["left"])
    assert first.tasks["right"].initial == second.tasks["left"].initial
    for name in ("rotation", "dcc"):
        head = second.auxiliary[name]
        assert (head.frozen, head.statistics) == (True, "batch")
        assert head.digest == first.auxiliary[name].digest


def test_the_head_of_an_incremental_run_has_the_classes_that_both_tasks_have() -> None:
    sets = [data_set("left", classes=("a", "b", "c", "d")), data_set("right", classes=("d", "x", "b", "c"))]
    pair = [ck.Task(entry.name, entry, "resnet8_cifar", "layer2", size=16) for entry in sets]
    joint = quick(steps=1).fit(pair, ["dcc"])
    for order, wanted in ((pair, ["b", "c", "d"]), (pair[::-1], ["d", "b", "c"])):
        first, second = incremental(order, ["dcc"], quick(steps=1))
        for fit in (first, second):
            assert [label.name for label in fit.auxiliary["dcc"].labels or ()] == wanted
        assert {label.name for label in joint.auxiliary["dcc"].labels or ()} == set(wanted)


@pytest.mark.parametrize("statistics", ["stored", "batch"])
def test_measures_of_an_incremental_arm_are_means_of_both_orders(
    data: Path, statistics: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trained(order: list[ck.Task], uses: list[Any], trainer: ck.Trainer, text: str) -> list[str]:
        turned = ck.use("rotation_prediction", half_turn="rotate", views="mixed")
        equal = ck.use("identical_init", class_layer="identical")
        assert (uses, text) == ([equal, turned, "dcc"], statistics)
        return [task.name for task in order]

    settings = {("mnist", "usps"): made_up(0.9, 0.6), ("usps", "mnist"): made_up(0.7, 0.2)}
    monkeypatch.setattr(joint_incremental, "incremental", trained)
    monkeypatch.setattr(joint_incremental, "measure", lambda run, fits, tasks: settings[tuple(fits)])
    values, saved = carried_out(data, "3.3", f"incremental-{statistics}")
    message = {name: values[name] for name in ("own", "recombined", "first-second", "second-first", "chance")}
    assert message == pytest.approx(
        {"own": 0.8, "recombined": 0.4, "first-second": 0.6, "second-first": 0.2, "chance": 0.1}
    )
    assert set(values) == {measure.name for measure in find("3.3").study.measures}
    assert saved["cells"]["second-first"] == settings["usps", "mnist"]
    assert (data / "out" / "orders.png").exists()


def test_split_points_are_blocks_of_the_network() -> None:
    assert [split_of(arm, "resnet20_cifar") for arm in ARMS] == [
        f"layer{stage}{block}" for stage in (1, 2, 3) for block in (".0", ".1", "")
    ]
    deep = [split_of(arm, "resnet56_cifar") for arm in ARMS]
    assert deep[:3] == ["layer1.0", "layer1.4", "layer1"] and deep[5] == "layer2"
    for cut in ("layer1.4", "layer3.0", "layer3"):
        assert plan("resnet56_cifar", cut, kwargs={"num_classes": 3}, size=(8, 8)).extractor.cut == cut


@pytest.mark.parametrize("model", ["resnet18", "resnet21_cifar"])
def test_networks_without_three_equal_stages_are_refused(model: str) -> None:
    with pytest.raises(
        ck.errors.UsageError, match=f"'model' must be a ResNet of three stages.*got '{model}'"
    ):
        split_of("stage1-first", model)


def test_networks_are_cut_where_the_arm_says(data: Path) -> None:
    values, saved = carried_out(data, "3.7", "stage3-last")
    assert saved["split"] == "layer3" and 0 <= values["recombined"] <= 1
    assert (data / "out" / "split.png").exists()


def test_classes_of_the_shared_head_are_drawn_by_the_seed_and_fewer_lie_among_more() -> None:
    sets = [
        data_set("left", classes=("a", "b", "c", "d", "e")),
        data_set("right", classes=("e", "x", "c", "a", "d")),
    ]
    pair = [ck.Task(entry.name, entry, "resnet8_cifar", "layer2", size=16) for entry in sets]
    assert classes_of(pair, 4, seed=0) == [
        "a",
        "c",
        "d",
        "e",
    ]  # all that are common, in the first one's order
    assert classes_of(pair, 5, seed=0) is None
    drawn = set()
    for seed in range(8):
        two, three = classes_of(pair, 2, seed), classes_of(pair, 3, seed)
        assert two is not None and three is not None and set(two) < set(three)
        assert two == classes_of(pair, 2, seed)
        drawn.add(tuple(two))
    assert len(drawn) > 2


def test_the_shared_head_has_the_classes_that_are_kept(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def caught(run: Run, fits: list[ck.Fit], tasks: list[ck.Task], **kwargs: Any) -> Outcome:
        (fit,) = fits
        assert [label.name for label in fit.auxiliary["dcc"].labels or ()] == kwargs["classes"]
        assert len({state.initial for state in fit.tasks.values()}) == 1
        return Outcome(values=values_of(made_up(0.9, 0.5)), figure_data=kwargs)

    monkeypatch.setattr(common_classes, "outcome", caught)
    _, saved = carried_out(data, "3.8", "2")
    assert len(saved["classes"]) == 2 and set(saved["classes"]) < {"0", "1", "2"}
    assert (data / "out" / "classes.png").exists()
    few = common_classes.run(run_of(data, "3.8", "4"))
    assert few.values == {} and few.notes == ("mnist and usps have fewer than 4 classes in common.",)


@pytest.mark.parametrize(
    ("size", "same"), [("cpu", True), ("cifar10", True), ("halves", False), ("paper", True)]
)
def test_both_networks_have_the_same_images_or_two_halves(data: Path, size: str, same: bool) -> None:
    first, other = same_data.tasks_of(run_of(data, "3.6", "none", size))
    images = [{image.tobytes() for image in task.data.train.images} for task in (first, other)]
    assert images[0] == images[1] if same else not images[0] & images[1]
    assert (first.data.test.images.tobytes() == other.data.test.images.tobytes()) is same
    assert (first.name, other.name) == ("first", "second")


def test_the_gap_is_what_recombination_costs(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[list[str]] = []
    monkeypatch.setattr(
        same_data, "train_separately", lambda run, tasks: trained.append([task.name for task in tasks])
    )
    monkeypatch.setattr(
        same_data, "measure", lambda run, fits, tasks: made_up(0.9, 0.65, ("first", "second"))
    )
    values, _ = carried_out(data, "3.6", BOUND)
    assert trained == [["first", "second"]]
    assert values["gap"] == pytest.approx(0.25)
    assert (data / "out" / "same.png").exists()


def test_images_are_turned_and_their_labels_are_not_read() -> None:
    cut = data_set("a", size=(6, 6), count=9).train
    made = turned(cut, 5)
    assert len(made) == 20 and made.classes == ("0 degrees", "90 degrees", "180 degrees", "270 degrees")
    upright = made.images[:5]
    assert {entry.tobytes() for entry in upright} <= {image.tobytes() for image in cut.images}
    for turns in range(4):
        block = slice(5 * turns, 5 * turns + 5)
        assert set(made.labels[block].tolist()) == {turns}
        np.testing.assert_array_equal(np.rot90(made.images[block], -turns, (1, 2)), upright)
    other = attrs.evolve(cut, labels=np.zeros(len(cut), dtype=np.int64))
    assert turned(other, 5).digest == made.digest
    assert len(turned(cut, 0)) == 36


@pytest.mark.parametrize(("arm", "same"), [("pretrained-iiw", True), ("pretrained-none", False)])
def test_tasks_start_from_pretrained_weights_the_same_or_their_own(
    data: Path, arm: str, same: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a rate of 1e-30 what the fit holds is what it started from."""
    run, fits = run_of(data, "3.2", arm, pretrain_steps=1), []
    before = [pretrain(run, place) for place in (0, 1)]

    def caught(run: Run, made: list[ck.Fit], tasks: list[ck.Task]) -> Outcome:
        fits.extend(made)
        return Outcome(values={})

    monkeypatch.setattr(pretrained_init, "outcome", caught)
    monkeypatch.setattr(pretrained_init, "pretrain", lambda run, place: before[place])
    monkeypatch.setattr(pretrained_init, "trainer_of", lambda run: quick(steps=1, lr=1e-30))
    result = pretrained_init.run(run)
    assert 0 <= (result.values["turns"] or 0) <= 1
    inputs = [fit.weights("turned") for fit in before]
    assert not torch.equal(inputs[0]["conv1.weight"], inputs[1]["conv1.weight"])
    states = list(fits[0].tasks.values())
    for state, wanted in zip(states, (inputs[0], inputs[0 if same else 1]), strict=True):
        for name, value in state.extractor.named_parameters():
            torch.testing.assert_close(value, wanted[name], rtol=0, atol=1e-9)
    assert len({state.initial for state in states}) == (1 if same else 2)


def test_an_arm_from_random_weights_pretrains_nothing(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[object] = []

    def caught(run: Run, made: list[ck.Fit], tasks: list[ck.Task]) -> Outcome:
        started.extend(task.weights for task in tasks)
        return Outcome(values=values_of(made_up(0.9, 0.5)))

    monkeypatch.setattr(pretrained_init, "outcome", caught)
    values, _ = carried_out(data, "3.2", "random-none")
    assert started == [None, None] and "turns" not in values
    assert (data / "out" / "starts.png").exists()


def test_what_the_paper_reports_stands_apart_as_printed() -> None:
    message = {
        number: {(source.arm, source.metric): source.value for source in find(number).study.paper}
        for number in ("3.2", "3.3", "3.6", "3.7", "3.8")
    }
    assert message["3.2"] == {
        ("pretrained-rp", "recombined"): 19.7,
        ("pretrained-dcc", "recombined"): 52.3,
        ("pretrained-iiw", "recombined"): 74.3,
        ("pretrained-iiw+dcc", "recombined"): 82.7,
        ("random-none", "recombined"): 10.6,
        ("random-rp", "recombined"): 50.1,
        ("random-dcc", "recombined"): 65.8,
        ("random-iiw", "recombined"): 25.1,
    }
    assert message["3.3"] == {
        ("joint", "recombined"): 76.7,
        ("incremental-batch", "recombined"): 72.7,
        ("iiw", "recombined"): 25.1,
    }
    assert message["3.6"] == dict.fromkeys(
        [(arm, "gap") for arm in ("iiw+rp", "iiw+dcc", "rp+dcc", "iiw+rp+dcc")], 1.1
    )
    assert message["3.7"] == {("stage2-last", "recombined"): 61.8}
    assert message["3.8"] == {("6", "recombined"): 59.4, ("iiw+rp", "recombined"): 61.8}
    assert all(find(number).study.sizes["paper"]["steps"] == 20_000 for number in message)

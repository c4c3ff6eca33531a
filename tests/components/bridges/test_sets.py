"""Bridges of many pairs, here and in other processes: equal bit by bit, kept when made, taken the next time."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from fragile import fragile_parts
from small import data_set

import compatkit as ck
from compatkit.components.bridges import building
from compatkit.components.bridges.jobs import PairAnswer, PairJob, work
from compatkit.components.bridges.ladder import Bridge
from compatkit.components.bridges.pairs import BridgedPairs
from compatkit.components.splitting import publish_split, split
from compatkit.errors import DataError, EnvironmentFailure, InvalidName, UsageError
from compatkit.plugins.launching import Launcher

NETWORKS = {"one": "layer2", "two": "layer2", "narrow": "layer1"}
SETS = "zoo/*.extractor", "zoo/*.head"


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("template") / "parts"
    registry = ck.Registry.init(root)
    for seed, (name, cut) in enumerate(NETWORKS.items()):
        settings = {"in_chans": 1, "num_classes": 3}
        parts = split("resnet8_cifar", cut, kwargs=settings, size=(16, 16), seed=seed, labels=("0", "1", "2"))
        publish_split(registry.store, parts, f"zoo/{name}")
    return root


@pytest.fixture
def registry(template: Path, tmp_path: Path) -> ck.Registry:
    return ck.Registry.open(shutil.copytree(template, tmp_path / "parts"))


@pytest.fixture(scope="module")
def images() -> ck.Split:
    return data_set("noise", size=(16, 16), count=60).train


def data_of(images: ck.Split) -> dict[str, ck.Split]:
    return {f"zoo/{name}.extractor": images for name in NETWORKS}


def assert_same(got: BridgedPairs, expected: BridgedPairs) -> None:
    """All that a bridge has, but for the seconds of its fits."""
    assert list(got) == list(expected) and got.left_out == expected.left_out
    for pair, other in expected.items():
        assert_equal(got[pair], other)


def assert_equal(bridge: Bridge, other: Bridge) -> None:
    got, expected = bridge.to_json(), other.to_json()
    for step in (*got["steps"], *expected["steps"]):
        step.pop("seconds")
    assert got == expected
    assert_same_tensors(bridge.recombination, other.recombination)
    assert bridge.recombination.estimated == other.recombination.estimated
    for mine, theirs in zip(bridge.steps, other.steps, strict=True):
        if theirs.candidate is None:
            assert mine.candidate is None
            continue
        assert mine.candidate is not None and mine.agreed == theirs.agreed
        assert_same_tensors(mine.candidate.network, theirs.candidate.network)
        assert [step.function for step in mine.candidate.adapters] == [
            step.function for step in theirs.candidate.adapters
        ]
        for adapter, same in zip(mine.candidate.adapters, theirs.candidate.adapters, strict=True):
            records = [{**each.training, "seconds": None} for each in (adapter, same)]
            assert records[0] == records[1] and adapter.parents == same.parents
            assert (adapter.blueprint, adapter.takes, adapter.gives) == (
                same.blueprint,
                same.takes,
                same.gives,
            )


def assert_same_tensors(module: torch.nn.Module, other: torch.nn.Module) -> None:
    mine, theirs = module.state_dict(), other.state_dict()
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(value, theirs[name]) for name, value in mine.items())


def drafts(registry: ck.Registry) -> list[str]:
    return os.listdir(registry.store.root / "tmp")


@pytest.fixture
def inside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers are this process, which spares their start."""

    def answers(self: Launcher, work: Any, jobs: list[str], labels: list[str]) -> Iterator[tuple[int, str]]:
        for position in reversed(range(len(jobs))):
            yield position, work(jobs[position])

    monkeypatch.setattr(Launcher, "answers", answers)


@pytest.mark.parametrize("where", ["inside", "processes"])
def test_two_workers_make_the_bridges_of_one_process_which_are_taken_the_next_time(
    registry: ck.Registry,
    images: ck.Split,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    where: str,
) -> None:
    if where == "inside":
        request.getfixturevalue("inside")
    arguments: Any = ("zoo/*.extractor", "zoo/two.head", data_of(images), "best")
    here = registry.bridges.between(*arguments, tests=data_of(images), record=False)
    seen: list[tuple[int, int, str]] = []
    there = registry.bridges.between(
        *arguments, tests=data_of(images), workers=2, progress=lambda *words: seen.append(words)
    )
    assert len(there) == 2 and drafts(registry) == []
    assert_same(there, here)
    assert [words[:2] for words in seen] == [(2, 3), (3, 3)]
    assert {words[2] for words in seen} == {
        f"zoo/{left}.extractor + zoo/two.head" for left in ("one", "narrow")
    }
    monkeypatch.setattr(building, "bridge_pair", lambda *_: pytest.fail("it was made again"))
    again = registry.bridges.between(*arguments, tests=data_of(images))
    assert_same(again, here)
    for (extractor, head), bridge in again.items():
        assert registry.publish(bridge, f"pairs/{head[4:7]}-{extractor[4:7]}", accept_doubtful=True)


@pytest.mark.parametrize("other", [{"max_images": 20}, {"seed": 1}, {"tests": {}}, {"rung": "procrustes"}])
def test_another_request_is_another_bridge(
    registry: ck.Registry, images: ck.Split, monkeypatch: pytest.MonkeyPatch, other: dict[str, Any]
) -> None:
    arguments: Any = ("zoo/one.extractor", "zoo/two.head", data_of(images))
    settings = {"rung": "ridge", "tests": data_of(images)}
    registry.bridges.between(*arguments, **settings)
    made: list[Any] = []
    whole = building.bridge_pair
    monkeypatch.setattr(building, "bridge_pair", lambda *words: made.append(words) or whole(*words))
    registry.bridges.between(*arguments, **settings)
    assert not made
    registry.bridges.between(*arguments, **{**settings, **other})
    registry.bridges.between(*arguments, **settings, record=False)
    assert len(made) == 2


@pytest.mark.parametrize("change", ["removed", "damaged"])
def test_a_kept_bridge_that_is_gone_is_made_again(
    registry: ck.Registry, images: ck.Split, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    arguments: Any = ("zoo/one.extractor", "zoo/two.head", data_of(images), "ridge")
    first = registry.bridges.between(*arguments)
    functions = [
        [str(registry.store.function_of(str(registry.store.resolve(f"zoo/{name}").digest)))]
        for name in ("one.extractor", "two.head")
    ]
    (result,) = registry.store.evidence.results(*functions)
    path = registry.store.objects.path(result.figures["blob"])
    path.chmod(0o644)
    if change == "removed":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:-1] + b"?")
    assert_same(registry.bridges.between(*arguments), first)
    monkeypatch.setattr(building, "bridge_pair", lambda *_: pytest.fail("it was made again"))
    assert_same(registry.bridges.between(*arguments), first)


def test_kept_bridges_are_no_figures_of_the_pair(registry: ck.Registry, images: ck.Split) -> None:
    test = data_set("noise", size=(16, 16), count=60).test
    plain = registry.matrix(*SETS, dict.fromkeys(data_of(images), test))
    recorded = registry.matrix(*SETS, fill="none")
    registry.bridges.between(*SETS, data_of(images), "ridge")
    again = registry.matrix(*SETS, dict.fromkeys(data_of(images), test))
    assert again.cells == plain.cells and again.settings["cells"]["measured"] == 0
    assert registry.matrix(*SETS, fill="none").cells == recorded.cells
    assert registry.check("zoo/one.extractor", "zoo/two.head").evidence != "none"
    assert not registry.maintenance.verify().faults


@pytest.mark.usefixtures("inside")
def test_a_matrix_of_bridges_is_measured_in_workers_too(registry: ck.Registry, images: ck.Split) -> None:
    tests = {name: data_set("noise", size=(16, 16), count=60).test for name in data_of(images)}
    bridges = registry.bridges.between(*SETS, data_of(images), "ridge")
    words: Any = {"bridges": bridges, "metrics": ["leep"]}
    here = registry.matrix(*SETS, tests, record=False, **words)
    there = registry.matrix(*SETS, tests, workers=2, **words)
    assert there.cells == here.cells and there.settings["cells"]["measured"] == 9
    again = registry.matrix(*SETS, tests, **words)
    assert again.cells == here.cells
    assert again.settings["cells"] == {"taken": 9, "measured": 0, "metrics": {"taken": 9, "measured": 0}}
    assert drafts(registry) == []


@pytest.mark.usefixtures("inside")
def test_published_adapters_and_those_without_weights_reach_workers(
    registry: ck.Registry, images: ck.Split
) -> None:
    left, right = "zoo/one.extractor", "zoo/narrow.head"
    model = registry.recombine(left, right, data=images, insert_adapters=True)
    name = registry.publish(model.inserted[-1], "pairs/published")
    again = registry.recombine(left, right, data=images, adapters=[name], insert_adapters=True)
    pair = f"{left}@1.0.0", f"{right}@1.0.0"
    assert any(not adapter.module.state_dict() for adapter in again.inserted)
    assert again.inserted[-1].reference == name
    tests = {left: data_set("noise", size=(16, 16), count=60).test}
    here = registry.matrix(left, right, tests, adapters={pair: again.inserted}, record=False)
    there = registry.matrix(left, right, tests, adapters={pair: again.inserted}, workers=1)
    assert there.cells == here.cells and name in there.cells[0].settings["adapters"]


@pytest.fixture
def fragile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[ck.Registry, dict[str, Any]]]:
    with fragile_parts(tmp_path, monkeypatch) as (registry, sets):
        yield registry, {f"digits/{data.name}.extractor": data.train for data in sets}


@pytest.mark.parametrize("kills", [1, 1000])
def test_a_killed_process_costs_at_most_its_pair(
    fragile: tuple[ck.Registry, dict[str, Any]], tmp_path: Path, kills: int
) -> None:
    registry, data = fragile
    arguments: Any = ("digits/calm.extractor", "digits/*.head", data, "ridge")
    here = registry.bridges.between(*arguments, record=False)
    wild = ("digits/calm.extractor@1.0.0", "digits/wild.head@1.0.0")
    (tmp_path / "wild").write_text(str(kills))
    if kills == 1:
        assert_same(registry.bridges.between(*arguments, workers=2), here)
        assert (tmp_path / "wild").read_text() == "0"
        return
    with pytest.warns(UserWarning, match=r"with digits/wild.head@1.0.0 was not bridged: .* SIGKILL"):
        there = registry.bridges.between(*arguments, workers=2)
    assert (tmp_path / "wild").read_text() == "998"  # two processes
    assert set(there) == set(here) - {wild} and list(there.failed) == [wild]
    assert_equal(
        there["digits/calm.extractor@1.0.0", "digits/other.head@1.0.0"],
        here["digits/calm.extractor@1.0.0", "digits/other.head@1.0.0"],
    )
    (row,) = [row for row in there.to_json() if row["reason"]]
    assert (row["extractor"], row["head"]) == wild and row["rung"] is None and "SIGKILL" in row["reason"]
    (tmp_path / "wild").unlink()
    seen: list[Any] = []
    whole = registry.bridges.between(*arguments, workers=2, progress=lambda *words: seen.append(words))
    assert_same(whole, here)
    assert seen == [(3, 3, "digits/calm.extractor + digits/wild.head")]  # the other was kept
    assert drafts(registry) == []


def test_a_pair_that_dies_twice_is_left_out_and_one_that_dies_once_is_not(
    registry: ck.Registry, images: ck.Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    deaths = {"zoo/one.extractor + zoo/two.head": 2, "zoo/two.extractor + zoo/one.head": 1}

    def answers(self: Launcher, work: Any, jobs: list[str], labels: list[str]) -> Iterator[tuple[int, Any]]:
        for position, (job, label) in enumerate(zip(jobs, labels, strict=True)):
            if deaths.get(label):
                deaths[label] -= 1
                yield position, EnvironmentFailure("ended by SIGKILL")
            else:
                yield position, work(job)

    monkeypatch.setattr(Launcher, "answers", answers)
    with pytest.warns(UserWarning, match="was not bridged: ended by SIGKILL"):
        bridges = registry.bridges.between(
            "zoo/[ot]*.extractor", "zoo/[ot]*.head", data_of(images), "ridge", workers=2
        )
    assert list(bridges) == [("zoo/two.extractor@1.0.0", "zoo/one.head@1.0.0")]
    assert bridges.failed == {("zoo/one.extractor@1.0.0", "zoo/two.head@1.0.0"): "ended by SIGKILL"}


def test_what_no_pair_can_do_ends_the_work(registry: ck.Registry, images: ck.Split) -> None:
    for rung in ("absorbed", "statistics", "direct", "infomax", "finetune", "no-rung"):
        with pytest.raises(ck.errors.CompatkitError) as caught:
            registry.bridges.between(*SETS, data_of(images), rung, workers=2)
        assert isinstance(caught.value, UsageError | ck.errors.UnknownName) and rung in str(
            caught.value.subject
        )
    few = {**data_of(images), "zoo/two.extractor": images.subset(12)}
    with pytest.raises(DataError, match="a bridge needs at least"):
        registry.bridges.between(*SETS, few, "ridge", workers=2)
    assert not registry.store.evidence.extractors() and drafts(registry) == []


@pytest.mark.usefixtures("inside")
def test_a_damaged_part_costs_its_pairs(registry: ck.Registry, images: ck.Split) -> None:
    payload = registry.store.manifest("zoo/two.extractor").payload
    path = registry.store.objects.path(payload.file.blob)
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    with pytest.warns(
        UserWarning, match=r"zoo/two.extractor@1.0.0 with zoo/narrow.head@1.0.0 was not bridged"
    ):
        bridges = registry.bridges.between(
            ["zoo/two.extractor", "zoo/one.extractor"], "zoo/narrow.head", data_of(images), "ridge", workers=1
        )
    assert list(bridges) == [("zoo/one.extractor@1.0.0", "zoo/narrow.head@1.0.0")]


def test_a_worker_that_does_not_see_the_registry_is_an_error(
    registry: ck.Registry, images: ck.Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answers(self: Launcher, work: Any, jobs: list[str], labels: list[str]) -> Iterator[tuple[int, str]]:
        yield 0, work(json.dumps({**json.loads(jobs[0]), "images": "/nowhere"}))

    monkeypatch.setattr(Launcher, "answers", answers)
    with pytest.raises(EnvironmentFailure) as error:
        registry.bridges.between(*SETS, data_of(images), "ridge", workers=2)
    assert error.value.subject == str(registry.store.root) and drafts(registry) == []
    job = PairJob("r", "/nowhere", "", ("a", "", "b"), ("c", "", "d"), "ridge", ("ridge",), 9, 0, {}, True, 1)
    assert PairAnswer.loads(work(json.dumps(attrs.asdict(job)))).unseen


def test_a_remote_has_no_workers_and_keeps_nothing(registry: ck.Registry, images: ck.Split) -> None:
    remote = f"memory://{registry.store.id[:12]}/parts"
    registry.push(remote, create=True)
    opened = ck.Registry.open(remote)
    arguments: Any = ("zoo/one.extractor", "zoo/two.head", data_of(images), "ridge")
    with pytest.raises(UsageError) as error:
        opened.bridges.between(*arguments, workers=2)
    assert error.value.subject == remote
    with pytest.warns(UserWarning, match="Bridges are not kept"):
        assert len(opened.bridges.between(*arguments)) == 1


def test_bridges_are_published_when_they_are_made(
    registry: ck.Registry, images: ck.Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments: Any = ("zoo/[on]*.extractor", "zoo/two.head", data_of(images), "ridge")
    made: list[list[str]] = []
    bridges = registry.bridges.between(
        *arguments,
        publish="pairs",
        accept_doubtful=True,
        progress=lambda *_: made.append(
            [name for name in registry.store.names() if name.startswith("pairs")]
        ),
    )
    names = ["pairs/zoo.narrow--zoo.two", "pairs/zoo.one--zoo.two"]
    assert bridges.published == {
        (f"zoo/{left}.extractor@1.0.0", "zoo/two.head@1.0.0"): f"{name}@1.0.0"
        for left, name in zip(("narrow", "one"), names, strict=True)
    }
    assert made == [[], [names[0], f"{names[0]}.adapter"]]
    again = registry.bridges.between(*arguments, publish="pairs", accept_doubtful=True)
    assert again.published == bridges.published  # the same versions
    monkeypatch.setattr("compatkit.components.bridges.judging.Judgment.verdict", "doubtful")
    assert registry.bridges.between(*arguments, publish="others").published == {}
    (found,) = registry.bridges.of("zoo/one.extractor", "zoo/two.head")
    assert found.reference == f"{names[1]}@1.0.0" and found.rung == "ridge"


def test_names_that_cannot_be_published_are_refused_before_any_work(
    registry: ck.Registry, images: ck.Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "compatkit.components.bridges.published.bridge_pairs", lambda *_: pytest.fail("bridged first")
    )
    old = registry.store.manifest("zoo/one.head")
    registry.publish(old, "pairs/zoo.one--zoo.two.adapter", state=registry.store.load_state(old))
    arguments: Any = (data_of(images), "ridge")
    with pytest.raises(UsageError, match=r"zoo\.two\.adapter@1\.0\.0 is of kind head"):
        registry.bridges.between("zoo/one.extractor", "zoo/two.head", *arguments, publish="pairs")
    with pytest.raises(InvalidName):
        registry.bridges.between("zoo/one.extractor", "zoo/two.head", *arguments, publish="Pairs")
    other = registry.store.manifest("zoo/narrow.head")
    registry.publish(other, "zoo.two.head", state=registry.store.load_state(other))
    with pytest.raises(UsageError) as caught:
        heads = ["zoo/two.head", "zoo.two.head"]
        registry.bridges.between("zoo/one.extractor", heads, *arguments, publish="other")
    assert caught.value.subject == "other/zoo.one--zoo.two"

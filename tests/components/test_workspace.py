"""The public registry: from trained parts to recombinations, matrices and heads to train against."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
import torch
from small import data_set, quick
from torch import nn

import compatkit as ck
from compatkit.contracts.contract import Data, Label
from compatkit.errors import (
    DataError,
    IncompatibleError,
    IntegrityError,
    InvalidName,
    LayoutError,
    NotFound,
    UsageError,
)
from compatkit.evaluation.assembly import BatchStatisticsWarning
from compatkit.evaluation.preprocessing import normalize, prepare

LEFT, RIGHT = "digits/left.extractor", "digits/right.head"


@pytest.fixture(scope="module")
def tasks() -> list[ck.Task]:
    return [
        ck.Task(name, data_set(name, seed=seed), "resnet8_cifar", "layer2", size=(16, 16))
        for seed, name in enumerate(("left", "right"))
    ]


@pytest.fixture(scope="module")
def fit(tasks: list[ck.Task]) -> ck.Fit:
    return quick(steps=3).fit(tasks, ["identical_init", "dcc", ck.use("rotation_prediction", weight=1.0)])


@pytest.fixture(scope="module")
def published(fit: ck.Fit, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A registry that is only copied."""
    made = ck.Registry.init(tmp_path_factory.mktemp("workspace") / "published")
    made.publish(fit, prefix="digits")
    return made.store.root


@pytest.fixture(scope="module")
def registry(published: Path, tmp_path_factory: pytest.TempPathFactory) -> ck.Registry:
    """One registry for all tests that only read or add evidence."""
    return ck.Registry.open(shutil.copytree(published, tmp_path_factory.mktemp("workspace") / "parts"))


@pytest.fixture
def mine(published: Path, tmp_path: Path) -> ck.Registry:
    """A copy to change."""
    return ck.Registry.open(shutil.copytree(published, tmp_path / "parts"))


@pytest.fixture(scope="module")
def tests(tasks: list[ck.Task]) -> list[ck.Split]:
    return [task.data.test for task in tasks]


def images_of(model: ck.Recombination, split: ck.Split) -> torch.Tensor:
    examples = prepare(split, model.data)
    return normalize(examples.images, model.data)


def test_the_main_job_in_ten_lines(tmp_path: Path, tasks: list[ck.Task]) -> None:
    registry = ck.Registry.init(tmp_path / "parts", exist_ok=True)
    a, b = tasks
    fit = quick(steps=1, seed=0).fit([a, b], regularizers=["identical_init", "dcc"])
    parts = registry.publish(fit, prefix="digits")
    model = registry.recombine(parts["left.extractor"], "digits/right.head@^1")
    assert isinstance(model, nn.Module)
    matrix = registry.matrix(
        extractors="digits/*.extractor", heads="digits/*.head", data=[a.data.test, b.data.test]
    )
    assert (
        matrix.to_html(tmp_path / "matrix.html").exists() and matrix.to_png(tmp_path / "matrix.png").exists()
    )
    assert "digits/left.extractor" in str(matrix)


def test_opening(tmp_path: Path, registry: ck.Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    root = registry.store.root
    assert (
        ck.Registry.open(root).store.names()
        == ck.Registry.open(str(root)).store.names()
        == registry.store.names()
    )
    assert ck.Registry.init(root, exist_ok=True).store.id == registry.store.id
    with pytest.raises(LayoutError, match="is a registry already"):
        ck.Registry.init(root)
    with pytest.raises(LayoutError, match=r"has no compatkit\.json"):
        ck.Registry.open(tmp_path)
    monkeypatch.chdir(root / "refs")
    assert ck.Registry.open().store.root == root
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COMPATKIT_REGISTRY", os.fspath(root))
    assert ck.Registry.open().store.root == root


def test_publishing_names_versions_and_order(registry: ck.Registry, fit: ck.Fit) -> None:
    parts = registry.publish(fit, prefix="digits")  # again: nothing changes
    keys = ["left.extractor", "right.extractor", "shared.dcc", "shared.rotation", "left.head", "right.head"]
    assert parts == {key: f"digits/{key}@1.0.0" for key in keys}
    assert registry.store.names() == sorted(f"digits/{key}" for key in keys)
    assert registry.store.names("*.head") == ["digits/left.head", "digits/right.head"]
    assert registry.store.manifest("digits/shared.dcc").kind == "auxiliary_head"


@pytest.mark.parametrize("prefix", ["", "A", "../up", "a/b/c", "a b", "con"])
def test_a_prefix_that_is_no_name_writes_nothing(tmp_path: Path, fit: ck.Fit, prefix: str) -> None:
    registry = ck.Registry.init(tmp_path / "parts")
    before = sorted(registry.store.root.rglob("*"))
    with pytest.raises(InvalidName):
        registry.publish(fit, prefix=prefix)
    assert sorted(registry.store.root.rglob("*")) == before


def test_built_parts_are_the_trained_ones(registry: ck.Registry, fit: ck.Fit, tests: list[ck.Split]) -> None:
    extractor, head = registry.load(LEFT), registry.load("digits/left.head@1.0.0")
    assert not extractor.training and not head.training
    model = registry.recombine(LEFT, "digits/left.head")
    images = images_of(model, tests[0])
    trained = fit.network("left").eval()
    with torch.no_grad():
        assert torch.equal(
            head(extractor(images)), trained(images.contiguous(memory_format=torch.channels_last))
        )


@pytest.mark.case("E2")
def test_a_part_whose_weights_belong_to_another_is_found_by_its_probe(mine: ck.Registry) -> None:
    """Every digest agrees; only the function does not."""
    own, other = mine.store.manifest("digits/left.head"), mine.store.manifest(RIGHT)
    mine.store.publish("mixed", attrs.evolve(own, payload=other.payload))
    with pytest.raises(IntegrityError, match="gives other outputs on the probe input"):
        mine.load("mixed")
    with pytest.raises(NotFound, match="perhaps mixed"):
        mine.load("mxed")


def test_check_reads_no_weights(mine: ck.Registry) -> None:
    for name in mine.store.names():
        blob = mine.store.manifest(name).payload.file.blob.removeprefix("sha256:")
        (mine.store.root / "blobs" / "sha256" / blob[:2] / blob).unlink()
    report = mine.check(LEFT, RIGHT)
    assert (report.wiring, report.promise, report.evidence) == ("direct", "shared-head", "none")
    assert (report.extractor, report.head) == ("digits/left.extractor@1.0.0", "digits/right.head@1.0.0")
    with pytest.raises(IntegrityError, match="is missing"):
        mine.recombine(LEFT, RIGHT)


def test_what_changed_between_two_components(registry: ck.Registry) -> None:
    difference = registry.diff("digits/left.head", "digits/right.head")
    assert isinstance(difference, ck.Difference) and difference.bump == "major" and difference.tensors is None
    assert {change.path for change in difference.changes if change.level == "training"} >= {
        "data.name",
        "data.digest",
    }
    with_tensors = registry.diff("digits/left.head", "digits/right.head", tensors=True)
    assert with_tensors.changes == difference.changes and with_tensors.tensors
    assert not registry.diff("digits/left.head", "digits/left.head@1.0.0", tensors=True).tensors
    with pytest.raises(NotFound):
        registry.diff("digits/left.head", "digits/left.head@9.0.0")


def test_check_with_classes_in_mind(registry: ck.Registry) -> None:
    request = Data((16, 16), "L", (0.5,), (0.5,), labels=(Label("two"), Label("cat")))
    result = [
        finding
        for finding in registry.check(LEFT, RIGHT, data=request).findings
        if finding.code == "labels-partial"
    ]
    assert result and result[0].remedy.endswith("are counted: two")


def test_a_recombination_is_head_after_extractor(registry: ck.Registry, tests: list[ck.Split]) -> None:
    model = registry.recombine(LEFT, RIGHT, bn_policy="running")
    images = images_of(model, tests[0])
    with torch.no_grad():
        expected = registry.load(RIGHT)(registry.load(LEFT)(images))
        assert torch.equal(model(images), expected)
    assert [label.name for label in model.labels] == ["0", "1", "2"] and model.data.size == (16, 16)
    assert torch.equal(model.predict(tests[0]).positions, expected.argmax(1))


def test_two_recombinations_share_no_tensor(registry: ck.Registry) -> None:
    first, second = registry.recombine(LEFT, RIGHT), registry.recombine(LEFT, RIGHT)
    with torch.no_grad():
        next(first.parameters()).add_(1.0)
    assert not torch.equal(next(first.parameters()), next(second.parameters()))


@pytest.mark.parametrize("policy", ["running", "batch", "reestimate"])
@pytest.mark.filterwarnings("ignore:Batch normalization takes the statistics of the batch")
def test_matrix_and_recombination_agree(registry: ck.Registry, tests: list[ck.Split], policy: str) -> None:
    """The matrix shuffles and cuts the images by its own rules; one batch of all makes both the same."""
    images = tests[0] if policy == "reestimate" else None
    model = registry.recombine(LEFT, RIGHT, bn_policy=policy, data=images)
    right = int((model.predict(tests[0], batch_size=48).positions.numpy() == tests[0].labels).sum())
    matrix = registry.matrix(LEFT, [RIGHT, "digits/left.head"], tests, bn_policy=policy, batch_size=48)
    cell = matrix.cell(LEFT, RIGHT)
    assert cell.unrestricted is not None and cell.unrestricted.correct == right
    assert cell.bound == matrix.cell(LEFT, "digits/left.head").restricted


@pytest.mark.filterwarnings("ignore:Batch normalization takes the statistics of the batch")
def test_what_recombine_gives_is_what_matrix_shows(registry: ck.Registry, tests: list[ck.Split]) -> None:
    model = registry.recombine(LEFT, RIGHT)
    assert model.bn_policy == "batch"
    right = int((model.predict(tests[0]).positions.numpy() == tests[0].labels).sum())
    cell = registry.matrix(LEFT, RIGHT, tests).cell(LEFT, RIGHT)
    assert cell.unrestricted is not None and cell.unrestricted.correct == right


def test_parts_of_one_network_keep_its_statistics_and_images_give_new_ones(
    registry: ck.Registry, tests: list[ck.Split]
) -> None:
    assert registry.recombine(LEFT, "digits/left.head").bn_policy == "running"
    model = registry.recombine(LEFT, RIGHT, data=tests[0])
    assert model.bn_policy == "reestimate"
    first, all_of_them = (model(images_of(model, tests[0])[:count]) for count in (1, 48))
    torch.testing.assert_close(first, all_of_them[:1])  # an image's logits do not depend on its batch


def test_a_single_image_under_batch_statistics_is_warned_of(
    registry: ck.Registry, tests: list[ck.Split]
) -> None:
    model = registry.recombine(LEFT, RIGHT)
    images = images_of(model, tests[0])
    model(images[:2])
    with pytest.warns(BatchStatisticsWarning):
        model(images[:1])


def test_recombining_asks_for_images_only_where_they_are_used(
    registry: ck.Registry, tests: list[ck.Split]
) -> None:
    with pytest.raises(DataError):  # found again nowhere: the test made them
        registry.recombine(LEFT, RIGHT, bn_policy="reestimate")
    with pytest.raises(UsageError, match="leave it out"):
        registry.recombine(LEFT, RIGHT, bn_policy="running", data=tests[0])
    with pytest.raises(UsageError, match="reestimate"):
        registry.recombine(LEFT, RIGHT, bn_policy="restimate")


def test_recombining_what_cannot_be_wired_raises_with_the_report(
    registry: ck.Registry, tasks: list[ck.Task]
) -> None:
    task = ck.Task("narrow", tasks[0].data, "resnet8_cifar", "layer1", size=(16, 16))
    registry.publish(quick(steps=1).fit([task]), prefix="other")
    with pytest.raises(IncompatibleError, match="expected 32 channels; actual 16 channels") as caught:
        registry.recombine("other/narrow.extractor", RIGHT)
    assert isinstance(caught.value.subject, ck.Report) and caught.value.subject.wiring == "needs-adapter"
    with pytest.raises(UsageError, match="Pass the extractor first"):
        registry.recombine(RIGHT, LEFT)


def test_test_sets_by_name_and_by_pattern(registry: ck.Registry, tests: list[ck.Split]) -> None:
    by_name = registry.matrix("digits/*.extractor", RIGHT, tests)
    by_pattern = registry.matrix(
        "digits/*.extractor", RIGHT, {"digits/left.*": tests[0], "*/right.extractor": tests[1]}
    )
    assert by_name.cells == by_pattern.cells
    assert [cell.settings["data"] for cell in by_name.cells] == ["left/test", "right/test"]
    crossed = registry.matrix(LEFT, RIGHT, {"*": tests[1]})
    assert crossed.cells[0].settings["data"] == "right/test"
    for data in (
        tests[:1],
        [*tests, tests[1]],
        {"digits/left.*": tests[0]},
        {"*": tests[0], "digits/*": tests[0]},
    ):
        with pytest.raises(DataError, match="needs exactly one test set"):
            registry.matrix("digits/*.extractor", RIGHT, data)


def test_many_patterns_name_each_component_once(registry: ck.Registry, tests: list[ck.Split]) -> None:
    matrix = registry.matrix([LEFT, "digits/*.extractor"], [RIGHT, "digits/right.head@^1"], tests)
    assert [part.reference for part in matrix.extractors] == [
        "digits/left.extractor@1.0.0",
        "digits/right.extractor@1.0.0",
    ]
    assert len(matrix.heads) == 1 and matrix.heads[0].summary["kind"] == "head"


def test_a_wrong_kind_is_told_before_a_weight_is_read(
    registry: ck.Registry, tests: list[ck.Split], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        type(registry.store), "load_state", lambda *args, **kwargs: pytest.fail("read weights")
    )
    with pytest.raises(UsageError, match=r"digits/left.head@1.0.0 is of kind head; expected extractor"):
        registry.matrix("digits/left.head", RIGHT, tests)
    with pytest.raises(NotFound, match=r"'\*.head' matches \d+ components, none of kind extractor: .* head"):
        registry.matrix("*.head", RIGHT, tests)
    with pytest.raises(UsageError, match="narrow the pattern") as error:
        registry.frozen("digits/*.head")
    assert error.value.subject == "digits/*.head"
    with pytest.raises(NotFound, match="matches no component"):
        registry.matrix("none/*", RIGHT, tests)


def test_progress_and_settings_of_a_matrix(registry: ck.Registry, tests: list[ck.Split]) -> None:
    seen: list[tuple[int, int, str]] = []
    matrix = registry.matrix(
        "digits/*.extractor", RIGHT, tests, batch_size=16, seed=3, progress=lambda *args: seen.append(args)
    )
    assert [done for done, _, _ in seen] == list(range(1, 7)) and {total for _, total, _ in seen} == {6}
    assert {name for _, _, name in seen} == {part.reference for part in matrix.extractors}
    assert dict(matrix.settings) == {
        "metric": "recombination_accuracy 1",
        "normalisation": "batch",
        "batch_size": 16,
        "seed": 3,
        "precision": "float32",
        "fill": "missing",
        "cells": {"taken": 0, "measured": 2},
    }


def test_auxiliary_heads_to_train_against(registry: ck.Registry, fit: ck.Fit, tasks: list[ck.Task]) -> None:
    heads = registry.frozen("digits/shared.*")
    assert set(heads) == {"dcc", "rotation"} and all(head.frozen for head in heads.values())
    anchors = {a.task: a.digest for a in registry.store.manifest(LEFT).contract.protocol.anchors if a.task}
    assert {name: head.digest for name, head in heads.items()} == anchors
    assert heads["dcc"].origin == registry.store.resolve("digits/shared.dcc").digest
    assert [label.name for label in heads["dcc"].labels or ()] == ["0", "1", "2"]
    uses: list[Any] = ["identical_init", "dcc", "rotation_prediction"]
    later = quick(steps=1).fit([attrs.evolve(tasks[1], name="later")], uses, frozen=heads)
    parts = registry.publish(later, prefix="digits")
    assert registry.check(parts["later.extractor"], "digits/left.head").promise == "shared-head"
    assert set(parts) == {"later.extractor", "later.head"}  # the shared heads were released already


def test_untouched_by_reading(registry: ck.Registry, tests: list[ck.Split]) -> None:
    """Numbers drawn elsewhere, and the files, are the same after building and checking."""
    before = {path: path.stat().st_mtime_ns for path in registry.store.root.rglob("*")}
    torch.manual_seed(5)
    state = np.random.get_state()[1].copy()  # type: ignore[union-attr]
    expected = torch.rand(3)
    torch.manual_seed(5)
    registry.load(LEFT)
    registry.recombine(LEFT, RIGHT)
    registry.matrix(LEFT, RIGHT, tests, record=False)
    assert torch.equal(torch.rand(3), expected) and np.array_equal(state, np.random.get_state()[1])
    assert {path: path.stat().st_mtime_ns for path in registry.store.root.rglob("*")} == before

"""Matrices, scores and recombinations on another device give what the CPU gives; parts are loaded and moved there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from devices import on, other_devices, rounding
from small import data_set, quick

import compatkit as ck


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> ck.Registry:
    tasks = [
        ck.Task(name, data_set(name, seed=seed), "resnet8_cifar", "layer2", size=16)
        for seed, name in enumerate(("left", "right"))
    ]
    made = ck.Registry(Path(tmp_path_factory.mktemp("parts")), create=True)
    made.publish(quick(steps=3, device="cpu").fit(tasks), prefix="x")
    return made


@other_devices
@pytest.mark.parametrize("policy", ["batch", "running", "reestimate", "mix:16"])
def test_a_matrix_is_that_of_a_cpu(registry: ck.Registry, policy: str, device: str) -> None:
    def correct(there: str) -> list[int]:
        matrix = registry.matrix(
            "x/*.extractor",
            "x/*.head",
            [data_set("left", seed=0).test, data_set("right", seed=1).test],
            bn_policy=policy,
            device=there,
            fill="all",
            record=False,
            batch_size=20,
            metrics=["accuracy"],
        )
        return [cell.restricted.correct for cell in matrix.cells if cell.restricted]

    expected = correct("cpu")
    with on(device) as there:
        found = correct(there)
    assert len(expected) == 4
    assert found == pytest.approx(expected, abs=rounding(device, 2))  # near ties of 48 images


@other_devices
def test_scores_are_those_of_a_cpu(registry: ck.Registry, device: str) -> None:
    def scores(there: str) -> dict[Any, Any]:
        ranking = registry.rank(
            "x/*.extractor", data_set("left"), device=there, controls=True, scores=["logme", "leep", "nce"]
        )
        return {(row.score, row.extractor): row.goodness for row in ranking.rows}

    expected = scores("cpu")
    with on(device) as there:
        assert scores(there) == pytest.approx(expected, rel=1e-3, abs=1e-4)


@other_devices
def test_a_recombination_predicts_there(registry: ck.Registry, device: str) -> None:
    data = data_set("left")
    model = registry.recombine("x/left.extractor", "x/right.head", data=data.train)
    expected = model.predict(data.test.images)
    with on(device) as there:
        found = model.to(there).predict(data.test.images)
        model.to("cpu")
    assert len(found) == len(expected) == 48
    if device == "pretended":
        assert str(found) == str(expected)


@other_devices
def test_a_part_that_is_loaded_and_moved_computes_the_same(registry: ck.Registry, device: str) -> None:
    images = torch.rand(2, 1, 16, 16)
    with torch.no_grad():
        expected = registry.load("x/left.extractor")(images)
        with on(device) as there:
            part = registry.load("x/left.extractor").to(there)
            assert {value.device.type for value in part.state_dict().values()} == {there}
            found = part(images.to(there)).cpu()
    close = rounding(device, 1e-3)
    torch.testing.assert_close(found, expected, rtol=close, atol=close)

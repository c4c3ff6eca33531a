"""The study of bridges: pairs, what each run measures, and as few images as there are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from small import data_set, write_pack

from compatkit.studies import carry_out, find

TINY: dict[str, Any] = {
    "backbone": "resnet8_cifar",
    "kwargs": {},
    "split": "layer2",
    "train": 60,
    "test": 24,
    "steps": 2,
    "steps_halves": 2,
    "batch_size": 8,
    "image": 16,
    "counts": [10],
}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Packs of noise in place of the real data sets."""
    for seed, name in enumerate(("mnist", "usps")):
        write_pack(tmp_path, data_set(name, seed=seed, count=60))
    write_pack(tmp_path, data_set("cifar10", channels=3, count=120))
    return tmp_path


@pytest.mark.parametrize("arm", ["mnist-usps", "halves"])
def test_an_arm_measures_every_rung_that_there_is(data: Path, tmp_path: Path, arm: str) -> None:
    out = tmp_path / "out"
    found = carry_out("bridges", out, seeds=1, arms=[arm], data=str(data), changes=TINY)
    values = {row["metric"]: row["values"][0] for row in found["results"]}
    measured = {name for name, value in values.items() if value is not None}
    assert {
        "own",
        "reference",
        "ridge-10",
        "finetune-10",
        "chosen-10",
        "agreement-10",
        "seconds-10",
    } <= measured
    assert "absorbed-10" not in measured  # a bare shortcut takes the features too
    assert values.get("ridge-1000") is None
    assert all(0 <= values[name] <= 1 for name in measured if not name.startswith("seconds"))
    known = {one.name for one in find("bridges").study.measures}
    assert set(values) <= known and find("bridges").study.paper == ()

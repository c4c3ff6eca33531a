"""The study of bridges: pairs, what each run measures, and as few images as there are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from small import data_set, write_pack

from compatkit.adapters.builders import create
from compatkit.experiments.studies import find
from compatkit.experiments.studies import run as carry_out

TINY: dict[str, Any] = {
    "base": [["resnet8_cifar", "layer2", {}]],
    "families": [["resnet8_cifar", "layer1", {}], ["resnet8_cifar", "layer2", {}]],
    "train": 60,
    "test": 24,
    "steps": 2,
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


@pytest.mark.parametrize("arm", ["mnist-usps", "halves", "same-mnist+families"])
def test_an_arm_measures_every_rung_that_there_is(data: Path, tmp_path: Path, arm: str) -> None:
    out = tmp_path / "out"
    result = carry_out("bridges", out, seeds=1, arms=[arm], data=str(data), changes=TINY)
    values = {row["metric"]: row["values"][0] for row in result["results"]}
    measured = {name for name, value in values.items() if value is not None}
    message = {
        "ridge",
        "finetune",
        "chosen",
        "free",
        "agreement",
        "short",
        "within",
        "fit-seconds",
        "seconds",
    }
    assert {"own", "reference", *(f"{name}-10" for name in message)} <= measured
    assert "absorbed-10" not in measured  # a bare shortcut takes the features too
    assert ("permutation-10" in measured) == ("families" not in arm)  # 16 channels come and 32 are taken
    assert values.get("ridge-1000") is None
    assert values["short-10"] == pytest.approx(values["own"] - values["free-10"])
    assert values["within-10"] == (values["short-10"] <= 0.01)
    shares = measured - {"short-10", "fit-seconds-10", "seconds-10"}
    assert all(0 <= values[name] <= 1 for name in shares)
    known = {measure.name for measure in find("bridges").study.measures}
    assert set(values) <= known and find("bridges").study.paper == ()


def test_arms_cross_where_they_say() -> None:
    result = find("bridges").study
    size = result.sizes["cpu"]
    crossing: dict[str, list[tuple[int, ...]]] = {}
    for change in ("base", "early", "late", "wide", "families"):
        for name, cut, kwargs in size[change]:
            model: Any = create("timm", name, {"in_chans": 1, **kwargs}).eval()
            seen: list[Any] = []
            model.get_submodule(cut).register_forward_hook(lambda *args, seen=seen: seen.append(args[2]))
            with torch.no_grad():
                model(torch.zeros(1, 1, size["image"], size["image"]))
            crossing.setdefault(change, []).append(tuple(seen[0].shape[1:]))
    assert crossing == {
        "base": [(32, 8, 8)],
        "early": [(64, 8, 8)],
        "late": [(64, 2, 2)],
        "wide": [(512, 2, 2)],
        "families": [(64, 8, 8), (24, 8, 8)],
    }
    changes = {arm.partition("+")[2] or "base" for arm in result.arms}
    assert changes == {"deep", *crossing}

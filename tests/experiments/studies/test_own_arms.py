"""Arms of the user in each study that takes them: trained, measured and told apart from the study's own."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small import data_set, write_pack

from compatkit.experiments.studies import find
from compatkit.experiments.studies import run as carry_out

PAIR = {"model": "resnet8_cifar", "train": 24, "test": 24, "steps": 2, "batch_size": 8, "test_batch": 24}
TWELVE = {"steps": 2, "short_steps": 2, "pre_steps": 1, "batch_size": 64}
SAMPLES: dict[str, dict[str, Any]] = {
    "0.1": {"steps": 2, "pre_steps": 1, "widths": [4]},
    "0.1b": {"steps": 2, "hidden": 4},
    "0.2": {"steps": 2},
    "0.3": TWELVE,
    "0.4": TWELVE,
    "0.6": {"steps": 2, "pre_steps": 1, "batch_size": 4, "image": 16, "channels": [2, 2]},
    "0.7": {"steps": 2, "batch_size": 4, "train": 12, "test": 12, "model": "resnet8_cifar"},
    "3.1b": {**PAIR, "every": 1},
    "3.5": {**PAIR, "pretrain_steps": 1},
    "3.6": PAIR,
    "3.12": PAIR,
    "tuning": {"source_train": 24, "source_steps": 2, "few": 20, "test": 24, "steps": 2, "batch_size": 8},
}
"""Settings of a sample of each study; 3.1 is tested in test_arms.py."""
PLUGIN = """
from compatkit import hookimpl

compatkit_api = 1
STEPS = []


class Pulled:
    @hookimpl
    def compatkit_losses(self, step):
        STEPS.append(step.number)
        return {"pulled": (step.logits.float().mean() - 5).square()}


@hookimpl
def compatkit_regularizers(register):
    register("pulled", Pulled)
"""


@pytest.fixture(scope="module")
def packs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Packs of noise in place of the real data sets."""
    folder, classes = tmp_path_factory.mktemp("packs"), tuple("0123456789")
    for seed, (name, size, channels) in enumerate(
        (("mnist", 28, 1), ("usps", 16, 1), ("fashion-mnist", 28, 1), ("cifar10", 32, 3))
    ):
        write_pack(
            folder,
            data_set(name, classes=classes, size=(size, size), channels=channels, count=60, seed=seed),
        )
    draw = np.random.default_rng(0)
    arrays: dict[str, Any] = {"classes": np.array([f"class{place}" for place in range(16)])}
    for kind, count in (("cue_conflict", 128), ("edges", 16), ("silhouettes", 16)):
        arrays[f"{kind}_x"] = draw.integers(0, 255, (count, 16, 16, 3)).astype(np.uint8)
        arrays[f"{kind}_shape"] = np.arange(count) % 16
    np.savez(folder / "cue_conflict_16.npz", **arrays)
    return folder


@pytest.mark.parametrize("number", SAMPLES)
def test_an_arm_of_the_user_is_trained_beside_the_baseline(
    packs: Path, tmp_path: Path, number: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plugin takes part in training; at weight 0 figures are those of the baseline, bit by bit."""
    file = tmp_path / f"pulled_{number.replace('.', '_')}.py"
    file.write_text(PLUGIN)
    monkeypatch.setenv("COMPATKIT_PLUGIN_FILES", str(file))
    base = find(number).study.extends
    arms = f"{base},idle=pulled:weight=0,mine=pulled:weight=100"
    result = carry_out(
        number, tmp_path / "out", seeds=1, arms=[arms], data=str(packs), changes=SAMPLES[number]
    )
    by_arm = {
        arm: {row["metric"]: row["values"] for row in result["results"] if row["arm"] == arm}
        for arm in (base, "idle", "mine")
    }
    for figures in by_arm.values():
        figures.pop("seconds", None)
    by_arm[base].pop("b", None)  # 0.4: a network that the arms do not change, measured once
    assert by_arm["idle"] == by_arm[base]
    assert by_arm["mine"].keys() == by_arm[base].keys()
    assert sys.modules.pop(file.stem).STEPS  # type: ignore[attr-defined]
    assert "mine is not an arm of the study" in " ".join(result["notes"])
    assert all((tmp_path / "out" / name).exists() for name in result["files"])

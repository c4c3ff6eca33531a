"""The number format of a run: chosen by processor and size, told, and kept by a run that resumes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from small import data_set, same_parts
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import compatkit as ck
from compatkit.foundation.bf16 import multiplies_bf16_fast
from compatkit.training import precision
from compatkit.training.multiply_adds import multiply_adds
from compatkit.training.precision import MIN_MULTIPLY_ADDS, Precision


def task(**kwargs: Any) -> ck.Task:
    """Return a task of a fully connected network."""
    return ck.Task("a", data_set("a"), "fully_connected", "blocks.0", size=16, kwargs=kwargs)


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this processor multiply bf16 fast."""
    monkeypatch.setattr(precision, "has_fast_bf16", lambda: True)


def trainer(**settings: Any) -> ck.Trainer:
    return ck.Trainer(**{"steps": 4, "batch_size": 8, "device": "cpu", "progress": False, **settings})


@pytest.mark.parametrize(
    ("layer", "shape", "counts"),
    [
        (nn.Linear(5, 7), (3, 5), [3 * 5 * 7]),
        (nn.Conv2d(3, 8, 3, padding=1), (3, 10, 10), [100 * 8 * 27]),
        (nn.Conv2d(4, 8, 3, stride=2, groups=4), (4, 9, 9), [16 * 8 * 9]),
        (nn.ConvTranspose2d(3, 8, 2, stride=2), (3, 5, 5), [25 * 3 * 8 * 4]),
        (nn.Sequential(nn.Conv1d(2, 3, 1), nn.ReLU()), (2, 6), [6 * 2 * 3]),
        (nn.Identity(), (3, 5), []),
    ],
    ids=["linear", "convolution", "grouped", "transposed", "1d", "none"],
)
def test_multiply_adds_by_hand(layer: nn.Module, shape: tuple[int, ...], counts: list[float]) -> None:
    assert multiply_adds([layer], shape) == counts


@pytest.mark.parametrize("name", ["resnet18", "mobilenetv2_035", "test_vit"])
def test_multiply_adds_are_those_of_torchs_counter(name: str) -> None:
    network = timm.create_model(name, num_classes=10).train()
    before = {key: value.clone() for key, value in network.state_dict().items()}
    state = torch.get_rng_state()
    size = 160 if name == "test_vit" else 64
    counted = sum(multiply_adds([network], (3, size, size)))
    assert network.training and torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(value, before[key]) for key, value in network.state_dict().items())
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        network.eval()(torch.zeros(1, 3, size, size))
    flops = counter.get_flop_counts()["Global"]
    attention = sum(value for name, value in flops.items() if "attention" in str(name))
    assert counted == (sum(flops.values()) - attention) / 2


@pytest.mark.parametrize(
    ("model", "flags", "gains"),
    [
        ("AMD EPYC 9R14", {"avx512_bf16"}, True),
        ("Intel Xeon", {"avx512_bf16", "amx_bf16"}, True),
        ("Intel(R) Xeon(R) Processor", {"avx512_bf16"}, False),
        ("INTEL(R) XEON(R) PLATINUM 8581C", {"avx512_bf16"}, False),
        ("AMD EPYC 7R13", {"avx2"}, False),
        ("", set(), False),
    ],
)
def test_processors_that_multiply_bf16_fast(model: str, flags: set[str], gains: bool) -> None:
    assert multiplies_bf16_fast(model, flags) is gains


def test_the_processor_is_asked_by_the_names_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    features = {"cpu_name": "AMD EPYC", "avx512_bf16": True, "num_sockets": 1, "amx_bf16": False}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: features)
    assert precision.has_fast_bf16()
    features["cpu_name"] = "Intel Xeon"
    assert not precision.has_fast_bf16()
    monkeypatch.delattr(torch.cpu, "get_capabilities")
    assert not precision.has_fast_bf16()


@pytest.mark.usefixtures("fast")
def test_small_networks_are_float32_and_large_ones_bf16() -> None:
    small = trainer().explain([task(widths=[16] * 8)])
    assert small.precision["dtype"] == "float32" == small.settings["precision"]
    assert "multiply-adds" in small.precision["reason"] and small.precision["reason"] in str(small)
    large = trainer(batch_size=48).explain([task(widths=[4096])])
    assert large.precision["dtype"] == "bf16" and "multiply-adds" in large.precision["reason"]
    assert trainer(precision="bf16").explain([task(widths=[16])]).precision == {
        "dtype": "bf16",
        "reason": "asked for",
    }


@pytest.mark.usefixtures("fast")
def test_the_mean_of_all_tasks_over_a_micro_batch_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    counts = multiply_adds([nn.Linear(256, 64)], (256,))
    width = task(widths=[64])
    monkeypatch.setattr(precision, "MIN_MULTIPLY_ADDS", 8 * (counts[0] + 64 * len(width.data.classes)) / 2)

    def dtype(**settings: Any) -> str:
        return trainer(**settings).explain([width]).precision["dtype"]

    assert dtype() == "bf16"
    assert dtype(accumulate=2) == "float32"
    assert dtype(accumulate=2, batch_size=16) == "bf16"


def test_a_processor_without_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "has_fast_bf16", lambda: False)
    told = trainer().explain([task(widths=[16])]).precision
    assert told["dtype"] == "float32" and "does not multiply bf16 faster" in told["reason"]


def test_for_products_at_the_threshold() -> None:
    chosen = Precision("cpu", "bf16", True)
    assert chosen.for_products([MIN_MULTIPLY_ADDS, MIN_MULTIPLY_ADDS]).dtype == "bf16"
    assert chosen.for_products([MIN_MULTIPLY_ADDS, MIN_MULTIPLY_ADDS - 2]).dtype == "float32"
    assert chosen.for_products([]).dtype == "float32"


@pytest.mark.usefixtures("fast")
def test_a_run_that_resumes_keeps_the_format(
    tmp_path: Path, killed: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "MIN_MULTIPLY_ADDS", 0)
    tasks, settings = [task(widths=[16])], {"checkpoint_every": 2, "log_every": 2}
    whole = trainer(**settings).fit(tasks)
    assert whole.run["environment"]["precision"] == "bf16"
    path = tmp_path / "run.ckpt"
    killed(trainer(checkpoint=path, **settings), tasks, after=2)
    monkeypatch.undo()
    assert trainer(**settings).fit(tasks).run["environment"]["precision"] == "float32"
    told = trainer(checkpoint=path, **settings).explain(tasks).precision
    assert told == {"dtype": "bf16", "reason": "the run of the checkpoint has it"}
    resumed = trainer(checkpoint=path, **settings).fit(tasks)
    assert resumed.run["environment"]["precision"] == "bf16" and resumed.plan == whole.plan
    assert same_parts(resumed, whole)

"""Families of timm, each a mechanism of its own: parts equal the whole in every way that the zoo's table lists.

The same examination as ``benchmarks/cutting.py``, with few layers and small images. The smallest network of every
family, as timm has it: ``pytest -m slow tests/adapters/test_families.py``.
"""

from __future__ import annotations

import importlib.util
import sys
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from compatkit.adapters.builders import create
from compatkit.adapters.initialization import seeded

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def load(name: str) -> ModuleType:
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
        assert spec is not None and spec.loader is not None
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]


zoo = load("zoo")
cutting = load("cutting")

DROPS = {"drop_rate": 0.1, "drop_path_rate": 0.1}
SWIN: dict[str, Any] = {"depths": [2, 2, 2, 1], "embed_dim": 24, "num_heads": [1, 2, 4, 8]}
CROSSVIT: dict[str, Any] = {"depth": [[1, 1, 0], [1, 1, 0]], "embed_dim": [32, 64]}
TWINS: dict[str, Any] = {"depths": [2, 2, 1, 1], "embed_dims": [16, 32, 64, 128]}
EVA: dict[str, Any] = {"depth": 3, "embed_dim": 96}
FAMILIES: list[Any] = [
    # model, image side, arguments, cut, way, tensors, other image sizes
    ("resnet18", 64, {**DROPS, "layers": [1, 1, 1, 1]}, "forward_features", "canonical", 1, "yes"),
    ("resnetv2_18", 64, {**DROPS, "layers": [1, 1, 1, 1]}, "stages.1", "fx", 1, "yes"),
    (
        "densenet121",
        64,
        {"drop_rate": 0.1, "block_config": [2, 2, 2, 2]},
        "features.denseblock2.denselayer1",
        "declared",
        2,
        "yes",
    ),
    ("convnext_atto", 64, {**DROPS, "depths": [1, 1, 1, 1]}, "stages.1", "fx", 1, "yes"),
    ("mobilenetv3_small_050", 64, DROPS, "blocks.2", "fx", 1, "yes"),
    ("swin_tiny_patch4_window7_224", 56, {**DROPS, "img_size": 56, **SWIN}, "layers.1", "fx", 1, "-"),
    ("levit_128s", 224, {}, "stages.1", "fx", 1, "-"),
    ("crossvit_9_240", 240, {**DROPS, **CROSSVIT}, "forward_features", "canonical", 2, "yes"),
    ("test_vit", 64, {**DROPS, "depth": 3}, "blocks.1", "stopped", 1, "yes"),
    pytest.param("hrnet_w18_small", 64, {}, "stage3", "declared", 3, "yes", marks=pytest.mark.slow),
    ("xcit_nano_12_p8_224", 32, {**DROPS, "depth": 3}, "blocks.1", "declared", 1, "fixed"),
    ("twins_svt_small", 64, {**DROPS, **TWINS}, "blocks.1.0", "declared", 1, "fixed"),
    ("vit_small_patch16_dinov3", 32, {**DROPS, "img_size": 32, **EVA}, "blocks.1", "declared", 1, "fixed"),
    pytest.param(
        "mvitv2_tiny",
        64,
        {**DROPS, "img_size": 64},
        "stages.1",
        "declared",
        1,
        "-",
        marks=pytest.mark.slow,
    ),
    ("efficientvim_m1", 64, {"depths": [1, 1, 1]}, "stages.1", "declared", 4, "yes"),
    (
        "pit_s_224",
        64,
        {**DROPS, "img_size": 64, "depth": [1, 2, 1]},
        "transformers.0",
        "declared",
        2,
        "-",
    ),
]


@pytest.mark.parametrize(
    ("model", "side", "kwargs", "cut", "way", "tensors", "other"),
    FAMILIES,
    ids=[f"{values[0]}-{values[3]}" for values in (getattr(family, "values", family) for family in FAMILIES)],
)
def test_parts_do_what_the_whole_network_does(model, side, kwargs, cut, way, tensors, other):
    kwargs = {**kwargs, "num_classes": 10}
    with seeded(1):
        whole = create("timm", model, kwargs)
    reference = cutting.Reference(whole, (side, side))
    row = cutting.examine(whole, reference, model, kwargs, (side, side), cut)
    assert {column: row[column] for column in cutting.COLUMNS} == {
        **dict.fromkeys(cutting.COLUMNS, "yes"),
        "size": other,
    }
    assert (row["approach"], row["tensors"]) == (way, tensors)


def test_every_model_file_of_timm_is_in_the_zoo():
    import timm

    files = {timm.models.model_entrypoint(name).__module__ for name in timm.list_models()}
    assert {
        name.rpartition(".")[2] for name in files if name.startswith("timm.models.")
    } == zoo.SMALLEST.keys()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("family", zoo.SMALLEST)
def test_every_family_can_be_cut(family):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rows = list(cutting.examine_family(family, zoo.SMALLEST[family]))
    cut = [row for row in rows if row["approach"] != "none"]
    assert cut[0]["cut"] == "forward_features"
    assert not [
        row for row in rows if "DEFECT" in row["note"] or "NO" in (row[column] for column in cutting.COLUMNS)
    ]
    assert {row["cut"] for row in rows} - {row["cut"] for row in cut} <= cutting.REFUSED.get(family, set())

"""Two timm networks of different families at 224 pixels: cut, adapter, recombination, matrix, within memory."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from small import data_set

import compatkit as ck
from compatkit.cli import main

CLASSES = ("0", "1", "2")
SMALL = {"mobilenetv3_small_050": "blocks.1", "regnetx_002": "s2"}
LARGER = {"resnet18": "layer2", "mobilenetv3_small_050": "blocks.1"}
MEBIBYTES = 700
"""Allowed beyond what the interpreter with torch and timm holds; 503 were measured."""


def command(*words: str) -> None:
    """Carry out a command that must succeed."""
    try:
        main(list(words))
    except SystemExit as end:
        if end.code:
            raise


def through(folder: Path, models: dict[str, str], images: int) -> ck.Matrix:
    """Cut two models, fit an adapter for each direction, keep one with a recombination, measure all four pairs."""
    root = str(folder / "parts")
    (folder / "labels").write_text("\n".join(CLASSES))
    command("init", root)
    for seed, (model, cut) in enumerate(models.items()):
        words = ["--kwargs", '{"num_classes": 3}', "--labels", str(folder / "labels"), "--seed", str(seed)]
        command("--registry", root, "split", model, "--cut", cut, *words, "--publish", f"zoo/{model}")
    registry = ck.Registry.open(root)
    data = data_set("left", channels=3, count=images, size=(224, 224))
    adapters = {}
    for left, right in (tuple(models), tuple(models)[::-1]):
        pair = f"zoo/{left}.extractor", f"zoo/{right}.head"
        model = registry.recombine(
            *pair, insert_adapters=True, data=data.train.subset(6, seed=0), bn_policy="batch"
        )
        (adapter,) = model.inserted
        assert adapter.blueprint.model == "project" and model.predict(
            data.test.subset(4, seed=0)
        ).positions.shape == (4,)
        adapters[f"{pair[0]}@1.0.0", f"{pair[1]}@1.0.0"] = [adapter]
        registry.publish(model, f"pairs/{left}")
    return registry.matrix(
        "zoo/*.extractor", "zoo/*.head", {"zoo/*": data.test}, batch_size=6, adapters=adapters
    )


def complete(matrix: ck.Matrix, images: int) -> bool:
    """Whether all four pairs were measured, the foreign ones through their adapter."""
    wired = [cell.wiring for cell in matrix.cells]
    return wired.count("direct") == wired.count("needs-adapter") == 2 and all(
        cell.restricted is not None and cell.restricted.count == images for cell in matrix.cells
    )


@pytest.mark.slow
def test_two_families_at_224_pixels(tmp_path: Path) -> None:
    assert complete(through(tmp_path, SMALL, 8), 8)


@pytest.mark.slow
def test_they_stay_within_memory(tmp_path: Path) -> None:
    words = [sys.executable, __file__, str(tmp_path), "48"]
    below = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}  # where `small` is
    done = subprocess.run(words, capture_output=True, text=True, check=True, env=below)
    before, peak = map(int, done.stdout.splitlines()[-1].split())
    assert peak - before < MEBIBYTES


if __name__ == "__main__":
    begun = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    count = int(sys.argv[2])
    if not complete(through(Path(sys.argv[1]), LARGER, count), count):
        sys.exit("Not all pairs were measured.")
    print(begun, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)

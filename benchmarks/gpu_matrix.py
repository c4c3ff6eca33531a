"""A matrix on a GPU beside the ideal: each extractor runs once, each head on the features that were kept."""

from __future__ import annotations

import copy
import os
import tempfile
from pathlib import Path

import torch
from contest import Contestant, Mismatch, compete, ratios
from gpu_size import FULL, Size
from matrix import Correct, Parts, make_batches, normalized, policy_context, publish_parts
from torch import nn

from compatkit.evaluation.conditions import Conditions
from compatkit.evaluation.matrix import measure

BATCH = 128
OTHERS = 0.005
"""Share of the images whose class may differ, by rounding: parts that trained for two steps are near ties."""


def ours(parts: Parts, policy: str, device: str) -> Correct:
    """Measure the matrix."""
    data = {extractor.reference: parts.images for extractor in parts.extractors}
    cells = measure(parts.extractors, parts.heads, data, Conditions(policy, BATCH, device=device))
    return {(cell.extractor, cell.head): cell.restricted.correct for cell in cells if cell.restricted}


@torch.no_grad()
def ideal(parts: Parts, modules: dict[str, nn.Module], policy: str, device: str) -> Correct:
    """Count the correct predictions of all pairs by a plain loop; modules are on the device."""
    examples, counts = make_batches(parts), dict[tuple[str, str], torch.Tensor]()
    for left in parts.extractors:
        extractor, features = modules[left.reference], []
        with policy_context(policy, extractor, lambda: None):
            for pixels, labels in examples:
                images = normalized(pixels.to(device, non_blocking=True), left)
                features.append((extractor(images), labels.to(device, non_blocking=True)))
        for head in parts.heads:
            module, correct = modules[head.reference], torch.zeros((), dtype=torch.int64, device=device)
            with policy_context(policy, module, lambda: None):
                for maps, labels in features:
                    correct += (module(maps.clone()).argmax(1) == labels).sum()
            counts[left.reference, head.reference] = correct
    return {pair: int(correct) for pair, correct in counts.items()}


def matrix(rounds: int, size: Size = FULL, *, policy: str) -> list[float]:
    """Return how many times as long the matrix takes as the ideal, in each round."""
    with tempfile.TemporaryDirectory(prefix="matrix-") as folder:
        before = os.environ.get("COMPATKIT_CACHE")
        os.environ["COMPATKIT_CACHE"] = f"{folder}/cache"
        try:
            parts = publish_parts(Path(folder), "layer3", size.of(6, 2), size.of(10_000, 64))
        finally:
            os.environ.pop("COMPATKIT_CACHE")
            os.environ.update({} if before is None else {"COMPATKIT_CACHE": before})
    modules = {
        part.reference: copy.deepcopy(part.module).eval().to(size.device)
        for part in (*parts.extractors, *parts.heads)
    }
    results = dict[str, Correct]()
    contestants = {
        "ours": Contestant(
            lambda: ours(parts, policy, size.device), size.wait, lambda correct: results.update(ours=correct)
        ),
        "ideal": Contestant(
            lambda: ideal(parts, modules, policy, size.device),
            size.wait,
            lambda correct: results.update(ideal=correct),
        ),
    }
    times = compete(contestants, rounds, size.seed)
    same(results, len(parts.images))
    return ratios(times, "ours", "ideal")


def same(results: dict[str, Correct], images: int) -> None:
    """Check that both counted the same cells, and the same correct predictions but for rounding."""
    if results["ours"].keys() != results["ideal"].keys() or not results["ours"]:
        raise Mismatch(f"cells: {sorted(results['ours'])} and {sorted(results['ideal'])}")
    worst = max(abs(count - results["ideal"][pair]) for pair, count in results["ours"].items())
    if worst > OTHERS * images:
        raise Mismatch(f"right answers of a cell differ by {worst} of {images}")

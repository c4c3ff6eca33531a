"""Ranking extractors beside each score computed once, by hand: the row ``rank`` of the floor.

Six extractors of one data set normalize its images in six ways. By hand, parts and images are in memory, each extractor
and head passes once, scores of features and predictions are computed once an extractor by the same functions, and
``theory_transfer``, a score of data sets, once in all, by numpy.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from contest import Contestant, Mismatch, compete, expect, ratios
from scipy.linalg import cho_factor, cho_solve

import compatkit as ck
from compatkit.components.loading import load
from compatkit.components.scoring import SCORES
from compatkit.contracts.contract import Data
from compatkit.evaluation.component import Component
from compatkit.evaluation.metrics import Observation, Subject, advance, conclude
from compatkit_plugins.metrics import _pixels, theory_transfer

MODEL, CUT = "test_resnet", "layer1"
EXTRACTORS, IMAGES, SIZE, CLASSES, BATCH, PERMUTED = 6, 1000, 64, 10, 256, 3
LARGE = 128
"""Side of the images of ``theory_transfer`` alone."""
THEORY = "theory_transfer"
Values = dict[tuple[str, str], float | None]
"""Value by score and extractor."""


def noise(name: str, seed: int, size: int = SIZE) -> ck.data.Split:
    """Return color noise with one bright row for each class."""
    draw, labels = np.random.default_rng(seed), np.arange(IMAGES) % CLASSES
    images = draw.integers(0, 160, (IMAGES, size, size, 3)).astype(np.uint8)
    images[np.arange(IMAGES), 1 + labels] = 255
    return ck.data.Split(images, labels, tuple(map(str, range(CLASSES))), name)


def publish(folder: Path) -> tuple[ck.Registry, ck.data.DataSet]:
    """Publish six networks that were trained on one data set with six normalizations; return the data set, too."""
    data = ck.data.DataSet("source", noise("source/train", 1), noise("source/test", 2))
    tasks = [
        ck.Task(
            f"net{number}",
            data,
            MODEL,
            CUT,
            size=SIZE,
            normalize={"mean": 0.4 + number / 50, "std": 0.2 + number / 50},
        )
        for number in range(EXTRACTORS)
    ]
    registry = ck.Registry.init(folder / "parts")
    fit = ck.Trainer(steps=1, batch_size=16, precision="float32", progress=False).fit(tasks)
    registry.publish(fit, prefix="bench")
    return registry, data


def by_hand(pairs: list[tuple[Component, Component]], source: ck.data.Split, target: ck.data.Split) -> Values:
    """Return each score of each extractor, and ``theory_transfer`` of the first."""
    values: Values = {}
    labels = torch.from_numpy(target.labels)
    for extractor, head in pairs:
        observed, data = list[Observation](), extractor.manifest.contract.data
        mean, std = (torch.tensor(side).view(-1, 1, 1) for side in (data.mean, data.std))
        with torch.no_grad():
            for at in torch.arange(len(labels)).split(BATCH):
                pixels = torch.from_numpy(target.images[at.numpy()]).permute(0, 3, 1, 2).contiguous()
                images = (pixels.float() / 255 - mean) / std
                features = extractor.module(images)
                logits = head.module(features.clone())
                observed.append(
                    Observation(
                        images=images,
                        labels=labels[at],
                        positions=at,
                        logits=logits,
                        outputs={"features": features},
                    )
                )
        subject = Subject(network=extractor.module, classes=target.classes)
        for name in SCORES:
            if name != THEORY:
                values[name, extractor.reference] = _score(name, observed, subject)
    first = pairs[0][0]
    values[THEORY, first.reference] = theory(source, target, first.manifest.contract.data)
    return values


def _score(name: str, observed: list[Observation], subject: Subject) -> float | None:
    metric = ck.metrics.make_metric(name)
    state = metric.init()
    for observation in observed:
        state = advance(metric, state, observation, subject)
    table: Any = conclude(metric, state, subject)[0]
    return table.cells[0].value


def theory(source: ck.data.Split, target: ck.data.Split, data: Any) -> float:
    """Return the bound of ``theory_transfer``, with its control: the mean of permuted labels of the source."""
    sides = []
    for split in (source, target):
        images = (split.images / 255 - np.array(data.mean)) / np.array(data.std)
        rows = images.reshape(len(images), -1)
        columns = np.where(split.labels[:, None] == np.arange(CLASSES), 1.0, -1.0)
        sides.append((rows / np.linalg.norm(rows, axis=1, keepdims=True), columns))
    (left, given), (right, wanted) = sides
    across, own, theirs = _kernel(left @ right.T), _kernel(left @ left.T), _kernel(right @ right.T)
    np.fill_diagonal(own, 0.5)
    np.fill_diagonal(theirs, 0.5)
    factors, draw = (cho_factor(own, lower=True), cho_factor(theirs, lower=True)), np.random.default_rng(0)
    orders = [np.arange(len(given)), *(draw.permutation(len(given)) for _ in range(PERMUTED))]
    bounds = list[float]()
    for order in orders:
        rest = wanted - across.T @ cho_solve(factors[0], given[order])
        bounds.append(float((rest * cho_solve(factors[1], rest)).sum()) ** 0.5)
    return bounds[0]


def _kernel(cosines: Any) -> Any:
    cosines = cosines.clip(-1, 1)
    return cosines * (np.pi - np.arccos(cosines)) / (2 * np.pi)


def forget() -> None:
    """Drop what ``theory_transfer`` remembers of earlier rounds."""
    for known in (_pixels._PRODUCTS, _pixels._SUMS, theory_transfer._FACTORS):
        known.clear()


def theory_alone(rounds: int) -> list[float]:
    """Return how many times as long ``theory_transfer`` takes for six normalizations as once by hand, in each round."""
    source, target = noise("source", 1, LARGE), noise("target", 3, LARGE)
    data = [
        Data((LARGE, LARGE), "RGB", (0.4 + number / 50,) * 3, (0.2 + number / 50,) * 3)
        for number in range(EXTRACTORS)
    ]
    images, others = (
        torch.from_numpy(split.images).permute(0, 3, 1, 2).contiguous() for split in (source, target)
    )
    labels, positions = torch.from_numpy(source.labels), torch.arange(IMAGES)

    def ours() -> list[float]:
        found = list[float]()
        for each in data:
            given: Any = {"source": (images, labels, source.classes), "mean": each.mean, "std": each.std}
            metric: Any = ck.metrics.make_metric(THEORY, **given)
            state = metric.update(metric.init(), others, torch.from_numpy(target.labels), positions)
            found.append(metric.finalize(state, target.classes).cells[0].value)
        return found

    results = dict[str, float]()
    contestants = {
        "ours": Contestant(ours, forget, lambda found: results.update(ours=found[0])),
        "by hand": Contestant(
            lambda: theory(source, target, data[0]), check=lambda found: results.update(hand=found)
        ),
    }
    times = compete(contestants, rounds, seed=0)
    if abs(results["ours"] - results["hand"]) > 1e-6 * results["hand"]:
        raise Mismatch(f"{results}")
    return ratios(times, "ours", "by hand", processor=True)


def rank(rounds: int) -> list[float]:
    """Return how many times as long ``Registry.rank`` takes as each score once by hand, in each round."""
    results = dict[str, Values]()
    with tempfile.TemporaryDirectory(prefix="rank-") as folder:
        os.environ["COMPATKIT_CACHE"] = f"{folder}/cache"
        registry, data = publish(Path(folder))
        target = noise("target", 3)
        store = registry.store
        names = [f"bench/net{number}" for number in range(EXTRACTORS)]
        pairs = [
            (load(store, store.resolve(f"{name}.extractor")), load(store, store.resolve(f"{name}.head")))
            for name in names
        ]
        for pair in pairs:
            for part in pair:
                part.module.eval()

        def ours() -> Values:
            ranking = registry.rank("bench/*.extractor", target, examples=IMAGES, sources=lambda _: data)
            return {(row.score, row.extractor): row.cell.value for row in ranking.rows}

        contestants = {
            "ours": Contestant(ours, forget, lambda found: results.update(ours=found)),
            "by hand": Contestant(
                lambda: by_hand(pairs, data.train, target), check=lambda found: results.update(hand=found)
            ),
        }
        times = compete(contestants, rounds, seed=0)
    expect("scores", len(results["ours"]), len(SCORES) * EXTRACTORS)
    for key, value in results["hand"].items():
        other = results["ours"][key]
        if value is None or other is None or abs(value - other) > 1e-3 * abs(value):
            raise Mismatch(f"{key}: {other} and {value}")
    return ratios(times, "ours", "by hand", processor=True)

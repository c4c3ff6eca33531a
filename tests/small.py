"""Small data and a quick trainer that tests of many rooms share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

import compatkit as ck
from compatkit.data.dataset import DataSet, Split


def data_set(
    name: str,
    *,
    classes: tuple[str, ...] = ("0", "1", "2"),
    size: tuple[int, int] = (12, 12),
    count: int = 48,
    channels: int = 1,
    seed: int = 0,
) -> DataSet:
    """Return noise with one bright row per class, so that a small network can learn it."""
    draw = np.random.default_rng(seed)
    splits = []
    for part in ("train", "test"):
        labels = np.arange(count) % len(classes)
        images = draw.integers(0, 120, (count, *size, channels)).astype(np.uint8)
        for index, label in enumerate(labels):
            images[index, 1 + 2 * (int(label) % 3)] = 255
        splits.append(Split(images, labels.astype(np.int64), classes, f"{name}/{part}"))
    return DataSet(name, *splits)


def quick(**settings: Any) -> ck.Trainer:
    """Return a trainer in float32, for figures that are compared closely."""
    return ck.Trainer(
        **{"batch_size": 8, "precision": "float32", "progress": False, "log_every": 1, **settings}
    )


def same_parts(left: ck.Fit, right: ck.Fit) -> bool:
    """Whether two fits hold bitwise equal weights and buffers in all their parts."""
    parts = [
        (getattr(left.tasks[name], side), getattr(right.tasks[name], side))
        for name in left.tasks
        for side in ("extractor", "head")
    ]
    parts += [(head.module, right.auxiliary[name].module) for name, head in left.auxiliary.items()]
    return all(
        torch.equal(value, other.state_dict()[key])
        for entry, other in parts
        for key, value in entry.state_dict().items()
    )


def grouped(name: str = "a", **settings: Any) -> ck.Task:
    """Return a task of a network without batch normalization, whose gradients do not depend on how a batch is cut."""
    kwargs = {"norm_layer": "groupnorm1"}
    return ck.Task(name, data_set(name), "test_resnet", "layer2", size=32, kwargs=kwargs, **settings)


def write_pack(folder: Path, data: DataSet) -> None:
    """Write a data set as a pack under its name."""
    np.savez(
        folder / f"{data.name}.npz",
        x_train=data.train.images,
        y_train=data.train.labels,
        x_test=data.test.images,
        y_test=data.test.labels,
        classes=np.array(data.classes),
    )


def write_packs(folder: Path, **settings: Any) -> None:
    """Write two small data sets with the same classes, ``left`` and ``right``, as packs; see ``data_set``."""
    for seed, name in enumerate(("left", "right")):
        write_pack(folder, data_set(name, seed=seed, **settings))

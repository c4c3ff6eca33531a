"""A share of the training images that no step sees: drawn from (seed, task), the same of every class."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np
import torch

from compatkit.data.split import Split
from compatkit.errors import DataError
from compatkit.training.randomness import generator
from compatkit.training.task import Task


def check_classes(task: Task) -> None:
    """Refuse training images that are all of one class.

    Raises:
        DataError: There is nothing to tell apart.
    """
    _several(task, task.data.train, "training images")


def hold_out(tasks: Sequence[Task], share: float | None, seed: int) -> tuple[list[Task], dict[str, Split]]:
    """Return the tasks with a share of their training images taken out, and what was taken, by task.

    Args:
        tasks: As they were given; none is changed.
        share: Of the images of each class, rounded, at least one of each class that has two; None takes none.
        seed: Of the run.

    Raises:
        DataError: What would be held out is no images, or of one class only.
    """
    if share is None:
        return list(tasks), {}
    kept: list[Task] = []
    held: dict[str, Split] = {}
    for task in tasks:
        data = task.data
        out = _positions(data.train, share, seed, task.name)
        if not len(out):
            raise DataError(
                f"Task {task.name!r}: no class of {data.train.name} has two images, so that none can be held out for "
                "validation. Give more images, or leave validation out."
            )
        rest = np.setdiff1d(np.arange(len(data.train)), out)
        held[task.name] = data.train.take(out)
        _several(task, held[task.name], f"images held out by validation={share}")
        kept.append(attrs.evolve(task, data=attrs.evolve(data, train=data.train.take(rest))))
    return kept, held


def _positions(split: Split, share: float, seed: int, task: str) -> np.ndarray:
    draw = generator(seed, "validation", task)
    chosen = [np.empty(0, dtype=np.int64)]
    for label in range(len(split.classes)):
        places = np.flatnonzero(split.labels == label)
        count = min(max(round(share * len(places)), 1), len(places) - 1)
        if count > 0:
            chosen.append(places[torch.randperm(len(places), generator=draw).numpy()[:count]])
    return np.sort(np.concatenate(chosen))


def _several(task: Task, split: Split, what: str) -> None:
    there = [name for name, count in zip(split.classes, split.counts, strict=True) if count]
    if len(there) < 2:
        raise DataError(
            f"Task {task.name!r}: the {len(split)} {what} of {split.name} are all of the class {there[0]!r}, so that "
            "there is nothing to tell apart. Give images of at least two classes.",
        )

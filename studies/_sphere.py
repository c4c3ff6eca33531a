"""The network of the twelve-bit studies, and its stages: with an arm's regularizer on A, then without it on A or B."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import compatkit as ck
from compatkit.experiments.studies import Run

from ._arms import regularizers, trainer

WIDTHS = (10, 7, 5, 4, 3)
LAYERS = (*(f"blocks.{index}" for index in range(len(WIDTHS))), "fc")
"""Modules whose outputs, after the activation, are D_2 to D_7 of the paper."""
LINEAR = (*(f"blocks.{index}.linear" for index in range(len(WIDTHS))), "fc")
SETTINGS: dict[str, dict[str, Any]] = {
    "cpu": {
        "steps": 1000,
        "batch_size": 512,
        "lr": 3e-3,
        "ort": 0.01,
        "pre_steps": 300,
        "pre_lr": 3e-3,
        "short_steps": 600,
        "short_lr": 2e-3,
    },
    # 8,000 epochs of 3,277 patterns, six whole batches of 512 each.
    "paper": {
        "steps": 48_000,
        "batch_size": 512,
        "lr": 4e-4,
        "ort": 0.1,
        "pre_steps": 8000,
        "pre_lr": 4e-4,
        "short_steps": 6000,
        "short_lr": 4e-4,
    },
}


def first_stage(run: Run) -> ck.Fit:
    """Train on task A with the arm's regularizer; ``pre`` only trains its autoencoders, without a step on labels."""
    settings = run.settings
    task = _task(run.load("sphere-rule"))
    # The local variant also covers all six layers and includes the non-linearities, as in the paper.
    local = {"layers": list(LINEAR), "activation": True} if run.arm == "rr-local" else {}
    used = regularizers(run.arm, settings, **local)
    steps = 0 if run.arm == "pre" else settings["steps"]
    return trainer(run, steps, settings["lr"], settings["batch_size"]).fit([task], [*used, *run.added])


def second_stage(run: Run, first: ck.Fit | None, task: str, *, short: bool = False) -> ck.Fit:
    """Train without regularizer from all weights of the first stage, or from random weights if there is none."""
    settings = run.settings
    steps, lr = (
        (settings["short_steps"], settings["short_lr"]) if short else (settings["steps"], settings["lr"])
    )
    weights = None if first is None else first.weights("sphere-rule")
    return trainer(run, steps, lr, settings["batch_size"]).fit([_task(run.load(task), weights)])


def whole(data: ck.DataSet) -> ck.Split:
    """Return all 4,096 patterns."""
    import numpy as np

    both = (data.train, data.test)
    images, labels = (
        np.concatenate([getattr(split, what) for split in both]) for what in ("images", "labels")
    )
    return ck.Split(images, labels, data.classes, f"{data.name}/all")


def _task(data: ck.DataSet, weights: Mapping[str, Any] | None = None) -> ck.Task:
    """Return the task: 12-10-7-5-4-3-2 with tanh, bits as -1 and 1."""
    return ck.Task(
        data.name,
        data,
        "fully_connected",
        "forward_features",
        size=(3, 4),
        kwargs={"widths": list(WIDTHS), "activation": "tanh", "initial": "glorot"},
        normalize={"mean": 0.5, "std": 0.5},
        weights=weights,
        keep_class_layer=weights is not None,
    )

"""A source network with a rotation head, published, and images of another domain."""

from __future__ import annotations

import shutil
from pathlib import Path

import attrs
from small import data_set, quick

import compatkit as ck

BACKBONE = "resnet8_cifar"


def source(name: str = "left", seed: int = 0, **settings: object) -> ck.Task:
    """Return the task of a source network."""
    return ck.Task(name, data_set(name, seed=seed), BACKBONE, "layer2", size=16, **settings)  # type: ignore[arg-type]


def publish_source(root: Path) -> None:
    """Train a source with a rotation head that takes flips for half turns, and publish its parts as ``d/...``."""
    fit = quick(steps=2).fit([source()], [ck.use("rotation_prediction", half_turn="flip")])
    ck.Registry.init(root).publish(fit, prefix="d")


def copied(path: Path, root: Path) -> ck.Registry:
    """Return a registry of one's own with what ``kept`` holds."""
    shutil.copytree(path, root)
    return ck.Registry.open(root)


def target() -> ck.Split:
    """Return images of another domain, with labels."""
    return data_set("right", seed=1).train


def shuffled(split: ck.Split) -> ck.Split:
    """Return the same images with other labels."""
    return attrs.evolve(split, labels=split.labels[::-1].copy())

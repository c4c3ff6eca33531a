"""Common parts of objectives of networks that output images: the task without a class layer, its images as targets."""

from __future__ import annotations

import attrs

from compatkit import SetUp, Task, hookimpl
from compatkit.errors import UsageError

IDENTITY = {"mean": (0.0,), "std": (1.0,)}
"""Normalization that leaves pixels from 0 to 1."""


class ImageObjective:
    """Trains networks whose features are images: ``step.features`` should be like ``step.batch.images``."""

    @hookimpl
    def compatkit_task(self, task: Task, seed: int) -> Task:
        """Return the task without a class layer, with pixels from 0 to 1.

        Raises:
            UsageError: It has a normalization of its own.
        """
        if task.normalize is not None and dict(task.normalize) != IDENTITY:
            raise UsageError(
                f"Task {task.name!r} is trained to give images, from pixels from 0 to 1. Leave out normalize=.",
                subject=task.name,
            )
        return attrs.evolve(task, own_head=False, normalize=IDENTITY)

    @hookimpl
    def compatkit_set_up(self, setup: SetUp) -> None:
        """Check that features have the shape of images.

        Raises:
            UsageError: They do not.
        """
        for state in setup.tasks.values():
            expected = (len(state.data.mean), *state.data.size)
            if tuple(state.feature_shape[1:]) != expected:
                raise UsageError(
                    f"Task {state.name!r} is to give images of shape {expected}, but {state.task.model} cut at "
                    f"{state.task.cut!r} gives {tuple(state.feature_shape[1:])}. Cut it behind the layer that gives "
                    "images, such as 'generator' of super_resolution or 'decoder' of image_autoencoder.",
                    subject=state.name,
                )

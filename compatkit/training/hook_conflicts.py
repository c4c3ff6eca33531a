"""Refuse plugins whose hooks cannot act in a run, before anything is built."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from compatkit.errors import PluginError, UsageError
from compatkit.plugins import RunPlugins
from compatkit.training.task import Task


def check_hooks(plugins: RunPlugins, tasks: Sequence[Task]) -> None:
    """Check the hooks of a run's plugins against its tasks.

    Args:
        plugins: Plugins of the run.
        tasks: Tasks of the run.

    Raises:
        PluginError: A plugin changes losses of the tasks, and no task has one; or two plugins combine gradients in the
            same steps.
        UsageError: A plugin chooses the images of a task with a loader.
    """
    for bound in plugins.sampler:
        for task in tasks:
            if task.loader is not None:
                raise UsageError(
                    f"The plugin {bound.instance!r} chooses the images of each epoch (compatkit_sampler), and task "
                    f"{task.name!r} has a loader, which chooses them itself. Leave one of them out.",
                    subject=task.name,
                )
    if plugins.sample_losses and not any(task.supervised and task.own_head for task in tasks):
        name = plugins.sample_losses[0].instance
        raise PluginError(
            f"Plugin {name!r}: compatkit_sample_losses changes the tasks' own losses, and no task of this run has "
            "labels and a head of its own. Leave the plugin out.",
            plugin=name,
            hook="compatkit_sample_losses",
        )
    for left, right in combinations(plugins.combine_gradients, 2):
        first = max(left.phase.start, right.phase.start)
        if first in left.phase and first in right.phase:
            raise PluginError(
                f"The plugins {left.instance!r} and {right.instance!r} both have compatkit_combine_gradients in step "
                f"{first}, and a step has one gradient. Leave one of them out, or give them steps of their own with "
                "start and stop.",
                plugin=right.instance,
                hook="compatkit_combine_gradients",
            )

"""Pretraining by plugins before the first step: batches, a progress bar, and equal weights in all processes.

Each process trains on complete batches and copies the weights of the first process at the end, so that processes need
not wait for each other and rounding cannot make them differ.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any

import attrs

from compatkit.errors import FormatError, PluginError, type_of
from compatkit.foundation.codec import dumps
from compatkit.hooks import Batch
from compatkit.training.batches.sources import ImagePlacement
from compatkit.training.loop import Loop
from compatkit.training.networks import initial_digest
from compatkit.training.plugin_setup import SetUp, check_weights
from compatkit.training.progress import Bar
from compatkit.training.randomness import reseed, seed_of
from compatkit.training.task_state import TaskState

Pretrained = Mapping[str, Any]
"""``{"plugins": {instance: report}, "initial": {task: digest of the weights of the first step}}``."""


@attrs.frozen(eq=False)
class Pretraining:
    """Images and progress for ``compatkit_pretrain``.

    Attributes:
        setup: Setup of the run.
        image_placement: Storage of images.
        shown: Whether to show progress.
    """

    setup: SetUp
    image_placement: ImagePlacement
    shown: bool = False

    def batches(self, task: TaskState, *key: str | int, steps: int, batch_size: int) -> Iterator[Batch]:
        """Yield batches of a task's training images, augmented and normalized as in its steps, in their own order.

        Args:
            task: State of the task.
            key: Key of the random numbers of order and augmentation; starts with the name of the plugin's instance.
            steps: Number of batches.
            batch_size: Images of a batch.

        Raises:
            DataError: There are fewer images than in a batch.
        """
        seed = seed_of(self.setup.seed, "plugin", *key)
        with closing(self.image_placement.source(task, seed, batch_size, self.setup.precision)) as source:
            for number in range(steps):
                yield source.batch(number)

    def bar(self, title: str, steps: int, batch_size: int) -> Bar:
        """Return a progress bar like the trainer's, to be used in a ``with`` and moved by ``at(step, losses)``.

        Args:
            title: Text before the bar.
            steps: Number of all steps.
            batch_size: Images of a step, to show images per second.
        """
        return Bar(self.shown, title, steps, 0, batch_size)


def pretrain(loop: Loop, shown: bool) -> Pretrained | None:
    """Run the pretraining of plugins; afterwards all processes have equal weights, in train mode.

    Args:
        loop: Loop before its first step.
        shown: Whether to show progress.

    Returns:
        Reports of the plugins, equal in all processes; None without pretraining.

    Raises:
        PluginError: A report cannot be stored in a manifest.
        IntegrityError: A plugin left invalid weights.
    """
    hooks, setup, world = loop.plugins.pretrain, loop.setup, loop.world
    if not hooks:
        return None
    pretraining, reports = Pretraining(setup, loop.settings.image_placement, shown), dict[str, Any]()
    for bound in hooks:
        reseed(setup.precision.device, seed_of(setup.seed, "pretrain", bound.instance))
        reports[bound.instance] = _plain(bound.instance, bound.call(setup, pretraining))
        check_weights(setup, f"Plugin {bound.instance!r} left unusable weights in compatkit_pretrain")
    for module in setup.owners.values():
        module.zero_grad(set_to_none=True)
        if world.size > 1:
            for value in module.state_dict().values():
                world.broadcast(value)
    loop.train_mode()
    if loop.averages is not None:
        loop.averages.start_from(setup.owners)
    for state in setup.tasks.values():
        state.initial = initial_digest(state)
    report = {"plugins": reports, "initial": {name: state.initial for name, state in setup.tasks.items()}}
    first_report = world.broadcast_bytes(json.dumps(report).encode() if world.first else None)
    return json.loads(first_report or b"{}")


def _plain(instance: str, report: object) -> Mapping[str, Any]:
    try:
        if not isinstance(report, Mapping):
            raise FormatError(f"it is {type_of(report)}, not a mapping")
        dumps(report)
    except FormatError as error:
        raise PluginError(
            f"Plugin {instance!r}: compatkit_pretrain returned a value that cannot be stored in a manifest: {error} "
            "Return a mapping of JSON values, which may be empty.",
            plugin=instance,
            hook="compatkit_pretrain",
        ) from error
    return report

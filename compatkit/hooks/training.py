"""Training hooks, which are methods of the object that a regularizer's factory returns.

A fit resolves them once into plain tuples, so pluggy is never called inside a step. Their arguments are declared in
``arguments``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import attrs

from compatkit.errors import UsageError
from compatkit.foundation.limits import WHOLE, Number
from compatkit.hooks.arguments import (
    Batch,
    EvaluationLike,
    JointStepLike,
    PretrainingLike,
    SetUpLike,
    StepLike,
    TaskLike,
)
from compatkit.hooks.markers import hookspec

if TYPE_CHECKING:
    from torch import Tensor

Defined = TypeVar("Defined")
"""A ``compatkit.Task``."""


@attrs.frozen
class Phase:
    """Range of a task's steps in which a plugin is active: ``start <= step < stop``; ``stop=None`` is open-ended."""

    start: int = attrs.field(default=0, validator=WHOLE)
    stop: int | None = attrs.field(default=None, validator=Number(least=0, whole=True, optional=True))

    def __attrs_post_init__(self) -> None:
        if self.stop is not None and self.stop <= self.start:
            raise UsageError(f"stop must be greater than start; got start={self.start}, stop={self.stop}.")

    def __contains__(self, step: object) -> bool:
        return isinstance(step, int) and self.start <= step and (self.stop is None or step < self.stop)


class Training:
    """Training hooks, implemented by the objects that a regularizer's factory returns."""

    @hookspec
    def compatkit_task(self, task: Defined, seed: int) -> Defined:
        """Return a ``compatkit.Task`` to train in place of ``task``, before networks are built; or ``task`` itself.

        Example::

            @hookimpl
            def compatkit_task(self, task, seed):
                return attrs.evolve(task, data=task.data.subset(train=1000, seed=seed))
        """
        raise NotImplementedError

    @hookspec
    def compatkit_set_up(self, setup: SetUpLike) -> None:
        """Build modules, register them with the run, and initialize weights, once before the first step.

        Example::

            @hookimpl
            def compatkit_set_up(self, setup):
                self.head = setup.add_auxiliary_head("dcc", classes=setup.shared_classes())
                self.layer = setup.own("layer", nn.Linear(64, 32))

        Args:
            setup: Tasks and networks of the run, and methods that add modules to it.
        """

    @hookspec
    def compatkit_pretrain(self, setup: SetUpLike, pretraining: PretrainingLike) -> Mapping[str, Any]:
        """Train before the first step of a run that does not resume; return JSON values for the manifest.

        Example::

            @hookimpl
            def compatkit_pretrain(self, setup, pretraining):
                for task in setup.tasks.values():
                    for batch in pretraining.batches(task, "mine", task.name, steps=100, batch_size=64):
                        self.move(task.extractor, batch.images)
                return {"steps": 100}

        Args:
            setup: Tasks and networks of the run.
            pretraining: Source of batches and progress bars.
        """
        raise NotImplementedError

    @hookspec
    def compatkit_sampler(self, task: TaskLike, epoch: int, order: Tensor) -> Tensor:
        """Return the positions of the training images of a task's epoch; called before its first step.

        Example::

            @hookimpl
            def compatkit_sampler(self, task, epoch, order):
                rng = self.setup.rng("mine", task.name, epoch)
                return torch.multinomial(self.weights, len(order), replacement=True, generator=rng)

        Args:
            task: The task.
            epoch: Number of the epoch, from 0.
            order: All positions in random order, int64 ``(images,)``, or the result of an earlier plugin.

        Returns:
            Whole numbers ``(n,)``, at least as many as the epoch's batches take; further ones are left out. Positions
            may be repeated.
        """
        raise NotImplementedError

    @hookspec
    def compatkit_views(self, step: StepLike, batch: Batch) -> Batch:
        """Return a new batch to replace ``batch`` (augmentation, other labels); never modify ``batch``.

        Example::

            @hookimpl
            def compatkit_views(self, step, batch):
                return attrs.evolve(batch, images=batch.images.flip(-1))

        Args:
            step: The current step.
            batch: Images ``(N, C, H, W)``, normalized, and labels ``(N,)``, as returned by earlier plugins.
        """
        raise NotImplementedError

    @hookspec
    def compatkit_joint_losses(self, joint: JointStepLike) -> Mapping[str, Tensor]:
        """Return scalar losses of the networks of several tasks, by name; they are logged as ``instance/name``.

        It is called once a round, which is one step of every task, before the first of them, and for each micro-batch.
        With the weights a, b, ... of the networks before the round, their own losses L_a, L_b, ... and the weighted
        joint losses J, the step of task a moves a along dL_a/da + dJ/da, that of b moves b along dL_b/db + dJ/db. A
        network is moved by its own step only, so together this is one step along the gradient of L_a + L_b + J, each
        network by its own optimizer. Modules that tasks share move in every step; their gradient of J belongs to the
        first step of the round. Clipping, averages and several processes treat the sum as any gradient of a step. All
        tasks take the same number of steps, so no round lacks a task.

        Example::

            @hookimpl
            def compatkit_joint_losses(self, joint):
                (a, step), (b, _) = joint.steps.items()
                features = [joint.extract(name, step.batch.images, source=a) for name in (a, b)]
                return {"tie": (features[0] - features[1]).square().mean()}

        Args:
            joint: Steps of all tasks with their batches, after views and before any forward pass.

        Returns:
            Scalars on the device of the run, with a gradient for any networks and modules of the run.
        """
        raise NotImplementedError

    @hookspec
    def compatkit_further_views(self, images: Tensor) -> Sequence[Tensor]:
        """Return extra views of ``images`` for the extractor; ``step.views`` has their features.

        A view permutes the pixels of an image. The trainer calls the hook once with the positions of pixels, integers,
        and gathers the views of each batch together with its images.

        Example::

            @hookimpl
            @effect("pure")
            def compatkit_further_views(self, images):
                return [images.flip(-2)]

        Args:
            images: ``(N, C, H, W)``.

        Returns:
            Views of the same shape and type.
        """
        raise NotImplementedError

    @hookspec
    def compatkit_sample_losses(self, step: StepLike, losses: Tensor) -> Tensor:
        """Return the task's loss of each image, changed or weighted; the trainer takes the mean, as ``task``.

        Plugins are called in order, each with the result of the one before, for each micro-batch and each process; not
        for a task without labels or without a head of its own. A plugin's weight w blends: the trainer goes on with
        ``losses + w * (returned - losses)``, so that weight 1 takes what is returned. The history also has the plain
        mean, as ``cross_entropy``.

        Example::

            @hookimpl
            @effect("pure")
            def compatkit_sample_losses(self, step, losses):
                chance = step.logits.softmax(1).gather(1, step.batch.labels[:, None])[:, 0]
                return (1 - chance) ** 2 * losses

        Args:
            step: The current step. In this hook ``features`` and ``logits`` are those that the losses come from, in
                float32: under mixup and CutMix of the mixed images, with the shares of classes in ``mixed_labels``.
            losses: Cross-entropy of each image with its graph, float32 ``(N,)``, label smoothing included.

        Returns:
            Losses ``(N,)``, with a gradient.
        """
        raise NotImplementedError

    @hookspec
    def compatkit_losses(self, step: StepLike) -> Mapping[str, Tensor]:
        """Return scalar losses by name; the trainer weights, adds and logs them as ``instance/name``.

        Example::

            @hookimpl
            def compatkit_losses(self, step):
                return {"norm": step.features.square().mean()}

        Args:
            step: The current step; features and outputs are computed on first use.

        Returns:
            Scalars on the device of the step.
        """
        raise NotImplementedError

    @hookspec
    def compatkit_combine_gradients(
        self, step: StepLike, gradients: Mapping[str, Mapping[str, Tensor]]
    ) -> Mapping[str, Tensor]:
        """Return the gradient of the step, made of those of its losses; without the hook it is their sum.

        It is called once a step, after the backward passes of all micro-batches, with gradients that are means over
        all processes. It sees the parameters that at least two losses of the step reach; the others get the only
        gradient that they have. The hooks after it, clipping and the optimizers work on what it returns. One plugin can
        have the hook in a step. A plugin's weight w blends: ``sum + w * (returned - sum)``.

        Example::

            @hookimpl
            def compatkit_combine_gradients(self, step, gradients):
                first, *others = gradients.values()
                return {name: first[name] + sum(each[name] for each in others) for name in first}

        Args:
            step: First micro-batch of the step; ``step.rng`` is that of the step, equal in all processes.
            gradients: Gradient of each loss for each parameter, with the weight of the loss: by ``task``, then
                ``<instance>/<loss>`` in the order of names, and by the name of the parameter, which is its owner in
                ``Trainer.explain`` and its name there, such as ``left.extractor.conv1.weight``. 0 where a loss does not
                reach a parameter.

        Returns:
            Gradient of each of these parameters, by name.
        """
        raise NotImplementedError

    @hookspec
    def compatkit_after_backward(self, step: StepLike) -> None:
        """Run after the gradients of a step are complete and before the optimizer updates the weights.

        Example::

            @hookimpl
            def compatkit_after_backward(self, step):
                self.clip(step.task.parameters())
        """

    @hookspec
    def compatkit_after_step(self, step: StepLike) -> None:
        """Run after the optimizer updated the weights; ``step.losses`` has the losses of the step, on the device.

        Example::

            @hookimpl
            def compatkit_after_step(self, step):
                self.average.update(step.task)
        """

    @hookspec
    def compatkit_after_epoch(self, step: StepLike) -> None:
        """Run after each pass of a task through its training examples.

        Example::

            @hookimpl
            def compatkit_after_epoch(self, step):
                self.history.append(step.number)
        """

    @hookspec
    def compatkit_after_evaluation(self, evaluation: EvaluationLike) -> None:
        """Run after each evaluation, ``Trainer(evaluate_every=)``, with its figures as plain numbers.

        Example::

            @hookimpl
            def compatkit_after_evaluation(self, evaluation):
                if all(figures["accuracy"] > 0.99 for figures in evaluation.metrics.values()):
                    evaluation.request_stop("all tasks are solved")
        """

    @hookspec
    def compatkit_finish(self, setup: SetUpLike) -> None:
        """Run once after the last step.

        Example::

            @hookimpl
            def compatkit_finish(self, setup):
                self.average.copy_to(setup.tasks)
        """

    @hookspec
    def compatkit_teardown(self, setup: SetUpLike) -> None:
        """Close what the plugin opened; run after ``compatkit_finish``, any error, interruption or stop.

        Plugins are torn down in the opposite order. A plugin is left out if its own set-up failed.

        Example::

            @hookimpl
            def compatkit_teardown(self, setup):
                self.file.close()
        """

    @hookspec
    def compatkit_state(self) -> Mapping[str, Any]:
        """Return tensors and JSON values for the checkpoint; modules that the run owns are saved anyway.

        Example::

            @hookimpl
            def compatkit_state(self):
                return {"count": self.count}
        """
        raise NotImplementedError

    @hookspec
    def compatkit_load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the result of ``compatkit_state``.

        Example::

            @hookimpl
            def compatkit_load_state(self, state):
                self.count = state["count"]
        """

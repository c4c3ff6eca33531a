"""Training loop: steps of tasks, with hooks that are resolved before the first step and no host synchronization."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import attrs
import torch
from torch import Tensor

from compatkit.adapters.mixing import Mixing
from compatkit.plugins import RunPlugins
from compatkit.training.batches.loaders import seeded
from compatkit.training.distributed import ALONE, World
from compatkit.training.ending import StopRequest
from compatkit.training.execution import EAGER, Captured, Execution
from compatkit.training.gradient_checks import check_all_trained, check_no_gradients, cross_task_error
from compatkit.training.joint import JOINT, Rounds
from compatkit.training.loss_gradients import LossGradients
from compatkit.training.objective import total_loss
from compatkit.training.optim import (
    CAPTURED,
    Averages,
    optimizer_state,
    restore_state,
)
from compatkit.training.optimizers import RunOptimizers
from compatkit.training.plugin_setup import SetUp
from compatkit.training.randomness import reseed, seed_of
from compatkit.training.replicas import GradientAllReduce, average_statistics
from compatkit.training.settings import Settings
from compatkit.training.step import NO_LABEL, Step, StepResult, combine_results, split_batch
from compatkit.training.step_errors import explained, no_gradient_error
from compatkit.training.task_loop import TaskLoop
from compatkit.training.task_state import TaskState


@attrs.define(eq=False)
class Loop:
    """Loop of a prepared run, with one optimizer for each network and each shared module.

    Attributes:
        settings: Settings of the trainer.
        setup: Tasks and networks of the run.
        plugins: Plugins of the run.
        world: Processes of the run.
        rates: Settings and learning rates of the optimizers.
        optimizers: Optimizer of each network, by ``network/<task>``, and of each shared module, by owner.
        task_loops: Resolved hooks, seeds and optimizers by task.
        trainable: Parameters of all optimizers.
        averages: Moving averages of all trained modules, or None.
        all_reduce: Means of gradients over several processes; None for one.
        rounds: Joint losses of the tasks, or None.
        execution: Whether steps are compiled or captured.
        captures: Whether steps are replayed as CUDA graphs; never with several processes.
        stop: Request of a plugin to end the run.
        mark: Callback with the name of each finished part of a step while a profile is taken, else None.

    Raises:
        DataError: There are fewer images than in a batch.
        UsageError: A task has nothing to train; one pass for all views was requested, but an extractor would mix them;
            or a layer cannot be recorded.
    """

    settings: Settings
    setup: SetUp
    plugins: RunPlugins
    world: World = ALONE
    rates: RunOptimizers = attrs.field(init=False)
    optimizers: dict[str, torch.optim.Optimizer] = attrs.field(init=False)
    task_loops: dict[str, TaskLoop] = attrs.field(init=False)
    trainable: tuple[Tensor, ...] = attrs.field(init=False)
    averages: Averages | None = attrs.field(default=None, init=False)
    all_reduce: GradientAllReduce | None = attrs.field(default=None, init=False)
    rounds: Rounds | None = attrs.field(default=None, init=False)
    execution: Execution = attrs.field(default=EAGER, init=False)
    captures: bool = attrs.field(default=False, init=False)
    mark: Callable[[str], None] | None = attrs.field(default=None, init=False)
    stop: StopRequest = attrs.field(factory=StopRequest, init=False)

    def __attrs_post_init__(self) -> None:
        settings, setup = self.settings, self.setup
        self.rates = RunOptimizers.of(settings, setup)
        self.optimizers = self.rates.optimizers
        self.trainable = tuple(
            parameter
            for module in setup.owners.values()
            for parameter in module.parameters()
            if parameter.requires_grad
        )
        self.task_loops = {
            name: TaskLoop.of(settings, setup, self.plugins, self.world, state, self.optimizers)
            for name, state in setup.tasks.items()
        }
        if settings.ema is not None:
            self.averages = setup.averages = Averages.of(
                settings.ema, settings.ema_warmup, setup.owners, setup.tasks
            )
        self.rounds = Rounds.of(setup, self.plugins, self.world, self.trainable)
        self.zero_grad()  # gradients left by hooks before the first step
        if self.world.size > 1:
            self.all_reduce = GradientAllReduce(setup.owners, setup.tasks, self.world)

    def train_mode(self) -> None:
        """Put all modules into train mode, except frozen ones with stored statistics."""
        for module in self.setup.owners.values():
            module.train()
        for head in self.setup.auxiliary.values():
            if head.frozen:
                head.module.train(head.statistics == "batch")
        for state in self.setup.tasks.values():
            for layer in state.frozen_norms:
                layer.eval()

    def resume_at(self, number: int) -> None:
        """Prepare every task's images for the step at which a run resumes.

        Raises:
            TrainingError: A loader cannot be repeated up to that step.
        """
        for task_loop in self.task_loops.values():
            task_loop.source.resume_at(number)

    def forget_orders(self) -> None:
        """Drop drawn orders of images and fetched batches."""
        for task_loop in self.task_loops.values():
            task_loop.source.forget()

    def drawn_orders(self) -> dict[str, tuple[int, Tensor]]:
        """Return the number of the current epoch and its order of images, by task that has begun one."""
        orders = {name: task_loop.source.order for name, task_loop in self.task_loops.items()}
        drawn = {name: order.drawn for name, order in orders.items() if order is not None}
        return {name: order for name, order in drawn.items() if order is not None}

    def restore_orders(self, drawn: Mapping[str, tuple[int, Tensor]]) -> None:
        """Restore the result of ``drawn_orders``."""
        for name, (epoch, order) in drawn.items():
            sampler = self.task_loops[name].source.order
            if sampler is not None:
                sampler.restore(epoch, order)

    @contextmanager
    def restored(self) -> Iterator[None]:
        """Restore modules and optimizers on exit, bit by bit and in the same memory, and drop all gradients.

        New moments are set to zero, as in a new optimizer, since a CUDA graph may refer to them.
        """
        states = [
            (optimizer, copy.deepcopy(optimizer_state(optimizer)))
            for name, optimizer in self.optimizers.items()
            if self.rates.rules[name].optimizer not in CAPTURED
        ]
        saved = [
            (value, value.detach().clone())
            for module in self.setup.owners.values()
            for value in module.state_dict(keep_vars=True).values()
        ]
        moments = {id(value): value.clone() for value in self._moments()}
        try:
            yield
        finally:
            with torch.no_grad():
                for value, before in saved:
                    value.copy_(before)
                for value in self._moments():
                    value.copy_(moments[id(value)]) if id(value) in moments else value.zero_()
            for optimizer, state in states:
                restore_state(optimizer, state)
            self.zero_grad()

    def _moments(self) -> Iterator[Tensor]:
        for optimizer in self.optimizers.values():
            for state in optimizer.state.values():
                yield from (value for value in state.values() if isinstance(value, Tensor))

    def weights(self) -> dict[str, Tensor]:
        """Return the tensors of all trained modules and of their averages by name, without copying them."""
        tensors = {
            f"module/{owner}/{name}": value
            for owner, module in self.setup.owners.items()
            for name, value in module.state_dict().items()
        }
        averages = self.averages.values if self.averages is not None else {}
        return tensors | {
            f"average/{owner}/{name}": value
            for owner, state in averages.items()
            for name, value in state.items()
        }

    def average_statistics(self) -> None:
        """Average the running statistics of all processes; see ``replicas.average_statistics``."""
        average_statistics(self.world, self.setup.owners, self.averages)

    def close(self) -> None:
        """Close the sources of images and stop recording layers."""
        for task_loop in self.task_loops.values():
            task_loop.source.close()
        for recorder in self.setup.recorders.values():
            recorder.close()

    def set_execution(self, execution: Execution) -> None:
        """Set the execution of steps: eager, compiled or captured."""
        self.execution = execution
        self.captures = execution.captures and self.all_reduce is None
        for task_loop in self.task_loops.values():
            task_loop.span, task_loop.captured = range(0), None

    def step(self, task: TaskState, number: int, reports: bool = False) -> StepResult:
        """Take one step of one task.

        Args:
            task: State of the task.
            number: Number of its step, from 0.
            reports: Whether plugins may report figures: at the first step, and at the end of a row of the history.

        Returns:
            Losses and predictions, on the device.
        """
        task_loop = self.task_loops[task.name]
        step, result = self.work(task_loop, number, reports)
        if self.averages is not None:
            self.averages.update(task.name, number)
        step.result = result
        if self.mark is not None:
            self.mark("rest")
        for call in task_loop.after_step:
            call(step)
        if task_loop.after_epoch and task_loop.source.ends_epoch(number):
            for call in task_loop.after_epoch:
                call(step)
        if task_loop.after_step or task_loop.after_epoch:
            check_no_gradients(self.trainable, self.plugins, step)
        if self.mark is not None:
            self.mark("hooks")
        return result

    def work(self, task_loop: TaskLoop, number: int, reports: bool = False) -> tuple[Step, StepResult]:
        """Take a step without the hooks after it; return its last micro-batch, and the result.

        Args:
            task_loop: Loop of the task.
            number: Number of its step, from 0.
            reports: As for ``step``.
        """
        if number not in task_loop.span:
            task_loop.resolve(number, compiles=self.execution.compiles)
        if self.rounds is None:
            steps = self.micro_batches(task_loop, number)
        else:
            steps = self.rounds.steps(task_loop.task.name, number, partial(self._joined, number))
            if self.mark is not None:
                self.mark("hooks")
        if reports and self.execution.mode == "eager":
            for step in steps:
                step.reports = True
        if self.rates.settled is None or number < self.rates.settled:
            self.rates.set(number)
        if not self.captures:
            return steps[-1], self.train_step(task_loop, steps)
        if task_loop.captured is None:
            task_loop.captured = Captured(partial(self.train_step, task_loop), self.restored, steps)
        return steps[-1], task_loop.captured.replay(steps)

    def _joined(self, number: int, task: str) -> list[Step]:
        """Return the micro-batches of a task's step in a round."""
        task_loop = self.task_loops[task]
        if number not in task_loop.span:
            task_loop.resolve(number, compiles=self.execution.compiles)
        return self.micro_batches(task_loop, number)

    def micro_batches(self, task_loop: TaskLoop, number: int) -> list[Step]:
        """Return the micro-batches of a step, with the views of the task's plugins applied.

        Args:
            task_loop: Loop of the task.
            number: Number of its step, from 0.
        """
        if self.mark is not None:
            self.mark("rest")
        full = self.begin(task_loop, number)
        if self.mark is not None:
            self.mark("data")
        if task_loop.accumulation_steps == 1:
            steps = [full]
        else:
            batches = split_batch(full.batch, task_loop.accumulation_steps)
            steps = [attrs.evolve(full, batch=batch, piece=piece) for piece, batch in enumerate(batches)]
        if task_loop.views:
            for step in steps:
                self.view(task_loop, step)
            if not task_loop.views_chained:
                task_loop.chain_views()
            if self.mark is not None:
                self.mark("hooks")
        if task_loop.mixing is not None:
            for step in steps:
                self.mix(task_loop, task_loop.mixing, step)
        return steps

    def begin(self, task_loop: TaskLoop, number: int) -> Step:
        """Return a step with its full batch, before any plugin changes it.

        Args:
            task_loop: Loop of the task.
            number: Number of its step, from 0.
        """
        batch = task_loop.source.batch(number)
        if not task_loop.task.supervised:
            batch = attrs.evolve(batch, labels=torch.full_like(batch.labels, NO_LABEL))
        return Step(self.setup.seed, task_loop.task, number, batch, self.setup.precision, stop=self.stop)

    def view(self, task_loop: TaskLoop, step: Step) -> None:
        """Apply the views of plugins to the batch of a step.

        Args:
            task_loop: Loop of the task.
            step: Step; its batch is replaced.
        """
        images = step.batch.images
        for call, stream in task_loop.views:
            if stream is not None:
                reseed(self.setup.precision.device, stream.at(_micro_batch_index(task_loop, step)))
            step.batch = call(step, step.batch)
        step.images_changed = step.batch.images is not images

    def mix(self, task_loop: TaskLoop, mixing: Mixing, step: Step) -> None:
        """Mix the images of a step; regularizers get the images of the batch.

        Args:
            task_loop: Loop of the task.
            mixing: Mixup or CutMix of the task.
            step: Step; mixed images and their soft labels are set.
        """
        with seeded(seed_of(self.setup.seed, "mix", step.task.name, _micro_batch_index(task_loop, step))):
            images, step.mixed_labels = mixing(step.batch.images, step.batch.labels)
        if task_loop.objective.losses or (self.rounds is not None and self.rounds.active(step.number)):
            step.mixed_images = images
        else:
            step.batch = attrs.evolve(step.batch, images=images, stacked=None)

    def train_step(self, task_loop: TaskLoop, steps: Sequence[Step]) -> StepResult:
        """Run forward and backward pass, and update this task's network and every shared module; may be captured.

        Args:
            task_loop: Loop of the task.
            steps: Micro-batches of the step.
        """
        name, joined = task_loop.task.name, False
        by_loss = LossGradients(task_loop.parameters) if task_loop.combine is not None else None
        if self.rounds is not None:
            joined = self.rounds.assign(name)
            if joined and by_loss is not None:
                by_loss.take(JOINT)
        if len(steps) == 1:
            result = self.gradients(task_loop, steps[0], by_loss, joined)
        else:
            result = combine_results([self.gradients(task_loop, step, by_loss, joined) for step in steps])
        if self.rounds is not None:
            result = self.rounds.add(result)
        if by_loss is not None and task_loop.combine is not None:
            if self.all_reduce is not None:
                by_loss.average(self.world, partial(self.all_reduce, name))
            by_loss.combine(task_loop.combine, steps[0])
        elif self.all_reduce is not None:
            self.all_reduce(name)
        if self.mark is not None:
            self.mark("backward")
        for call in task_loop.after_backward:
            call(steps[-1])
        for other, parameters in task_loop.other_parameters.items():
            if any(parameter.grad is not None for parameter in parameters):
                losses = task_loop.objective.losses
                raise cross_task_error(losses, self.plugins.after_backward, steps[-1], other, parameters)
        if self.mark is not None:
            self.mark("hooks")
        if self.settings.clip_norm is not None:
            norm = torch.nn.utils.clip_grad_norm_(task_loop.trainable, self.settings.clip_norm)
            result = attrs.evolve(result, losses={**result.losses, "gradient_norm": norm})
        if self.mark is not None:
            self.mark("rest")
        for update in task_loop.updates:
            update()
        if self.mark is not None:
            self.mark("optimizer")
        self.zero_grad()
        return result

    def gradients(
        self, task_loop: TaskLoop, step: Step, by_loss: LossGradients | None = None, joined: bool = False
    ) -> StepResult:
        """Accumulate the gradients of a step, or of a micro-batch.

        Args:
            task_loop: Loop of the task.
            step: Step after views and mixing.
            by_loss: Gradients of each loss by itself, to add to in place of those of the parameters; or None.
            joined: Whether joint losses give the step a gradient, so that it needs no loss of its own.
        """
        # A captured step cannot seed; steps that draw random numbers are not captured (execution_selection.py).
        index = _micro_batch_index(task_loop, step)
        seeds = () if self.captures else [stream.at(index) for stream in task_loop.seeds]
        if self.mark is not None:
            self.mark("rest")
        losses: dict[str, Tensor] = {}
        try:
            if by_loss is None:
                total, terms, predicted = task_loop.forward(step, seeds)
            else:
                losses, terms, predicted = task_loop.objective.each(step, seeds)
                total = total_loss(step, losses)
        except RuntimeError as error:
            if cause := explained(error, step, task_loop.objective.losses):
                raise cause from error
            raise
        if self.mark is not None:
            self.mark("forward")
        if total.requires_grad:
            if step.number >= task_loop.next_gradient_check:
                self._check_graph(task_loop, step, total)
            if (pieces := task_loop.accumulation_steps) > 1:
                total = total / pieces
                losses = {name: loss / pieces for name, loss in losses.items()}
            try:
                if by_loss is None:
                    total.backward()
                else:
                    by_loss.add(losses)
            except RuntimeError as error:
                if cause := explained(error, step, task_loop.objective.losses):
                    raise cause from error
                raise
            if self.mark is not None:
                self.mark("backward")
        elif not joined:
            raise no_gradient_error(step)
        batch, may_spoil = step.batch, task_loop.loads_images or step.images_changed
        images = batch.images.detach().sum() if may_spoil else None
        return StepResult(terms, predicted, None if predicted is None else batch.labels, images)

    def _check_graph(self, task_loop: TaskLoop, step: Step, total: Tensor) -> None:
        """Check that all parameters that a loss depends on are trained, and set the step of the next check."""
        parts = [part for state in self.setup.tasks.values() for part in (state.extractor, state.head)]
        trained = [*self.trainable, *(parameter for part in parts for parameter in part.parameters())]
        check_all_trained(total, trained, self.plugins.members)
        task_loop.next_gradient_check = 1 << step.number.bit_length()

    def zero_grad(self) -> None:
        """Drop all gradients, as a loss may depend on another task's network."""
        for parameter in self.trainable:
            parameter.grad = None

    def rate(self, number: int) -> float:
        """Return the learning rate of a step."""
        return self.rates.rate(number)


def _micro_batch_index(task_loop: TaskLoop, step: Step) -> int:
    """Return the number of a micro-batch among all of its task, which determines its random numbers."""
    return step.number * task_loop.accumulation_steps + step.piece

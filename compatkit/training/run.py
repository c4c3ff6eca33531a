"""Run the training loop to its end: rows of losses, checkpoints, evaluations, signals, early stopping."""

from __future__ import annotations

import math
import signal
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import attrs

from compatkit.errors import CompatkitError, EnvironmentFailure
from compatkit.foundation.bars import is_silent, silent
from compatkit.training import checkpoints
from compatkit.training.batches.loaders import Streamed
from compatkit.training.ending import Evaluation
from compatkit.training.evaluating import Evaluator, Stopper
from compatkit.training.fit import Fit, set_anchors
from compatkit.training.loggers import RunLog
from compatkit.training.loop import Loop
from compatkit.training.loss_history import LossHistory
from compatkit.training.out_of_memory import is_out_of_memory, out_of_memory_error
from compatkit.training.plugin_setup import check_weights
from compatkit.training.prepare import PreparedRun
from compatkit.training.pretraining import Pretrained, pretrain
from compatkit.training.progress import Bar
from compatkit.training.randomness import preserved, reseed, seed_of
from compatkit.training.replicas import check_replicas

MAX_SAVING_SHARE = 0.05
"""Share of a run's time for timed checkpoints at most."""


def run(prepared: PreparedRun) -> Fit:
    """Take all steps of a prepared run.

    Args:
        prepared: Run before its first step.

    Returns:
        Trained parts and history.

    Raises:
        CompatkitError: See ``Trainer.fit``.
    """
    state, loop = TrainingRun.of(prepared), prepared.loop
    settings, setup, first = loop.settings, loop.setup, loop.world.first
    if loop.plugins.sampler:
        loop.forget_orders()  # of trials; what plugins choose may depend on their state
    done, shown = state.resume(), first and settings.progress and not is_silent()
    if done < settings.steps:
        for task_loop in loop.task_loops.values():
            task_loop.source.get_ready()
    with ExitStack() as stack:
        if first:
            state.log = stack.enter_context(prepared.log.open(done, setup.run, state.manifest))
        stack.enter_context(silent())  # one bar at a time
        state.pretrain(shown)
        resumable = state.checkpoint is not None and loop.world.size == 1
        interruption = stack.enter_context(defer_signals(resumable))
        title, images = " + ".join(setup.tasks), settings.batch_size * len(setup.tasks)
        bar = stack.enter_context(Bar(shown, title, settings.steps, done, images))
        with state.checkpoint_in_errors():
            state.take_steps(done, bar, interruption)
    for module in (*setup.owners.values(), *(head.module for head in setup.auxiliary.values())):
        module.eval()
    checkpoints.check_trained(loop, state.steps)
    for bound in loop.plugins.finish:
        reseed(setup.precision.device, seed_of(setup.seed, "finish", bound.instance))
        bound.call(setup)
        check_weights(setup, f"Plugin {bound.instance!r} left unusable weights in compatkit_finish")
    set_anchors(setup.tasks, setup.auxiliary)
    averages = loop.averages.values if loop.averages is not None else None
    manifest, rows = state.final_manifest(), state.history.rows
    return Fit(setup.tasks, setup.auxiliary, manifest, rows, prepared.plan, state.evaluations, averages)


@attrs.define(eq=False)
class TrainingRun:
    """State of a run between its steps, with its checkpoints, evaluations and early stopping.

    Attributes:
        loop: Loop of the run.
        manifest: Manifest of the run; a checkpoint with another manifest is refused.
        steps: Steps of each task; after ``take_steps``, the step at the end of the run.
        history: Losses of the steps.
        checkpoint: File of the state, written during the run, at its end, and at an interruption; or None.
        evaluator: Evaluator, or None.
        stopper: State of early stopping, or None.
        evaluations: Rows of evaluations during training.
        pretrained: Reports of plugins that trained before the first step, or None.
        changes: Changes of augmentation at resumptions, each with its task and step.
        log: Loggers of the run, in the first process alone.
        stop: Reason for which a plugin ended the run, equal in all processes, or None.
    """

    loop: Loop
    manifest: Mapping[str, Any]
    steps: int
    history: LossHistory
    checkpoint: Path | None = None
    evaluator: Evaluator | None = None
    stopper: Stopper | None = None
    evaluations: list[dict[str, Any]] = attrs.field(factory=list)
    pretrained: Pretrained | None = None
    changes: list[dict[str, Any]] = attrs.field(factory=list)
    log: RunLog = attrs.field(factory=RunLog)
    stop: str | None = None
    _saved_steps: int | None = None
    _saved_at: float = 0.0
    _saving_seconds: float = 0.0

    @classmethod
    def of(cls, prepared: PreparedRun) -> TrainingRun:
        """Return the state of a prepared run before its first step."""
        loop, settings = prepared.loop, prepared.loop.settings
        path = Path(settings.checkpoint) if settings.checkpoint is not None else None
        evaluator, stopper = None, Stopper(settings.stop_early) if settings.stop_early is not None else None
        if path is not None:
            _warn_of_loaders(loop)
        if settings.evaluate_every is not None:
            on, every, size = (
                settings.evaluate_on,
                settings.evaluate_every,
                settings.batch_size // settings.accumulate,
            )
            evaluator = Evaluator.of(on, every, size, loop.setup, prepared.held_out, loop.world)
        history = LossHistory(loop.world)
        return cls(loop, prepared.manifest, settings.steps, history, path, evaluator, stopper)

    def resume(self) -> int:
        """Restore the checkpoint if there is one; return the number of completed steps."""
        data = checkpoints.read(self.checkpoint, self.loop.world)
        if self.checkpoint is None or data is None:
            return 0
        note, tensors = checkpoints.load(self.checkpoint, data, self.loop, self.manifest)
        self.history.rows, self.evaluations = note["history"], note["evaluations"]
        self._saved_steps = note["step"]
        waiting = checkpoints.with_prefix("waiting/", tensors)
        orders = checkpoints.with_prefix("order/", tensors)
        epochs = note[checkpoints.EPOCHS]
        self.loop.restore_orders({task: (epoch, orders[task]) for task, epoch in epochs.items()})
        self.history.restore(waiting, note["waiting"], self.loop.setup.precision.device)
        if self.stopper is not None and note["stopping"] is not None:
            self.stopper.load(
                note["stopping"], checkpoints.with_prefix("best/", tensors), self.loop.weights()
            )
        self.stop = note[checkpoints.STOP]
        self.pretrained, self.changes = note["pretraining"], note[checkpoints.CHANGES]
        for task, initial in (self.pretrained or {}).get("initial", {}).items():
            self.loop.setup.tasks[task].initial = initial
        return note["step"]

    def pretrain(self, shown: bool) -> None:
        """Run the pretraining of plugins and save a checkpoint, unless the checkpoint has the result."""
        if self.pretrained is None and self._saved_steps is None:
            self.pretrained = pretrain(self.loop, shown)
            if self.pretrained is not None:
                self._save(0)

    def take_steps(self, start: int, bar: Bar, interruption: Interruption) -> None:
        """Take the remaining steps.

        Args:
            start: Number of completed steps.
            bar: Progress bar.
            interruption: Signal that ends the run after its state is saved.

        Raises:
            TrainingError: A loss or a weight is not finite.
            EnvironmentFailure: The memory is too small, or the checkpoint cannot be written.
        """
        done, self._saved_at, last = start, time.monotonic(), False
        event, late_at = start, self._late_at()
        while done < self.steps and not self._stopped and not interruption.received:
            self._step(done)
            done += 1
            if done < event and self.loop.stop.reason is None and time.monotonic() <= late_at:
                bar.step(done, self._losses_so_far)
                continue
            event = self._next_event(done)
            self._agree(done)
            if self.evaluator is not None:
                self._evaluate(done, bar)
            last = done == self.steps or self._stopped
            row = done % self.loop.settings.log_every == 0 or last
            if row:
                self._close(done, bar)
            else:
                bar.step(done, self._losses_so_far)
            if last or self._due(done, row):
                self._save(done, last)
                late_at = self._late_at()
        if interruption.received:
            if self._saved_steps != done:
                self._save(done, last)
            interruption.message = (
                f"Interrupted after {done:,} of {self.steps:,} steps of each task. The same call resumes from "
                f"{self.checkpoint}."
            )
            return
        if self.stop is not None and done > start:
            bar.say(done, f"a plugin ended the run: {self.stop}")
        self.steps = done
        if self.stopper is not None:
            self.stopper.restore(self.loop.weights())

    def final_manifest(self) -> dict[str, Any]:
        """Return the run's manifest, with the results of early stopping, resuming and pretraining."""
        manifest = {**self.manifest}
        if self.stopper is not None:
            manifest["stopped"] = self.stopper.summary(self.steps)
        if self.stop is not None:
            last = {"steps": self.steps, "weights_of_step": self.steps}
            manifest["stopped"] = {**last, **manifest.get("stopped", {}), "reason": self.stop}
        if self.changes:
            manifest[checkpoints.CHANGES] = self.changes
        if self.pretrained is not None:
            manifest["pretraining"] = self.pretrained
        if self.loop.world.size > 1:  # not part of the plan: the same run on another number of processes
            manifest["environment"] = {**manifest["environment"], "processes": self.loop.world.size}
        return manifest

    @property
    def _stopped(self) -> bool:
        return self.stop is not None or (self.stopper is not None and self.stopper.stopped)

    def _agree(self, done: int) -> None:
        """Take over a plugin's request to end the run; several processes agree where all of them look."""
        world, own = self.loop.world, self.loop.stop.reason
        if world.size > 1:
            looks = done % self.loop.settings.log_every == 0 or self._evaluates(done)
            if not (looks and self.loop.plugins.members):
                return
            own = next(filter(None, world.gather(own)), None)
        self.stop = own

    def _evaluates(self, done: int) -> bool:
        """Return whether an evaluation is due after ``done`` steps."""
        last = done == self.steps or self.stop is not None
        return self.evaluator is not None and (last or done % self.evaluator.every == 0)

    def _step(self, number: int) -> None:
        """Take one step of every task."""
        settings, loop = self.loop.settings, self.loop
        reports = number == 0 or (number + 1) % settings.log_every == 0 or number + 1 == self.steps
        for name, task in loop.setup.tasks.items():
            try:
                self.history.add(name, loop.step(task, number, reports))
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                batch, device = (settings.batch_size, settings.accumulate), loop.setup.precision.device
                raise out_of_memory_error(name, number, *batch, device, loop.world) from error

    def _evaluate(self, done: int, bar: Bar) -> None:
        evaluator = self.evaluator
        if evaluator is None or not self._evaluates(done):
            return
        start = time.perf_counter()
        try:
            self.history.check(done)
            self.loop.average_statistics()
            rows = evaluator.measure(self.loop.setup, self.loop.averages, done)
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            raise EnvironmentFailure(
                f"The evaluation on the {evaluator.on} images after step {done}, {evaluator.batch_size} in a batch, "
                f"ran out of memory on {self.loop.setup.precision.device}: {error}. Use a smaller batch_size, or "
                "accumulate=2."
            ) from error
        self.evaluations.extend(rows)
        bar.evaluated(done, _by_task(rows))
        if self.stopper is not None:
            self.stopper.add(done, rows, self.loop.weights())
        self.log.log_evaluations(rows, time.perf_counter() - start)
        self._tell_plugins(done, rows)

    def _tell_plugins(self, done: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Call the hooks after an evaluation, and take over a request to end the run."""
        hooks = [bound for bound in self.loop.plugins.after_evaluation if done - 1 in bound.phase]
        if not hooks:
            return
        figures: dict[str, dict[str, dict[str, float]]] = {"trained": {}, "averages": {}}
        for row in rows:
            figures[row["weights"]][row["task"]] = {name: row[name] for name in ("loss", "accuracy")}
        setup, on = self.loop.setup, rows[0]["on"]
        evaluation = Evaluation(done, on, figures["trained"], figures["averages"], self.loop.stop)
        with preserved():
            for bound in hooks:
                reseed(setup.precision.device, seed_of(setup.seed, "after_evaluation", bound.instance, done))
                bound.call(evaluation)
        self.loop.zero_grad()
        self._agree(done)

    def _next_event(self, done: int) -> int:
        """Return the next step after which a row, an evaluation or a checkpoint is due, or the run ends."""
        settings = self.loop.settings
        periods = [settings.log_every, settings.checkpoint_every]
        periods += [self.evaluator.every] if self.evaluator is not None else []
        return min(self.steps, *((done // period + 1) * period for period in periods))

    def _late_at(self) -> float:
        """Return the time on the monotonic clock after which a checkpoint is due."""
        limit = self.loop.settings.checkpoint_seconds
        if limit is None or self.checkpoint is None or self.loop.world.size > 1:
            return math.inf
        return self._saved_at + max(limit, self._saving_seconds / MAX_SAVING_SHARE)

    def _due(self, done: int, row: bool) -> bool:
        """Return whether a checkpoint is due after ``done`` steps, by their number or by the time since the last one.

        Several processes save only at rows of the history, where their statistics are equal; the first process decides.
        """
        settings, elapsed = self.loop.settings, time.monotonic() - self._saved_at
        limit = settings.checkpoint_seconds
        late = limit is not None and elapsed > max(limit, self._saving_seconds / MAX_SAVING_SHARE)
        if self.loop.world.size == 1:
            return done % settings.checkpoint_every == 0 or late
        rows = -(-settings.checkpoint_every // settings.log_every) * settings.log_every
        return row and (done % rows == 0 or self.loop.world.gather(late)[0])

    def _close(self, done: int, bar: Bar) -> None:
        self.loop.average_statistics()
        rows = self.history.close(done)
        bar.at(done, self._with_evaluations(self.history.latest()))
        self.log.log_losses(rows, self.loop.rate(done - 1))

    def _losses_so_far(self) -> dict[str, dict[str, float]]:
        return self._with_evaluations(self.history.current())

    def _with_evaluations(self, losses: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
        """Return losses of each task with its last evaluation, that of the averages if there are any."""
        for row in self.evaluations[-2 * len(losses) :]:
            losses[row["task"]] = {**losses.get(row["task"], {}), **_loss_and_accuracy(row)}
        return losses

    def _save(self, done: int, ended: bool = False) -> None:
        check_replicas(self.loop.world, self.loop.setup.owners)
        if self.checkpoint is None:
            return
        start, stopper = time.monotonic(), self.stopper
        waiting, steps_of = self.history.waiting()
        note = {
            "step": done,
            "history": self.history.rows,
            "evaluations": self.evaluations,
            "stopping": stopper.values() if stopper is not None else None,
            "pretraining": self.pretrained,
            "waiting": steps_of,
            "ended": ended,
            checkpoints.CHANGES: self.changes,
            checkpoints.STOP: self.stop,
        }
        tensors = {f"waiting/{name}": value for name, value in waiting.items()}
        if self.loop.plugins.sampler:
            drawn = self.loop.drawn_orders()
            note[checkpoints.EPOCHS] = {task: epoch for task, (epoch, _) in drawn.items()}
            tensors |= {f"order/{task}": order for task, (_, order) in drawn.items()}
        if stopper is not None:
            tensors |= {f"best/{name}": value for name, value in stopper.weights.items()}
        self.history.check(done)  # reports a loss or image that is not finite before weights that are not
        if self.loop.world.first:
            checkpoints.save(self.checkpoint, self.loop, self.manifest, note, tensors)
        self._saved_steps, self._saved_at = done, time.monotonic()
        self._saving_seconds = self._saved_at - start
        self.log.flush()

    @contextmanager
    def checkpoint_in_errors(self) -> Iterator[None]:
        """Add the last checkpoint to errors of the block."""
        try:
            yield
        except CompatkitError as error:
            if self._saved_steps is not None:
                error.add_note(
                    f"The last good checkpoint, after {self._saved_steps:,} steps, is kept: {self.checkpoint}."
                )
            elif self.checkpoint is not None:
                error.add_note("No step is kept: there was no checkpoint yet.")
            raise


def _by_task(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Return rows of an evaluation by task, with separate entries for averages."""
    suffixes = {"trained": "", "averages": " (averages)"}
    return {f"{row['task']}{suffixes[row['weights']]}": _loss_and_accuracy(row) for row in rows}


def _loss_and_accuracy(row: Mapping[str, Any]) -> dict[str, float]:
    return {f"{row['on']} {name}": row[name] for name in ("loss", "accuracy")}


def _warn_of_loaders(loop: Loop) -> None:
    """Warn of loaders that cannot be resumed in the middle of a pass."""
    for name, task_loop in loop.task_loops.items():
        source = task_loop.source
        if isinstance(source, Streamed) and (reason := source.unrepeatable) is not None:
            warnings.warn(
                "The run cannot resume from a checkpoint in the middle of a pass through the loader of task "
                f"{name!r}: {reason}. Use a torch DataLoader over a data set with a length, without persistent "
                "workers.",
                stacklevel=2,
            )


DEFAULTS = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
"""Default handlers of the signals to defer."""


@attrs.define(eq=False)
class Interruption:
    """Signal that arrived during a run.

    Attributes:
        received: Number of the signal, or None.
        message: Message of the KeyboardInterrupt after Ctrl-C.
    """

    received: int | None = None
    message: str = ""


@contextmanager
def defer_signals(on: bool) -> Iterator[Interruption]:
    """Defer signals to the end of a block, then end the program as they would; a second signal acts at once.

    An error in the block after a signal is ignored, as Ctrl-C also ends the worker processes of a loader.

    Args:
        on: Whether to defer signals; they are deferred in the main thread only.

    Raises:
        KeyboardInterrupt: After Ctrl-C.
        SystemExit: After SIGTERM, with exit status 143.
    """
    state, deferred = Interruption(), list[signal.Signals]()

    def restore() -> None:
        for number in deferred:
            signal.signal(number, DEFAULTS[number])
        deferred.clear()

    def receive(number: int, frame: FrameType | None) -> None:
        state.received = number
        restore()

    if on and threading.current_thread() is threading.main_thread():
        deferred += [number for number, default in DEFAULTS.items() if signal.getsignal(number) == default]
        for number in deferred:
            signal.signal(number, receive)
    try:
        yield state
    except Exception:
        if state.received is None:
            raise
    finally:
        restore()
    if state.received == signal.SIGINT:
        raise KeyboardInterrupt(state.message)
    if state.received is not None:
        raise SystemExit(128 + state.received)

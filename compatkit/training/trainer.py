"""The shared trainer: one loop for one or many tasks that may share auxiliary heads."""

from __future__ import annotations

import copy
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Literal

import attrs

from compatkit.data.split import Split
from compatkit.errors import UsageError
from compatkit.plugins import RunPlugins, Use
from compatkit.registry.canonical import digest, dumps
from compatkit.training import checkpoints
from compatkit.training.averaging import Averaging
from compatkit.training.context import AuxiliaryHead, SetUp, TaskState
from compatkit.training.describing import describe
from compatkit.training.determinism import determined
from compatkit.training.evaluating import Evaluator, On
from compatkit.training.execution import Asked, check_mode, settle
from compatkit.training.explanation import Explanation
from compatkit.training.fit import Fit, anchor
from compatkit.training.holdout import check_classes, hold_out
from compatkit.training.loop import Loop
from compatkit.training.memory import settled
from compatkit.training.networks import parameters_digest, prepare_task, redraw
from compatkit.training.optimisation import Optimisation, check_owners
from compatkit.training.precision import Choice, Precision
from compatkit.training.profiling import Profile, profile
from compatkit.training.progress import Bar
from compatkit.training.randomness import preserved, reseed, seed_of
from compatkit.training.running import Run
from compatkit.training.scalars import Scalars, check_tensorboard
from compatkit.training.schedules import Schedule
from compatkit.training.settings import check_settings
from compatkit.training.stopping import EarlyStopping, Stopper
from compatkit.training.task import Task

Statistics = Literal["stored", "batch"]


_optional = attrs.validators.optional


def _share(instance: object, attribute: attrs.Attribute[float | None], value: float | None) -> None:
    if value is not None and not 0 < value < 1:
        raise ValueError(f"'{attribute.name}' must be above 0 and below 1: {value}")


@attrs.frozen(kw_only=True)
class Trainer:
    """Trains tasks by alternating their mini-batches: one step of each in turn.

    The defaults are those of Gygli et al. (Sec. 4): Adam, learning rate 0.01 divided by ten every quarter of
    the steps, L2 1e-7; the paper's batch size is 512.

    Attributes:
        steps: Steps of each task (the paper's 20,000 is read as a count per task).
        seed: Of everything random in the run.
        batch_size: Images a step.
        optimiser: ``"adam"`` or ``"sgd"``.
        lr: Initial learning rate.
        momentum: Of SGD.
        weight_decay: L2 penalty, added to the gradient.
        schedule: ``"step"``, ``"cosine"``, ``"constant"``, or a ``Schedule``.
        warmup: Steps of linear rise.
        precision: ``"auto"`` (bf16 where the hardware has it), ``"float32"`` or ``"bf16"``.
        channels_last: NHWC in memory; None chooses.
        device: ``"auto"``, ``"cpu"``, ``"cuda"``, ...
        execution: ``"auto"`` tries on a GPU which way is the fastest, and is ``"eager"`` elsewhere; ``"compile"``,
            ``"graph"`` (CUDA graphs of whole steps) or ``"compile+graph"`` falls back where something prevents it.
            ``Fit.run`` says what was done and why; a run that goes on from a checkpoint does the same again.
        deterministic: Only algorithms that give the same bits in every run on the same device; no trial.
        checkpoint: File to keep the state in; a run with the same plan goes on from it, bit by bit.
        checkpoint_every: Steps between checkpoints, rounded up to whole rows of the history.
        log_every: Steps between rows of the history.
        progress: Whether to show a progress bar on standard error; None asks whether it is a terminal.
        accumulate: In how many pieces the batch of a step is worked through; ``batch_size`` stays the images of a step.
        clip_norm: Largest norm of all gradients that a step moves by; None leaves them as they are.
        ema: Decay of exponential moving averages of all that is trained, between 0 and 1: ``Fit.averaged()``.
        ema_warmup: Whether that decay rises from 0 in the first steps.
        validation: Share of the training images that no step sees, the same of every class, drawn from (seed, task).
        evaluate_every: Steps between evaluations of every task's own network: ``Fit.evaluations``. None makes none.
        evaluate_on: ``"validation"`` (the share held out) or ``"test"``.
        stop_early: When to end before the last step, by the images held out.
        scalars: Folder of TensorBoard's event files; None writes none.

    Raises:
        UsageError: Settings do not go together.
    """

    steps: int = attrs.field(validator=attrs.validators.ge(1))
    seed: int = 0
    batch_size: int = attrs.field(default=64, validator=attrs.validators.ge(2))
    optimiser: Literal["adam", "sgd"] = "adam"
    lr: float = 0.01
    momentum: float = 0.9
    weight_decay: float = 1e-7
    schedule: Literal["step", "cosine", "constant"] | Schedule = "step"
    warmup: int = 0
    precision: Choice = "auto"
    channels_last: bool | None = None
    device: str = "auto"
    execution: Asked = "auto"
    deterministic: bool = False
    checkpoint: str | os.PathLike[str] | None = None
    checkpoint_every: int = attrs.field(default=500, validator=attrs.validators.ge(1))
    log_every: int = attrs.field(default=50, validator=attrs.validators.ge(1))
    progress: bool | None = None
    accumulate: int = attrs.field(default=1, validator=attrs.validators.ge(1))
    clip_norm: float | None = attrs.field(default=None, validator=_optional(attrs.validators.gt(0)))
    ema: float | None = attrs.field(default=None, validator=_share)
    ema_warmup: bool = False
    validation: float | None = attrs.field(default=None, validator=_share)
    evaluate_every: int | None = attrs.field(default=None, validator=_optional(attrs.validators.ge(1)))
    evaluate_on: On = "validation"
    stop_early: EarlyStopping | None = None
    scalars: str | os.PathLike[str] | None = None

    def __attrs_post_init__(self) -> None:
        """Check that the settings go together."""
        check_settings(self)

    def fit(
        self,
        tasks: Sequence[Task],
        regularizers: Sequence[str | Use] = (),
        *,
        frozen: Fit | Mapping[str, AuxiliaryHead] | None = None,
        frozen_statistics: Statistics = "stored",
        factories: Mapping[str, Callable[..., Any]] | None = None,
    ) -> Fit:
        """Train ``tasks`` together, or one task against heads that do not move.

        Args:
            tasks: Networks with their data sets; one step of each in turn.
            regularizers: Names or ``compatkit.use(...)``; only these plugins take part.
            frozen: Auxiliary heads that stay as they are (incremental training): an earlier fit, or
                ``registry.auxiliary_heads(...)``.
            frozen_statistics: Batch normalisation inside frozen heads: ``"stored"`` (measured better) or
                ``"batch"``, the paper's regime, without writing their buffers.
            factories: Regularizers that are not installed, by name: for notebooks.

        Raises:
            UsageError: Names, settings or data do not fit together.
            DataError: A data set is of one class, or smaller than a batch.
            PluginError: A regularizer is broken or set up wrongly.
            TrainingError: A loss or weight is not finite, or the checkpoint belongs to another plan.
            MissingDependency: ``scalars`` is set, and TensorBoard is not installed.
            EnvironmentFailure: The memory is too small, or a checkpoint cannot be written.
        """
        precision, plugins = self._prepared(tasks, regularizers, factories)
        with preserved(), determined(precision.device, on=self.deterministic):
            tasks, held = hold_out(tasks, self.validation, self.seed)
            setup = self._set_up(tasks, plugins, precision, frozen, frozen_statistics)
            loop = self._loop(setup, plugins)
            manifest = describe(self, loop, frozen_statistics)
            run = self._run(loop, manifest, held)
            for bound in plugins.finish:
                reseed(precision.device, seed_of(self.seed, "finish", bound.instance))
                bound.call(setup)
        anchor(setup.tasks, setup.auxiliary)
        return Fit(
            setup.tasks,
            setup.auxiliary,
            run.facts(),
            run.ledger.rows,
            digest(dumps(manifest)),
            run.evaluations,
            loop.averages.kept if loop.averages is not None else None,
        )

    def explain(
        self,
        tasks: Sequence[Task],
        regularizers: Sequence[str | Use] = (),
        *,
        frozen: Fit | Mapping[str, AuxiliaryHead] | None = None,
        frozen_statistics: Statistics = "stored",
        factories: Mapping[str, Callable[..., Any]] | None = None,
    ) -> Explanation:
        """Return what ``fit`` would do with the same arguments, without a step: see ``Explanation``.

        Raises:
            UsageError: As ``fit`` does; and so on for its other errors.
        """
        precision, plugins = self._prepared(tasks, regularizers, factories)
        with preserved(), determined(precision.device, on=self.deterministic):
            tasks, _ = hold_out(tasks, self.validation, self.seed)
            setup = self._set_up(tasks, plugins, precision, frozen, frozen_statistics)
            return Explanation.of(self._loop(setup, plugins), self.batch_size)

    def profile(
        self,
        tasks: Sequence[Task],
        regularizers: Sequence[str | Use] = (),
        *,
        steps: int = 20,
        frozen: Fit | Mapping[str, AuxiliaryHead] | None = None,
        frozen_statistics: Statistics = "stored",
        factories: Mapping[str, Callable[..., Any]] | None = None,
    ) -> Profile:
        """Return where the time of the first ``steps`` steps of each task would go; nothing is trained.

        Raises:
            UsageError: As ``fit`` does; and so on for its other errors.
        """
        precision, plugins = self._prepared(tasks, regularizers, factories)
        if steps < 1:
            raise UsageError(f"Trainer.profile takes at least one step, got steps={steps}.")
        with preserved(), determined(precision.device, on=self.deterministic):
            tasks, _ = hold_out(tasks, self.validation, self.seed)
            setup = self._set_up(tasks, plugins, precision, frozen, frozen_statistics)
            return profile(self._loop(setup, plugins), steps)

    def _prepared(
        self,
        tasks: Sequence[Task],
        regularizers: Sequence[str | Use],
        factories: Mapping[str, Callable[..., Any]] | None,
    ) -> tuple[Precision, RunPlugins]:
        """Check settings and tasks; return what the run computes with, and its plugins."""
        self._settings()
        folder = Path(self.checkpoint).absolute().parent if self.checkpoint is not None else None
        if folder is not None and not folder.is_dir():
            raise UsageError(f"The folder {folder} of the checkpoint does not exist; make it first.")
        if not tasks:
            raise UsageError("Trainer.fit expects at least one task, got none.")
        names = [task.name for task in tasks]
        if len(set(names)) != len(names):
            raise UsageError(f"Task names must differ, got {names}.")
        for task in tasks:
            check_classes(task)
        if self.scalars is not None:
            check_tensorboard(self.scalars)
        precision = Precision.choose(self.device, self.precision, self.channels_last)
        return precision, RunPlugins.create(regularizers, factories=factories)

    def _set_up(
        self,
        tasks: Sequence[Task],
        plugins: RunPlugins,
        precision: Precision,
        frozen: Fit | Mapping[str, AuxiliaryHead] | None,
        statistics: Statistics,
    ) -> SetUp:
        states = {task.name: prepare_task(task, self.seed, precision) for task in tasks}
        heads = frozen.auxiliary if isinstance(frozen, Fit) else frozen or {}
        held = {name: _frozen(head, statistics, precision) for name, head in heads.items()}

        def reset(state: TaskState, stream: tuple[str | int, ...], seed: int | None) -> None:
            redraw(state, seed_of(self.seed if seed is None else seed, "initial", *stream))

        owners = {
            f"{name}.{side}": getattr(s, side) for name, s in states.items() for side in ("extractor", "head")
        }
        setup = SetUp(self.seed, precision, states, held, reset, owners=owners)
        for bound in plugins.set_up:
            reseed(precision.device, seed_of(self.seed, "set_up", bound.instance))
            bound.call(setup)
        for name in held:
            if name not in setup.auxiliary:
                raise UsageError(
                    f"The frozen auxiliary head {name!r} is used by none of the regularizers of this run; name the "
                    "regularizer that was trained with it, or leave the head out."
                )
        check_owners({**setup.owners, **{f"frozen.{name}": head.module for name, head in held.items()}})
        return setup

    def _loop(self, setup: SetUp, plugins: RunPlugins) -> Loop:
        """Return the loop, which executes steps as the checkpoint says, or as settled now."""
        schedule, optimisation = self._settings()
        loop = Loop.create(
            setup,
            plugins,
            optimisation,
            schedule,
            self.steps,
            self.batch_size,
            accumulate=self.accumulate,
            clip_norm=self.clip_norm,
            averaging=Averaging(self.ema, self.ema_warmup) if self.ema is not None else None,
        )
        loop.train_mode()
        path = Path(self.checkpoint) if self.checkpoint is not None else None
        kept = checkpoints.execution(path) if path is not None and path.exists() else None
        if self.execution == "auto" and kept is not None:
            loop.set_execution(kept)
        else:
            how = settled(loop, lambda: settle(loop, self.execution, deterministic=self.deterministic))
            loop.set_execution(how)
        return loop

    def _run(self, loop: Loop, manifest: Mapping[str, Any], held: Mapping[str, Split]) -> Run:
        """Take all steps."""
        setup = loop.setup
        path = Path(self.checkpoint) if self.checkpoint is not None else None
        run = Run(loop, manifest, self.steps, self.log_every, self.checkpoint_every, path)
        if self.evaluate_every is not None:
            images = self.batch_size // self.accumulate
            run.evaluator = Evaluator.of(self.evaluate_on, self.evaluate_every, images, setup, held)
        if self.stop_early is not None:
            run.stopper = Stopper(self.stop_early)
        start = run.resume()
        shown = sys.stderr.isatty() if self.progress is None else self.progress
        with ExitStack() as stack:
            scalars = None
            if self.scalars is not None:
                scalars = stack.enter_context(closing(Scalars.open(self.scalars, start, self.batch_size)))
            images = self.batch_size * len(setup.tasks)
            bar = stack.enter_context(Bar(shown, " + ".join(setup.tasks), self.steps, start, images))
            run.to_the_end(start, bar, scalars)
        return run

    def _settings(self) -> tuple[Schedule, Optimisation]:
        """Return schedule and optimiser settings, or say which value cannot be used."""
        try:
            schedule = self.schedule
            if not isinstance(schedule, Schedule):
                schedule = Schedule(schedule, self.warmup)
            elif self.warmup:
                raise UsageError("Give warmup inside the Schedule, or name the schedule by a word; not both.")
            check_mode(self.execution)
            return schedule, Optimisation(self.optimiser, self.lr, self.momentum, self.weight_decay)
        except ValueError as error:
            raise UsageError(f"A setting of the trainer cannot be used: {error.args[0]}") from error


def _frozen(head: AuxiliaryHead, statistics: Statistics, precision: Precision) -> AuxiliaryHead:
    if statistics not in ("stored", "batch"):
        raise UsageError(f"frozen_statistics expects 'stored' or 'batch', got {statistics!r}.")
    module = copy.deepcopy(head.module).to(precision.device).requires_grad_(False)
    return attrs.evolve(
        head,
        module=module,
        frozen=True,
        statistics=statistics,
        digest=head.digest or parameters_digest(module),
    )

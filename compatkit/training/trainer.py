"""The shared trainer: one loop for one or many tasks that may share auxiliary heads."""

from __future__ import annotations

import copy
import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import attrs
import torch

from compatkit.contract import Anchor
from compatkit.errors import UsageError
from compatkit.plugins import RunPlugins, Use
from compatkit.registry.canonical import digest, dumps
from compatkit.training import checkpoints
from compatkit.training.context import AuxiliaryHead, SetUp, TaskState
from compatkit.training.determinism import determined
from compatkit.training.execution import Asked, Execution, check_mode, settle
from compatkit.training.explanation import Explanation
from compatkit.training.fit import Fit
from compatkit.training.loop import Loop
from compatkit.training.networks import parameters_digest, prepare_task, redraw, start_digest
from compatkit.training.optimisation import Optimisation, check_owners
from compatkit.training.precision import Choice, Precision
from compatkit.training.profiling import Profile, profile
from compatkit.training.progress import Bar, Ledger
from compatkit.training.randomness import preserved, reseed, seed_of
from compatkit.training.schedules import Schedule
from compatkit.training.task import Task

Statistics = Literal["stored", "batch"]


@attrs.frozen(eq=False)
class Begun:
    """A run before its first step.

    Attributes:
        run: Everything that decides the result, as JSON values.
    """

    loop: Loop
    run: dict[str, Any]

    @property
    def setup(self) -> SetUp:
        """Its tasks and modules."""
        return self.loop.setup

    @property
    def plugins(self) -> RunPlugins:
        """Its regularizers."""
        return self.loop.plugins

    @property
    def plan(self) -> str:
        """Digest of ``run``: a checkpoint of another is refused."""
        return digest(dumps(self.run))


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
            PluginError: A regularizer is broken or set up wrongly.
            TrainingError: A loss is not finite, or the checkpoint belongs to another plan.
            EnvironmentFailure: The checkpoint cannot be written.
        """
        precision, plugins = self._prepared(tasks, regularizers, factories)
        with preserved(), determined(precision.device, on=self.deterministic):
            begun = self._begun(self._set_up(tasks, plugins, precision, frozen, frozen_statistics), plugins)
            return self.finish(begun, self._run(begun.loop, begun.plan))

    def begin(
        self,
        tasks: Sequence[Task],
        regularizers: Sequence[str | Use] = (),
        *,
        frozen: Fit | Mapping[str, AuxiliaryHead] | None = None,
        frozen_statistics: Statistics = "stored",
        factories: Mapping[str, Callable[..., Any]] | None = None,
    ) -> Begun:
        """Build everything of a run and take no step: what cannot be trained is refused here.

        Arguments and errors as for ``fit``.
        """
        precision, plugins = self._prepared(tasks, regularizers, factories)
        with preserved(), determined(precision.device, on=self.deterministic):
            return self._begun(self._set_up(tasks, plugins, precision, frozen, frozen_statistics), plugins)

    def finish(self, begun: Begun, history: list[dict[str, Any]]) -> Fit:
        """Return what a run leaves behind that took all of its steps."""
        setup = begun.setup
        for module in (*setup.owners.values(), *(head.module for head in setup.auxiliary.values())):
            module.eval()
        with preserved():
            for bound in begun.plugins.finish:
                reseed(setup.precision.device, seed_of(self.seed, "finish", bound.instance))
                bound.call(setup)
        _anchor(setup)
        return Fit(setup.tasks, setup.auxiliary, begun.run, history, begun.plan)

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
        precision = Precision.choose(self.device, self.precision, self.channels_last)
        return precision, RunPlugins.create(regularizers, factories=factories)

    def _begun(self, setup: SetUp, plugins: RunPlugins) -> Begun:
        loop = self._loop(setup, plugins)
        return Begun(loop, self._manifest(setup, plugins, loop.execution))

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
        loop = Loop.create(setup, plugins, optimisation, schedule, self.steps, self.batch_size)
        loop.train_mode()
        path = Path(self.checkpoint) if self.checkpoint is not None else None
        kept = checkpoints.execution(path) if path is not None and path.exists() else None
        if self.execution == "auto" and kept is not None:
            loop.set_execution(kept)
        else:
            loop.set_execution(settle(loop, self.execution, deterministic=self.deterministic))
        return loop

    def _run(self, loop: Loop, plan: str) -> list[dict[str, Any]]:
        setup, ledger, start = loop.setup, Ledger(), 0
        path = Path(self.checkpoint) if self.checkpoint is not None else None
        if path is not None and path.exists():
            start, ledger.rows = checkpoints.load(path, loop, plan)
        # A checkpoint closes whole rows of the history only, so that a resumed history is the same.
        every = -(-self.checkpoint_every // self.log_every) * self.log_every
        shown = sys.stderr.isatty() if self.progress is None else self.progress
        title = " + ".join(setup.tasks)
        with Bar(shown, title, self.steps, start, self.batch_size * len(setup.tasks)) as bar:
            for number in range(start, self.steps):
                for state in setup.tasks.values():
                    ledger.add(state.name, loop.step(state, number))
                done = number + 1
                if done % self.log_every == 0 or done == self.steps:
                    ledger.close(done)
                    bar.at(done, ledger.latest())
                if path is not None and (done % every == 0 or done == self.steps):
                    checkpoints.save(path, loop, plan, done, ledger.rows)
        return ledger.rows

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

    def _manifest(self, setup: SetUp, plugins: RunPlugins, execution: Execution) -> dict[str, Any]:
        """Return everything that decides the result, as JSON values; the same for the same run."""
        hidden = (
            *("checkpoint", "checkpoint_every", "progress"),
            *("device", "precision", "channels_last", "execution"),  # settled ones are in the environment
        )
        settings = attrs.asdict(self, filter=lambda attribute, _: attribute.name not in hidden)
        return {
            "schema": 1,
            "trainer": {**settings, "scheduling": "alternate", "steps_are": "per task"},
            "tasks": [_describe(state) for state in setup.tasks.values()],
            "plugins": plugins.manifest(),
            "frozen": {
                name: {
                    "digest": head.digest,
                    "state": start_digest(head.module),
                    "statistics": head.statistics,
                }
                for name, head in setup.frozen.items()
            },
            "environment": {
                "compatkit": version("compatkit"),
                "torch": torch.__version__,
                "python": platform.python_version(),
                "device": setup.precision.device,
                "precision": setup.precision.dtype,
                "channels_last": setup.precision.channels_last,
                "execution": {"mode": execution.mode, "reason": execution.reason},
            },
        }


def _describe(state: TaskState) -> dict[str, Any]:
    task = state.task
    return {
        "name": task.name,
        "backbone": task.backbone,
        "builder": task.builder,
        "split": task.split,
        "kwargs": dict(state.extractor_blueprint.kwargs),
        "size": list(state.data.size),
        "augment": list(task.augment),
        "data": {"name": task.data.train.name, "digest": task.data.train.digest},
        "initial": state.initial,
        "start": start_digest(state.extractor, state.head),
        "library": state.extractor_blueprint.library,
    }


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


def _anchor(setup: SetUp) -> None:
    """Write to every task what it was trained against: shared initial weights and auxiliary heads."""
    for head in setup.auxiliary.values():
        if not head.frozen:
            head.digest = parameters_digest(head.module)
            head.initials = tuple(sorted({state.initial for state in setup.tasks.values()}))
    for state in setup.tasks.values():
        state.anchors = [
            Anchor("initial_weights", state.initial),
            *(
                Anchor("auxiliary_head", head.digest, head.name, head.labels)
                for head in setup.auxiliary.values()
            ),
        ]

"""Prepare a run: check settings, build networks, set up plugins, create the loop, describe the plan.

Training, explaining, profiling and sweeps share this code, so that their results agree.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Literal, get_args

import attrs
import numpy as np
import torch

from compatkit.adapters.cutting.sideeffects import copied
from compatkit.contracts.labels import common, label
from compatkit.data.split import Split
from compatkit.errors import DataError, PluginError, UsageError, type_of
from compatkit.foundation.bars import silent
from compatkit.foundation.codec import digest, dumps
from compatkit.plugins import RegularizerConfig, RunPlugins
from compatkit.registry.weights.tensorchecks import UNUSABLE, check_values
from compatkit.training import checkpoints
from compatkit.training.batches.loaders import name_worker_deaths
from compatkit.training.distributed import World, join_processes
from compatkit.training.ending import Teardown, torn_down
from compatkit.training.execution import Execution
from compatkit.training.execution_selection import select_execution
from compatkit.training.fit import Fit
from compatkit.training.hook_conflicts import check_hooks
from compatkit.training.loggers import RunLog
from compatkit.training.loop import Loop
from compatkit.training.manifest import describe
from compatkit.training.multiply_adds import multiply_adds
from compatkit.training.networks import parameters_digest, prepare_task, redraw
from compatkit.training.optim import check_owners
from compatkit.training.plugin_setup import SetUp, check_weights
from compatkit.training.precision import Precision
from compatkit.training.randomness import determined, generator, preserved, reseed, seed_of
from compatkit.training.recompute import recomputing
from compatkit.training.replicas import sync_batchnorm
from compatkit.training.settings import Settings
from compatkit.training.task import Task
from compatkit.training.task_state import AuxiliaryHead, ReleasedExtractor, TaskState


def hold_out(tasks: Sequence[Task], share: float | None, seed: int) -> tuple[list[Task], dict[str, Split]]:
    """Return the tasks without a share of their training images, and the held-out images by task.

    Args:
        tasks: Tasks; they are not changed.
        share: Share of the images of each class, rounded, at least one of each class with two; None to hold out none.
        seed: Seed of the run.

    Raises:
        UsageError: A task has a loader, from which nothing can be held out.
        DataError: No image would be held out, or images of one class only.
    """
    if share is None:
        return list(tasks), {}
    remaining: list[Task] = []
    held_out: dict[str, Split] = {}
    for task in tasks:
        data = task.data
        if task.loader is not None and not isinstance(task.loader, str | Mapping):
            raise UsageError(
                f"Task {task.name!r} has a loader, from which no images can be held out. Leave validation={share} out "
                "and set evaluate_on='test', or register the loader as a plugin, which gets only the remaining images.",
                subject=task.name,
            )
        positions = _held_out_positions(data.train, share, seed, task.name)
        if not len(positions):
            raise DataError(
                f"Task {task.name!r}: no class of {data.train.name} has two images, so none can be held out."
            )
        rest = np.setdiff1d(np.arange(len(data.train)), positions)
        held_out[task.name] = data.train.take(positions)
        _check_classes(task, held_out[task.name], f"images of validation={share}")
        remaining.append(attrs.evolve(task, data=attrs.evolve(data, train=data.train.take(rest))))
    return remaining, held_out


def _held_out_positions(split: Split, share: float, seed: int, task: str) -> np.ndarray:
    """Return the positions of the held-out images, sorted."""
    draw = generator(seed, "validation", task)
    chosen = [np.empty(0, dtype=np.int64)]
    for positions in split.positions_by_class():
        count = min(max(round(share * len(positions)), 1), len(positions) - 1)
        if count > 0:
            chosen.append(positions[torch.randperm(len(positions), generator=draw).numpy()[:count]])
    return np.sort(np.concatenate(chosen))


def _check_classes(task: Task, split: Split, what: str) -> None:
    present = [name for name, count in zip(split.classes, split.counts, strict=True) if count]
    if len(present) < 2:
        raise DataError(
            f"Task {task.name!r}: the {len(split)} {what} of {split.name} are all of the class {present[0]!r}. Give "
            "images of at least two classes."
        )


SAVED = "the run of the checkpoint has it"
"""Reason for the number format of a run that resumes."""
Statistics = Literal["stored", "batch"]
Frozen = Fit | Mapping[str, AuxiliaryHead | ReleasedExtractor] | None


def _as_tasks(tasks: object) -> Sequence[Task]:
    """Return the tasks of a fit as a list; raise if a value is not a task."""
    values = [*tasks] if isinstance(tasks, Iterable) and not isinstance(tasks, str | bytes) else [tasks]
    checked: list[Task] = []
    for task in values:
        if not isinstance(task, Task):
            message = f"fit expects a Task or a list of tasks; got {task!r:.100}, {type_of(task)}."
            raise UsageError(message, subject=task)
        checked.append(task)
    return checked


@attrs.frozen(eq=False)
class FitRequest:
    """Settings of a trainer and arguments of ``Trainer.fit``, which documents them.

    ``dry`` says that nothing will be trained.
    """

    settings: Settings
    tasks: Sequence[Task] = attrs.field(converter=_as_tasks)
    regularizers: Sequence[str | RegularizerConfig] = ()
    frozen: Frozen = None
    frozen_statistics: Statistics = "stored"
    factories: Mapping[str, Callable[..., Any]] | None = None
    dry: bool = False


@attrs.frozen(eq=False)
class PreparedRun:
    """Run before its first step.

    Attributes:
        loop: Loop of the run.
        manifest: All inputs that affect the result, as JSON values; equal runs have equal manifests.
        held_out: Images held out of training, by task.
        log: Loggers of the run, before ``begin``.
    """

    loop: Loop
    manifest: Mapping[str, Any]
    held_out: Mapping[str, Split]
    log: RunLog

    @property
    def plan(self) -> str:
        """Digest of the manifest; a checkpoint with another digest is refused."""
        return digest(dumps(self.manifest))


@contextmanager
def prepare(request: FitRequest) -> Iterator[PreparedRun]:
    """Build everything of a run without taking a step; raise for tasks that cannot be trained.

    Torch's generators and settings are those of the run in the block, and are restored on exit.

    Args:
        request: Settings and arguments of the fit.

    Raises:
        CompatkitError: See ``Trainer.fit``.
    """
    settings = request.settings
    with (
        join_processes(settings.device, settings.checkpoint) as world,
        silent(not (world.first and settings.progress)),
    ):
        world.check_batch(settings.batch_size, settings.accumulate)
        plugins = RunPlugins.create(request.regularizers, factories=request.factories)
        request = attrs.evolve(
            request, tasks=[apply_task_hooks(task, plugins, settings.seed) for task in request.tasks]
        )
        _check(request, world)
        check_hooks(plugins, request.tasks)
        run_folder = settings.info("", dry=request.dry).folder
        run_folder = run_folder or (Path() if request.dry else None)
        log = RunLog.of(settings.loggers, settings.batch_size, run_folder)
        precision = Precision.choose(world.device, settings.precision, settings.channels_last)
        precision = _saved_precision(settings, precision, world)
        tasks, held_out = hold_out(request.tasks, settings.validation, settings.seed)
        with (
            name_worker_deaths(),
            preserved(),
            determined(precision.device, on=settings.deterministic),
            torn_down(plugins) as teardown,
        ):
            setup = _set_up(attrs.evolve(request, tasks=tasks), plugins, precision, teardown)
            normalizing = (*setup.owners.values(), *(head.module for head in setup.frozen.values()))
            with (
                sync_batchnorm(normalizing, world, on=settings.synchronize_statistics),
                recomputing(setup.tasks.values()),
                closing(Loop(settings, setup, plugins, world)) as loop,
            ):
                loop.train_mode()
                loop.set_execution(_execution(loop))
                manifest = describe(loop)
                plan = {"plan": manifest, "evaluate_every": settings.evaluate_every}
                plan["checkpoint_every"] = (
                    settings.checkpoint_every if settings.checkpoint is not None else None
                )
                world.check_same(plan, "plans", "Give all the same script, settings, data and versions.")
                yield PreparedRun(loop, manifest, held_out, log)


def apply_task_hooks(task: Task, plugins: RunPlugins, seed: int) -> Task:
    """Return a task after the changes of plugins, before its network is built.

    Args:
        task: Task of the user.
        plugins: Plugins of the run.
        seed: Seed of the run.

    Raises:
        PluginError: A plugin returned no task, or a task of another name.
    """
    name = task.name
    for bound in plugins.task:
        new_task = bound.call(task, seed)
        if not isinstance(new_task, Task) or new_task.name != name:
            returned = f"a task called {new_task.name!r}" if isinstance(new_task, Task) else type_of(new_task)
            raise PluginError(
                f"Plugin {bound.instance!r}: compatkit_task returned {returned} for the task {name!r}. Return "
                "attrs.evolve(task, ...) with the same name, or the task itself.",
                plugin=bound.instance,
                hook="compatkit_task",
            )
        task = new_task
    return task


def _check(request: FitRequest, world: World) -> None:
    """Check a request before anything is built."""
    settings, tasks = request.settings, request.tasks
    if request.frozen_statistics not in get_args(Statistics):
        raise UsageError(f"frozen_statistics expects 'stored' or 'batch', got {request.frozen_statistics!r}.")
    if settings.checkpoint is not None and world.first:
        folder = Path(settings.checkpoint).absolute().parent
        if not folder.is_dir():
            raise UsageError(f"The folder of the checkpoint, {folder}, does not exist; create it first.")
    if not tasks:
        raise UsageError("Trainer.fit expects at least one task, got none.")
    names = [task.name for task in tasks]
    if len(set(names)) != len(names):
        raise UsageError(f"Task names must differ, got {names}.")
    for task in tasks:
        if task.supervised:
            if task.loader is None:
                _check_classes(task, task.data.train, "training images")
            labels = tuple(map(label, task.data.classes))
            common(labels, labels, owners=(task.data.name, f"the classes of {task.data.name}"))
        if (
            task.loader is not None
            and settings.evaluate_every is not None
            and settings.evaluate_on == "train"
        ):
            raise UsageError(
                f"Task {task.name!r} has a loader, which has no end; evaluate_on='train' needs a training set.",
                subject=task.name,
            )
        missing = "labels" if not task.supervised else "head of its own" if not task.own_head else None
        if missing and (settings.validation is not None or settings.evaluate_every is not None):
            raise UsageError(
                f"Task {task.name!r} has no {missing}, so it cannot be evaluated during training. Leave validation, "
                "evaluate_every and stop_early out, and measure afterwards."
            )


def _set_up(request: FitRequest, plugins: RunPlugins, precision: Precision, teardown: Teardown) -> SetUp:
    seed, frozen, statistics = request.settings.seed, request.frozen, request.frozen_statistics
    states = {task.name: prepare_task(task, seed, precision) for task in request.tasks}
    precision = _for_networks(request.settings, precision, states.values())
    for state in states.values():
        state.statistics = statistics
    parts = frozen.auxiliary if isinstance(frozen, Fit) else frozen or {}
    heads = {name: part for name, part in parts.items() if isinstance(part, AuxiliaryHead)}
    frozen_heads = {name: _freeze(head, statistics, precision) for name, head in heads.items()}
    released = next((part for part in parts.values() if isinstance(part, ReleasedExtractor)), None)
    if released is not None:
        check_values(released.module.state_dict(), f"The released extractor {released.reference}", UNUSABLE)
        released = released.copy_to_device(precision)

    def reset(
        state: TaskState, stream: tuple[str | int, ...], other_seed: int | None, class_layer: bool
    ) -> None:
        if state.task.extractor is not None:
            raise UsageError(
                f"Task {state.name!r} starts from the component {state.task.extractor.reference}; a regularizer of "
                "this run (identical_init) would draw its weights again. Leave one of them out."
            )
        weights_seed = seed_of(seed if other_seed is None else other_seed, "initial", *stream)
        redraw(state, weights_seed, class_layer=class_layer)
        state.rows_named = class_layer

    owners = {
        f"{name}.{side}": getattr(state, side)
        for name, state in states.items()
        for side, trained in (("extractor", not state.freezes_extractor), ("head", state.runs_head))
        if trained
    }
    run = request.settings.info(precision.device, dry=request.dry)
    setup = SetUp(seed, precision, states, frozen_heads, reset, owners=owners, released=released, run=run)
    teardown.setup = setup
    for bound in plugins.set_up:
        reseed(precision.device, seed_of(seed, "set_up", bound.instance))
        setup.instance = bound.instance
        bound.call(setup)
        teardown.unready.remove(bound.instance)
        check_weights(setup, f"Plugin {bound.instance!r} left unusable weights in compatkit_set_up")
    setup.instance = None
    if not plugins.dropped:  # a regularizer of weight 0 may use the part
        _check_used(setup, frozen_heads)
    check_owners({**setup.owners, **setup.frozen_modules()})
    return setup


def _check_used(setup: SetUp, head_names: Iterable[str]) -> None:
    """Raise if no regularizer of the run uses a frozen part."""
    for name in head_names:
        if name not in setup.auxiliary:
            raise UsageError(
                f"No regularizer of this run uses the frozen auxiliary head {name!r}. Name the regularizer that was "
                "trained with it, or leave the head out."
            )
    released = setup.released
    if released is not None and not setup.compared:
        raise UsageError(
            f"No regularizer of this run uses the released extractor {released.reference}. Name one that compares with "
            "it (feature_distillation, or backward_compatibility with forward), or leave it out."
        )


def _execution(loop: Loop) -> Execution:
    """Return the execution of steps: that of the checkpoint's run, or a new selection."""
    settings = loop.settings
    if settings.execution == "auto" and settings.checkpoint is not None:
        data = checkpoints.read(Path(settings.checkpoint), loop.world)
        if data is not None and (execution := checkpoints.execution(data)) is not None:
            return execution
    return select_execution(loop)


def _saved_precision(settings: Settings, precision: Precision, world: World) -> Precision:
    """Return the precision with the number format of the checkpoint's run, where the settings leave it open."""
    if settings.precision != "auto" or settings.checkpoint is None:
        return precision
    data = checkpoints.read(Path(settings.checkpoint), world)
    saved = None if data is None else checkpoints.number_format(data)
    if saved not in ("float32", "bf16"):
        return precision
    return attrs.evolve(precision, dtype=saved, reason=SAVED)


def _for_networks(settings: Settings, precision: Precision, states: Iterable[TaskState]) -> Precision:
    """Return the precision after a look at the sizes of the networks, where it was chosen and depends on them."""
    chosen = settings.precision == "auto" and precision.reason != SAVED
    if not chosen or precision.dtype != "bf16" or torch.device(precision.device).type != "cpu":
        return precision
    images = settings.batch_size // settings.accumulate
    counts: list[float] = []
    for state in states:
        parts = [state.extractor, state.head] if state.runs_head else [state.extractor]
        shape = len(state.data.mean), *state.data.size
        counts += [images * count for count in multiply_adds(parts, shape)]
    return precision.for_products(counts)


def _freeze(head: AuxiliaryHead, statistics: Statistics, precision: Precision) -> AuxiliaryHead:
    check_values(head.module.state_dict(), f"The frozen auxiliary head {head.name!r}", UNUSABLE)
    module = copied(head.module).to(precision.device).requires_grad_(False)
    digest = head.digest or parameters_digest(module)
    return attrs.evolve(head, module=module, frozen=True, statistics=statistics, digest=digest)

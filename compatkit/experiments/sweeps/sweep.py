"""Sweeps: check all runs of a recipe with lists, and carry them out."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, cast

import attrs
import torch

from compatkit.components.registry import Registry
from compatkit.contracts.own_networks import planned_builder
from compatkit.errors import CompatkitError, InvalidName, UsageError
from compatkit.experiments.folders import default_location
from compatkit.experiments.recipes import Recipe, check, parse
from compatkit.experiments.sweeps import records
from compatkit.experiments.sweeps.axes import Axis, axes_of, names_of, set_values
from compatkit.experiments.sweeps.jobs import DataCache, Job, separate_finished
from compatkit.experiments.sweeps.launchers import run_records
from compatkit.experiments.sweeps.records import SCHEMA, RunPlan, SweepNote
from compatkit.experiments.sweeps.results import SweepResult, read_results
from compatkit.foundation.addresses import local
from compatkit.foundation.codec import digest, dumps
from compatkit.foundation.json_fields import key_of
from compatkit.plugins import RunPlugins
from compatkit.plugins.launching import Launcher
from compatkit.registry.disk import read as read_file
from compatkit.registry.layout import MARKER
from compatkit.registry.names import check_name
from compatkit.registry.opening import AnyRegistry, root_of
from compatkit.training.prepare import FitRequest, prepare
from compatkit.training.settings import WITHOUT_INFLUENCE, logger_settings, plan_key
from compatkit.training.task import Rest, Task

MAX_RUNS = 10_000
"""Runs of a sweep at most."""
Progress = Callable[[int, int, str], None]


@attrs.frozen(eq=False)
class Sweep:
    """Runs of a recipe with lists of values.

    Attributes:
        file: Recipe file.
        axes: Varied values; the runs are their Cartesian product.
        runs: Runs in the order of the recipe, the last axis fastest.
    """

    file: Path
    axes: tuple[Axis, ...]
    runs: tuple[Job, ...]

    @classmethod
    def read(
        cls,
        path: str | os.PathLike[str],
        *,
        root: str | None = None,
        download: bool = False,
        prefix: str | None = None,
        loggers: Any = None,
    ) -> Sweep:
        """Read a recipe with a table ``[sweep]`` and check all values of all runs, without loading data sets.

        Args:
            path: Recipe as for ``compatkit train``, with a table ``[sweep]`` of paths, each with a list of values:
                ``"trainer.seed" = [0, 1]``, ``"regularizers" = [[], ["dcc"]]``, ``"tasks.cut" = [...]`` (all
                tasks), ``"tasks.mnist.cut"``, ``"regularizers.dcc.weight"``.
            root: Folder of data sets; None for the search path of ``compatkit.data.load``.
            download: Whether torchvision may download missing data sets.
            prefix: Prefix to use instead of that of the file; parts are published as
                ``<prefix>/<run>/<task>.extractor``.
            loggers: Loggers to use instead of those of the file, as for ``Trainer``: each run is logged under its name.

        Returns:
            Sweep with all runs.

        Raises:
            UsageError: The file is not TOML, a path does not exist, a list is empty or has a duplicate, or a value is
                invalid.
            InvalidName: Prefix, run names and task names do not form valid component names.
            UnknownName: A plugin is unknown.
        """
        file = Path(local(path, "a recipe")).absolute()
        tables = parse(file)
        if prefix is not None:
            tables["prefix"] = prefix
        if loggers is not None:
            tables["loggers"] = logger_settings(loggers)
            if isinstance(trainer := tables.get("trainer"), dict):
                trainer.pop("loggers", None)
        axes = axes_of(tables, file)
        count = math.prod(len(axis.values) for axis in axes)
        if count > MAX_RUNS:
            raise UsageError(
                f"{file}: the lists give {count:,} runs, but a sweep has at most {MAX_RUNS:,}. Split it."
            )
        paths = [axis.path for axis in axes]
        products = [
            dict(zip(paths, combination, strict=True))
            for combination in itertools.product(*(axis.values for axis in axes))
        ]
        data_root = None if root is None else str(Path(root).absolute())
        runs = tuple(
            Job(name, values, set_values(tables, values, file), str(file), data_root, download)
            for name, values in zip(names_of(products), products, strict=True)
        )
        for run in runs:
            _check(run, file)
        return cls(file, axes, runs)

    def run(
        self,
        registry: AnyRegistry,
        *,
        out: str | os.PathLike[str] | None = None,
        launcher: str = "auto",
        workers: int | None = None,
        cluster: str | None = None,
        resume: bool = False,
        progress: Progress | None = None,
        say: Callable[[str], None] | None = None,
    ) -> SweepResult:
        """Carry out all runs: train, publish and measure each, and write its record at its end.

        Args:
            registry: Registry for the parts and results of each run: a folder, ``Registry`` or ``Store``; created if
                missing.
            out: Folder of records and checkpoints; None for ``<registry>-sweeps/<recipe>`` in the current folder.
            launcher: ``"sequential"``, ``"process"`` (on this machine), ``"ray"`` (on a cluster), name of a plugin, or
                ``"auto"``: ``ray`` if ``cluster`` is given, processes if ``workers`` is, else sequential.
            workers: Number of parallel runs; None for the launcher's default.
            cluster: Address of a cluster, such as ``"ray://head:10001"``.
            resume: Whether to keep finished runs of an earlier call and resume the others from their checkpoints.
            progress: Callback with the number of finished runs, the number of all runs, and the current step.
            say: Callback with each message.

        Returns:
            Records of all runs; a failed run does not end the others.

        Raises:
            UsageError: The folder contains other files, or the launcher is unknown.
            CompatkitError: A run cannot be trained; the message names it, and nothing was trained.
            MissingDependency: The launcher's library is not installed.
        """
        say, progress = say or _silent, progress or _silent
        launch = Launcher(launcher, workers, cluster)
        root = root_of(registry, "registry")
        existing = Registry.open(root) if (root / MARKER).exists() else None
        if out is None:
            out = default_location(root, "sweeps") / self.file.stem
        folder = Path(local(out, "a folder of records")).absolute()
        records.check_folder(folder, resume)
        cache = DataCache()
        paths = {"registry": str(root), "folder": str(folder), "launcher": launch.name}
        jobs = plan_jobs([attrs.evolve(run, **paths) for run in self.runs], cache, existing, progress)
        finished, remaining, notes = separate_finished(jobs, folder, existing)
        Registry.init(root, exist_ok=True)  # after the checks: a refused sweep leaves nothing behind
        for note in notes:
            say(note)
        choice = {"asked": launcher, "backend": launch.name}
        sweep_note = SweepNote(
            recipe=self.file.name,
            axes={axis.path: axis.values for axis in self.axes},
            choice=choice,
            runs=tuple(RunPlan(run=job.run, values=job.values, plan=job.plan, seed=job.seed) for job in jobs),
        )
        records.write_note(folder, sweep_note)

        progress(len(finished), len(jobs), "")
        for record in run_records(launch, remaining, cache):
            finished[record.run] = record
            failed = sum(run.state == "failed" for run in finished.values())
            progress(len(finished), len(jobs), f"{failed} failed" if failed else "")
        seeds = {job.run: job.seed for job in jobs}
        return SweepResult(folder, tuple(finished[job.run] for job in jobs), choice, tuple(notes), seeds)

    @staticmethod
    def open(folder: str | os.PathLike[str]) -> SweepResult:
        """Read the results of a sweep from its folder, also while it runs or after an interruption.

        Neither the recipe nor data sets nor a registry are needed.

        Args:
            folder: Folder of the records: ``<registry>-sweeps/<recipe>``, or ``out`` of ``run``.

        Returns:
            Record of every run; its state is ``"planned"`` if the run was not begun, or the record is of another plan.

        Raises:
            UsageError: The folder contains no sweep.
            FormatError: A file is damaged; the message names it.
            EnvironmentFailure: A file cannot be read.
        """
        return read_results(Path(local(folder, "a folder of records")).absolute())


def _check(run: Job, file: Path) -> None:
    with _run_in_message(run.run):
        for key in ("checkpoint", "run_name"):
            if key in run.tables.get("trainer", ()):
                raise UsageError(
                    f"{file}: [trainer]: a sweep sets the {key} of each of its runs; leave {key} out.",
                    subject=key,
                )
        recipe = check(run.tables, file)
        try:
            for task in recipe.entries:
                check_name(f"{recipe.prefix}/{run.run}/{task['name']}.extractor")
        except InvalidName as error:
            error.args = (
                f"{error} A sweep's parts are named <prefix>/<run>/<task>.extractor, so its prefix is one word "
                "without '/'.",
            )
            raise


@contextmanager
def _run_in_message(run: str, suffix: str = "") -> Iterator[None]:
    """Add the name of a run and a suffix to an error's message."""
    try:
        yield
    except CompatkitError as error:
        error.args = (f"Run {run}: {error}{suffix}", *error.args[1:])
        raise


def _silent(*words: object) -> None:
    """Report nothing."""


def plan_jobs(
    jobs: Sequence[Job], cache: DataCache, registry: Registry | None, progress: Progress
) -> list[Job]:
    """Load all data sets and prepare one run of each group that differs only in the seed.

    Args:
        jobs: Jobs without plans.
        cache: Cache for the data sets.
        registry: Registry of the heads to train against; None if there is none yet.
        progress: Callback with the number of checked runs, the number of all runs, and the current step.

    Returns:
        Jobs with their plans.

    Raises:
        CompatkitError: A run cannot be trained; the message names it, and nothing was trained.
    """
    prepared: set[bytes] = set()
    planned: list[Job] = []
    for index, job in enumerate(jobs):
        progress(index, len(jobs), f"checks {job.run}")
        with _run_in_message(job.run, " Nothing was trained."):
            recipe = cache.recipe(job)
            if recipe.frozen_references and registry is None:
                raise UsageError(
                    f"It trains against {', '.join(map(str, recipe.frozen_references.values()))}, but {job.registry} "
                    "is not a registry yet."
                )
            heads = registry.frozen(**recipe.frozen_references) if registry is not None else {}
            plan = _plan(job, recipe, {name: head.digest for name, head in heads.items()})
            group = dumps({**plan, "trainer": {**plan["trainer"], "seed": 0}})
            if group not in prepared:
                trainer = attrs.evolve(recipe.trainer, checkpoint=None, execution="eager")
                frozen = heads, recipe.frozen.statistics
                request = FitRequest(trainer, recipe.tasks, recipe.regularizers, *frozen, dry=True)
                with prepare(request):
                    prepared.add(group)
        planned.append(attrs.evolve(job, plan=digest(dumps(plan))))
    return planned


def _plan(job: Job, recipe: Recipe, heads: Mapping[str, str]) -> dict[str, Any]:
    """Return all inputs that affect the result of a run, as JSON values."""
    trainer = recipe.trainer
    settings = {plan_key(name): value for name, value in attrs.asdict(trainer, filter=_is_planned).items()}
    if trainer.cache == "on":  # crops are then taken from smaller images
        settings["cache"] = "on"
    return {
        "schema": SCHEMA,
        "prefix": job.prefix,
        "trainer": settings,
        "tasks": [_plan_task(task) for task in recipe.tasks],
        "regularizers": RunPlugins.create(recipe.regularizers).manifest(),
        "frozen": {"heads": dict(heads), "statistics": recipe.frozen.statistics},
        "versions": {name: version(name) for name in ("compatkit",)} | {"torch": torch.__version__},
    }


_NEWER_SETTINGS = ("optimizer_options", "layer_decay", "floor")
"""Settings of newer versions; a plan without their defaults equals that of an older version."""


def _is_planned(field: attrs.Attribute[Any], value: Any) -> bool:
    return field.name not in WITHOUT_INFLUENCE and (
        field.name not in _NEWER_SETTINGS or value != field.default
    )


_ALWAYS_PLANNED = ("name", "model", "cut", "builder", "size", "augment")
"""Attributes of a task in every plan; others are left out if they have their defaults."""
_PLANNED_APART = (*_ALWAYS_PLANNED, "kwargs", "weights", "data")
_SAME_RESULT = ("recompute_activations",)


def _plan_task(task: Task) -> dict[str, Any]:
    weights = task.weights
    if weights is not None and weights != "pretrained":
        path = Path(cast("str", weights))
        files = [path / "model.safetensors", path / "config.json"] if path.is_dir() else [path]
        contents = [read_file(file, file.parent) for file in files]
        weights = "+".join(digest(content[0]) for content in contents if content is not None) or str(path)
    fields = attrs.fields(type(task))
    others = [field for field in fields if field.name not in (*_PLANNED_APART, *_SAME_RESULT)]
    return {
        **_by_key(task, [field for field in fields if field.name in _ALWAYS_PLANNED]),
        "kwargs": dict(task.kwargs),
        "weights": weights,
        **{
            key_of(field): _by_key(value, attrs.fields(Rest)) if isinstance(value, Rest) else value
            for field in others
            if (value := getattr(task, field.name)) != field.default
        },
        "data": {side: getattr(task.data, side).digest for side in ("train", "test")}
        | {"name": task.data.name},
    }


def _by_key(instance: Task | Rest, fields: Iterable[attrs.Attribute[Any]]) -> dict[str, Any]:
    """Return values by their keys in plans."""
    values = {key_of(field): getattr(instance, field.name) for field in fields}
    return {**values, "builder": planned_builder(instance.builder, instance.model)}

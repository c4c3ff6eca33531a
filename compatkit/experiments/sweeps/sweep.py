"""Sweeps: check a recipe with lists as a whole, and carry out its runs."""

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
from compatkit.experiments.recipes import Recipe, check, parse
from compatkit.experiments.sweeps import records
from compatkit.experiments.sweeps.axes import Axis, axes_of, names_of, put
from compatkit.experiments.sweeps.jobs import DataCache, Job, sort
from compatkit.experiments.sweeps.launchers import Launcher, choose
from compatkit.experiments.sweeps.records import SCHEMA, RunPlan, SweepNote
from compatkit.experiments.sweeps.results import SweepResult, opened
from compatkit.foundation.addresses import local
from compatkit.foundation.codec import digest, dumps, key_of
from compatkit.plugins import RunPlugins
from compatkit.registry.disk import read as read_file
from compatkit.registry.layout import MARKER
from compatkit.registry.names import check_name
from compatkit.training.prepare import FitRequest, prepare
from compatkit.training.settings import BESIDE, plan_key
from compatkit.training.task import Rest, Task

MOST = 10_000
"""Most runs of one sweep."""
Progress = Callable[[int, int, str], None]


@attrs.frozen(eq=False)
class Sweep:
    """Many runs of one recipe, all checked.

    Attributes:
        file: The recipe.
        axes: What varies; the runs are their Cartesian product.
        runs: In the order of the recipe, the last axis fastest.
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
    ) -> Sweep:
        """Read a recipe with a table ``[sweep]``; all values of all runs are checked, and no data set is loaded.

        Args:
            path: A recipe as for ``compatkit train``, with a table ``[sweep]`` of paths, each with a list of values:
                ``"trainer.seed" = [0, 1]``, ``"regularizers" = [[], ["dcc"]]``, ``"tasks.cut" = [...]`` (all
                tasks), ``"tasks.mnist.cut"``, ``"regularizers.dcc.weight"``.
            root: Folder of data sets; None for the search path of ``compatkit.data.load``.
            download: Whether torchvision may download missing data sets.
            prefix: Replaces the prefix of the file; parts are published as ``<prefix>/<run>/<task>.extractor``.

        Raises:
            UsageError: The file is not TOML, a path does not exist, a list is empty or has a duplicate, or a value is
                invalid.
            InvalidName: Prefix, names of runs and of tasks do not form valid component names.
            UnknownName: A plugin is unknown.
        """
        file = Path(local(path, "a recipe")).absolute()
        tables = parse(file)
        if prefix is not None:
            tables["prefix"] = prefix
        axes = axes_of(tables, file)
        count = math.prod(len(axis.values) for axis in axes)
        if count > MOST:
            raise UsageError(
                f"{file}: the lists make {count:,} runs, but a sweep has at most {MOST:,}. Split it."
            )
        paths = [axis.path for axis in axes]
        products = [
            dict(zip(paths, combination, strict=True))
            for combination in itertools.product(*(axis.values for axis in axes))
        ]
        data_root = None if root is None else str(Path(root).absolute())
        runs = tuple(
            Job(name, values, put(tables, values, file), str(file), data_root, download)
            for name, values in zip(names_of(products), products, strict=True)
        )
        for run in runs:
            _check(run, file)
        return cls(file, axes, runs)

    def run(
        self,
        registry: Registry | str | os.PathLike[str],
        *,
        out: str | os.PathLike[str] | None = None,
        launcher: str = "auto",
        workers: int | None = None,
        resume: bool = False,
        progress: Progress | None = None,
        say: Callable[[str], None] | None = None,
    ) -> SweepResult:
        """Carry out all runs: train, publish and measure each, and write its record when it ends.

        Args:
            registry: Registry for the parts and results of each run.
            out: Folder of records and checkpoints; None for ``<registry>-sweeps/<recipe>`` next to the registry.
            launcher: ``"sequential"``, ``"process"`` (on this machine), ``"ray"`` (on a cluster), that of a plugin, or
                ``"auto"``: processes if ``workers`` is given, else sequential.
            workers: Runs at a time; None for as many as the launcher thinks fit.
            resume: Keep the finished runs of an earlier call, and resume the others from their checkpoints.
            progress: Called with runs done, runs in all, and what is being done.
            say: Called with lines of news.

        Returns:
            The records of all runs; a failed run does not end the others.

        Raises:
            UsageError: The folder holds something else, or the launcher is unknown.
            CompatkitError: A run cannot be trained; the message names it, and nothing was trained.
            MissingDependency: The launcher's library is not installed.
        """
        tell, report = say or _silent, progress or _silent
        launch = Launcher(choose(launcher, workers))
        place = registry.store.root if isinstance(registry, Registry) else registry
        root = Path(local(place, "a registry")).absolute()
        opened = Registry.open(root) if (root / MARKER).exists() else None
        records_at = root.with_name(f"{root.name}-sweeps") / self.file.stem if out is None else out
        folder = Path(local(records_at, "a folder of records")).absolute()
        records.check_folder(folder, resume)
        cache = DataCache()
        places = {"registry": str(root), "folder": str(folder), "launcher": launch.name}
        jobs = [attrs.evolve(run, **places) for run in self.runs]
        planned = planned_jobs(jobs, cache, opened, report)
        ended, left, notes = sort(planned, folder, opened)
        Registry.init(root, exist_ok=True)  # after the checks: a refused sweep leaves nothing behind
        for line in notes:
            tell(line)
        choice = {"asked": launcher, "backend": launch.name}
        note = SweepNote(
            recipe=self.file.name,
            axes={axis.path: axis.values for axis in self.axes},
            choice=choice,
            runs=tuple(
                RunPlan(run=job.run, values=job.values, plan=job.plan, seed=job.seed) for job in planned
            ),
        )
        records.write_note(folder, note)

        report(len(ended), len(self.runs), "")
        for record in launch.records(left, cache, workers):
            ended[record.run] = record
            failed = sum(run.state == "failed" for run in ended.values())
            report(len(ended), len(self.runs), f"{failed} failed" if failed else "")
        seeds = {job.run: job.seed for job in planned}
        return SweepResult(folder, tuple(ended[run.run] for run in self.runs), choice, tuple(notes), seeds)

    @staticmethod
    def open(folder: str | os.PathLike[str]) -> SweepResult:
        """Read the results of a sweep from its folder, also of one that is under way or was interrupted.

        Neither the recipe nor data sets nor a registry are needed, and no network is built.

        Args:
            folder: The folder of its records: ``<registry>-sweeps/<recipe>``, or what ``run`` was given as ``out``.

        Returns:
            A record for every run: those that were not begun, or whose record is of another plan, are ``"planned"``.

        Raises:
            UsageError: The folder holds no sweep.
            FormatError: A file is damaged; the message names it.
            EnvironmentFailure: A file cannot be read.
        """
        return opened(Path(folder).absolute())


def _check(run: Job, file: Path) -> None:
    with _named(run.run):
        if "checkpoint" in run.tables.get("trainer", ()):
            raise UsageError(
                f"{file}: [trainer]: a sweep manages the checkpoints of its runs; leave checkpoint out."
            )
        written = check(run.tables, file)
        try:
            for task in written.entries:
                check_name(f"{written.prefix}/{run.run}/{task['name']}.extractor")
        except InvalidName as error:
            error.args = (
                f"{error} A sweep's parts are named <prefix>/<run>/<task>.extractor, so its prefix is one word "
                "without '/'.",
            )
            raise


@contextmanager
def _named(run: str, after: str = "") -> Iterator[None]:
    """Add the name of a run before an error's message, and ``after`` to its end."""
    try:
        yield
    except CompatkitError as error:
        error.args = (f"Run {run}: {error}{after}", *error.args[1:])
        raise


def _silent(*words: object) -> None:
    """Report nothing."""


def planned_jobs(
    jobs: Sequence[Job], cache: DataCache, registry: Registry | None, progress: Progress
) -> list[Job]:
    """Load all data sets and prepare one run of each group that differs only in the seed.

    Args:
        jobs: Jobs without plans.
        cache: Caches the data sets for the runs.
        registry: Registry of the heads to train against; None if there is none yet.
        progress: Called with runs checked, runs in all, and what is being done.

    Returns:
        The jobs with their plans.

    Raises:
        CompatkitError: A run cannot be trained; the message names it, and nothing was trained.
    """
    kinds: set[bytes] = set()
    planned: list[Job] = []
    for number, job in enumerate(jobs):
        progress(number, len(jobs), f"checks {job.run}")
        with _named(job.run, " Nothing was trained."):
            plan = cache.recipe(job)
            if plan.frozen_references and registry is None:
                raise UsageError(
                    f"It trains against {', '.join(map(str, plan.frozen_references.values()))}, but {job.registry} is "
                    "not a registry yet."
                )
            heads = registry.frozen(**plan.frozen_references) if registry is not None else {}
            decides = _decides(job, plan, {name: head.digest for name, head in heads.items()})
            kind = dumps({**decides, "trainer": {**decides["trainer"], "seed": 0}})
            if kind not in kinds:
                trainer = attrs.evolve(plan.trainer, checkpoint=None, execution="eager")
                request = FitRequest(trainer, plan.tasks, plan.regularizers, heads, plan.frozen.statistics)
                with prepare(request):
                    kinds.add(kind)
        planned.append(attrs.evolve(job, plan=digest(dumps(decides))))
    return planned


def _decides(job: Job, plan: Recipe, heads: Mapping[str, str]) -> dict[str, Any]:
    """Return everything known before a run that affects its result, as JSON values."""
    settings = {plan_key(name): value for name, value in attrs.asdict(plan.trainer, filter=_decisive).items()}
    if plan.trainer.cache == "on":  # crops are then taken from smaller images
        settings["cache"] = "on"
    return {
        "schema": SCHEMA,
        "prefix": job.prefix,
        "trainer": settings,
        "tasks": [_task(task) for task in plan.tasks],
        "regularizers": RunPlugins.create(plan.regularizers).manifest(),
        "frozen": {"heads": dict(heads), "statistics": plan.frozen.statistics},
        "versions": {name: version(name) for name in ("compatkit",)} | {"torch": torch.__version__},
    }


_LATER = ("optimizer_options", "layer_decay", "floor")
"""Later settings, left out of plans where they have their defaults, so that earlier runs are found again."""


def _decisive(field: attrs.Attribute[Any], value: Any) -> bool:
    return field.name not in BESIDE and (field.name not in _LATER or value != field.default)


_STATED = ("name", "model", "cut", "builder", "size", "augment")
"""Attributes of a task that every plan states; others are left out where they have their defaults."""
_OTHERWISE = (*_STATED, "kwargs", "weights", "data")
_SAME_BITS = ("recompute_activations",)


def _task(task: Task) -> dict[str, Any]:
    weights = task.weights
    if weights is not None and weights != "pretrained":
        path = Path(cast("str", weights))
        files = [path / "model.safetensors", path / "config.json"] if path.is_dir() else [path]
        contents = [read_file(file, file.parent) for file in files]
        weights = "+".join(digest(content[0]) for content in contents if content is not None) or str(path)
    fields = attrs.fields(type(task))
    others = [field for field in fields if field.name not in (*_OTHERWISE, *_SAME_BITS)]
    return {
        **_by_key(task, [field for field in fields if field.name in _STATED]),
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
    """Return values by the keys that plans have for them."""
    values = {key_of(field): getattr(instance, field.name) for field in fields}
    return {**values, "builder": planned_builder(instance.builder, instance.model)}

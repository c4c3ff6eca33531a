"""A sweep: a recipe with lists, its runs, and where they are carried out."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs

from compatkit.components.workspace import Registry
from compatkit.errors import CompatkitError, InvalidName, UsageError
from compatkit.experiments.recipes import check, parse
from compatkit.experiments.sweeps import folders
from compatkit.experiments.sweeps.axes import Axis, axes_of, put
from compatkit.experiments.sweeps.backends import check_backend, choose, dispatch
from compatkit.experiments.sweeps.naming import names_of
from compatkit.experiments.sweeps.orders import Bench, Order
from compatkit.experiments.sweeps.records import Record
from compatkit.experiments.sweeps.rehearsal import rehearse
from compatkit.experiments.sweeps.results import Outcome
from compatkit.registry.layout import MARKER
from compatkit.registry.names import check_name

MOST = 10_000
"""Runs of one sweep."""
Progress = Callable[[int, int, str], None]


@attrs.frozen
class Run:
    """One run of a sweep.

    Attributes:
        name: Short, valid in a component's name; the same values give the same name.
        values: By path, the values that vary.
        tables: The recipe of this run alone.
    """

    name: str
    values: Mapping[str, Any]
    tables: Mapping[str, Any]


@attrs.frozen(eq=False)
class Sweep:
    """Many runs of one recipe, all of them checked.

    Attributes:
        file: The recipe.
        axes: What varies; the runs are the product.
        runs: In the order of the recipe, the last axis fastest.
        root: Folder of data sets; None looks where ``compatkit.data.load`` looks.
        download: Whether torchvision may fetch what is missing.
    """

    file: Path
    axes: tuple[Axis, ...]
    runs: tuple[Run, ...]
    root: str | None = None
    download: bool = False

    @classmethod
    def read(
        cls,
        path: str | os.PathLike[str],
        *,
        root: str | None = None,
        download: bool = False,
        prefix: str | None = None,
    ) -> Sweep:
        """Read a recipe with a table ``[sweep]``; every value of every run is checked, and no data set is loaded.

        Args:
            path: A recipe as ``compatkit train`` takes it, with ``[sweep]``: paths of its values, and for each a list
                of what it takes: ``"trainer.seed" = [0, 1]``, ``"regularizers" = [[], ["dcc"]]``,
                ``"tasks.split" = [...]`` (all tasks), ``"tasks.mnist.split"``, ``"regularizers.dcc.weight"``.
            root: Folder of data sets; None looks where ``compatkit.data.load`` looks.
            download: Whether torchvision may fetch what is missing.
            prefix: Wins over the file's; parts are published as ``<prefix>/<run>/<task>.extractor``.

        Raises:
            UsageError: The file is no TOML, a path leads nowhere, a list is empty or has a value twice, a value
                cannot be used in a run.
            InvalidName: Prefix, names of runs and of tasks do not make valid component names.
            UnknownName: No plugin of a name is there.
        """
        file = Path(path).absolute()
        tables = parse(file)
        if prefix is not None:
            tables["prefix"] = prefix
        axes = axes_of(tables, file)
        count = 1
        for axis in axes:
            count *= len(axis.values)
        if count > MOST:
            raise UsageError(
                f"{file}: the lists make {count:,} runs, and a sweep has {MOST:,} at most. Write two."
            )
        paths = [axis.path for axis in axes]
        products = [
            dict(zip(paths, one, strict=True)) for one in itertools.product(*(axis.values for axis in axes))
        ]
        runs = [
            Run(name, values, put(tables, values, file))
            for name, values in zip(names_of(products), products, strict=True)
        ]
        for run in runs:
            _check(run, file)
        return cls(file, axes, tuple(runs), root, download)

    def run(
        self,
        registry: Registry | str | os.PathLike[str],
        *,
        out: str | os.PathLike[str] | None = None,
        backend: str = "auto",
        workers: int | None = None,
        resume: bool = False,
        progress: Progress | None = None,
        say: Callable[[str], None] | None = None,
    ) -> Outcome:
        """Carry out all runs: train, publish, measure, and keep a record of each as soon as it has ended.

        Args:
            registry: Where parts and results go, as soon as each run has ended.
            out: Folder of records and checkpoints; None takes ``<registry>-sweeps/<recipe>`` next to the registry.
            backend: ``"sequential"``, ``"process"`` (on this machine), ``"ray"`` (on a cluster), ``"vmap"`` (runs that
                differ in the seed only, at once), or ``"auto"``: vmap where a short trial shows a gain, else processes
                where ``workers`` are asked for, else sequential.
            workers: Runs at a time of the back ends process and ray.
            resume: Take the runs that an earlier call finished, and go on from the checkpoints of the others.
            progress: Called with runs done, runs in all, and what is being done.
            say: Called with lines of news.

        Returns:
            Every run's record; a run that failed does not end the others.

        Raises:
            UsageError: The folder holds something else, or the back end cannot do these runs.
            CompatkitError: A run cannot be trained; it is named, and nothing was trained.
            MissingDependency: The back end's library is not installed.
        """
        tell, report = say or _silent, progress or _silent
        check_backend(backend, workers)
        root = Path(registry.store.root if isinstance(registry, Registry) else registry).absolute()
        held = Registry.open(root) if (root / MARKER).exists() else None
        folder = folders.beside(root, self.file) if out is None else Path(out).absolute()
        folders.check_folder(folder, resume)
        bench = Bench()
        orders = rehearse(self._orders(root, folder), bench, held, report)
        begun = folders.sort(orders, folder, held)
        Registry.init(root, exist_ok=True)  # not before: a sweep that is refused leaves nothing behind
        for line in begun.notes:
            tell(line)
        known = folders.note(folder).get("choice") if resume else None
        choice, parts = choose(begun.todo, bench, backend, workers, known, tell)
        folders.write_note(folder, self.file, {axis.path: axis.values for axis in self.axes}, choice)
        ended: dict[str, Record] = dict(begun.taken)

        def each(record: Record) -> None:
            ended[record.run] = record
            failed = sum(one.state == "failed" for one in ended.values())
            report(len(ended), len(self.runs), f"{failed} failed" if failed else "")

        report(len(ended), len(self.runs), "")
        dispatch(parts, bench, workers, each, tell)
        found = tuple(ended[run.name] for run in self.runs)
        return Outcome(folder, found, choice, tuple(begun.notes))

    def _orders(self, registry: Path, folder: Path) -> list[Order]:
        return [
            Order(
                run=run.name,
                values=run.values,
                plan="",
                tables=run.tables,
                file=str(self.file),
                data_root=None if self.root is None else str(Path(self.root).absolute()),
                download=self.download,
                registry=str(registry),
                folder=str(folder),
            )
            for run in self.runs
        ]


def _check(run: Run, file: Path) -> None:
    try:
        if "checkpoint" in run.tables.get("trainer", ()):
            raise UsageError(
                f"{file}: [trainer]: a sweep keeps the checkpoints of its runs itself; leave it out."
            )
        written = check(run.tables, file)
        for task in written.entries:
            check_name(f"{written.prefix}/{run.name}/{task['name']}.extractor")
    except InvalidName as error:
        hint = "A sweep's parts are named <prefix>/<run>/<task>.extractor, so its prefix is one word without '/'."
        error.args = (f"Run {run.name}: {error} {hint}",)
        raise
    except CompatkitError as error:
        error.args = (f"Run {run.name}: {error}",)
        raise


def _silent(*words: object) -> None:
    """Tell nobody."""

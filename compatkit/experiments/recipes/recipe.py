"""Check the tables of a recipe before any data is loaded, and build its tasks and trainer."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import attrs

from compatkit.contracts.manifest import About
from compatkit.errors import FormatError, UsageError
from compatkit.experiments.recipes.values import build, check_keys, check_values, task_label
from compatkit.foundation.addresses import local
from compatkit.registry.names import check_name

if TYPE_CHECKING:
    from compatkit.data.dataset import DataSet
    from compatkit.plugins import RegularizerConfig
    from compatkit.training.task import Task
    from compatkit.training.trainer import Trainer

Start = Callable[..., "Task"]
TOP = ("prefix", "about", "regularizers", "trainer", "tasks", "frozen", "loggers")
EXCLUDED = ("keep_class_layer", "supervised")
"""Attributes of a task that are no keys of a recipe."""
REQUIRED = ("name", "data", "model", "cut")
PART_KEYS = ("extractor", "head")
"""Keys of the components that a task starts from."""
KEYS_WITH_PARTS = (
    *("name", "data", "augment", "rest", "own_head", "freeze_extractor", "freeze_stages"),
    *("recompute_activations", *PART_KEYS),
)
"""Keys allowed in a task that starts from components."""


FROZEN_KEYS = ("heads", "head", "extractor")
"""Keys of ``[frozen]`` for references of components."""


@attrs.frozen
class FrozenParts:
    """Table ``[frozen]``: released parts to train against.

    Attributes:
        heads: Patterns of auxiliary heads in the registry, such as ``"digits/shared.*"``.
        head: Reference of a target head, such as ``"digits/mnist.head@^1"``.
        extractor: Reference of an extractor.
        statistics: Batch-norm statistics inside frozen parts.
    """

    heads: str | tuple[str, ...] | None = None
    head: str | None = None
    extractor: str | None = None
    statistics: Literal["stored", "batch"] = "stored"


@attrs.frozen(eq=False)
class Recipe:
    """Training run of a recipe, with valid values.

    Attributes:
        path: Recipe file; relative paths in it start at its folder.
        prefix: Prefix of the published parts: ``<prefix>/<task>.extractor``.
        trainer: Trainer.
        entries: Tables of the tasks.
        regularizers: Regularizers with their settings.
        frozen: Released parts to train against.
        about: Title, description, tags, license and source of all parts.
        tasks: Tasks with their data sets; empty before ``load``.
    """

    path: Path
    prefix: str
    trainer: Trainer
    entries: tuple[Mapping[str, Any], ...]
    regularizers: tuple[RegularizerConfig, ...]
    frozen: FrozenParts
    about: About
    tasks: tuple[Task, ...] = ()

    @property
    def frozen_references(self) -> dict[str, Any]:
        """Patterns and references of frozen parts, as arguments of ``Registry.frozen``."""
        return {name: reference for name in FROZEN_KEYS if (reference := getattr(self.frozen, name))}

    def load(self, data: Callable[[Any], DataSet], start: Start | None = None) -> Recipe:
        """Return the recipe with its data sets.

        Args:
            data: Function that loads the data set of a task.
            start: Method ``task`` of the registry with the components that tasks start from, or None.

        Raises:
            UsageError: A value does not fit its data set, or a task starts from components and ``start`` is None.
            DataError: A data set cannot be read.
            NotFound: A component does not exist.
        """
        from compatkit.training.task import Task

        tasks = []
        for entry in self.entries:
            where, arguments = task_label(entry, self.path), {**entry, "data": data(entry["data"])}
            if "extractor" not in entry:
                tasks.append(build(Task, arguments, where))
            elif start is not None:
                tasks.append(start(arguments.pop("name"), arguments.pop("data"), **arguments))
            else:
                raise UsageError(
                    f"{where} starts from components, which `compatkit train` alone supports. Leave out extractor."
                )
        return attrs.evolve(self, tasks=tuple(tasks))


def task_keys() -> tuple[str, ...]:
    """Return the valid keys of a task's table."""
    from compatkit.training.task import Task

    return tuple(field.name for field in attrs.fields(Task) if field.name not in EXCLUDED)


def check(tables: Mapping[str, Any], file: Path, *, prefix: str | None = None, **overrides: Any) -> Recipe:
    """Check all values in the tables of a recipe, without loading data sets.

    Args:
        tables: Result of ``parse``.
        file: Recipe file, for messages and relative paths.
        prefix: Prefix to use instead of that of the tables.
        **overrides: Trainer settings to use instead of those of the tables; None for no override.

    Raises:
        UsageError: A key is unknown or missing, or a value is invalid.
        InvalidName: Prefix and task names do not form valid component names.
        UnknownName: A plugin is unknown.
    """
    from compatkit.training.evaluating import EarlyStopping
    from compatkit.training.optim import Schedule
    from compatkit.training.settings import logger_settings
    from compatkit.training.trainer import Trainer

    check_keys(tables, TOP, f"{file}")
    _require(tables, ("trainer", "tasks", *(("prefix",) if prefix is None else ())), f"{file}")
    prefix = prefix if prefix is not None else tables["prefix"]
    if not isinstance(prefix, str):
        raise UsageError(f"{file}: prefix must be a string such as 'digits', got {prefix!r}.")
    settings = _table(tables["trainer"], "[trainer]", file)
    if "loggers" in tables:
        if "loggers" in settings:
            raise UsageError(
                f"{file}: loggers are in [trainer] and in [[loggers]]; keep one.", subject="loggers"
            )
        settings["loggers"] = tables["loggers"]
    settings |= {key: value for key, value in overrides.items() if value is not None}
    if "loggers" in settings:
        settings["loggers"] = logger_settings(settings["loggers"])
    if "stop_early" in settings:
        table = _table(settings["stop_early"], "[trainer.stop_early]", file)
        settings["stop_early"] = build(EarlyStopping, table, f"{file}: [trainer.stop_early]")
    if isinstance(settings.get("schedule"), Mapping):
        settings["schedule"] = build(Schedule, settings["schedule"], f"{file}: [trainer.schedule]")
    trainer = build(Trainer, settings, f"{file}: [trainer]")
    entries = _entries(tables["tasks"], prefix, file)
    regularizers = _regularizers(tables.get("regularizers", []), file)
    frozen = build(FrozenParts, _table(tables.get("frozen", {}), "[frozen]", file), f"{file}: [frozen]")
    if "frozen" in tables and not any(getattr(frozen, name) is not None for name in FROZEN_KEYS):
        if not any(entry.get("freeze_extractor") for entry in entries):
            raise UsageError(
                f"{file}: [frozen] needs heads (a pattern), head or extractor, unless some task has "
                "freeze_extractor = true."
            )
    tasks = tuple(_resolve_weights(entry, file) for entry in entries)
    about = build(About, _table(tables.get("about", {}), "[about]", file), f"{file}: [about]")
    for key, value in about.tags.items():
        if not isinstance(value, str):
            raise UsageError(f"{file}: [about]: the tag {key!r} must be a string, got {value!r:.100}.")
    return Recipe(file, prefix, trainer, tasks, regularizers, frozen, about)


def _entries(tasks: Any, prefix: str, file: Path) -> list[dict[str, Any]]:
    """Check keys, names and values of the tasks and return their tables."""
    from compatkit.training.task import Task

    if not isinstance(tasks, list) or not tasks:
        raise UsageError(f"{file}: expected a separate table [[tasks]] for each task; got {tasks!r:.100}.")
    entries = [_table(task, "each of [[tasks]]", file) for task in tasks]
    for entry in entries:
        where = task_label(entry, file)
        check_keys(entry, task_keys(), where)
        if any(key in entry for key in PART_KEYS):
            _check_parts(entry, where)
        else:
            _require(entry, REQUIRED, where)
        values = {key: value for key, value in entry.items() if key not in ("data", *PART_KEYS)}
        check_values(Task, values, where, later=("data", "model", "cut"))
        check_name(f"{prefix}/{entry['name']}.extractor")
    names = [entry["name"] for entry in entries]
    if duplicates := [name for name in names if names.count(name) > 1]:
        raise UsageError(f"{file}: two tasks are named {duplicates[0]!r}; give each its own name.")
    return entries


def _check_parts(entry: Mapping[str, Any], where: str) -> None:
    """Check the keys of a task that starts from components."""
    unexpected = [key for key in entry if key not in KEYS_WITH_PARTS]
    if unexpected or "extractor" not in entry:
        raise UsageError(
            f"{where} starts from components: it needs an extractor, optionally a head, and no settings that these "
            f"define; got {', '.join(unexpected) or 'no extractor'}. Allowed are {', '.join(KEYS_WITH_PARTS)}."
        )
    for key in PART_KEYS:
        if not isinstance(entry.get(key, ""), str):
            raise UsageError(f"{where}: {key} must be the name of a component, got {entry[key]!r:.100}.")


def _resolve_weights(entry: dict[str, Any], file: Path) -> dict[str, Any]:
    """Return the table of a task with the path of its weights resolved, after checking the file."""
    weights = entry.get("weights")
    if not isinstance(weights, str) or weights == "pretrained" or weights.startswith("hf-hub:"):
        return entry
    address, what = weights.removeprefix("local-dir:"), f"{task_label(entry, file)}: weights"
    local(address, what)
    path = file.parent / address if (file.parent / address).exists() else Path(address)
    check_tensor_file(path / "model.safetensors" if path.is_dir() else path, what)
    return {**entry, "weights": str(path)}


def _regularizers(value: Any, file: Path) -> tuple[RegularizerConfig, ...]:
    """Return the regularizers of a run; their plugins must be installed, but are not imported."""
    from compatkit.plugins import names, regularizer_config
    from compatkit.plugins.discovery import require

    if not isinstance(value, list):
        raise UsageError(
            f"{file}: regularizers must be a list of names or tables, such as ['identical_init', 'dcc']; got "
            f"{value!r:.100}. There are {', '.join(names('regularizers'))}."
        )
    uses = tuple(regularizer_config(use) for use in value)
    for entry in uses:
        require("regularizers", entry.name)
    return uses


def _table(value: Any, name: str, file: Path) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise UsageError(f"{file}: {name} must be a table, got {type(value).__name__} {value!r:.100}.")
    return dict(value)


def _require(table: Mapping[str, Any], keys: Iterable[str], where: str) -> None:
    if missing := [key for key in keys if key not in table]:
        raise UsageError(
            f"{where} lacks {', '.join(missing)}. A recipe has a prefix, a table [trainer] with the steps, and for "
            f"each network a table [[tasks]] with {', '.join(REQUIRED)}."
        )


def check_tensor_file(path: Path, what: str) -> None:
    """Check the header of a safetensors file.

    Args:
        path: Path of the file.
        what: Use of the file, for messages.

    Raises:
        UsageError: The file does not exist.
        FormatError: The file is not a safetensors file, or truncated.
        EnvironmentFailure: The file cannot be read.
    """
    from compatkit.registry.weights.header import read_header

    if not path.is_file():
        raise UsageError(
            f"{what} {path}: {os.strerror(errno.ENOENT)}. Name a safetensors file.", subject=path
        )
    try:
        read_header(path)
    except FormatError as error:
        raise FormatError(f"{what} {error}", subject=path) from error

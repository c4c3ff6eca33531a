"""Recipes: a training run as a TOML file, read strictly, and checked as a whole before any data is loaded."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import attrs

from compatkit.errors import EnvironmentFailure, FormatError, UsageError
from compatkit.recipe_values import check_values, only
from compatkit.registry.names import check_name

if TYPE_CHECKING:
    from compatkit.data.dataset import DataSet
    from compatkit.plugins import Use
    from compatkit.training.task import Task
    from compatkit.training.trainer import Trainer

Start = Callable[..., "Task"]
TOP = ("prefix", "regularizers", "trainer", "tasks", "frozen")
SWEEP = "sweep"
"""The table that makes many runs of one recipe; see ``compatkit.sweeps``."""
TASK = (
    "name",
    "data",
    "backbone",
    "split",
    "builder",
    "kwargs",
    "size",
    "weights",
    "augment",
    "normalisation",
    "width",
    "rest",
    "own_head",
    "extractor",
    "head",
    "freeze_extractor",
)
NEEDED = ("name", "data", "backbone", "split")
FROM_PARTS = ("extractor", "head")
"""Keys that name components; the network is then theirs."""
BESIDE_PARTS = ("name", "data", "augment", "rest", "own_head", "freeze_extractor", *FROM_PARTS)
"""All that a task which starts from components may say."""


@attrs.frozen
class Frozen:
    """``[frozen]``: released parts to train against.

    Attributes:
        heads: Pattern, or patterns, of names of auxiliary heads in the registry: ``"digits/shared.*"``.
        head: Reference of a target head: ``"digits/mnist.head@^1"``.
        extractor: Reference of an extractor.
        statistics: Which statistics batch normalisation inside all that is frozen uses.
    """

    heads: str | tuple[str, ...] | None = None
    head: str | None = None
    extractor: str | None = None
    statistics: Literal["stored", "batch"] = "stored"


@attrs.frozen(eq=False)
class Recipe:
    """A run as it was written down.

    Attributes:
        prefix: Where the parts are published: ``<prefix>/<task>.extractor``.
        frozen_heads: Pattern of released auxiliary heads to train against, or None.
        frozen_statistics: ``"stored"`` or ``"batch"``.
        released_head: Reference of a released target head to stay compatible with, or None.
        released_extractor: Reference of a released extractor, or None.
    """

    path: Path
    prefix: str
    trainer: Trainer
    tasks: tuple[Task, ...]
    regularizers: tuple[Use, ...]
    frozen_heads: str | tuple[str, ...] | None = None
    frozen_statistics: Literal["stored", "batch"] = "stored"
    released_head: str | None = None
    released_extractor: str | None = None

    @property
    def against(self) -> dict[str, Any]:
        """Patterns and references of what does not move, as ``Registry.frozen`` takes them."""
        named = {
            "heads": self.frozen_heads,
            "head": self.released_head,
            "extractor": self.released_extractor,
        }
        return {word: one for word, one in named.items() if one}


@attrs.frozen(eq=False)
class Written:
    """A recipe all of whose values are usable; its data sets are not loaded yet.

    Attributes:
        file: Where it stands; relative paths are tried from its folder first.
        entries: The tables of the tasks.
    """

    file: Path
    prefix: str
    trainer: Trainer
    entries: tuple[Mapping[str, Any], ...]
    regularizers: tuple[Use, ...]
    frozen: Frozen | None

    def load(self, data: Callable[[Any], DataSet], start: Start | None = None) -> Recipe:
        """Return the recipe with its data sets.

        Args:
            data: Loads what a task names as its data.
            start: ``Registry.task`` of the registry whose components tasks may start from; None where there is none.

        Raises:
            UsageError: A value does not fit its data set, or a task starts from components and there are none.
            DataError: A data set cannot be read.
            NotFound: A component is not there.
        """
        from compatkit.training.task import Task

        tasks = []
        for entry in self.entries:
            where, given = _called(entry, self.file), {**entry, "data": data(entry["data"])}
            if "extractor" not in entry:
                tasks.append(_made(Task, given, where))
            elif start is not None:
                tasks.append(start(given.pop("name"), given.pop("data"), **given))
            else:
                raise UsageError(
                    f"{where} starts from components, which a single run does: `compatkit train`. Leave out extractor."
                )
        held = self.frozen or Frozen()
        return Recipe(
            self.file,
            self.prefix,
            self.trainer,
            tuple(tasks),
            self.regularizers,
            held.heads,
            held.statistics,
            held.head,
            held.extractor,
        )


def read(
    path: str | Path,
    *,
    root: str | None = None,
    download: bool = False,
    prefix: str | None = None,
    start: Start | None = None,
    **overrides: Any,
) -> Recipe:
    """Read a recipe and load its data sets.

    Everything that can be known without the images is checked first. Paths of data sets and weights are tried
    relative to the recipe's folder, then as they are.

    Args:
        path: TOML file with ``prefix``, ``regularizers``, ``[trainer]``, ``[[tasks]]`` and ``[frozen]``.
        root: Folder of data sets; None looks where ``compatkit.data.load`` looks.
        download: Whether torchvision may fetch what is missing.
        prefix: Wins over the file's.
        start: ``Registry.task`` of the registry whose components tasks may start from.
        **overrides: Trainer settings that win over the file's; None is no override.

    Raises:
        UsageError: The file is no TOML, a key is unknown or missing, or a value cannot be used.
        InvalidName: Prefix and task names do not make valid component names.
        UnknownName: No plugin or data set of that name is there.
        DataError: A data set cannot be read.
    """
    file = Path(path)
    return check(single(file), file, prefix=prefix, **overrides).load(loader(file, root, download), start)


def data_sets(path: str | Path, *, root: str | None = None, download: bool = False) -> list[DataSet]:
    """Return the data sets of a recipe's tasks, in their order; nothing else of it is loaded.

    Arguments and errors are those of ``read``.
    """
    file = Path(path)
    load = loader(file, root, download)
    return [load(entry["data"]) for entry in check(single(file), file).entries]


def single(file: Path) -> dict[str, Any]:
    """Return the tables of a recipe of one run.

    Raises:
        UsageError: It is many.
    """
    tables = parse(file)
    if SWEEP in tables:
        raise UsageError(
            f"{file} has a table [{SWEEP}]: it is many runs. Train them with `compatkit sweep {file}`, or leave the "
            "table out."
        )
    return tables


def check(tables: Mapping[str, Any], file: Path, *, prefix: str | None = None, **overrides: Any) -> Written:
    """Return the recipe that these tables are, once every value is usable; no data set is loaded.

    Args:
        tables: What ``parse`` returned.
        file: Where they stand, for messages and relative paths.
        prefix: Wins over the tables'.
        **overrides: Trainer settings that win over the tables'; None is no override.

    Raises:
        UsageError: A key is unknown or missing, or a value cannot be used.
        InvalidName: Prefix and task names do not make valid component names.
        UnknownName: No plugin of that name is there.
    """
    from compatkit.training.stopping import EarlyStopping
    from compatkit.training.trainer import Trainer

    only(tables, TOP, f"{file}")
    _needs(tables, ("trainer", "tasks", *(("prefix",) if prefix is None else ())), f"{file}")
    prefix = prefix if prefix is not None else tables["prefix"]
    if not isinstance(prefix, str):
        raise UsageError(f"{file}: prefix must be a text such as 'digits', got {prefix!r}.")
    settings = _table(tables["trainer"], "[trainer]", file)
    settings |= {key: value for key, value in overrides.items() if value is not None}
    if "stop_early" in settings:
        table = _table(settings["stop_early"], "[trainer.stop_early]", file)
        settings["stop_early"] = _made(EarlyStopping, table, f"{file}: [trainer.stop_early]")
    trainer = _made(Trainer, settings, f"{file}: [trainer]")
    entries = _entries(tables["tasks"], prefix, file)
    regularizers = _regularizers(tables.get("regularizers", []), file)
    frozen = None
    if "frozen" in tables:
        frozen = _made(Frozen, _table(tables["frozen"], "[frozen]", file), f"{file}: [frozen]")
        named = frozen.heads is not None or frozen.head is not None or frozen.extractor is not None
        if not named and not any(entry.get("freeze_extractor") for entry in entries):
            raise UsageError(
                f"{file}: [frozen] names what does not move: heads (a pattern), head, or extractor; or some task has "
                "freeze_extractor = true."
            )
    kept = tuple(_with_weights(entry, file) for entry in entries)
    return Written(file, prefix, trainer, kept, regularizers, frozen)


def loader(file: Path, root: str | None, download: bool) -> Callable[[Any], DataSet]:
    """Return what loads the data set that a task of the recipe ``file`` names."""
    from compatkit.data import load_spec

    return partial(load_spec, root=root, download=download, providers=providers(), relative_to=file.parent)


def providers() -> dict[str, Callable[..., DataSet]]:
    """Return the data sets that installed plugins bring; a plugin is imported when its data set is asked for."""
    from compatkit import plugins

    def make(name: str, **given: Any) -> DataSet:
        return plugins.find("data_sets", name).make(given)

    return {name: partial(make, name) for name in plugins.names("data_sets")}


def parse(file: Path) -> dict[str, Any]:
    """Return the tables of a recipe, as they stand.

    Raises:
        UsageError: There is no such file, or it is no TOML.
        EnvironmentFailure: It cannot be read.
    """
    try:
        return tomllib.loads(file.read_text(encoding="utf-8-sig"))
    except FileNotFoundError as error:
        raise UsageError(f"There is no recipe {file}.", subject=file) from error
    except IsADirectoryError as error:
        raise UsageError(f"{file} is a folder; name the recipe file in it.", subject=file) from error
    except OSError as error:
        raise EnvironmentFailure(
            f"The recipe {file} cannot be read: {error.strerror}. Check its rights.", subject=file
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{file} is no TOML file: {error}", subject=file) from error


def _entries(tasks: Any, prefix: str, file: Path) -> list[dict[str, Any]]:
    """Return the tables of the tasks once their keys, names and values are valid; data sets are not loaded yet."""
    from compatkit.training.task import Task

    if not isinstance(tasks, list) or not tasks:
        raise UsageError(
            f"{file}: write each task as a table of its own under [[tasks]]; got {tasks!r:.100}."
        )
    entries = [_table(task, "each of [[tasks]]", file) for task in tasks]
    for entry in entries:
        where = _called(entry, file)
        only(entry, TASK, where)
        if any(key in entry for key in FROM_PARTS):
            _check_parts(entry, where)
        else:
            _needs(entry, NEEDED, where)
        values = {key: value for key, value in entry.items() if key not in ("data", *FROM_PARTS)}
        check_values(Task, values, where, later=("data", "backbone", "split"))
        check_name(f"{prefix}/{entry['name']}.extractor")
    names = [entry["name"] for entry in entries]
    if twice := [name for name in names if names.count(name) > 1]:
        raise UsageError(f"{file}: two tasks are named {twice[0]!r}; give each its own name.")
    return entries


def _check_parts(entry: Mapping[str, Any], where: str) -> None:
    """Refuse what a task that starts from components cannot say, or must."""
    more = [key for key in entry if key not in BESIDE_PARTS]
    if more or "extractor" not in entry:
        raise UsageError(
            f"{where} starts from components: it names an extractor, may name a head, and says nothing of what these "
            f"bring; got {', '.join(more) or 'no extractor'}. Allowed are {', '.join(BESIDE_PARTS)}."
        )
    for key in FROM_PARTS:
        if not isinstance(entry.get(key, ""), str):
            raise UsageError(f"{where}: {key} must be the name of a component, got {entry[key]!r:.100}.")


def _with_weights(entry: dict[str, Any], file: Path) -> dict[str, Any]:
    """Return the table of a task with the path of its weights found and the file looked at."""
    weights = entry.get("weights")
    if not isinstance(weights, str) or weights == "pretrained":
        return entry
    path = file.parent / weights if (file.parent / weights).exists() else Path(weights)
    check_tensor_file(path, f"{_called(entry, file)}: weights")
    return {**entry, "weights": str(path)}


def check_tensor_file(path: Path, what: str) -> None:
    """Refuse a file that holds no tensors, before any work and by name.

    Args:
        path: The file.
        what: What it is to be, for messages.

    Raises:
        UsageError: There is no such file.
        FormatError: It is no safetensors file: a pickle, a web page, cut short, ...
        EnvironmentFailure: It cannot be read.
    """
    from compatkit.registry.tensors.tensorfile import check_header

    try:
        check_header(path.read_bytes())
    except FormatError as error:
        raise FormatError(f"{what} {path}: {error}", subject=path) from error
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError) as error:
        raise UsageError(
            f"{what} {path}: {error.strerror}. Name a safetensors file, relative to the recipe or to the current "
            "folder.",
            subject=path,
        ) from error
    except OSError as error:
        raise EnvironmentFailure(f"{what} {path} cannot be read: {error.strerror}.", subject=path) from error


def _regularizers(said: Any, file: Path) -> tuple[Use, ...]:
    """Return what a run uses; every plugin must be installed, and none is imported yet."""
    from compatkit.plugins import as_use, names
    from compatkit.plugins.discovery import require

    if not isinstance(said, list):
        raise UsageError(
            f"{file}: regularizers must be a list of names or tables, such as ['identical_init', 'dcc']; got "
            f"{said!r:.100}. There are {', '.join(names('regularizers'))}."
        )
    uses = tuple(as_use(one) for one in said)
    for one in uses:
        require("regularizers", one.name)
    return uses


def _table(value: Any, name: str, file: Path) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise UsageError(f"{file}: {name} must be a table, got {type(value).__name__} {value!r:.100}.")
    return dict(value)


def _needs(table: Mapping[str, Any], keys: Iterable[str], where: str) -> None:
    if missing := [key for key in keys if key not in table]:
        raise UsageError(
            f"{where} lacks {', '.join(missing)}. A recipe has a prefix, a table [trainer] with the steps, and for "
            f"each network a table [[tasks]] with {', '.join(NEEDED)}."
        )


def _called(entry: Mapping[str, Any], file: Path) -> str:
    return f"{file}: task {entry.get('name', '(without a name)')}"


def _made(kind: type, settings: Mapping[str, Any], where: str) -> Any:
    """Return ``kind`` with settings whose names and types were compared with its fields."""
    settings = check_values(kind, settings, where)
    try:
        return kind(**settings)
    except (TypeError, ValueError, UsageError) as error:
        if isinstance(error, UsageError) and type(error) is not UsageError:
            raise  # it says more by its kind
        raise UsageError(f"{where}: {error.args[0] if error.args else error}") from error

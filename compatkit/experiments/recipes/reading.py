"""Recipes: a training run as a TOML file, read strictly."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from compatkit.errors import UsageError
from compatkit.experiments.recipes.files import loader, parse
from compatkit.experiments.recipes.recipe import Recipe, Start
from compatkit.experiments.recipes.tables import check

if TYPE_CHECKING:
    from compatkit.data.dataset import DataSet

SWEEP = "sweep"
"""The table that makes many runs of one recipe; see ``compatkit.experiments.sweeps``."""


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

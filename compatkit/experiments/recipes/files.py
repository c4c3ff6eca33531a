"""Read recipe files and load their data sets."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compatkit.errors import EnvironmentFailure, UsageError
from compatkit.experiments.recipes.recipe import check
from compatkit.foundation.addresses import local

if TYPE_CHECKING:
    from compatkit.data.dataset import DataSet

MAX_BYTES = 2**20
"""Size of a recipe file at most."""
SWEEP = "sweep"
"""Name of the table that makes a recipe a sweep; see ``compatkit.experiments.sweeps``."""


def parse(file: Path) -> dict[str, Any]:
    """Return the tables of a recipe file, unchecked.

    Raises:
        UsageError: The file does not exist, or is not TOML.
        EnvironmentFailure: The file cannot be read.
    """
    try:
        with file.open("rb") as opened:
            data = opened.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise UsageError(f"{file} is not a recipe: it has more than {MAX_BYTES:,} bytes.", subject=file)
        return tomllib.loads(data.decode("utf-8-sig"))
    except FileNotFoundError as error:
        raise UsageError(f"There is no recipe {file}.", subject=file) from error
    except IsADirectoryError as error:
        raise UsageError(f"{file} is a folder; name the recipe file in it.", subject=file) from error
    except OSError as error:
        raise EnvironmentFailure(
            f"The recipe {file} cannot be read: {error.strerror}. Check its permissions.", subject=file
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{file} is not a TOML file: {error}", subject=file) from error


def loader(file: Path, root: str | None, download: bool) -> Callable[[Any], DataSet]:
    """Return a function that loads the data set of a task.

    Args:
        file: Recipe file; relative paths in it start at its folder.
        root: Folder of data sets; None for the search path of ``compatkit.data.load``.
        download: Whether missing data sets may be downloaded.
    """
    from compatkit.data import load_spec

    return partial(load_spec, root=root, download=download, relative_to=file.parent)


def data_sets(path: str | Path, *, root: str | None = None, download: bool = False) -> list[DataSet]:
    """Return the data sets of a recipe's tasks, in order.

    Args:
        path: TOML file; paths of data sets start at its folder or the current one.
        root: Folder of data sets; None for the search path of ``compatkit.data.load``.
        download: Whether missing data may be downloaded.

    Raises:
        UsageError: The file is not TOML, a key is unknown or missing, or a value is invalid.
        DataError: A data set cannot be read.
    """
    file = Path(local(path, "a recipe"))
    load = loader(file, root, download)
    return [load(entry["data"]) for entry in check(single(file), file).entries]


def single(file: Path) -> dict[str, Any]:
    """Return the tables of a recipe for a single run.

    Raises:
        UsageError: The recipe is a sweep.
    """
    tables = parse(file)
    if SWEEP in tables:
        raise UsageError(
            f"{file} has a table [{SWEEP}], so it describes many runs. Train them with `compatkit sweep {file}`, or "
            "remove the table."
        )
    return tables

"""Files of a recipe: itself, the data sets and the weights that it names."""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compatkit.errors import EnvironmentFailure, FormatError, UsageError
from compatkit.plugins.discovery import providers

if TYPE_CHECKING:
    from compatkit.data.dataset import DataSet


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


def loader(file: Path, root: str | None, download: bool) -> Callable[[Any], DataSet]:
    """Return what loads the data set that a task of the recipe ``file`` names."""
    from compatkit.data import load_spec

    return partial(load_spec, root=root, download=download, providers=providers(), relative_to=file.parent)


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
    from compatkit.registry.weights.tensorfile import check_header

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

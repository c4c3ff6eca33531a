"""Data sets of Hugging Face, from the Hub by name or from a local folder; images are decoded on demand.

They are read by ``datasets`` from version 4 on, which runs no code of a data set.
"""

from __future__ import annotations

import glob
import hashlib
import os
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from compatkit.data.arraycache import load, save
from compatkit.data.dataset import DataSet
from compatkit.data.filenames import decode_name
from compatkit.data.imagefiles import read_file
from compatkit.data.lazy import LazyImages
from compatkit.data.missinglabels import check_class_names
from compatkit.data.shardsets import check_complete, check_skipped_files
from compatkit.data.split import Split
from compatkit.data.splitnames import (
    EXPECTED,
    heldout_kind,
    is_split_column,
    parse_split_name,
    split_kind,
    split_kinds_of_files,
    warn_unused,
)
from compatkit.data.validation import DataWarning, warn_caller
from compatkit.errors import CompatkitError, DataError, EnvironmentFailure, MissingDependency
from compatkit.foundation.bars import Progress, bar

PREFIX = "hf:"
SAVED_FILES = ("dataset_dict.json", "state.json")
"""Files that ``save_to_disk`` writes."""
LABELS = ("label", "labels")
"""Names of the label column that take precedence over other columns of classes."""
LABEL_NAMES = (*LABELS, "class", "classes", "target", "targets", "category", "y")
"""Usual names of a label column, in any case."""
_ADDRESS = re.compile(r"(\w[\w.-]*(?:/\w[\w.-]*)?)(?::([\w.+-]+))?(?:#([\w.+-]+))?")
CHUNK = 256
"""Images that are read at a time to compute their digests."""


@attrs.frozen(eq=False)
class ArrowImages:
    """Images in an Arrow file, as the bytes of image files; a ``Reader``.

    Attributes:
        table: A ``datasets.Dataset`` whose image column is not decoded.
        column: Name of the image column.
        split: Name of the split, for messages.
    """

    table: Any
    column: str
    split: str

    def __len__(self) -> int:
        return len(self.table)

    def name(self, position: int) -> str:
        """See ``Reader``."""
        return f"image {position} of {self.split}"

    def read(self, position: int) -> bytes:
        """See ``Reader``."""
        return self._bytes(self.table[position][self.column], position)

    def digests(self, positions: NDArray[np.int64], progress: Progress | None = None) -> NDArray[np.void]:
        """See ``Reader``; cached by size and times of the Arrow files."""
        key = self._cache_key()
        digests = None if key is None else load(key).get("digests")
        if digests is None or digests.dtype != np.dtype("V16") or digests.shape != (len(self),):
            digests, embedded = np.zeros(len(self), dtype="V16"), True
            with bar(progress) as report:
                for start in range(0, len(self), CHUNK):
                    for row, cell in enumerate(self.table[start : start + CHUNK][self.column], start):
                        digest = hashlib.blake2b(self._bytes(cell, row), digest_size=16).digest()
                        digests[row], embedded = np.void(digest), embedded and cell["bytes"] is not None
                    report(min(start + CHUNK, len(self)), len(self), "reading images")
            if key is not None and embedded:
                save(key, digests=digests)
        return digests[positions]

    def _cache_key(self) -> str | None:
        """Return a digest of the state of the Arrow files; None for a table in memory."""
        files = [Path(cached["filename"]) for cached in self.table.cache_files]
        if not files:
            return None
        states = [
            (str(file), (status := file.stat()).st_size, status.st_mtime_ns, status.st_ctime_ns)
            for file in files
        ]
        return hashlib.sha256(repr((self.column, len(self), states)).encode()).hexdigest()[:32]

    def _bytes(self, cell: dict[str, Any] | None, position: int) -> bytes:
        if cell is None or (cell["bytes"] is None and not os.path.isfile(cell["path"] or "")):
            name = self.name(position)
            raise DataError(
                f"{name} is missing: the row has neither its bytes nor the path of a local file. Remove the row.",
                subject=name,
            )
        return cell["bytes"] if cell["bytes"] is not None else read_file(Path(cell["path"]))


def read_hub(address: str, *, download: bool = False) -> DataSet | Split:
    """Read a data set of the Hub.

    Args:
        address: ``hf:NAME`` or ``hf:NAME:CONFIGURATION``, optionally followed by ``#COLUMN``, the label column.
        download: Whether to download it; else it must be in the cache of ``datasets``.

    Raises:
        DataError: It does not exist, requires code, or has no images with classes.
        EnvironmentFailure: The Hub cannot be reached, or files cannot be read.
        MissingDependency: ``datasets`` is not installed.
    """
    match = _ADDRESS.fullmatch(address.removeprefix(PREFIX))
    if match is None:
        raise DataError(
            f"{address!r} is not a data set of the Hub: expected hf:NAME or hf:USER/NAME, optionally with "
            ":CONFIGURATION and #COLUMN.",
            subject=address,
        )
    name, configuration, column = match.groups()
    if os.path.exists(name):
        raise DataError(
            f"{address}: datasets would read {Path(name).absolute()} instead of the Hub. Give it as a path.",
            subject=address,
        )
    datasets = _import_datasets(address)
    try:
        with _offline(datasets, unless=download):
            loaded = datasets.load_dataset(name, configuration)
    except ConnectionError as error:
        state = "does not respond" if download else "was not contacted"
        raise EnvironmentFailure(
            f"{address} is not in the cache of datasets, and the Hub {state}: {error}. Allow the download, or set "
            "HF_HOME to the cache that contains it.",
            subject=address,
        ) from error
    except Exception as error:  # datasets raises many kinds of errors
        raise DataError(
            f"{address} cannot be read: {type(error).__name__}: {error}", subject=address
        ) from error
    return _data_set(loaded, f"{PREFIX}{name}", column, address)


def read_hub_folder(folder: Path) -> DataSet | Split:
    """Read a folder written by ``save_to_disk``, or of the Hub's Parquet files; raises as ``read_hub``."""
    datasets = _import_datasets(folder)
    saved = any((folder / file).is_file() for file in SAVED_FILES)
    try:
        with _offline(datasets, unless=False):
            loaded = (
                datasets.load_from_disk(str(folder))
                if saved
                else datasets.load_dataset(str(folder), data_files=_parquet_files(folder))
            )
    except CompatkitError:
        raise
    except Exception as error:  # datasets raises many kinds of errors
        raise DataError(
            f"{folder} cannot be read by datasets: {type(error).__name__}: {error}", subject=folder
        ) from error
    return _data_set(loaded, decode_name(folder.resolve().name), None, folder)


def _parquet_files(folder: Path) -> dict[str, list[str]] | None:
    """Return the Parquet files of a folder by split; None if README.md has ``configs`` for ``datasets``.

    Raises:
        DataError: Files are missing, or some name a split and others none.
    """
    files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    files = [path for path in files if not any(name.startswith((".", "_")) for name in path.split("/"))]
    check_skipped_files([path for path in files if ".parquet" in path.lower()], ".parquet", folder)
    paths = [path for path in files if path.endswith(".parquet")]
    check_complete(paths, folder)
    readme = folder / "README.md"
    if readme.is_file() and re.search(rb"^configs:", readme.read_bytes(), re.MULTILINE):
        return None
    kinds = split_kinds_of_files([path.removesuffix(".parquet") for path in paths], folder)
    splits: dict[str, list[str]] = {}
    for path, kind in zip(paths, kinds or ["train"] * len(paths), strict=True):
        splits.setdefault(kind, []).append(glob.escape(path))
    return splits


def _data_set(loaded: Any, name: str, column: str | None, source: object) -> DataSet | Split:
    tables = loaded if isinstance(loaded, dict) else {"train": loaded}
    if len(tables) == 1:
        return _undivided(next(iter(tables.values())), name, column, source)
    splits = _splits_by_kind(tables, source)
    test = splits.get(heldout_kind(splits) or "")
    if "train" not in splits:
        raise DataError(f"{source} has the splits {', '.join(tables)}; expected {EXPECTED}.", subject=source)
    unused = [key for key in tables if parse_split_name(key) is None]
    if unused:
        warn_caller(DataWarning(f"{source}: {', '.join(unused)} are not used; known splits are {EXPECTED}."))
    warn_unused(splits, source)
    if test is None:
        return _undivided(tables[splits["train"]], name, column, source)
    return DataSet(
        name,
        _split(tables[splits["train"]], f"{name}/train", column, source),
        _split(tables[test], f"{name}/test", column, source),
    )


def _undivided(table: Any, name: str, column: str | None, source: object) -> Split:
    """Return all images of a table.

    Raises:
        DataError: A column divides the table into splits.
    """
    for other, feature in table.features.items():
        values = getattr(feature, "names", None) if other != column else None
        dtype = str(getattr(feature, "dtype", ""))
        if values is None and (parse_split_name(other) or dtype in ("string", "large_string")):
            cells = table.select_columns([other])
            if dtype in ("bool", "int8", "int32", "int64") or parse_split_name(str(cells[0][other])):
                values = cells.unique(other)
        if values is not None and is_split_column(other, values):
            raise DataError(
                f"{source}: the column {other} divides the images. Save its splits separately, as {EXPECTED}; or "
                "remove it, to hold out a share.",
                subject=other,
            )
    return _split(table, f"{name}/train", column, source)


def _splits_by_kind(names: Iterable[str], source: object) -> dict[str, str]:
    """Return the names of splits by kind.

    Raises:
        DataError: A name looks like that of a split and is not, or two are of one kind.
    """
    splits: dict[str, str] = {}
    for name in names:
        if parse_split_name(name) is None:
            continue
        kind = split_kind(name)
        other = splits.setdefault(kind, name) if kind else None
        if other != name:
            reason = f"is of the same kind as {other}" if kind else "is not a known split"
            raise DataError(
                f"{source} has the splits {', '.join(names)}, of which {name} {reason}; expected {EXPECTED}. Save the "
                "wanted splits with save_to_disk.",
                subject=name,
            )
    return splits


def _split(table: Any, name: str, column: str | None, source: object) -> Split:
    import datasets

    features = table.features
    images = [key for key, feature in features.items() if isinstance(feature, datasets.Image)]
    classes = [key for key, feature in features.items() if isinstance(feature, datasets.ClassLabel)]
    chosen = [key for key in classes if key == column] if column else classes
    if len(chosen) > 1:
        chosen = [key for key in chosen if key in LABELS] or chosen
    others = [key for key in features if key.casefold() in LABEL_NAMES and key not in classes]
    if others and not column and len(chosen) == 1 and chosen[0].casefold() not in LABEL_NAMES:
        raise DataError(
            f"{source}: the column {others[0]} is not a ClassLabel, but {chosen[0]} is. Convert {others[0]} with "
            f"class_encode_column; or, to use {chosen[0]}, write hf:NAME#{chosen[0]}, or remove {others[0]}.",
            subject=others[0],
        )
    if len(images) != 1 or len(chosen) != 1:
        raise DataError(
            f"{source} needs one column of images (has {', '.join(images) or 'none'}) and one ClassLabel (has "
            f"{', '.join(classes) or 'none'}). Select one by hf:NAME#COLUMN, remove others, or convert text with "
            "class_encode_column.",
            subject=source,
        )
    encoded = table.select_columns(images).cast_column(images[0], datasets.Image(decode=False))
    values = table.select_columns(chosen).with_format("arrow")[:][chosen[0]].to_pylist()
    labels = np.array([-1 if label is None else label for label in values], dtype=np.int64)
    if missing := int((labels < 0).sum()):
        raise DataError(
            f"{source}: {missing:,} of {len(labels):,} images of {name} have no label. Remove these rows.",
            subject=source,
        )
    names = tuple(features[chosen[0]].names)
    check_class_names(names, source, "If it is a class, rename it with cast_column.")
    return Split(
        LazyImages(ArrowImages(encoded, images[0], name), np.arange(len(labels))), labels, names, name
    )


def _import_datasets(source: object) -> Any:
    try:
        import datasets
    except ImportError as error:
        raise MissingDependency(
            f"{source} needs Hugging Face's datasets. Run: pip install 'compatkit[datasets]'",
            subject="datasets",
        ) from error
    return datasets


@contextmanager
def _offline(datasets: Any, *, unless: bool) -> Iterator[None]:
    """Keep ``datasets`` and the Hub's library off the network in this context."""
    modules = [] if unless else [datasets.config, sys.modules["huggingface_hub.constants"]]
    before = [module.HF_HUB_OFFLINE for module in modules]
    for module in modules:
        module.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        for module, value in zip(modules, before, strict=True):
            module.HF_HUB_OFFLINE = value

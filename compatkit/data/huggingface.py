"""Data sets of Hugging Face: of the Hub, by name, or in a local folder; images are decoded on demand.

Read by ``datasets`` from version 4 on, which runs no code that comes with a data set.
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

from compatkit.data.arraycache import recalled, remember
from compatkit.data.dataset import DataSet
from compatkit.data.filenames import text_of
from compatkit.data.imagefiles import read_file
from compatkit.data.lazy import LazyImages
from compatkit.data.missinglabels import check_declared
from compatkit.data.shardsets import check_complete, check_skipped_files
from compatkit.data.split import Split
from compatkit.data.splitnames import EXPECTED, divides, held_out, part_name, parts_of_files, tell_unused
from compatkit.data.validation import DataWarning, warn_caller
from compatkit.errors import CompatkitError, DataError, EnvironmentFailure, MissingDependency
from compatkit.foundation.bars import Progress, bar

PREFIX = "hf:"
STATES = ("dataset_dict.json", "state.json")
"""Files that ``save_to_disk`` writes."""
LABELS = ("label", "labels")
"""Columns of classes that are taken where there are several."""
LABEL_NAMES = (*LABELS, "class", "classes", "target", "targets", "category", "y")
"""What a column of labels is called, in any case."""
_ADDRESS = re.compile(r"(\w[\w.-]*(?:/\w[\w.-]*)?)(?::([\w.+-]+))?(?:#([\w.+-]+))?")
PIECE = 256
"""Images that are read from the file at once to make their digests."""


@attrs.frozen(eq=False)
class ArrowImages:
    """Images in an Arrow file, as the bytes of image files.

    Attributes:
        table: A ``datasets.Dataset`` whose column is not decoded.
        column: Of the images.
        owner: For messages.
    """

    table: Any
    column: str
    owner: str

    def __len__(self) -> int:
        return len(self.table)

    def name(self, position: int) -> str:
        """See ``Reader``."""
        return f"image {position} of {self.owner}"

    def read(self, position: int) -> bytes:
        """See ``Reader``."""
        return self._bytes(self.table[position][self.column], position)

    def digests(self, positions: NDArray[np.int64], progress: Progress | None = None) -> NDArray[np.void]:
        """See ``Reader``; remembered with size and times of change of the Arrow files in the user's cache folder."""
        key = self._key()
        known = None if key is None else recalled(key).get("digests")
        if known is None or known.dtype != np.dtype("V16") or known.shape != (len(self),):
            known, within = np.zeros(len(self), dtype="V16"), True
            with bar(progress) as tell:
                for start in range(0, len(self), PIECE):
                    for place, cell in enumerate(self.table[start : start + PIECE][self.column], start):
                        digest = hashlib.blake2b(self._bytes(cell, place), digest_size=16).digest()
                        known[place], within = np.void(digest), within and cell["bytes"] is not None
                    tell(min(start + PIECE, len(self)), len(self), "reading images")
            if key is not None and within:
                remember(key, digests=known)
        return known[positions]

    def _key(self) -> str | None:
        """Return a digest of the state of the Arrow files; None of a table in memory."""
        files = [Path(cached["filename"]) for cached in self.table.cache_files]
        states = [(str(file), (of := file.stat()).st_size, of.st_mtime_ns, of.st_ctime_ns) for file in files]
        return (
            hashlib.sha256(repr((self.column, len(self), states)).encode()).hexdigest()[:32]
            if states
            else None
        )

    def _bytes(self, cell: dict[str, Any] | None, position: int) -> bytes:
        if cell is None or (cell["bytes"] is None and not os.path.isfile(cell["path"] or "")):
            raise DataError(
                f"{self.name(position)} is missing: the row holds neither its bytes nor the path of a file here. "
                "Remove the row.",
                subject=self.name(position),
            )
        return cell["bytes"] if cell["bytes"] is not None else read_file(Path(cell["path"]))


def read_hub(address: str, *, download: bool = False) -> DataSet | Split:
    """Read a data set of the Hub.

    Args:
        address: ``hf:NAME``, ``hf:NAME:CONFIGURATION``, and ``#COLUMN`` behind either for the column of classes.
        download: Whether it may be fetched; else it must be in the cache of ``datasets``.

    Raises:
        DataError: It is not there, brings code, or holds no images with classes.
        EnvironmentFailure: The Hub cannot be reached, or files cannot be read.
        MissingDependency: ``datasets`` is not installed.
    """
    match = _ADDRESS.fullmatch(address.removeprefix(PREFIX))
    if match is None:
        raise DataError(
            f"{address!r} is no data set of the Hub: expected hf:NAME or hf:USER/NAME, with :CONFIGURATION and #COLUMN "
            "where there are several.",
            subject=address,
        )
    name, configuration, column = match.groups()
    if os.path.exists(name):
        raise DataError(
            f"{address}: {Path(name).absolute()} would be read in place of the Hub's. Give it as a path.",
            subject=address,
        )
    datasets = _library(address)
    try:
        with _offline(datasets, unless=download):
            loaded = datasets.load_dataset(name, configuration)
    except ConnectionError as error:
        raise EnvironmentFailure(
            f"{address} is not in the cache of datasets, and the Hub "
            f"{'does not answer' if download else 'was not asked'}: {error}. Allow the download, or set HF_HOME to the "
            "cache that holds it.",
            subject=address,
        ) from error
    except Exception as error:  # of somebody else's library: of many kinds
        raise DataError(
            f"{address} cannot be read: {type(error).__name__}: {error}", subject=address
        ) from error
    return _both(loaded, f"{PREFIX}{name}", column, address)


def read_hub_folder(folder: Path) -> DataSet | Split:
    """Read a folder that ``save_to_disk`` wrote, or one of the Hub's Parquet files; raises as ``read_hub``."""
    datasets = _library(folder)
    saved = any((folder / file).is_file() for file in STATES)
    try:
        with _offline(datasets, unless=False):
            loaded = (
                datasets.load_from_disk(str(folder))
                if saved
                else datasets.load_dataset(str(folder), data_files=_parts_of(folder))
            )
    except CompatkitError:
        raise
    except Exception as error:  # of somebody else's library: of many kinds
        raise DataError(
            f"{folder} cannot be read by datasets: {type(error).__name__}: {error}", subject=folder
        ) from error
    return _both(loaded, text_of(folder.resolve().name), None, folder)


def _parts_of(folder: Path) -> dict[str, list[str]] | None:
    """Return the Parquet files of a folder by part; None where its page (README.md) tells ``datasets`` which they are.

    Raises:
        DataError: Files are missing, or some name a part and others none.
    """
    files = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    files = [path for path in files if not any(name.startswith((".", "_")) for name in path.split("/"))]
    check_skipped_files([path for path in files if ".parquet" in path.lower()], ".parquet", folder)
    paths = [path for path in files if path.endswith(".parquet")]
    check_complete(paths, folder)
    page = folder / "README.md"
    if page.is_file() and re.search(rb"^configs:", page.read_bytes(), re.MULTILINE):
        return None
    kinds = parts_of_files([path.removesuffix(".parquet") for path in paths], folder)
    parts: dict[str, list[str]] = {}
    for path, kind in zip(paths, kinds or ["train"] * len(paths), strict=True):
        parts.setdefault(kind, []).append(glob.escape(path))
    return parts


def _both(loaded: Any, name: str, column: str | None, where: object) -> DataSet | Split:
    tables = loaded if isinstance(loaded, dict) else {"train": loaded}
    if len(tables) == 1:
        return _undivided(next(iter(tables.values())), name, column, where)
    parts = _kinds(tables, where)
    test = parts.get(held_out(parts) or "")
    if "train" not in parts:
        raise DataError(
            f"{where} has the parts {', '.join(tables)}; expected {EXPECTED}.",
            subject=where,
        )
    unknown = [key for key in tables if part_name(key) is None]
    if unknown:
        warn_caller(
            DataWarning(
                f"{where}: the images of {', '.join(unknown)} are left out; {', '.join(parts.values())} are known "
                "parts."
            )
        )
    tell_unused(parts, where)
    if test is None:
        return _undivided(tables[parts["train"]], name, column, where)
    return DataSet(
        name,
        *(
            _split(tables[part], f"{name}/{what}", column, where)
            for part, what in ((parts["train"], "train"), (test, "test"))
        ),
    )


def _undivided(table: Any, name: str, column: str | None, where: object) -> Split:
    """Return all images of a table.

    Raises:
        DataError: A column divides them.
    """
    for other, kind in table.features.items():
        values = getattr(kind, "names", None) if other != column else None
        dtype = str(getattr(kind, "dtype", ""))
        if values is None and (part_name(other) or dtype in ("string", "large_string")):
            cells = table.select_columns([other])
            if dtype in ("bool", "int8", "int32", "int64") or part_name(str(cells[0][other])):
                values = cells.unique(other)
        if values is not None and divides(other, values):
            raise DataError(
                f"{where}: the column {other} divides the images into parts. Save the parts that are wanted by "
                f"themselves, as {EXPECTED}; or remove the column, to hold out a share.",
                subject=other,
            )
    return _split(table, f"{name}/train", column, where)


def _kinds(names: Iterable[str], where: object) -> dict[str, str]:
    """Return the names of parts by kind.

    Raises:
        DataError: A name looks like that of a part and is none, or two are of one kind.
    """
    parts: dict[str, str] = {}
    for name in names:
        part = part_name(name)
        if part is None:
            continue
        other = parts.setdefault(part.kind, name) if part.plain else name
        if not part.plain or other != name:
            reason = (
                f"is of the same kind as {other}" if part.plain else "is the name of no part that is known"
            )
            raise DataError(
                f"{where} has the parts {', '.join(names)}, of which {name} {reason}; expected {EXPECTED}. Save the "
                "parts that are wanted with save_to_disk.",
                subject=name,
            )
    return parts


def _split(table: Any, name: str, column: str | None, where: object) -> Split:
    import datasets

    kinds = table.features
    images = [key for key, kind in kinds.items() if isinstance(kind, datasets.Image)]
    classes = [key for key, kind in kinds.items() if isinstance(kind, datasets.ClassLabel)]
    chosen = [key for key in classes if key == column] if column else classes
    if len(chosen) > 1:
        chosen = [key for key in chosen if key in LABELS] or chosen
    called = [key for key in kinds if key.casefold() in LABEL_NAMES and key not in classes]
    if called and not column and len(chosen) == 1 and chosen[0].casefold() not in LABEL_NAMES:
        raise DataError(
            f"{where}: the column {called[0]} is no column of classes (ClassLabel), which {chosen[0]} beside it is. "
            f"Make {called[0]} one with class_encode_column or cast_column; or, to learn {chosen[0]}, write "
            f"hf:NAME#{chosen[0]}, or remove {called[0]} from a folder.",
            subject=called[0],
        )
    if len(images) != 1 or len(chosen) != 1:
        raise DataError(
            f"{where} needs one column of images and one of classes (ClassLabel); images are in "
            f"{', '.join(images) or 'none'}, classes in {', '.join(classes) or 'none'}. Name one of several as "
            "hf:NAME#COLUMN, or remove the others; datasets makes classes of texts with class_encode_column.",
            subject=where,
        )
    bare = table.select_columns(images).cast_column(images[0], datasets.Image(decode=False))
    written = table.select_columns(chosen).with_format("arrow")[:][chosen[0]].to_pylist()
    labels = np.array([-1 if label is None else label for label in written], dtype=np.int64)
    if lacking := int((labels < 0).sum()):
        raise DataError(
            f"{where}: {lacking:,} of {len(labels):,} images of {name} have no label. Remove these rows.",
            subject=where,
        )
    names = tuple(kinds[chosen[0]].names)
    check_declared(names, where, "If it is a class, call it otherwise, with cast_column.")
    return Split(
        LazyImages(ArrowImages(bare, images[0], name), np.arange(len(labels))),
        labels,
        names,
        name,
    )


def _library(where: object) -> Any:
    try:
        import datasets
    except ImportError as error:
        raise MissingDependency(
            f"{where} is read by Hugging Face's datasets, which is not installed. Run: pip install "
            "'compatkit[datasets]'",
            subject="datasets",
        ) from error
    return datasets


@contextmanager
def _offline(datasets: Any, *, unless: bool) -> Iterator[None]:
    """Keep ``datasets`` and the Hub's library off the network in the body."""
    places = [] if unless else [datasets.config, sys.modules["huggingface_hub.constants"]]
    before = [module.HF_HUB_OFFLINE for module in places]
    for module in places:
        module.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        for module, value in zip(places, before, strict=True):
            module.HF_HUB_OFFLINE = value

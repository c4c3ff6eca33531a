"""Load data sets by name, path or address: packs, folders, tables, shards, the Hub, and data sets of plugins."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from glob import glob
from pathlib import Path

import attrs

from compatkit.data.damaged import check_damaged, skip_damaged
from compatkit.data.dataset import DataSet, Source
from compatkit.data.folders import read_folder
from compatkit.data.formats import folder_format
from compatkit.data.huggingface import PREFIX, read_hub, read_hub_folder
from compatkit.data.imagefiles import EXTENSIONS, ImageFiles
from compatkit.data.lazy import LazyImages
from compatkit.data.npz import read_pack, stem
from compatkit.data.shards import EXTENSION as SHARD
from compatkit.data.shards import is_shards, read_shards
from compatkit.data.split import Split
from compatkit.data.tables import EXTENSIONS as TABLES
from compatkit.data.tables import read_table
from compatkit.data.traintest import SHARE, hold_out
from compatkit.errors import DataError, EnvironmentFailure, UnknownName, UsageError, suggest
from compatkit.foundation.addresses import is_url, local, normalized
from compatkit.foundation.arguments import checks_arguments
from compatkit.foundation.bars import Progress
from compatkit.foundation.limits import Number
from compatkit.plugins.discovery import providers

DIGESTS = ("bytes", "unverified")
"""Content that the digest of images in files may cover."""
SPLITS = ("train", "test")
"""Splits of a data set; a split is called ``mnist/test``."""


@checks_arguments
def load(
    name_or_path: str | os.PathLike[str],
    *,
    root: str | os.PathLike[str] | None = None,
    download: bool = False,
    hold_out: float | None = None,
    seed: int | None = None,
    damaged: str = "refuse",
    digest: str = "bytes",
    progress: Progress | None = None,
) -> DataSet:
    """Load a data set.

    A name is looked up in this order: packs ``<name>.npz`` and ``<name>.webp.npz`` in ``root``, or else in the folder
    ``COMPATKIT_DATA``; then data sets of plugins (``digits``, ``peaks``, ``mnist``, ...), which receive that folder.
    Case, hyphens and underscores make no difference. ``hf:NAME`` is a data set of the Hugging Face Hub.

    Args:
        name_or_path: A name; or the path of a folder of class folders (see ``read_folder``), of shards
            (``read_shards``, also a pattern or URL) or of a data set of Hugging Face, of a table of images
            (``read_table``), or of an ``.npz`` pack.
        root: Folder to search instead of ``COMPATKIT_DATA``.
        download: Whether a plugin or the Hub's library may download missing files; a plugin stores them in that
            folder.
        hold_out: Share of each class that becomes test images if the source does not divide its images; default: 0.1.
        seed: Random seed of that share; default: 0.
        damaged: ``"refuse"`` fails when a damaged image is read; ``"skip"`` decodes all images first, once, and leaves
            damaged ones out.
        digest: Content that the digest of images in files covers: ``"bytes"`` reads each file once; ``"unverified"``
            uses names, sizes and times, which do not depend on the content and may differ for a copy.
        progress: Called with the number done, the total, and a description, while files are listed or read; None shows
            a bar in a terminal.

    Raises:
        UnknownName: No data set has this name.
        DataError: The path does not exist; a file is damaged or not a data set; a known data set is in none of the
            folders; or ``hold_out`` is given for images that are divided already.
        EnvironmentFailure: A folder or file cannot be read, or the download failed.
        MissingDependency: A library for this kind of data set is not installed.
    """
    check_damaged(damaged)
    if hold_out is not None:
        Number(above=0, below=1).check(f"{name_or_path}", DataError, hold_out=hold_out)
    if digest not in DIGESTS:
        raise DataError(f"digest is {' or '.join(DIGESTS)}, got {digest!r}.", subject=digest)
    if not isinstance(name_or_path, str | os.PathLike):
        raise DataError(
            f"A data set is a name or path, got {type(name_or_path).__name__}.", subject=name_or_path
        )
    folders = _search_folders(root)
    options = {
        "hold_out": hold_out,
        "seed": seed,
        "damaged": None if damaged == "refuse" else damaged,
        "digest": None if digest == "bytes" else digest,
    }
    set_options = {key: value for key, value in options.items() if value is not None}
    if f"{name_or_path}".lower().endswith(EXTENSIONS) and Path(name_or_path).is_file():
        raise DataError(
            f"{name_or_path} is an image file; give the folder of class folders.", subject=name_or_path
        )
    if is_path(name_or_path):
        data, address = _load_path(name_or_path, folders, download, progress)
        source = Source({"name": address, **set_options})
    else:
        name = str(name_or_path)
        data = _load_name(name, folders, root, download)
        source = Source({"name": name, **set_options}, str(folders[0].absolute()) if folders else None)
    if digest == "unverified":
        data = (
            _unverified(data)
            if isinstance(data, Split)
            else DataSet(data.name, _unverified(data.train), _unverified(data.test))
        )
    return attrs.evolve(_divided(data, hold_out, seed, damaged, progress), source=source)


def _divided(
    data: DataSet | Split, share: float | None, seed: int | None, damaged: str, progress: Progress | None
) -> DataSet:
    if share is not None and isinstance(data, DataSet):
        raise DataError(
            f"{data.name} has test images of its own, so hold_out does not apply. Leave it out; for more test images, "
            "move some training images to them.",
            subject=data.name,
        )
    if damaged == "skip":
        data = skip_damaged(data, progress)
    return hold_out(data, SHARE if share is None else share, seed or 0) if isinstance(data, Split) else data


def _unverified(split: Split) -> Split:
    """Return the images with a digest over names, sizes and times of their files."""
    if not isinstance(split.images, LazyImages) or not isinstance(split.images.reader, ImageFiles):
        raise DataError(
            f"{split.name}: digest='unverified' applies only to images in files of their own. Leave it out.",
            subject=split.name,
        )
    return attrs.evolve(split, images=attrs.evolve(split.images, verified=False))


def _load_path(
    address: str | os.PathLike[str], folders: list[Path], download: bool, progress: Progress | None
) -> tuple[DataSet | Split, str]:
    """Load a path or address; return the data, and the absolute path or address."""
    if hub := hub_name(address):
        return read_hub(hub, download=download), hub
    try:
        text = normalized(address)
    except UsageError as error:
        raise DataError(str(error), subject=error.subject) from None
    if is_url(text):
        return read_shards(text, progress=progress), text
    path = _find(Path(text).expanduser(), folders)
    if not exists(path):
        _check_not_split(text, folders)
    absolute = str(path.absolute())
    if path.is_dir():
        kind = folder_format(path)
        if kind == "hub":
            return read_hub_folder(path), absolute
        if kind == "shards":
            return read_shards(absolute, progress=progress), absolute
        return read_folder(path, progress=progress), absolute
    if path.suffix in TABLES:
        return read_table(path), absolute
    if is_shards(text):
        return read_shards(absolute, progress=progress), absolute
    return read_pack(path, name=_pack_name(path)), absolute


def _check_not_split(text: str, folders: list[Path]) -> None:
    """Raise if a split is named instead of a data set.

    Raises:
        UnknownName: The text before the slash is a data set.
    """
    name, slash, split = text.rpartition("/")
    known = {*_packs(folders), *map(_key, providers())}
    if slash and split and _key(name) in known:
        hint = f" Load {name!r} and use its .{split}." if split in SPLITS else suggest(split, SPLITS)
        raise UnknownName(
            f"{text!r} is not a data set; {name!r} is one, with the splits {' and '.join(SPLITS)}.{hint}",
            subject=text,
        )


def _load_name(
    name: str, folders: list[Path], root: str | os.PathLike[str] | None, download: bool
) -> DataSet:
    key, packs, plugins = _key(name), _packs(folders), providers()
    if key in packs:
        return read_pack(packs[key], name=_pack_name(packs[key]))
    if (plugin := _match(key, plugins)) is not None:
        return _load_from_plugin(plugins[plugin], plugin, root, download)
    known = sorted({*(plugin for plugin in plugins if ":" not in plugin), *map(_pack_name, packs.values())})
    if name and Path(name).is_dir():
        raise UnknownName(
            f"There is no data set {name!r}, but a folder: to load its images, write {name}/ .", subject=name
        )
    hint = suggest(name.lower(), known)
    searched = f" Searched {folders[0]}." if folders else ""
    raise UnknownName(
        f"There is no data set {name!r}.{hint} Known are {', '.join(known)}, and paths.{searched}",
        subject=name,
    )


def is_path(name_or_path: str | os.PathLike[str]) -> bool:
    """Return whether this is a path or an address, not the name of a data set."""
    text = os.fspath(name_or_path)
    return (
        not isinstance(name_or_path, str)
        or "/" in text
        or os.sep in text
        or text in (os.curdir, os.pardir)
        or text.endswith((".npz", SHARD, *TABLES))
        or hub_name(text) is not None
    )


def hub_name(text: str | os.PathLike[str]) -> str | None:
    """Return the address of a data set of the Hub, ``hf:NAME``, with its prefix in lower case; None for others."""
    name = str(text)[len(PREFIX) :]
    hub = isinstance(text, str) and text[: len(PREFIX)].lower() == PREFIX and not name.startswith("/")
    return f"{PREFIX}{name}" if hub else None


def exists(path: Path) -> bool:
    """Return whether a file or folder exists; for a pattern, whether any file matches."""
    return path.exists() or (is_shards(str(path)) and bool(glob(str(path))))


def _find(path: Path, folders: list[Path]) -> Path:
    """Return a path that exists: relative to the current folder, or else to the folders of data sets."""
    candidates = [path] if path.is_absolute() else [path, *(folder / path for folder in folders)]
    return next((candidate for candidate in candidates if exists(candidate)), path)


def _load_from_plugin(
    factory: Callable[..., DataSet], name: str, root: str | os.PathLike[str] | None, download: bool
) -> DataSet:
    data = factory(root=root, download=download)
    if not isinstance(data, DataSet):
        raise DataError(
            f"The plugin of the data set {name!r} must return a compatkit.data.DataSet, got {type(data).__name__}.",
            subject=name,
        )
    return data


def _search_folders(root: str | os.PathLike[str] | None) -> list[Path]:
    folder = root if root is not None else os.environ.get("COMPATKIT_DATA")
    return [Path(local(folder, "a folder of data sets")).expanduser()] if folder else []


def _packs(folders: list[Path]) -> dict[str, Path]:
    """Return the packs in the folder of data sets by key; of two with the same key the first by name."""
    packs: dict[str, Path] = {}
    for folder in folders:
        try:
            files = sorted(file for file in folder.iterdir() if file.name.endswith(".npz"))
        except FileNotFoundError:
            continue
        except NotADirectoryError as error:
            raise DataError(
                f"{folder} is a file; root and COMPATKIT_DATA name a folder.", subject=folder
            ) from error
        except OSError as error:
            raise EnvironmentFailure(
                f"The folder {folder} cannot be read: {error.strerror}. Check its permissions.",
                subject=folder,
            ) from error
        for file in files:
            packs.setdefault(_key(stem(file)), file)
    return packs


def _pack_name(file: Path) -> str:
    """Return the name of a pack; that of a plugin's data set if they differ only in spelling."""
    return _match(_key(stem(file)), providers()) or stem(file)


def _key(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "").replace(" ", "")


def _match(key: str, names: Mapping[str, object]) -> str | None:
    return next((name for name in names if _key(name) == key), None)

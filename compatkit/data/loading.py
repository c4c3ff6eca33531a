"""Load data sets by name or path: packs, folders, tables, shards, data sets of plugins."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from glob import glob
from pathlib import Path

import attrs

from compatkit.data.damaged import check_damaged, readable
from compatkit.data.dataset import DataSet, Source
from compatkit.data.folders import read_folder
from compatkit.data.formats import kind_of
from compatkit.data.huggingface import PREFIX, read_hub, read_hub_folder
from compatkit.data.imagefiles import ENDINGS, ImageFiles
from compatkit.data.lazy import LazyImages
from compatkit.data.npz import read_pack, stem
from compatkit.data.shards import ENDING, is_shards, read_shards
from compatkit.data.split import Split
from compatkit.data.tables import LISTS, read_list
from compatkit.data.traintest import SHARE, divided
from compatkit.errors import (
    DataError,
    EnvironmentFailure,
    UnknownName,
    UsageError,
    suggest,
)
from compatkit.foundation.addresses import is_url, local, normalized
from compatkit.foundation.arguments import checks_arguments
from compatkit.foundation.bars import Progress
from compatkit.foundation.limits import Number
from compatkit.plugins.discovery import providers

DIGESTS = ("bytes", "unverified")
"""What the digest of images in files may be over."""
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
    ``COMPATKIT_DATA``; data sets of plugins (``digits``, ``peaks``, ``mnist``, ...), which get that folder. Case,
    hyphens and underscores make no difference. ``hf:NAME`` is a data set of the Hugging Face Hub.

    Args:
        name_or_path: A name; or the path of a folder of class folders (see ``read_folder``), of shards
            (``read_shards``, also a pattern or URL) or of a data set of Hugging Face, of a table of images
            (``read_list``), or of an ``.npz`` pack.
        root: Folder to look in, in place of ``COMPATKIT_DATA``.
        download: Let a plugin or the Hub's library fetch missing files, a plugin into that folder.
        hold_out: Share of each class that becomes test images, where a source does not divide its images: a tenth
            by default.
        seed: Draws that share; 0 by default.
        damaged: ``"refuse"`` fails when a damaged image is read; ``"skip"`` decodes all images first, once, and leaves
            these out.
        digest: What the digest of images in files covers: ``"bytes"`` reads each file once; ``"unverified"`` takes
            names, sizes and times, which do not depend on the content and which a copy may not keep.
        progress: Called with the number done, the total, and a description, while files are listed or read; None shows
            a bar in a terminal.

    Raises:
        UnknownName: No data set has this name.
        DataError: The argument is neither a path nor an address; a file is damaged or no data set; a known data set is
            in none of the folders; or a share is to be held out of images that are divided already.
        EnvironmentFailure: A folder or file cannot be read, or the download failed.
        MissingDependency: A library that reads this kind of data set is not installed.
    """
    check_damaged(damaged)
    if hold_out is not None:
        Number(above=0, below=1).check(f"{name_or_path}", DataError, hold_out=hold_out)
    folders = _folders(root)
    if digest not in DIGESTS:
        raise DataError(f"digest is {' or '.join(DIGESTS)}, got {digest!r}.", subject=digest)
    options = {
        "hold_out": hold_out,
        "seed": seed,
        "damaged": None if damaged == "refuse" else damaged,
        "digest": None if digest == "bytes" else digest,
    }
    stated = {key: value for key, value in options.items() if value is not None}
    if not isinstance(name_or_path, str | os.PathLike):
        raise DataError(
            f"A data set is a name or path, got {type(name_or_path).__name__}.",
            subject=name_or_path,
        )
    _check_no_image(name_or_path)
    if is_path(name_or_path):
        data, spec = _at(name_or_path, folders, download, progress)
        source = Source({"name": spec, **stated})
    else:
        name = str(name_or_path)
        data = _by_name(name, folders, root, download)
        source = Source({"name": name, **stated}, str(folders[0].absolute()) if folders else None)
    if hold_out is not None and isinstance(data, DataSet):
        raise DataError(
            f"{data.name} has test images of its own; nothing is to be held out. Leave hold_out out. For more test "
            "images, move some of those for training to them, or put all into class folders without parts.",
            subject=data.name,
        )
    if digest == "unverified":
        whole = isinstance(data, DataSet)
        data = DataSet(data.name, *map(_unread, (data.train, data.test))) if whole else _unread(data)
    if damaged == "skip":
        data = readable(data, progress)
    if isinstance(data, Split):
        data = divided(data, SHARE if hold_out is None else hold_out, seed or 0)
    return attrs.evolve(data, source=source)


def _unread(split: Split) -> Split:
    """Return the images with a digest over names, sizes and times of their files."""
    if not isinstance(split.images, LazyImages) or not isinstance(split.images.reader, ImageFiles):
        raise DataError(
            f"{split.name}: digest='unverified' is for images in files of their own; the bytes of these are read "
            "anyway. Leave it out.",
            subject=split.name,
        )
    return attrs.evolve(split, images=attrs.evolve(split.images, verified=False))


def _at(
    address: str | os.PathLike[str], folders: list[Path], download: bool, progress: Progress | None
) -> tuple[DataSet | Split, str]:
    """Load what a path or address names, and return it with the absolute path."""
    if hub := hub_name(address):
        return read_hub(hub, download=download), hub
    try:
        text = normalized(address)
    except UsageError as error:
        raise DataError(str(error), subject=error.subject) from None
    if is_url(text):
        return read_shards(text, progress=progress), text
    path = _found(Path(text).expanduser(), folders)
    if not is_there(path):
        _check_no_split(text, folders)
    place = str(path.absolute())
    if path.is_dir():
        kind = kind_of(path)
        if kind == "hub":
            return read_hub_folder(path), place
        if kind == "shards":
            return read_shards(place, progress=progress), place
        return read_folder(path, progress=progress), place
    if path.suffix in LISTS:
        return read_list(path), place
    if is_shards(text):
        return read_shards(place, progress=progress), place
    return read_pack(path, name=_name(path)), place


def _check_no_image(address: str | os.PathLike[str]) -> None:
    """Raise if a single image is given as data.

    Raises:
        DataError: The file ends as an image does.
    """
    if f"{address}".lower().endswith(ENDINGS) and Path(address).is_file():
        raise DataError(
            f"{address}: this is an image file; give the folder of class folders.", subject=address
        )


def _check_no_split(text: str, folders: list[Path]) -> None:
    """Raise if a split is named instead of a data set.

    Raises:
        UnknownName: The text before the slash is a data set.
    """
    name, slash, split = text.rpartition("/")
    known = {*_packs(folders), *map(_key, providers())}
    if not slash or not split or _key(name) not in known:
        return
    hint = f" Load {name!r} and take its .{split}." if split in SPLITS else suggest(split, SPLITS)
    raise UnknownName(
        f"{text!r} is no data set; {name!r} is one, with the splits {' and '.join(SPLITS)}.{hint}",
        subject=text,
    )


def _by_name(name: str, folders: list[Path], root: str | os.PathLike[str] | None, download: bool) -> DataSet:
    key, packs, plugins = _key(name), _packs(folders), providers()
    if key in packs:
        return read_pack(packs[key], name=_name(packs[key]))
    if (plugin := _match(key, plugins)) is not None:
        return _provided(plugins[plugin], plugin, root, download)
    known = sorted({*(plugin for plugin in plugins if ":" not in plugin), *map(_name, packs.values())})
    is_folder = bool(name) and Path(name).is_dir()
    hint = (
        f" To load the folder {name} that is here, write {name}/."
        if is_folder
        else suggest(name.lower(), known)
    )
    looked = f" Looked in {folders[0]}." if folders else ""
    raise UnknownName(
        f"There is no data set {name!r}.{hint} Known are {', '.join(known)}, and paths.{looked}",
        subject=name,
    )


def is_path(name_or_path: str | os.PathLike[str]) -> bool:
    """Return whether this is a path or an address, not the name of a data set."""
    text = os.fspath(name_or_path)
    ends = (".npz", ENDING, *LISTS)
    return (
        not isinstance(name_or_path, str)
        or "/" in text
        or os.sep in text
        or text in (os.curdir, os.pardir)
        or text.endswith(ends)
        or hub_name(text) is not None
    )


def hub_name(text: str | os.PathLike[str]) -> str | None:
    """Return a name at the Hub, ``hf:NAME``, with its beginning in lower case; None for anything else."""
    name = str(text)[len(PREFIX) :]
    hub = isinstance(text, str) and text[: len(PREFIX)].lower() == PREFIX and not name.startswith("/")
    return f"{PREFIX}{name}" if hub else None


def is_there(path: Path) -> bool:
    """Return whether a file or folder exists; for a pattern, whether any file matches."""
    if path.exists() or not is_shards(str(path)):
        return path.exists()
    return bool(glob(str(path)))


def _found(path: Path, folders: list[Path]) -> Path:
    """Return the file at a path: in the current folder first, then in the folders of data sets."""
    places = [path] if path.is_absolute() else [path, *(folder / path for folder in folders)]
    return next((place for place in places if is_there(place)), path)


def _provided(
    factory: Callable[..., DataSet], name: str, root: str | os.PathLike[str] | None, download: bool
) -> DataSet:
    data = factory(root=root, download=download)
    if not isinstance(data, DataSet):
        raise DataError(
            f"The plugin's data set {name!r} must be a compatkit.data.DataSet, its factory returned "
            f"{type(data).__name__}.",
            subject=name,
        )
    return data


def _folders(root: str | os.PathLike[str] | None) -> list[Path]:
    folder = root if root is not None else os.environ.get("COMPATKIT_DATA")
    return [Path(local(folder, "a folder of data sets")).expanduser()] if folder else []


def _packs(folders: list[Path]) -> dict[str, Path]:
    """Return the packs of the folder of data sets by key; of two with the same key the first by name."""
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
                f"The folder {folder} cannot be read: {error.strerror}. Check its rights.", subject=folder
            ) from error
        for file in files:
            packs.setdefault(_key(stem(file)), file)
    return packs


def _name(file: Path) -> str:
    """Return the name of the data set in this pack: that of a plugin's data set, if only the spelling differs."""
    return _match(_key(stem(file)), providers()) or stem(file)


def _key(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "").replace(" ", "")


def _match(key: str, names: Mapping[str, object]) -> str | None:
    return next((name for name in names if _key(name) == key), None)

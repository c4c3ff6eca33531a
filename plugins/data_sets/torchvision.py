"""torchvision's own data sets from a local folder; fetched only with ``download=True``.

CIFAR's original files are pickles: torchvision compares each with a
fixed MD5 digest before it opens it, so that no other pickle than the published one is ever read.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray
from torchvision import datasets

from compatkit import DataSet, hookimpl
from compatkit.errors import DataError, DataUnavailable, EnvironmentFailure
from compatkit.hooks import Register

from ._files import Root, folder_of

compatkit_api = 1
Arrays = tuple[NDArray[Any], NDArray[Any]]

DIGITS = tuple(str(digit) for digit in range(10))


def _by_flag(kind: Any, root: str, split: str, download: bool) -> Any:
    return kind(root, train=split == "train", download=download)


def _by_split(kind: Any, root: str, split: str, download: bool) -> Any:
    return kind(root, split=split, download=download)


@attrs.frozen
class TorchvisionSet:
    """Location and format of one of torchvision's data sets.

    Attributes:
        kind: Name of torchvision's class.
        marker: Path below the root that exists if the data set is there.
        classes: Class names; None takes torchvision's.
        channels_first: Whether torchvision stores ``(n, c, h, w)``.
        make: Function that calls torchvision's class for a split.
    """

    kind: str
    marker: str
    classes: tuple[str, ...] | None = None
    channels_first: bool = False
    make: Callable[[Any, str, str, bool], Any] = _by_flag


SOURCES = {
    "mnist": TorchvisionSet("MNIST", "MNIST/raw", DIGITS),
    "usps": TorchvisionSet("USPS", "usps.bz2", DIGITS),
    "fashion-mnist": TorchvisionSet("FashionMNIST", "FashionMNIST/raw"),
    "cifar10": TorchvisionSet("CIFAR10", "cifar-10-batches-py"),
    "cifar100": TorchvisionSet("CIFAR100", "cifar-100-python"),
    "stl10": TorchvisionSet("STL10", "stl10_binary", channels_first=True, make=_by_split),
    "svhn": TorchvisionSet("SVHN", "train_32x32.mat", DIGITS, channels_first=True, make=_by_split),
}


def default_root() -> Path:
    """Return torchvision's folder of data sets: ``$TORCH_HOME/datasets``, else in the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    home = os.environ.get("TORCH_HOME") or Path(cache) / "torch"
    return Path(home).expanduser() / "datasets"


@hookimpl
def compatkit_data_sets(register: Register) -> None:
    """Offer the data sets of ``SOURCES``."""
    for name in SOURCES:
        register(name, partial(read_torchvision, name))


def read_torchvision(name: str, root: Root = None, download: bool = False) -> DataSet:
    """Read one of torchvision's data sets from the first folder that holds it: ``root``, then torchvision's own.

    Args:
        name: One of ``SOURCES``.
        root: Folder of data sets; with ``download``, what is missing is fetched into it.
        download: Whether the network may be used.

    Raises:
        DataUnavailable: No folder holds it.
        DataError: It is damaged or not complete.
        EnvironmentFailure: It cannot be fetched or written.
    """
    source, folder = SOURCES[name], folder_of(root)
    roots = [default_root()] if folder is None else [folder, default_root()]
    existing = next((path for path in roots if (path / source.marker).exists()), None)
    if existing is None and not download:
        raise DataUnavailable(
            f"Data set {name!r} is in none of these folders: {', '.join(map(str, roots))}. Give the path of a pack, "
            "set COMPATKIT_DATA or root to a folder that holds it, or allow the download.",
            subject=name,
        )
    return _read(source, name, existing or roots[0], download=download)


def _read(source: TorchvisionSet, name: str, root: Path, *, download: bool) -> DataSet:
    kind = getattr(datasets, source.kind)
    try:
        splits = [source.make(kind, str(root), split, download) for split in ("train", "test")]
        arrays = [_arrays(split, source) for split in splits]
        classes = source.classes or tuple(splits[0].classes)
    except (OSError, RuntimeError) as error:
        if download:
            raise EnvironmentFailure(
                f"{source.kind} cannot be fetched into {root}: {_reason(error)}. Check the connection and "
                "the disk, or copy the data set there by hand.",
                subject=root,
            ) from error
        raise _damaged(source, root, error) from error
    except (ValueError, EOFError, KeyError, IndexError, TypeError) as error:
        raise _damaged(source, root, error) from error
    return DataSet.of(name, arrays[0], arrays[1], classes)


def _damaged(source: TorchvisionSet, root: Path, error: Exception) -> DataError:
    return DataError(
        f"torchvision's {source.kind} in {root} is damaged or not complete: {_reason(error)}. Put the "
        "original files there, or remove them and allow the download.",
        subject=root,
    )


def _reason(error: Exception) -> str:
    return str(error).strip().rstrip(".") or type(error).__name__


def _arrays(split: Any, source: TorchvisionSet) -> Arrays:
    """Return images ``(n, h, w, c)`` and labels of one of torchvision's data sets."""
    images = np.asarray(split.data)
    labels = np.asarray(split.targets if hasattr(split, "targets") else split.labels)
    if images.ndim == 3:
        images = images[..., None]
    elif source.channels_first:
        images = np.ascontiguousarray(images.transpose(0, 2, 3, 1))
    return images, labels.astype(np.int64)

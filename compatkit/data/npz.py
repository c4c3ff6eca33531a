"""Packs: data sets in one ``.npz`` file of plain arrays or lossless WebP images. Nothing is ever unpickled.

A pack contains ``x_train y_train x_test y_test classes`` (uint8 ``(n, h, w, c)`` or ``(n, h, w)``, integers, text); a
WebP pack has ``webp_train`` and ``len_train`` in place of ``x_train``: the concatenated files as uint8, and the length
of each in bytes. Other keys are ignored.
"""

from __future__ import annotations

import errno
import io
import os
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from compatkit.contracts.contract import MAX_SIDE
from compatkit.data.dataset import DataSet
from compatkit.data.filenames import decode_name
from compatkit.data.missinglabels import check_class_names
from compatkit.data.transforms import Images
from compatkit.data.validation import DataWarning, warn_caller
from compatkit.errors import DataError, EnvironmentFailure, suggest
from compatkit.foundation.threads import each

LARGEST = 16 << 30
"""Bytes of the largest unpacked pack; a file that claims more is refused before it fills the memory."""
UNPACKED, RATIO = 2**27, 100
"""Bytes that any pack may unpack to, and how many more per byte of the file; packed digits take 5."""

SPLITS = ("train", "test")
_BLOCK = 500
_DAMAGE = (
    *(zipfile.BadZipFile, zlib.error, struct.error, ValueError, TypeError, EOFError),
    *(KeyError, OverflowError, RuntimeError, SyntaxError),
)
"""Errors that zipfile, zlib and numpy raise for damaged bytes."""

CONTENT = (
    "A pack holds x_train, y_train, x_test, y_test and classes (or webp_... and len_... in place of x_...)"
)
_SUFFIXES = (".webp.npz", ".npz")


def read_pack(path: str | os.PathLike[str], *, name: str | None = None) -> DataSet:
    """Read a pack.

    Args:
        path: The ``.npz`` file.
        name: Name of the data set; default: name of the file without ``.npz`` or ``.webp.npz``.

    Raises:
        DataError: The file is missing, damaged, or does not hold a data set.
        EnvironmentFailure: The file cannot be read (permissions, disk).
    """
    file = Path(path)
    name = decode_name(name or stem(file))
    with open_pack(file) as pack:
        classes = _class_names(pack, file)
        train, test = ((images_of(pack, split, file), array(pack, f"y_{split}", file)) for split in SPLITS)
        _warn_unused(pack, file)
    try:
        return DataSet.of(name, train, test, classes)
    except DataError as error:
        raise DataError(f"{file}: {error}", subject=file) from error


def _warn_unused(pack: Any, file: Path) -> None:
    """Warn of images that are in neither split, such as those of ``x_val``."""
    used = {f"{prefix}_{split}" for prefix in ("x", "webp") for split in SPLITS}
    unused = [key for key in pack.files if key.lower().startswith(("x_", "webp_")) and key not in used]
    if unused:
        warn_caller(
            DataWarning(f"{file}: {', '.join(unused)} are not used; only x_train and x_test are read.")
        )


def stem(file: Path) -> str:
    """Return the name of a file without the extension of a pack."""
    suffix = next((suffix for suffix in _SUFFIXES if file.name.endswith(suffix)), file.suffix)
    return file.name.removesuffix(suffix)


@contextmanager
def open_pack(file: Path) -> Iterator[Any]:
    """Open a pack; errors inside become errors that name the file."""
    try:
        _check_archive(file)
        with np.load(file, allow_pickle=False) as pack:
            yield pack
    except FileNotFoundError as error:
        siblings = [path.name for path in file.parent.iterdir()] if file.parent.is_dir() else []
        raise DataError(
            f"There is no data set {file}: no file or folder {file.absolute()}.{suggest(file.name, siblings)}",
            subject=file,
        ) from error
    except IsADirectoryError as error:
        raise DataError(
            f"{file} is a folder; name an .npz file in it, or pass it as root.", subject=file
        ) from error
    except MemoryError as error:
        raise DataError(f"{file} claims more than fits in memory: {error}.", subject=file) from error
    except OSError as error:
        # EINVAL: a damaged directory of the archive points before its start.
        if error.errno in (None, errno.EINVAL):
            raise DataError(f"{file} is damaged: {error!s:.300}", subject=file) from error
        raise EnvironmentFailure(
            f"{file} cannot be read: {error.strerror}. Check its permissions and the disk.", subject=file
        ) from error
    except _DAMAGE as error:
        raise DataError(f"{file} is damaged, or not a data pack: {error!s:.300}", subject=file) from error


def _check_archive(file: Path) -> None:
    with file.open("rb") as handle:
        start = handle.read(8)
        if not start.startswith(b"PK\x03\x04"):
            raise DataError(
                f"{file} is not an .npz file: expected b'PK\\x03\\x04' at its start, got {start!r}.",
                subject=file,
            )
        handle.seek(0)
        with zipfile.ZipFile(handle) as archive:
            unpacked = sum(member.file_size for member in archive.infolist())
    limit = min(LARGEST, UNPACKED + RATIO * file.stat().st_size)
    if unpacked > limit:
        raise DataError(
            f"{file} would unpack to {unpacked:,} bytes; at most {limit:,} are accepted.", subject=file
        )


def array(pack: Any, key: str, file: Path) -> NDArray[Any]:
    """Return an array of an open pack.

    Raises:
        DataError: The array is missing.
    """
    if key not in pack.files:
        keys = ", ".join(sorted(pack.files)[:12]) or "nothing"
        raise DataError(f"{file} has no {key!r}. {CONTENT}; this one holds {keys}.", subject=file)
    return pack[key]


def _class_names(pack: Any, file: Path) -> tuple[str, ...]:
    names = array(pack, "classes", file)
    if names.dtype.kind != "U" or names.ndim != 1:
        raise DataError(
            f"{file}: 'classes' must be a 1-D array of strings, got {names.dtype} of shape {names.shape}.",
            subject=file,
        )
    classes = tuple(map(str, names))
    check_class_names(classes, file, "If it is a class, rename it.")
    return classes


def images_of(pack: Any, split: str, file: Path) -> Images:
    """Return the images of one split of an open pack.

    Args:
        pack: Result of ``open_pack``.
        split: ``"train"`` or ``"test"``.
        file: Path of the pack, for messages.
    """
    if f"x_{split}" not in pack.files and f"webp_{split}" in pack.files:
        return _decode(array(pack, f"webp_{split}", file), array(pack, f"len_{split}", file), split, file)
    images = array(pack, f"x_{split}", file)
    return images[..., None] if images.ndim == 3 else images


def _decode(data: NDArray[Any], lengths: NDArray[Any], split: str, file: Path) -> Images:
    """Decode concatenated WebP files, blocks of them in threads."""
    if data.dtype != np.uint8 or data.ndim != 1 or lengths.dtype.kind not in "iu" or lengths.ndim != 1:
        raise DataError(
            f"{file}: webp_{split} must be 1-D uint8 and len_{split} 1-D integers, got {data.dtype} {data.shape} and "
            f"{lengths.dtype} {lengths.shape}.",
            subject=file,
        )
    total = int(lengths.sum(dtype=np.int64))
    if not len(lengths) or int(lengths.min()) < 1 or total != len(data):
        raise DataError(
            f"{file}: the lengths in len_{split} must be positive and sum to the {len(data)} bytes of webp_{split}, "
            f"got a sum of {total}.",
            subject=file,
        )
    ends = np.cumsum(lengths, dtype=np.int64)
    starts, content = ends - lengths.astype(np.int64), data.tobytes()
    first = _decode_one(content[: ends[0]], None, f"{file}: image 0 of webp_{split}")
    if first.nbytes * len(lengths) > LARGEST:
        raise DataError(f"{file}: webp_{split} would unpack to more than {LARGEST} bytes.", subject=file)
    images = np.empty((len(lengths), *first.shape), dtype=np.uint8)

    def decode_block(start: int) -> None:
        for index in range(start, min(start + _BLOCK, len(lengths))):
            name = f"{file}: image {index} of webp_{split}"
            images[index] = _decode_one(content[starts[index] : ends[index]], first.shape, name)

    for _ in each(decode_block, range(0, len(lengths), _BLOCK)):
        pass
    return images


def _decode_one(data: bytes, shape: tuple[int, ...] | None, name: str) -> Images:
    from PIL import Image

    try:
        with Image.open(io.BytesIO(data), formats=["WEBP"]) as image:
            width, height = image.size
            if max(image.size) > MAX_SIDE:
                raise DataError(f"{name} has {width} x {height} pixels; a side has at most {MAX_SIDE}.")
            if shape is not None and (height, width) != shape[:2]:
                raise DataError(
                    f"{name} has {width} x {height} pixels (width x height), the first one {shape[1]} x {shape[0]}; "
                    "all must be equal."
                )
            return cast(Images, np.asarray(image.convert("RGB")))
    except (OSError, ValueError, SyntaxError, EOFError) as error:
        raise DataError(f"{name} is not a readable WebP image: {error}") from error

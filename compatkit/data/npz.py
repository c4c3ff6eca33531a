"""Packs: one ``.npz`` file a data set, with plain arrays or lossless WebP images. Nothing is ever unpickled.

A pack holds ``x_train y_train x_test y_test classes`` (uint8 ``(n, h, w, c)`` or ``(n, h, w)``, integers,
text); in a WebP pack ``webp_train`` and ``len_train`` stand for ``x_train``: the files one after another as
uint8, and the length of each in bytes. Other keys are ignored.
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

from compatkit.data.dataset import DataSet
from compatkit.data.filenames import text_of
from compatkit.data.missinglabels import check_declared
from compatkit.data.transforms import Images
from compatkit.data.validation import LARGEST_SIDE, DataWarning, warn_caller
from compatkit.errors import DataError, EnvironmentFailure, suggest
from compatkit.foundation.threads import each

LARGEST = 16 << 30
"""Bytes that a pack may hold unpacked; a file that claims more is refused before it fills the memory."""
UNPACKED, RATIO = 2**27, 100
"""Bytes that any pack may unpack to, and how many more for each byte of the file; packed digits take 5."""

SPLITS = ("train", "test")
_BLOCK = 500
_DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    ValueError,
    TypeError,
    EOFError,
    KeyError,
    OverflowError,
    RuntimeError,
    SyntaxError,
)
"""What zipfile, zlib and numpy raise for damaged bytes."""

FORM = (
    "A pack holds x_train, y_train, x_test, y_test and classes (or webp_train and len_train in place of x_train, and "
    "so on)"
)
_SUFFIXES = (".webp.npz", ".npz")


def read_pack(path: str | os.PathLike[str], *, name: str | None = None) -> DataSet:
    """Read a pack.

    Args:
        path: The ``.npz`` file.
        name: Name of the data set; the file's name without ``.npz`` or ``.webp.npz`` by default.

    Raises:
        DataError: The file does not exist, is no pack, is cut short or damaged, lacks a key, or holds
            something that is no data set.
        EnvironmentFailure: The file cannot be read (rights, disk).
    """
    file = Path(path)
    name = text_of(name or stem(file))
    with opened(file) as pack:
        classes = class_names(pack, file)
        splits = [(images_of(pack, split, file), array(pack, f"y_{split}", file)) for split in SPLITS]
        _tell_left_out(pack, file)
    try:
        return DataSet.of(name, splits[0], splits[1], classes)
    except DataError as error:
        raise DataError(f"{file}: {error}", subject=file) from error


def _tell_left_out(pack: Any, file: Path) -> None:
    """Warn of images of a pack that are in neither split, such as those of ``x_val``."""
    used = {f"{front}_{split}" for front in ("x", "webp") for split in SPLITS}
    left_out = [key for key in pack.files if key.lower().startswith(("x_", "webp_")) and key not in used]
    if left_out:
        warn_caller(
            DataWarning(
                f"{file}: {', '.join(left_out)} are left out; images are those of x_train and x_test."
            )
        )


def stem(file: Path) -> str:
    """Return the file's name without the ending of a pack."""
    for suffix in _SUFFIXES:
        if file.name.endswith(suffix):
            return file.name.removesuffix(suffix)
    return file.stem


@contextmanager
def opened(file: Path) -> Iterator[Any]:
    """Open a pack; turn errors inside into one that names the file and the reason."""
    try:
        _check_archive(file)
        with np.load(file, allow_pickle=False) as pack:
            yield pack
    except FileNotFoundError as error:
        beside = [path.name for path in file.parent.iterdir()] if file.parent.is_dir() else []
        raise DataError(
            f"There is no data set {file}: no file or folder {file.absolute()}.{suggest(file.name, beside)}",
            subject=file,
        ) from error
    except IsADirectoryError as error:
        raise DataError(
            f"{file} is a folder; name an .npz file in it, or pass it as root.", subject=file
        ) from error
    except MemoryError as error:
        raise DataError(f"{file} claims to hold more than fits in memory: {error}.", subject=file) from error
    except OSError as error:
        # EINVAL: a damaged directory of the archive points before its start.
        if error.errno in (None, errno.EINVAL):
            raise DataError(f"{file} is damaged: {error!s:.300}", subject=file) from error
        raise EnvironmentFailure(
            f"{file} cannot be read: {error.strerror}. Check the rights and the disk.", subject=file
        ) from error
    except _DAMAGE as error:
        raise DataError(f"{file} is damaged, or no data pack: {error!s:.300}", subject=file) from error


def _check_archive(file: Path) -> None:
    with file.open("rb") as handle:
        start = handle.read(16)
        if not start.startswith(b"PK\x03\x04"):
            raise DataError(
                f"{file} is no .npz file: it starts with {start[:8]!r}, where the first "
                "bytes of a pack are b'PK\\x03\\x04'.",
                subject=file,
            )
        handle.seek(0)
        with zipfile.ZipFile(handle) as archive:
            unpacked = sum(member.file_size for member in archive.infolist())
    most = min(LARGEST, UNPACKED + RATIO * file.stat().st_size)
    if unpacked > most:
        raise DataError(
            f"{file} would unpack to {unpacked:,} bytes; at most {most:,} are accepted.", subject=file
        )


def array(pack: Any, key: str, file: Path, *, form: str = FORM) -> NDArray[Any]:
    """Return one array of an open pack.

    Args:
        pack: From ``opened``.
        key: Its name.
        file: Where the pack is, for messages.
        form: What such a file holds, for messages.

    Returns:
        Of the type and shape in the file.

    Raises:
        DataError: There is none, or it holds Python objects.
    """
    if key not in pack.files:
        keys = ", ".join(sorted(pack.files)[:12]) or "nothing"
        raise DataError(f"{file} has no {key!r}. {form}; this one holds {keys}.", subject=file)
    return pack[key]


def class_names(pack: Any, file: Path) -> tuple[str, ...]:
    """Return the names of the classes of an open pack.

    Args:
        pack: From ``opened``.
        file: Where the pack is, for messages.

    Raises:
        DataError: They are not one row of texts, or one marks a missing label.
    """
    names = array(pack, "classes", file)
    if names.dtype.kind != "U" or names.ndim != 1:
        raise DataError(
            f"{file}: 'classes' must be one row of texts, got {names.dtype} of shape {names.shape}.",
            subject=file,
        )
    check_declared(map(str, names), file, "If it is a class, call it otherwise.")
    return tuple(str(name) for name in names)


def images_of(pack: Any, split: str, file: Path) -> Images:
    """Return the images of one split of an open pack.

    Args:
        pack: From ``opened``.
        split: ``"train"`` or ``"test"``.
        file: Where the pack is, for messages.
    """
    if f"x_{split}" not in pack.files and f"webp_{split}" in pack.files:
        return _decoded(array(pack, f"webp_{split}", file), array(pack, f"len_{split}", file), split, file)
    images = array(pack, f"x_{split}", file)
    return images[..., None] if images.ndim == 3 else images


def _decoded(data: NDArray[Any], lengths: NDArray[Any], split: str, file: Path) -> Images:
    """Decode WebP files that lie one after another; blocks of them in threads."""
    if data.dtype != np.uint8 or data.ndim != 1 or lengths.dtype.kind not in "iu" or lengths.ndim != 1:
        raise DataError(
            f"{file}: webp_{split} must be one row of uint8 and len_{split} one row of integers, got "
            f"{data.dtype} {data.shape} and {lengths.dtype} {lengths.shape}.",
            subject=file,
        )
    if not len(lengths) or int(lengths.min()) < 1 or int(lengths.sum(dtype=np.int64)) != len(data):
        raise DataError(
            f"{file}: the {len(lengths)} lengths in len_{split} must be positive and add up to the "
            f"{len(data)} bytes of webp_{split}; they add up to {int(lengths.sum(dtype=np.int64))}.",
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
            where = f"{file}: image {index} of webp_{split}"
            images[index] = _decode_one(content[starts[index] : ends[index]], first.shape, where)

    for _ in each(decode_block, range(0, len(lengths), _BLOCK)):
        pass
    return images


def _decode_one(data: bytes, shape: tuple[int, ...] | None, where: str) -> Images:
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(io.BytesIO(data), formats=["WEBP"]) as image:
            if max(image.size) > LARGEST_SIDE:
                raise DataError(
                    f"{where} has {image.size[0]} x {image.size[1]} pixels, more than {LARGEST_SIDE}."
                )
            if shape is not None and image.size != (shape[1], shape[0]):
                raise DataError(
                    f"{where} has {image.size[0]} x {image.size[1]} pixels (width x height), the first one "
                    f"{shape[1]} x {shape[0]}; all must be equal."
                )
            return cast(Images, np.asarray(image.convert("RGB")))
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError, EOFError) as error:
        raise DataError(f"{where} is no readable WebP image: {error}") from error

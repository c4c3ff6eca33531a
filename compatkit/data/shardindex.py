"""The index of a shard: place, size, digest and class of each image in it, made in one reading."""

from __future__ import annotations

import hashlib
import posixpath
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import IO, Any, cast

import attrs
import numpy as np
from numpy.typing import NDArray

from compatkit.data.arraycache import recalled, remember
from compatkit.data.classnames import lines_of
from compatkit.data.filesystem import Address
from compatkit.data.imagefiles import ENDINGS
from compatkit.data.shardsets import COMPRESSED
from compatkit.data.skipped import LeftOut
from compatkit.errors import DataError

CLASS = ".cls"
LONGEST_CLASS = 1024
"""Bytes of a class's name."""
BLOCK = 2**20
"""Bytes that are read at a time."""
FIELDS = ("offset", "size", "digest", "label", "name")


_PACKED = tuple(kind + more for kind in (CLASS, *ENDINGS) for more in COMPRESSED)
RULE = 2
"""Of what is refused; indexes made by an older one are made again."""


@attrs.define
class _Sample:
    image: tuple[int, int, bytes, str] | None = None
    label: str | None = None
    label_name: str | None = None


def index(place: Address, path: str, arrived: Callable[[int], Any]) -> NDArray[np.void]:
    """Return the images of a shard, in its order.

    Args:
        place: Where it is.
        path: Of the shard.
        arrived: Called with the bytes read so far.

    Returns:
        One record an image, with the fields in ``FIELDS``.

    Raises:
        DataError: It is damaged or compressed, or an image has no class.
        EnvironmentFailure: It cannot be read.
    """
    state = place.state(path)
    key = None if state is None else f"{state}-{RULE}"
    known = None if key is None else recalled(key).get("members")
    if known is None or known.dtype.names != FIELDS:
        known = _table(place, path, arrived)
        if key is not None:
            remember(key, members=known)
    return known


def _table(place: Address, path: str, arrived: Callable[[int], Any]) -> NDArray[np.void]:
    samples: dict[str, _Sample] = {}
    left_out = LeftOut()
    with place.opened(path) as file, _whole(path):
        for member, data in _members(file, path):
            folder, base = posixpath.split(posixpath.normpath(member.name))
            stem, _, ending = base.partition(".")
            ending = f".{ending.lower()}"
            if not stem:
                continue
            if ending.endswith(_PACKED):
                raise DataError(
                    f"{path}: {member.name} is compressed, so that it would be left out. Unpack it, and write the "
                    "shard again.",
                    subject=path,
                )
            if ending == CLASS:
                sample = samples.setdefault(f"{folder}/{stem}", _Sample())
                _check_first(sample.label_name, member, path, "classes")
                sample.label, sample.label_name = _label(member, data, path), member.name
            elif ending.endswith(ENDINGS):
                sample = samples.setdefault(f"{folder}/{stem}", _Sample())
                _check_first(sample.image and sample.image[3], member, path, "images")
                sample.image = member.offset_data, member.size, _digest(member, data, path), member.name
                arrived(member.offset_data + member.size)
            else:
                left_out.add_file(base, member.name)
    return _packed(list(samples.values()), path, left_out)


def _check_first(other: str | None, member: tarfile.TarInfo, path: str, what: str) -> None:
    """Refuse a second image or class of a sample.

    Raises:
        DataError: There is another.
    """
    if other is not None:
        raise DataError(
            f"{path}: a sample has two {what}, {other} and {member.name}; expected one. The name of a sample ends at "
            "its first dot.",
            subject=path,
        )


def _label(member: tarfile.TarInfo, data: Iterator[bytes], path: str) -> str:
    if member.size > LONGEST_CLASS:
        raise DataError(f"{path}: {member.name} holds {member.size:,} bytes and no class.", subject=path)
    return "\n".join(lines_of(b"".join(data), f"{path}:{member.name}"))


def _digest(member: tarfile.TarInfo, data: Iterator[bytes], path: str) -> bytes:
    hashed, count = hashlib.blake2b(digest_size=16), 0
    for piece in data:
        hashed.update(piece)
        count += len(piece)
    if count != member.size:
        raise DataError(f"{path} is cut short within {member.name}. Fetch it again.", subject=path)
    return hashed.digest()


def _packed(samples: list[_Sample], path: str, left_out: LeftOut) -> NDArray[np.void]:
    """Return samples as records with the fields in ``FIELDS``; ``left_out`` are members of other endings.

    Raises:
        DataError: There is none, or one has no class or no image.
    """
    lone = next((sample.label_name for sample in samples if sample.image is None), None)
    if lone is not None:
        raise DataError(
            f"{path}: {lone} is the class of a sample without an image ({', '.join(ENDINGS)}). "
            f"{left_out.advice('Add its image, or leave the sample out.')}",
            subject=path,
        )
    rows = [(*sample.image, sample.label or "") for sample in samples if sample.image is not None]
    bare = next((name for *_, name, label in rows if not label), None)
    if bare is not None or not rows:
        raise DataError(
            f"{path} holds no images ({', '.join(ENDINGS)}). {left_out.advice('Write some into it.')}"
            if bare is None
            else f"{path}: {bare} has no class. Expected {bare.rpartition('.')[0]}{CLASS}, with a number or name.",
            subject=path,
        )
    offsets, sizes, digests, names, labels = zip(*rows, strict=True)
    columns = (
        np.array(offsets, "<i8"),
        np.array(sizes, "<i8"),
        np.frombuffer(b"".join(digests), "V16"),
        np.array([label.encode() for label in labels]),
        np.array([name.encode("utf-8", "surrogateescape") for name in names]),
    )
    packed = np.zeros(
        len(rows), [(field, column.dtype) for field, column in zip(FIELDS, columns, strict=True)]
    )
    for field, column in zip(FIELDS, columns, strict=True):
        packed[field] = column
    return packed


def _members(file: IO[bytes], path: str) -> Iterator[tuple[tarfile.TarInfo, Iterator[bytes]]]:
    """Yield the files of an archive, each with its bytes in pieces.

    Raises:
        DataError: What is behind the last one is no end of an archive, or something is behind the end.
    """
    with tarfile.open(fileobj=file, mode="r:", encoding="utf-8", errors="surrogateescape") as archive:
        for member in archive:
            if member.isreg() and not member.issparse():
                content = cast("IO[bytes]", archive.extractfile(member))
                yield member, iter(partial(content.read, BLOCK), b"")
        _check_end(file, archive.offset, path)


def _check_end(file: IO[bytes], offset: int, path: str) -> None:
    """Refuse an archive that does not end in a block of zeros, or that goes on behind it.

    Raises:
        DataError: It is one.
    """
    file.seek(offset)
    end = file.read(tarfile.BLOCKSIZE)
    if end.strip(b"\0"):
        raise DataError(f"{path} is damaged at byte {offset:,}. Fetch it again.", subject=path)
    if len(end) < tarfile.BLOCKSIZE:
        raise DataError(
            f"{path} has no end: it stops behind a member, at byte {offset:,}, so that others may be missing. Fetch it "
            "again, or close the writer that made it.",
            subject=path,
        )
    while piece := file.read(BLOCK):
        if piece.strip(b"\0"):
            raise DataError(
                f"{path} goes on behind its end, at byte {offset:,}: archives were joined by their bytes. Keep them "
                "apart, or join them by tar --concatenate.",
                subject=path,
            )


@contextmanager
def _whole(path: str) -> Iterator[None]:
    """Name the archive in errors of what cannot be read as one."""
    try:
        yield
    except (tarfile.TarError, EOFError) as error:
        raise DataError(
            f"{path} is no plain .tar archive, or damaged: {error}. Unpack one that is compressed: places in it cannot "
            "be read alone.",
            subject=path,
        ) from error

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

from compatkit.data.addresses import Address
from compatkit.data.classlists import lines_of
from compatkit.data.files import ENDINGS
from compatkit.data.memory import recalled, remember
from compatkit.errors import DataError

CLASS = ".cls"
LONGEST_CLASS = 1024
"""Bytes of a class's name."""
BLOCK = 2**20
"""Bytes that are read at a time."""
FIELDS = ("offset", "size", "digest", "label", "name")


@attrs.define
class _Sample:
    image: tuple[int, int, bytes, str] | None = None
    label: str | None = None


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
    key = place.state(path)
    known = None if key is None else recalled(key)
    if known is None or known.dtype.names != FIELDS:
        known = _table(place, path, arrived)
        if key is not None:
            remember(key, known)
    return known


def _table(place: Address, path: str, arrived: Callable[[int], Any]) -> NDArray[np.void]:
    samples: dict[str, _Sample] = {}
    with place.opened(path) as file, _whole(path):
        for member, data in _members(file, path):
            folder, base = posixpath.split(member.name)
            stem, _, ending = base.partition(".")
            ending = f".{ending.lower()}"
            if not stem or (ending != CLASS and not ending.endswith(ENDINGS)):
                continue
            sample = samples.setdefault(f"{folder}/{stem}", _Sample())
            if ending == CLASS:
                if member.size > LONGEST_CLASS:
                    raise DataError(
                        f"{path}: {member.name} holds {member.size:,} bytes and no class.", subject=path
                    )
                sample.label = "\n".join(lines_of(b"".join(data), f"{path}:{member.name}"))
                continue
            if sample.image is not None:
                raise DataError(
                    f"{path}: sample {stem!r} has two images, {sample.image[3]} and {member.name}; expected one. "
                    "The name of a sample ends at its first dot.",
                    subject=path,
                )
            hashed, came = hashlib.blake2b(digest_size=16), 0
            for piece in data:
                hashed.update(piece)
                came += len(piece)
            if came != member.size:
                raise DataError(f"{path} is cut short within {member.name}. Fetch it again.", subject=path)
            sample.image = member.offset_data, member.size, hashed.digest(), member.name
            arrived(member.offset_data + member.size)
    rows = [(*one.image, one.label or "") for one in samples.values() if one.image is not None]
    bare = next((name for *_, name, label in rows if not label), None)
    if bare is not None or not rows:
        raise DataError(
            f"{path} holds no images ({', '.join(ENDINGS)})."
            if bare is None
            else f"{path}: {bare} has no class. Expected {bare.rpartition('.')[0]}{CLASS}, with a number or name.",
            subject=path,
        )
    labels, names = [row[4].encode() for row in rows], [row[3].encode() for row in rows]
    packed = [
        (offset, size, np.void(digest), label, name)
        for (offset, size, digest, *_), label, name in zip(rows, labels, names, strict=True)
    ]
    kinds = ("<i8", "<i8", "V16", *(f"S{max(map(len, column))}" for column in (labels, names)))
    return np.array(packed, dtype=list(zip(FIELDS, kinds, strict=True)))


def _members(file: IO[bytes], path: str) -> Iterator[tuple[tarfile.TarInfo, Iterator[bytes]]]:
    """Yield the files of an archive, each with its bytes in pieces.

    Raises:
        DataError: What is behind the last one is no end of an archive.
    """
    with tarfile.open(fileobj=file, mode="r:") as archive:
        for member in archive:
            if member.isreg() and not member.issparse():
                content = cast("IO[bytes]", archive.extractfile(member))
                yield member, iter(partial(content.read, BLOCK), b"")
        file.seek(archive.offset)
        if file.read(tarfile.BLOCKSIZE).strip(b"\0"):
            raise DataError(f"{path} is damaged at byte {archive.offset:,}. Fetch it again.", subject=path)


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

"""Index of a shard: offset, size, digest and class of each image, built in one pass and cached."""

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

from compatkit.data.arraycache import load, save
from compatkit.data.classnames import text_lines
from compatkit.data.filesystem import FileSystem
from compatkit.data.imagefiles import EXTENSIONS
from compatkit.data.shardsets import COMPRESSED
from compatkit.data.skipped import SkippedFiles
from compatkit.errors import DataError

CLASS = ".cls"
MAX_CLASS_BYTES = 1024
"""Bytes of the longest class name."""
BLOCK = 2**20
"""Bytes that are read at a time."""
FIELDS = ("offset", "size", "digest", "label", "name")
_COMPRESSED = tuple(extension + suffix for extension in (CLASS, *EXTENSIONS) for suffix in COMPRESSED)
RULE = 2
"""Version of the rule of what is refused; a part of the cache key."""


@attrs.define
class _Sample:
    image: tuple[int, int, bytes, str] | None = None
    label: str | None = None
    label_name: str | None = None


def shard_index(files: FileSystem, path: str, report: Callable[[int], Any]) -> NDArray[np.void]:
    """Return the index of a shard, one record per image in the order of the shard, with the fields in ``FIELDS``.

    Args:
        files: File system of the shard.
        path: Path of the shard.
        report: Called with the number of bytes read so far.

    Raises:
        DataError: The shard is damaged or compressed, or an image has no class.
        EnvironmentFailure: It cannot be read.
    """
    state = files.state(path)
    key = None if state is None else f"{state}-{RULE}"
    index = None if key is None else load(key).get("members")
    if index is None or index.dtype.names != FIELDS:
        index = _build(files, path, report)
        if key is not None:
            save(key, members=index)
    return index


def _build(files: FileSystem, path: str, report: Callable[[int], Any]) -> NDArray[np.void]:
    samples: dict[str, _Sample] = {}
    skipped = SkippedFiles()
    with files.open(path) as file, _named_errors(path):
        for member, data in _members(file, path):
            folder, base = posixpath.split(posixpath.normpath(member.name))
            stem, _, extension = base.partition(".")
            extension = f".{extension.lower()}"
            if not stem:
                continue
            if extension.endswith(_COMPRESSED):
                raise DataError(
                    f"{path}: {member.name} is compressed. Write the shard with uncompressed members.",
                    subject=path,
                )
            if extension == CLASS:
                sample = samples.setdefault(f"{folder}/{stem}", _Sample())
                _check_single(sample.label_name, member, path, "classes")
                sample.label, sample.label_name = _read_label(member, data, path), member.name
            elif extension.endswith(EXTENSIONS):
                sample = samples.setdefault(f"{folder}/{stem}", _Sample())
                _check_single(sample.image and sample.image[3], member, path, "images")
                sample.image = member.offset_data, member.size, _digest(member, data, path), member.name
                report(member.offset_data + member.size)
            else:
                skipped.add_file(base, member.name)
    return _records(list(samples.values()), path, skipped)


def _check_single(other: str | None, member: tarfile.TarInfo, path: str, kind: str) -> None:
    """Refuse a second image or class of a sample."""
    if other is not None:
        raise DataError(
            f"{path}: {other} and {member.name} are two {kind} of one sample; expected one. The name of a sample ends "
            "at its first dot.",
            subject=path,
        )


def _read_label(member: tarfile.TarInfo, data: Iterator[bytes], path: str) -> str:
    if member.size > MAX_CLASS_BYTES:
        raise DataError(
            f"{path}: {member.name} has {member.size:,} bytes; a class has at most {MAX_CLASS_BYTES:,}.",
            subject=path,
        )
    return "\n".join(text_lines(b"".join(data), f"{path}:{member.name}"))


def _digest(member: tarfile.TarInfo, data: Iterator[bytes], path: str) -> bytes:
    hashed, size = hashlib.blake2b(digest_size=16), 0
    for block in data:
        hashed.update(block)
        size += len(block)
    if size != member.size:
        raise DataError(f"{path} is truncated within {member.name}. Download it again.", subject=path)
    return hashed.digest()


def _records(samples: list[_Sample], path: str, skipped: SkippedFiles) -> NDArray[np.void]:
    """Return samples as records with the fields in ``FIELDS``."""
    lone = next((sample.label_name for sample in samples if sample.image is None), None)
    if lone is not None:
        raise DataError(
            f"{path}: {lone} is the class of a sample without an image ({', '.join(EXTENSIONS)}). "
            f"{skipped.advice('Add its image, or remove the sample.')}",
            subject=path,
        )
    rows = [(*sample.image, sample.label or "") for sample in samples if sample.image is not None]
    if not rows:
        raise DataError(
            f"{path} holds no images ({', '.join(EXTENSIONS)}). {skipped.advice('Write some into it.')}",
            subject=path,
        )
    unlabeled = next((name for *_, name, label in rows if not label), None)
    if unlabeled is not None:
        expected = f"{unlabeled.rpartition('.')[0]}{CLASS}"
        raise DataError(
            f"{path}: {unlabeled} has no class. Expected {expected}, with a number or name.", subject=path
        )
    offsets, sizes, digests, names, labels = zip(*rows, strict=True)
    columns = {
        "offset": np.array(offsets, "<i8"),
        "size": np.array(sizes, "<i8"),
        "digest": np.frombuffer(b"".join(digests), "V16"),
        "label": np.array([label.encode() for label in labels]),
        "name": np.array([name.encode("utf-8", "surrogateescape") for name in names]),
    }
    records = np.zeros(len(rows), [(field, columns[field].dtype) for field in FIELDS])
    for field in FIELDS:
        records[field] = columns[field]
    return records


def _members(file: IO[bytes], path: str) -> Iterator[tuple[tarfile.TarInfo, Iterator[bytes]]]:
    """Yield the files of an archive, each with its bytes in blocks.

    Raises:
        DataError: The archive does not end after the last member, or continues after its end.
    """
    with tarfile.open(fileobj=file, mode="r:", encoding="utf-8", errors="surrogateescape") as archive:
        for member in archive:
            if member.isreg() and not member.issparse():
                content = cast("IO[bytes]", archive.extractfile(member))
                yield member, iter(partial(content.read, BLOCK), b"")
        _check_end(file, archive.offset, path)


def _check_end(file: IO[bytes], offset: int, path: str) -> None:
    """Refuse an archive that does not end in a block of zeros, or that continues after it."""
    file.seek(offset)
    end = file.read(tarfile.BLOCKSIZE)
    if end.strip(b"\0"):
        raise DataError(f"{path} is damaged at byte {offset:,}. Download it again.", subject=path)
    if len(end) < tarfile.BLOCKSIZE:
        raise DataError(
            f"{path} has no end marker at byte {offset:,}, so members may be missing. Download it again, or close the "
            "writer that made it.",
            subject=path,
        )
    while block := file.read(BLOCK):
        if block.strip(b"\0"):
            raise DataError(
                f"{path} continues after its end at byte {offset:,}: archives were concatenated. Use separate shards, "
                "or tar --concatenate.",
                subject=path,
            )


@contextmanager
def _named_errors(path: str) -> Iterator[None]:
    """Name the archive in errors of ``tarfile``."""
    try:
        yield
    except (tarfile.TarError, EOFError) as error:
        raise DataError(
            f"{path} is not an uncompressed .tar archive, or damaged: {error}. Unpack it if it is compressed.",
            subject=path,
        ) from error

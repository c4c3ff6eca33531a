"""Hand images to other processes: a file in the registry's ``tmp``, which a worker maps into memory.

The file holds decoded images, or the bytes of image files as they are, then a JSON text, then its length. Its name is
random, so a process that finds it sees this very registry, not one of the same path on another machine.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
from numpy.typing import NDArray

from compatkit.data.lazy import STEP_NAMES, LazyImages
from compatkit.data.split import Split
from compatkit.errors import FormatError
from compatkit.registry import disk
from compatkit.registry.os_errors import environment

if TYPE_CHECKING:
    from compatkit.foundation.bars import Progress

LENGTH = 8
"""Bytes of the length at the end of a file."""
STEPS = {name: kind for kind, name in STEP_NAMES.items()}


@contextmanager
def handed_over(root: Path, splits: Iterable[Split]) -> Iterator[dict[str, str]]:
    """Write each distinct split to the registry's ``tmp``; remove the files at the end.

    Args:
        root: Root of the registry.
        splits: Images; equal objects are written once.

    Yields:
        Path of the file by digest of the split.

    Raises:
        EnvironmentFailure: The registry cannot be written.
    """
    files: dict[str, str] = {}
    try:
        for split in splits:
            if split.digest in files:
                continue
            draft = disk.temporary(root / "tmp")
            with environment("write", draft):
                disk.make_folder(draft.parent, root)
                disk.write(draft, _pieces(split), root=root)
            files[split.digest] = str(draft)
        yield files
    finally:
        for file in files.values():
            disk.discard(Path(file))


def received(file: Path) -> Split:
    """Return the split of a file, memory-mapped.

    Raises:
        FormatError: The file is not whole, or its images are not those that were written.
        EnvironmentFailure: It cannot be read.
    """
    with environment("read", file), file.open("rb") as opened:
        data = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY)  # torch takes writable arrays
    try:
        length = int.from_bytes(data[-LENGTH:], "little")
        end = len(data) - LENGTH - length
        about: dict[str, Any] = json.loads(data[end : len(data) - LENGTH])
        labels = _array(data, end - about["labels"], "<i8", (about["labels"] // 8,))
        images = _decoded(data, about) if "shape" in about else _files(data, about)
        split = Split(
            images, labels, tuple(about["classes"]), about["name"], about["sample"], about["damaged"]
        )
    except (ValueError, KeyError, IndexError) as error:
        raise FormatError(f"{file} is not whole: {error}", subject=file) from error
    if split.digest != about["digest"]:
        raise FormatError(f"{file} holds other images than were written to it.", subject=file)
    return split


def _pieces(split: Split) -> Iterator[bytes | memoryview]:
    labels = np.ascontiguousarray(split.labels, dtype="<i8")
    about: dict[str, Any] = {
        "name": split.name,
        "classes": list(split.classes),
        "sample": split.sample,
        "damaged": split.damaged,
        "digest": split.digest,
        "labels": labels.nbytes,
    }
    images = split.images
    if isinstance(images, LazyImages):
        reader: Any = images.reader
        digests = images.digests() if images.verified else reader.states(images.positions)
        sizes = list[int]()
        for position in images.positions:
            content = reader.read(int(position))
            sizes.append(len(content))
            yield content
        about |= {
            "sizes": sizes,
            "names": [reader.name(int(position)) for position in images.positions],
            "digests": digests.tobytes().hex(),
            "verified": images.verified,
            "steps": images.json_steps,
        }
    else:
        about["shape"] = list(images.shape)
        yield np.ascontiguousarray(images).data.cast("B")
    text = json.dumps(about).encode()
    yield labels.data.cast("B")
    yield text
    yield len(text).to_bytes(LENGTH, "little")


def _decoded(data: mmap.mmap, about: Mapping[str, Any]) -> NDArray[np.uint8]:
    return _array(data, 0, "u1", tuple(about["shape"]))


def _array(data: mmap.mmap, start: int, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
    count = int(np.prod(shape))
    return np.frombuffer(data, dtype, count, start).reshape(shape)


def _files(data: mmap.mmap, about: Mapping[str, Any]) -> LazyImages:
    ends = np.cumsum(about["sizes"], dtype=np.int64)
    digests = np.frombuffer(bytes.fromhex(about["digests"]), dtype="u1").reshape(len(ends), -1)
    reader = HandedFiles(data, ends, tuple(about["names"]), digests.view(f"V{digests.shape[1]}")[:, 0])
    steps = tuple(
        step if isinstance(step, str) else STEPS[step[0]](*map(_tuple, step[1:])) for step in about["steps"]
    )
    return LazyImages(reader, np.arange(len(ends)), steps, about["verified"])  # pyright: ignore[reportArgumentType]


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


@attrs.frozen(eq=False)
class HandedFiles:
    """Reader of image files in one memory-mapped file.

    Attributes:
        data: The file.
        ends: End of each image file in it, int64 ``(n,)``.
        names: Names of the images, for messages.
        hashes: Digests of the images, or the states of their files, ``(n,)``.
    """

    data: mmap.mmap
    ends: NDArray[np.int64]
    names: tuple[str, ...]
    hashes: NDArray[np.void]

    def __len__(self) -> int:
        return len(self.ends)

    def read(self, position: int) -> bytes:
        """Return the bytes of an image file."""
        start = int(self.ends[position - 1]) if position else 0
        return self.data[start : int(self.ends[position])]

    def name(self, position: int) -> str:
        """Return the name of an image."""
        return self.names[position]

    def digests(self, positions: NDArray[np.int64], progress: Progress | None = None) -> NDArray[np.void]:
        """Return the digests of images; ``progress`` is not called."""
        return self.hashes[positions]

    def states(self, positions: NDArray[np.int64]) -> NDArray[np.void]:
        """Return the states that the image files had."""
        return self.hashes[positions]

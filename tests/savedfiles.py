"""Checkpoints that ask for more than tensors, made byte by byte or by torch.save; nothing here is ever unpickled."""

from __future__ import annotations

import argparse
import io
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch


class Asking:
    """Pickles as a call of a function."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.function, self.arguments = function, arguments

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return self.function, self.arguments


def saved(value: Any, *, old: bool = False) -> bytes:
    """Return what torch.save writes."""
    out = io.BytesIO()
    torch.save(value, out, _use_new_zipfile_serialization=not old)
    return out.getvalue()


def archive(pickle: bytes, data: bytes = b"", *, packed: bool = False, **more: bytes) -> bytes:
    """Return a zip archive as torch.save lays it out, around any pickle."""
    out = io.BytesIO()
    way = zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED
    with zipfile.ZipFile(out, "w", way) as made:
        made.writestr("archive/data.pkl", pickle)
        made.writestr("archive/byteorder", b"little")
        made.writestr("archive/data/0", data)
        made.writestr("archive/version", b"3\n")
        for name, content in more.items():
            made.writestr(f"archive/{name}", content)
    return out.getvalue()


def tensor_pickle(numel: int, size: tuple[int, ...], stride: tuple[int, ...]) -> bytes:
    """Return the pickle of ``{"w": tensor}`` whose storage has ``numel`` floats, with any size and stride."""

    def text(value: str) -> bytes:
        raw = value.encode()
        return b"X" + struct.pack("<I", len(raw)) + raw

    def number(value: int) -> bytes:
        raw = value.to_bytes(9, "little", signed=True)
        return b"\x8a" + bytes([len(raw)]) + raw

    def numbers(values: tuple[int, ...]) -> bytes:
        return b"(" + b"".join(map(number, values)) + b"t"

    storage = (
        b"(" + text("storage") + b"ctorch\nFloatStorage\n" + text("0") + text("cpu") + number(numel) + b"tQ"
    )
    call = b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + number(0) + numbers(size) + numbers(stride)
    hooks = b"ccollections\nOrderedDict\n)R"
    return b"\x80\x02}" + text("w") + call + b"\x89" + hooks + b"tRs."


def overlapping(count: int) -> bytes:
    """Return an archive whose entries all claim the same megabyte."""
    content = bytes(2**20)
    out = io.BytesIO(archive(b"\x80\x02}.", content))
    with zipfile.ZipFile(out, "a") as made:
        first = made.getinfo("archive/data/0")
        for index in range(1, count):
            copy = zipfile.ZipInfo(f"archive/data/{index}")
            copy.header_offset, copy.file_size, copy.compress_size = first.header_offset, 2**20, 2**20
            copy.CRC, copy.compress_type, copy.create_system = first.CRC, 0, 3
            made.filelist.append(copy)
        made._didModify = True  # type: ignore[attr-defined]
    return out.getvalue()


def touching(path: Path) -> Callable[..., bytes]:
    """Return a maker of files that would make ``path`` if they were run."""
    import os

    def make(old: bool = False) -> bytes:
        return saved({"w": torch.zeros(2), "x": Asking(os.system, f"touch {path}")}, old=old)

    return make


NAMESPACE = argparse.Namespace(lr=0.1, model="resnet18")

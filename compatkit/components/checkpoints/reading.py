"""Read the tensors and the provenance of a checkpoint in any known format.

Files of ``torch.save`` are unpickled in a subprocess (``unpickle_subprocess.py``) that reads only tensors, with limits
of time and memory. Its output is treated as untrusted.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import attrs

from compatkit.components.checkpoints.unwrapping import is_tensor, unwrapped
from compatkit.errors import (
    CompatkitError,
    EnvironmentFailure,
    FormatError,
    IntegrityError,
    UnsafeCheckpoint,
    UsageError,
)
from compatkit.foundation.addresses import local
from compatkit.foundation.arguments import checks_arguments
from compatkit.foundation.codec import decode
from compatkit.registry.os_errors import environment
from compatkit.registry.weights.header import foreign_format, open_regular, read_whole
from compatkit.registry.weights.tensorfile import deserialize, pieces

if TYPE_CHECKING:
    from torch import Tensor

Format = Literal["safetensors", "zip", "legacy", "program", "tensors"]
"""``zip``: ``torch.save`` since torch 1.6; ``legacy``: the pickle before; ``program``: ``torch.export.save``;
``tensors``: a state dict in memory."""
FORMAT_NAMES: dict[Format, str] = {
    "safetensors": "safetensors",
    "zip": "torch.save, zip",
    "legacy": "torch.save before torch 1.6, pickle",
    "program": "torch.export",
    "tensors": "state dict in memory",
}
MAGIC = bytes.fromhex("8a0a6cfc9c46f9206aa850192e")
"""Magic number at the start of legacy ``torch.save`` files, after two bytes of pickle."""
PROGRAM = re.compile(
    rb"PK\x03\x04.{26}[^/\x00]+/(data/weights/|data/constants/|models/|archive_format)", re.DOTALL
)
"""Start of an archive of ``torch.export``: its first entry."""
TAR = slice(257, 262)
"""Position of the magic string of a tar archive."""
HEAD = 512
"""Bytes read to detect the format."""
SUBPROCESS = Path(__file__).with_name("unpickle_subprocess.py")
MEMORY, MEMORY_TIMES = 2**29, 4
"""Memory limit: a constant in bytes, plus a multiple of the file size."""
OUTPUT, OUTPUT_TIMES = 2**24, 3
"""Output limit, likewise; tied weights are stored once in the checkpoint but written once per name."""
SECONDS, SECONDS_PER_GIB = 60, 60
"""Limit of CPU time."""
WALL_TIMES = 4
"""Wall-clock limit as a multiple of the CPU time limit, for a busy machine."""
MAX_REPORT = 2**20
"""Size limit of a report, in bytes."""
ENVIRONMENT = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "SYSTEMROOT", "TMPDIR")
"""Environment variables passed to the subprocess: no keys, tokens or settings."""
REFUSALS: tuple[type[CompatkitError], ...] = (UnsafeCheckpoint, UsageError, FormatError)
REMEDY = (
    "It used more time or memory than a file of this size needs, or crashed. If you trust the file, save its weights "
    "as safetensors."
)


@attrs.frozen(eq=False)
class Checkpoint:
    """Weights of a file.

    Attributes:
        name: File name without its directory.
        digest: ``file:sha256:...`` of the bytes.
        bytes: Size in bytes.
        format: Format of the file.
        tensors: Tensors by name, on the CPU.
        notes: Notes on entries used and left out, one sentence each.
    """

    name: str
    digest: str
    bytes: int
    format: Format
    tensors: dict[str, Tensor]
    notes: tuple[str, ...] = ()

    @property
    def provenance(self) -> dict[str, Any]:
        """Provenance of the weights as JSON values."""
        return {"file": self.name, "digest": self.digest, "bytes": self.bytes, "format": self.format}

    def __str__(self) -> str:
        return f"{self.name} ({FORMAT_NAMES[self.format]})"


@checks_arguments
def read_checkpoint(path: str | os.PathLike[str], *, key: str | None = None) -> Checkpoint:
    """Read a safetensors file, or a file of torch.save in a subprocess.

    Args:
        path: Path of the file; links are followed, pipes and devices are not opened.
        key: Entry with the state dict, if there are several.

    Raises:
        FormatError: The file has another format, is truncated or damaged, or is a directory, pipe or device.
        UnsafeCheckpoint: It contains more than tensors, or needs more time, memory or disk than its size explains.
        UsageError: It contains no state dict, or none under this key.
        IntegrityError: It changed while it was read.
        EnvironmentFailure: The file is missing or unreadable, or the disk is full.
    """
    file_path = Path(local(path, "a file of weights"))
    name = file_path.name.encode("utf-8", "replace").decode()
    try:
        with environment("read", file_path), open_regular(file_path) as (file, state):
            form = format_of(file.read(HEAD) or b"", state.st_size)
            if form != "safetensors":
                file.seek(0)
                digest = f"file:sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"
                tensors, notes = unpickled(file.fileno(), state.st_size, form, str(file_path), key=key)
                return Checkpoint(name, digest, state.st_size, form, tensors, notes)
            file.seek(0)
            data = file.read()
        digest = f"file:sha256:{hashlib.sha256(data).hexdigest()}"
        content = unwrapped(deserialize(data), is_tensor, key=key)
    except (FormatError, UsageError) as error:
        if str(file_path) not in str(error):
            error.add_note(f"The file is {file_path}.")
            error.subject = file_path
        raise
    return Checkpoint(name, digest, state.st_size, form, dict(content.tensors), content.notes)


def of_tensors(value: Mapping[str, Any], *, key: str | None = None) -> Checkpoint:
    """Return a state dict as a checkpoint; the digest is that of a safetensors file with these tensors.

    Args:
        value: A state dict, or nested mappings with one.
        key: As for ``read_checkpoint``.

    Raises:
        UsageError: It contains no state dict, or none under this key.
    """
    content = unwrapped(value, _is_storable, key=key)
    tensors = {name: tensor.detach().cpu() for name, tensor in content.tensors.items()}
    sha256, size = hashlib.sha256(), 0
    for piece in pieces(tensors):
        sha256.update(piece)
        size += len(piece)
    digest = f"file:sha256:{sha256.hexdigest()}"
    return Checkpoint("state_dict", digest, size, "tensors", tensors, content.notes)


def renamed(checkpoint: Checkpoint, prefixes: Mapping[str, str], owner: str) -> Checkpoint:
    """Return a checkpoint with other prefixes of the tensor names.

    Args:
        checkpoint: The checkpoint.
        prefixes: New prefixes by old ones, such as ``{"module.": ""}``; of several matches the longest is used.
        owner: Name for messages.

    Raises:
        UsageError: No name has this prefix, or two tensors would get the same name.
    """
    names: dict[str, str] = {}
    used: set[str] = set()
    for name in checkpoint.tensors:
        old = max((prefix for prefix in prefixes if name.startswith(prefix)), key=len, default=None)
        if old is not None:
            used.add(old)
        names[name] = name if old is None else prefixes[old] + name[len(old) :]
    if unused := sorted(prefixes.keys() - used):
        raise UsageError(
            f"{owner}: no tensor name starts with {unused[0]!r}, which rename replaces; names are "
            f"{', '.join(list(names)[:3])}, ...",
            subject=unused[0],
        )
    if len(set(names.values())) < len(names):
        duplicate = next(new for new, count in Counter(names.values()).items() if count > 1)
        raise UsageError(f"{owner}: rename gives two tensors the name {duplicate!r}.", subject=duplicate)
    tensors = {names[name]: tensor for name, tensor in checkpoint.tensors.items()}
    notes = tuple(f"renamed {old!r} to {new!r}" for old, new in prefixes.items())
    return attrs.evolve(checkpoint, tensors=tensors, notes=(*checkpoint.notes, *notes))


def _is_storable(value: Any) -> bool:
    """Return whether a value is a tensor that a file can contain: dense, with data, and not quantized."""
    import torch

    dense = is_tensor(value) and value.layout is torch.strided
    return dense and not value.is_meta and not value.is_quantized


def format_of(head: bytes, size: int) -> Format:
    """Return the format of a file.

    Args:
        head: First bytes of the file, up to ``HEAD``.
        size: Size of the file in bytes.

    Raises:
        FormatError: The format is not supported; the message names it.
    """
    if size == 0:
        raise FormatError("the file is empty; copy it again.")
    if PROGRAM.match(head):
        return "program"
    if head.startswith(b"PK\x03\x04"):
        return "zip"
    if head.startswith(b"PK\x05\x06"):
        raise FormatError("the zip archive is empty; save the weights again.")
    if head[2 : 2 + len(MAGIC)] == MAGIC and head[:1] == b"\x80":
        return "legacy"
    if head[TAR] == b"ustar":
        raise FormatError(
            "it is a tar archive: unpack it. If torch before 0.1.10 wrote it, load it with a program that you trust "
            "and save the state dict as safetensors."
        )
    if len(head) >= 2 and head[0] == 0x80 and 2 <= head[1] <= 5 and head[8:9] != b"{":
        raise FormatError(
            "it is a pickle that torch.save did not write, and unpickling can run code. Load it with a program that "
            "you trust and save the weights as safetensors."
        )
    if kind := foreign_format(head):
        raise FormatError(f"expected weights as safetensors or from torch.save, got {kind}")
    return "safetensors"


@attrs.frozen
class Limits:
    """Limits of the subprocess, in bytes and seconds."""

    memory: int
    output: int
    seconds: int

    @classmethod
    def of(cls, size: int) -> Limits:
        """Return the limits for a file of ``size`` bytes."""
        seconds = SECONDS + SECONDS_PER_GIB * (size >> 30)
        return cls(MEMORY + MEMORY_TIMES * size, OUTPUT + OUTPUT_TIMES * size, seconds)


@attrs.frozen
class _Report:
    """Report of the subprocess; ``code`` is an error code, or empty."""

    notes: tuple[str, ...]
    code: str = ""
    message: str = ""
    requested: tuple[str, ...] = ()


def unpickled(
    descriptor: int,
    size: int,
    form: Format,
    owner: str,
    *,
    key: str | None = None,
    limits: Limits | None = None,
) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Return the tensors of a file written by torch.save, and notes on entries used and left out.

    Args:
        descriptor: Descriptor of the file, open for reading.
        size: Size of the file in bytes.
        form: ``"zip"``, ``"legacy"`` or ``"program"``.
        owner: Name for messages.
        key: See ``unwrapping.unwrapped``.
        limits: Limits of the subprocess; None for those of this size.

    Returns:
        Tensors on the CPU by name, and the notes.

    Raises:
        UnsafeCheckpoint: It contains more than tensors, or needs more time, memory or disk than its size explains.
        FormatError: It is truncated, damaged, or TorchScript.
        UsageError: It contains no state dict, or none under this key.
        EnvironmentFailure: No process can be started, or the disk for temporary files is full.
    """
    allowed = Limits.of(size) if limits is None else limits
    with tempfile.TemporaryDirectory(prefix="compatkit-") as folder:
        settings = {"format": form, "bytes": size, "key": key, **attrs.asdict(allowed)}
        printed = _run(descriptor, Path(folder), settings, owner, allowed.seconds * WALL_TIMES)
        report = _report(Path(folder) / "report.json", printed, owner)
        if report.code:
            kind = next((kind for kind in REFUSALS if kind.code == report.code), FormatError)
            raise kind(f"{owner}: {report.message[:2000]}", subject=report.requested or owner)
        try:
            return deserialize(read_whole(Path(folder) / "weights.safetensors")), report.notes
        except IntegrityError as error:
            raise FormatError(f"{owner} could not be converted: {error}", subject=owner) from error


def _run(descriptor: int, folder: Path, settings: Mapping[str, Any], owner: str, seconds: float) -> str:
    """Run the subprocess and return its output.

    Raises:
        UnsafeCheckpoint: A limit stopped it.
    """
    root = str(Path(__file__).parents[3])
    command = [sys.executable, "-I", str(SUBPROCESS), root, str(folder), json.dumps(settings)]
    variables = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ} | {"HOME": str(folder)}
    os.lseek(descriptor, 0, os.SEEK_SET)
    stopped = f"{owner}: the subprocess reading it was stopped"
    try:
        with environment("start a process in", folder):
            process = subprocess.run(
                command,
                stdin=descriptor,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env=variables,
                timeout=seconds,
            )
    except subprocess.TimeoutExpired:
        raise UnsafeCheckpoint(f"{stopped} after {seconds:.0f} s. {REMEDY}", subject=owner) from None
    if process.returncode < 0:
        raise UnsafeCheckpoint(f"{stopped} by signal {-process.returncode}. {REMEDY}", subject=owner)
    return process.stdout.decode("utf-8", "replace")


def _report(path: Path, printed: str, owner: str) -> _Report:
    """Return the report of the subprocess.

    Raises:
        FormatError: There is no valid report.
        EnvironmentFailure: The disk is full.
    """
    try:
        data = path.read_bytes() if path.stat().st_size <= MAX_REPORT else b""
        return decode(_Report, data, what="report")
    except (OSError, FormatError) as error:
        if "No space left" in printed:
            raise EnvironmentFailure(
                f"{owner} could not be converted: the disk of {tempfile.gettempdir()} is full. Set TMPDIR to another "
                "directory."
            ) from error
        last = printed.strip().splitlines()[-1:] or ["it printed nothing"]
        raise FormatError(
            f"{owner} could not be read; the subprocess failed: {last[0][:300]}", subject=owner
        ) from error

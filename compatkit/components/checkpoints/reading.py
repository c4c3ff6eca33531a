"""Read a checkpoint of any known format: its tensors, and where they came from.

What ``torch.save`` wrote is unpickled as tensors only, by a process of its own (``child.py``) within limits of time and
memory; nothing that it says is believed before it is checked.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import attrs

from compatkit.components.checkpoints.unwrapping import unwrapped
from compatkit.contracts.arguments import named
from compatkit.contracts.codec import decode
from compatkit.errors import (
    CompatkitError,
    EnvironmentFailure,
    FormatError,
    IntegrityError,
    UnsafeCheckpoint,
    UsageError,
)
from compatkit.registry.os_errors import environment
from compatkit.registry.weights.header import foreign, opened, read_whole
from compatkit.registry.weights.tensorfile import deserialise

if TYPE_CHECKING:
    from torch import Tensor

Format = Literal["safetensors", "zip", "legacy"]
"""``zip``: what ``torch.save`` writes since torch 1.6; ``legacy``: the pickle that it wrote before."""
WORDS: dict[Format, str] = {
    "safetensors": "safetensors",
    "zip": "torch.save, zip",
    "legacy": "torch.save before torch 1.6, pickle",
}
MAGIC = bytes.fromhex("8a0a6cfc9c46f9206aa850192e")
"""The number with which the old ``torch.save`` begins, as a pickle writes it behind two bytes of its own."""
TAR = slice(257, 262)
"""Where a tar archive says what it is."""
HEAD = 512
"""First bytes that tell."""
CHILD = Path(__file__).with_name("child.py")
MEMORY, MEMORY_TIMES = 2**29, 4
"""Bytes that reading takes for any file, and how often the file's size beyond that."""
OUTPUT, OUTPUT_TIMES = 2**24, 3
"""The same for what is written: tied weights are saved once and written once a name."""
SECONDS, SECONDS_PER_GIB = 60, 60
"""Of processor time."""
WAIT = 4
"""How many times that a busy machine may take by the clock."""
REPORT = 2**20
"""Largest report, in bytes."""
KEPT = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "SYSTEMROOT", "TMPDIR")
"""Variables of the environment that the process is given; no keys, tokens or settings."""
PIECE = 2**22


@attrs.frozen(eq=False)
class Checkpoint:
    """Weights as a file holds them.

    Attributes:
        name: Of the file, without its folder.
        digest: ``file:sha256:...`` of its bytes.
        bytes: Their number.
        format: How it was saved.
        tensors: By name, on the CPU.
        told: What was taken out of wrappers and what was left out, one sentence each.
    """

    name: str
    digest: str
    bytes: int
    format: Format
    tensors: dict[str, Tensor]
    told: tuple[str, ...] = ()

    @property
    def facts(self) -> dict[str, Any]:
        """Where the weights came from, as JSON values."""
        return {"file": self.name, "digest": self.digest, "bytes": self.bytes, "format": self.format}

    def __str__(self) -> str:
        return f"{self.name} ({WORDS[self.format]})"


@named
def read_checkpoint(path: str | os.PathLike[str], *, key: str | None = None) -> Checkpoint:
    """Read a file of safetensors, or one that torch.save wrote; the latter in a process of its own.

    Args:
        path: Of any file; links are followed, pipes and devices are not opened.
        key: The entry that holds the state dict, where there are several.

    Raises:
        FormatError: Another format (named), truncated or damaged; a folder, pipe or device.
        UnsafeCheckpoint: It asks for more than tensors, or for more time, memory or disk than its size explains.
        UsageError: It holds no state dict, or none under this key.
        IntegrityError: It changed while it was read.
        EnvironmentFailure: No such file, no right to read, disk full.
    """
    place = Path(path)
    name = place.name.encode("utf-8", "replace").decode()
    try:
        with environment("read", place), opened(place) as (file, state):
            form = format_of(file.read(HEAD) or b"", state.st_size)
            if form != "safetensors":
                digest = _digest(file.fileno())
                tensors, told = unpickled(file.fileno(), state.st_size, form, str(place), key=key)
                return Checkpoint(name, digest, state.st_size, form, tensors, told)
            file.seek(0)
            data = file.read()
        digest = f"file:sha256:{hashlib.sha256(data).hexdigest()}"
        found = unwrapped(deserialise(data), _is_tensor, key=key)
    except (FormatError, UsageError) as error:
        if str(error).startswith(f"{place}"):
            raise
        raise type(error)(f"{place}: {error}", subject=place) from None
    return Checkpoint(name, digest, state.st_size, form, dict(found.tensors), found.told)


def _digest(descriptor: int) -> str:
    whole = hashlib.sha256()
    os.lseek(descriptor, 0, os.SEEK_SET)
    while piece := os.read(descriptor, PIECE):
        whole.update(piece)
    return f"file:sha256:{whole.hexdigest()}"


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "untyped_storage")


def format_of(head: bytes, size: int) -> Format:
    """Return the format of a file that begins with ``head`` and has ``size`` bytes.

    Raises:
        FormatError: None that weights are taken from; it is named.
    """
    if size == 0:
        raise FormatError("the file is empty; copy it again.")
    if head.startswith(b"PK\x03\x04"):
        return "zip"
    if head.startswith(b"PK\x05\x06"):
        raise FormatError("an empty zip archive; save the weights again.")
    if head[2 : 2 + len(MAGIC)] == MAGIC and head[:1] == b"\x80":
        return "legacy"
    if head[TAR] == b"ustar":
        raise FormatError(
            "a tar archive, the format of torch before 0.1.10, or one that somebody packed; unpack it, or load it with "
            "a program that you trust and save its state dict as safetensors."
        )
    if len(head) >= 2 and head[0] == 0x80 and 2 <= head[1] <= 5 and head[8:9] != b"{":
        raise FormatError(
            "a pickle that torch.save did not write; unpickling runs code, so that it is not opened. Load it with a "
            "program that you trust and save the weights as safetensors."
        )
    if kind := foreign(head):
        raise FormatError(f"expected weights as safetensors or from torch.save, got {kind}")
    return "safetensors"


@attrs.frozen
class Limits:
    """What the process may use; bytes and seconds."""

    memory: int
    output: int
    seconds: int

    @classmethod
    def of(cls, size: int) -> Limits:
        """Return the limits for a file of ``size`` bytes."""
        seconds = SECONDS + SECONDS_PER_GIB * (size >> 30)
        return cls(MEMORY + MEMORY_TIMES * size, OUTPUT + OUTPUT_TIMES * size, seconds)


@attrs.frozen
class _Fault:
    code: str
    message: str
    asked: tuple[str, ...]


@attrs.frozen
class _Report:
    told: tuple[str, ...]
    error: _Fault | None


def unpickled(
    descriptor: int,
    size: int,
    form: Format,
    whose: str,
    *,
    key: str | None = None,
    limits: Limits | None = None,
) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Return the tensors of a file that torch.save wrote, and what was taken and left out.

    Args:
        descriptor: Of the file, open for reading.
        size: Its bytes.
        form: ``"zip"`` or ``"legacy"``.
        whose: Named in messages.
        key: See ``unwrapping.unwrapped``.
        limits: None takes those for the size.

    Raises:
        UnsafeCheckpoint: It asks for more than tensors, or for more time, memory or disk than its size explains.
        FormatError: It is truncated, damaged, or TorchScript.
        UsageError: It holds no state dict, or none under this key.
        EnvironmentFailure: No process can be started, or the disk for temporary files is full.
    """
    allowed = Limits.of(size) if limits is None else limits
    with tempfile.TemporaryDirectory(prefix="compatkit-") as folder:
        settings = {"format": form, "bytes": size, "key": key, **attrs.asdict(allowed)}
        code, said = _run(descriptor, Path(folder), settings, allowed)
        report = _report(Path(folder) / "report.json", code, said, whose)
        if report.error is not None:
            raise _error(report.error, whose)
        try:
            return deserialise(read_whole(Path(folder) / "weights.safetensors")), report.told
        except IntegrityError as error:
            raise FormatError(f"{whose} could not be converted: {error}", subject=whose) from error


def _run(descriptor: int, folder: Path, settings: Mapping[str, Any], limits: Limits) -> tuple[int, str]:
    """Run the process to its end; return its exit code, and the end of what it printed."""
    root = str(Path(__file__).parents[3])
    words = [sys.executable, "-I", str(CHILD), root, str(folder), json.dumps(settings)]
    one = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL")}
    variables = {name: os.environ[name] for name in KEPT if name in os.environ} | one | {"HOME": str(folder)}
    os.lseek(descriptor, 0, os.SEEK_SET)
    with environment("start a process in", folder), open(folder / "printed", "wb+") as printed:
        process = subprocess.Popen(
            words,
            stdin=descriptor,
            stdout=printed,
            stderr=printed,
            cwd=folder,
            env=variables,
            start_new_session=True,
        )
        try:
            code = process.wait(timeout=limits.seconds * WAIT)
        except subprocess.TimeoutExpired:
            code = -signal.SIGXCPU if hasattr(signal, "SIGXCPU") else -1
        finally:
            _stop(process)
        printed.seek(max(0, printed.seek(0, os.SEEK_END) - 2000))
        return code, printed.read().decode("utf-8", "replace")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the process and whatever it started, if anything is left."""
    with suppress(OSError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, signal.SIGKILL)
        else:
            process.kill()
    process.wait()


def _report(path: Path, code: int, said: str, whose: str) -> _Report:
    """Return what the process reported.

    Raises:
        UnsafeCheckpoint: It was stopped by a limit.
        FormatError: It ended without a report that can be read.
    """
    if code < 0:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else str(-code)
        raise UnsafeCheckpoint(
            f"{whose}: the process that read it was stopped by {name}: it asked for more time or memory than its size "
            "explains, or broke its reader. It is refused; save the weights as safetensors where you trust it.",
            subject=whose,
        )
    try:
        data = path.read_bytes() if path.stat().st_size <= REPORT else b""
        return decode(_Report, data, what="report")
    except (OSError, FormatError) as error:
        last = said.strip().splitlines()[-1:] or ["it said nothing"]
        if "No space left" in said:
            raise EnvironmentFailure(
                f"{whose} could not be converted: the disk for temporary files is full ({tempfile.gettempdir()}; "
                "TMPDIR names another)."
            ) from error
        raise FormatError(
            f"{whose} could not be read; the process that tried ended with {code}: {last[0][:300]}",
            subject=whose,
        ) from error


def _error(fault: _Fault, whose: str) -> CompatkitError:
    text = f"{whose}: {fault.message[:2000].rstrip('.')}."
    if fault.code == "unsafe":
        whole = "a whole pickled network, not its state dict. " if _is_network(fault.asked) else ""
        return UnsafeCheckpoint(
            f"{text} That is {whole or 'code, and only tensors are read. '}Nothing of it was run. If you trust the "
            "file, load it with the program that wrote it and save model.state_dict(), best as safetensors.",
            subject=tuple(fault.asked),
        )
    if fault.code in ("bomb", "memory"):
        return UnsafeCheckpoint(f"{text} It is refused.", subject=whose)
    if fault.code == "content":
        return UsageError(text, subject=whose)
    return FormatError(f"{text} Copy or save it again.", subject=whose)


def _is_network(asked: tuple[str, ...]) -> bool:
    return any(one.startswith(("torchvision.models.", "timm.", "torch.nn.modules.")) for one in asked)

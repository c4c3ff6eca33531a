"""Read a checkpoint of any known format: its tensors, and where they came from."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from compatkit.components.checkpoints.formats import HEAD, WORDS, Format, format_of
from compatkit.components.checkpoints.process import unpickled
from compatkit.components.checkpoints.unwrapping import unwrapped
from compatkit.contracts.arguments import named
from compatkit.errors import FormatError, UsageError
from compatkit.registry.os_errors import environment
from compatkit.registry.weights.header import opened
from compatkit.registry.weights.tensorfile import deserialise

if TYPE_CHECKING:
    from torch import Tensor

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

"""What kind of file a checkpoint is, told by its first bytes; never by its name."""

from __future__ import annotations

from typing import Literal

from compatkit.errors import FormatError
from compatkit.registry.weights.header import foreign

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

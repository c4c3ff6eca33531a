"""What a file is when it is not what it should be: known first bytes, named for the error message."""

from __future__ import annotations

import re

_PICKLE = "unpickling runs code, so compatkit never does it; save the weights as safetensors"
_TEXT = re.compile(rb"[\t\n\r -~]{8}")


def foreign(head: bytes) -> str | None:
    """Name the format that ``head``, the first bytes of a file, belongs to; None if it is not known.

    Returns:
        What it is and what to do, as the end of a sentence.
    """
    if head.startswith(b"PK\x03\x04"):
        return f"a zip archive, which is what torch.save writes ({_PICKLE})."
    # PROTO 2..5; a safetensors header of 640 bytes begins with the same two, but its JSON starts at byte 8
    if len(head) >= 3 and head[0] == 0x80 and 2 <= head[1] <= 5 and head[8:9] != b"{":
        return f"a pickle ({_PICKLE})."
    if head.startswith(b"version https://git-lfs"):
        return "a git-lfs pointer, not the file itself; run `git lfs pull`."
    start = head.lstrip()[:64].lower()
    if start.startswith((b"<!doctype html", b"<html", b"<?xml")):
        return "a web page, probably an error or login page in place of the download; download it again."
    if head.startswith(b"\x89HDF\r\n"):
        return "an HDF5 file; convert its weights to safetensors."
    if head.startswith(b"GGUF"):
        return "a GGUF file; convert its weights to safetensors."
    if head.startswith(b"\x1f\x8b"):
        return "a gzip archive; unpack it first."
    if head.startswith(b"\x93NUMPY"):
        return "a NumPy array; convert its weights to safetensors."
    if len(head) >= 8 and not any(head):
        return (
            "zero bytes: it was never written, by a copy that broke off or a disk that failed; copy it again."
        )
    if _TEXT.fullmatch(head[:8]):  # as the length of a header, eight such bytes are above 10**17
        return (
            f"text that begins with {head[:40].decode('latin-1')!r}; is this a message in place of the file?"
        )
    return None

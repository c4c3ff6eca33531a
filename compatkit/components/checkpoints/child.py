"""Subprocess that unpickles only tensors and writes them as safetensors.

Run by path, never imported: ``python -I child.py ROOT FOLDER SETTINGS``, with the checkpoint on standard input. It is
the only place in this library that unpickles, with ``weights_only=True``. Its output is treated as untrusted.
"""

from __future__ import annotations

import json
import os
import re
import sys
import traceback
import zipfile
from typing import Any, BinaryIO

STORED = 0
"""Zip method "stored", the only one that torch.save uses."""
MOST_ENTRIES = 200_000
ARCHIVE = 2**30
"""Bytes of memory for reading an archive's directory."""
SLACK = 2**20
"""Tolerance in bytes by which the entries of an archive may exceed the file size."""
INERT = (
    "argparse.Namespace",
    "numpy._core.multiarray.scalar",
    "numpy.core.multiarray.scalar",
    "numpy._core.multiarray._reconstruct",
    "numpy.core.multiarray._reconstruct",
    "numpy.dtype",
    "numpy.ndarray",
    "numpy.float64",
    "numpy.float32",
    "numpy.int64",
    "pathlib.Path",
    "pathlib.PosixPath",
    "pathlib.WindowsPath",
    "_codecs.encode",
)
"""Classes that training programs often save with the weights; each is replaced by an inert object."""
DENIED = ("os.", "subprocess.", "socket.", "shutil.", "ctypes.", "pty.", "webbrowser.", "urllib.", "ftplib.")
"""Prefixes of audit events that end the process; reading tensors needs none of them."""
HARMLESS = ("os.listdir", "os.scandir", "os.putenv", "os.unsetenv")
GLOBAL = re.compile(r"GLOBAL ([\w.<>]{1,200})")


class Refused(Exception):
    """Reason for refusing a file: a code and a message."""

    def __init__(self, code: str, message: str, requested: list[str] | None = None) -> None:
        super().__init__(message)
        self.code, self.requested = code, requested or []


class Inert:
    """Inert placeholder for an object that is not a tensor."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Inert:
        """Accept and ignore any arguments."""
        return super().__new__(cls)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        pass


def main(root: str, folder: str, settings: dict[str, Any]) -> int:
    """Read, check and convert; write the result to ``report.json``.

    Args:
        root: Folder that holds the package, for imports.
        folder: Where to write; nothing else may be written.
        settings: Format, size, key and limits, from the parent process.
    """
    report: dict[str, Any] = {"notes": [], "error": None}
    # open both before opening files is denied
    out = open(os.path.join(folder, "report.json"), "w", encoding="utf-8")
    try:
        file = os.fdopen(0, "rb")
        _limit_time(settings["seconds"], settings["output"])
        if settings["format"] == "zip":
            _limit_memory(ARCHIVE, for_good=False)
            check_archive(file, settings["bytes"])
            _allow_memory()
        report["notes"] = list(_convert(root, folder, file, settings))
    except Refused as refusal:
        report["error"] = {"code": refusal.code, "message": str(refusal), "requested": refusal.requested}
    except MemoryError:
        report["error"] = {
            "code": "memory",
            "message": "it asks for more memory than its size explains",
            "requested": [],
        }
    with out:
        json.dump(report, out)
    return 0 if report["error"] is None else 1


def check_archive(file: BinaryIO, size: int) -> None:
    """Raise for an archive that torch.save did not write, before its contents are read.

    Args:
        file: At its beginning.
        size: In bytes.

    Raises:
        Refused: The archive is damaged, compressed, claims more bytes than it has, or contains code.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
    except (
        zipfile.BadZipFile,
        ValueError,
        EOFError,
        OSError,
        NotImplementedError,
        UnicodeDecodeError,
    ) as error:
        raise Refused("format", f"the zip archive is truncated or damaged: {error}") from error
    finally:
        file.seek(0)
    if len(entries) > MOST_ENTRIES:
        raise Refused("format", f"the zip archive lists {len(entries)} entries, more than {MOST_ENTRIES}")
    names = [entry.filename.partition("/")[2] or entry.filename for entry in entries]
    if "constants.pkl" in names or any(name.startswith("code/") for name in names):
        raise Refused(
            "script",
            "it is a TorchScript archive, which holds code: load it with torch.jit.load where you trust it, and save "
            "its state_dict()",
        )
    packed = [entry.filename for entry in entries if entry.compress_type != STORED]
    if packed:
        raise Refused(
            "bomb",
            f"the entry {packed[0]!r:.80} is compressed, which torch.save never does; unpacked it could be of any size",
        )
    claimed = sum(entry.file_size for entry in entries)
    if claimed > size + SLACK:
        raise Refused("bomb", f"the entries claim {claimed} bytes, the file has {size}")
    if "data.pkl" not in names:
        raise Refused("format", "it is a zip archive without data.pkl: torch.save did not write it")


def _convert(root: str, folder: str, file: BinaryIO, settings: dict[str, Any]) -> tuple[str, ...]:
    import torch

    torch.set_num_threads(1)
    sys.path.append(root)
    from compatkit.components.checkpoints.unwrapping import unwrapped
    from compatkit.errors import CompatkitError
    from compatkit.registry.weights.tensorfile import pieces

    out = open(os.path.join(folder, "weights.safetensors"), "wb")
    _limit_memory(settings["memory"])
    _deny()
    value = _load(torch, file)
    try:
        unwrapped_state = unwrapped(
            value, lambda tensor: isinstance(tensor, torch.Tensor), key=settings["key"]
        )
        state = {name: tensor.detach() for name, tensor in unwrapped_state.tensors.items()}
        _check_size(state, settings["output"])
        for piece in pieces(state):
            out.write(piece)
        out.close()
    except CompatkitError as error:
        raise Refused("content", str(error)) from error
    return unwrapped_state.notes


def _load(torch: Any, file: BinaryIO) -> Any:
    """Return the contents of the file: tensors, and plain values around them.

    Raises:
        Refused: The file requires anything else, or is damaged.
    """
    inert = [(type("Inert", (Inert,), {}), name) for name in INERT]
    try:
        with torch.serialization.safe_globals(inert):
            return torch.load(file, map_location="cpu", weights_only=True)
    except (MemoryError, Refused):
        raise
    except Exception as error:  # a hostile file can cause any error
        raise _refusal(error) from error


def _refusal(error: Exception) -> Refused:
    """Return the reason in our own words: torch's message advises loading the file unsafely."""
    text = str(error)
    requested = list(dict.fromkeys(GLOBAL.findall(text)))
    if requested:
        return Refused("unsafe", f"it asks for {', '.join(requested)}", requested)
    if "allocate memory" in text or "DefaultCPUAllocator" in text:
        return Refused("memory", "it asks for more memory than its size explains")
    if "weights_only" in text or "WeightsUnpickler" in text:
        inner = text.partition("WeightsUnpickler error:")[2] or text.rpartition("trusted source.")[2]
        short = " ".join(inner.split())[:200]
        return Refused("unsafe", f"it does more than building tensors: {short or type(error).__name__}")
    short = " ".join(text.split("This is an internal")[0].split())[:200]
    return Refused("format", f"it is truncated or damaged: {short or type(error).__name__}")


def _check_size(state: dict[str, Any], most: int) -> None:
    """Raise before writing tensors that are larger than the file explains.

    Raises:
        Refused: A tensor repeats its values excessively, or is not a plain tensor.
    """
    total = 0
    for name, tensor in state.items():
        if str(tensor.layout) != "torch.strided" or tensor.is_quantized or tensor.is_meta:
            raise Refused(
                "content", f"the tensor {name!r:.80} is sparse, quantized or without data; save it dense"
            )
        total += tensor.numel() * tensor.element_size()
    if total > most:
        raise Refused(
            "bomb", f"its tensors would take {total} bytes, more than {most} for a file of this size"
        )


def _limit_time(seconds: int, output: int) -> None:
    try:
        import resource
    except ImportError:  # no such limits on this system; the parent enforces a timeout
        return
    for limit, value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_FSIZE, output + SLACK),
    ):
        _set(resource, limit, value)


def _limit_memory(budget: int, *, for_good: bool = True) -> None:
    """Limit the address space to ``budget`` bytes beyond present use."""
    try:
        import resource

        with open("/proc/self/statm", encoding="ascii") as statm:
            used = int(statm.read().split()[0]) * resource.getpagesize()
    except (ImportError, OSError):  # not Linux: time and output are still limited
        return
    _set(resource, resource.RLIMIT_AS, used + budget, for_good=for_good)


def _allow_memory() -> None:
    """Lift a temporary limit: importing torch maps gigabytes that it never touches."""
    try:
        import resource
    except ImportError:
        return
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (hard, hard))


def _set(resource: Any, limit: int, value: int, *, for_good: bool = True) -> None:
    hard = resource.getrlimit(limit)[1]
    most = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(limit, (most, most if for_good else hard))


def _deny() -> None:
    """End the process on any later attempt to start, connect, delete or open for writing."""

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if (event == "open" and _writes(*args)) or (event.startswith(DENIED) and event not in HARMLESS):
            raise Refused("unsafe", f"it tried {event}", [event])

    sys.addaudithook(hook)


def _writes(path: Any, mode: Any, flags: Any) -> bool:
    """Return whether opening a file is for more than reading."""
    has_write_mode = isinstance(mode, str) and bool(set(mode) & set("wax+"))
    return has_write_mode or (isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)))


if __name__ == "__main__":
    try:
        code = main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))
    except BaseException:  # the parent reads the end of the output
        traceback.print_exc()
        code = 2
    sys.exit(code)

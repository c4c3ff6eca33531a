"""Subprocess that reads only tensors, of pickles and of programs, and writes them as safetensors.

Run by path: ``python -I unpickle_subprocess.py ROOT FOLDER SETTINGS``, with the checkpoint on standard input; compatkit
never imports it. Only this file unpickles, with ``weights_only=True``. The caller treats its output as untrusted.
"""

from __future__ import annotations

import json
import os
import re
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

if __name__ == "__main__":
    sys.path.append(sys.argv[1])  # directory of the package

from compatkit.components.checkpoints.program_archive import program_tensors
from compatkit.components.checkpoints.unwrapping import is_tensor, unwrapped
from compatkit.errors import CompatkitError, FormatError, UnsafeCheckpoint, UsageError
from compatkit.registry.weights.tensorfile import pieces

if TYPE_CHECKING:
    from torch import Tensor

MAX_ENTRIES = 200_000
"""Limit of files in a zip archive."""
SLACK = 2**20
"""Bytes by which the entries of an archive may exceed the file size."""
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
"""Classes that training programs often save next to the weights; their objects are replaced by placeholders."""
GLOBAL = re.compile(r"GLOBAL ([\w.<>]{1,200})")
"""Class in torch's message about a pickle that asks for more than tensors."""
NETWORKS = ("torchvision.models.", "timm.", "torch.nn.modules.")
"""Modules whose classes reveal a pickled network."""
MEMORY = "it needs more memory than its size explains. It is refused."


class Inert:
    """Placeholder for an object that is not a tensor."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        pass


def main(folder: Path, settings: dict[str, Any]) -> None:
    """Convert the checkpoint on standard input to ``weights.safetensors``, and write ``report.json``.

    Args:
        folder: Directory to write to.
        settings: Format, size, key and limits, from the parent process.
    """
    report: dict[str, Any] = {"notes": []}
    try:
        limit(settings["memory"], settings["seconds"], settings["output"])
        file = os.fdopen(0, "rb")
        if settings["format"] in ("zip", "program"):
            check_archive(file, settings["bytes"])
        read = program_tensors if settings["format"] == "program" else _load
        content = unwrapped(read(file), is_tensor, key=settings["key"])
        state = {name: tensor.detach() for name, tensor in content.tensors.items()}
        _check_size(state, settings["output"])
        with open(folder / "weights.safetensors", "wb") as out:
            out.writelines(pieces(state))
        report["notes"] = content.notes
    except CompatkitError as error:
        report |= {"code": error.code, "message": str(error), "requested": error.subject or ()}
    except MemoryError:
        report |= {"code": UnsafeCheckpoint.code, "message": MEMORY}
    (folder / "report.json").write_text(json.dumps(report, default=str), encoding="utf-8")


def limit(memory: int, seconds: int, output: int) -> None:
    """Limit further memory, CPU time and file size of this process, where the system can.

    Args:
        memory: Limit of memory in addition to that in use, in bytes.
        seconds: Limit of CPU time.
        output: Limit of the size of a file, in bytes.
    """
    import torch

    torch.set_num_threads(1)
    try:
        import resource

        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except (ImportError, OSError):  # not Linux; the parent enforces a timeout
        return
    limits = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_CPU: seconds,
        resource.RLIMIT_FSIZE: output + SLACK,
        resource.RLIMIT_AS: used + memory,
    }
    for resource_limit, value in limits.items():
        hard = resource.getrlimit(resource_limit)[1]
        allowed = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(resource_limit, (allowed, allowed))


def check_archive(file: BinaryIO, size: int) -> None:
    """Raise for an archive that torch.save did not write, before reading its contents.

    Args:
        file: The archive, at its start.
        size: Size of the file in bytes.

    Raises:
        FormatError: The archive is damaged, or contains code.
        UnsafeCheckpoint: It is compressed, or claims more bytes than it has.
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
        raise FormatError(
            f"the zip archive is truncated or damaged: {error}. Copy or save it again."
        ) from error
    finally:
        file.seek(0)
    if len(entries) > MAX_ENTRIES:
        raise FormatError(f"the zip archive lists {len(entries)} entries, more than {MAX_ENTRIES}.")
    names = [entry.filename.partition("/")[2] or entry.filename for entry in entries]
    if "constants.pkl" in names or any(name.startswith("code/") for name in names):
        raise FormatError(
            "it is a TorchScript archive, which contains code. If you trust it, load it with torch.jit.load and save "
            "its state_dict()."
        )
    packed = [entry.filename for entry in entries if entry.compress_type != zipfile.ZIP_STORED]
    if packed:
        raise UnsafeCheckpoint(
            f"the entry {packed[0]!r:.80} is compressed, which torch.save never does; its size is unknown."
        )
    claimed = sum(entry.file_size for entry in entries)
    if claimed > size + SLACK:
        raise UnsafeCheckpoint(f"the entries claim {claimed} bytes, the file has {size}. It is refused.")


def _load(file: BinaryIO) -> Any:
    """Return the contents of the file: tensors and plain values.

    Raises:
        UnsafeCheckpoint: The file contains anything else.
        FormatError: It is damaged.
    """
    import torch

    inert: list[Any] = [(type("Inert", (Inert,), {}), name) for name in INERT]
    try:
        with torch.serialization.safe_globals(inert):
            return torch.load(file, map_location="cpu", weights_only=True)
    except MemoryError:
        raise
    except Exception as error:  # a hostile file can cause any error
        raise _refusal(error) from error


def _refusal(error: Exception) -> CompatkitError:
    """Return an error without torch's message, which advises to load the file unsafely."""
    text = str(error)
    requested = list(dict.fromkeys(GLOBAL.findall(text)))
    if "allocate memory" in text or "DefaultCPUAllocator" in text:
        return UnsafeCheckpoint(MEMORY)
    if not requested and "weights_only" not in text and "WeightsUnpickler" not in text:
        short = " ".join(text.split("This is an internal")[0].split())[:200]
        return FormatError(
            f"it is truncated or damaged: {short or type(error).__name__}. Copy or save it again."
        )
    inner = text.partition("WeightsUnpickler error:")[2] or text.rpartition("trusted source.")[2]
    content = (
        f"asks for {', '.join(requested)}" if requested else f"does more than build tensors: {inner:.200}"
    )
    meaning = "code, and only tensors are read."
    if any(name.startswith(NETWORKS) for name in requested):
        meaning = "a pickled network, not its state dict."
    return UnsafeCheckpoint(
        f"it {' '.join(content.split())}. That is {meaning} No code was run. If you trust the file, load it with the "
        "program that wrote it and save model.state_dict(), preferably as safetensors.",
        subject=requested,
    )


def _check_size(state: dict[str, Tensor], max_bytes: int) -> None:
    """Raise for tensors that are larger than the file size explains.

    Raises:
        UnsafeCheckpoint: Expanded tensors exceed the limit.
        UsageError: A tensor is sparse, quantized or without data.
    """
    for name, tensor in state.items():
        if str(tensor.layout) != "torch.strided" or tensor.is_quantized or tensor.is_meta:
            raise UsageError(f"the tensor {name!r:.80} is sparse, quantized or without data; save it dense.")
    total = sum(tensor.nbytes for tensor in state.values())
    if total > max_bytes:
        raise UnsafeCheckpoint(
            f"its tensors need {total} bytes, over the limit of {max_bytes} for a file of this size. It is refused."
        )


if __name__ == "__main__":
    main(Path(sys.argv[2]), json.loads(sys.argv[3]))

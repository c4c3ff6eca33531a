"""Read the weights of a program that torch.export saved: raw bytes and a table, nothing is unpickled or built.

Runs in the subprocess that reads checkpoints.
"""

from __future__ import annotations

import re
import zipfile
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, BinaryIO

from compatkit.errors import FormatError, UnsafeCheckpoint
from compatkit.foundation.codec import loads

if TYPE_CHECKING:
    from torch import Tensor

TABLE = re.compile(r"[^/]+/data/weights/[^/]+_weights_config\.json")
"""Entry that lists the weights; their bytes lie beside it."""
MAX_TABLE = 2**26
"""Size limit of the table in bytes."""
DTYPES = {
    1: "uint8",
    2: "int8",
    3: "int16",
    4: "int32",
    5: "int64",
    6: "float16",
    7: "float32",
    8: "float64",
    12: "bool",
    13: "bfloat16",
}
"""Torch's name by the number that the table has for it."""
STRIDED = 7
"""Number of the dense layout."""
FAULTS = (
    *(KeyError, TypeError, ValueError, AttributeError, RuntimeError, OverflowError),
    *(OSError, EOFError, zipfile.BadZipFile),
)
"""What reading a damaged table or its weights raises."""
REMEDY = "Load it with a program that you trust and save the weights as safetensors."


def program_tensors(file: BinaryIO) -> dict[str, Tensor]:
    """Return parameters and buffers by name.

    Args:
        file: The archive, whose entries were checked.

    Raises:
        UnsafeCheckpoint: A weight is pickled.
        FormatError: The archive is damaged, or of another version of torch.
    """
    with zipfile.ZipFile(file) as archive:
        names = archive.namelist()
        tables = [name for name in names if TABLE.fullmatch(name)]
        if len(tables) != 1 or len(set(names)) < len(names):
            raise FormatError(
                f"expected a program of torch.export with one table of weights, got {len(tables)}; an older torch "
                f"wrote none. {REMEDY}"
            )
        (table,) = tables
        try:
            if archive.read(f"{table.partition('/')[0]}/byteorder") != b"little":
                raise FormatError(f"its numbers are not little-endian. {REMEDY}")
            listed = loads(archive.read(table), what="the table of weights", max_bytes=MAX_TABLE)["config"]
            folder = table.rpartition("/")[0]
            return {
                name: _tensor(name, entry, archive.read(f"{folder}/{entry['path_name']}"))
                for name, entry in listed.items()
            }
        except FAULTS as error:
            raise FormatError(f"its table of weights is damaged: {error!r:.200}. {REMEDY}") from error


def _tensor(name: str, entry: Mapping[str, Any], data: bytes) -> Tensor:
    """Return one weight.

    Raises:
        UnsafeCheckpoint: It is pickled.
        ValueError: It is sparse or of an unknown dtype.
        RuntimeError: It does not lie within its bytes.
    """
    import torch

    if entry["use_pickle"] is not False:
        raise UnsafeCheckpoint(f"the weight {name!r:.80} is pickled, and only tensors are read. {REMEDY}")
    described = entry["tensor_meta"]
    if described["layout"] != STRIDED or described["dtype"] not in DTYPES:
        raise ValueError(f"{name!r:.80} is sparse or of the unknown dtype {described['dtype']}")
    dtype = getattr(torch, DTYPES[described["dtype"]])
    sizes, strides = ([int(number["as_int"]) for number in described[key]] for key in ("sizes", "strides"))
    values = torch.frombuffer(bytearray(data), dtype=dtype) if data else torch.empty(0, dtype=dtype)
    return values.as_strided(sizes, strides, int(described["storage_offset"]["as_int"]))

"""Write and read tensors as safetensors bytes, and compute digests that are independent of their order."""

from __future__ import annotations

import hashlib
import json
import mmap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from compatkit.errors import FormatError
from compatkit.registry.weights.header import (
    DTYPES,
    MAX_TENSORS,
    Buffer,
    Header,
    TensorEntry,
    check_header,
    check_tensor_name,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor

__all__ = [
    "METADATA_KEY",
    "check_header",
    "combine",
    "deserialize",
    "metadata",
    "pieces",
    "pieces_and_digest",
    "serialize",
    "state_digest",
    "tensor_digest",
]

METADATA_KEY = "compatkit"
"""Only metadata key, as the order of several is random in safetensors."""

_DTYPES = "U64 I64 F64 C64 F32 U32 I32 BF16 F16 U16 I16 F8_E5M2FNUZ F8_E4M3FNUZ F8_E4M3 F8_E5M2 I8 U8 BOOL"
_ORDER = {code: index for index, code in enumerate(_DTYPES.split())}
"""Order of dtypes in a file: large elements first, so that all are aligned."""
HASHED = 2**23
"""Bytes of a mapped file that are in memory while it is hashed."""
ALIGNMENT = 64
"""Alignment of tensors in bytes, as in torch. The last bits of matrix products and some convolutions depend on the
alignment, so that a reloaded network could differ from the original."""


def serialize(state: Mapping[str, Tensor], metadata: str | None = None) -> bytes:
    """Return tensors as safetensors bytes; tied tensors are stored once per name.

    Args:
        state: Tensors by name, on any device, contiguous or not.
        metadata: Text stored under the key ``compatkit``.

    Raises:
        FormatError: A name, a dtype or a layout (sparse) cannot be stored.
    """
    return b"".join(pieces(state, metadata))


def pieces(state: Mapping[str, Tensor], metadata: str | None = None) -> list[bytes | memoryview]:
    """Return header and bytes of each tensor without copying the tensors, as pieces of ``serialize``.

    Tensors with a multiple of 64 bytes come first, aligned to 64 bytes, so that they can be used directly in a mapped
    file; within both groups the order is by dtype and name, as in the safetensors library. That library would copy all
    tensors into one buffer, or write a file with mode 0600 in steps that tests cannot observe.

    Args:
        state: Tensors by name, on any device.
        metadata: Text for the header, or None.

    Raises:
        FormatError: A name, a dtype or a layout (sparse) cannot be stored.
    """
    return _pieces(list(_contents(state)), metadata)


def pieces_and_digest(state: Mapping[str, Tensor]) -> tuple[list[bytes | memoryview], Callable[[], str]]:
    """Return ``pieces(state)`` and a function that computes ``state_digest(state)``; both look at each tensor once.

    Raises:
        FormatError: A name, a dtype or a layout (sparse) cannot be stored.
    """
    contents = list(_contents(state))
    return _pieces(contents, None), lambda: combine(_hashed(contents))


def _pieces(contents: Sequence[_Content], metadata: str | None) -> list[bytes | memoryview]:
    if len(contents) > MAX_TENSORS:
        raise FormatError(f"safetensors: expected at most {MAX_TENSORS} tensors, got {len(contents)}.")
    header: dict[str, object] = {} if metadata is None else {"__metadata__": {METADATA_KEY: metadata}}
    views: list[bytes | memoryview] = []
    offset = 0
    for name, code, shape, data in sorted(
        contents, key=lambda item: (len(item.data) % ALIGNMENT != 0, _ORDER[item.code], item.name.encode())
    ):
        header[name] = {"dtype": code, "shape": list(shape), "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
        views.append(data)
    encoded = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    encoded += b" " * (-(8 + len(encoded)) % ALIGNMENT)
    return [len(encoded).to_bytes(8, "little") + encoded, *views]


def deserialize(data: Buffer | mmap.mmap) -> dict[str, Tensor]:
    """Return the tensors of a safetensors file, on the CPU, after a strict check of the header.

    Tensors share a private memory map, except those of two or more axes that are not aligned to 64 bytes (see
    ``ALIGNMENT``): few in files of this library. The safetensors library would reopen the file by name, which may
    be another file by then.

    Args:
        data: Bytes of the file, or a private memory map.

    Returns:
        Tensors by name, in the order of the header.

    Raises:
        FormatError: See ``check_header``.
    """
    header = check_header(memoryview(data))
    if isinstance(data, mmap.mmap):
        return {tensor.name: _aligned(_shared(data, tensor)) for tensor in header.tensors}
    import safetensors.torch

    return {name: _aligned(tensor) for name, tensor in safetensors.torch.load(bytes(data)).items()}


def _aligned(tensor: Tensor) -> Tensor:
    """Return a tensor aligned as in torch, or a copy if results would depend on its alignment."""
    return tensor if tensor.ndim < 2 or tensor.data_ptr() % ALIGNMENT == 0 else tensor.clone()


def _shared(mapped: mmap.mmap, entry: TensorEntry) -> Tensor:
    import torch

    name, size = DTYPES[entry.dtype]
    dtype: torch.dtype = getattr(torch, name)
    count = (entry.stop - entry.start) // size
    if not count:
        return torch.empty(entry.shape, dtype=dtype)
    if entry.start % size == 0:
        return torch.frombuffer(mapped, dtype=dtype, count=count, offset=entry.start).view(entry.shape)
    flat = torch.frombuffer(mapped, dtype=torch.uint8, count=count * size, offset=entry.start)
    return flat.clone().view(dtype).view(entry.shape)  # unaligned, from another writer


def metadata(data: Buffer) -> str | None:
    """Return the metadata text given to ``serialize``, or None.

    Raises:
        FormatError: See ``check_header``.
    """
    return check_header(data).metadata.get(METADATA_KEY)


def tensor_digest(data: Buffer, header: Header | None = None) -> str:
    """Return the digest of the tensors in a file, independent of their order and of metadata.

    SHA-256 over name, dtype code, shape (decimal, comma-separated) and SHA-256 of the little-endian bytes of every
    tensor, sorted by the UTF-8 bytes of the name; each of the four is preceded by its length in bytes as 8 bytes
    little-endian.

    Args:
        data: Bytes of a safetensors file.
        header: Checked header of the file; None to check it here.

    Returns:
        ``"tensors:sha256:<64 hex digits>"``.

    Raises:
        FormatError: See ``check_header``.
    """
    view = memoryview(data).cast("B")
    checked = check_header(view) if header is None else header
    return combine(
        (entry.name, entry.dtype, entry.shape, _sha256(view, entry.start, entry.stop))
        for entry in checked.tensors
    )


def _sha256(view: memoryview, start: int, stop: int) -> bytes:
    """Return the SHA-256 sum of a range; the pages of a file that is mapped to be read only are given back."""
    mapped, hashed = view.obj, hashlib.sha256()
    for position in range(start, stop, HASHED):
        hashed.update(view[position : min(position + HASHED, stop)])
        if view.readonly and isinstance(mapped, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
            page = position - position % mmap.PAGESIZE
            mapped.madvise(mmap.MADV_DONTNEED, page, min(HASHED, len(mapped) - page))
    return hashed.digest()


def state_digest(state: Mapping[str, Tensor]) -> str:
    """Return ``tensor_digest(serialize(state))`` without building the file.

    Raises:
        FormatError: A name, a dtype or a layout cannot be stored.
    """
    return combine(_hashed(_contents(state)))


class _Content(NamedTuple):
    """Name, dtype code and shape of a tensor, and its little-endian bytes."""

    name: str
    code: str
    shape: tuple[int, ...]
    data: memoryview


def _contents(state: Mapping[str, Tensor]) -> Iterator[_Content]:
    for name, tensor in state.items():
        check_tensor_name(name)
        dense = _dense(name, tensor)
        yield _Content(name, _code(name, dense), tuple(dense.shape), _bytes(dense))


def _hashed(contents: Iterable[_Content]) -> Iterator[tuple[str, str, tuple[int, ...], bytes]]:
    for name, code, shape, data in contents:
        yield name, code, shape, hashlib.sha256(data).digest()


def combine(parts: Iterable[tuple[str, str, tuple[int, ...], bytes]]) -> str:
    """Return the tensor digest of names, dtype codes, shapes and SHA-256 sums of the bytes."""
    fields: list[bytes] = []
    for name, dtype, shape, content in sorted((part[0].encode(), *part[1:]) for part in parts):
        for field in (name, dtype.encode(), ",".join(map(str, shape)).encode(), content):
            fields += (len(field).to_bytes(8, "little"), field)
    return f"tensors:sha256:{hashlib.sha256(b''.join(fields)).hexdigest()}"


def _dense(name: str, tensor: Tensor) -> Tensor:
    import torch

    if not isinstance(tensor, torch.Tensor):
        raise FormatError(f"{name}: expected a tensor, got {type(tensor).__name__}; only tensors are stored.")
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
        raise FormatError(
            f"{name}: expected a dense tensor with data, got {tensor.layout} on {tensor.device}."
        )
    _code(name, tensor)
    plain = tensor.detach().resolve_conj().resolve_neg()
    return plain.to("cpu").contiguous()  # the memory layout is not part of the weights


def _bytes(tensor: Tensor) -> memoryview:
    """Return the little-endian bytes of a dense tensor, sharing its memory."""
    import torch

    if not tensor.numel():
        return memoryview(b"")
    return memoryview(tensor.reshape(-1).view(torch.uint8).numpy().data).cast("B")


def _code(name: str, tensor: Tensor) -> str:
    code = _codes().get(tensor.dtype)
    if code is not None:
        return code
    raise FormatError(f"{name}: tensors of {tensor.dtype} cannot be stored; convert to one of {_dtypes()}.")


@cache
def _codes() -> dict[torch.dtype, str]:
    """Return the code of each supported dtype that this version of torch has."""
    import torch

    return {getattr(torch, name): code for code, (name, _) in DTYPES.items() if hasattr(torch, name)}


def _dtypes() -> str:
    return ", ".join(name for name, _ in DTYPES.values())

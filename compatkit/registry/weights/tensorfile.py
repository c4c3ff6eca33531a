"""Tensors as safetensors bytes: what is stored comes back bit for bit; digests ignore order; no pickle."""

from __future__ import annotations

import hashlib
import json
import mmap
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING

from compatkit.errors import FormatError, IntegrityError
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
    "check_finite",
    "check_header",
    "combine",
    "deserialise",
    "metadata",
    "pieces",
    "serialise",
    "state_digest",
    "tensor_digest",
]

METADATA_KEY = "compatkit"
"""The one metadata key that is ever written: with two, safetensors orders them at random."""

_DTYPES = "U64 I64 F64 C64 F32 U32 I32 BF16 F16 U16 I16 F8_E5M2FNUZ F8_E4M3FNUZ F8_E4M3 F8_E5M2 I8 U8 BOOL"
_ORDER = {code: place for place, code in enumerate(_DTYPES.split())}
"""Of the dtypes in a file; large elements first, so that all are aligned."""
ALIGNED = 64
"""Bytes to a multiple of which torch places tensors. Matrix products and some convolutions give other last bits for
weights that lie elsewhere, so that a network would differ from what it was before it was stored."""


def serialise(state: Mapping[str, Tensor], metadata: str | None = None) -> bytes:
    """Return ``state`` as safetensors bytes; tied tensors are stored once a name.

    Args:
        state: Tensors by name, on any device, contiguous or not.
        metadata: Text kept under the one key ``compatkit``.

    Raises:
        FormatError: A name, a dtype or a layout (sparse) cannot be stored.
    """
    return b"".join(pieces(state, metadata))


def pieces(state: Mapping[str, Tensor], metadata: str | None = None) -> list[bytes | memoryview]:
    """Return what ``serialise`` returns, without copying the tensors: the header, then each one's bytes.

    Those that fill whole units of 64 bytes come first, from a multiple of 64 bytes on, so that they can be used where
    they lie in a mapped file; then, as everywhere in the safetensors library's files, by dtype and by name.
    The library itself copies all of it into one buffer, or writes a file of mode 0600 in steps that tests cannot see.

    Raises:
        FormatError: A name, a dtype or a layout (sparse) cannot be stored.
    """
    found: list[tuple[bool, int, bytes, str, Tensor]] = []
    for name, tensor in state.items():
        check_tensor_name(name)
        one = _dense(name, tensor)
        code = _code(name, one)
        odd = one.numel() * one.element_size() % ALIGNED != 0
        found.append((odd, _ORDER[code], name.encode(), code, one))
    if len(found) > MAX_TENSORS:
        raise FormatError(f"safetensors: at most {MAX_TENSORS} tensors are stored, got {len(found)}.")
    found.sort(key=lambda one: one[:3])
    header: dict[str, object] = {} if metadata is None else {"__metadata__": {METADATA_KEY: metadata}}
    views: list[bytes | memoryview] = []
    reached = 0
    for _, _, name, code, one in found:
        size = one.numel() * one.element_size()
        header[name.decode()] = {
            "dtype": code,
            "shape": list(one.shape),
            "data_offsets": [reached, reached + size],
        }
        reached += size
        views.append(_bytes(one))
    written = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    written += b" " * (-(8 + len(written)) % ALIGNED)
    return [len(written).to_bytes(8, "little") + written, *views]


def deserialise(data: Buffer | mmap.mmap) -> dict[str, Tensor]:
    """Return the tensors of ``data``, on the CPU, after a strict check of the header.

    A private map of a file is shared and not copied, but for tensors of two or more axes that do not lie at a multiple
    of 64 bytes (see ``ALIGNED``): few in files of this library, any in those of others. The safetensors library would
    open the file again by its name, which may be another file's by then.

    Raises:
        FormatError: See ``check_header``.
    """
    header = check_header(memoryview(data))
    if isinstance(data, mmap.mmap):
        return {one.name: _placed(_shared(data, one)) for one in header.tensors}
    import safetensors.torch

    return {name: _placed(one) for name, one in safetensors.torch.load(bytes(data)).items()}


def _placed(tensor: Tensor) -> Tensor:
    """Return a tensor that lies where torch would place it, as far as results depend on that."""
    return tensor if tensor.ndim < 2 or tensor.data_ptr() % ALIGNED == 0 else tensor.clone()


def _shared(mapped: mmap.mmap, one: TensorEntry) -> Tensor:
    import torch

    name, size = DTYPES[one.dtype]
    dtype: torch.dtype = getattr(torch, name)
    count = (one.stop - one.start) // size
    if not count:
        return torch.empty(one.shape, dtype=dtype)
    if one.start % size == 0:
        return torch.frombuffer(mapped, dtype=dtype, count=count, offset=one.start).view(one.shape)
    flat = torch.frombuffer(mapped, dtype=torch.uint8, count=count * size, offset=one.start)
    return flat.clone().view(dtype).view(one.shape)  # a file of another writer, whose header is not padded


def check_finite(state: Mapping[str, Tensor], whose: str) -> None:
    """Refuse weights that are not finite.

    Raises:
        IntegrityError: Names the first tensor that holds NaN or infinity.
    """
    import torch

    for name, tensor in state.items():
        if not (tensor.is_floating_point() or tensor.is_complex()) or tensor.is_meta:
            continue
        # one pass without a temporary tensor; a sum may overflow, so that only a finite one says enough
        narrow = tensor.element_size() < 4
        if bool(torch.isfinite(tensor.detach().sum(dtype=torch.float32 if narrow else None))):
            continue
        if not bool(torch.isfinite(tensor.to(torch.float32) if narrow else tensor).all()):
            raise IntegrityError(
                f"{whose}: the tensor {name!r} holds values that are not finite; the component is not published. "
                "Train again with a lower learning rate or in float32.",
                subject=name,
            )


def metadata(data: Buffer) -> str | None:
    """Return the text that ``serialise`` was given as metadata, or None.

    Raises:
        FormatError: See ``check_header``.
    """
    return check_header(data).metadata.get(METADATA_KEY)


def tensor_digest(data: Buffer, header: Header | None = None) -> str:
    """Return the digest of the tensors in a file: independent of their order and of metadata.

    sha256 over name, dtype code, shape (decimal, comma separated) and sha256 of the little-endian bytes of
    every tensor, sorted by the UTF-8 bytes of the name; each of the four is preceded by its length in bytes
    as 8 bytes little-endian.

    Args:
        data: A safetensors file.
        header: Its checked header, if it is at hand.

    Returns:
        ``"tensors:sha256:<64 hex digits>"``.

    Raises:
        FormatError: See ``check_header``.
    """
    view = memoryview(data).cast("B")
    found = check_header(view) if header is None else header
    return combine(
        (one.name, one.dtype, one.shape, hashlib.sha256(view[one.start : one.stop]).digest())
        for one in found.tensors
    )


def state_digest(state: Mapping[str, Tensor]) -> str:
    """Return what ``tensor_digest`` would give for ``serialise(state)``, without making the file.

    Raises:
        FormatError: A name, a dtype or a layout cannot be stored.
    """
    return combine(_hashed(state))


def _hashed(state: Mapping[str, Tensor]) -> Iterator[tuple[str, str, tuple[int, ...], bytes]]:
    for name, tensor in state.items():
        check_tensor_name(name)
        one = _dense(name, tensor)
        yield name, _code(name, one), tuple(one.shape), hashlib.sha256(_bytes(one)).digest()


def combine(parts: Iterable[tuple[str, str, tuple[int, ...], bytes]]) -> str:
    """Return the tensor digest of names, dtype codes, shapes and sha256 sums of the bytes."""
    whole = hashlib.sha256()
    for name, dtype, shape, content in sorted((one[0].encode(), *one[1:]) for one in parts):
        for field in (name, dtype.encode(), ",".join(map(str, shape)).encode(), content):
            whole.update(len(field).to_bytes(8, "little") + field)
    return f"tensors:sha256:{whole.hexdigest()}"


def _dense(name: str, tensor: Tensor) -> Tensor:
    import torch

    if not isinstance(tensor, torch.Tensor):
        raise FormatError(f"{name}: expected a tensor, got {type(tensor).__name__}; only tensors are stored.")
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta:
        raise FormatError(
            f"{name}: only dense tensors with data are stored, got {tensor.layout} on {tensor.device}."
        )
    _code(name, tensor)
    plain = tensor.detach().resolve_conj().resolve_neg()
    return plain.to("cpu").contiguous()  # channels_last is a layout of the run, not of the weights


def _bytes(tensor: Tensor) -> memoryview:
    """Return the little-endian bytes of a dense tensor, which share its memory."""
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
    """Return the code of each dtype that is stored and known to this torch."""
    import torch

    return {getattr(torch, name): code for code, (name, _) in DTYPES.items() if hasattr(torch, name)}


def _dtypes() -> str:
    return ", ".join(name for name, _ in DTYPES.values())

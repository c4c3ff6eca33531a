"""Tensors as safetensors bytes: what is stored comes back bit for bit; digests ignore order; no pickle."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from compatkit.errors import FormatError
from compatkit.registry.header import DTYPES, MAX_TENSORS, Buffer, Header, check_header, check_tensor_name

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "METADATA_KEY",
    "check_header",
    "deserialise",
    "metadata",
    "serialise",
    "state_digest",
    "tensor_digest",
]

METADATA_KEY = "compatkit"
"""The one metadata key that is ever written: with two, safetensors orders them at random."""


def serialise(state: Mapping[str, Tensor], metadata: str | None = None) -> bytes:
    """Return ``state`` as safetensors bytes; tied tensors are stored once a name.

    Args:
        state: Tensors by name, on any device, contiguous or not.
        metadata: Text kept under the one key ``compatkit``.

    Raises:
        FormatError: A name, a dtype or a layout (sparse) cannot be stored.
    """
    import safetensors.torch

    plain: dict[str, Tensor] = {}
    held: set[int] = set()
    for name, tensor in state.items():
        check_tensor_name(name)
        one = _dense(name, tensor)
        if one.numel():
            place = one.untyped_storage().data_ptr()
            one = one.clone() if place in held else one
            held.add(one.untyped_storage().data_ptr())
        plain[name] = one
    if len(plain) > MAX_TENSORS:
        raise FormatError(f"safetensors: at most {MAX_TENSORS} tensors are stored, got {len(plain)}.")
    return safetensors.torch.save(plain, None if metadata is None else {METADATA_KEY: metadata})


def deserialise(data: bytes) -> dict[str, Tensor]:
    """Return the tensors of ``data``, on the CPU, after a strict check of the header.

    Raises:
        FormatError: See ``check_header``.
    """
    check_header(data)
    import safetensors.torch

    return safetensors.torch.load(bytes(data))


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
    return _combine(
        (one.name, one.dtype, one.shape, hashlib.sha256(view[one.start : one.stop]).digest())
        for one in found.tensors
    )


def state_digest(state: Mapping[str, Tensor]) -> str:
    """Return what ``tensor_digest`` would give for ``serialise(state)``, without making the file.

    Raises:
        FormatError: A name, a dtype or a layout cannot be stored.
    """
    return _combine(_hashed(state))


def _hashed(state: Mapping[str, Tensor]) -> Iterator[tuple[str, str, tuple[int, ...], bytes]]:
    import torch

    for name, tensor in state.items():
        check_tensor_name(name)
        one = _dense(name, tensor)
        flat = one.reshape(-1).view(torch.uint8).numpy()
        yield name, _code(name, one), tuple(one.shape), hashlib.sha256(flat.data).digest()


def _combine(parts: Iterator[tuple[str, str, tuple[int, ...], bytes]]) -> str:
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


def _code(name: str, tensor: Tensor) -> str:
    wanted = str(tensor.dtype).removeprefix("torch.")
    for code, (torch_name, _) in DTYPES.items():
        if torch_name == wanted:
            return code
    raise FormatError(f"{name}: tensors of {tensor.dtype} cannot be stored; convert to one of {_dtypes()}.")


def _dtypes() -> str:
    return ", ".join(name for name, _ in DTYPES.values())

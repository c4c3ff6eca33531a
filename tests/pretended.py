"""A pretended device: tensors that say they are on ``meta`` and compute on the CPU.

Code that mixes tensors of a GPU with those of the CPU works on a CPU, and fails on a GPU alone. Here it fails on every
machine: operations of tensors on both devices raise, as on a GPU, with its exceptions: scalars, copies, and indices.
The device is torch's ``meta``, which every build knows; while ``pretended`` lasts, its tensors have values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._foreach_utils import _get_fused_kernels_supported_devices
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

DEVICE = torch.device("meta")
ATEN, AUTOCAST = torch.ops.aten, torch.autocast
ACROSS = {
    ATEN._to_copy.default,
    ATEN.copy_.default,
    ATEN.index.Tensor,
    ATEN.index_put.default,
    ATEN.index_put_.default,
    ATEN._index_put_impl_.default,
}
"""Operations whose tensors may be on two devices."""
WAITS = {
    ATEN._local_scalar_dense.default,
    ATEN.nonzero.default,
    ATEN.masked_select.default,
    ATEN._unique2.default,
    ATEN.unique_dim.default,
}
"""Operations for which the host waits for a GPU, besides copies to the CPU."""


class Elsewhere(Tensor):
    """A tensor of the pretended device."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> Elsewhere:
        made = Tensor._make_wrapper_subclass(
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            layout=held.layout,
            device=DEVICE,
        )
        made.held = held
        return made

    def __repr__(self) -> str:
        return f"Elsewhere({self.held!r})"

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return computed(func, args, kwargs or {}, lambda what: None)


class Pretending(TorchDispatchMode):
    """Makes tensors of the pretended device where it is asked for.

    Attributes:
        waits: Operations for which the host would have waited.
    """

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return computed(func, args, kwargs or {}, self.waits.append)


def computed(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], wait: Callable[[str], object]) -> Any:
    """Compute an operation on the CPU; refuse it where a GPU would."""
    flat, structure = tree_flatten((tuple(args), dict(kwargs)))
    there = [value for value in flat if isinstance(value, Elsewhere)]
    here = [value for value in flat if isinstance(value, Tensor) and not isinstance(value, Elsewhere)]
    if there and func not in ACROSS and any(value.ndim for value in here):
        raise RuntimeError(f"Expected all tensors to be on the same device; got meta and cpu in {func}")
    asked = kwargs.get("device")
    stays = torch.device(asked).type == DEVICE.type if asked is not None else bool(there)
    if func is ATEN.copy_.default:
        stays = isinstance(args[0], Elsewhere)
    if there and (func in WAITS or not stays):
        wait(str(func))
    plain = [value.held if isinstance(value, Elsewhere) else value for value in flat]
    on_cpu, named = tree_unflatten(plain, structure)
    if asked is not None:
        named["device"] = torch.device("cpu") if stays else asked
    result = func(*on_cpu, **named)
    if func is ATEN.copy_.default:
        return args[0]
    if not stays:
        return result
    wrapped = tree_map(lambda value: Elsewhere(value) if isinstance(value, Tensor) else value, result)
    return return_and_correct_aliasing(func, tuple(args), dict(kwargs), wrapped) if there else wrapped


class Answering(TorchFunctionMode):
    """Answers for tensors of the pretended device what torch computes without dispatch."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        named = dict(kwargs or {})
        if func in (torch.tensor, torch.as_tensor) and torch.device(named.get("device") or "cpu") == DEVICE:
            del named["device"]
            return func(*args, **named).to(DEVICE)
        if args and isinstance(args[0], Elsewhere):
            if func is Tensor.tolist:
                return args[0].cpu().tolist()
            if func == Tensor.is_meta.__get__:
                return False
            if func is Tensor.data_ptr:
                return args[0].held.data_ptr()
        return func(*args, **named)


def _autocast(kind: str, *arguments: Any, **settings: Any) -> Any:
    """Return a context of autocast; the pretended device computes in float32."""
    return nullcontext() if kind == DEVICE.type else AUTOCAST(kind, *arguments, **settings)


@contextmanager
def pretended() -> Iterator[Pretending]:
    """Give the device ``meta`` values; yield what records for which operations the host would wait."""
    supported = [*_get_fused_kernels_supported_devices(), DEVICE.type]
    with (
        mock.patch("torch.optim.optimizer._get_fused_kernels_supported_devices", lambda: supported),
        mock.patch.object(torch, "autocast", _autocast),
        Answering(),
        Pretending() as pretending,
    ):
        yield pretending

"""Device, number format and memory format: chosen once, written to the plan."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, TypeVar

import attrs
import torch
from torch import nn

from compatkit.errors import UsageError

Module = TypeVar("Module", bound=nn.Module)
Choice = Literal["auto", "float32", "bf16"]


def spelled(name: Any) -> Any:
    """Return a precision in the spelling of plans: ``"bfloat16"`` becomes ``"bf16"``."""
    return "bf16" if name == "bfloat16" else name


def has_fast_bf16() -> bool:
    """Return whether this CPU multiplies bf16 in hardware (AVX512-BF16 or AMX); without, bf16 is far slower."""
    flags = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(bool(getattr(torch.cpu, flag, lambda: False)()) for flag in flags)


_PLAIN = nullcontext()


@attrs.frozen
class Precision:
    """Device, number format and memory format of a run.

    Attributes:
        device: ``"cpu"``, ``"cuda"``, ...
        dtype: ``"float32"`` or ``"bf16"`` (autocast: weights and norms stay float32).
        channels_last: Images and convolution weights as NHWC in memory.
    """

    device: str
    dtype: Literal["float32", "bf16"]
    channels_last: bool

    @classmethod
    def choose(cls, device: str, dtype: Choice, channels_last: bool | None) -> Precision:
        """Choose the fastest on this machine for arguments that are ``"auto"`` or None.

        Args:
            device: A device of torch, or ``"auto"``.
            dtype: Format of the forward pass, or ``"auto"``.
            channels_last: Memory layout of images, or None.

        Raises:
            UsageError: The device cannot be used.
        """
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        try:
            kind = torch.device(device).type
            torch.zeros(1, device=device).item()  # tensors of the meta device have no values
        except (RuntimeError, AssertionError) as error:
            raise UsageError(
                f"Device {device!r} cannot be used here ({error}); use 'cpu' or 'auto'."
            ) from error
        if dtype == "auto":
            fast = has_fast_bf16() if kind == "cpu" else kind == "cuda" and torch.cuda.is_bf16_supported()
            dtype = "bf16" if fast else "float32"
        # bf16 convolutions are fast in NHWC only; for float32 on a CPU NHWC gains on small maps too.
        return cls(device, dtype, True if channels_last is None else channels_last)

    @property
    def memory_format(self) -> torch.memory_format:
        """The memory format of images and weights."""
        return torch.channels_last if self.channels_last else torch.contiguous_format

    def place(self, module: Module) -> Module:
        """Return a module on the run's device, in its memory format; the same object."""
        return module.to(self.device, memory_format=self.memory_format)  # type: ignore[call-overload]

    def autocast(self) -> AbstractContextManager[object]:
        """Return the context in which forward passes run."""
        if self.dtype == "float32":
            return _PLAIN
        return torch.autocast(torch.device(self.device).type, torch.bfloat16)

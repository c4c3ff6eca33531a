"""Device, number format and memory format: chosen once, written to the plan."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, TypeVar

import attrs
import torch
from torch import nn

from compatkit.errors import UsageError
from compatkit.foundation.bf16 import multiplies_bf16_fast

Module = TypeVar("Module", bound=nn.Module)
Choice = Literal["auto", "float32", "bf16"]


def spelled(name: Any) -> Any:
    """Return a precision in the spelling of plans: ``"bfloat16"`` becomes ``"bf16"``."""
    return "bf16" if name == "bfloat16" else name


MIN_MULTIPLY_ADDS = 10_000_000
"""Multiply-adds of a mean product of a network, over a micro-batch, from which bf16 is chosen on a CPU.

Casting costs a product 50 to 150 us in a step, whatever its size (``docs/results/precision.md``). A product of M
multiply-adds takes 3 M / (80 per ns) of float32 in a step, of which twice the rate saves half: from 8 million on.
"""


def has_fast_bf16() -> bool:
    """Return whether this CPU multiplies bf16 faster than float32."""
    features = getattr(torch.cpu, "get_capabilities", dict)()
    names = {name for name, value in features.items() if value is True}
    return multiplies_bf16_fast(str(features.get("cpu_name", "")), names)


def _fastest(kind: str) -> tuple[Literal["float32", "bf16"], str]:
    """Return the number format for large networks on a type of device, and the reason."""
    if kind == "cpu":
        if has_fast_bf16():
            return "bf16", "this processor multiplies bf16 faster than float32"
        return "float32", "this processor does not multiply bf16 faster than float32"
    if kind == "cuda" and torch.cuda.is_bf16_supported():
        return "bf16", "the GPU computes in bf16"
    return "float32", f"the {kind} device does not compute in bf16"


_PLAIN = nullcontext()


@attrs.frozen
class Precision:
    """Device, number format and memory format of a run.

    Attributes:
        device: ``"cpu"``, ``"cuda"``, ...
        dtype: ``"float32"`` or ``"bf16"`` (autocast: weights and norms stay float32).
        channels_last: Images and convolution weights as NHWC in memory.
        reason: Why this number format.
    """

    device: str
    dtype: Literal["float32", "bf16"]
    channels_last: bool
    reason: str = attrs.field(default="asked for", eq=False)

    @classmethod
    def choose(cls, device: str, dtype: Choice, channels_last: bool | None) -> Precision:
        """Choose the fastest on this machine for arguments that are ``"auto"`` or None; see ``for_products``.

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
        dtype, reason = _fastest(kind) if dtype == "auto" else (dtype, "asked for")
        # bf16 convolutions are fast in NHWC only; for float32 on a CPU NHWC gains on small maps too.
        return cls(device, dtype, True if channels_last is None else channels_last, reason)

    def for_products(self, multiply_adds: Sequence[float]) -> Precision:
        """Return float32 in place of a chosen bf16 where products are too small to gain, on a CPU; else itself.

        Sizes decide, and no trial, so that equal runs have equal formats.

        Args:
            multiply_adds: Multiply-adds of each convolution and matrix product of the networks, over a micro-batch.
        """
        mean = sum(multiply_adds) / max(len(multiply_adds), 1)
        of_mean = (
            f"a mean product of the networks has {mean / 1e6:,.2f} million multiply-adds in a micro-batch"
        )
        if mean < MIN_MULTIPLY_ADDS:
            reason = f"{of_mean}, under {MIN_MULTIPLY_ADDS / 1e6:g}: casting would cost more than bf16 saves"
            return attrs.evolve(self, dtype="float32", reason=reason)
        return attrs.evolve(self, reason=f"{self.reason}, and {of_mean}")

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

"""What a measurement is asked to run under: plain values, checked without torch."""

from __future__ import annotations

import operator
from difflib import get_close_matches
from typing import Any, Literal, get_args

import attrs

from compatkit.contracts.batchnorm import DEFAULT, check_policy, estimates
from compatkit.errors import UsageError

Precision = Literal["float32", "bfloat16"]


def _whole(value: Any) -> int:
    try:
        return int(operator.index(value))
    except TypeError:
        raise UsageError(f"expected a whole number, got {value!r:.80}.", subject=value) from None


@attrs.frozen
class Conditions:
    """What the figures of a measurement depend on, besides parts and images.

    Attributes:
        policy: Normalisation policy.
        batch_size: Largest batch; the images are split into equal batches up to it.
        seed: Of the order of the images.
        precision: ``"float32"`` (TF32 off) or ``"bfloat16"`` (autocast).
        device: Where to run.

    Raises:
        UsageError: A value is unknown, or the batch size is below 1.
    """

    policy: str = attrs.field(default=DEFAULT, converter=check_policy)
    batch_size: int = attrs.field(default=256, converter=_whole)
    seed: int = attrs.field(default=0, converter=_whole)
    precision: str = "float32"
    device: str = "cpu"

    def __attrs_post_init__(self) -> None:
        """Check what no type checks."""
        known = get_args(Precision)
        if self.precision not in known:
            near = get_close_matches(str(self.precision), known, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise UsageError(f"Unknown precision {self.precision!r}; expected {' or '.join(known)}.{hint}")
        if self.batch_size < 1:
            raise UsageError(f"batch_size must be at least 1, got {self.batch_size}.")

    def passes(self, count: int) -> int:
        """Return how many batches one extractor runs over ``count`` images."""
        return (2 if estimates(self.policy) else 1) * -(-count // self.batch_size)

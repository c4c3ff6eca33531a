"""Device and size of the measurements that need a GPU, and what replaces them where there is none."""

from __future__ import annotations

from typing import TypeVar

import attrs
import torch
from contest import Mismatch
from torch import Tensor

from compatkit.training.execution import Mode

Value = TypeVar("Value")
WITHOUT_GRAPHS: dict[Mode, Mode] = {"graph": "eager", "compile+graph": "compile"}


@attrs.frozen
class Size:
    """Device and size of a measurement.

    Attributes:
        device: Device of all contestants.
        small: Whether the work is so small that it says nothing about speed: a trial of the scripts.
        seed: Seed of the order of turns.
    """

    device: str = "cuda"
    small: bool = False
    seed: int = 0

    @property
    def on_gpu(self) -> bool:
        """Return whether the device is a GPU."""
        return torch.device(self.device).type == "cuda"

    def of(self, full: Value, small: Value) -> Value:
        """Return one of two amounts of work."""
        return small if self.small else full

    def network(self, name: str) -> str:
        """Return the name of a network, or of the smallest of its kind."""
        return self.of(name, "resnet8_cifar")

    @property
    def batch(self) -> int:
        """Images in a batch."""
        return self.of(512, 16)

    @property
    def steps(self) -> int:
        """Steps in a turn."""
        return self.of(30, 2)

    def mode(self, mode: Mode) -> Mode:
        """Return a mode of execution; what would be captured is not where the device has no graphs."""
        return mode if self.on_gpu else WITHOUT_GRAPHS.get(mode, mode)

    def wait(self) -> None:
        """Wait for the device."""
        if self.on_gpu:
            torch.cuda.synchronize(self.device)


FULL = Size()
"""What counts."""


def expect_close(what: str, ours: Tensor, theirs: Tensor, share: float) -> None:
    """Check that contestants computed the same numbers.

    Args:
        what: What was computed.
        ours: Result of one contestant.
        theirs: Result of the other.
        share: Norm of the difference at most, as a share of the norm.

    Raises:
        Mismatch: They differ by more.
    """
    ours, theirs = ours.detach().double().cpu(), theirs.detach().double().cpu()
    difference = float((ours - theirs).norm() / theirs.norm())
    if not difference <= share:
        raise Mismatch(f"{what} differ by {difference:.2e} of their norm, more than {share:.0e}.")

"""Counter-based randomness: every random number is a function of (seed, task, stream, step).

Nothing is carried from step to step, so a resumed run needs only the step, and no plugin can disturb the
numbers of another. Torch's global settings for a run are set here too.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager

import attrs
import torch

_GOLDEN, _FIRST, _SECOND, _WORD = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 2**64 - 1


def seed_of(seed: int, *key: str | int) -> int:
    """Return a 63-bit seed for the stream ``key`` of a run with ``seed``.

    The key's parts are length-prefixed, so ``("a", "bc")`` and ``("ab", "c")`` are different streams.

    Args:
        seed: Seed of the run.
        key: Names the stream: its purpose, task, epoch.
    """
    text = "".join(f"{len(str(part))}:{part}" for part in (seed, *key))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


@attrs.frozen
class Stream:
    """A stream of seeds, one a step: hashing its key once makes the next seed ten times as cheap.

    Attributes:
        start: Drawn from the key of the stream.
    """

    start: int

    @classmethod
    def of(cls, seed: int, *key: str | int) -> Stream:
        """Return the stream ``key`` of a run with ``seed``.

        Args:
            seed: Seed of the run.
            key: Names the stream.
        """
        return cls(seed_of(seed, *key))

    def at(self, step: int) -> int:
        """Return the 63-bit seed of a step: SplitMix64 (Steele, Lea and Flood, 2014) after ``step`` + 1 turns."""
        mixed = (self.start + (step + 1) * _GOLDEN) & _WORD
        mixed = ((mixed ^ (mixed >> 30)) * _FIRST) & _WORD
        mixed = ((mixed ^ (mixed >> 27)) * _SECOND) & _WORD
        return (mixed ^ (mixed >> 31)) >> 1


def generator(seed: int, *key: str | int) -> torch.Generator:
    """Return a CPU generator for the stream ``key``.

    Args:
        seed: Seed of the run.
        key: Names the stream.
    """
    return torch.Generator().manual_seed(seed_of(seed, *key))


def reseed(device: str, seed: int) -> None:
    """Seed the global generators that a run on ``device`` uses (dropout and the like), and no others.

    Args:
        device: Device of the run.
        seed: From 0.
    """
    torch.default_generator.manual_seed(seed)
    if device != "cpu" and torch.device(device).type == "cuda":
        index = torch.device(device).index
        index = torch.cuda.current_device() if index is None else index
        torch.cuda.default_generators[index].manual_seed(seed)


def states(device: str) -> list[torch.Tensor]:
    """Return the states of the global generators that a run on ``device`` uses; waits for a GPU.

    Returns:
        uint8, the CPU's first.
    """
    generator_states = [torch.default_generator.get_state()]
    if torch.device(device).type == "cuda":
        generator_states.append(torch.cuda.get_rng_state(device))
    return generator_states


@contextmanager
def preserved() -> Iterator[None]:
    """Restore the global random state (CPU and accelerators in use) on leaving."""
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=devices):
        yield


@contextmanager
def determined(device: str, *, on: bool) -> Iterator[None]:
    """Set how torch chooses algorithms, and restore it on leaving.

    Args:
        device: Device of the run.
        on: Only algorithms that give the same bits in every run. Off, cuDNN may time those that it has for these
            shapes, which are fixed, and take the fastest.
    """
    on_gpu = torch.device(device).type == "cuda"
    if on and on_gpu:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS asks for it, and reads it once
    deterministic = torch.are_deterministic_algorithms_enabled()
    warn_only = torch.is_deterministic_algorithms_warn_only_enabled()
    benchmark = torch.backends.cudnn.benchmark
    try:
        if on:
            torch.use_deterministic_algorithms(True)
        if on_gpu:
            torch.backends.cudnn.benchmark = not on
        yield
    finally:
        if on:  # otherwise torch would import its compiler, which Ctrl-C may have left half imported
            torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
        torch.backends.cudnn.benchmark = benchmark

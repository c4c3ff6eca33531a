"""Counter-based randomness: every random number is a function of (seed, task, stream, step).

Nothing is carried from step to step, so a resumed run needs only the step, and no plugin can disturb the
numbers of another.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def seed_of(seed: int, *key: str | int) -> int:
    """Return a 63-bit seed for the stream ``key`` of a run with ``seed``.

    The key's parts are length-prefixed, so ``("a", "bc")`` and ``("ab", "c")`` are different streams.
    """
    text = "".join(f"{len(str(part))}:{part}" for part in (seed, *key))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def generator(seed: int, *key: str | int) -> torch.Generator:
    """Return a CPU generator for the stream ``key``."""
    return torch.Generator().manual_seed(seed_of(seed, *key))


def reseed(device: str, seed: int) -> None:
    """Seed the global generators that a run on ``device`` draws from (dropout and the like), and no others."""
    torch.default_generator.manual_seed(seed)
    if torch.device(device).type == "cuda":
        index = torch.device(device).index
        torch.cuda.default_generators[torch.cuda.current_device() if index is None else index].manual_seed(
            seed
        )


@contextmanager
def preserved() -> Iterator[None]:
    """Give back the global random state (CPU and the current accelerators) on leaving."""
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=devices):
        yield

"""Fixed signals from an integer hash: the same numbers on every machine, independent of random generators.

``signal(shape, stream)`` maps element i of stream s to splitmix64's finalizer of ``i + s * 2**40``::

    z = (i + s * 2**40 + 1) * 0x9E3779B97F4A7C15        (all modulo 2**64)
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    z = z ^ (z >> 31)
    value = (z >> 40) / 2**23 - 1

so that every value is a multiple of 2**-23 from -1 up to, but without, 1: exact in float32. Elements count in
row-major order. This is the probe input named ``hash-1``; another formula gets another name.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

NAME = "hash-1"


def signal(shape: Sequence[int], stream: int = 0) -> Tensor:
    """Return a float32 tensor of this shape with values in [-1, 1), mean about 0, variance about 1/3.

    Args:
        shape: Shape of the tensor.
        stream: Number of the sequence; streams start 2**40 elements apart.

    Returns:
        float32, the same on every machine.
    """
    with np.errstate(over="ignore"):
        index = np.arange(math.prod(shape), dtype=np.uint64) + np.uint64((stream << 40) + 1)
        z = index * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    values = (z >> np.uint64(40)).astype(np.float32) / np.float32(2**23) - np.float32(1)
    return torch.from_numpy(values.reshape(tuple(shape)))


def port_signal(shape: Sequence[int], index: int = 0, dtype: str = "float32") -> Tensor:
    """Return the fixed input of a module's input port ``index``: stream 0 for the first, else 1000 + index.

    Args:
        shape: Shape of the input.
        index: Index of the port, from 0.
        dtype: Name of the dtype. Booleans are True where the signal is not negative; integers are all 0, which is
            always a valid index.

    Returns:
        Tensor of this shape and dtype.
    """
    values, kind = signal(shape, 1000 + index if index else 0), getattr(torch, dtype)
    if kind is torch.bool:
        return values >= 0
    return (
        values.to(kind)
        if kind.is_floating_point or kind.is_complex
        else torch.zeros(tuple(shape), dtype=kind)
    )

"""Devices that a test's body runs on besides the CPU: a pretended one always, a GPU under ``pytest -m gpu``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from pretended import DEVICE, pretended

CUDA = pytest.param(
    "cuda",
    marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")],
)
other_devices = pytest.mark.parametrize("device", ["pretended", CUDA])


@contextmanager
def on(device: str) -> Iterator[str]:
    """Yield torch's name of a device, while it can be used."""
    if device == "pretended":
        with pretended():
            yield DEVICE.type
    else:
        yield device


def rounding(device: str, share: float) -> float:
    """Return a tolerance: 0 on the pretended device, which computes as the CPU does."""
    return 0.0 if device == "pretended" else share

"""Torch's own settings for a run: the same bits every time, or the fastest algorithm for fixed shapes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def determined(device: str, *, on: bool) -> Iterator[None]:
    """Set how torch chooses algorithms, and set it back on leaving.

    Args:
        device: Of the run.
        on: Only algorithms that give the same bits in every run. Off, cuDNN may time those that it has for these
            shapes, which are fixed, and take the fastest.
    """
    on_gpu = torch.device(device).type == "cuda"
    if on and on_gpu:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS asks for it, and reads it once
    kept = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    benchmark = torch.backends.cudnn.benchmark
    try:
        if on:
            torch.use_deterministic_algorithms(True)
        if on_gpu:
            torch.backends.cudnn.benchmark = not on
        yield
    finally:
        if (
            on
        ):  # else nothing of it: torch would import its compiler, which Ctrl-C may have left half imported
            torch.use_deterministic_algorithms(kept[0], warn_only=kept[1])
        torch.backends.cudnn.benchmark = benchmark

"""Whether an error says that memory ran out: allocators say it in several ways."""

from __future__ import annotations

import torch

SIGNS = (
    "not enough memory",
    "can't allocate memory",
    "CUDA out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)
"""What allocators say that have no error of their own: those of the CPU and of CUDA's libraries."""


def ran_out(error: BaseException) -> bool:
    """Return whether memory was what failed, also below a plugin."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, torch.OutOfMemoryError | MemoryError):
            return True
        if isinstance(cause, RuntimeError) and any(sign in str(cause) for sign in SIGNS):
            return True
        cause = cause.__cause__
    return False

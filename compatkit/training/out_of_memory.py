"""Detect out-of-memory errors, and name the settings that help."""

from __future__ import annotations

import traceback

import torch

from compatkit.errors import EnvironmentFailure
from compatkit.training.distributed import World

SIGNS = (
    "not enough memory",
    "can't allocate memory",
    "CUDA out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
)
"""Messages of allocators that raise a plain RuntimeError: on the CPU and in CUDA's libraries."""


def is_out_of_memory(error: BaseException | None) -> bool:
    """Return whether an error, or one that caused it, is about lack of memory."""
    while error is not None:
        allocator = isinstance(error, RuntimeError) and any(sign in str(error) for sign in SIGNS)
        if allocator or isinstance(error, torch.OutOfMemoryError | MemoryError):
            return True
        error = error.__cause__
    return False


def free_memory(error: BaseException) -> None:
    """Free the tensors in the frames of an error, and return their memory to the device."""
    cause: BaseException | None = error
    while cause is not None:
        traceback.clear_frames(cause.__traceback__)
        cause = cause.__cause__
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def out_of_memory_error(
    task: str, step: int, batch_size: int, pieces: int, device: str, world: World
) -> EnvironmentFailure:
    """Return the error of a step that ran out of memory: task, size of the batch, and settings that need less.

    Args:
        task: Name of the task.
        step: Number of the step.
        batch_size: Images of a step.
        pieces: Micro-batches of a step.
        device: Device whose memory was too small.
        world: Processes that shared the images.
    """
    tried = f"a batch of {batch_size} images"
    if pieces > 1:
        tried += f" in {pieces} micro-batches of {batch_size // pieces}"
    if world.size > 1:
        tried += f" on {world.size} processes"
    share = batch_size // world.size
    more = next((k for k in range(pieces + 1, share // 2 + 1) if share % k == 0), None)
    advice = "a smaller batch_size, smaller images (Task.size), a smaller network or another device"
    if more is not None:
        advice = f"accumulate={more}, which sees the same images a step, or {advice}"
    return EnvironmentFailure(
        f"Task {task!r} ran out of memory on {device!r} in step {step} with {tried}. Set {advice}.",
        subject=task,
    )

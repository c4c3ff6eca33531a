"""Compare, complete and convert the tensors of a checkpoint for a network."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from compatkit.errors import CheckpointMismatch
from compatkit.registry.weights.tensorchecks import WeightsMismatch

COUNTER_SUFFIX = ".num_batches_tracked"
"""Counters of batch normalization, which torch has saved since 1.0."""


def completed(tensors: Mapping[str, Any], own: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the tensors with batch-norm counters, which old files lack, and a note if any were added.

    Args:
        tensors: Tensors of the file by name.
        own: Tensors of the network by name.
    """
    counters = [name for name in own if name.endswith(COUNTER_SUFFIX) and name not in tensors]
    added = {name: own[name].new_zeros(()) for name in counters}
    note = f"set {len(counters)} counters of batch normalization to 0, which old files lack"
    return {**tensors, **added}, (note,) if counters else ()


def converted(tensors: Mapping[str, Any], own: Mapping[str, Any]) -> tuple[str, ...]:
    """Return notes on tensors that are converted to the network's dtype.

    Args:
        tensors: Tensors of the file by name, with all names of ``own``.
        own: Tensors of the network by name.
    """
    pairs = Counter((_dtype(tensors[name]), _dtype(tensor)) for name, tensor in own.items())
    return tuple(
        f"converted {count} tensors from {actual} to {expected}"
        for (actual, expected), count in sorted(pairs.items())
        if actual != expected
    )


def mismatch_error(owner: str, network: str, mismatch: WeightsMismatch) -> CheckpointMismatch:
    """Return the error for weights of another network.

    Args:
        owner: File of the weights.
        network: Name of the network, such as ``"resnet18 of timm"``.
        mismatch: Differences between the tensors.
    """
    listed = "".join(f"\n- {difference};" for difference in mismatch.sentences()).rstrip(";") + "."
    return CheckpointMismatch(
        f"{owner} does not contain the weights of {network}:{listed}\nName the model, with its arguments, that the "
        "weights were saved from.",
        subject=mismatch,
    )


def _dtype(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")

"""Compare, complete and convert the tensors of a checkpoint for a network."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from compatkit.errors import CheckpointMismatch
from compatkit.registry.weights.tensorchecks import WeightsMismatch

COUNTER = ".num_batches_tracked"
"""Counters of batch normalization, which torch has saved since 1.0."""


def completed(tensors: Mapping[str, Any], own: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the tensors with counters that old files lack, and a note on them.

    Args:
        tensors: Of the file, by name.
        own: Of the network, by name.
    """
    counters = [name for name in own if name.endswith(COUNTER) and name not in tensors]
    added = {name: own[name].new_zeros(()) for name in counters}
    notes = (
        (f"set {len(counters)} counters of batch normalization to 0, which old files lack",)
        if counters
        else ()
    )
    return {**tensors, **added}, notes


def converted(tensors: Mapping[str, Any], own: Mapping[str, Any]) -> tuple[str, ...]:
    """Return notes on precisions that are converted to the network's.

    Args:
        tensors: Of the file; all names of ``own``.
        own: Of the network, by name.
    """
    pairs: dict[tuple[str, str], int] = {}
    for name, tensor in own.items():
        actual, wanted = _dtype(tensors[name]), _dtype(tensor)
        if actual != wanted:
            pairs[actual, wanted] = pairs.get((actual, wanted), 0) + 1
    return tuple(
        f"converted {count} tensors from {actual} to {wanted}"
        for (actual, wanted), count in sorted(pairs.items())
    )


def refuse(owner: str, network: str, mismatch: WeightsMismatch) -> CheckpointMismatch:
    """Return the error for weights of another network.

    Args:
        owner: The file.
        network: The network, such as ``"resnet18 of timm"``.
        mismatch: The differences.
    """
    listed = "".join(f"\n- {difference};" for difference in mismatch.sentences()).rstrip(";") + "."
    return CheckpointMismatch(
        f"{owner} does not hold the weights of {network}:{listed}\nName the model that the weights were saved from, "
        "with the arguments that it was built with.",
        subject=mismatch,
    )


def _dtype(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")

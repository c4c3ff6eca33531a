"""Compare the tensors of a checkpoint with a network: what is missing, unknown, or of another shape."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

from compatkit.errors import CheckpointMismatch

SHOWN = 3
"""Names of each kind that a message lists."""
COUNTER = ".num_batches_tracked"
"""Counters of batch normalisation, which torch did not save before 1.0."""
COMPARED = 2000
"""Names beyond which no near ones are looked for: comparing all with all takes minutes."""


@attrs.frozen
class WeightsMismatch:
    """How tensors differ from those of a network; false where they fit.

    Attributes:
        missing: Names of the network that are not there.
        unknown: Names that the network does not have.
        shapes: Names with the shape that is there and the one that is expected.
        kinds: Names with the dtype that is there and the one that is expected, where only one is a floating-point type.
    """

    missing: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    shapes: tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...] = ()
    kinds: tuple[tuple[str, str, str], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.missing or self.unknown or self.shapes or self.kinds)

    def told(self) -> Iterator[str]:
        """Yield one sentence for each way in which they differ, with the nearest name where a name is missing."""
        few = len(self.missing) + len(self.unknown) <= COMPARED
        if self.missing:
            near = (
                difflib.get_close_matches(one, self.unknown, 1, 0.8) if few else [] for one in self.missing
            )
            named = [
                f"{one} (there is {found[0]})" if found else one
                for one, found in zip(self.missing, near, strict=True)
            ]
            yield f"{_count(self.missing, 'tensor is', 'tensors are')} missing: {_some(named)}"
        if self.unknown:
            yield f"{_count(self.unknown, 'is', 'are')} not known to it: {_some(self.unknown)}"
        if self.shapes:
            named = [
                f"{name} is {_by(came)} where {_by(expected)} is expected"
                for name, came, expected in self.shapes
            ]
            yield f"{_count(self.shapes, 'has', 'have')} another shape: {_some(named)}"
        if self.kinds:
            named = [f"{name} is {came} where {expected} is expected" for name, came, expected in self.kinds]
            yield f"{_count(self.kinds, 'is', 'are')} of another kind: {_some(named)}"


def compare(tensors: Mapping[str, Any], own: Mapping[str, Any]) -> WeightsMismatch:
    """Return how tensors differ from a network's own; those of other precision fit.

    Args:
        tensors: By name.
        own: The network's state dict.
    """
    shapes: list[tuple[str, tuple[int, ...], tuple[int, ...]]] = []
    kinds: list[tuple[str, str, str]] = []
    for name in (one for one in own if one in tensors):
        came, wanted = tensors[name], own[name]
        dtypes = _dtype(came), _dtype(wanted)
        if tuple(came.shape) != tuple(wanted.shape):
            shapes.append((name, tuple(came.shape), tuple(wanted.shape)))
        elif ("float" in dtypes[0]) != ("float" in dtypes[1]):
            kinds.append((name, *dtypes))
    missing = tuple(name for name in own if name not in tensors)
    unknown = tuple(name for name in tensors if name not in own)
    return WeightsMismatch(missing, unknown, tuple(shapes), tuple(kinds))


def completed(tensors: Mapping[str, Any], own: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return the tensors with the counters that old files lack, and what was added, in words."""
    counters = [name for name in own if name.endswith(COUNTER) and name not in tensors]
    added = {name: own[name].new_zeros(()) for name in counters}
    told = (
        (f"set {len(counters)} counters of batch normalisation to 0, which old files lack",)
        if counters
        else ()
    )
    return {**tensors, **added}, told


def converted(tensors: Mapping[str, Any], own: Mapping[str, Any]) -> tuple[str, ...]:
    """Return in words which precisions are converted to the network's."""
    pairs: dict[tuple[str, str], int] = {}
    for name, one in own.items():
        came, wanted = _dtype(tensors[name]), _dtype(one)
        if came != wanted:
            pairs[came, wanted] = pairs.get((came, wanted), 0) + 1
    return tuple(
        f"converted {count} tensors from {came} to {wanted}"
        for (came, wanted), count in sorted(pairs.items())
    )


def refuse(whose: str, network: str, found: WeightsMismatch, fitting: Sequence[str]) -> CheckpointMismatch:
    """Return the error for weights of another network.

    Args:
        whose: The file.
        network: What it was compared with, such as ``"resnet18 of timm"``.
        found: How they differ.
        fitting: Networks that it does fit, as they would be named.
    """
    hint = "Name the model that the weights were saved from"
    if fitting:
        hint = f"Names and shapes are those of {' and of '.join(fitting)}: name that"
    listed = "".join(f"\n- {one};" for one in found.told()).rstrip(";") + "."
    return CheckpointMismatch(
        f"{whose} does not hold the weights of {network}:{listed}\n{hint}, with its arguments where it was built with "
        "others.",
        subject=found,
    )


def _dtype(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _count(names: Sequence[Any], one: str, several: str) -> str:
    return f"{len(names):,} {one if len(names) == 1 else several}"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def _by(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "a single number"

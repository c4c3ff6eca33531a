"""Compare the tensors of a checkpoint with a network: missing, unknown, or of another shape."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

from compatkit.errors import CheckpointMismatch, near

SHOWN = 3
"""Names of each kind listed in a message."""
COUNTER = ".num_batches_tracked"
"""Counters of batch normalisation, which torch has saved since 1.0."""
COMPARED = 2000
"""Most names for which similar ones are searched: comparing all with all takes minutes."""


@attrs.frozen
class WeightsMismatch:
    """Differences between tensors and a network; falsy if there are none.

    Attributes:
        missing: Names that only the network has.
        unknown: Names that only the tensors have.
        shapes: Name, actual and expected shape.
        kinds: Name, actual and expected dtype, if only one of them is floating-point.
    """

    missing: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    shapes: tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...] = ()
    kinds: tuple[tuple[str, str, str], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.missing or self.unknown or self.shapes or self.kinds)

    def told(self) -> Iterator[str]:
        """Yield one sentence per kind of difference, with similar names for missing ones."""
        few = len(self.missing) + len(self.unknown) <= COMPARED
        if self.missing:
            close = (near(one, self.unknown, 1, 0.8) if few else [] for one in self.missing)
            named = [
                f"{one} (there is {found[0]})" if found else one
                for one, found in zip(self.missing, close, strict=True)
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
    """Return the differences between tensors and a network; other floating-point precisions fit.

    Args:
        tensors: Tensors by name.
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
    """Return the tensors with counters that old files lack, and a note on them.

    Args:
        tensors: Of the file, by name.
        own: Of the network, by name.
    """
    counters = [name for name in own if name.endswith(COUNTER) and name not in tensors]
    added = {name: own[name].new_zeros(()) for name in counters}
    told = (
        (f"set {len(counters)} counters of batch normalisation to 0, which old files lack",)
        if counters
        else ()
    )
    return {**tensors, **added}, told


def converted(tensors: Mapping[str, Any], own: Mapping[str, Any]) -> tuple[str, ...]:
    """Return notes on precisions that are converted to the network's.

    Args:
        tensors: Of the file; all names of ``own``.
        own: Of the network, by name.
    """
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
        network: The network, such as ``"resnet18 of timm"``.
        found: The differences.
        fitting: Names of networks that the weights do fit.
    """
    hint = "Name the model that the weights were saved from"
    if fitting:
        hint = f"Names and shapes are those of {' and of '.join(fitting)}: name that"
    listed = "".join(f"\n- {one};" for one in found.told()).rstrip(";") + "."
    return CheckpointMismatch(
        f"{whose} does not hold the weights of {network}:{listed}\n{hint}, with the arguments that it was built with.",
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

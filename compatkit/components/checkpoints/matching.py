"""Hold the tensors of a checkpoint against a network: what is missing, what is not known, what has another shape."""

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
class Form:
    """Dtype, without ``torch.``, and shape of a tensor."""

    dtype: str
    shape: tuple[int, ...]

    @classmethod
    def of(cls, tensor: Any) -> Form:
        """Return the form of a tensor."""
        return cls(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))

    @property
    def fraction(self) -> bool:
        """Whether its numbers are fractions."""
        return "float" in self.dtype


@attrs.frozen
class Mismatch:
    """How tensors differ from those of a network; false where they fit.

    Attributes:
        missing: Names of the network that are not there.
        unknown: Names that the network has not.
        shapes: Names with the shape that is there and the one that is expected.
        kinds: Names with the dtype that is there and the one that is expected, where one counts and the other measures.
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


def compare(tensors: Mapping[str, Any], own: Mapping[str, Any]) -> Mismatch:
    """Return how tensors differ from a network's own; those of other precision fit.

    Args:
        tensors: By name.
        own: The network's state dict.
    """
    both = [(name, Form.of(tensors[name]), Form.of(own[name])) for name in own if name in tensors]
    return Mismatch(
        tuple(name for name in own if name not in tensors),
        tuple(name for name in tensors if name not in own),
        tuple((name, came.shape, wanted.shape) for name, came, wanted in both if came.shape != wanted.shape),
        tuple(
            (name, came.dtype, wanted.dtype)
            for name, came, wanted in both
            if came.shape == wanted.shape and came.fraction != wanted.fraction
        ),
    )


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
        came, wanted = Form.of(tensors[name]).dtype, Form.of(one).dtype
        if came != wanted:
            pairs[came, wanted] = pairs.get((came, wanted), 0) + 1
    return tuple(
        f"converted {count} tensors from {came} to {wanted}"
        for (came, wanted), count in sorted(pairs.items())
    )


def refuse(whose: str, network: str, found: Mismatch, fitting: Sequence[str]) -> CheckpointMismatch:
    """Return the error for weights of another network.

    Args:
        whose: The file.
        network: What it was held against, such as ``"resnet18 of timm"``.
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


def _count(names: Sequence[Any], one: str, several: str) -> str:
    return f"{len(names):,} {one if len(names) == 1 else several}"


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def _by(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "a single number"

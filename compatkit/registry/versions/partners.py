"""Find the partners lost by a change of ports: wired directly and without a warning before, but not after.

All possible partners count, by the rules of ``wiring``: outputs may narrow and inputs may widen, any other change
loses some partner. The images of an extractor and the consumers of a head's outputs are partners too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

import attrs

from compatkit.contracts.contract import Contract, Dimension, Port
from compatkit.contracts.ports import (
    channel_axis,
    dimension_at,
    dimension_text,
    may_be_equal,
    size_text,
    spatial_at,
)

Location = tuple[str | int, ...]
"""Keys and indices from the top of a manifest's JSON, such as ``("contract", "data", "size", 0)``."""
Side = Literal["inputs", "outputs"]

_RANK = {"NCHW": 4, "NHWC": 4, "NLC": 3, "NC": 2}


def lost_partners(old: Contract, new: Contract) -> Mapping[Location, str]:
    """Return the reasons for lost partners by location in the manifest; empty if no partner is lost.

    A partner with a warning after the change (signed features for a head trained on nonnegative ones) counts as lost,
    which is stricter than wiring. The number of classes is compared with the labels instead.

    Args:
        old: Contract of the version before.
        new: Contract of the candidate.
    """
    reasons: dict[Location, str] = {}
    if (old.structural, old.data) == (new.structural, new.data):
        return reasons
    for side in ("inputs", "outputs"):
        for location, reason in _losses_of_side(side, old, new):
            reasons.setdefault(location, reason)
    return reasons


def _losses_of_side(side: Side, old: Contract, new: Contract) -> Iterator[tuple[Location, str]]:
    before: Sequence[Port] = getattr(old.structural, side)
    after: Sequence[Port] = getattr(new.structural, side)
    top: Location = ("contract", "structural", side)
    for index in range(min(len(before), len(after)), max(len(before), len(after))):
        yield (*top, index), f"parts wired to {_tensors(len(before))} do not fit {_tensors(len(after))}"
    for index, (left, right) in enumerate(zip(before, after, strict=False)):
        if len(before) > 1 and len(after) > 1 and left.name != right.name:
            yield (*top, index, "name"), f"several tensors are matched by name, and {left.name!r} is gone"
        change = _PortChange(side, left, right, old, new)
        for locations, what in change.losses():
            for location in locations:
                relative = location[0] != "contract"
                yield ((*top, index, *location) if relative else location), change.sentence(what)


@attrs.frozen
class _PortChange:
    """Port before and after the change."""

    side: Side
    before: Port
    after: Port
    old: Contract
    new: Contract

    def sentence(self, what: str) -> str:
        """Return a sentence on the lost partners."""
        verb, preposition = ("take", "from") if self.side == "outputs" else ("give", "to")
        return f"parts that {verb} {what} {preposition} {self.before.name!r} no longer fit as they did"

    def losses(self) -> Iterator[tuple[list[Location], str]]:
        """Yield locations, relative to the port unless they begin with ``contract``, and the lost property."""
        before, after = self.before, self.after
        if before.dtype != after.dtype:
            yield [("dtype",)], before.dtype
        if self._warned():
            yield [("range",)], f"{'nonnegative' if self.side == 'outputs' else 'signed'} values"
        if self.side == "inputs" and before.multiple_of % after.multiple_of:
            yield [("multiple_of",)], f"sizes in steps of {before.multiple_of}"
        if before.layout != after.layout:
            yield [("layout",)], f"the layout {before.layout}"
        elif _regular(before) and _regular(after):
            yield from self._named_axes()
        else:
            yield from self._raw_axes()

    def _warned(self) -> bool:
        """Return whether signed values replace expected nonnegative ones, which causes a warning."""
        narrow = "signed" if self.side == "outputs" else "nonnegative"
        return self.after.range == narrow != self.before.range

    def _raw_axes(self) -> Iterator[tuple[list[Location], str]]:
        """Compare the axes of an unknown layout: each must still fit all sizes that it fitted."""
        if len(self.before.shape) != len(self.after.shape):
            yield [("shape",)], f"{len(self.before.shape)} axes"
            return
        for axis, (old, new) in enumerate(zip(self.before.shape, self.after.shape, strict=True)):
            left, right = dimension_at(old, self.old.data.size), dimension_at(new, self.new.data.size)
            if left != right and not (isinstance(right, str) and may_be_equal(left, right)):
                what = f"the size {dimension_text(left)} of axis {axis}"
                yield [("shape", axis), ("contract", "data", "size")], what

    def _named_axes(self) -> Iterator[tuple[list[Location], str]]:
        before, after = self.before, self.after
        if before.pooled != after.pooled:
            yield [("pooled",)], "pooled features" if before.pooled else "features that are not pooled"
        if before.layout != "NC" and before.prefix_tokens != after.prefix_tokens:
            yield [("prefix_tokens",)], f"{before.prefix_tokens} prefix tokens"
        channels = before.channels
        if _narrower(channels, after.channels) and not self._counts_classes():
            what = f"{channels if isinstance(channels, int) else 'any number of'} channels"
            yield [("shape", channel_axis(before))], what
        old, new = self._required_sizes(before, self.old), self._required_sizes(after, self.new)
        if new is not None and new != old:
            locations: list[Location] = [("shape", axis) for axis in before.spatial_axes]
            locations += [("measured",), ("contract", "data", "size")]
            yield locations, f"{size_text(old) if old is not None else 'any number of'} positions"

    def _required_sizes(self, port: Port, contract: Contract) -> tuple[int, ...] | None:
        """Return the spatial sizes that partners must match: known ones of an output, fixed ones of an input."""
        if self.side == "inputs" and not all(isinstance(size, int) for size in port.spatial):
            return None
        return spatial_at(port, contract.data.size) if port.spatial_axes else None

    def _counts_classes(self) -> bool:
        """Return whether the channels are the classes, before and after."""
        counts = [(self.before, self.old), (self.after, self.new)]
        return self.side == "outputs" and all(
            contract.data.labels is not None and port.channels == len(contract.data.labels)
            for port, contract in counts
        )


def _narrower(before: Dimension, after: Dimension) -> bool:
    """Return whether a dimension becomes another fixed size; a symbol accepts every size."""
    return isinstance(after, int) and before != after


def _regular(port: Port) -> bool:
    return _RANK.get(port.layout) == len(port.shape) and port.shape[0] == "N"


def _tensors(count: int) -> str:
    return "1 tensor" if count == 1 else f"{count} tensors"

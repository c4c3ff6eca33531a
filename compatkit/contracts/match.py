"""Compare the outputs of an extractor with the inputs of a head, and choose adapters.

If an adapter resolves a difference, the comparison continues with the adapter's output port, so differences are listed
in the order of the adapters: ``cast`` to a wider dtype before all arithmetic; ``drop-tokens``, ``pool`` or ``resize``,
and ``permute`` (tokens become a map before a resize, a map is resized before it becomes tokens, because a token count
does not determine the grid); ``project`` last, in the head's layout and at its sizes, because it is fitted there; then
``cast`` to a narrower dtype.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import attrs

from compatkit.contracts.contract import Blueprint, Data, Port
from compatkit.contracts.ports import (
    Sides,
    SizedPorts,
    dimension_at,
    dimension_text,
    grid,
    grid_at,
    has_known_layout,
    may_be_equal,
    size_text,
    spatial_at,
)
from compatkit.contracts.report import Finding, Severity
from compatkit.contracts.stitch import (
    cast,
    describe_missing,
    drop_tokens,
    on_port,
    permute,
    pool,
    port_after,
    project,
    resize,
)
from compatkit.errors import IncompatibleError

BITS = {"float16": 16, "bfloat16": 16, "float32": 32, "float64": 64}
"""Dtypes of features with adapters between them, by size in bits."""
FORMS = {"NC": "a vector", "NLC": "tokens"}
BEFORE_POOLING = "cut the extractor before its pooling"
AVERAGED = "not averaged", "averaged over positions"
SAME_TENSORS = "cut both networks where the same tensors cross"


class WiringDifference(NamedTuple):
    """A difference between the ports at a cut.

    Attributes:
        code: Code of the finding.
        severity: Severity of the finding.
        expected: Value that the head requires.
        actual: Value that the extractor provides.
        remedy: Advice for a difference without adapter.
        adapter: Adapter that resolves it; None if there is none.
        port_index: Index of the port; None for a difference between all ports.
    """

    code: str
    severity: Severity
    expected: str
    actual: str
    remedy: str = ""
    adapter: Blueprint | None = None
    port_index: int | None = None

    def finding(self, provided: SizedPorts, required: SizedPorts) -> Finding:
        """Return the finding for this difference.

        Args:
            provided: Outputs of the extractor.
            required: Inputs of the head.
        """
        remedy = self.remedy if self.adapter is None else describe_missing(self.adapter)
        subject = "head inputs expect, extractor outputs give"
        if self.port_index is not None:
            names = required.ports[self.port_index].name, provided.ports[self.port_index].name
            subject = f"head input {names[0]!r} expects, extractor output {names[1]!r} gives"
        return Finding(self.code, "structural", self.severity, self.expected, self.actual, subject, remedy)


def wiring(provided: SizedPorts, required: SizedPorts, fitted: bool = False) -> Sequence[WiringDifference]:
    """Return the differences between the extractor's outputs and the head's inputs, in the order of their adapters.

    A single output and a single input are matched regardless of names; several are matched by name and order.

    Args:
        provided: Outputs of the extractor.
        required: Inputs of the head.
        fitted: Whether to include a projection even if the widths are equal.
    """
    provided_names, names = ([port.name for port in side.ports] for side in (provided, required))
    if not len(names) == len(provided_names) == 1 and provided_names != names:
        expected, actual = [
            f"{len(tensors)} tensors ({', '.join(tensors)})" for tensors in (names, provided_names)
        ]
        return [WiringDifference("ports-differ", "refuses", expected, actual, SAME_TENSORS)]
    return [
        difference
        for index, (port, target) in enumerate(zip(provided.ports, required.ports, strict=True))
        for difference in PortComparison(
            port, target, provided.size, required.size, fitted, index
        ).differences()
    ]


def wiring_findings(provided: SizedPorts, required: SizedPorts) -> list[Finding]:
    """Return the finding of each difference of ``wiring``."""
    return [difference.finding(provided, required) for difference in wiring(provided, required)]


def adapters_for(
    outputs: Sequence[Port], inputs: Sequence[Port], data: Data, head_data: Data, *, fitted: bool = False
) -> tuple[Blueprint, ...]:
    """Return the adapters between the outputs and the head, in order; empty if the ports fit without adapters.

    Each adapter resolves one adaptable difference of ``wiring``.

    Args:
        outputs: Output ports of the extractor.
        inputs: Input ports of the head.
        data: Preprocessing of the extractor; the image size determines the sizes at its outputs.
        head_data: Preprocessing of the images that the head was trained on.
        fitted: Whether to include a projection even if the widths are equal.

    Raises:
        IncompatibleError: No sequence of adapters makes the ports fit.
    """
    provided, required = SizedPorts(tuple(outputs), data.size), SizedPorts(tuple(inputs), head_data.size)
    differences, count = wiring(provided, required, fitted), len(outputs)
    refused = [
        str(difference.finding(provided, required))
        for difference in differences
        if difference.severity == "refuses"
    ]
    if refused:
        raise IncompatibleError("No adapter makes these parts fit:\n" + "\n".join(refused))
    return tuple(
        on_port(difference.adapter, difference.port_index, count)
        if count > 1 and difference.port_index is not None
        else difference.adapter
        for difference in differences
        if difference.adapter is not None
    )


@attrs.define
class PortComparison:
    """Comparison of one extractor output with one head input.

    Attributes:
        port: Output of the extractor, after the adapters chosen so far.
        target: Input of the head.
        size: Size of the extractor's images.
        head_size: Size of the images that the head was trained on.
        fitted: Whether to include a projection even if the widths are equal, at the head's sizes.
        index: Index of the port.
    """

    port: Port
    target: Port
    size: Sides
    head_size: Sides
    fitted: bool = False
    index: int = 0
    _differences: list[WiringDifference] = attrs.field(factory=list)

    def differences(self) -> list[WiringDifference]:
        """Return the differences with their adapters, in order."""
        port, target = self.port, self.target
        casts = port.dtype != target.dtype
        if casts:
            self._dtype(last=False)
        if not (has_known_layout(target) and has_known_layout(port)):
            self._raw_shapes()
        else:
            if (port.layout == "NC") != (target.layout == "NC"):
                self._rank()
            elif port.pooled != target.pooled:
                self._pooled()
            elif port.layout != "NC":
                self._tokens()
                if port.layout != "NLC":
                    self._positions()
                if self._layout() and port.layout == "NLC":
                    self._positions()
            self._channels()
        if target.range == "nonnegative" and port.range == "signed":
            remedy = "cut the extractor after its activation"
            self._add("range-differs", "nonnegative features (after ReLU)", "signed features", remedy)
        if casts:
            self._dtype(last=True)
        return self._differences

    def _add(
        self,
        code: str,
        expected: str,
        actual: str,
        remedy: str = "",
        severity: Severity = "warns",
        adapter: Blueprint | None = None,
    ) -> None:
        self._differences.append(
            WiringDifference(code, severity, expected, actual, remedy, adapter, self.index)
        )

    def _refuse(self, code: str, expected: str, actual: str, remedy: str) -> None:
        self._add(code, expected, actual, remedy, "refuses")

    def _adapt(self, code: str, expected: str, actual: str, adapter: Blueprint) -> None:
        self._add(code, expected, actual, "", "adaptable", adapter)
        self.port = port_after(self.port, adapter)

    def _dtype(self, *, last: bool) -> None:
        provided, required = self.port.dtype, self.target.dtype
        known = provided in BITS and required in BITS
        if known and last == (BITS[provided] > BITS[required]):
            self._adapt("dtype-differs", required, provided, cast(required, self.size))
        elif not known and not last:
            self._refuse("dtype-differs", required, provided, "cut where floating-point features cross")

    def _raw_shapes(self) -> None:
        """Compare ports without a batch axis or known layout: shapes must be equal."""
        provided = [dimension_at(dimension, self.size) for dimension in self.port.shape]
        required = [dimension_at(dimension, self.head_size) for dimension in self.target.shape]
        fits = len(provided) == len(required) and self.port.layout == self.target.layout
        if fits and all(may_be_equal(*pair) for pair in zip(provided, required, strict=True)):
            return
        expected, actual = (
            f"{' x '.join(map(dimension_text, shape))} ({side.layout})"
            for shape, side in ((required, self.target), (provided, self.port))
        )
        self._refuse("layout-differs", expected, actual, SAME_TENSORS)

    def _rank(self) -> None:
        expected, actual = (
            f"{FORMS.get(port.layout, 'a map')} ({port.layout})" for port in (self.target, self.port)
        )
        if self.target.layout == "NC":
            self._adapt("rank-differs", expected, actual, pool(self.port, "NC", self.size))
            if not self.target.pooled:
                self._add("pooled-differs", *AVERAGED)
        else:
            self._refuse("rank-differs", expected, actual, BEFORE_POOLING)

    def _pooled(self) -> None:
        expected, actual = AVERAGED if self.port.pooled else AVERAGED[::-1]
        if self.target.layout == "NC":
            self._add("pooled-differs", expected, actual)
        elif self.target.pooled:
            self._adapt("pooled-differs", expected, actual, pool(self.port, self.target.layout, self.size))
        else:
            self._refuse("pooled-differs", expected, actual, BEFORE_POOLING)

    def _tokens(self) -> None:
        provided, required = self.port.prefix_tokens, self.target.prefix_tokens
        text = f"{required} prefix tokens", f"{provided} prefix tokens"
        if provided > required:
            self._adapt("tokens-differ", *text, drop_tokens(required, provided - required, self.size))
        elif provided < required:
            self._refuse("tokens-differ", *text, "use a model with class tokens")

    def _positions(self) -> None:
        provided, required = spatial_at(self.port, self.size), spatial_at(self.target, self.head_size)
        if provided is None or required is None:
            return
        sides, target_sides = grid(provided, self.size), grid(required, self.head_size)
        fixed = all(isinstance(dimension, int) for dimension in self.target.spatial)
        maps = len(provided) + len(required) > 2  # two token ports are compared by their counts
        if (sides == target_sides) if maps and sides and target_sides else (prod(provided) == prod(required)):
            return
        actual = f"{size_text(provided)} positions for images of {size_text(self.size)}"
        if sides and target_sides and (fixed or self._projects):
            # A projection is fitted at the head's own positions and works badly at other sizes.
            reason = "fixed" if fixed else "as the projection is fitted to"
            adapter = resize(self.port, target_sides, sides, self.size)
            self._adapt("spatial-differs", f"{size_text(target_sides)} positions, {reason}", actual, adapter)
        elif not fixed:
            actual += "; absorbed, as the head takes any size"
            expected = f"any size; trained on {size_text(required)} positions"
            self._add("spatial-differs", expected, actual, severity="informs")
        else:
            expected = f"{size_text(required)} positions, fixed"
            self._refuse("spatial-differs", expected, actual, _unknown_sides(self.size))

    def _layout(self) -> bool:
        """Compare the layouts; return whether that of the port, after an adapter, is the head's."""
        if self.port.layout == self.target.layout:
            return True
        sides = grid_at(self.port, self.size)
        # An unknown token count from square images gives a square grid.
        known = spatial_at(self.port, self.size) is not None or self.size[0] != self.size[1]
        if self.port.layout == "NLC" and sides is None and known:
            self._refuse("layout-differs", self.target.layout, self.port.layout, _unknown_sides(self.size))
        elif self.target.prefix_tokens == self.port.prefix_tokens:
            adapter = permute(self.port, self.target.layout, sides, self.size)
            self._adapt("layout-differs", self.target.layout, self.port.layout, adapter)
        return self.port.layout == self.target.layout

    @property
    def _projects(self) -> bool:
        provided, required = self.port.channels, self.target.channels
        return (
            (self.fitted or provided != required) and isinstance(provided, int) and isinstance(required, int)
        )

    def _channels(self) -> None:
        provided, required = self.port.channels, self.target.channels
        if self._projects and isinstance(provided, int) and isinstance(required, int):
            adapter = project(self.port, required, self.target.range == "nonnegative", self.size)
            # Only the dtype is compared after this, so the port after the projection is not computed.
            text = f"{required} channels", f"{provided} channels"
            self._add("channels-differ", *text, "", "adaptable", adapter)


def _unknown_sides(size: Sides) -> str:
    return f"use images whose tokens form a grid of their aspect ratio, {size_text(size)}"

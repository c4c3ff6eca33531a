"""The structural level: whether an extractor's outputs can enter a head, and through which adapters.

If ports differ and an adapter resolves it, the comparison continues with the adapter's output port, so differences come
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
    agree,
    by,
    grid,
    grid_at,
    regular,
    resolved,
    shown,
    spatial_at,
)
from compatkit.contracts.report import Finding, Severity
from compatkit.contracts.stitch import (
    behind,
    cast,
    drop_tokens,
    needed,
    on_port,
    permute,
    pool,
    project,
    resize,
)
from compatkit.errors import IncompatibleError

BITS = {"float16": 16, "bfloat16": 16, "float32": 32, "float64": 64}
"""Dtypes of features that can be cast into each other."""
FORMS = {"NC": "a vector", "NLC": "tokens"}
BEFORE_POOLING = "cut the extractor before its pooling"
AVERAGED = "not averaged", "averaged over positions"
SAME_TENSORS = "cut both networks where the same tensors cross"


class WiringDifference(NamedTuple):
    """A difference at a cut.

    Attributes:
        adapter: Adapter that resolves it; None if there is none.
        place: Index of the port; None for a difference between all ports.
    """

    code: str
    severity: Severity
    expected: str
    actual: str
    remedy: str = ""
    adapter: Blueprint | None = None
    place: int | None = None

    def finding(self, provided: SizedPorts, required: SizedPorts) -> Finding:
        """Return the finding for this difference between ``provided`` and ``required``.

        Args:
            provided: What the extractor gives.
            required: What the head takes.
        """
        remedy = self.remedy if self.adapter is None else needed(self.adapter)
        subject = "head inputs expect, extractor outputs give"
        if self.place is not None:
            names = required.ports[self.place].name, provided.ports[self.place].name
            subject = f"head input {names[0]!r} expects, extractor output {names[1]!r} gives"
        return Finding(self.code, "structural", self.severity, self.expected, self.actual, subject, remedy)


def wiring(provided: SizedPorts, required: SizedPorts, fitted: bool = False) -> Sequence[WiringDifference]:
    """Return the differences that keep the extractor's outputs from entering the head unchanged.

    One output and one input are matched regardless of names; several are matched by name and order.

    Args:
        provided: Outputs of the extractor.
        required: Inputs of the head.
        fitted: Include a projection even if the widths are equal.
    """
    provided_names, names = ([port.name for port in side.ports] for side in (provided, required))
    if not len(names) == len(provided_names) == 1 and provided_names != names:
        expected, gives = [
            f"{len(tensors)} tensors ({', '.join(tensors)})" for tensors in (names, provided_names)
        ]
        return [WiringDifference("ports-differ", "refuses", expected, gives, SAME_TENSORS)]
    return [
        difference
        for place, (port, taken) in enumerate(zip(provided.ports, required.ports, strict=True))
        for difference in Walk(port, taken, provided.size, required.size, fitted, place).differences()
    ]


def adapters_for(
    outputs: Sequence[Port], inputs: Sequence[Port], data: Data, head_data: Data, *, fitted: bool = False
) -> tuple[Blueprint, ...]:
    """Return the adapters that let the outputs enter the head, in order; empty if they fit already.

    Each resolves one adaptable difference that ``wiring`` finds.

    Args:
        outputs: Output ports of the extractor.
        inputs: Input ports of the head.
        data: Images of the extractor; their size determines the sizes at its outputs.
        head_data: Images that the head was trained on.
        fitted: Include a projection even if the widths are equal.

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
        on_port(difference.adapter, difference.place, count)
        if count > 1 and difference.place is not None
        else difference.adapter
        for difference in differences
        if difference.adapter is not None
    )


@attrs.define
class Walk:
    """Comparison of one extractor output with one head input.

    Attributes:
        port: The features after the adapters found so far.
        taken: What the head requires.
        size: Size of the extractor's images.
        trained: Size of the images that the head was trained on.
        fitted: Whether to include a projection in any case, at the head's sizes.
        place: Index of the port.
    """

    port: Port
    taken: Port
    size: Sides
    trained: Sides
    fitted: bool = False
    place: int = 0
    _differences: list[WiringDifference] = attrs.field(factory=list)

    def differences(self) -> list[WiringDifference]:
        """Return the differences with their adapters, in order."""
        port, taken = self.port, self.taken
        converts = port.dtype != taken.dtype
        if converts:
            self._dtype(at_the_end=False)
        if not (regular(taken) and regular(port)):
            self._raw_shapes()
        else:
            if (port.layout == "NC") != (taken.layout == "NC"):
                self._rank()
            elif port.pooled != taken.pooled:
                self._pooled()
            elif port.layout != "NC":
                self._tokens()
                if port.layout != "NLC":
                    self._positions()
                if self._layout() and port.layout == "NLC":
                    self._positions()
            self._channels()
        if taken.range == "nonnegative" and port.range == "signed":
            remedy = "cut the extractor after its activation"
            self._says("range-differs", "nonnegative features (after ReLU)", "signed features", remedy)
        if converts:
            self._dtype(at_the_end=True)
        return self._differences

    def _says(
        self,
        code: str,
        expected: str,
        actual: str,
        remedy: str = "",
        severity: Severity = "warns",
        adapter: Blueprint | None = None,
    ) -> None:
        self._differences.append(
            WiringDifference(code, severity, expected, actual, remedy, adapter, self.place)
        )

    def _refuses(self, code: str, expected: str, actual: str, remedy: str) -> None:
        self._says(code, expected, actual, remedy, "refuses")

    def _adapts(self, code: str, expected: str, actual: str, adapter: Blueprint) -> None:
        self._says(code, expected, actual, "", "adaptable", adapter)
        self.port = behind(self.port, adapter)

    def _dtype(self, *, at_the_end: bool) -> None:
        provided, required = self.port.dtype, self.taken.dtype
        known = provided in BITS and required in BITS
        if known and at_the_end == (BITS[provided] > BITS[required]):
            self._adapts("dtype-differs", required, provided, cast(required, self.size))
        elif not known and not at_the_end:
            self._refuses("dtype-differs", required, provided, "cut where floating-point features cross")

    def _raw_shapes(self) -> None:
        """Compare ports without a batch axis or known layout: shapes must be equal."""
        provided = [resolved(dimension, self.size) for dimension in self.port.shape]
        required = [resolved(dimension, self.trained) for dimension in self.taken.shape]
        fits = len(provided) == len(required) and self.port.layout == self.taken.layout
        if fits and all(agree(*pair) for pair in zip(provided, required, strict=True)):
            return
        wanted, actual = (
            f"{' x '.join(map(shown, shape))} ({side.layout})"
            for shape, side in ((required, self.taken), (provided, self.port))
        )
        self._refuses("layout-differs", wanted, actual, SAME_TENSORS)

    def _rank(self) -> None:
        wanted, actual = (
            f"{FORMS.get(port.layout, 'a map')} ({port.layout})" for port in (self.taken, self.port)
        )
        if self.taken.layout == "NC":
            self._adapts("rank-differs", wanted, actual, pool(self.port, "NC", self.size))
            if not self.taken.pooled:
                self._says("pooled-differs", *AVERAGED)
        else:
            self._refuses("rank-differs", wanted, actual, BEFORE_POOLING)

    def _pooled(self) -> None:
        wanted, actual = AVERAGED if self.port.pooled else AVERAGED[::-1]
        if self.taken.layout == "NC":
            self._says("pooled-differs", wanted, actual)
        elif self.taken.pooled:
            self._adapts("pooled-differs", wanted, actual, pool(self.port, self.taken.layout, self.size))
        else:
            self._refuses("pooled-differs", wanted, actual, BEFORE_POOLING)

    def _tokens(self) -> None:
        provided, required = self.port.prefix_tokens, self.taken.prefix_tokens
        text = f"{required} prefix tokens", f"{provided} prefix tokens"
        if provided > required:
            self._adapts("tokens-differ", *text, drop_tokens(required, provided - required, self.size))
        elif provided < required:
            self._refuses("tokens-differ", *text, "use a model with class tokens")

    def _positions(self) -> None:
        provided, required = spatial_at(self.port, self.size), spatial_at(self.taken, self.trained)
        if provided is None or required is None:
            return
        sides, wanted = grid(provided, self.size), grid(required, self.trained)
        fixed = all(isinstance(dimension, int) for dimension in self.taken.spatial)
        maps = len(provided) + len(required) > 2  # two token ports are compared by their counts
        if (sides == wanted) if maps and sides and wanted else (prod(provided) == prod(required)):
            return
        actual = f"{by(provided)} positions for images of {by(self.size)}"
        if sides and wanted and (fixed or self._projects):
            # A projection is fitted at the head's own positions and works badly at other sizes.
            expected = f"{by(wanted)} positions, {'fixed' if fixed else 'as the projection is fitted to'}"
            self._adapts("spatial-differs", expected, actual, resize(self.port, wanted, sides, self.size))
        elif not fixed:
            actual += "; absorbed, as the head takes any size"
            self._says(
                "spatial-differs",
                f"any size; trained on {by(required)} positions",
                actual,
                severity="informs",
            )
        else:
            self._refuses(
                "spatial-differs", f"{by(required)} positions, fixed", actual, _unknown_sides(self.size)
            )

    def _layout(self) -> bool:
        """Return whether the layout now equals the head's."""
        if self.port.layout == self.taken.layout:
            return True
        sides = grid_at(self.port, self.size)
        # An unknown token count from square images gives a square grid.
        known = spatial_at(self.port, self.size) is not None or self.size[0] != self.size[1]
        if self.port.layout == "NLC" and sides is None and known:
            self._refuses("layout-differs", self.taken.layout, self.port.layout, _unknown_sides(self.size))
        elif self.taken.prefix_tokens == self.port.prefix_tokens:
            adapter = permute(self.port, self.taken.layout, sides, self.size)
            self._adapts("layout-differs", self.taken.layout, self.port.layout, adapter)
        return self.port.layout == self.taken.layout

    @property
    def _projects(self) -> bool:
        provided, required = self.port.channels, self.taken.channels
        return (
            (self.fitted or provided != required) and isinstance(provided, int) and isinstance(required, int)
        )

    def _channels(self) -> None:
        provided, required = self.port.channels, self.taken.channels
        if self._projects and isinstance(provided, int) and isinstance(required, int):
            adapter = project(self.port, required, self.taken.range == "nonnegative", self.size)
            # Only the dtype is compared after this, so the port behind the projection is not computed.
            text = f"{required} channels", f"{provided} channels"
            self._says("channels-differ", *text, "", "adaptable", adapter)


def _unknown_sides(size: Sides) -> str:
    return f"give images whose tokens form a grid of their proportions, {by(size)}"

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
    AtSize,
    Sides,
    agree,
    at_size,
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


class Outputs(NamedTuple):
    """Inputs of the wiring rule for an extractor: its output ports, and the size of its images."""

    ports: tuple[Port, ...]
    size: Sides


class Inputs(NamedTuple):
    """Inputs of the wiring rule for a head.

    Attributes:
        names: Names of its input ports.
        taken: What they require, at the size of the images that the head was trained on.
    """

    names: tuple[str, ...]
    taken: tuple[AtSize, ...]


def outputs_of(ports: Sequence[Port], data: Data) -> Outputs:
    """Return the wiring inputs of an extractor for images described by ``data``.

    Args:
        ports: Its output ports.
        data: Description of the images.
    """
    return Outputs(tuple(ports), data.size)


def inputs_of(ports: Sequence[Port], data: Data) -> Inputs:
    """Return the wiring inputs of a head trained on images described by ``data``.

    Args:
        ports: Its input ports.
        data: Description of the images.
    """
    return Inputs(tuple([port.name for port in ports]), tuple([at_size(port, data.size) for port in ports]))


class WiringDifference(NamedTuple):
    """A difference at a seam.

    Attributes:
        adapter: Adapter that resolves it; None if there is none.
        place: Index of the port; None for a difference between all ports.
    """

    code: str
    severity: Severity
    expected: str
    came: str
    remedy: str = ""
    adapter: Blueprint | None = None
    place: int | None = None

    def finding(self, given: Outputs, asked: Inputs) -> Finding:
        """Return the finding for this difference between ``given`` and ``asked``.

        Args:
            given: What the extractor gives.
            asked: What the head takes.
        """
        remedy = self.remedy if self.adapter is None else needed(self.adapter)
        whose = "head inputs expect, extractor outputs give"
        if self.place is not None:
            names = asked.names[self.place], given.ports[self.place].name
            whose = f"head input {names[0]!r} expects, extractor output {names[1]!r} gives"
        return Finding(self.code, "structural", self.severity, self.expected, self.came, whose, remedy)


def wiring(given: Outputs, asked: Inputs, fitted: bool = False) -> Sequence[WiringDifference]:
    """Return the differences that keep the extractor's outputs from entering the head unchanged.

    One output and one input are matched regardless of names; several are matched by name and order.

    Args:
        given: Outputs of the extractor.
        asked: Inputs of the head.
        fitted: Include a projection even if the widths are equal.
    """
    names, ports = asked.names, given.ports
    if len(ports) == len(names) == 1:
        return Walk(ports[0], asked.taken[0], given.size, fitted, 0).differences()
    came = tuple(port.name for port in ports)
    if came != names:
        expected, gives = [f"{len(one)} tensors ({', '.join(one)})" for one in (names, came)]
        return [WiringDifference("ports-differ", "refuses", expected, gives, SAME_TENSORS)]
    return [
        one
        for place, (port, taken) in enumerate(zip(ports, asked.taken, strict=True))
        for one in Walk(port, taken, given.size, fitted, place).differences()
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
    given, asked = outputs_of(outputs, data), inputs_of(inputs, head_data)
    found, count = wiring(given, asked, fitted), len(outputs)
    refused = [str(one.finding(given, asked)) for one in found if one.severity == "refuses"]
    if refused:
        raise IncompatibleError("No adapter makes these parts fit:\n" + "\n".join(refused))
    return tuple(
        on_port(one.adapter, one.place, count) if count > 1 and one.place is not None else one.adapter
        for one in found
        if one.adapter is not None
    )


@attrs.define
class Walk:
    """Comparison of one extractor output with one head input.

    Attributes:
        port: The features after the adapters found so far.
        taken: What the head requires, at the size of the images it was trained on.
        size: Size of the extractor's images.
        fitted: Whether to include a projection in any case, at the head's sizes.
        place: Index of the port.
    """

    port: Port
    taken: AtSize
    size: Sides
    fitted: bool = False
    place: int = 0
    found: list[WiringDifference] = attrs.field(factory=list)

    def differences(self) -> list[WiringDifference]:
        """Return the differences with their adapters, in order."""
        port, taken = self.port, self.taken
        converts = port.dtype != taken.dtype
        if converts:
            self._dtype(at_the_end=False)
        if not (taken.regular and regular(port)):
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
        return self.found

    def _says(
        self,
        code: str,
        expected: str,
        came: str,
        remedy: str = "",
        severity: Severity = "warns",
        adapter: Blueprint | None = None,
    ) -> None:
        self.found.append(WiringDifference(code, severity, expected, came, remedy, adapter, self.place))

    def _refuses(self, code: str, expected: str, came: str, remedy: str) -> None:
        self._says(code, expected, came, remedy, "refuses")

    def _adapts(self, code: str, expected: str, came: str, adapter: Blueprint) -> None:
        self._says(code, expected, came, "", "adaptable", adapter)
        self.port = behind(self.port, adapter)

    def _dtype(self, *, at_the_end: bool) -> None:
        given, asked = self.port.dtype, self.taken.dtype
        known = given in BITS and asked in BITS
        if known and at_the_end == (BITS[given] > BITS[asked]):
            self._adapts("dtype-differs", asked, given, cast(asked, self.size))
        elif not known and not at_the_end:
            self._refuses("dtype-differs", asked, given, "cut where floating-point features cross")

    def _raw_shapes(self) -> None:
        """Compare ports without a batch axis or known layout: shapes must be equal."""
        given = [resolved(one, self.size) for one in self.port.shape]
        asked = self.taken.shape
        fits = len(given) == len(asked) and self.port.layout == self.taken.layout
        if fits and all(agree(*pair) for pair in zip(given, asked, strict=True)):
            return
        wanted, came = (
            f"{' x '.join(map(shown, shape))} ({one.layout})"
            for shape, one in ((asked, self.taken), (given, self.port))
        )
        self._refuses("layout-differs", wanted, came, SAME_TENSORS)

    def _rank(self) -> None:
        wanted, came = (f"{FORMS.get(one.layout, 'a map')} ({one.layout})" for one in (self.taken, self.port))
        if self.taken.layout == "NC":
            self._adapts("rank-differs", wanted, came, pool(self.port, "NC", self.size))
            if not self.taken.pooled:
                self._says("pooled-differs", *AVERAGED)
        else:
            self._refuses("rank-differs", wanted, came, BEFORE_POOLING)

    def _pooled(self) -> None:
        wanted, came = AVERAGED if self.port.pooled else AVERAGED[::-1]
        if self.taken.layout == "NC":
            self._says("pooled-differs", wanted, came)
        elif self.taken.pooled:
            self._adapts("pooled-differs", wanted, came, pool(self.port, self.taken.layout, self.size))
        else:
            self._refuses("pooled-differs", wanted, came, BEFORE_POOLING)

    def _tokens(self) -> None:
        given, asked = self.port.prefix_tokens, self.taken.prefix_tokens
        text = f"{asked} prefix tokens", f"{given} prefix tokens"
        if given > asked:
            self._adapts("tokens-differ", *text, drop_tokens(asked, given - asked, self.size))
        elif given < asked:
            self._refuses("tokens-differ", *text, "use a model with class tokens")

    def _positions(self) -> None:
        given, asked = spatial_at(self.port, self.size), self.taken.positions
        if given is None or asked is None:
            return
        sides, wanted, fixed = grid(given, self.size), self.taken.sides, self.taken.fixed
        maps = len(given) + len(asked) > 2  # two token ports are compared by their counts
        if (sides == wanted) if maps and sides and wanted else (prod(given) == prod(asked)):
            return
        came = f"{by(given)} positions for images of {by(self.size)}"
        if sides and wanted and (fixed or self._projects):
            # A projection is fitted at the head's own positions and works badly at other sizes.
            expected = f"{by(wanted)} positions, {'fixed' if fixed else 'as the projection is fitted to'}"
            self._adapts("spatial-differs", expected, came, resize(self.port, wanted, sides, self.size))
        elif not fixed:
            came += "; absorbed, as the head takes any size"
            self._says(
                "spatial-differs", f"any size; trained on {by(asked)} positions", came, severity="informs"
            )
        else:
            self._refuses("spatial-differs", f"{by(asked)} positions, fixed", came, _unknown_sides(self.size))

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
        given, asked = self.port.channels, self.taken.channels
        return (self.fitted or given != asked) and isinstance(given, int) and isinstance(asked, int)

    def _channels(self) -> None:
        given, asked = self.port.channels, self.taken.channels
        if self._projects and isinstance(given, int) and isinstance(asked, int):
            adapter = project(self.port, asked, self.taken.range == "nonnegative", self.size)
            # Only the dtype is compared after this, so the port behind the projection is not computed.
            text = f"{asked} channels", f"{given} channels"
            self._says("channels-differ", *text, "", "adaptable", adapter)


def _unknown_sides(size: Sides) -> str:
    return f"give images whose tokens form a grid of their proportions, {by(size)}"

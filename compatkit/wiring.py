"""The structural level of a check: can what leaves one component enter the other, and with which adapters?

One walk along the seam finds both: where the ports differ and an adapter mends it, the walk goes on with the port
that the adapter leaves behind. So the findings come in the order of the adapters: ``cast`` to a wider type before
all arithmetic, ``drop-tokens``, ``pool`` or ``resize`` and ``permute`` (tokens become a map before it is resized, a map
is resized before it becomes tokens: their count alone does not tell the grid), and ``project`` in the head's layout
and at its sizes, because there it is fitted; ``cast`` to a narrower type at the end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

import attrs

from compatkit.adaptation import after, cast, described, drop_tokens, on_port, permute, pool, project, resize
from compatkit.contract import Blueprint, Data, Port
from compatkit.errors import IncompatibleError
from compatkit.ports import Sides, agree, by, grid, grid_at, resolved, shown, spatial_at
from compatkit.verdict import Finding

BITS = {"float16": 16, "bfloat16": 16, "float32": 32, "float64": 64}
"""Between these types features can be converted."""
FORMS = {"NC": "a vector", "NLC": "tokens"}
BEFORE_POOLING = "cut the extractor before its pooling"
AVERAGED = "not averaged", "averaged over positions"
SAME_TENSORS = "cut both networks where the same tensors cross"


def wiring_findings(
    outputs: Sequence[Port], inputs: Sequence[Port], data: Data, head_data: Data
) -> Iterator[Finding]:
    """Yield what keeps the extractor's outputs from entering the head as they are.

    One output and one input are wired whatever their names; several are matched by name, in order.

    Args:
        outputs: Of the extractor.
        inputs: Of the head.
        data: Images of the extractor: the sizes at its outputs follow from their size.
        head_data: Images that the head was trained on.
    """
    for finding, _ in _seams(outputs, inputs, data, head_data):
        yield finding


def adapters_for(
    outputs: Sequence[Port], inputs: Sequence[Port], data: Data, head_data: Data
) -> tuple[Blueprint, ...]:
    """Return the adapters that make the outputs enter the head, in order; none where they do already.

    Each is the remedy of one adaptable finding of ``wiring_findings``, which takes the same arguments.

    Raises:
        IncompatibleError: No adapters make the ports fit.
    """
    seams = list(_seams(outputs, inputs, data, head_data))
    refused = [str(finding) for finding, _ in seams if finding.severity == "refuses"]
    if refused:
        raise IncompatibleError("No adapter makes these parts fit:\n" + "\n".join(refused))
    return tuple(adapter for _, adapter in seams if adapter is not None)


def _seams(
    outputs: Sequence[Port], inputs: Sequence[Port], data: Data, head_data: Data
) -> Iterator[tuple[Finding, Blueprint | None]]:
    given, asked = [port.name for port in outputs], [port.name for port in inputs]
    if len(given) != len(asked) or (len(given) > 1 and given != asked):
        yield (
            Finding(
                "ports-differ",
                "structural",
                "refuses",
                f"{len(asked)} tensors ({', '.join(asked)})",
                f"{len(given)} tensors ({', '.join(given)})",
                "head inputs expect, extractor outputs give",
                SAME_TENSORS,
            ),
            None,
        )
        return
    for index, (output, taken) in enumerate(zip(outputs, inputs, strict=True)):
        for finding, adapter in _Seam(output, taken, data.size, head_data.size).walk():
            if adapter is not None and len(given) > 1:
                adapter = on_port(adapter, index, len(given))
            yield finding, adapter


@attrs.define
class _Seam:
    """One output of an extractor against one input of a head.

    Attributes:
        port: What the features are after the adapters found so far.
        taken: What the head takes.
        size: Of the extractor's images.
        head_size: Of the images that the head was trained on.
    """

    port: Port
    taken: Port
    size: Sides
    head_size: Sides
    found: list[tuple[Finding, Blueprint | None]] = attrs.field(factory=list)

    def walk(self) -> list[tuple[Finding, Blueprint | None]]:
        """Return what differs, with the adapter that mends it, in order."""
        port, taken = self.port, self.taken
        converts = port.dtype != taken.dtype
        if converts:
            self._dtype(at_the_end=False)
        if not (_regular(port) and _regular(taken)):
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

    def _finding(self, code: str, severity: str, expected: str, came: str, remedy: str) -> Finding:
        whose = f"head input {self.taken.name!r} expects, extractor output {self.port.name!r} gives"
        return Finding(code, "structural", severity, expected, came, whose, remedy)  # type: ignore[arg-type]

    def _says(self, code: str, expected: str, came: str, remedy: str = "", severity: str = "warns") -> None:
        self.found.append((self._finding(code, severity, expected, came, remedy), None))

    def _refuses(self, code: str, expected: str, came: str, remedy: str) -> None:
        self._says(code, expected, came, remedy, "refuses")

    def _adapts(self, code: str, expected: str, came: str, adapter: Blueprint) -> None:
        finding = self._finding(code, "adaptable", expected, came, described(adapter))
        self.found.append((finding, adapter))
        (self.port,) = after((self.port,), adapter)

    def _dtype(self, *, at_the_end: bool) -> None:
        given, asked = self.port.dtype, self.taken.dtype
        known = given in BITS and asked in BITS
        if known and at_the_end == (BITS[given] > BITS[asked]):
            self._adapts("dtype-differs", asked, given, cast(asked, self.size))
        elif not known and not at_the_end:
            self._refuses("dtype-differs", asked, given, "cut where floating-point features cross")

    def _raw_shapes(self) -> None:
        """Without a batch axis or a layout nothing is known but the shapes: they are equal, or refused."""
        given = [resolved(one, self.size) for one in self.port.shape]
        asked = [resolved(one, self.head_size) for one in self.taken.shape]
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
            self._refuses("tokens-differ", *text, "use a backbone with class tokens")

    def _positions(self) -> None:
        given, asked = spatial_at(self.port, self.size), spatial_at(self.taken, self.head_size)
        if given is None or asked is None:
            return
        sides, wanted = grid(given, self.size), grid(asked, self.head_size)
        maps = len(given) + len(asked) > 2  # tokens for tokens are counted
        if (sides == wanted) if maps and sides and wanted else (prod(given) == prod(asked)):
            return
        came = f"{by(given)} positions for images of {by(self.size)}"
        fixed = all(isinstance(one, int) for one in self.taken.spatial)
        if sides and wanted and (fixed or self._other_channels):
            # A projection is fitted to the head's own positions, and is worth little at other sizes.
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
        """Return whether the layout is the head's by now."""
        if self.port.layout == self.taken.layout:
            return True
        sides = grid_at(self.port, self.size)
        # Tokens of an unknown count come from images of this size: square ones give a square of them.
        known = spatial_at(self.port, self.size) is not None or self.size[0] != self.size[1]
        if self.port.layout == "NLC" and sides is None and known:
            self._refuses("layout-differs", self.taken.layout, self.port.layout, _unknown_sides(self.size))
        elif self.taken.prefix_tokens == self.port.prefix_tokens:
            adapter = permute(self.port, self.taken.layout, sides, self.size)
            self._adapts("layout-differs", self.taken.layout, self.port.layout, adapter)
        return self.port.layout == self.taken.layout

    @property
    def _other_channels(self) -> bool:
        given, asked = self.port.channels, self.taken.channels
        return given != asked and isinstance(given, int) and isinstance(asked, int)

    def _channels(self) -> None:
        given, asked = self.port.channels, self.taken.channels
        if isinstance(asked, int) and self._other_channels:
            adapter = project(self.port, asked, self.taken.range == "nonnegative", self.size)
            text = f"{asked} channels", f"{given} channels", described(adapter)
            finding = self._finding("channels-differ", "adaptable", *text)
            # Nothing but the dtype is looked at afterwards, so that the port behind it is not needed.
            self.found.append((finding, adapter))


def _regular(port: Port) -> bool:
    return port.layout in ("NCHW", "NHWC", "NLC", "NC") and port.shape[:1] == ("N",)


def _unknown_sides(size: Sides) -> str:
    return f"give images whose tokens form a grid of their proportions, {by(size)}"

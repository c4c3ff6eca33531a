"""The structural level of a check: can what leaves one component enter the other, and with which adapter?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

import attrs

from compatkit.contract import Data, Port, Scaled
from compatkit.verdict import Finding, Severity


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
    given, asked = [port.name for port in outputs], [port.name for port in inputs]
    if len(given) != len(asked) or (len(given) > 1 and given != asked):
        yield Finding(
            "ports-differ",
            "structural",
            "refuses",
            f"{len(asked)} tensors ({', '.join(asked)})",
            f"{len(given)} tensors ({', '.join(given)})",
            "head inputs expect, extractor outputs give",
            "cut both networks where the same tensors cross",
        )
        return
    for output, taken in zip(outputs, inputs, strict=True):
        yield from _Seam(output, taken).findings(data, head_data)


def spatial_at(port: Port, size: tuple[int, int]) -> tuple[int, ...] | None:
    """Return the sizes at a port, prefix tokens taken off, for images of ``size``; None if unknown."""
    seen = port.measured.get(f"{size[0]}x{size[1]}")
    if seen is None:
        sides = {"H": size[0], "W": size[1]}
        found: list[int] = []
        for one in port.spatial:
            if isinstance(one, Scaled) and one.of in sides:
                found.append(one.at(sides[one.of]))
            elif isinstance(one, int):
                found.append(one)
            else:
                return None
        seen = tuple(found)
    return (seen[0] - port.prefix_tokens,) if port.layout == "NLC" and len(seen) == 1 else tuple(seen)


@attrs.frozen
class _Seam:
    """One output of an extractor against one input of a head."""

    output: Port
    taken: Port

    def findings(self, data: Data, head_data: Data) -> Iterator[Finding]:
        """Yield what differs, in the order in which adapters would be put in."""
        output, taken = self.output, self.taken
        if output.dtype != taken.dtype:
            yield self._finding(
                "dtype-differs", "adaptable", taken.dtype, output.dtype, f"cast to {taken.dtype}"
            )
        if (output.layout == "NC") != (taken.layout == "NC"):
            yield self._rank()
        else:
            if output.pooled != taken.pooled:
                yield self._pooled()
            if output.layout != taken.layout:
                yield self._finding(
                    "layout-differs",
                    "adaptable",
                    taken.layout,
                    output.layout,
                    f"permute {output.layout} to {taken.layout}",
                )
            if output.layout != "NC":
                yield from self._tokens()
                yield from self._spatial(data, head_data)
        yield from self._channels()
        if taken.range == "nonnegative" and output.range == "signed":
            yield self._finding(
                "range-differs",
                "warns",
                "nonnegative features (after ReLU)",
                "signed features",
                "cut the extractor after its activation",
            )

    def _finding(self, code: str, severity: Severity, expected: str, came: str, remedy: str = "") -> Finding:
        whose = f"head input {self.taken.name!r} expects, extractor output {self.output.name!r} gives"
        return Finding(code, "structural", severity, expected, came, whose, remedy)

    def _rank(self) -> Finding:
        forms = {"NC": "a vector", "NLC": "tokens"}
        wanted, came = (
            f"{forms.get(port.layout, 'a map')} ({port.layout})" for port in (self.taken, self.output)
        )
        if self.taken.layout == "NC":
            return self._finding(
                "rank-differs", "adaptable", wanted, came, "pool: average over the positions"
            )
        return self._finding("rank-differs", "refuses", wanted, came, "cut the extractor before its pooling")

    def _pooled(self) -> Finding:
        wanted, came = (
            "averaged over positions" if port.pooled else "not averaged" for port in (self.taken, self.output)
        )
        if self.taken.layout == "NC":
            return self._finding("pooled-differs", "warns", wanted, came)
        if self.taken.pooled:
            return self._finding(
                "pooled-differs", "adaptable", wanted, came, "pool: average over the positions"
            )
        return self._finding(
            "pooled-differs", "refuses", wanted, came, "cut the extractor before its pooling"
        )

    def _tokens(self) -> Iterator[Finding]:
        given, asked = self.output.prefix_tokens, self.taken.prefix_tokens
        if given == asked:
            return
        text = f"{asked} prefix tokens", f"{given} prefix tokens"
        if given > asked:
            yield self._finding(
                "tokens-differ", "adaptable", *text, f"drop-tokens: leave out {given - asked}"
            )
        else:
            yield self._finding("tokens-differ", "refuses", *text, "use a backbone with class tokens")

    def _spatial(self, data: Data, head_data: Data) -> Iterator[Finding]:
        given = spatial_at(self.output, data.size)
        if given is None or (self.output.pooled and not self.taken.pooled):
            return
        fixed = all(isinstance(one, int) for one in self.taken.spatial) and bool(self.taken.spatial)
        asked = spatial_at(self.taken, head_data.size)
        if asked is None or _same_positions(given, asked):
            return
        where = f"for images of {_by(data.size)}"
        if fixed:
            yield self._finding(
                "spatial-differs",
                "adaptable",
                f"{_by(asked)} positions, fixed",
                f"{_by(given)} positions {where}",
                f"resize to {_by(asked)}",
            )
        else:
            yield self._finding(
                "spatial-differs",
                "informs",
                f"any size; trained on {_by(asked)} positions",
                f"{_by(given)} positions {where}; absorbed, as the head takes any size",
            )

    def _channels(self) -> Iterator[Finding]:
        given, asked = self.output.channels, self.taken.channels
        if isinstance(given, int) and isinstance(asked, int) and given != asked:
            how = "linear layer" if self.taken.layout in ("NC", "NLC") else "1x1 convolution"
            yield self._finding(
                "channels-differ",
                "adaptable",
                f"{asked} channels",
                f"{given} channels",
                f"project: {how} from {given} to {asked} channels, fitted on unlabelled images",
            )


def _same_positions(given: tuple[int, ...], asked: tuple[int, ...]) -> bool:
    """Maps of equal sides; a map against tokens by the count of positions."""
    return given == asked if len(given) == len(asked) else prod(given) == prod(asked)


def _by(sizes: tuple[int, ...]) -> str:
    return "x".join(map(str, sizes))

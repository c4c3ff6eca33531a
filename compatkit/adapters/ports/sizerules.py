"""Run an extractor at several batch and image sizes and derive how its output shapes depend on them.

A chain of convolutions and poolings follows a rule (s + add) // floordiv + plus. ``SizeRule`` finds it from few sizes,
``PortRuns`` records one output tensor over all runs, and ``Runs`` chooses the sizes to run.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, Literal

import attrs
import numpy as np
import torch
from torch import Tensor, nn

from compatkit.adapters.cutting.signals import signal
from compatkit.contracts.contract import Scaled
from compatkit.errors import CutError, type_of

MAX_STRIDE = 64

_DIVS = np.array([div for div in range(1, MAX_STRIDE + 1) for _ in range(div)])
_ADDS = np.array([add for div in range(1, MAX_STRIDE + 1) for add in range(div)])


class SizeRule:
    """Candidate rules for one axis that agree with all measurements.

    Nested floors are one floor, ``((s + a) // m + b) // n = (s + a + b m) // (m n)``, so one rule describes a chain of
    convolutions and poolings. Candidates have ``0 <= add < floordiv``.

    Args:
        symbol: Symbol of the image side, ``"H"`` or ``"W"``.
        step: Pixels between the image sizes that the module takes. A candidate's divisor divides the step or is a
            multiple of it: others agree by chance on the few sizes of a large step.
    """

    def __init__(self, symbol: str, step: int = 1) -> None:
        self.symbol = symbol
        self.measured: dict[int, int] = {}
        compatible = (_DIVS % step == 0) | (step % _DIVS == 0)
        self._div, self._add = _DIVS[compatible], _ADDS[compatible]
        self._plus = np.zeros_like(self._div)

    def add(self, size: int, out: int) -> None:
        """Add one measurement and drop the candidates that disagree with it.

        Args:
            size: Image side in pixels.
            out: Length of the output axis.
        """
        if not self.measured:
            self._plus = out - (size + self._add) // self._div
        self.measured[size] = out
        agree = self._at(size) == out
        self._div, self._add, self._plus = self._div[agree], self._add[agree], self._plus[agree]

    @property
    def rule(self) -> Scaled | None:
        """The simplest rule that agrees with all measurements; None if there is none."""
        if not len(self._div):
            return None
        simplest = np.lexsort((self._add, self._div, self._plus != 0))[0]
        return Scaled(
            self.symbol, int(self._add[simplest]), int(self._div[simplest]), int(self._plus[simplest])
        )

    def next_size(self, sizes: Sequence[int]) -> int | None:
        """Return the size whose measurement drops the most candidates; None if all candidates agree at every size.

        Args:
            sizes: Image sides in pixels to choose from.
        """
        best, fewest = None, len(self._div)
        for size in sizes:
            if size in self.measured or fewest < 2:
                continue
            remaining = int(np.unique(self._at(size), return_counts=True)[1].max())
            if remaining < fewest:
                best, fewest = size, remaining
        return best

    def _at(self, size: int) -> np.ndarray:
        return (size + self._add) // self._div + self._plus


Size = tuple[int, int]
Shape = tuple[int, ...]


@attrs.define(eq=False)
class PortRuns:
    """One output tensor of an extractor over all runs.

    Attributes:
        dtype: Name of the dtype, such as ``"float32"``.
        batch: Batch rule by axis; empty if all images share the tensor.
        shapes: Shape for one image by image size (height, width).
        rules: ``("H" | "W", rule)`` of each axis that depends on one image side, by axis.
        products: Axes that depend on both image sides: token counts.
        minimum: Smallest output value; infinite for empty and complex outputs.
    """

    dtype: str
    batch: dict[int, Scaled]
    shapes: dict[Size, Shape] = attrs.field(factory=dict)
    rules: dict[int, tuple[Literal["H", "W"], SizeRule]] = attrs.field(factory=dict)
    products: set[int] = attrs.field(factory=set)
    minimum: float = float("inf")

    @classmethod
    def from_outputs(cls, two: Tensor, three: Tensor) -> PortRuns:
        """Find the batch axes from the outputs for two and three images.

        Args:
            two: Output for a batch of 2 images.
            three: Output for a batch of 3 images of the same size.

        Raises:
            CutError: A tensor has no axes, or the number of axes depends on the batch.
        """
        if two.ndim != three.ndim or not two.ndim:
            raise CutError(
                "Tensors that cross have at least one axis, and the same number of axes for any batch; for 2 images "
                f"the shape is {tuple(two.shape)}, for 3 images {tuple(three.shape)}."
            )
        batch = {
            axis: Scaled("N", times=b - a, plus=3 * a - 2 * b)
            for axis, (a, b) in enumerate(zip(two.shape, three.shape, strict=True))
            if a != b
        }
        return cls(str(two.dtype).removeprefix("torch."), batch)

    def add(self, size: Size, batch: int, out: Tensor) -> None:
        """Add one run.

        Args:
            size: Height and width of the images in pixels.
            batch: Number of images.
            out: Output tensor.

        Raises:
            CutError: The shape does not match the batch rules.
        """
        matches = out.ndim > max(self.batch, default=-1) and all(
            rule.at(batch) == out.shape[axis] for axis, rule in self.batch.items()
        )
        if not matches:
            raise CutError(
                "Tensors that cross must depend on the batch size in one way; 2 and 3 images gave "
                f"{self._batch_rules()}, {batch} gave {tuple(out.shape)}."
            )
        shape = tuple(self.batch[axis].at(1) if axis in self.batch else n for axis, n in enumerate(out.shape))
        self.shapes.setdefault(size, shape)
        if out.numel() and not out.is_complex():
            self.minimum = min(self.minimum, float(out.min()))

    def _batch_rules(self) -> str:
        return ", ".join(f"{rule.times} n + {rule.plus} on axis {axis}" for axis, rule in self.batch.items())

    def learn(self, base: Size, taller: Size, wider: Size, step: int) -> bool:
        """Find the axes that depend on the image size from three sizes.

        Args:
            base: Height and width of the traced image.
            taller: The same width with another height.
            wider: The same height with another width.
            step: Pixels between the sizes that the rules must hold for.

        Returns:
            False if the number of axes, a batch axis or the width of a vector depends on the image size.
        """
        start, tall, wide = (self.shapes[size] for size in (base, taller, wider))
        if {len(start), len(tall), len(wide)} != {len(start)}:
            return False
        self.rules, self.products = {}, set()
        for axis, (length, h, w) in enumerate(zip(start, tall, wide, strict=True)):
            if axis in self.batch and not length == h == w:
                return False
            if h != length != w:
                self.products.add(axis)
            elif h != length or w != length:
                symbol = "H" if h != length else "W"
                self.rules[axis] = (symbol, SizeRule(symbol, step))
        for size in self.shapes:
            if all((side - start) % step == 0 for side, start in zip(size, base, strict=True)):
                self.measure(size)
        # A vector whose width depends on the image is a flattened map; no head takes it at two sizes.
        return not (len(start) == 2 and 0 in self.batch and (self.rules or self.products))

    def measure(self, size: Size) -> None:
        """Add the shape at one size to the rules."""
        for axis, (symbol, rule) in self.rules.items():
            rule.add(size[symbol == "W"], self.shapes[size][axis])

    def holds(self, size: Size) -> bool:
        """Return whether the shape at this size matches rules and fixed axes."""
        start, shape = next(iter(self.shapes.values())), self.shapes[size]
        if len(start) != len(shape):
            return False
        for axis, (fixed, actual) in enumerate(zip(start, shape, strict=True)):
            expected: int | None = fixed
            if axis in self.rules:
                symbol, candidates = self.rules[axis]
                rule = candidates.rule
                expected = None if rule is None else rule.at(size[symbol == "W"])
            if expected != actual and axis not in self.products:
                return False
        return True


MAX_RUNS = 14
"""Limit on forward passes to find the rules of height and width."""

SPAN = 2 * MAX_STRIDE
"""Pixels added to the traced size at most: a range of at least two steps of every stride."""

STEPS = (1, 2, 4, 8, 14, 16, 28, 32, 64)
"""Multiples of pixels to try as image sizes, smallest first."""

SCALES = (1.0, 0.1, 0.01)
"""Scales of three images: small ones show the negative values of GELU and SiLU, which are near zero only."""


class Runs:
    """Forward passes of an extractor; call ``explore`` once.

    Args:
        module: The extractor, in eval mode.
        channels: Image channels.
        base: Height and width of the traced image in pixels.

    Attributes:
        ports: Output tensors, in order.
        step: Pixels between the image sizes that the extractor takes; 0 if it takes the traced size only.

    Raises:
        CutError: The output is not tensors, their number depends on the batch, or none has a batch axis.
    """

    def __init__(self, module: nn.Module, channels: int, base: Size) -> None:
        self.module, self.channels, self.base = module, channels, base
        self.step = 0
        two, three = self._outputs(base, 2), self._outputs(base, 3, SCALES)
        if len(two) != len(three):
            raise CutError(
                f"2 images gave {len(two)} tensors, 3 gave {len(three)}; the number of tensors that cross is fixed."
            )
        self.ports = [PortRuns.from_outputs(a, b) for a, b in zip(two, three, strict=True)]
        if not any(port.batch for port in self.ports):
            raise CutError(
                f"No output has a batch axis; both 2 and 3 images gave {[tuple(a.shape) for a in two]}."
            )
        for outputs, batch in ((two, 2), (three, 3)):
            self._add(base, batch, outputs)

    @property
    def free(self) -> bool:
        """Whether the extractor takes other image sizes."""
        return self.step > 0

    def run(self, size: Size) -> None:
        """Run one image of this size, unless it ran before.

        Raises:
            CutError: The module fails at this size, or returns another number of tensors.
        """
        if size in self.ports[0].shapes:
            return
        try:
            self._add(size, 1, self._outputs(size, 1))
        except Exception as error:  # foreign code refuses sizes in its own way
            for port in self.ports:
                port.shapes.pop(size, None)
            raise CutError(f"The extractor fails for images of {size}: {error}") from error

    def explore(self) -> None:
        """Fit height and width rules, verify them at an unused size, and set ``step``.

        Raises:
            CutError: The module does not take one image alone.
        """
        for step in STEPS:
            if any(side % step for side in self.base):
                continue
            try:
                fits = self._fit(step)
            except CutError:
                continue
            self.step = step if fits else 0
            break
        if self.free:
            for port in self.ports:
                port.shapes = {
                    size: shape for size, shape in port.shapes.items() if self._is_multiple(size, self.step)
                }
        else:
            for port in self.ports:
                port.rules, port.products = {}, set()
            self._run_single_image()

    def _is_multiple(self, size: Size, step: int) -> bool:
        return all((side - start) % step == 0 for side, start in zip(size, self.base, strict=True))

    def _run_single_image(self) -> None:
        try:
            outputs = self._outputs(self.base, 1)
        except (RuntimeError, ValueError, IndexError, AssertionError, TypeError) as error:
            raise CutError(f"The extractor does not take a batch of one image: {error}") from error
        self._add(self.base, 1, outputs)

    def _fit(self, step: int) -> bool:
        height, width = self.base
        reach = step * -(-64 // step)
        taller, wider = (height + reach, width), (height, width + reach)
        self.run(taller)
        self.run(wider)
        if not all(port.learn(self.base, taller, wider, step) for port in self.ports):
            return False
        span = max(SPAN, 4 * step)
        near = [range(side, side + span + 1, step) for side in self.base]
        self._narrow(near)
        unused = tuple(
            _unused(sizes, {size[i] for size in self.ports[0].shapes}) for i, sizes in enumerate(near)
        )
        self.run((unused[0], unused[1]))
        return all(
            port.holds(size) for port in self.ports for size in port.shapes if self._is_multiple(size, step)
        )

    def _narrow(self, near: Sequence[Sequence[int]]) -> None:
        """Run sizes until one rule remains for each axis."""
        for _ in range(MAX_RUNS):
            height, width = (self._next_size(symbol, sizes) for symbol, sizes in zip("HW", near, strict=True))
            if height is None and width is None:
                return
            size = (height or self.base[0], width or self.base[1])
            self.run(size)
            for port in self.ports:
                port.measure(size)

    def _next_size(self, symbol: str, sizes: Sequence[int]) -> int | None:
        """Return the next size to run for the rules of this symbol; None if they are all settled."""
        rules = (rule for port in self.ports for side, rule in port.rules.values() if side == symbol)
        return next((size for rule in rules if (size := rule.next_size(sizes)) is not None), None)

    def _outputs(self, size: Size, batch: int, scales: tuple[float, ...] = (1.0,)) -> tuple[Tensor, ...]:
        images = signal((batch, self.channels, *size)) * torch.tensor(scales).reshape(-1, 1, 1, 1)
        return call_part(self.module, (images,))

    def _add(self, size: Size, batch: int, outputs: Sequence[Tensor]) -> None:
        if len(outputs) != len(self.ports):
            raise CutError(
                f"Images of {size} gave {len(outputs)} tensors, images of {self.base} gave {len(self.ports)}."
            )
        for port, out in zip(self.ports, outputs, strict=True):
            port.add(size, batch, out)


def _unused(sizes: Sequence[int], used: set[int]) -> int:
    """Return an unused size from the last two thirds; the largest if all are used."""
    return next((size for size in sizes[len(sizes) // 3 :] if size not in used), sizes[-1])


def call_part(module: nn.Module, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Call a part: one input as a tensor, several as one tuple.

    Args:
        module: Extractor or head.
        inputs: One tensor for each input port, batch first; moved to the module's device.

    Returns:
        One tensor for each output port, batch first.

    Raises:
        CutError: The output is not tensors.
    """
    tensors = chain(
        module.parameters(), module.buffers()
    )  # a state dict of all would take as long as a layer
    device = next((tensor.device for tensor in tensors), torch.device("cpu"))
    moved = tuple(tensor.to(device) for tensor in inputs)
    out: Any = module(*moved) if len(moved) == 1 else module(moved)
    outputs = tuple(out) if isinstance(out, tuple | list) else (out,)
    if not outputs or not all(isinstance(tensor, Tensor) for tensor in outputs):
        raise CutError(
            f"A part must return a tensor or a tuple of tensors; this one returned {type_of(out)}."
        )
    return outputs

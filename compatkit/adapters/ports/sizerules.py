"""Run an extractor at several batch and image sizes and learn how what it gives follows them.

A chain of convolutions and poolings always follows a rule (s + add) // floordiv + plus; ``SizeRule`` finds it from
few sizes, ``PortRuns`` follows one tensor over all runs, and ``Runs`` chooses the sizes that tell rules apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import attrs
import numpy as np
import torch
from torch import Tensor, nn

from compatkit.adapters.cutting.signals import signal
from compatkit.contracts.contract import Scaled
from compatkit.errors import CutError, type_of

LARGEST_STRIDE = 64

_DIVS = np.array([div for div in range(1, LARGEST_STRIDE + 1) for _ in range(div)])
_ADDS = np.array([add for div in range(1, LARGEST_STRIDE + 1) for add in range(div)])


class SizeRule:
    """All rules that agree with what was measured so far.

    A chain of convolutions and poolings always follows such a rule: nested floors of this kind are one floor,
    ``((s + a) // m + b) // n = (s + a + b m) // (m n)``. Rules are kept with ``0 <= add < floordiv``.

    Args:
        of: Symbol of the size that is followed, ``"H"`` or ``"W"``.
        step: Of the sizes that are taken. A rule divides it, or is divided by it: others agree by chance on the few
            sizes of a large step.
    """

    def __init__(self, of: str, step: int = 1) -> None:
        self.of = of
        self.seen: dict[int, int] = {}
        fits = (_DIVS % step == 0) | (step % _DIVS == 0)
        self._div, self._add = _DIVS[fits], _ADDS[fits]
        self._plus = np.zeros_like(self._div)

    def add(self, size: int, out: int) -> None:
        """Take in one measurement and drop the rules that disagree with it.

        Args:
            size: Length of a side of the image, in pixels.
            out: Length of the axis that came out.
        """
        if not self.seen:
            self._plus = out - (size + self._add) // self._div
        self.seen[size] = out
        agree = self._at(size) == out
        self._div, self._add, self._plus = self._div[agree], self._add[agree], self._plus[agree]

    @property
    def rule(self) -> Scaled | None:
        """The simplest rule that agrees with all measurements; None where none does."""
        if not len(self._div):
            return None
        first = np.lexsort((self._add, self._div, self._plus != 0))[0]
        return Scaled(self.of, int(self._add[first]), int(self._div[first]), int(self._plus[first]))

    def next_size(self, sizes: Sequence[int]) -> int | None:
        """Return the size whose outcome tells most of the rules apart; None once all of them agree."""
        best, least = None, len(self._div)
        for size in sizes:
            if size in self.seen or least < 2:
                continue
            worst = int(np.unique(self._at(size), return_counts=True)[1].max())
            if worst < least:
                best, least = size, worst
        return best

    def _at(self, size: int) -> np.ndarray:
        return (size + self._add) // self._div + self._plus


Size = tuple[int, int]
Shape = tuple[int, ...]


@attrs.define(eq=False)
class PortRuns:
    """One tensor that an extractor gives, over all runs.

    Attributes:
        dtype: Name of its dtype, ``"float32"``.
        batch: Axis to how it follows the count of images; empty where all images share the tensor.
        shapes: Image size (height, width) to the shape for one image.
        rules: Axis to ``("H" | "W", rule)``, where an axis follows one side of the image.
        products: Axes that follow both sides: counts of tokens.
        minimum: Smallest value that came out; infinite where none did, or none that has an order.
    """

    dtype: str
    batch: dict[int, Scaled]
    shapes: dict[Size, Shape] = attrs.field(factory=dict)
    rules: dict[int, tuple[Literal["H", "W"], SizeRule]] = attrs.field(factory=dict)
    products: set[int] = attrs.field(factory=set)
    minimum: float = float("inf")

    @classmethod
    def of(cls, two: Tensor, three: Tensor) -> PortRuns:
        """Compare what two images give with what three give.

        Args:
            two: Output for a batch of 2 images.
            three: For 3 images of the same size.
        """
        if two.ndim != three.ndim or not two.ndim:
            raise CutError(
                f"What crosses are tensors of at least one axis, as many for any batch; 2 images gave "
                f"{tuple(two.shape)}, 3 gave {tuple(three.shape)}."
            )
        batch = {
            axis: Scaled("N", times=b - a, plus=3 * a - 2 * b)
            for axis, (a, b) in enumerate(zip(two.shape, three.shape, strict=True))
            if a != b
        }
        return cls(str(two.dtype).removeprefix("torch."), batch)

    def add(self, size: Size, batch: int, out: Tensor) -> None:
        """Take in one run.

        Args:
            size: Height and width of the images.
            batch: How many images.
            out: What came out for them.

        Raises:
            CutError: The shape does not follow the batch as it did before.
        """
        follows = out.ndim > max(self.batch, default=-1) and all(
            rule.at(batch) == out.shape[axis] for axis, rule in self.batch.items()
        )
        if not follows:
            raise CutError(
                f"What crosses must follow the count of images; 2 and 3 images gave {self._shown()}, {batch} gave "
                f"{tuple(out.shape)}."
            )
        shape = tuple(self.batch[axis].at(1) if axis in self.batch else n for axis, n in enumerate(out.shape))
        self.shapes.setdefault(size, shape)
        if out.numel() and not out.is_complex():
            self.minimum = min(self.minimum, float(out.min()))

    def _shown(self) -> str:
        return ", ".join(f"{rule.times} n + {rule.plus} on axis {axis}" for axis, rule in self.batch.items())

    def learn(self, base: Size, taller: Size, wider: Size, step: int) -> bool:
        """Find the axes that follow the image from three sizes; False where they follow in a way without a name.

        Args:
            base: Height and width of the image that others are compared with.
            taller: The same with another height.
            wider: The same with another width.
            step: Pixels between the sizes that the rules must hold for.
        """
        start, tall, wide = (self.shapes[size] for size in (base, taller, wider))
        if {len(start), len(tall), len(wide)} != {len(start)}:
            return False
        self.rules, self.products = {}, set()
        for axis, (own, h, w) in enumerate(zip(start, tall, wide, strict=True)):
            if axis in self.batch and not own == h == w:
                return False
            if h != own != w:
                self.products.add(axis)
            elif h != own or w != own:
                symbol = "H" if h != own else "W"
                self.rules[axis] = (symbol, SizeRule(symbol, step))
        for size in self.shapes:
            if all((side - own) % step == 0 for side, own in zip(size, base, strict=True)):
                self.measure(size)
        # A vector whose width follows the image is a flattened map; no head takes it at two sizes.
        return not (len(start) == 2 and 0 in self.batch and (self.rules or self.products))

    def measure(self, size: Size) -> None:
        """Let the rules learn from one size that was run."""
        for axis, (symbol, rule) in self.rules.items():
            rule.add(size[symbol == "W"], self.shapes[size][axis])

    def holds(self, size: Size) -> bool:
        """Whether the shape at this size is what rules and fixed axes say."""
        start, shape = next(iter(self.shapes.values())), self.shapes[size]
        if len(start) != len(shape):
            return False
        for axis, (own, seen) in enumerate(zip(start, shape, strict=True)):
            expected: int | None = own
            if axis in self.rules:
                symbol, rules = self.rules[axis]
                expected = rules.rule.at(size[symbol == "W"]) if rules.rule is not None else None
            if expected != seen and axis not in self.products:
                return False
        return True


MAX_RUNS = 14
"""Forward passes spent on narrowing the rules of height and width."""

SPAN = 2 * LARGEST_STRIDE
"""Sizes are tried from the traced one up to so many pixels more: every stride shows at least two steps there."""

STEPS = (1, 2, 4, 8, 14, 16, 28, 32, 64)
"""A network that does not take any size is tried at multiples of these."""

FAINT = (1.0, 0.1, 0.01)
"""Scales of three images: faint ones show negative values that soft activations have only near zero."""


class Runs:
    """Forward passes of an extractor; call ``explore`` once.

    Attributes:
        ports: What it gives, in order.
        step: Image sizes are taken in steps of so many pixels, and what comes out follows rules; 0 where only the
            traced size is taken.

    Raises:
        CutError: No tensors come out, or none of them follows the batch.
    """

    def __init__(self, module: nn.Module, channels: int, base: Size) -> None:
        self.module, self.channels, self.base = module, channels, base
        self.step = 0
        two, three = self._outputs(base, 2), self._outputs(base, 3, FAINT)
        if len(two) != len(three):
            raise CutError(
                f"2 images gave {len(two)} tensors, 3 gave {len(three)}; a cut passes as many always."
            )
        self.ports = [PortRuns.of(a, b) for a, b in zip(two, three, strict=True)]
        if not any(port.batch for port in self.ports):
            raise CutError(f"Features follow the batch; 2 and 3 images gave {[tuple(a.shape) for a in two]}.")
        for outputs, batch in ((two, 2), (three, 3)):
            self._add(base, batch, outputs)

    @property
    def free(self) -> bool:
        """Whether other image sizes are taken."""
        return self.step > 0

    def run(self, size: Size) -> None:
        """Run one image of this size, unless it was run before.

        Raises:
            CutError: The module does not take this size, or gives something else.
        """
        if size in self.ports[0].shapes:
            return
        try:
            self._add(size, 1, self._outputs(size, 1))
        except Exception as error:  # foreign code refuses sizes in its own way
            for port in self.ports:
                port.shapes.pop(size, None)
            raise CutError(f"Images of {size} are not taken: {error}") from error

    def explore(self) -> None:
        """Fit height and width rules; ``step`` says in which steps they hold, at a size not used for fitting too.

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
                    size: shape for size, shape in port.shapes.items() if self._stepped(size, self.step)
                }
        else:
            for port in self.ports:
                port.rules, port.products = {}, set()
            self._alone()

    def _stepped(self, size: Size, step: int) -> bool:
        return all((side - own) % step == 0 for side, own in zip(size, self.base, strict=True))

    def _alone(self) -> None:
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
        unseen = tuple(
            _unseen(sizes, {size[i] for size in self.ports[0].shapes}) for i, sizes in enumerate(near)
        )
        self.run((unseen[0], unseen[1]))
        return all(
            port.holds(size) for port in self.ports for size in port.shapes if self._stepped(size, step)
        )

    def _narrow(self, near: Sequence[Sequence[int]]) -> None:
        """Run sizes until one rule is left for each axis."""
        for _ in range(MAX_RUNS):
            wanted = [self._wanted(symbol, sizes) for symbol, sizes in zip("HW", near, strict=True)]
            if wanted == [None, None]:
                return
            size = (wanted[0] or self.base[0], wanted[1] or self.base[1])
            self.run(size)
            for port in self.ports:
                port.measure(size)

    def _wanted(self, symbol: str, sizes: Sequence[int]) -> int | None:
        """Return a size that tells rules of this symbol apart."""
        rules = (rule for port in self.ports for of, rule in port.rules.values() if of == symbol)
        return next((size for rule in rules if (size := rule.next_size(sizes)) is not None), None)

    def _outputs(self, size: Size, batch: int, scales: tuple[float, ...] = (1.0,)) -> tuple[Tensor, ...]:
        images = signal((batch, self.channels, *size)) * torch.tensor(scales).reshape(-1, 1, 1, 1)
        return outputs_of(self.module, (images,))

    def _add(self, size: Size, batch: int, outputs: Sequence[Tensor]) -> None:
        if len(outputs) != len(self.ports):
            raise CutError(f"{len(outputs)} tensors came out at {size}, {len(self.ports)} at {self.base}.")
        for port, out in zip(self.ports, outputs, strict=True):
            port.add(size, batch, out)


def _unseen(sizes: Sequence[int], seen: set[int]) -> int:
    """Return a size not run yet, off the middle; the last one where all were run."""
    return next((size for size in sizes[len(sizes) // 3 :] if size not in seen), sizes[-1])


def outputs_of(module: nn.Module, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Call a module as all parts are called: one tensor as it is, several as one tuple.

    Args:
        module: A part.
        inputs: One tensor for each input port, batch first; moved to the module's device.

    Returns:
        One tensor for each output port, batch first.

    Raises:
        CutError: Something else than tensors comes out.
    """
    device = next((tensor.device for tensor in module.state_dict().values()), torch.device("cpu"))
    placed = tuple(tensor.to(device) for tensor in inputs)
    out: Any = module(*placed) if len(placed) == 1 else module(placed)
    outputs = tuple(_flat(out))
    if not outputs or not all(isinstance(tensor, Tensor) for tensor in outputs):
        raise CutError(f"A part gives a tensor or a tuple of tensors; this one gave {type_of(out)}.")
    return outputs


def _flat(out: Any) -> Iterator[Any]:
    if isinstance(out, tuple | list):
        yield from out
    else:
        yield out

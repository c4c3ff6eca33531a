"""One tensor that an extractor gives, over runs at several batch and image sizes: what follows what."""

from __future__ import annotations

from typing import Literal

import attrs
from torch import Tensor

from compatkit.adapters.ports.sizes import SizeRule
from compatkit.contracts.contract import Scaled
from compatkit.errors import CutError

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
        """Compare what two images give with what three give."""
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
        """Find the axes that follow the image from three sizes; False where they follow in a way without a name."""
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

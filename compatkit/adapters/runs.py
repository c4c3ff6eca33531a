"""Run an extractor at several image sizes and learn how its output follows them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from compatkit.adapters.signals import signal
from compatkit.adapters.sizes import LARGEST_STRIDE, SizeRule
from compatkit.errors import CutError

MAX_RUNS = 14
"""Forward passes spent on the rules of height and width."""

SPAN = 2 * LARGEST_STRIDE
"""Sizes are tried from the traced one up to so many pixels more: every stride shows at least two steps there."""


class Runs:
    """Forward passes of an extractor; call ``explore`` once.

    Attributes:
        shapes: Image size (height, width) to the output shape without the batch axis.
        minimum: Smallest value that came out.
        free: Whether other image sizes are taken and what comes out follows rules.
        rules: Axis without the batch axis to ``("H" | "W", rule)``, where an axis follows the image.
    """

    def __init__(self, module: nn.Module, channels: int, base: tuple[int, int]) -> None:
        self.module, self.channels, self.base = module, channels, base
        self.shapes: dict[tuple[int, int], tuple[int, ...]] = {}
        self.minimum = float("inf")
        self.free = False
        self.rules: dict[int, tuple[str, SizeRule]] = {}
        self.run(base, 2)
        # Faint images show negative values that soft activations have only near zero.
        self.run(base, 3, scales=(1.0, 0.1, 0.01))

    def run(
        self, size: tuple[int, int], batch: int = 1, scales: tuple[float, ...] = (1.0,)
    ) -> tuple[int, ...]:
        """Return the output shape without the batch axis; ``scales`` multiply the images."""
        out = output_of(self.module, (batch, self.channels, *size), scales)
        if out.ndim < 2 or len(out) != batch:
            raise CutError(f"Features are batch first; {batch} images gave {tuple(out.shape)}.")
        if out.numel():
            self.minimum = min(self.minimum, float(out.min()))
        self.shapes.setdefault(size, tuple(out.shape[1:]))
        return tuple(out.shape[1:])

    def explore(self) -> None:
        """Fit height and width rules; ``free`` says whether they held at a size not used for fitting."""
        self.rules = {}
        try:
            found = self._fit()
        except (RuntimeError, AssertionError, ValueError, IndexError, TypeError, ZeroDivisionError):
            return  # the module refuses other sizes
        if found is not None:
            self.free, self.rules = True, found

    def _fit(self) -> dict[int, tuple[str, SizeRule]] | None:
        start, height, width = self.shapes[self.base], *self.base
        taller, wider = self.run((height + 64, width)), self.run((height, width + 64))
        if {len(start), len(taller), len(wider)} != {len(start)}:
            return None
        follows_h = [i for i, (a, b) in enumerate(zip(start, taller, strict=True)) if a != b]
        follows_w = [i for i, (a, b) in enumerate(zip(start, wider, strict=True)) if a != b]
        if not follows_h and not follows_w:
            return {} if self._same_elsewhere(start) else None
        if len(start) == 2 and follows_h == follows_w == [0]:
            return {}  # tokens: their count follows the product of two rules
        if len(start) != 3 or len(follows_h) != 1 or len(follows_w) != 1 or follows_h == follows_w:
            return None
        rules = {follows_h[0]: ("H", SizeRule("H")), follows_w[0]: ("W", SizeRule("W"))}
        for size, shape in list(self.shapes.items()):
            self._learn(rules, size, shape)
        return rules if self._narrow(rules) else None

    def _narrow(self, rules: dict[int, tuple[str, SizeRule]]) -> bool:
        """Run sizes until one rule is left for each axis, then test it on sizes not seen."""
        by_symbol = {symbol: rule for symbol, rule in rules.values()}
        near = {symbol: range(side, side + SPAN + 1) for symbol, side in zip("HW", self.base, strict=True)}
        for _ in range(MAX_RUNS):
            wanted = {symbol: rule.next_size(near[symbol]) for symbol, rule in by_symbol.items()}
            if wanted == {"H": None, "W": None}:
                break
            size = (wanted["H"] or self.base[0], wanted["W"] or self.base[1])
            self._learn(rules, size, self.run(size))
        if not all(rule.rules for rule in by_symbol.values()):
            return False
        unseen = (_unseen(by_symbol["H"], near["H"]), _unseen(by_symbol["W"], near["W"]))
        shape = self.run(unseen)
        return all(
            rule.rules[0].at(unseen[symbol == "W"]) == shape[axis] for axis, (symbol, rule) in rules.items()
        )

    def _same_elsewhere(self, start: tuple[int, ...]) -> bool:
        return self.run((self.base[0] + 37, self.base[1] + 11)) == start

    def _learn(
        self, rules: dict[int, tuple[str, SizeRule]], size: tuple[int, int], shape: tuple[int, ...]
    ) -> None:
        for axis, (symbol, rule) in rules.items():
            rule.add(size[symbol == "W"], shape[axis])


def _unseen(rule: SizeRule, sizes: Sequence[int]) -> int:
    """Return a size not run yet, odd and off the middle."""
    return next(size for size in sizes[len(sizes) // 3 :] if size not in rule.seen)


def output_of(module: nn.Module, shape: tuple[int, ...], scales: tuple[float, ...] = (1.0,)) -> Tensor:
    """Run the fixed signal of this shape, times a scale for each image, through a module.

    Raises:
        CutError: Something else than a tensor comes out.
    """
    device = next((tensor.device for tensor in module.state_dict().values()), torch.device("cpu"))
    images = signal(shape) * torch.tensor(scales).reshape(-1, *[1] * (len(shape) - 1))
    out = module(images.to(device))
    if not isinstance(out, Tensor):
        raise CutError(f"A part gives one tensor; this one gave a {type(out).__name__}.")
    return out

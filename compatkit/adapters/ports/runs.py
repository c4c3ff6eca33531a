"""Run an extractor at several batch and image sizes and learn how what it gives follows them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from compatkit.adapters.cutting.signals import signal
from compatkit.adapters.ports.portruns import PortRuns, Size
from compatkit.adapters.ports.sizes import LARGEST_STRIDE
from compatkit.errors import CutError, type_of

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
        self._refused: set[Size] = set()
        two, three = self._outputs(base, 2), self._outputs(base, 3, FAINT)
        if len(two) != len(three):
            raise CutError(
                f"2 images gave {len(two)} tensors, 3 gave {len(three)}; a cut passes as many always."
            )
        self.ports = [PortRuns.of(a, b) for a, b in zip(two, three, strict=True)]
        if not any(one.batch for one in self.ports):
            raise CutError(f"Features follow the batch; 2 and 3 images gave {[tuple(a.shape) for a in two]}.")
        for outputs, batch in ((two, 2), (three, 3)):
            self._add(base, batch, outputs)

    @property
    def free(self) -> bool:
        """Whether other image sizes are taken."""
        return self.step > 0

    def run(self, size: Size) -> None:
        """Run one image of this size, unless it was run before; what was refused once is refused again.

        Raises:
            CutError: The module does not take this size, or gives something else.
        """
        if size in self._refused:
            raise CutError(f"Images of {size} are not taken.")
        if size in self.ports[0].shapes:
            return
        try:
            self._add(size, 1, self._outputs(size, 1))
        except Exception as error:  # foreign code refuses sizes in its own way
            self._refused.add(size)
            for one in self.ports:
                one.shapes.pop(size, None)
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
                found = self._fit(step)
            except CutError:
                continue
            self.step = step if found else 0
            break
        if self.free:
            for one in self.ports:
                one.shapes = {
                    size: shape for size, shape in one.shapes.items() if self._stepped(size, self.step)
                }
        else:
            for one in self.ports:
                one.rules, one.products = {}, set()
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
        if not all(one.learn(self.base, taller, wider, step) for one in self.ports):
            return False
        span = max(SPAN, 4 * step)
        near = [range(side, side + span + 1, step) for side in self.base]
        self._narrow(near)
        unseen = tuple(
            _unseen(sizes, {size[i] for size in self.ports[0].shapes}) for i, sizes in enumerate(near)
        )
        self.run((unseen[0], unseen[1]))
        return all(one.holds(size) for one in self.ports for size in one.shapes if self._stepped(size, step))

    def _narrow(self, near: Sequence[Sequence[int]]) -> None:
        """Run sizes until one rule is left for each axis."""
        for _ in range(MAX_RUNS):
            wanted = [self._wanted(symbol, sizes) for symbol, sizes in zip("HW", near, strict=True)]
            if wanted == [None, None]:
                return
            size = (wanted[0] or self.base[0], wanted[1] or self.base[1])
            self.run(size)
            for one in self.ports:
                one.measure(size)

    def _wanted(self, symbol: str, sizes: Sequence[int]) -> int | None:
        """Return a size that tells rules of this symbol apart."""
        rules = (rule for one in self.ports for of, rule in one.rules.values() if of == symbol)
        return next((size for rule in rules if (size := rule.next_size(sizes)) is not None), None)

    def _outputs(self, size: Size, batch: int, scales: tuple[float, ...] = (1.0,)) -> tuple[Tensor, ...]:
        images = signal((batch, self.channels, *size)) * torch.tensor(scales).reshape(-1, 1, 1, 1)
        return outputs_of(self.module, (images,))

    def _add(self, size: Size, batch: int, outputs: Sequence[Tensor]) -> None:
        if len(outputs) != len(self.ports):
            raise CutError(f"{len(outputs)} tensors came out at {size}, {len(self.ports)} at {self.base}.")
        for one, out in zip(self.ports, outputs, strict=True):
            one.add(size, batch, out)


def _unseen(sizes: Sequence[int], seen: set[int]) -> int:
    """Return a size not run yet, off the middle; the last one where all were run."""
    return next((size for size in sizes[len(sizes) // 3 :] if size not in seen), sizes[-1])


def outputs_of(module: nn.Module, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Call a module as all parts are called: one tensor as it is, several as one tuple.

    Raises:
        CutError: Something else than tensors comes out.
    """
    device = next((tensor.device for tensor in module.state_dict().values()), torch.device("cpu"))
    placed = tuple(one.to(device) for one in inputs)
    out: Any = module(*placed) if len(placed) == 1 else module(placed)
    found = tuple(_flat(out))
    if not found or not all(isinstance(one, Tensor) for one in found):
        raise CutError(f"A part gives a tensor or a tuple of tensors; this one gave {type_of(out)}.")
    return found


def _flat(out: Any) -> Iterator[Any]:
    if isinstance(out, tuple | list):
        yield from out
    else:
        yield out

"""The stages of a chain, and the network that they are of."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import attrs
from torch import Tensor, nn

from compatkit.errors import UsageError

Shape = tuple[int, ...]
Parts = nn.Module | Sequence[nn.Module]


@attrs.frozen
class Stage:
    """One layer of a chain, by the paths of its modules in the whole network.

    Attributes:
        linear: A linear or convolutional layer.
        norm: What normalises it.
        act: Its activation.
        pool: What changes the size between the activation before it and ``linear``, of several modules the last; where
            the network calls a function of torch for that, the function's name.
        taken: Shape of the pool's input, without the batch; None without a pool.
        pooled: Shape of its output.
    """

    linear: str
    norm: str | None = None
    act: str | None = None
    pool: str | None = None
    taken: Shape | None = None
    pooled: Shape | None = None

    @property
    def last(self) -> str:
        """The module whose output is what this stage gives."""
        return self.act or self.norm or self.linear


def modules_of(parts: Parts) -> dict[str, nn.Module]:
    """Return the modules of one network, or of its parts, by their paths in the whole network."""
    modules: dict[str, nn.Module] = {}
    for part in (parts,) if isinstance(parts, nn.Module) else parts:
        for path, module in part.named_modules():
            modules.setdefault(path, module)
    return modules


def run(parts: Parts, images: Tensor) -> Tensor:
    """Return what the parts give one after the other; of several tensors the first."""
    value: Any = images
    for part in (parts,) if isinstance(parts, nn.Module) else parts:
        value = part(value)
    return value if isinstance(value, Tensor) else value[0]


def not_a_chain(where: str, why: str) -> UsageError:
    """Return the error for a network that is no chain."""
    return UsageError(
        f"A whole reverse pass needs a chain, where every layer takes what the one before it gave and nothing else; "
        f'{where} {why}. The reverse pass with variant="local" takes each layer by itself; or give the network a '
        "reverse_plan() that names its stages."
    )


@contextmanager
def evaluating(parts: Parts) -> Iterator[None]:
    """Put parts into eval mode; every module is in its old mode afterwards."""
    held = [parts] if isinstance(parts, nn.Module) else list(parts)
    modes = [(module, module.training) for part in held for module in part.modules()]
    try:
        for part in held:
            part.eval()
        yield
    finally:
        for module, training in modes:
            module.training = training

"""Stages of a chain, and access to the network's modules by path."""

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
        linear: Linear or convolutional layer.
        norm: Its normalization.
        act: Its activation.
        pool: Module that changes the size between the preceding activation and ``linear`` (the last of several), or
            the name of a torch function.
        taken: Input shape of the pool, without the batch; None without a pool.
        pooled: Its output shape.
    """

    linear: str
    norm: str | None = None
    act: str | None = None
    pool: str | None = None
    taken: Shape | None = None
    pooled: Shape | None = None

    @property
    def last(self) -> str:
        """The module whose output is the output of this stage."""
        return self.act or self.norm or self.linear


def modules_of(parts: Parts) -> dict[str, nn.Module]:
    """Return the modules of one network, or of its parts, by their paths in the whole network."""
    modules: dict[str, nn.Module] = {}
    for part in (parts,) if isinstance(parts, nn.Module) else parts:
        for path, module in part.named_modules():
            modules.setdefault(path, module)
    return modules


def run(parts: Parts, images: Tensor) -> Tensor:
    """Return the output of the parts in sequence; the first of several tensors.

    Args:
        parts: One module, or several in the order of execution.
        images: ``(batch, ...)``.

    Returns:
        What the last part gives.
    """
    value: Any = images
    for part in (parts,) if isinstance(parts, nn.Module) else parts:
        value = part(value)
    return value if isinstance(value, Tensor) else value[0]


def not_a_chain(where: str, why: str) -> UsageError:
    """Return the error for a network that is not a chain.

    Args:
        where: The place in the network.
        why: Predicate of the message, such as ``"has no weights"``.
    """
    return UsageError(
        f"A full reverse pass needs a chain, in which each layer takes only the output of the one before; {where} "
        f'{why}. Use variant="local", which reverses each layer separately, or give the network a reverse_plan() that '
        "names its stages."
    )


@contextmanager
def evaluating(parts: Parts) -> Iterator[None]:
    """Put parts into eval mode; restore the mode of every module afterwards."""
    modules = [parts] if isinstance(parts, nn.Module) else list(parts)
    modes = [(module, module.training) for part in modules for module in part.modules()]
    try:
        for part in modules:
            part.eval()
        yield
    finally:
        for module, training in modes:
            module.training = training

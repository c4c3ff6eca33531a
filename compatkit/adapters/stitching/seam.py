"""The modules that stand between an extractor and a head, by name; ``contracts/match.py`` says when each is chosen."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from difflib import get_close_matches

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from compatkit.adapters.stitching.reshaping import (
    AXES,
    Cast,
    DropTokens,
    Permute,
    Pool,
    Resize,
    SeamAdapter,
    check_axes,
    one_of,
    two_counts,
    whole_number,
    wide_type,
)
from compatkit.adapters.weights import load_part
from compatkit.contracts.contract import Blueprint
from compatkit.errors import UnknownName, UsageError


class Project(SeamAdapter):
    """Maps channels linearly at each position, ``z W + b``, with weights that are fitted.

    Args:
        layout: ``"NCHW"``, ``"NHWC"``, ``"NLC"`` or ``"NC"``.
        channels: How many come, how many go.
        nonnegative: Whether negative values become 0.
        port: See ``SeamAdapter``.
        kernel: Sides of the patch of positions that each looks at, odd, with zeros around the edges; maps only.
    """

    def __init__(
        self,
        layout: str,
        channels: Sequence[int],
        nonnegative: bool,
        port: int | None = None,
        kernel: int = 1,
    ) -> None:
        super().__init__(port)
        self.layout, self.nonnegative = one_of("layout", layout, AXES), bool(nonnegative)
        came, gone = two_counts("channels", channels)
        self.kernel = whole_number("kernel", kernel, least=1)
        if kernel % 2 == 0 or (kernel > 1 and layout not in ("NCHW", "NHWC")):
            raise UsageError(
                f"kernel of a projection is odd, and 1 unless it takes maps; got {kernel} for {layout}.",
                subject=kernel,
            )
        sides = (kernel, kernel) if kernel > 1 else ()
        self.weight, self.bias = (
            nn.Parameter(torch.zeros(gone, came, *sides)),
            nn.Parameter(torch.zeros(gone)),
        )

    def adapted(self, features: Tensor) -> Tensor:
        """Return the features with the other count of channels."""
        check_axes("project", features, self.layout)
        wide = wide_type(features)
        weight, bias, values = self.weight.to(wide), self.bias.to(wide), features.to(wide)
        if self.kernel > 1:
            maps = values if self.layout == "NCHW" else values.permute(0, 3, 1, 2)
            made = F.conv2d(maps, weight, bias, padding=self.kernel // 2)
            made = made if self.layout == "NCHW" else made.permute(0, 2, 3, 1)
        elif self.layout == "NCHW":
            made = F.conv2d(values, weight[:, :, None, None], bias)
        else:
            made = F.linear(values, weight, bias)
        return (made.relu() if self.nonnegative else made).to(features.dtype)

    def extra_repr(self) -> str:
        """Say how many channels."""
        return f"{self.layout}, {self.weight.shape[1]} to {self.weight.shape[0]} channels"


ADAPTERS: dict[str, type[SeamAdapter]] = {
    "cast": Cast,
    "drop-tokens": DropTokens,
    "pool": Pool,
    "resize": Resize,
    "permute": Permute,
    "project": Project,
}
"""By the model name of their blueprints; no other is ever built."""


def build_adapter(blueprint: Blueprint, state: Mapping[str, Tensor] | None = None) -> nn.Module:
    """Build an adapter from its blueprint alone, in eval mode.

    Args:
        blueprint: Of an adapter.
        state: Its weights, all of them and no others; may be left out where it has none.

    Raises:
        UnknownName: No adapter has this name.
        UsageError: The arguments are not what it takes, or the weights of a fitted adapter are missing.
        CutError: The weights are of another module.
    """
    if blueprint.model not in ADAPTERS:
        near = get_close_matches(blueprint.model, ADAPTERS, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        known = ", ".join(ADAPTERS)
        raise UnknownName(
            f"No adapter is called {blueprint.model!r}; known are {known}.{hint}", subject=blueprint
        )
    kind = ADAPTERS[blueprint.model]
    try:
        inspect.signature(kind).bind(**blueprint.kwargs)
    except TypeError as error:
        raise UsageError(
            f"The adapter {blueprint.model} does not take {dict(blueprint.kwargs)}: {error}.",
            subject=blueprint,
        ) from error
    module = kind(**blueprint.kwargs)
    if state is None and module.state_dict():
        raise UsageError(
            f"The adapter {blueprint.model} is fitted and has no weights of its own to begin with; give its state.",
            subject=blueprint,
        )
    load_part(module, state or {}, f"the adapter {blueprint.model}")
    return module.eval()

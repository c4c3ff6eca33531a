"""Stitching layers, which stand between an extractor and a head; ``contracts/match.py`` says when each is chosen.

All but ``Project`` have no parameters: they move, average, resize, convert or leave out. Arithmetic is done in float32
(float64 stays), and the dtype that came goes on. Each is made for one tensor; in a tuple of features it changes the one
at ``port`` and passes the others.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from math import isqrt

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from compatkit.adapters.bounds import bounded_building, check_numbers
from compatkit.adapters.weights import load_part
from compatkit.contracts.contract import Blueprint
from compatkit.errors import UnknownName, UsageError, suggest, type_of
from compatkit.foundation.limits import COUNT, WHOLE, Number, OneOf

DTYPES = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
}
AXES = {"NCHW": 4, "NHWC": 4, "NLC": 3, "NC": 2}
"""Axes of a tensor in each layout."""
MAPS_AND_TOKENS = ("NCHW", "NHWC", "NLC")

Features = Tensor | tuple[Tensor, ...]


class SeamAdapter(nn.Module):
    """What all adapters have in common.

    Attributes:
        port: Which tensor of a tuple is changed; None where a single tensor crosses.
    """

    def __init__(self, port: int | None = None) -> None:
        super().__init__()
        Number(least=0, whole=True, optional=True).check("adapter", port=port)
        self.port = port

    def forward(self, features: Features) -> Features:
        """Return the features with the one at ``port`` adapted: a tensor for a tensor, a tuple for a tuple."""
        if self.port is None:
            if not isinstance(features, Tensor):
                raise UsageError(f"{self} takes one tensor, got {type_of(features)}.")
            return self.adapted(features)
        return tuple(
            self.adapted(feature) if at == self.port else feature for at, feature in enumerate(features)
        )

    def extra_repr(self) -> str:
        """List the settings."""
        own = {name: value for name, value in vars(self).items() if name[0] != "_" and name != "training"}
        return ", ".join(f"{name}={value}" for name, value in own.items() if value is not None)

    def adapted(self, features: Tensor) -> Tensor:
        """Return one tensor changed.

        Returns:
            In the layout and width that the adapter's arguments state.
        """
        raise NotImplementedError


class Cast(SeamAdapter):
    """Converts to another floating-point type.

    Args:
        to: ``"float16"``, ``"bfloat16"``, ``"float32"`` or ``"float64"``.
        port: See ``SeamAdapter``; so for all adapters.
    """

    def __init__(self, to: str, port: int | None = None) -> None:
        super().__init__(port)
        OneOf(DTYPES).check("cast", to=to)
        self.dtype = DTYPES[to]

    def adapted(self, features: Tensor) -> Tensor:
        """Return the same values in the other type, any shape."""
        return features.to(self.dtype)


class DropTokens(SeamAdapter):
    """Leaves out class or register tokens.

    Args:
        keep: So many tokens in front stay.
        drop: So many after them are left out.
        port: See ``SeamAdapter``.
    """

    def __init__(self, keep: int, drop: int, port: int | None = None) -> None:
        super().__init__(port)
        WHOLE.check("drop-tokens", keep=keep)
        COUNT.check("drop-tokens", drop=drop)
        self.keep, self.drop = keep, drop

    def adapted(self, features: Tensor) -> Tensor:
        """Return ``(n, tokens - drop, c)`` for ``(n, tokens, c)``."""
        check_axes("drop-tokens", features, "NLC")
        rest = features[:, self.keep + self.drop :]
        return torch.cat([features[:, : self.keep], rest], dim=1) if self.keep else rest


class Pool(SeamAdapter):
    """Averages over the positions. Class and register tokens are no positions and are left out.

    A head that reads the class token takes another meaning of it than the average of the patches: such a pair is
    wired, and no more than that.

    Args:
        layout: ``"NCHW"``, ``"NHWC"`` or ``"NLC"``.
        to: ``"NC"`` gives a vector; the others give a map of one position, or one token.
        prefix_tokens: Class and register tokens in front.
        port: See ``SeamAdapter``.
    """

    def __init__(self, layout: str, to: str, prefix_tokens: int = 0, port: int | None = None) -> None:
        super().__init__(port)
        OneOf(MAPS_AND_TOKENS).check("pool", layout=layout)
        OneOf(AXES).check("pool", to=to)
        self.layout, self.to_layout = layout, to
        WHOLE.check("adapter", prefix_tokens=prefix_tokens)
        self.prefix_tokens = prefix_tokens

    def adapted(self, features: Tensor) -> Tensor:
        """Return ``(n, c)``, or one position of a map or of tokens."""
        check_axes("pool", features, self.layout)
        axes = {"NCHW": (2, 3), "NHWC": (1, 2), "NLC": (1,)}[self.layout]
        values = features[:, self.prefix_tokens :] if self.layout == "NLC" else features
        vector = values.mean(dim=axes, dtype=wide_type(features)).to(features.dtype)
        if self.to_layout == "NCHW":
            return vector[:, :, None, None]
        return {"NHWC": vector[:, None, None], "NLC": vector[:, None], "NC": vector}[self.to_layout]


class Resize(SeamAdapter):
    """Brings a map, or the patches among tokens, to other sides; class and register tokens stay.

    Where both sides shrink by whole factors each position is the plain average of the block that it covers;
    otherwise bilinear interpolation with antialiasing, corners not aligned. Nothing leaves the range of the values.

    Args:
        layout: ``"NCHW"``, ``"NHWC"`` or ``"NLC"``.
        size: Height and width in positions that come out.
        sides: Height and width that tokens form; None where they form a square.
        prefix_tokens: Class and register tokens in front.
        port: See ``SeamAdapter``.
    """

    def __init__(
        self,
        layout: str,
        size: Sequence[int],
        sides: Sequence[int] | None = None,
        prefix_tokens: int = 0,
        port: int | None = None,
    ) -> None:
        super().__init__(port)
        OneOf(MAPS_AND_TOKENS).check("resize", layout=layout)
        self.layout = layout
        self.size, self.sides = (
            two_counts("size", size),
            None if sides is None else two_counts("sides", sides),
        )
        WHOLE.check("adapter", prefix_tokens=prefix_tokens)
        self.prefix_tokens = prefix_tokens

    def adapted(self, features: Tensor) -> Tensor:
        """Return the features with ``size[0] * size[1]`` positions, in the layout that came.

        Returns:
            In the type that came.
        """
        check_axes("resize", features, self.layout)
        if self.layout == "NCHW":
            return self._resized(features)
        if self.layout == "NHWC":
            return self._resized(features.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        prefix, patches = features[:, : self.prefix_tokens], features[:, self.prefix_tokens :]
        maps = patches.unflatten(1, _grid(patches, self.sides)).permute(0, 3, 1, 2)
        return torch.cat([prefix, self._resized(maps).flatten(2).transpose(1, 2)], dim=1)

    def _resized(self, maps: Tensor) -> Tensor:
        wide, size = maps.to(wide_type(maps)), self.size
        if all(side % wanted == 0 for side, wanted in zip(maps.shape[2:], size, strict=True)):
            return F.adaptive_avg_pool2d(wide, size).to(maps.dtype)
        return F.interpolate(wide, size=list(size), mode="bilinear", antialias=True).to(maps.dtype)


class Permute(SeamAdapter):
    """Moves the axes between maps and tokens; positions are counted row by row.

    Args:
        layout: ``"NCHW"``, ``"NHWC"`` or ``"NLC"`` without class and register tokens.
        to: Another of them.
        sides: Height and width that tokens form; None where they form a square.
        port: See ``SeamAdapter``.
    """

    def __init__(
        self, layout: str, to: str, sides: Sequence[int] | None = None, port: int | None = None
    ) -> None:
        super().__init__(port)
        OneOf(MAPS_AND_TOKENS).check("permute", layout=layout, to=to)
        self.layout, self.to_layout = layout, to
        self.sides = None if sides is None else two_counts("sides", sides)

    def adapted(self, features: Tensor) -> Tensor:
        """Return the same values in the other layout."""
        check_axes("permute", features, self.layout)
        last = features.permute(0, 2, 3, 1) if self.layout == "NCHW" else features
        if self.to_layout == "NLC":
            return last if self.layout == "NLC" else last.flatten(1, 2)
        last = last.unflatten(1, _grid(last, self.sides)) if self.layout == "NLC" else last
        return last.permute(0, 3, 1, 2) if self.to_layout == "NCHW" else last


def _grid(tokens: Tensor, sides: tuple[int, int] | None) -> tuple[int, int]:
    """Return the sides that tokens form: those given, or a square's."""
    count = tokens.shape[1]
    height, width = sides or (isqrt(count), isqrt(count))
    if height * width != count:
        raise UsageError(
            f"{count} tokens came, which form no map of {height}x{width} positions. Give images of the size that the "
            "adapter was made for; class and register tokens must be dropped before."
        )
    return height, width


def check_axes(name: str, features: Tensor, layout: str) -> None:
    """Raise a UsageError where features have another count of axes than ``layout``.

    Args:
        name: Of the adapter.
        features: What came.
        layout: A key of ``AXES``.
    """
    if features.ndim != AXES[layout]:
        raise UsageError(
            f"The adapter {name} takes features {layout}, got the shape {tuple(features.shape)}."
        )


def wide_type(features: Tensor) -> torch.dtype:
    """Return the dtype to compute in."""
    return torch.promote_types(features.dtype, torch.float32)


def two_counts(name: str, value: Sequence[int]) -> tuple[int, int]:
    """Return two whole numbers from 1, else raise a UsageError.

    Args:
        name: Of the argument.
        value: As given.
    """
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != 2:
        raise UsageError(f"{name} of an adapter are two whole numbers, not {value!r}.", subject=value)
    COUNT.check("adapter", **{f"{name}[{position}]": count for position, count in enumerate(value)})
    return value[0], value[1]


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
        OneOf(AXES).check("project", layout=layout)
        self.layout, self.nonnegative = layout, bool(nonnegative)
        self.channels = in_channels, out_channels = two_counts("channels", channels)
        COUNT.check("project", kernel=kernel)
        self.kernel = kernel
        if kernel % 2 == 0 or (kernel > 1 and layout not in ("NCHW", "NHWC")):
            raise UsageError(
                f"kernel of a projection is odd, and 1 unless it takes maps; got {kernel} for {layout}.",
                subject=kernel,
            )
        sides = (kernel, kernel) if kernel > 1 else ()
        self.weight, self.bias = (
            nn.Parameter(torch.zeros(out_channels, in_channels, *sides)),
            nn.Parameter(torch.zeros(out_channels)),
        )

    def adapted(self, features: Tensor) -> Tensor:
        """Return the features with the other count of channels.

        Returns:
            In the type and layout that came.
        """
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
        TooCostly: The arguments ask for more than ``bounds`` allows.
    """
    if blueprint.model not in ADAPTERS:
        hint = suggest(blueprint.model, ADAPTERS)
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
    check_numbers(blueprint.model, blueprint.kwargs)
    with bounded_building(blueprint.model):
        module = kind(**blueprint.kwargs)
    if state is None and module.state_dict():
        raise UsageError(
            f"The adapter {blueprint.model} is fitted and has no weights of its own to begin with; give its state.",
            subject=blueprint,
        )
    load_part(module, state or {}, f"the adapter {blueprint.model}")
    return module.eval()

"""Stitching layers between an extractor and a head; ``contracts/match.py`` chooses among them.

Only ``Project`` has parameters. Arithmetic is done in float32 (or float64), and the output has the dtype of the input.
Each layer changes one tensor; in a tuple of features this is the one at ``port``, and the others pass unchanged.
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
"""Number of axes of each layout."""
MAPS_AND_TOKENS = ("NCHW", "NHWC", "NLC")

Features = Tensor | tuple[Tensor, ...]


class SeamAdapter(nn.Module):
    """Base class of all adapters.

    Attributes:
        port: Index of the changed tensor in a tuple of features; None for a single tensor.
    """

    def __init__(self, port: int | None = None) -> None:
        super().__init__()
        Number(least=0, whole=True, optional=True).check("adapter", port=port)
        self.port = port

    def forward(self, features: Features) -> Features:
        """Return the features with the tensor at ``port`` adapted."""
        if self.port is None:
            if not isinstance(features, Tensor):
                raise UsageError(f"{self} takes one tensor, got {type_of(features)}.")
            return self.adapted(features)
        return tuple(
            self.adapted(feature) if index == self.port else feature for index, feature in enumerate(features)
        )

    def extra_repr(self) -> str:
        """List the settings."""
        own = {name: value for name, value in vars(self).items() if name[0] != "_" and name != "training"}
        return ", ".join(f"{name}={value}" for name, value in own.items() if value is not None)

    def adapted(self, features: Tensor) -> Tensor:
        """Adapt one tensor.

        Returns:
            Tensor of the layout and width given by the adapter's arguments.
        """
        raise NotImplementedError


class Cast(SeamAdapter):
    """Conversion to another floating-point dtype.

    Args:
        to: ``"float16"``, ``"bfloat16"``, ``"float32"`` or ``"float64"``.
        port: See ``SeamAdapter``.
    """

    def __init__(self, to: str, port: int | None = None) -> None:
        super().__init__(port)
        OneOf(DTYPES).check("cast", to=to)
        self.dtype = DTYPES[to]

    def adapted(self, features: Tensor) -> Tensor:
        """Return the features, of any shape, in the other dtype."""
        return features.to(self.dtype)


class DropTokens(SeamAdapter):
    """Removal of class or register tokens.

    Args:
        keep: Number of leading tokens that stay.
        drop: Number of tokens after them that are removed.
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
    """Average over positions, without class and register tokens.

    A head that reads the class token can be wired to this average, but the average of the patches has another meaning.

    Args:
        layout: ``"NCHW"``, ``"NHWC"`` or ``"NLC"``.
        to: ``"NC"`` for a vector; ``"NCHW"`` or ``"NHWC"`` for a map of one position, ``"NLC"`` for one token.
        prefix_tokens: Number of leading class and register tokens.
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
        """Return ``(n, c)``, a map of one position, or one token."""
        check_axes("pool", features, self.layout)
        axes = {"NCHW": (2, 3), "NHWC": (1, 2), "NLC": (1,)}[self.layout]
        values = features[:, self.prefix_tokens :] if self.layout == "NLC" else features
        vector = values.mean(dim=axes, dtype=wide_type(features)).to(features.dtype)
        if self.to_layout == "NCHW":
            return vector[:, :, None, None]
        return {"NHWC": vector[:, None, None], "NLC": vector[:, None], "NC": vector}[self.to_layout]


class Resize(SeamAdapter):
    """Resizing of a map, or of the patch tokens; class and register tokens stay.

    If both sides shrink by integer factors, each output is the average of its block; otherwise the map is interpolated
    bilinearly with antialiasing, corners not aligned. No output leaves the range of the inputs.

    Args:
        layout: ``"NCHW"``, ``"NHWC"`` or ``"NLC"``.
        size: Height and width of the output, in positions.
        sides: Height and width of the grid of patch tokens; None for a square.
        prefix_tokens: Number of leading class and register tokens.
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
        self.size = two_counts("size", size)
        self.sides = None if sides is None else two_counts("sides", sides)
        WHOLE.check("adapter", prefix_tokens=prefix_tokens)
        self.prefix_tokens = prefix_tokens

    def adapted(self, features: Tensor) -> Tensor:
        """Resize the features.

        Returns:
            Features of ``size[0] * size[1]`` positions, of the same layout and dtype.
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
    """Change of layout between maps and tokens, in row-major order of positions.

    Args:
        layout: ``"NCHW"``, ``"NHWC"`` or ``"NLC"`` without class and register tokens.
        to: The other layout.
        sides: Height and width of the grid of tokens; None for a square.
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
        """Return the features in the other layout."""
        check_axes("permute", features, self.layout)
        last = features.permute(0, 2, 3, 1) if self.layout == "NCHW" else features
        if self.to_layout == "NLC":
            return last if self.layout == "NLC" else last.flatten(1, 2)
        last = last.unflatten(1, _grid(last, self.sides)) if self.layout == "NLC" else last
        return last.permute(0, 3, 1, 2) if self.to_layout == "NCHW" else last


def _grid(tokens: Tensor, sides: tuple[int, int] | None) -> tuple[int, int]:
    """Return height and width of the grid of tokens: the given ones, or those of a square."""
    count = tokens.shape[1]
    height, width = sides or (isqrt(count), isqrt(count))
    if height * width != count:
        raise UsageError(
            f"Expected {height}x{width} tokens, got {count}. Use images of the size that the adapter was built for, "
            "and drop class and register tokens first."
        )
    return height, width


def check_axes(name: str, features: Tensor, layout: str) -> None:
    """Raise a UsageError if the number of axes differs from that of the layout.

    Args:
        name: Name of the adapter.
        features: Features to check.
        layout: A key of ``AXES``.
    """
    if features.ndim != AXES[layout]:
        raise UsageError(
            f"The adapter {name} takes features {layout}, got the shape {tuple(features.shape)}."
        )


def wide_type(features: Tensor) -> torch.dtype:
    """Return the dtype for arithmetic: float32, or float64 for float64 features."""
    return torch.promote_types(features.dtype, torch.float32)


def two_counts(name: str, value: Sequence[int]) -> tuple[int, int]:
    """Return two positive integers, else raise a UsageError.

    Args:
        name: Name of the argument.
        value: Value to check.
    """
    if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != 2:
        raise UsageError(f"{name} of an adapter are two integers, not {value!r}.", subject=value)
    COUNT.check("adapter", **{f"{name}[{position}]": count for position, count in enumerate(value)})
    return value[0], value[1]


class Project(SeamAdapter):
    """Linear map of the channels at each position, ``z W + b``, with fitted weights.

    Args:
        layout: ``"NCHW"``, ``"NHWC"``, ``"NLC"`` or ``"NC"``.
        channels: Numbers of input and output channels.
        nonnegative: Whether to apply a ReLU.
        port: See ``SeamAdapter``.
        kernel: Kernel size, odd, with zero padding; 1 unless the layout is a map.
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
                f"kernel of a projection must be odd, and 1 unless the layout is a map; got {kernel} for {layout}.",
                subject=kernel,
            )
        sides = (kernel, kernel) if kernel > 1 else ()
        self.weight = nn.Parameter(torch.zeros(out_channels, in_channels, *sides))
        self.bias = nn.Parameter(torch.zeros(out_channels))

    def adapted(self, features: Tensor) -> Tensor:
        """Project the features.

        Returns:
            Features with the output channels, of the same dtype and layout.
        """
        check_axes("project", features, self.layout)
        wide = wide_type(features)
        weight, bias, values = self.weight.to(wide), self.bias.to(wide), features.to(wide)
        if self.kernel > 1:
            maps = values if self.layout == "NCHW" else values.permute(0, 3, 1, 2)
            projected = F.conv2d(maps, weight, bias, padding=self.kernel // 2)
            projected = projected if self.layout == "NCHW" else projected.permute(0, 2, 3, 1)
        elif self.layout == "NCHW":
            projected = F.conv2d(values, weight[:, :, None, None], bias)
        else:
            projected = F.linear(values, weight, bias)
        return (projected.relu() if self.nonnegative else projected).to(features.dtype)


ADAPTERS: dict[str, type[SeamAdapter]] = {
    "cast": Cast,
    "drop-tokens": DropTokens,
    "pool": Pool,
    "resize": Resize,
    "permute": Permute,
    "project": Project,
}
"""Adapters by the model name in their blueprints; no other class is ever built."""


def build_adapter(blueprint: Blueprint, state: Mapping[str, Tensor] | None = None) -> nn.Module:
    """Build an adapter from its blueprint alone, in eval mode.

    Args:
        blueprint: Blueprint of an adapter.
        state: Complete state dict; may be omitted for an adapter without parameters.

    Raises:
        UnknownName: No adapter has this name.
        UsageError: The adapter does not accept the arguments, or the weights of a fitted adapter are missing.
        CutError: The weights do not fit the adapter.
        TooCostly: The arguments exceed the limits of ``bounds``.
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
            f"The adapter {blueprint.model} needs its fitted weights; pass them as state.",
            subject=blueprint,
        )
    load_part(module, state or {}, f"the adapter {blueprint.model}")
    return module.eval()

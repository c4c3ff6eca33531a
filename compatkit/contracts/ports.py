"""Ports at a given image size: axis sizes, token grids and whole shapes."""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt
from typing import NamedTuple

from compatkit.contracts.contract import Dimension, Port, Scaled
from compatkit.errors import UsageError

Sides = tuple[int, int]
"""Height and width in pixels or positions."""


class SizedPorts(NamedTuple):
    """Ports that cross a cut, and the size of the images that they belong to."""

    ports: tuple[Port, ...]
    size: Sides


def regular(port: Port) -> bool:
    """Return whether a port has a leading batch axis and a layout that defines the other axes."""
    return port.layout in ("NCHW", "NHWC", "NLC", "NC") and port.shape[:1] == ("N",)


def channel_axis(port: Port) -> int:
    """Return the index of the channel axis: the second, or the last."""
    return 1 if port.layout in ("NCHW", "NC") else len(port.shape) - 1


def spatial_at(port: Port, size: Sides) -> tuple[int, ...] | None:
    """Return the spatial sizes at a port, without prefix tokens, for images of ``size``; None if unknown.

    Args:
        port: Of either side.
        size: Height and width in pixels.
    """
    seen = port.measured.get(f"{size[0]}x{size[1]}") if port.measured else None
    if seen is None:
        lengths = [resolved(dimension, size) for dimension in port.spatial]
        seen = tuple([length for length in lengths if isinstance(length, int)])
        if len(seen) < len(lengths):
            return None
    return (seen[0] - port.prefix_tokens,) if port.layout == "NLC" and len(seen) == 1 else tuple(seen)


def grid_at(port: Port, size: Sides) -> Sides | None:
    """Return height and width in positions for images of ``size``; None if unknown, see ``grid``.

    Args:
        port: Of either side.
        size: Height and width in pixels.
    """
    seen = spatial_at(port, size)
    return None if seen is None else grid(seen, size)


def grid(seen: Sequence[int], size: Sides) -> Sides | None:
    """Return height and width, from the result of ``spatial_at`` for images of ``size``; None if unknown.

    Tokens are assumed to form a grid with the aspect ratio of the images, as patches do; if their count does not allow
    it, the grid is unknown.

    Args:
        seen: Sizes of the spatial axes: height and width, or a token count.
        size: Height and width of the images in pixels.
    """
    if len(seen) == 2:
        return seen[0], seen[1]
    if len(seen) != 1 or seen[0] < 1:
        return None
    height = isqrt(seen[0] * size[0] // size[1])
    width = seen[0] // height if height else 0
    return (height, width) if height * width == seen[0] and height * size[1] == width * size[0] else None


def tensor_shape(port: Port, size: Sides, batch: int) -> tuple[int, ...]:
    """Return the shape of a tensor at a port for ``batch`` images of ``size``.

    Args:
        port: The port.
        size: Height and width of the images in pixels.
        batch: Number of images.

    Raises:
        UsageError: A dimension of the port is unknown for this image size.
    """
    shape = [batch if dimension == "N" else resolved(dimension, size, batch) for dimension in port.shape]
    for axis, length in zip(port.spatial_axes, port.measured.get(f"{size[0]}x{size[1]}", ()), strict=False):
        shape[axis] = length
    if not all(isinstance(length, int) for length in shape):
        raise UsageError(
            f"The shape {port.shape} at port {port.name!r} is unknown for images of {by(size)}; known for "
            f"{', '.join(port.measured) or 'none'}.",
            subject=port,
        )
    return tuple(length for length in shape if isinstance(length, int))


def resolved(dimension: Dimension, size: Sides, batch: int | None = None) -> Dimension:
    """Return a dimension for ``batch`` images of ``size``; symbols that stay unknown are returned unchanged.

    Args:
        dimension: A number, a symbol, or a rule.
        size: Height and width in pixels.
        batch: Number of images; None if unknown.
    """
    if not isinstance(dimension, Scaled):
        return dimension
    known = (
        size[0]
        if dimension.of == "H"
        else size[1]
        if dimension.of == "W"
        else batch
        if dimension.of == "N"
        else None
    )
    return dimension if known is None else dimension.at(known)


def agree(provided: Dimension, required: Dimension) -> bool:
    """Return whether dimensions can be equal; one that is unknown before a run matches anything.

    Args:
        provided: Of the extractor.
        required: Of the head.
    """
    free = isinstance(provided, str) or isinstance(required, str)
    return provided == required or (free and "N" not in (provided, required))


def shown(dimension: Dimension) -> str:
    """Return a dimension as text, as a formula if it depends on another."""
    if not isinstance(dimension, Scaled):
        return str(dimension)
    return (
        f"({dimension.of} + {dimension.add}) // {dimension.floordiv} * {dimension.times} + {dimension.plus}"
    )


def by(sizes: Sequence[int]) -> str:
    """Return sizes as text such as ``"4x4"``."""
    return "x".join(map(str, sizes))

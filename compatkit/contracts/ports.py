"""Shapes of ports at an image size: axis sizes, token grids and whole shapes."""

from __future__ import annotations

from collections.abc import Sequence
from math import isqrt
from typing import NamedTuple

from compatkit.contracts.contract import Dimension, Port, Scaled
from compatkit.errors import UsageError

Sides = tuple[int, int]
"""Height and width in pixels or positions."""


class SizedPorts(NamedTuple):
    """Ports at a cut, with the size of the images.

    Attributes:
        ports: Outputs of an extractor or inputs of a head.
        size: Height and width of the images in pixels.
    """

    ports: tuple[Port, ...]
    size: Sides


def has_known_layout(port: Port) -> bool:
    """Return whether a port has a leading batch axis and a layout that names all other axes."""
    return port.layout in ("NCHW", "NHWC", "NLC", "NC") and port.shape[:1] == ("N",)


def channel_axis(port: Port) -> int:
    """Return the index of the channel axis: the second, or the last."""
    return 1 if port.layout in ("NCHW", "NC") else len(port.shape) - 1


def spatial_at(port: Port, size: Sides) -> tuple[int, ...] | None:
    """Return the spatial sizes at a port, without prefix tokens, for images of ``size``; None if unknown.

    Args:
        port: Port of an extractor or a head.
        size: Height and width of the images in pixels.
    """
    sizes = port.measured.get(f"{size[0]}x{size[1]}") if port.measured else None
    if sizes is None:
        lengths = [dimension_at(dimension, size) for dimension in port.spatial]
        sizes = tuple([length for length in lengths if isinstance(length, int)])
        if len(sizes) < len(lengths):
            return None
    return (sizes[0] - port.prefix_tokens,) if port.layout == "NLC" and len(sizes) == 1 else tuple(sizes)


def grid_at(port: Port, size: Sides) -> Sides | None:
    """Return height and width in positions for images of ``size``; None if unknown, see ``grid``.

    Args:
        port: Port of an extractor or a head.
        size: Height and width of the images in pixels.
    """
    sizes = spatial_at(port, size)
    return None if sizes is None else grid(sizes, size)


def grid(sizes: Sequence[int], size: Sides) -> Sides | None:
    """Return height and width in positions, from the result of ``spatial_at``; None if unknown.

    Tokens are assumed to form a grid with the aspect ratio of the images, as patches do; if their count does not allow
    it, the grid is unknown.

    Args:
        sizes: Sizes of the spatial axes: height and width, or a token count.
        size: Height and width of the images in pixels.
    """
    if len(sizes) == 2:
        return sizes[0], sizes[1]
    if len(sizes) != 1 or sizes[0] < 1:
        return None
    height = isqrt(sizes[0] * size[0] // size[1])
    width = sizes[0] // height if height else 0
    return (height, width) if height * width == sizes[0] and height * size[1] == width * size[0] else None


def tensor_shape(port: Port, size: Sides, batch: int) -> tuple[int, ...]:
    """Return the shape of a tensor at a port for ``batch`` images of ``size``.

    Args:
        port: Port of an extractor or a head.
        size: Height and width of the images in pixels.
        batch: Number of images.

    Raises:
        UsageError: A dimension of the port is unknown for this image size.
    """
    shape = [batch if dimension == "N" else dimension_at(dimension, size, batch) for dimension in port.shape]
    for axis, length in zip(port.spatial_axes, port.measured.get(f"{size[0]}x{size[1]}", ()), strict=False):
        shape[axis] = length
    if not all(isinstance(length, int) for length in shape):
        raise UsageError(
            f"The shape {port.shape} at port {port.name!r} is unknown for images of {size_text(size)}; known for "
            f"{', '.join(port.measured) or 'none'}.",
            subject=port,
        )
    return tuple(length for length in shape if isinstance(length, int))


def dimension_at(dimension: Dimension, size: Sides, batch: int | None = None) -> Dimension:
    """Return a dimension for ``batch`` images of ``size``; symbols that stay unknown are returned unchanged.

    Args:
        dimension: A number, a symbol, or a scaled dimension.
        size: Height and width of the images in pixels.
        batch: Number of images; None if unknown.
    """
    if not isinstance(dimension, Scaled):
        return dimension
    base = (
        size[0]
        if dimension.of == "H"
        else size[1]
        if dimension.of == "W"
        else batch
        if dimension.of == "N"
        else None
    )
    return dimension if base is None else dimension.at(base)


def may_be_equal(provided: Dimension, required: Dimension) -> bool:
    """Return whether two dimensions can be equal; a symbol other than ``"N"`` matches any dimension.

    Args:
        provided: Dimension of the extractor.
        required: Dimension of the head.
    """
    symbolic = isinstance(provided, str) or isinstance(required, str)
    return provided == required or (symbolic and "N" not in (provided, required))


def dimension_text(dimension: Dimension) -> str:
    """Return a dimension as text, as a formula if it depends on another."""
    if not isinstance(dimension, Scaled):
        return str(dimension)
    return (
        f"({dimension.of} + {dimension.add}) // {dimension.floordiv} * {dimension.times} + {dimension.plus}"
    )


def size_text(sizes: Sequence[int]) -> str:
    """Return sizes as text such as ``"4x4"``."""
    return "x".join(map(str, sizes))

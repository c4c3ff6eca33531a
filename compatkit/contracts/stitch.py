"""Blueprints of adapters between an extractor and a head, and the ports after them.

An adapter is a blueprint without tensors, so a check can name exactly the adapter that a recombination would insert.
``match.py`` chooses adapters, ``adapters/stitching`` builds the modules.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from math import isqrt, prod
from typing import Any

import attrs

from compatkit.contracts.contract import Blueprint, Dimension, Layout, Port
from compatkit.contracts.ports import Sides, channel_axis, size_text, spatial_at
from compatkit.errors import UsageError

FITTED = frozenset({"project"})
"""Adapters with weights: fitted on unlabeled images, or loaded."""


def cast(to: str, size: Sides) -> Blueprint:
    """Return the adapter that converts features to the dtype ``to``.

    Args:
        to: Dtype after it: ``"float32"``, ``"bfloat16"``, ...
        size: Height and width of the images in pixels.
    """
    return _blueprint("cast", {"to": to}, size)


def drop_tokens(keep: int, drop: int, size: Sides) -> Blueprint:
    """Return the adapter that keeps the first ``keep`` tokens, removes the next ``drop`` and keeps the rest.

    The class token precedes the register tokens, so it is removed last.

    Args:
        keep: Number of leading tokens to keep.
        drop: Number of tokens to remove after them.
        size: Height and width of the images in pixels.
    """
    return _blueprint("drop-tokens", {"keep": keep, "drop": drop}, size)


def pool(port: Port, to: Layout, size: Sides) -> Blueprint:
    """Return the adapter that averages over the positions of ``port``, without its prefix tokens.

    Args:
        port: Port with a map or tokens.
        to: Layout after it: ``"NC"`` for a vector; another layout for a map with one position.
        size: Height and width of the images in pixels.
    """
    return _blueprint("pool", {"layout": port.layout, "to": to, **_prefix(port)}, size)


def resize(port: Port, to: Sides, sides: Sides | None, size: Sides) -> Blueprint:
    """Return the adapter that resizes a map, or tokens that form one; prefix tokens are kept.

    Args:
        port: Port with a map or tokens.
        to: Height and width after it, in positions.
        sides: Height and width of tokens before it, in positions; None for a square.
        size: Height and width of the images in pixels.
    """
    tokens = {} if port.layout != "NLC" or _square(sides) else {"sides": list(sides or ())}
    return _blueprint("resize", {"layout": port.layout, "size": list(to), **tokens, **_prefix(port)}, size)


def permute(port: Port, to: Layout, sides: Sides | None, size: Sides) -> Blueprint:
    """Return the adapter that converts ``port`` to another layout.

    Args:
        port: Port with a map, or tokens without prefix tokens.
        to: Layout after it: ``"NCHW"``, ``"NHWC"`` or ``"NLC"``.
        sides: Height and width in positions for tokens that become a map; None for a square.
        size: Height and width of the images in pixels.
    """
    tokens = {} if port.layout != "NLC" or _square(sides) else {"sides": list(sides or ())}
    return _blueprint("permute", {"layout": port.layout, "to": to, **tokens}, size)


def project(port: Port, channels: int, nonnegative: bool, size: Sides) -> Blueprint:
    """Return the adapter that maps channels linearly at each position, with fitted weight and bias.

    Args:
        port: Port of any layout with known channels.
        channels: Number of output channels.
        nonnegative: Whether to apply ReLU, for a head trained on features after ReLU.
        size: Height and width of the images in pixels.
    """
    settings = {"layout": port.layout, "channels": [port.channels, channels], "nonnegative": nonnegative}
    return _blueprint("project", settings, size)


def with_kernel(projection: Blueprint, kernel: int) -> Blueprint:
    """Return a projection with a ``kernel`` x ``kernel`` convolution, zero-padded.

    Args:
        projection: Result of ``project``.
        kernel: Odd kernel size, above 1.
    """
    return attrs.evolve(projection, kwargs={**projection.kwargs, "kernel": kernel})


def on_port(adapter: Blueprint, index: int, count: int) -> Blueprint:
    """Return the adapter for tensor ``index`` of a tuple of ``count``; the others pass unchanged.

    Args:
        adapter: Adapter for one tensor.
        index: Index of the tensor, from 0.
        count: Number of tensors.
    """
    return attrs.evolve(adapter, kwargs={**adapter.kwargs, "port": index}, cut_outputs=count)


def describe(adapter: Blueprint) -> str:
    """Return a description of an adapter, which begins with its name."""
    try:
        return _described(adapter)
    except (KeyError, TypeError, ValueError):
        return f"{adapter.model}, with invalid arguments"


def describe_missing(adapter: Blueprint) -> str:
    """Return a description of a missing adapter, with the images for the fit if it has weights."""
    return describe(adapter) + (", fitted on unlabeled images" if adapter.model in FITTED else "")


def _described(adapter: Blueprint) -> str:
    settings = adapter.kwargs
    if adapter.model == "cast":
        return f"cast to {settings['to']}"
    if adapter.model == "drop-tokens":
        verb = f"keep the first {settings['keep']}, leave out the next" if settings["keep"] else "leave out"
        return f"drop-tokens: {verb} {settings['drop']}"
    if adapter.model == "pool":
        tokens = (
            f", without the {settings['prefix_tokens']} prefix tokens" if "prefix_tokens" in settings else ""
        )
        return f"pool: average over the positions{tokens}"
    if adapter.model == "resize":
        return f"resize to {size_text(settings['size'])}"
    if adapter.model == "permute":
        return f"permute {settings['layout']} to {settings['to']}"
    if adapter.model == "project":
        kernel = settings.get("kernel", 1)
        layer = "linear layer" if settings["layout"] in ("NC", "NLC") else f"{kernel}x{kernel} convolution"
        before, after = settings["channels"]
        return f"project: {layer} from {before} to {after} channels"
    return adapter.model


def ports_after(ports: Sequence[Port], adapter: Blueprint) -> tuple[Port, ...]:
    """Return the ports after an adapter.

    Args:
        ports: Ports before the adapter, in order.
        adapter: Blueprint of the adapter.

    Raises:
        UsageError: There is no port for the adapter, or the adapter is unknown.
    """
    index = int(adapter.kwargs.get("port", 0))
    if index >= len(ports):
        raise UsageError(
            f"The adapter {adapter.model} is for tensor {index + 1} of a tuple, but there are {len(ports)}. Use an "
            "adapter for these ports.",
            subject=adapter,
        )
    return tuple(port_after(port, adapter) if number == index else port for number, port in enumerate(ports))


def port_after(port: Port, adapter: Blueprint) -> Port:
    """Return the port after an adapter.

    Args:
        port: Port before the adapter.
        adapter: Blueprint of the adapter.

    Raises:
        UsageError: The adapter is unknown.
    """
    settings = adapter.kwargs
    if adapter.model == "cast":
        return attrs.evolve(port, dtype=settings["to"])
    if adapter.model == "drop-tokens":
        return _dropped(port, int(settings["drop"]))
    if adapter.model == "pool":
        ones = {"NC": (), "NLC": (1,)}.get(settings["to"], (1, 1))
        return _reshaped(port, settings["to"], ones, pooled=True, prefix_tokens=0)
    if adapter.model == "resize":
        sides = tuple(settings["size"])
        count = (prod(sides) + port.prefix_tokens,) if port.layout == "NLC" else sides
        return _reshaped(port, port.layout, count)
    if adapter.model == "permute":
        return _permuted(port, settings["to"], settings.get("sides"), adapter.traced_size)
    if adapter.model == "project":
        channels = int(settings["channels"][1])
        shape = tuple(
            channels if axis == channel_axis(port) else dimension for axis, dimension in enumerate(port.shape)
        )
        return attrs.evolve(port, shape=shape, range="nonnegative" if settings["nonnegative"] else "signed")
    raise UsageError(f"Unknown adapter {adapter.model!r}.", subject=adapter)


def _dropped(port: Port, count: int) -> Port:
    length = port.shape[1]
    return attrs.evolve(
        port,
        shape=(port.shape[0], length - count if isinstance(length, int) else "L", *port.shape[2:]),
        prefix_tokens=port.prefix_tokens - count,
        measured={
            image: tuple(length - count for length in lengths) for image, lengths in port.measured.items()
        },
    )


def _permuted(port: Port, to: Layout, sides: Sequence[int] | None, size: Sides) -> Port:
    if port.layout != "NLC" and to != "NLC":
        return _reshaped(port, to, port.spatial, measured=port.measured)
    if to == "NLC":
        fixed = [length for length in port.spatial if isinstance(length, int)]
        count: Dimension = prod(fixed) if len(fixed) == 2 else "L"
        maps = dict(port.measured) | {size_text(size): spatial_at(port, size) or ()}
        measured = {image: (prod(lengths),) for image, lengths in maps.items() if lengths}
        return _reshaped(port, to, (count,), measured=measured)
    if sides is not None:
        return _reshaped(port, to, tuple(sides))
    length = port.shape[1]  # may be less than the prefix tokens in a wrong contract
    square: tuple[Dimension, ...] = ("H", "W")
    if isinstance(length, int) and length > 0:
        square = (isqrt(length),) * 2
    measured = {image: (isqrt(tokens[0]),) * 2 for image, tokens in port.measured.items() if tokens[0] > 0}
    return _reshaped(port, to, square, measured=measured)


def _reshaped(
    port: Port,
    layout: Layout,
    spatial: Sequence[Dimension],
    *,
    measured: Mapping[str, tuple[int, ...]] | None = None,
    pooled: bool | None = None,
    prefix_tokens: int | None = None,
) -> Port:
    batch, channels = port.shape[0], port.channels
    # Not attrs.evolve, which is three times slower: a matrix calls this for every pair.
    return Port(
        port.name,
        (batch, channels, *spatial) if layout in ("NCHW", "NC") else (batch, *spatial, channels),
        port.dtype,
        layout,
        port.range,
        port.pooled if pooled is None else pooled,
        port.prefix_tokens if prefix_tokens is None else prefix_tokens,
        {} if measured is None else measured,
        port.multiple_of,
    )


def _prefix(port: Port) -> dict[str, int]:
    return {"prefix_tokens": port.prefix_tokens} if port.prefix_tokens else {}


def _square(sides: Sides | None) -> bool:
    return sides is None or sides[0] == sides[1]


def _blueprint(model: str, kwargs: Mapping[str, Any], size: Sides) -> Blueprint:
    return Blueprint("adapter", _library(), model, kwargs, "", "adapter", "whole", size)


@cache
def _library() -> str:
    from importlib.metadata import version

    return f"compatkit {version('compatkit')}"

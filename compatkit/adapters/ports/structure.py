"""Derive the structural level of a contract by running a module at several batch and image sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Literal

import attrs
import torch
from torch import nn

from compatkit.adapters.cutting.proof import unchanged
from compatkit.adapters.cutting.signals import port_signal
from compatkit.adapters.ports.sizerules import PortRuns, Runs, Shape, Size, outputs_of
from compatkit.contracts.contract import Blueprint, Dimension, Layout, Port, Scaled, Structural
from compatkit.contracts.ports import grid, size_text, tensor_shape
from compatkit.errors import CutError

OTHER_SIZES = ((1, 2), (3, 1), (7, 4))
"""What is added to the spatial sizes of a head's one input, to see whether it takes others."""


def extractor_structure(
    module: nn.Module, blueprint: Blueprint, channels: int, names: Sequence[str] | None = None
) -> Structural:
    """Run an extractor and return its image port and its feature ports.

    Where the module refuses other image sizes, or what it gives follows no floor rule, the sizes are fixed at those
    of the blueprint; where it takes only multiples, the image port says of what.

    Args:
        module: The part; it gives a tensor or a tuple of tensors.
        blueprint: Says at which image size it was traced.
        channels: Of the images.
        names: Of the feature ports, in order; None for ``"features"``, or ``"features.0"``, ... where several come.

    Raises:
        CutError: Something else than tensors comes out, nothing follows the batch, or the names do not fit.
    """
    with unchanged(module), torch.no_grad():
        module.eval()
        runs = Runs(module, channels, blueprint.traced_size)
        runs.explore()
    port_names = tuple(names or _default_names(len(runs.ports)))
    if len(port_names) != len(runs.ports) or len(set(port_names)) != len(port_names):
        raise CutError(
            f"{len(runs.ports)} tensors cross; their names must be as many, all distinct: {port_names}."
        )
    symbols = _Symbols()
    ports: list[Port] = []
    for name, port in zip(port_names, runs.ports, strict=True):
        before = first_tokens(ports, runs.base)
        ports.append(_feature_port(module, runs, port, name, symbols, before))
    sides: tuple[Dimension, Dimension] = ("H", "W") if runs.free else runs.base
    image = Port("image", ("N", channels, *sides), multiple_of=max(1, runs.step))
    return Structural((image,), tuple(ports))


def head_structure(module: nn.Module, blueprint: Blueprint, feature_ports: Sequence[Port]) -> Structural:
    """Run a head on features like those of ``feature_ports`` and return its input ports and its output port.

    Where it takes other spatial sizes and its output keeps its shape, the sizes are wildcards. A head with one input
    is tried on larger ones and on half of it; one with several on those that were measured together.

    Args:
        module: The head; its mode and tensors are left as they are.
        blueprint: It was built from.
        feature_ports: Output ports of the extractor that it was cut from.

    Raises:
        CutError: The module does not take such features, or does not give one vector an image.
    """
    ports = tuple(feature_ports)
    with unchanged(module), torch.no_grad():
        module.eval()
        width, dtype = _vector(module, ports, blueprint.traced_size)
        taken = _sizes_taken(module, ports, blueprint.traced_size, width)
    symbols = _Symbols()
    inputs = tuple(_entry(port, blueprint.traced_size, taken, symbols) for port in ports)
    kind = "logits" if blueprint.kwargs.get("num_classes", 1) else "vector"
    return Structural(inputs, (Port(kind, ("N", width), dtype=dtype, layout="NC", pooled=True),))


def prefix_tokens(module: nn.Module, tokens: int, size: Size, before: tuple[int, int] | None = None) -> int:
    """Return how many class and register tokens are among ``tokens``.

    It is the network's own count, unless only patches are there. Where the network does not count, it is one if the
    part holds a class token as a parameter, and the tokens form a grid of the image's proportions without it only.

    Args:
        module: The part; it, or its network, says how many of both there are.
        tokens: Count of tokens at a port.
        size: Height and width of the image.
        before: Count and prefix of the first port of tokens, where this is a later one: it has the same prefix for
            the same count, another one only where the counts add up or form a grid.
    """
    patches, prefix = _patches(module), int(getattr(module, "num_prefix_tokens", 0))
    if before is not None and before[0] == tokens:
        return before[1]
    if not prefix and any("cls_token" in name for name, _ in module.named_parameters()):
        return int(_is_behind(1, tokens, size))
    if before is None:
        return 0 if patches == tokens else prefix
    follows = _is_behind(prefix, tokens, size) if patches is None else patches + prefix == tokens
    return prefix if follows else 0


def first_tokens(ports: Sequence[Port], size: Size) -> tuple[int, int] | None:
    """Return count and prefix of the first port of tokens among ``ports``, for images of ``size``.

    Args:
        ports: Of one cut.
        size: Height and width of the images.
    """
    port = next((candidate for candidate in ports if candidate.layout == "NLC"), None)
    return None if port is None else (tensor_shape(port, size, 1)[1], port.prefix_tokens)


def _patches(module: nn.Module) -> int | None:
    count = getattr(module, "num_patches", None)
    return getattr(getattr(module, "patch_embed", None), "num_patches", None) if count is None else count


def _is_behind(prefix: int, tokens: int, size: Size) -> bool:
    """Whether tokens form a grid only without so many in front."""
    return grid((tokens,), size) is None and grid((tokens - prefix,), size) is not None


class _Symbols:
    """Free sizes get a symbol by how they were seen to go: ``H``, ``W``, ``L``, then ``H2``, ``L2``, ..."""

    def __init__(self) -> None:
        self.known: dict[tuple[str, tuple[int, ...]], str] = {}

    def of(self, letter: str, sizes: Sequence[int]) -> str:
        """Return the symbol of an axis with these sizes in all runs; the same for the same."""
        key = (letter, tuple(sizes))
        if key not in self.known:
            number = sum(known == letter for known, _ in self.known) + 1
            self.known[key] = letter if number == 1 else f"{letter}{number}"
        return self.known[key]


def _default_names(number: int) -> tuple[str, ...]:
    return ("features",) if number == 1 else tuple(f"features.{index}" for index in range(number))


def _feature_port(
    module: nn.Module,
    runs: Runs,
    seen: PortRuns,
    name: str,
    symbols: _Symbols,
    before: tuple[int, int] | None,
) -> Port:
    shape = seen.shapes[runs.base]
    layout = _layout(module, shape, seen, runs.base)
    dims: list[Dimension] = list(shape)
    for axis, rule in seen.batch.items():
        dims[axis] = "N" if rule == Scaled("N") else rule
    for axis, (_, rules) in seen.rules.items():
        dims[axis] = rules.rule or shape[axis]
    for axis in sorted(seen.products):
        dims[axis] = symbols.of("L", [sizes[axis] for sizes in seen.shapes.values()])
    port = Port(name, tuple(dims), seen.dtype, layout, _range(seen))
    axes = port.spatial_axes
    shapes = seen.shapes if runs.free else {runs.base: shape}
    measured = {
        size_text(size): tuple(sizes[axis] for axis in axes) for size, sizes in shapes.items() if axes
    }
    tokens = prefix_tokens(module, shape[1], runs.base, before) if layout == "NLC" else 0
    averaged = getattr(torch, seen.dtype).is_floating_point  # whole numbers are indices, no averages
    pooled = averaged and layout != "other" and all(sizes == shape for sizes in seen.shapes.values())
    if layout != "NC":
        pooled &= layout != "NLC" and runs.free and all(shape[axis] == 1 for axis in axes)
    return attrs.evolve(port, pooled=pooled, prefix_tokens=tokens, measured=measured)


def _range(seen: PortRuns) -> Literal["nonnegative", "signed", "any"]:
    if seen.minimum == float("inf"):
        return "any"
    return "nonnegative" if seen.minimum >= 0 else "signed"


def _layout(module: nn.Module, shape: Shape, seen: PortRuns, base: Size) -> Layout:
    """Name the layout by the axes that follow the image, else by the shape."""
    if seen.batch != {0: Scaled("N")} or not 2 <= len(shape) <= 4:
        return "other"
    follows = {*seen.rules, *seen.products}
    if len(shape) == 2:
        return "NC"
    if len(shape) == 3:
        tokens = follows == {1} or (not follows and _are_tokens(module, shape, base))
        return "NLC" if tokens else "other"
    if seen.products or not (follows <= {1, 2} or follows <= {2, 3}):
        return "other"
    if not follows:
        return _fixed_map(module, shape, base)
    return "NHWC" if 1 in follows else "NCHW"


def _fixed_map(module: nn.Module, shape: Shape, size: Size) -> Layout:
    """Name the layout of a map of fixed size: two axes in the image's proportions, else the last layer's width.

    A linear layer or a layer normalization works on the last axis, a convolution on the first behind the batch.
    """
    _, first, middle, last = shape
    lasts, firsts = (a * size[1] == b * size[0] for a, b in ((first, middle), (middle, last)))
    if lasts != firsts:
        return "NHWC" if lasts else "NCHW"
    for layer in reversed(list(module.modules())):
        if isinstance(layer, nn.Linear | nn.LayerNorm) and last in _widths(layer):
            return "NHWC"
        if first in _widths(layer):
            return "NCHW"
    return "other"


def _are_tokens(module: nn.Module, shape: Shape, size: Size) -> bool:
    """Whether the last of two axes that follow nothing is the width of tokens, the one before it their count.

    So the network's own count of patches says, or that a layer has one of both as its width, or else the grid.
    """
    _, count, width = shape
    patches, prefix = _patches(module), int(getattr(module, "num_prefix_tokens", 0))
    if patches is not None and count in (patches, patches + prefix):
        return True
    widths = {width for layer in module.modules() for width in _widths(layer)}
    if (count in widths) != (width in widths):
        return width in widths
    return grid((width,), size) is None and any(grid((count - k,), size) is not None for k in {0, 1, prefix})


def _widths(layer: nn.Module) -> Iterator[int]:
    for name in ("in_features", "out_features", "num_features", "in_channels", "out_channels"):
        width = getattr(layer, name, None)
        if isinstance(width, int):
            yield width
    if isinstance(layer, nn.LayerNorm):
        yield layer.normalized_shape[-1]


def _vector(module: nn.Module, ports: Sequence[Port], size: Size) -> tuple[int, str]:
    """Return width and dtype of a head's output, the same for one, two and three images."""
    vectors: set[tuple[int, str]] = set()
    for batch in (2, 3, 1):
        outputs = _run(module, ports, [tensor_shape(port, size, batch) for port in ports])
        if len(outputs) != 1 or outputs[0].ndim != 2 or len(outputs[0]) != batch:
            shapes = ", ".join(str(tuple(output.shape)) for output in outputs)
            raise CutError(
                f"A head gives one vector an image, (N, classes); this one gave {shapes} for {batch} images with "
                f"features {', '.join(str(tensor_shape(port, size, batch)) for port in ports)}."
            )
        vectors.add((outputs[0].shape[1], str(outputs[0].dtype).removeprefix("torch.")))
    if len(vectors) != 1:
        raise CutError(
            f"A head gives vectors of one width and dtype; for 1 to 3 images this one gave {sorted(vectors)}."
        )
    return vectors.pop()


def _run(module: nn.Module, ports: Sequence[Port], shapes: Sequence[Shape]) -> tuple[torch.Tensor, ...]:
    numbered = enumerate(zip(ports, shapes, strict=True))
    return outputs_of(module, [port_signal(shape, index, port.dtype) for index, (port, shape) in numbered])


def _sizes_taken(module: nn.Module, ports: Sequence[Port], size: Size, width: int) -> tuple[str, ...]:
    """Return the image sizes whose features the head takes besides ``size``; empty where its sizes are fixed."""

    def takes(shapes: Sequence[Shape]) -> bool:
        try:
            outputs = _run(module, ports, shapes)
        except Exception:  # foreign code refuses sizes in its own way
            return False
        return len(outputs) == 1 and tuple(outputs[0].shape) == (2, width)

    if len(ports) == 1 and ports[0].layout != "other":
        return ("",) if ports[0].spatial_axes and all(map(takes, _others(ports[0], size))) else ()
    spatial = [port for port in ports if port.spatial_axes]
    keys = {
        key for port in spatial for key in port.measured if all(key in other.measured for other in spatial)
    }
    # The smallest, which are the quickest; in an order that storing does not change.
    tried = sorted(keys - {size_text(size)}, key=lambda key: (prod(map(int, key.split("x"))), key))[
        : len(OTHER_SIZES)
    ]
    at = [[_measured_shape(port, key, tensor_shape(port, size, 2)) for port in ports] for key in tried]
    return tuple(tried) if tried and all(map(takes, at)) else ()


def _others(port: Port, size: Size) -> Iterator[list[Shape]]:
    """Yield larger sizes, and half the size: a head that refuses that does not take any size."""
    base = tensor_shape(port, size, 2)
    for steps in OTHER_SIZES:
        shape = list(base)
        for axis, step in zip(port.spatial_axes, steps, strict=False):
            shape[axis] += step
        yield [tuple(shape)]
    halved = [-(-side // 2) if axis in port.spatial_axes else side for axis, side in enumerate(base)]
    yield [tuple(halved)]


def _measured_shape(port: Port, key: str, start: Shape) -> Shape:
    shape = list(start)
    for axis, seen in zip(port.spatial_axes, port.measured[key] if port.spatial_axes else (), strict=True):
        shape[axis] = seen
    return tuple(shape)


def _entry(port: Port, size: Size, taken: Sequence[str], symbols: _Symbols) -> Port:
    """Return a head's input port: wildcards where it takes other sizes, else the sizes it was traced with."""
    start = tensor_shape(port, size, 1)
    keys = [key for key in taken if key]
    seen = {size_text(size): start, **{key: _measured_shape(port, key, start) for key in keys}}
    dims, letters = list(port.shape), "HW" if port.layout in ("NCHW", "NHWC") else "LLLLLL"
    for letter, axis in zip(letters, port.spatial_axes, strict=False):
        sizes = [shape[axis] for shape in seen.values()]
        # One input alone was tried at sizes of no image, several at the sizes that were seen together.
        varied = bool(taken) and (not keys or len(set(sizes)) > 1)
        dims[axis] = symbols.of(letter, sizes) if varied else start[axis]
    entry = attrs.evolve(port, shape=tuple(dims))
    axes = entry.spatial_axes
    measured = {key: tuple(shape[axis] for axis in axes) for key, shape in seen.items() if axes}
    return attrs.evolve(entry, measured=measured)

"""Derive the structural level of a contract by running a module at several batch and image sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import Literal

import attrs
import torch
from torch import nn

from compatkit.adapters.cutting.proof import restored_state
from compatkit.adapters.cutting.signals import port_signal
from compatkit.adapters.ports.sizerules import PortRuns, Runs, Shape, Size, call_part
from compatkit.contracts.contract import Blueprint, Dimension, Layout, Port, Scaled, Structural
from compatkit.contracts.ports import grid, size_text, tensor_shape
from compatkit.errors import CutError

OTHER_SIZES = ((1, 2), (3, 1), (7, 4))
"""Sizes added to the spatial axes of a head's single input, to test whether it takes other sizes."""


def extractor_structure(
    module: nn.Module, blueprint: Blueprint, channels: int, names: Sequence[str] | None = None
) -> Structural:
    """Run an extractor and return its image port and its feature ports.

    If the module fails at other image sizes, or its output sizes follow no floor rule, the image size is fixed at the
    traced one. If it takes multiples of a size only, the image port has ``multiple_of``.

    Args:
        module: Extractor that returns a tensor or a tuple of tensors.
        blueprint: Blueprint with the traced image size.
        channels: Image channels.
        names: Names of the feature ports, in order; None for ``"features"``, or ``"features.0"``, ... for several.

    Raises:
        CutError: The output is not tensors, none has a batch axis, or the names do not fit.
    """
    with restored_state(module), torch.no_grad():
        module.eval()
        runs = Runs(module, channels, blueprint.traced_size)
        runs.explore()
    port_names = tuple(names or _default_names(len(runs.ports)))
    if len(port_names) != len(runs.ports) or len(set(port_names)) != len(port_names):
        raise CutError(
            f"{len(runs.ports)} tensors cross, so {len(runs.ports)} distinct names are needed; got {port_names}."
        )
    symbols = _Symbols()
    ports: list[Port] = []
    for name, port in zip(port_names, runs.ports, strict=True):
        first = first_tokens(ports, runs.base)
        ports.append(_feature_port(module, runs, port, name, symbols, first))
    sides: tuple[Dimension, Dimension] = ("H", "W") if runs.free else runs.base
    image = Port("image", ("N", channels, *sides), multiple_of=max(1, runs.step))
    return Structural((image,), tuple(ports))


def head_structure(module: nn.Module, blueprint: Blueprint, feature_ports: Sequence[Port]) -> Structural:
    """Run a head on fixed features and return its input ports and its output port.

    Spatial sizes are wildcards if the head takes other sizes and its output keeps its shape. A head with one input is
    tested at larger sizes and at half the size; one with several inputs at the sizes measured on the extractor.

    Args:
        module: Head; its mode and tensors are restored.
        blueprint: Blueprint of the head.
        feature_ports: Output ports of the extractor from the same cut.

    Raises:
        CutError: The head does not return one vector for each image.
    """
    ports = tuple(feature_ports)
    with restored_state(module), torch.no_grad():
        module.eval()
        width, dtype = _vector(module, ports, blueprint.traced_size)
        accepted = _accepted_sizes(module, ports, blueprint.traced_size, width)
    symbols = _Symbols()
    inputs = tuple(_input_port(port, blueprint.traced_size, accepted, symbols) for port in ports)
    kind = "logits" if blueprint.kwargs.get("num_classes", 1) else "vector"
    return Structural(inputs, (Port(kind, ("N", width), dtype=dtype, layout="NC", pooled=True),))


def prefix_tokens(module: nn.Module, tokens: int, size: Size, first: tuple[int, int] | None = None) -> int:
    """Return the number of class and register tokens among ``tokens``.

    The network's ``num_prefix_tokens`` counts, unless the tokens are patches only. Without that attribute the number
    is 1 if the part has a class token parameter and the other tokens form a grid of the image's proportions.

    Args:
        module: Extractor or head.
        tokens: Number of tokens at a port.
        size: Height and width of the image in pixels.
        first: Token count and prefix of the first token port, if this port is a later one. A later port with the same
            count has the same prefix; with another count it has one only if the counts add up or form a grid.
    """
    patches, prefix = _patches(module), int(getattr(module, "num_prefix_tokens", 0))
    if first is not None and first[0] == tokens:
        return first[1]
    if not prefix and any("cls_token" in name for name, _ in module.named_parameters()):
        return int(_grid_after_prefix(1, tokens, size))
    if first is None:
        return 0 if patches == tokens else prefix
    matches = _grid_after_prefix(prefix, tokens, size) if patches is None else patches + prefix == tokens
    return prefix if matches else 0


def first_tokens(ports: Sequence[Port], size: Size) -> tuple[int, int] | None:
    """Return token count and prefix tokens of the first token port; None if there is none.

    Args:
        ports: Ports of one cut, in order.
        size: Height and width of the images in pixels.
    """
    port = next((candidate for candidate in ports if candidate.layout == "NLC"), None)
    return None if port is None else (tensor_shape(port, size, 1)[1], port.prefix_tokens)


def _patches(module: nn.Module) -> int | None:
    count = getattr(module, "num_patches", None)
    return getattr(getattr(module, "patch_embed", None), "num_patches", None) if count is None else count


def _grid_after_prefix(prefix: int, tokens: int, size: Size) -> bool:
    """Return whether the tokens form a grid without the prefix only."""
    return grid((tokens,), size) is None and grid((tokens - prefix,), size) is not None


class _Symbols:
    """Symbols of free axes by their sizes in all runs: ``H``, ``W``, ``L``, then ``H2``, ``L2``, ..."""

    def __init__(self) -> None:
        self.symbols: dict[tuple[str, tuple[int, ...]], str] = {}

    def of(self, letter: str, sizes: Sequence[int]) -> str:
        """Return the symbol of an axis; axes with equal sizes in all runs share one.

        Args:
            letter: ``"H"``, ``"W"`` or ``"L"``.
            sizes: Length of the axis in every run.
        """
        key = (letter, tuple(sizes))
        if key not in self.symbols:
            number = sum(other == letter for other, _ in self.symbols) + 1
            self.symbols[key] = letter if number == 1 else f"{letter}{number}"
        return self.symbols[key]


def _default_names(number: int) -> tuple[str, ...]:
    return ("features",) if number == 1 else tuple(f"features.{index}" for index in range(number))


def _feature_port(
    module: nn.Module,
    runs: Runs,
    port_runs: PortRuns,
    name: str,
    symbols: _Symbols,
    first: tuple[int, int] | None,
) -> Port:
    shape = port_runs.shapes[runs.base]
    layout = _layout(module, shape, port_runs, runs.base)
    dims: list[Dimension] = list(shape)
    for axis, batch_rule in port_runs.batch.items():
        dims[axis] = "N" if batch_rule == Scaled("N") else batch_rule
    for axis, (_, candidates) in port_runs.rules.items():
        dims[axis] = candidates.rule or shape[axis]
    for axis in sorted(port_runs.products):
        dims[axis] = symbols.of("L", [sizes[axis] for sizes in port_runs.shapes.values()])
    port = Port(name, tuple(dims), port_runs.dtype, layout, _range(port_runs))
    axes = port.spatial_axes
    shapes = port_runs.shapes if runs.free else {runs.base: shape}
    measured = {
        size_text(size): tuple(sizes[axis] for axis in axes) for size, sizes in shapes.items() if axes
    }
    tokens = prefix_tokens(module, shape[1], runs.base, first) if layout == "NLC" else 0
    averaged = getattr(torch, port_runs.dtype).is_floating_point  # integers are indices, no averages
    pooled = averaged and layout != "other" and all(sizes == shape for sizes in port_runs.shapes.values())
    if layout != "NC":
        pooled &= layout != "NLC" and runs.free and all(shape[axis] == 1 for axis in axes)
    return attrs.evolve(port, pooled=pooled, prefix_tokens=tokens, measured=measured)


def _range(port_runs: PortRuns) -> Literal["nonnegative", "signed", "any"]:
    if port_runs.minimum == float("inf"):
        return "any"
    return "nonnegative" if port_runs.minimum >= 0 else "signed"


def _layout(module: nn.Module, shape: Shape, port_runs: PortRuns, base: Size) -> Layout:
    """Derive the layout from the axes that depend on the image size, else from the shape."""
    if port_runs.batch != {0: Scaled("N")} or not 2 <= len(shape) <= 4:
        return "other"
    spatial = {*port_runs.rules, *port_runs.products}
    if len(shape) == 2:
        return "NC"
    if len(shape) == 3:
        tokens = spatial == {1} or (not spatial and _are_tokens(module, shape, base))
        return "NLC" if tokens else "other"
    if port_runs.products or not (spatial <= {1, 2} or spatial <= {2, 3}):
        return "other"
    if not spatial:
        return _fixed_map_layout(module, shape, base)
    return "NHWC" if 1 in spatial else "NCHW"


def _fixed_map_layout(module: nn.Module, shape: Shape, size: Size) -> Layout:
    """Derive the layout of a map of fixed size from the image's proportions, else from the width of the last layer.

    Linear layers and layer normalization work on the last axis, convolutions on the first after the batch.
    """
    _, first, middle, last = shape
    channels_last, channels_first = (a * size[1] == b * size[0] for a, b in ((first, middle), (middle, last)))
    if channels_last != channels_first:
        return "NHWC" if channels_last else "NCHW"
    for layer in reversed(list(module.modules())):
        if isinstance(layer, nn.Linear | nn.LayerNorm) and last in _widths(layer):
            return "NHWC"
        if first in _widths(layer):
            return "NCHW"
    return "other"


def _are_tokens(module: nn.Module, shape: Shape, size: Size) -> bool:
    """Return whether a tensor (N, count, width) of fixed size holds tokens.

    Decided by the network's ``num_patches``, else by which of both is the width of a layer, else by the grid.
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
    """Return width and dtype of a head's output, equal for one, two and three images."""
    vectors: set[tuple[int, str]] = set()
    for batch in (2, 3, 1):
        outputs = _run(module, ports, [tensor_shape(port, size, batch) for port in ports])
        if len(outputs) != 1 or outputs[0].ndim != 2 or len(outputs[0]) != batch:
            shapes = ", ".join(str(tuple(output.shape)) for output in outputs)
            raise CutError(
                f"A head must return one vector for each image, (N, classes); this one returned {shapes} for {batch} "
                f"images with features {', '.join(str(tensor_shape(port, size, batch)) for port in ports)}."
            )
        vectors.add((outputs[0].shape[1], str(outputs[0].dtype).removeprefix("torch.")))
    if len(vectors) != 1:
        raise CutError(
            "A head must return vectors of one width and dtype; this one returned "
            f"{sorted(vectors)} for 1 to 3 images."
        )
    return vectors.pop()


def _run(module: nn.Module, ports: Sequence[Port], shapes: Sequence[Shape]) -> tuple[torch.Tensor, ...]:
    numbered = enumerate(zip(ports, shapes, strict=True))
    return call_part(module, [port_signal(shape, index, port.dtype) for index, (port, shape) in numbered])


def _accepted_sizes(module: nn.Module, ports: Sequence[Port], size: Size, width: int) -> tuple[str, ...]:
    """Return keys of other image sizes whose features the head takes; empty if its sizes are fixed.

    The key is ``""`` for a head with one input, which is tested at sizes of no particular image.
    """

    def accepts(shapes: Sequence[Shape]) -> bool:
        try:
            outputs = _run(module, ports, shapes)
        except Exception:  # foreign code refuses sizes in its own way
            return False
        return len(outputs) == 1 and tuple(outputs[0].shape) == (2, width)

    if len(ports) == 1 and ports[0].layout != "other":
        return ("",) if ports[0].spatial_axes and all(map(accepts, _other_shapes(ports[0], size))) else ()
    spatial = [port for port in ports if port.spatial_axes]
    keys = {
        key for port in spatial for key in port.measured if all(key in other.measured for other in spatial)
    }
    # The smallest are the fastest; the order is independent of the order of the stored keys.
    smallest = sorted(keys - {size_text(size)}, key=lambda key: (prod(map(int, key.split("x"))), key))
    tested = smallest[: len(OTHER_SIZES)]
    shapes = [[_measured_shape(port, key, tensor_shape(port, size, 2)) for port in ports] for key in tested]
    return tuple(tested) if tested and all(map(accepts, shapes)) else ()


def _other_shapes(port: Port, size: Size) -> Iterator[list[Shape]]:
    """Yield the shapes of larger inputs, then of an input of half the size."""
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
    for axis, length in zip(port.spatial_axes, port.measured[key] if port.spatial_axes else (), strict=True):
        shape[axis] = length
    return tuple(shape)


def _input_port(port: Port, size: Size, accepted: Sequence[str], symbols: _Symbols) -> Port:
    """Return a head's input port: wildcards if it takes other sizes, else the traced sizes."""
    start = tensor_shape(port, size, 1)
    keys = [key for key in accepted if key]
    shapes = {size_text(size): start, **{key: _measured_shape(port, key, start) for key in keys}}
    dims, letters = list(port.shape), "HW" if port.layout in ("NCHW", "NHWC") else "LLLLLL"
    for letter, axis in zip(letters, port.spatial_axes, strict=False):
        sizes = [shape[axis] for shape in shapes.values()]
        # A single input was tested at sizes of no particular image, several inputs at measured sizes.
        varied = bool(accepted) and (not keys or len(set(sizes)) > 1)
        dims[axis] = symbols.of(letter, sizes) if varied else start[axis]
    port = attrs.evolve(port, shape=tuple(dims))
    axes = port.spatial_axes
    measured = {key: tuple(shape[axis] for axis in axes) for key, shape in shapes.items() if axes}
    return attrs.evolve(port, measured=measured)

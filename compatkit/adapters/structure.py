"""Derive the structural level of a contract by running a module at several batch and image sizes."""

from __future__ import annotations

import attrs
import torch
from torch import nn

from compatkit.adapters.proof import unchanged
from compatkit.adapters.runs import Runs, output_of
from compatkit.contract import Blueprint, Dimension, Layout, Port, Scaled, Structural
from compatkit.errors import CutError


def extractor_structure(module: nn.Module, blueprint: Blueprint, channels: int) -> Structural:
    """Run an extractor and return its image port and its feature port.

    Where the module refuses other image sizes, or its output follows no floor rule, the sizes are fixed at
    those of the blueprint.

    Raises:
        CutError: The output is no tensor, not batch first, or of a layout that has no name.
    """
    with unchanged(module), torch.no_grad():
        module.eval()
        runs = Runs(module, channels, blueprint.traced_size)
        runs.explore()
        port = _feature_port(module, runs)
    symbols: tuple[Dimension, Dimension] = ("H", "W") if runs.free else runs.base
    image = Port("image", ("N", channels, *symbols), layout="NCHW", range="any")
    return Structural((image,), (port,))


def head_structure(module: nn.Module, blueprint: Blueprint, feature_port: Port) -> Structural:
    """Run a head on features like ``feature_port``'s and return its input and output port.

    Where it takes other spatial sizes and its output keeps its shape, the sizes are wildcards.

    Raises:
        CutError: The module does not take such features, or does not give one vector an image.
    """
    shape = _traced_shape(feature_port, blueprint.traced_size)
    with unchanged(module), torch.no_grad():
        module.eval()
        outputs = [output_of(module, (batch, *shape)) for batch in (2, 3)]
        if any(out.ndim != 2 or len(out) != batch for out, batch in zip(outputs, (2, 3), strict=True)):
            raise CutError(
                f"A head gives one vector an image, (N, classes); this one gave {tuple(outputs[0].shape)} for 2 "
                f"images with features {shape}."
            )
        free = _takes_other_sizes(module, shape, feature_port.layout, outputs[0].shape)
    names = {"NCHW": ("H", "W"), "NHWC": ("H", "W"), "NLC": ("L",), "NC": ()}[feature_port.layout]
    axes = _spatial_axes(feature_port.layout)
    dims: list[Dimension] = ["N", *shape]
    for axis, name in zip(axes, names, strict=True):
        dims[axis] = name if free else shape[axis - 1]
    key = f"{blueprint.traced_size[0]}x{blueprint.traced_size[1]}"
    measured = {key: tuple(shape[axis - 1] for axis in axes)} if axes else {}
    entry = attrs.evolve(feature_port, shape=tuple(dims), measured=measured)
    kind = "logits" if blueprint.kwargs.get("num_classes", 1) else "vector"
    return Structural((entry,), (Port(kind, ("N", outputs[0].shape[1]), layout="NC", pooled=True),))


def _feature_port(module: nn.Module, runs: Runs) -> Port:
    shape = runs.shapes[runs.base]
    layout = _layout(shape, runs)
    dims: list[Dimension] = ["N", *shape]
    for axis, (_, rule) in runs.rules.items():
        dims[axis + 1] = rule.rules[0]
    if layout == "NLC" and runs.free and len({s[0] for s in runs.shapes.values()}) > 1:
        dims[1] = "L"
    axes = _spatial_axes(layout)
    same = all(other == shape for other in runs.shapes.values())
    measured = {
        f"{h}x{w}": tuple(seen[axis - 1] for axis in axes) for (h, w), seen in runs.shapes.items() if axes
    }
    if not runs.free:
        key = f"{runs.base[0]}x{runs.base[1]}"
        measured = {key: measured[key]} if axes else {}
    flat = layout == "NC" and same
    one_pixel = (
        layout in ("NCHW", "NHWC") and runs.free and same and all(shape[axis - 1] == 1 for axis in axes)
    )
    return Port(
        "features",
        tuple(dims),
        layout=layout,
        range="nonnegative" if runs.minimum >= 0 else "signed",
        pooled=flat or one_pixel,
        prefix_tokens=_prefix_tokens(module, shape) if layout == "NLC" else 0,
        measured=measured,
    )


def _layout(shape: tuple[int, ...], runs: Runs) -> Layout:
    """Name the layout by the axes that follow the image, else by the shape."""
    if len(shape) == 1:
        return "NC"
    if len(shape) == 2:
        if any(other[1] != shape[1] for other in runs.shapes.values()):
            raise CutError(
                "The last axis of the features follows the image size; a layout (N, C, L) has no name."
            )
        return "NLC"
    if len(shape) != 3:
        raise CutError(f"Features have 2 to 4 axes, batch first; got {len(shape) + 1} axes, (N, {shape}).")
    if set(runs.rules) == {0, 1}:
        return "NHWC"
    if not runs.rules and runs.base[0] == runs.base[1] and shape[0] == shape[1] != shape[2]:
        return "NHWC"
    return "NCHW"


def _prefix_tokens(module: nn.Module, shape: tuple[int, ...]) -> int:
    """Return the class and register tokens: the network's own count, unless there are only patches here."""
    patches = getattr(module, "num_patches", None)
    if patches is None:
        patches = getattr(getattr(module, "patch_embed", None), "num_patches", None)
    return 0 if patches == shape[0] else int(getattr(module, "num_prefix_tokens", 0))


def _takes_other_sizes(
    module: nn.Module, shape: tuple[int, ...], layout: Layout, expected: torch.Size
) -> bool:
    axes = _spatial_axes(layout)
    if not axes:
        return False
    for steps in ((1, 2), (3, 1), (7, 4)):
        other = list(shape)
        for axis, step in zip(axes, steps, strict=False):
            other[axis - 1] += step
        try:
            if output_of(module, (2, *other)).shape != expected:
                return False
        except (RuntimeError, AssertionError, ValueError, IndexError, TypeError):
            return False
    return True


def _spatial_axes(layout: Layout) -> tuple[int, ...]:
    return {"NCHW": (2, 3), "NHWC": (1, 2), "NLC": (1,), "NC": ()}[layout]


def _traced_shape(port: Port, size: tuple[int, int]) -> tuple[int, ...]:
    """Return the port's shape without the batch axis at the image size that was traced.

    Raises:
        CutError: The port has a free size that was not measured at this image size.
    """
    sizes = {"H": size[0], "W": size[1]}
    seen = port.measured.get(f"{size[0]}x{size[1]}", ())
    known = dict(zip(_spatial_axes(port.layout), seen, strict=False))
    shape: list[int] = []
    for axis, dim in enumerate(port.shape[1:], 1):
        if isinstance(dim, int):
            shape.append(dim)
        elif isinstance(dim, Scaled):
            shape.append(dim.at(sizes[dim.of]))
        elif axis in known:
            shape.append(known[axis])
        else:
            raise CutError(
                f"Port {port.name!r} has the free size {dim!r} and was not measured at {size[0]}x{size[1]}; derive "
                "the extractor's structure at this size first."
            )
    return tuple(shape)

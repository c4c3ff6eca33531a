"""The probe of a component: its inputs, its answer, and the proof that an answer was seen to be the stated one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from compatkit.adapters.blueprints import probe
from compatkit.adapters.builders import BUILDERS, BUILT_IN
from compatkit.contracts.contract import Blueprint, Probe, Structural
from compatkit.contracts.manifest import Manifest
from compatkit.contracts.ports import Sides, grid_at, tensor_shape
from compatkit.registry.names import Reference
from compatkit.registry.store import Store

PROBE_BATCH = 2
"""Images of a probe."""
LEAST_PROBE = 64
"""Pixels of a side below which the images of a probe are not made smaller than those that were traced."""


def probe_of(module: nn.Module, shape: Structural, blueprint: Blueprint) -> Probe:
    """Return the probe of a part with these ports."""
    return probe(module, *probe_shapes(shape, blueprint), dtypes=[port.dtype for port in shape.inputs])


def probe_shapes(shape: Structural, blueprint: Blueprint) -> list[tuple[int, ...]]:
    """Return the shapes of the probe's inputs: two images, or features of two images of the size that was traced.

    What takes images of any size gets smaller ones than were traced: a first load is mostly its probe, whose cost falls
    with the square, and which still depends on every weight.
    """
    size = blueprint.traced_size
    if blueprint.takes_images:
        image = shape.inputs[0]
        return [(PROBE_BATCH, int(str(image.channels)), *(_smaller(shape, size) or size))]
    return [tensor_shape(port, size, PROBE_BATCH) for port in shape.inputs]


def _smaller(shape: Structural, size: Sides) -> Sides | None:
    """Return the smallest size of the same proportions that leaves the features two positions a side.

    One would hide most weights of a 3x3 kernel. None where the port takes no other size, or nothing smaller fits.
    """
    image, grids = shape.inputs[0], [grid_at(port, size) for port in shape.outputs]
    if any(isinstance(one, int) for one in image.spatial) or not grids:
        return None
    short = min(size)
    pooled = short // 2  # features without positions tell nothing of those before them
    least = max(
        LEAST_PROBE, *(-(-short * 2 // min(one)) if one and min(one) > 1 else pooled for one in grids)
    )
    for side in range(least, short):
        height, width = (round(one * side / short) for one in size)
        if height % image.multiple_of == width % image.multiple_of == 0:
            return height, width
    return None


def proof_of(manifest: Manifest, digest: str, builders: Sequence[str] | None = None) -> str | None:
    """Return what it is that a component passes its probe here; None where code may change without a version.

    Args:
        manifest: Of the component.
        digest: Of the manifest.
        builders: Of its parts, where it has some; None takes the component's own.
    """
    import compatkit

    used = (manifest.blueprint.builder,) if manifest.blueprint.is_cut else ()
    builders = used if builders is None else builders
    if any(one not in BUILT_IN for one in builders):
        return None
    library = " ".join(BUILDERS[one].library() for one in builders)
    return f"probe {digest} compatkit {compatkit.__version__} torch {torch.__version__} {library}".strip()


def remember_proof(
    store: Store, manifest: Manifest, reference: Reference, builders: Sequence[str] | None = None
) -> None:
    """Remember that a component passed its probe, rebuilt from blueprint and weights, before it was published."""
    proof = proof_of(manifest, str(reference.digest), builders)
    if proof is not None and manifest.contract.statistical.probe is not None:
        store.memory.prove(proof)


def normalisation_of(module: nn.Module) -> Literal["batch", "none"]:
    """Return ``"batch"`` where the module holds batch normalisation, else ``"none"``."""
    return "batch" if any(isinstance(one, _BatchNorm) for one in module.modules()) else "none"

"""Probes: inputs with recorded outputs that a part must reproduce, and the cache of passed probes."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from compatkit.adapters.builders import versions
from compatkit.adapters.fingerprint import probe
from compatkit.contracts.contract import Blueprint, Probe, Structural
from compatkit.contracts.manifest import Manifest
from compatkit.contracts.ports import Sides, grid_at, tensor_shape
from compatkit.foundation.codec import digest as digest_of
from compatkit.foundation.codec import dumps
from compatkit.registry.store import Store

PROBE_BATCH = 2
"""Number of images of a probe."""
MIN_PROBE_SIDE = 64
"""Smallest side in pixels to which the images of a probe are reduced."""


def probe_of(module: nn.Module, shape: Structural, blueprint: Blueprint) -> Probe:
    """Return the probe of a part.

    Args:
        module: Module of the part.
        shape: Ports of the part.
        blueprint: Blueprint the part was built from.
    """
    return probe(module, *probe_shapes(shape, blueprint), dtypes=[port.dtype for port in shape.inputs])


def probe_shapes(shape: Structural, blueprint: Blueprint) -> list[tuple[int, ...]]:
    """Return the shapes of the probe's inputs: two images, or features of two images of the traced size.

    Parts that accept any image size get smaller images: the first load is dominated by the probe, whose cost grows
    with the area, and the outputs still depend on every weight.

    Args:
        shape: Ports of the part.
        blueprint: Blueprint of the part; it states the traced image size.
    """
    size = blueprint.traced_size
    if blueprint.takes_images:
        image = shape.inputs[0]
        return [(PROBE_BATCH, int(str(image.channels)), *(_smaller(shape, size) or size))]
    return [tensor_shape(port, size, PROBE_BATCH) for port in shape.inputs]


def _smaller(shape: Structural, size: Sides) -> Sides | None:
    """Return the smallest size of the same proportions that leaves features of two positions per side.

    A single position would hide most weights of a 3x3 kernel. None if the port accepts no smaller size.
    """
    image, grids = shape.inputs[0], [grid_at(port, size) for port in shape.outputs]
    if any(isinstance(item, int) for item in image.spatial) or not grids:
        return None
    short = min(size)
    pooled = short // 2  # pooled features do not show the positions before them
    min_side = max(
        MIN_PROBE_SIDE, *(-(-short * 2 // min(item)) if item and min(item) > 1 else pooled for item in grids)
    )
    for side in range(min_side, short):
        height, width = (round(item * side / short) for item in size)
        if height % image.multiple_of == width % image.multiple_of == 0:
            return height, width
    return None


def proof_of(manifest: Manifest, digest: str, builders: Sequence[str] | None = None) -> str | None:
    """Return a cache key for having passed the probe here; None if code may change without a version.

    Args:
        manifest: Manifest of the component.
        digest: Digest of the manifest.
        builders: Builders of its parts; None for the component's own.
    """
    used = (manifest.blueprint.builder,) if manifest.blueprint.is_cut else ()
    return _cache_key(f"probe {digest}", used if builders is None else builders)


def load_fact(manifest: Manifest, digest: str) -> str | None:
    """Return a cache key for having passed all checks of a load that need no weights; None as for ``proof_of``.

    Args:
        manifest: Manifest of the component.
        digest: Digest of the manifest.
    """
    used = (manifest.blueprint.builder,) if manifest.blueprint.is_cut else ()
    return _cache_key(f"loadable {digest}", used)


def built_fact(blueprint: Blueprint) -> str | None:
    """Return a cache key for having built a network here within the bounds; None if code may change without a version.

    Args:
        blueprint: Blueprint of a part of the network.
    """
    if not blueprint.is_cut:
        return None
    return _cache_key(f"built {digest_of(dumps(blueprint))}", (blueprint.builder,))


def _cache_key(what: str, builders: Sequence[str]) -> str | None:
    installed = versions(builders)
    return None if installed is None else f"{what} {installed}"


def remember_proof(
    store: Store,
    manifest: Manifest,
    digest: str | None,
    builders: Sequence[str] | None = None,
) -> None:
    """Remember that a component, rebuilt from blueprint and weights, passed its probe before publication.

    Args:
        store: Store of the registry.
        manifest: Manifest of the component.
        digest: Digest of the manifest.
        builders: Builders of its parts; None for the component's own.
    """
    proof = proof_of(manifest, str(digest), builders)
    if proof is not None and manifest.contract.statistical.probe is not None:
        store.local_cache.remember_proved(proof)

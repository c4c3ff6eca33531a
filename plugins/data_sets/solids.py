"""Solids: tetrahedron, cube, icosahedron, cone and cylinder, gray on black, in random poses.

Drawn after SYMSOL (Murphy et al. 2021) as Bonheme and Grzes (2023) use it: poses are uniform over rotations, the view
is orthographic, and each face is as bright as it is turned to one light (Lambert). A solid is an intersection of
half-spaces n . p <= d; along the ray of a pixel it is entered at the nearest of the planes that face the viewer, and
is hit where that lies before the farthest exit. Cone and cylinder have 48 sides. Position and size, which SYMSOL does
not vary, can be factors too.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from compatkit import hookimpl
from compatkit.errors import DataError
from compatkit.hooks import Register

from ..factored import Factored, numbered

compatkit_api = 1
Floats = NDArray[np.float32]
SOLIDS = ("tetrahedron", "cube", "icosahedron", "cone", "cylinder")
SIDES = 48
"""Sides of the prism and the pyramid that approximate cylinder and cone."""
LIGHT = np.array([0.4, 0.5, 0.77])
"""Direction of the light: right, up, towards the viewer; of length 1 up to rounding."""
AMBIENT = 0.25
"""Brightness of a face turned away from the light; 1 is white."""
REACH = 0.42
"""Radius of the ball around a centered solid of scale 1, as a fraction of the image's side."""
_BLOCK = 64


@hookimpl
def compatkit_data_sets(register: Register) -> None:
    """Offer ``solids``: 5,000 images of 32x32 pixels, labeled by kind."""
    register("solids", lambda root=None, download=False: solids().labeled("solid"))


@lru_cache(maxsize=4)
def solids(
    *,
    count: int = 5000,
    positions: int = 1,
    scales: int = 1,
    size: int = 32,
    seed: int = 0,
    name: str = "solids",
) -> Factored:
    """Return solids in random poses, equally many of each up to one; equal calls share one result.

    Args:
        count: Number of images.
        positions: Number of columns, and of rows, for the center; 1 is the center of the image.
        scales: Number of scales, evenly from .5 to 1.
        size: Pixels per side.
        seed: Draws poses, positions and scales.
        name: Name of the data sets.

    Raises:
        DataError: A number is below 1, or the image is too small for a solid.
    """
    if min(count, positions, scales) < 1 or size < 8:
        raise DataError(
            f"solids expects counts from 1 and at least 8 pixels; got {count} images, {positions} positions, {scales} "
            f"scales and {size} pixels."
        )
    rng = np.random.default_rng(seed)
    levels = {"solid": len(SOLIDS), "x": positions, "y": positions, "scale": scales}
    factors = {factor: rng.integers(level, size=count) for factor, level in levels.items()}
    factors["solid"] = np.arange(count) % len(SOLIDS)
    poses = rotations(count, rng)
    reach = REACH if positions == 1 else REACH * 0.6
    centers = np.linspace(reach, 1 - reach, positions) if positions > 1 else np.array([0.5])
    sizes = np.linspace(0.5, 1, scales) if scales > 1 else np.array([1.0])
    images = np.zeros((count, size, size, 1), dtype=np.uint8)
    for solid in range(len(SOLIDS)):
        indices = np.flatnonzero(factors["solid"] == solid)
        for block in np.array_split(indices, -(-len(indices) // _BLOCK)) if len(indices) else ():
            offsets = np.stack([centers[factors["x"][block]], centers[factors["y"][block]]], axis=1)
            images[block, ..., 0] = render(
                solid, poses[block], offsets * size, reach * size * sizes[factors["scale"][block]], size
            )
    values = {
        factor: SOLIDS if factor == "solid" else numbered(level)
        for factor, level in levels.items()
        if factor == "solid" or level > 1
    }
    return Factored(name, images, {factor: factors[factor] for factor in values}, values)


def rotations(count: int, rng: np.random.Generator) -> Floats:
    """Return rotation matrices of uniform quaternions, ``(count, 3, 3)``."""
    normals = rng.standard_normal((count, 4))
    w, x, y, z = (normals / np.linalg.norm(normals, axis=1, keepdims=True)).T
    rows = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
        [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
        [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
    ]
    return np.array(rows).transpose(2, 0, 1).astype(np.float32)


def planes(solid: int) -> tuple[Floats, Floats]:
    """Return outward unit normals ``(faces, 3)`` and distances ``(faces,)`` of a solid in the unit ball around 0.

    Args:
        solid: Index in ``SOLIDS``.
    """
    angles = 2 * np.pi * np.arange(SIDES) / SIDES
    ring = np.stack([np.cos(angles), np.sin(angles), np.zeros(SIDES)], axis=1)
    ends = np.array([[0.0, 0.0, 1.0], [0.0, 0.0, -1.0]])
    if solid == 0:
        corners = np.array([[1, 1, 1], [1, -1, -1], [-1, 1, -1], [-1, -1, 1]]) / np.sqrt(3)
        normals, distances = -corners, np.full(4, 1 / 3)
    elif solid == 1:
        normals = np.concatenate([np.eye(3), -np.eye(3)])
        distances = np.full(6, 1 / np.sqrt(3))
    elif solid == 2:
        golden = (1 + np.sqrt(5)) / 2
        flat = [(0.0, a, b * golden) for a in (1, -1) for b in (1, -1)]
        corners = np.array([np.roll(corner, turn) for turn in range(3) for corner in flat]) / np.hypot(
            1, golden
        )
        near = corners @ corners.T > 0.4  # corners that share an edge, at a cosine of 1 / sqrt(5)
        faces = [face for face in combinations(range(12), 3) if near[np.ix_(face, face)].all()]
        sums = np.array([corners[list(face)].sum(0) for face in faces])
        normals = sums / np.linalg.norm(sums, axis=1, keepdims=True)
        distances = np.array([corners[face[0]] @ normal for face, normal in zip(faces, normals, strict=True)])
    elif solid == 3:  # a tip at height 1, a base of radius sqrt(3) / 2 at height -1/2: all within the ball
        slope = np.array([1.5, np.sqrt(0.75)]) / np.hypot(1.5, np.sqrt(0.75))
        normals = np.concatenate([ring * slope[0] + ends[:1] * slope[1], ends[1:]])
        distances = np.append(np.full(SIDES, slope[1]), 0.5)
    else:
        normals = np.concatenate([ring, ends])
        distances = np.append(np.full(SIDES, np.sqrt(0.5)), [np.sqrt(0.5)] * 2)
    return normals.astype(np.float32), distances.astype(np.float32)


def render(
    solid: int, poses: Floats, centers: NDArray[np.float64], radii: NDArray[np.float64], size: int
) -> NDArray[np.uint8]:
    """Return images of one solid, uint8 ``(n, size, size)``.

    Args:
        solid: Index in ``SOLIDS``.
        poses: Rotation matrices ``(n, 3, 3)``.
        centers: Column and row of the center in pixels ``(n, 2)``.
        radii: Radius of the ball around it in pixels ``(n,)``.
        size: Pixels per side.
    """
    normals, distances = planes(solid)
    turned = np.einsum("nij,fj->nfi", poses, normals)
    pixels = np.arange(size, dtype=np.float32) + 0.5
    across = (pixels[None] - centers[:, :1].astype(np.float32)) / radii[:, None].astype(np.float32)
    up = -(pixels[None] - centers[:, 1:].astype(np.float32)) / radii[:, None].astype(np.float32)
    light = (turned @ LIGHT.astype(np.float32)).clip(0)
    shades = AMBIENT + (1 - AMBIENT) * light
    shape = (len(poses), size, size)
    top, bottom = np.full(shape, np.inf, np.float32), np.full(shape, -np.inf, np.float32)
    shade = np.zeros(shape, np.float32)
    for face in range(len(normals)):
        a, b, c = (turned[:, face, axis][:, None, None] for axis in range(3))
        c = np.where(abs(c) < 1e-6, np.float32(1e-6), c)  # a plane along the ray, tilted imperceptibly
        height = (distances[face] - a * across[:, None, :] - b * up[:, :, None]) / c
        facing = np.broadcast_to(c > 0, shape)
        nearer = facing & (height < top)
        top = np.where(nearer, height, top)
        shade = np.where(nearer, shades[:, face][:, None, None], shade)
        bottom = np.where(~facing & (height > bottom), height, bottom)
    return np.where(top >= bottom, np.rint(shade * 255), 0).astype(np.uint8)

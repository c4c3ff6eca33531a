"""Maps in closed form before the unchanged head: a permutation, a rotation, a linear map, a 3x3 convolution."""

from __future__ import annotations

from compatkit import hookimpl
from compatkit.components.bridges.rungs import (
    COLUMNS,
    RungFit,
    Seam,
    Window,
    permutation,
    procrustes,
    ridge,
    rotation,
    scale_of,
    usual_strength,
)
from compatkit.errors import IncompatibleError
from compatkit.hooks import Register

from ._linear import linear, mapped

compatkit_api = 1

PATCH = Window((3, 3), padding=(1, 1))


@hookimpl
def compatkit_rungs(register: Register) -> None:
    """Offer ``permutation``, ``procrustes``, ``ridge``, ``ridge-procrustes`` and ``ridge3x3``."""
    register("permutation", by_permutation)
    register("procrustes", by_procrustes)
    register("ridge", linear)
    register("ridge-procrustes", by_ridge_procrustes)
    register("ridge3x3", by_ridge3x3)


def by_permutation(seam: Seam) -> RungFit:
    """Return the head after a permutation of the channels."""
    return mapped(seam, permutation(seam.moments))


def by_procrustes(seam: Seam) -> RungFit:
    """Return the head after a rotation; scaled if the head's statistics adapt to the features."""
    return mapped(seam, procrustes(seam.moments, scaled=seam.normalized), scaled=seam.normalized)


def by_ridge_procrustes(seam: Seam) -> RungFit:
    """Return the head after a linear map shrunk towards the scaled rotation."""
    strength, turned = usual_strength(seam.images), rotation(seam.moments)
    towards = turned * scale_of(seam.moments, turned)
    return mapped(seam, ridge(seam.moments, strength, towards), strength=strength)


def by_ridge3x3(seam: Seam) -> RungFit:
    """Return the head after a 3x3 convolution.

    Raises:
        IncompatibleError: The features are not maps, or have too many channels.
    """
    channels, strength = seam.widths[0], usual_strength(seam.images)
    if seam.layout not in ("NCHW", "NHWC"):
        raise IncompatibleError(
            f"A 3x3 convolution needs maps, but the features are {seam.layout}. Use the rung ridge."
        )
    if channels * PATCH.size > COLUMNS:
        raise IncompatibleError(
            f"{channels} channels give patches of {channels * PATCH.size:,} values; at most {COLUMNS:,} are "
            "supported. Use the rung ridge."
        )
    return mapped(seam, ridge(seam.moments_of(PATCH), strength), kernel=3, strength=strength)

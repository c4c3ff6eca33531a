"""A linear map of the channels as a fit, with what the manifest records of it."""

from __future__ import annotations

from typing import Any

from compatkit.components.bridges.rungs import Affine, RungFit, Seam, ridge, usual_strength


def mapped(seam: Seam, fitted: Affine, *, kernel: int = 1, **facts: Any) -> RungFit:
    """Return the unchanged head after a fitted map.

    Args:
        seam: What the rung is given.
        fitted: From patches of ``kernel`` times ``kernel`` positions.
        kernel: Side of the convolution that the map becomes.
        facts: For the manifest.
    """
    facts |= {"samples": fitted.samples, "residual": fitted.residual}
    return RungFit(seam.project(fitted, kernel), facts=facts)


def linear(seam: Seam) -> RungFit:
    """Return the head after a linear map of the channels."""
    strength = usual_strength(seam.images)
    return mapped(seam, ridge(seam.moments, strength), strength=strength)

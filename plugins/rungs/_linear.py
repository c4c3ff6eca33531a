"""A linear map of the channels as a fit, with what the manifest records of it."""

from __future__ import annotations

from typing import Any

from compatkit.components.bridges.rungs import Affine, RungFit, RungInputs, ridge, usual_strength


def mapped(inputs: RungInputs, fitted: Affine, *, kernel: int = 1, **facts: Any) -> RungFit:
    """Return the unchanged head after a fitted map.

    Args:
        inputs: Inputs of the rung.
        fitted: From patches of ``kernel`` times ``kernel`` positions.
        kernel: Side of the convolution that the map becomes.
        facts: Further values for the manifest.
    """
    facts |= {"samples": fitted.samples, "residual": fitted.residual}
    return RungFit(inputs.project(fitted, kernel), facts=facts)


def linear(inputs: RungInputs) -> RungFit:
    """Return the head after a linear map of the channels."""
    strength = usual_strength(inputs.images)
    return mapped(inputs, ridge(inputs.moments, strength), strength=strength)

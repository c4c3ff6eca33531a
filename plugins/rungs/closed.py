"""The unchanged head: bare, or after a permutation, a rotation, a linear map or a 3x3 convolution in closed form."""

from __future__ import annotations

from compatkit import hookimpl
from compatkit.components.bridges.rungs import (
    COLUMNS,
    RungFit,
    RungInputs,
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
    """Offer ``direct``, ``statistics`` and the maps."""
    register("direct", direct)
    register("statistics", statistics)
    register("permutation", by_permutation)
    register("procrustes", by_procrustes)
    register("ridge", linear)
    register("ridge-procrustes", by_ridge_procrustes)
    register("ridge3x3", by_ridge3x3)


def direct(inputs: RungInputs) -> RungFit:
    """Return the unchanged head, with its stored batch-norm statistics."""
    return RungFit(direct=True)


def statistics(inputs: RungInputs) -> RungFit:
    """Return the head with its batch-norm statistics estimated on the images."""
    return RungFit()  # statistics are estimated after every fit


def by_permutation(inputs: RungInputs) -> RungFit:
    """Return the head after a permutation of the channels."""
    return mapped(inputs, permutation(inputs.moments))


def by_procrustes(inputs: RungInputs) -> RungFit:
    """Return the head after a rotation; scaled if the head's statistics adapt to the features."""
    return mapped(inputs, procrustes(inputs.moments, scaled=inputs.normalized), scaled=inputs.normalized)


def by_ridge_procrustes(inputs: RungInputs) -> RungFit:
    """Return the head after a linear map shrunk towards the scaled rotation."""
    strength, turned = usual_strength(inputs.images), rotation(inputs.moments)
    towards = turned * scale_of(inputs.moments, turned)
    return mapped(inputs, ridge(inputs.moments, strength, towards), strength=strength)


def by_ridge3x3(inputs: RungInputs) -> RungFit:
    """Return the head after a 3x3 convolution.

    Raises:
        IncompatibleError: The features are not maps, or have too many channels.
    """
    channels, strength = inputs.widths[0], usual_strength(inputs.images)
    if inputs.layout not in ("NCHW", "NHWC"):
        raise IncompatibleError(
            f"A 3x3 convolution needs maps, but the features are {inputs.layout}. Use the rung ridge."
        )
    if channels * PATCH.size > COLUMNS:
        raise IncompatibleError(
            f"{channels} channels give patches of {channels * PATCH.size:,} values; at most {COLUMNS:,} are "
            "supported. Use the rung ridge."
        )
    return mapped(inputs, ridge(inputs.moments_of(PATCH), strength), kernel=3, strength=strength)

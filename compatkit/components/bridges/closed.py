"""The rungs in closed form: each a map from the extractor's features to those that the head knows."""

from __future__ import annotations

import attrs

from compatkit.adapters.alignment.maps import Affine, permutation, procrustes, ridge, scale_of, usual_strength
from compatkit.adapters.alignment.positions import PATCH
from compatkit.components.bridges.candidate import Candidate, plain, with_projection
from compatkit.components.bridges.ground import Ground
from compatkit.components.bridging import moments_of
from compatkit.contracts.stitch import needed, with_kernel
from compatkit.errors import IncompatibleError

COLUMNS = 4608
"""Columns of 3x3 patches up to which normal equations are solved: 512 channels, 170 MB."""


def direct(ground: Ground) -> Candidate:
    """Return the head on the features as they are, with its stored statistics.

    Raises:
        IncompatibleError: The features cannot enter the head without an adapter.
    """
    _same_widths(ground, "Features go into the head as they are")
    if ground.needed:
        told = "; ".join(map(needed, ground.needed))
        raise IncompatibleError(
            f"Features go into the head as they are; these need an adapter first: {told}."
        )
    made = plain(attrs.evolve(ground, before=()) if ground.before else ground)
    return attrs.evolve(made, method={"method": "direct", "statistics": "stored"})


def statistics(ground: Ground) -> Candidate:
    """Return the head on the features at its own positions, with statistics of these features."""
    _same_widths(ground, "Statistics are estimated on features that the head takes")
    return plain(ground).estimated()


def by_permutation(ground: Ground) -> Candidate:
    """Return the head behind a permutation of the channels."""
    _same_widths(ground, "A permutation gives as many channels as come")
    return with_projection(ground, lambda one: permutation(one.moments), {"method": "permutation"})


def by_procrustes(ground: Ground) -> Candidate:
    """Return the head behind a rotation; scaled where its statistics follow the features."""
    scaled = ground.head.manifest.contract.protocol.normalisation == "batch"
    facts = {"method": "procrustes", "scaled": scaled}
    return with_projection(
        ground, lambda one: procrustes(one.moments, scaled=scaled, turned=one.rotation), facts
    )


def by_ridge(ground: Ground) -> Candidate:
    """Return the head behind a linear map of the channels."""
    strength = usual_strength(len(ground.pairs))
    facts = {"method": "ridge", "strength": strength}
    return with_projection(ground, lambda one: ridge(one.moments, strength), facts)


def by_ridge_procrustes(ground: Ground) -> Candidate:
    """Return the head behind a linear map that is shrunk to the scaled rotation."""
    strength = usual_strength(len(ground.pairs))

    def fit(one: Ground) -> Affine:
        return ridge(one.moments, strength, one.rotation * scale_of(one.moments, one.rotation))

    return with_projection(ground, fit, {"method": "ridge-procrustes", "strength": strength})


def by_ridge3x3(ground: Ground) -> Candidate:
    """Return the head behind a 3x3 convolution.

    Raises:
        IncompatibleError: The features are no maps, or have too many channels.
    """
    came, strength = ground.widths[0], usual_strength(len(ground.pairs))
    if ground.layout not in ("NCHW", "NHWC"):
        raise IncompatibleError(
            f"A 3x3 convolution needs maps; the features are {ground.layout}. Take the rung ridge."
        )
    if came * PATCH.size > COLUMNS:
        raise IncompatibleError(
            f"{came} channels give patches of {came * PATCH.size:,} values; up to {COLUMNS:,} are solved for. Take the "
            "rung ridge."
        )
    place = attrs.evolve(ground.place, blueprint=with_kernel(ground.place.blueprint, 3))
    wider = attrs.evolve(ground, place=place)

    def fit(one: Ground) -> Affine:
        pairs = ((two[0], two[1]) for two in ground.paired)
        moments = moments_of(pairs, one.layout, len(one.pairs), window=PATCH, seed=one.seed)
        return ridge(moments, strength)

    made = with_projection(wider, fit, {"method": "ridge3x3", "strength": strength})
    return attrs.evolve(made, ground=ground)


def _same_widths(ground: Ground, why: str) -> None:
    came, gone = ground.widths
    if came != gone:
        raise IncompatibleError(f"{why}; {came} channels come and {gone} are taken.")

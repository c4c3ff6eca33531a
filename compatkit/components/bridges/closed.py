"""Bridges in closed form: the unchanged head after re-estimated statistics, or after a linear map."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import torch
from torch import Tensor, nn

from compatkit.adapters.alignment.maps import Affine, permutation, procrustes, ridge, scale_of, usual_strength
from compatkit.adapters.alignment.positions import PATCH
from compatkit.components.bridges.ground import Ground, Passes
from compatkit.components.projecting import moments_of, projection
from compatkit.contracts.stitch import needed, with_kernel
from compatkit.errors import IncompatibleError
from compatkit.evaluation.adapter import Adapter
from compatkit.evaluation.normalization import evaluation_mode, norm_layers, reestimate
from compatkit.evaluation.recombination import Estimate

COLUMNS = 4608
"""Largest number of columns for which normal equations are solved: 3x3 patches of 512 channels, 170 MB."""


@attrs.frozen(eq=False)
class Candidate:
    """A bridge between two parts.

    Attributes:
        ground: Images and features that it is built on.
        head: A copy of the head, with statistics and on some rungs weights of this bridge.
        fitted: The adapter with weights directly before the head, or None.
        method: Record of how it was made.
        refitted: Whether weights of the head were changed.
        entries: Layers of the head with a changed form; see ``Blueprint.entries``.
    """

    ground: Ground = attrs.field(repr=False)
    head: nn.Module = attrs.field(repr=False)
    fitted: Adapter | None = None
    method: Mapping[str, Any] = attrs.field(factory=dict)
    refitted: bool = False
    entries: tuple[tuple[str, int], ...] = ()

    @property
    def adapters(self) -> tuple[Adapter, ...]:
        """All adapters between extractor and head, in order."""
        return (*self.ground.before, *([] if self.fitted is None else [self.fitted]))

    @property
    def network(self) -> nn.Module:
        """Module applied after the features of ``ground``; it copies its input, as it may start in place."""
        first = _Copied() if self.fitted is None else self.fitted.module
        return nn.Sequential(first, self.head)

    def estimated(self) -> Candidate:
        """Estimate the head's batch-norm statistics on its present input; return self."""
        reestimate(self.network, self.ground.features.first())
        return self

    def answers(self, features: Passes) -> Tensor:
        """Return logits, float32 ``(n, outputs)``.

        Returns:
            One row an image.
        """
        network = self.network
        with evaluation_mode(network), torch.no_grad():
            return torch.cat([network(batch).float() for batch in features.first()])

    @property
    def residual(self) -> float | None:
        """Share of unexplained variance of the target; None if nothing was fitted in closed form."""
        facts = self.method if self.fitted is None else self.fitted.training
        return facts.get("residual")

    @property
    def stored(self) -> bool:
        """Whether it keeps the head's stored statistics."""
        return self.method.get("statistics") == "stored"

    @property
    def estimates(self) -> bool:
        """Whether it uses statistics estimated on the fitting images."""
        return bool(norm_layers(self.head)) and not self.stored

    def statistics(self) -> Estimate | None:
        """Return the estimated statistics; None if there are none or all are stored ones."""
        extractor, fit = self.ground.extractor.module, self.ground.fit
        if not self.estimates:
            return None
        found: dict[str, Tensor] = {}
        for side, module in (("extractor", extractor), ("head", self.head)):
            layers = {id(one) for one in norm_layers(module)}
            for path, one in module.named_modules():
                if id(one) in layers:
                    place = f"{side}.{path}" if path else side
                    found |= {
                        f"{place}.{name}": value.clone() for name, value in one.named_buffers(recurse=False)
                    }
        data = {"name": fit.name, "digest": fit.digest, "images": len(fit)}
        return Estimate(found, {"data": data, "batch_size": 64, "seed": self.ground.seed, "of": "head"})


class _Copied(nn.Module):
    """Copies its input."""

    def forward(self, features: Tensor) -> Tensor:
        return features.clone()


def plain(ground: Ground) -> Candidate:
    """Return the head after the adapters without weights, with stored statistics."""
    return Candidate(ground, copy.deepcopy(ground.head.module).eval(), method={"method": "statistics"})


def with_projection(ground: Ground, fit: Callable[[Ground], Affine], facts: Mapping[str, Any]) -> Candidate:
    """Return the head after a fitted map, with re-estimated statistics.

    Args:
        ground: Both parts and their features.
        fit: Fits a map from features of the extractor to those of the head's own.
        facts: What the manifest records of the fit.
    """
    fitted = fit(ground)
    adapter = projection(ground.place, fitted, ground.extractor, ground.own, ground.pairs, facts)
    head = copy.deepcopy(ground.head.module).eval()
    return Candidate(ground, head, adapter, facts).estimated()


def direct(ground: Ground) -> Candidate:
    """Return the head on the unchanged features, with its stored statistics.

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
    """Return the head on features at its own positions, with re-estimated statistics."""
    _same_widths(ground, "Statistics are estimated on features that the head takes")
    return plain(ground).estimated()


def by_permutation(ground: Ground) -> Candidate:
    """Return the head after a permutation of the channels."""
    _same_widths(ground, "A permutation gives as many channels as come")
    return with_projection(ground, lambda one: permutation(one.moments), {"method": "permutation"})


def by_procrustes(ground: Ground) -> Candidate:
    """Return the head after a rotation; scaled if the head's statistics adapt to the features."""
    scaled = ground.head.manifest.contract.protocol.norm == "batch"
    facts = {"method": "procrustes", "scaled": scaled}
    return with_projection(
        ground, lambda one: procrustes(one.moments, scaled=scaled, turned=one.rotation), facts
    )


def by_ridge(ground: Ground) -> Candidate:
    """Return the head after a linear map of the channels."""
    strength = usual_strength(len(ground.pairs))
    facts = {"method": "ridge", "strength": strength}
    return with_projection(ground, lambda one: ridge(one.moments, strength), facts)


def by_ridge_procrustes(ground: Ground) -> Candidate:
    """Return the head after a linear map shrunk towards the scaled rotation."""
    strength = usual_strength(len(ground.pairs))

    def fit(one: Ground) -> Affine:
        return ridge(one.moments, strength, one.rotation * scale_of(one.moments, one.rotation))

    return with_projection(ground, fit, {"method": "ridge-procrustes", "strength": strength})


def by_ridge3x3(ground: Ground) -> Candidate:
    """Return the head after a 3x3 convolution.

    Raises:
        IncompatibleError: The features are not maps, or have too many channels.
    """
    came, strength = ground.widths[0], usual_strength(len(ground.pairs))
    if ground.layout not in ("NCHW", "NHWC"):
        raise IncompatibleError(
            f"A 3x3 convolution needs maps, but the features are {ground.layout}. Use the rung ridge."
        )
    if came * PATCH.size > COLUMNS:
        raise IncompatibleError(
            f"{came} channels give patches of {came * PATCH.size:,} values; at most {COLUMNS:,} are supported. Use the "
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

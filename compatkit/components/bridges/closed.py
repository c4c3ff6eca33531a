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
from compatkit.components.bridges.inputs import BridgeInputs, Passes
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
        inputs: Images and features that it is built on.
        head: A copy of the head, with statistics and on some rungs weights of this bridge.
        fitted: The adapter with weights directly before the head, or None.
        method: Record of how it was made.
        refitted: Whether weights of the head were changed.
        entries: Layers of the head with a changed form; see ``Blueprint.entries``.
    """

    inputs: BridgeInputs = attrs.field(repr=False)
    head: nn.Module = attrs.field(repr=False)
    fitted: Adapter | None = None
    method: Mapping[str, Any] = attrs.field(factory=dict)
    refitted: bool = False
    entries: tuple[tuple[str, int], ...] = ()

    @property
    def adapters(self) -> tuple[Adapter, ...]:
        """All adapters between extractor and head, in order."""
        return (*self.inputs.before, *([] if self.fitted is None else [self.fitted]))

    @property
    def network(self) -> nn.Module:
        """Module applied after the features of ``inputs``; it copies its input, as it may start in place."""
        first = _Copied() if self.fitted is None else self.fitted.module
        return nn.Sequential(first, self.head)

    def estimated(self) -> Candidate:
        """Estimate the head's batch-norm statistics on its present input; return self."""
        reestimate(self.network, self.inputs.features.first())
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
        extractor, fit = self.inputs.extractor.module, self.inputs.fit
        if not self.estimates:
            return None
        estimated: dict[str, Tensor] = {}
        for side, module in (("extractor", extractor), ("head", self.head)):
            layers = {id(layer) for layer in norm_layers(module)}
            for path, layer in module.named_modules():
                if id(layer) in layers:
                    prefix = f"{side}.{path}" if path else side
                    estimated |= {
                        f"{prefix}.{name}": value.clone()
                        for name, value in layer.named_buffers(recurse=False)
                    }
        data = {"name": fit.name, "digest": fit.digest, "images": len(fit)}
        return Estimate(estimated, {"data": data, "batch_size": 64, "seed": self.inputs.seed, "of": "head"})


class _Copied(nn.Module):
    """Copies its input."""

    def forward(self, features: Tensor) -> Tensor:
        return features.clone()


def plain(inputs: BridgeInputs) -> Candidate:
    """Return the head after the adapters without weights, with stored statistics."""
    return Candidate(inputs, copy.deepcopy(inputs.head.module).eval(), method={"method": "statistics"})


def with_projection(
    inputs: BridgeInputs, fit: Callable[[BridgeInputs], Affine], facts: Mapping[str, Any]
) -> Candidate:
    """Return the head after a fitted map, with re-estimated statistics.

    Args:
        inputs: Both parts and their features.
        fit: Fits a map from features of the extractor to those of the head's own.
        facts: What the manifest records of the fit.
    """
    fitted = fit(inputs)
    adapter = projection(inputs.slot, fitted, inputs.extractor, inputs.own, inputs.pairs, facts)
    head = copy.deepcopy(inputs.head.module).eval()
    return Candidate(inputs, head, adapter, facts).estimated()


def direct(inputs: BridgeInputs) -> Candidate:
    """Return the head on the unchanged features, with its stored statistics.

    Raises:
        IncompatibleError: The features cannot enter the head without an adapter.
    """
    _same_widths(inputs, "Features go into the head as they are")
    if inputs.needed:
        adapters = "; ".join(map(needed, inputs.needed))
        raise IncompatibleError(
            f"Features go into the head as they are; these need an adapter first: {adapters}."
        )
    candidate = plain(attrs.evolve(inputs, before=()) if inputs.before else inputs)
    return attrs.evolve(candidate, method={"method": "direct", "statistics": "stored"})


def statistics(inputs: BridgeInputs) -> Candidate:
    """Return the head on features at its own positions, with re-estimated statistics."""
    _same_widths(inputs, "Statistics are estimated on features that the head takes")
    return plain(inputs).estimated()


def by_permutation(inputs: BridgeInputs) -> Candidate:
    """Return the head after a permutation of the channels."""
    _same_widths(inputs, "A permutation keeps the number of channels")
    return with_projection(inputs, lambda source: permutation(source.moments), {"method": "permutation"})


def by_procrustes(inputs: BridgeInputs) -> Candidate:
    """Return the head after a rotation; scaled if the head's statistics adapt to the features."""
    scaled = inputs.head.manifest.contract.protocol.norm == "batch"
    facts = {"method": "procrustes", "scaled": scaled}
    return with_projection(
        inputs, lambda source: procrustes(source.moments, scaled=scaled, turned=source.rotation), facts
    )


def by_ridge(inputs: BridgeInputs) -> Candidate:
    """Return the head after a linear map of the channels."""
    strength = usual_strength(len(inputs.pairs))
    facts = {"method": "ridge", "strength": strength}
    return with_projection(inputs, lambda source: ridge(source.moments, strength), facts)


def by_ridge_procrustes(inputs: BridgeInputs) -> Candidate:
    """Return the head after a linear map shrunk towards the scaled rotation."""
    strength = usual_strength(len(inputs.pairs))

    def fit(source: BridgeInputs) -> Affine:
        return ridge(source.moments, strength, source.rotation * scale_of(source.moments, source.rotation))

    return with_projection(inputs, fit, {"method": "ridge-procrustes", "strength": strength})


def by_ridge3x3(inputs: BridgeInputs) -> Candidate:
    """Return the head after a 3x3 convolution.

    Raises:
        IncompatibleError: The features are not maps, or have too many channels.
    """
    channels, strength = inputs.widths[0], usual_strength(len(inputs.pairs))
    if inputs.layout not in ("NCHW", "NHWC"):
        raise IncompatibleError(
            f"A 3x3 convolution needs maps, but the features are {inputs.layout}. Use the rung ridge."
        )
    if channels * PATCH.size > COLUMNS:
        raise IncompatibleError(
            f"{channels} channels give patches of {channels * PATCH.size:,} values; at most {COLUMNS:,} are "
            "supported. Use the rung ridge."
        )
    slot = attrs.evolve(inputs.slot, blueprint=with_kernel(inputs.slot.blueprint, 3))
    wider = attrs.evolve(inputs, slot=slot)

    def fit(source: BridgeInputs) -> Affine:
        pairs = ((batch[0], batch[1]) for batch in inputs.paired)
        moments = moments_of(pairs, source.layout, len(source.pairs), window=PATCH, seed=source.seed)
        return ridge(moments, strength)

    candidate = with_projection(wider, fit, {"method": "ridge3x3", "strength": strength})
    return attrs.evolve(candidate, inputs=inputs)


def _same_widths(inputs: BridgeInputs, why: str) -> None:
    produced, taken = inputs.widths
    if produced != taken:
        raise IncompatibleError(f"{why}; got {produced} channels, and the head takes {taken}.")

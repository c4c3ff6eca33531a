"""Candidates: the network that a rung builds from two parts, with its adapters and statistics."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import attrs
import torch
from torch import Tensor, nn

from compatkit.components.bridges.inputs import BridgeInputs, Passes
from compatkit.components.bridges.judging import NOT_FINITE
from compatkit.components.bridges.rungs import RungFit
from compatkit.components.projecting import fitted_adapter
from compatkit.contracts.stitch import describe_missing, with_kernel
from compatkit.errors import IncompatibleError
from compatkit.evaluation.adapter import Adapter
from compatkit.evaluation.batchnorm import evaluation_mode, norm_layers, reestimate
from compatkit.evaluation.recombination import Estimate


@attrs.frozen(eq=False)
class Candidate:
    """A bridge between two parts.

    Attributes:
        inputs: Images and features that it is built on.
        head: Copy of the head with the statistics of this bridge, and new weights if ``refitted``.
        fitted: The adapter with weights directly before the head, or None.
        method: Record of the fit: name of the rung, settings, residual.
        refitted: Whether weights of the head were changed.
        entries: Layers of the head with a changed form; see ``Blueprint.entries``.
        stored: Whether it keeps the head's stored statistics.
    """

    inputs: BridgeInputs = attrs.field(repr=False)
    head: nn.Module = attrs.field(repr=False)
    fitted: Adapter | None = None
    method: Mapping[str, Any] = attrs.field(factory=dict)
    refitted: bool = False
    entries: Mapping[str, int] = attrs.field(factory=dict)
    stored: bool = False

    @classmethod
    def of(cls, inputs: BridgeInputs, rung: str, fit: RungFit) -> Candidate:
        """Return a rung's fit as a candidate, its statistics estimated.

        Args:
            inputs: Images and features of both parts.
            rung: Name of the rung.
            fit: Result of the rung.

        Raises:
            IncompatibleError: The features cannot enter the head.
        """
        produced, taken = inputs.widths
        if fit.project is None and fit.head is None and produced != taken:
            raise IncompatibleError(
                f"The features have {produced} channels, and the head takes {taken}; this rung fits no map."
            )
        if fit.direct and inputs.needed:
            adapters = "; ".join(map(describe_missing, inputs.needed))
            raise IncompatibleError(
                f"The features need an adapter before the head, and this rung inserts none: {adapters}."
            )
        inputs = attrs.evolve(inputs, before=()) if fit.direct and inputs.before else inputs
        head = copy.deepcopy(inputs.head.module) if fit.head is None else fit.head
        method = {"method": rung, **fit.facts}
        adapter = None if fit.project is None else _adapter(inputs, fit.project, method)
        refitted = fit.head is not None
        candidate = cls(inputs, head.eval(), adapter, method, refitted, fit.entries, stored=fit.direct)
        if not candidate.stored:
            reestimate(candidate.network, inputs.features.first())
        return candidate

    @classmethod
    def restored(
        cls, inputs: BridgeInputs, head: nn.Module, project: nn.Module | None, method: Mapping[str, Any]
    ) -> Candidate:
        """Return a candidate that was kept, of a rung that changes no weight of the head.

        Args:
            inputs: Images and features of both parts.
            head: Copy of the head with the statistics of this bridge, in eval mode.
            project: Module directly before the head, or None.
            method: Record of the fit.
        """
        return cls(inputs, head, None if project is None else _adapter(inputs, project, method), method)

    @property
    def adapters(self) -> tuple[Adapter, ...]:
        """All adapters between extractor and head, in order."""
        return (*self.inputs.before, *([] if self.fitted is None else [self.fitted]))

    @property
    def network(self) -> nn.Module:
        """Module applied to the features of ``inputs``; copies its input, because its first layer may work in place."""
        first = _Copied() if self.fitted is None else self.fitted.module
        return nn.Sequential(first, self.head)

    def answers(self, features: Passes) -> Tensor:
        """Return logits, float32 ``(n, outputs)``.

        Returns:
            One row an image.
        """
        network = self.network
        with evaluation_mode(network), torch.no_grad():
            return torch.cat([network(batch).float() for batch in features.first()])

    def held_out_predictions(self) -> Tensor:
        """Return the predictions on held-out images, int64 ``(n,)``.

        Returns:
            Class numbers; ``NOT_FINITE`` for images whose logits are not finite.
        """
        logits = self.answers(self.inputs.held_out_features)
        return torch.where(torch.isfinite(logits).all(dim=1), logits.argmax(dim=1), NOT_FINITE)

    @property
    def residual(self) -> float | None:
        """Share of unexplained variance of the target; None if nothing was fitted in closed form."""
        return self.method.get("residual")

    @property
    def estimates(self) -> bool:
        """Whether it uses statistics estimated on the fitting images."""
        return bool(norm_layers(self.head)) and not self.stored

    def statistics(self) -> Estimate | None:
        """Return the estimated statistics; None if there are none or all are stored ones."""
        if not self.estimates:
            return None
        estimated: dict[str, Tensor] = {}
        for side, module in (("extractor", self.inputs.extractor.module), ("head", self.head)):
            layers = {id(layer) for layer in norm_layers(module)}
            for path, layer in module.named_modules():
                if id(layer) in layers:
                    prefix = f"{side}.{path}" if path else side
                    estimated |= {
                        f"{prefix}.{name}": value.clone()
                        for name, value in layer.named_buffers(recurse=False)
                    }
        origin = {"data": self.inputs.fit_facts, "batch_size": 64, "seed": self.inputs.seed, "of": "head"}
        return Estimate(estimated, origin)


class _Copied(nn.Module):
    """Copies its input."""

    def forward(self, features: Tensor) -> Tensor:
        return features.clone()


def _adapter(inputs: BridgeInputs, module: nn.Module, training: Mapping[str, Any]) -> Adapter:
    """Return the module before a head as an adapter that records its fit."""
    weight, slot = module.state_dict()["weight"], inputs.slot
    if weight.ndim > 2:
        slot = attrs.evolve(slot, blueprint=with_kernel(slot.blueprint, weight.shape[-1]))
    return fitted_adapter(slot, module, inputs.extractor, inputs.own, inputs.pairs, training)

"""A bridge that was built: adapters and a head behind an extractor, with the statistics of its features."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import torch
from torch import Tensor, nn

from compatkit.adapters.alignment.maps import Affine
from compatkit.components.bridges.ground import Ground
from compatkit.components.bridges.passes import Passes
from compatkit.components.bridging import projection
from compatkit.evaluation.adapter import Adapter
from compatkit.evaluation.normalisation import evaluation_mode, norm_layers, reestimate
from compatkit.evaluation.recombination import Estimate


@attrs.frozen(eq=False)
class Candidate:
    """One bridge between two parts.

    Attributes:
        ground: What it stands on.
        head: A copy of the head; its statistics, and on some rungs its weights, are this bridge's own.
        fitted: The adapter with weights right before the head; None where there is none.
        method: What is recorded of how it was made.
        refitted: Whether weights of the head were changed.
        entries: Layers of the head that have another form now, as ``Blueprint.entries`` names them.
    """

    ground: Ground
    head: nn.Module
    fitted: Adapter | None = None
    method: Mapping[str, Any] = attrs.field(factory=dict)
    refitted: bool = False
    entries: tuple[tuple[str, int], ...] = ()

    @property
    def adapters(self) -> tuple[Adapter, ...]:
        """All that stands between extractor and head, in order."""
        return (*self.ground.before, *([] if self.fitted is None else [self.fitted]))

    @property
    def network(self) -> nn.Module:
        """What takes the features of ``ground``; a first operation in place must not reach what is kept of them."""
        first = _Copied() if self.fitted is None else self.fitted.module
        return nn.Sequential(first, self.head)

    def estimated(self) -> Candidate:
        """Estimate the head's statistics of batch normalisation on the features that now come; return this."""
        reestimate(self.network, self.ground.features.first())
        return self

    def answers(self, features: Passes) -> Tensor:
        """Return logits, float32 ``(n, outputs)``."""
        network = self.network
        with evaluation_mode(network), torch.no_grad():
            return torch.cat([network(batch).float() for batch in features.first()])

    @property
    def stored(self) -> bool:
        """Whether it keeps the statistics that the head has."""
        return self.method.get("statistics") == "stored"

    @property
    def estimates(self) -> bool:
        """Whether it runs with statistics that were estimated on the images of the fit."""
        return bool(norm_layers(self.head)) and not self.stored

    def statistics(self) -> Estimate | None:
        """Return the statistics that it runs with; None where they are all stored ones, or there are none."""
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
    """Gives a copy of what comes."""

    def forward(self, features: Tensor) -> Tensor:
        return features.clone()


def plain(ground: Ground) -> Candidate:
    """Return the head behind the adapters without weights, its statistics as stored."""
    return Candidate(ground, copy.deepcopy(ground.head.module).eval(), method={"method": "statistics"})


def with_projection(ground: Ground, fit: Callable[[Ground], Affine], facts: Mapping[str, Any]) -> Candidate:
    """Return the head behind a fitted map, its statistics estimated anew."""
    fitted = fit(ground)
    adapter = projection(ground.place, fitted, ground.extractor, ground.own, ground.pairs, facts)
    head = copy.deepcopy(ground.head.module).eval()
    return Candidate(ground, head, adapter, facts).estimated()

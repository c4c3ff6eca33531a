"""An adapter between an extractor and a head: its module, ports and provenance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
from torch import nn

from compatkit.contracts.contract import Blueprint, Data, Port
from compatkit.contracts.manifest import Parent, function_of
from compatkit.contracts.stitch import describe
from compatkit.registry.weights.tensorfile import serialize, tensor_digest

ADAPTS = "adapts"
"""Relation to the extractor that an adapter was fitted for."""
TARGETS = "targets"
"""Relation to the extractor whose features an adapter was fitted to reproduce."""


@attrs.frozen(eq=False)
class Adapter:
    """One stitching layer between an extractor's features and a head.

    Attributes:
        blueprint: Rebuilds the module.
        module: The module with its weights, in eval mode.
        takes: Input ports.
        gives: Output ports.
        data: Images that the ports were derived for.
        parents: The extractor it was fitted for and, if fitted, the extractor it imitates.
        training: Record of the fit, as JSON values: ``method``, ``data`` (name, digest, number of ``images``),
            ``samples``, ``strength`` and ``residual`` (share of unexplained variance of the closed-form fit); empty if
            it has no weights.
        reference: ``name@version`` if loaded from a registry.
        digest: Manifest digest, ``sha256:...``, if loaded from a registry.
    """

    blueprint: Blueprint
    module: nn.Module
    takes: tuple[Port, ...]
    gives: tuple[Port, ...]
    data: Data
    parents: tuple[Parent, ...] = ()
    training: Mapping[str, Any] = attrs.field(factory=dict)
    reference: str | None = None
    digest: str | None = None

    @property
    def function(self) -> str:
        """Function digest ``value:sha256:...`` of blueprint, weights and images, published or not."""
        tensors = tensor_digest(serialize(self.module.state_dict()))
        return function_of(self.blueprint, tensors, self.data)

    def parent(self, relation: str) -> str | None:
        """Return the digest of the parent with this relation, or None."""
        return next((parent.component for parent in self.parents if parent.relation == relation), None)

    def __str__(self) -> str:
        text = describe(self.blueprint)
        if "method" in self.training:  # an adapter that was fitted by itself
            data = self.training["data"]
            text += f" by {self.training['method']}, fitted on {data['images']} images of {data['name']}"
            if "labels" in self.training:
                text += f", trained with {self.training['labels']} labeled ones"
            if "residual" in self.training:
                text += f" ({self.training['residual']:.1%} of the variance left)"
        return f"{text} [{self.reference}]" if self.reference else text

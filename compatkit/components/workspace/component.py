"""One version of a component, as a registry hands it out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import attrs

from compatkit.components.loading import pinned
from compatkit.contracts.display import Shown, labelled
from compatkit.contracts.manifest import Manifest
from compatkit.registry.names import Reference

if TYPE_CHECKING:
    from torch import nn

    from compatkit.contracts.contract import Label


@attrs.frozen(repr=False)
class Component(Shown):
    """What is known of a component without reading its weights; ``load`` reads them.

    Attributes:
        registry: Where it is.
        resolved: Name, version and digest.
        manifest: What it states: blueprint, contract, training, parents.
    """

    registry: Any = attrs.field(eq=False)  # a Registry, which imports this file
    resolved: Reference
    manifest: Manifest = attrs.field(eq=False)

    @property
    def reference(self) -> str:
        """``name@version``, as every method of a registry takes it."""
        return pinned(self.resolved)

    @property
    def name(self) -> str:
        """Without the version."""
        return self.resolved.name

    @property
    def version(self) -> str:
        """``"1.0.0"``."""
        return str(self.resolved.version)

    @property
    def digest(self) -> str:
        """Of its manifest, ``sha256:...``."""
        return str(self.resolved.digest)

    @property
    def kind(self) -> str:
        """``"extractor"``, ``"head"``, ``"auxiliary_head"``, ``"recombination"``, ..."""
        return self.manifest.kind

    @property
    def labels(self) -> tuple[Label, ...]:
        """Classes in the order of its outputs; empty where it has none."""
        return self.manifest.contract.data.labels or ()

    @property
    def tags(self) -> Mapping[str, str]:
        """What it was tagged with."""
        return self.manifest.about.tags

    def load(self, **settings: Any) -> nn.Module:
        """Return its module with its weights, in eval mode; ``settings`` as for ``Registry.load``."""
        return self.registry.load(self.reference, **settings)

    def _told(self) -> str:
        """Return what ``compatkit show`` prints, without signatures."""
        from compatkit.reports.contracts import facts

        known = facts(self.registry.store, self.resolved, self.manifest)
        return "\n".join([self.reference, *labelled({f"  {label}": text for label, text in known.items()})])

    def __str__(self) -> str:
        return self.reference

"""A component as every room above the store knows it: a reference, a manifest and, once it is asked for, a module."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import attrs

from compatkit.contracts.contract import Label
from compatkit.contracts.display import Shown, labelled
from compatkit.contracts.evidence import Part
from compatkit.contracts.manifest import Manifest, function_digest
from compatkit.contracts.manifest import trained_with as extractors_of
from compatkit.contracts.rules import protocol_of
from compatkit.registry.names import Reference
from compatkit.reports.contracts import facts, summary

if TYPE_CHECKING:
    from torch import nn


def pinned(reference: Reference) -> str:
    """Return ``name@version``, or the digest of what has no version in this registry."""
    return f"{reference.name}@{reference.version}" if reference.version else str(reference.digest)


@attrs.frozen(repr=False)
class Component(Shown):
    """What is known of a component without reading its weights; ``load`` and ``module`` read them.

    Attributes:
        registry: Where it is: anything with a ``store`` that loads a module by its reference.
        resolved: Name, version and digest.
        manifest: What it states: blueprint, contract, training, parents.
        reference: ``name@version``, as every method of a registry takes it; ``name@candidate`` before it has a version.
        function: Function digest, ``value:sha256:...``.
    """

    registry: Any = attrs.field(eq=False)
    resolved: Reference
    manifest: Manifest = attrs.field(eq=False)
    reference: str = attrs.field(
        kw_only=True, default=attrs.Factory(lambda self: pinned(self.resolved), takes_self=True)
    )
    function: str = attrs.field(
        kw_only=True,
        eq=False,
        default=attrs.Factory(lambda self: function_digest(self.manifest), takes_self=True),
    )
    _trained_function: str | None = attrs.field(
        kw_only=True, eq=False, default=None, alias="trained_function"
    )
    _module: nn.Module | None = attrs.field(kw_only=True, eq=False, default=None, alias="module")

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

    @cached_property
    def anchors(self) -> frozenset[tuple[str, str]]:
        """Kind and digest of everything that it was trained against."""
        return frozenset((one.kind, one.digest) for one in protocol_of(self.manifest).anchors)

    @cached_property
    def trained_with(self) -> str | None:
        """Of a head: manifest digest of the extractor that it was trained with."""
        return next(extractors_of(self.manifest), None)

    @cached_property
    def trained_function(self) -> str | None:
        """Of a head: function digest of that extractor; None where it is not in the registry."""
        if self._trained_function is not None or self.trained_with is None or self.registry is None:
            return self._trained_function
        return self.registry.store.function_of(self.trained_with)

    @cached_property
    def module(self) -> nn.Module:
        """Its module with its weights, in eval mode; loaded once."""
        return self.load() if self._module is None else self._module

    def load(self, **settings: Any) -> nn.Module:
        """Return its module with its weights, in eval mode, anew; ``settings`` as for ``Registry.load``."""
        return self.registry.load(self.reference, **settings)

    def is_own(self, extractor: Component) -> bool:
        """Tell whether this head was trained with an extractor, or with another release that computes the same."""
        return self.trained_with == extractor.digest or self.trained_function == extractor.function

    def described(self) -> Part:
        """Return it as a row or column of a report."""
        return Part(self.reference, self.digest, self.function, self.kind, summary(self.manifest))

    def _told(self) -> str:
        """Return what ``compatkit show`` prints, without signatures."""
        known = facts(self.registry.store, self.resolved, self.manifest)
        return "\n".join([self.reference, *labelled({f"  {label}": text for label, text in known.items()})])

    def __str__(self) -> str:
        return self.reference

"""Components: a reference, a manifest and, loaded on first use, a module."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import attrs

from compatkit.contracts.manifest import About, Manifest, function_digest
from compatkit.contracts.manifest import trained_with as extractors_of
from compatkit.contracts.rules import protocol_of
from compatkit.errors import UsageError
from compatkit.foundation.display import Shown, labeled
from compatkit.registry.names import Reference
from compatkit.reports.contracts import details, summary

if TYPE_CHECKING:
    from torch import nn

    from compatkit.contracts.contract import Contract, Label
    from compatkit.contracts.evidence import Part


def pinned(reference: Reference) -> str:
    """Return ``name@version``, or the digest if the reference has no version."""
    return f"{reference.name}@{reference.version}" if reference.version else str(reference.digest)


@attrs.frozen(repr=False)
class Component(Shown):
    """A component without its weights; ``load`` and ``module`` read them.

    Attributes:
        registry: Registry of the component: anything with a ``store`` that loads a module by reference; None if the
            module was loaded already.
        resolved: Name, version and digest.
        manifest: Blueprint, contract, training and parents.
        reference: ``name@version``, accepted by every method of a registry; ``name@candidate`` before publication.
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
        """Name without the version."""
        return self.resolved.name

    @property
    def version(self) -> str:
        """Version such as ``"1.0.0"``."""
        return str(self.resolved.version)

    @property
    def digest(self) -> str:
        """Digest of its manifest, ``sha256:...``."""
        return str(self.resolved.digest)

    @property
    def kind(self) -> str:
        """Kind: ``"extractor"``, ``"head"``, ``"auxiliary_head"``, ``"recombination"``, ..."""
        return self.manifest.kind

    @property
    def contract(self) -> Contract:
        """Contract of the manifest."""
        return self.manifest.contract

    @property
    def about(self) -> About:
        """Title, description, tags, license and source."""
        return self.manifest.about

    @property
    def versions(self) -> list[str]:
        """Versions of its name in its registry, ascending, without withdrawn ones.

        Raises:
            UsageError: It was loaded without its registry.
        """
        if self.registry is None:
            raise UsageError(
                f"{self.reference} was loaded without its registry; ask registry[...] for it.",
                subject=self.reference,
            )
        return [str(version) for version in self.registry.store.versions(self.name)]

    @property
    def labels(self) -> tuple[Label, ...]:
        """Classes in the order of the outputs; empty if there are none."""
        return self.manifest.contract.data.labels or ()

    @property
    def tags(self) -> Mapping[str, str]:
        """Tags of the manifest."""
        return self.manifest.about.tags

    @cached_property
    def anchors(self) -> frozenset[tuple[str, str]]:
        """Kind and digest of all its anchors."""
        return frozenset((anchor.kind, anchor.digest) for anchor in protocol_of(self.manifest).anchors)

    @cached_property
    def trained_with(self) -> str | None:
        """For a head, the manifest digest of the extractor it was trained with."""
        return next(extractors_of(self.manifest), None)

    @cached_property
    def trained_function(self) -> str | None:
        """For a head, the function digest of that extractor; None if the registry does not have it."""
        if self._trained_function is not None or self.trained_with is None or self.registry is None:
            return self._trained_function
        return self.registry.store.function_of(self.trained_with)

    @cached_property
    def module(self) -> nn.Module:
        """Module with its weights, in eval mode; loaded once and cached."""
        return self.load() if self._module is None else self._module

    def load(self, **settings: Any) -> nn.Module:
        """Load the module with its weights, in eval mode; ``settings`` as for ``Registry.load``."""
        return self.registry.load(self.reference, **settings)

    def is_own(self, extractor: Component) -> bool:
        """Return whether this head was trained with ``extractor`` or a release that computes the same function."""
        return self.trained_with == extractor.digest or self.trained_function == extractor.function

    def described(self) -> Part:
        """Return the component as a row or column of a report."""
        from compatkit.contracts.evidence import Part

        return Part(self.reference, self.digest, self.function, self.kind, summary(self.manifest))

    def _description(self) -> str:
        """Return what ``compatkit show`` prints, without signatures."""
        if self.registry is None:  # loaded to train from
            known = summary(self.manifest)
        else:
            known = details(self.registry.store, self.resolved, self.manifest)
        return "\n".join([self.reference, *labeled({f"  {label}": text for label, text in known.items()})])

    def __str__(self) -> str:
        return self.reference

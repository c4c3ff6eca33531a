"""From references to components: manifests at once; modules on demand, checked against their contracts."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import attrs

from compatkit.contracts.contract import Blueprint
from compatkit.contracts.manifest import Manifest, function_digest, trained_with
from compatkit.errors import CutError, IntegrityError, NotFound, UsageError
from compatkit.evaluation.component import Component, pinned
from compatkit.registry.blobs import Verify
from compatkit.registry.names import Reference
from compatkit.registry.resolving import is_pattern
from compatkit.registry.signing.trust import Trust
from compatkit.registry.store import Store, named

if TYPE_CHECKING:
    from torch import Tensor, nn


@attrs.frozen(eq=False)
class Parts:
    """The components of a registry, each read once: its manifest at once, its module when it is first asked for.

    Attributes:
        store: Where they are.
        admitted: Whether parts without a version here need no signature of their own: that of an arriving part was
            asked for before its bytes came, and others are covered by the part whose manifest names them.
    """

    store: Store
    admitted: bool = False
    _known: dict[str, Component] = attrs.field(init=False, factory=dict)
    _functions: dict[str, str | None] = attrs.field(init=False, factory=dict)

    def component(self, place: Reference, reference: str = "") -> Component:
        """Return one component.

        Args:
            place: With name, version and digest; without a version it is found by its digest.
            reference: What reports call it; empty takes name and version.

        Raises:
            IntegrityError: Its manifest is missing or damaged.
        """
        called = reference or pinned(place)
        if called not in self._known:
            manifest = self.store.manifest(place if place.version else str(place.digest))
            function = self._functions[str(place.digest)] = function_digest(manifest)
            trained = next(trained_with(manifest), None)
            self._known[called] = Component(
                self,
                place,
                manifest,
                reference=called,
                function=function,
                trained_function=None if trained is None else self.function_of(trained),
            )
        return self._known[called]

    def load(self, reference: str) -> nn.Module:
        """Return the module of a component that was asked for before."""
        place = self._known[reference].resolved
        return load(self.store, place, admitted=self.admitted and place.version is None).module

    def of_digest(self, digest: str) -> Component | None:
        """Return the component of a manifest digest that was asked for before, None without any."""
        return next((one for one in self._known.values() if one.digest == digest), None)

    def function_of(self, digest: str) -> str | None:
        """Return the function digest of a manifest; None where it is not in this registry, or damaged."""
        if digest not in self._functions:
            self._functions[digest] = self.store.function_of(digest)
        return self._functions[digest]

    def choose(
        self, wanted: str | Sequence[str], kinds: Sequence[str], named: Sequence[str] = ()
    ) -> list[Component]:
        """Return what references and patterns mean.

        Args:
            wanted: A pattern over names passes over components of other kinds.
            kinds: One of which each must be.
            named: The same for components that are named without a pattern; empty takes ``kinds``.

        Raises:
            NotFound: A pattern matches nothing, or nothing of these kinds.
            UsageError: A reference that is no pattern is of another kind.
        """
        found: dict[str, Component] = {}
        for pattern in [wanted] if isinstance(wanted, str) else wanted:
            several = is_pattern(pattern)
            every = [self.component(place) for place in self.store.select(pattern)]
            fitting = [one for one in every if one.kind in (kinds if several else named or kinds)]
            if several and not fitting:
                raise NotFound(
                    f"{pattern!r} matches {len(every)} components, none of kind {' or '.join(kinds)}: they are of kind "
                    f"{' and '.join(sorted({one.kind for one in every}))}.",
                    subject=pattern,
                )
            if not fitting:
                raise UsageError(
                    f"{every[0].reference} is of kind {every[0].kind}, where {' or '.join(kinds)} is expected.",
                    subject=pattern,
                )
            found |= {str(one.resolved): one for one in fitting}
        return list(found.values())


def load(
    store: Store,
    reference: Reference,
    *,
    verify: Verify = "auto",
    require_signature: Trust = False,
    admitted: bool = False,
) -> Component:
    """Rebuild a component from its blueprint, load its weights strictly and check that its contract holds.

    A ``LibraryWarning`` says where another version of a library builds the network than the one that was recorded.

    Args:
        store: Where it is.
        reference: With name, version and digest.
        verify: ``"auto"`` hashes the weights and runs the probe once, and again when the file or a library changed;
            ``"always"`` each time; ``"never"`` trusts the disk and the libraries.
        require_signature: Whose signature it must have; False asks for one only if the store was opened so.
        admitted: No signature of its own is asked for: its digest stands in a manifest that has one.

    Raises:
        SignatureError: It has no signature that counts.
        VersionUntrue: Its number lies about what changed since the version below it.
        IntegrityError: The bytes, or the module that they make, are not what the manifest states.
        UnknownName: The blueprint's builder or model is not known here.
    """
    from compatkit.components.verification import prove_once

    if not admitted:
        check_signature(store, reference, require_signature, verify)
    check_version(store, reference, verify)
    whose = pinned(reference)
    manifest = store.manifest(reference if reference.version else str(reference.digest))
    with named(whose):
        state = store.load_state(manifest, verify=verify)
    module = rebuilt(manifest.blueprint, state, whose, share=True)
    prove_once(store, manifest, str(reference.digest), module, verify=verify, state=state, whose=whose)
    return with_module(store, reference, manifest, module)


def with_module(
    store: Store, place: Reference, manifest: Manifest, module: nn.Module, *, reference: str = ""
) -> Component:
    """Return a component whose module is at hand.

    Args:
        store: Where the extractor is that a head was trained with.
        place: Name and digest, and the version if it has one yet.
        manifest: Of the component.
        module: With its weights.
        reference: What reports call it; empty takes name and version.
    """
    trained = next(trained_with(manifest), None)
    return Component(
        None,
        place,
        manifest,
        reference=reference or pinned(place),
        trained_function=None if trained is None else store.function_of(trained),
        module=module,
    )


def check_signature(store: Store, reference: Reference, require_signature: Trust, verify: Verify) -> None:
    """Refuse a component without a signature that counts, where the store or the caller asks for one.

    Raises:
        SignatureError: It has no signature that counts.
        UsageError: Its bytes would not be compared with the digest that is signed.
    """
    for trust in (store.trusted, require_signature):
        if trust is not None and trust is not False:
            from compatkit.registry.signing.verify import admit

            admit(store, reference, trust, verify)


def check_version(store: Store, reference: Reference, verify: Verify) -> None:
    """Refuse a version whose number lies about the change; what is asked for by its digest promises no number.

    Raises:
        VersionUntrue: It does.
    """
    if reference.version is not None and verify != "never":
        store.check_number(reference.name, reference.version, str(reference.digest))


def rebuilt(
    blueprint: Blueprint, state: Mapping[str, Tensor], whose: str, *, share: bool = False
) -> nn.Module:
    """Return the module that a blueprint and weights make, in eval mode.

    Args:
        blueprint: Of the module.
        state: The weights.
        whose: Named in messages.
        share: Whether the module may keep the tensors of ``state`` themselves.

    Raises:
        IntegrityError: The weights are not those of the blueprint.
        UnknownName: The blueprint's builder or model is not known here.
        UsageError: It is a recombination.
    """
    from compatkit.adapters.blueprints import build
    from compatkit.adapters.builders import LibraryWarning, library_note

    if blueprint.side == "recombination":
        raise UsageError(
            f"{whose} is a recombination, put together from components; use Registry.load for one, or "
            "recombine and publish to make one.",
            subject=whose,
        )
    note = library_note(blueprint) if blueprint.is_cut else None
    if note is not None:
        warnings.warn(f"{whose}: {note}", LibraryWarning, stacklevel=3)
    try:
        return build(blueprint, state=state, share=share).eval()
    except CutError as error:
        raise IntegrityError(
            f"{whose} cannot be rebuilt: {error} {note or ''}".rstrip(), subject=whose
        ) from error

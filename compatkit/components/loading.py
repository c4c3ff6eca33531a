"""Load components: manifests at once, modules on first use, checked against their contracts."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import attrs

from compatkit.contracts.contract import Blueprint
from compatkit.contracts.manifest import Manifest, function_digest, trained_with
from compatkit.errors import CutError, IntegrityError, NotFound, UsageError
from compatkit.evaluation.component import Component, pinned
from compatkit.foundation.arguments import texts_of
from compatkit.registry.blobs import Verify
from compatkit.registry.names import Reference
from compatkit.registry.resolving import is_pattern, wrong_kind
from compatkit.registry.store import Store, add_component_note

if TYPE_CHECKING:
    from torch import Tensor, nn

    from compatkit.registry.signing.trust import Trust


@attrs.frozen(eq=False)
class PartLoader:
    """Cache of a registry's components; each manifest and module is read once.

    Attributes:
        store: Files of the registry.
        admitted: Whether parts without a version need no signature of their own. That of an arriving part was checked
            before its bytes were copied; other parts are covered by the manifest that names them.
    """

    store: Store
    admitted: bool = False
    _known: dict[str, Component] = attrs.field(init=False, factory=dict)
    _functions: dict[str, str | None] = attrs.field(init=False, factory=dict)

    def component(self, resolved: Reference, reference: str = "") -> Component:
        """Return one component.

        Args:
            resolved: Name, version and digest; without a version the component is found by digest.
            reference: Name for reports; empty for name and version.

        Raises:
            IntegrityError: The manifest is missing or damaged.
        """
        label = reference or pinned(resolved)
        if label not in self._known:
            manifest = _manifest(self.store, resolved)
            function = self._functions[str(resolved.digest)] = function_digest(manifest)
            trained = next(trained_with(manifest), None)
            self._known[label] = Component(
                self,
                resolved,
                manifest,
                reference=label,
                function=function,
                trained_function=None if trained is None else self.function_of(trained),
            )
        return self._known[label]

    def load(self, reference: str) -> nn.Module:
        """Return the module of a component returned before."""
        resolved = self._known[reference].resolved
        return load(self.store, resolved, admitted=self.admitted and resolved.version is None).module

    def of_digest(self, digest: str) -> Component | None:
        """Return the component with this manifest digest if returned before, else None."""
        return next((component for component in self._known.values() if component.digest == digest), None)

    def function_of(self, digest: str) -> str | None:
        """Return the function digest of a manifest; None if the manifest is missing or damaged."""
        if digest not in self._functions:
            self._functions[digest] = self.store.function_of(digest)
        return self._functions[digest]

    def choose(
        self, wanted: str | Sequence[str], kinds: Sequence[str], exact_kinds: Sequence[str] = ()
    ) -> list[Component]:
        """Return the components that references and patterns match.

        Args:
            wanted: References or patterns; a pattern skips components of other kinds.
            kinds: Allowed kinds.
            exact_kinds: Allowed kinds for references without a pattern; empty for ``kinds``.

        Raises:
            NotFound: A pattern matches nothing, or nothing of these kinds.
            UsageError: A reference that is not a pattern has another kind.
        """
        components: dict[str, Component] = {}
        for pattern in texts_of(wanted, " or ".join(f"{kind}s" for kind in kinds), "a reference or pattern"):
            several = is_pattern(pattern)
            allowed = kinds if several else exact_kinds or kinds
            matches = [self.component(resolved) for resolved in self.store.select(pattern)]
            chosen = [component for component in matches if component.kind in allowed]
            if several and not chosen:
                kinds_matched = " and ".join(sorted({component.kind for component in matches}))
                raise NotFound(
                    f"{pattern!r} matches {len(matches)} components, none of kind {' or '.join(kinds)}: they are of "
                    f"kind {kinds_matched}.",
                    subject=pattern,
                )
            if not chosen:
                raise wrong_kind(matches[0].resolved, matches[0].kind, kinds, pattern)
            components |= {str(component.resolved): component for component in chosen}
        return list(components.values())


def _manifest(store: Store, resolved: Reference) -> Manifest:
    return store.manifest(resolved if resolved.version else str(resolved.digest))


def load(
    store: Store,
    reference: Reference,
    *,
    verify: Verify = "auto",
    require_signature: Trust = False,
    admitted: bool = False,
) -> Component:
    """Rebuild a component from its blueprint, load its weights strictly and check its contract.

    Warns with ``LibraryWarning`` if the version of a library differs from the recorded one.

    Args:
        store: Files of the registry.
        reference: Name, version and digest; without a version the component is found by digest.
        verify: ``"auto"`` hashes the weights and runs the probe once, and again after a change of the file or a
            library; ``"always"`` every time; ``"never"`` trusts the disk and the libraries.
        require_signature: Required signature, in addition to that of the store.
        admitted: Whether to skip the signature, because a signed manifest covers the digest.

    Raises:
        SignatureError: There is no valid signature.
        VersionUntrue: The version number promises a smaller change than it contains.
        IntegrityError: The bytes, or the resulting module, do not match the manifest.
        UnknownName: The blueprint's builder or model is unknown here.
    """
    from compatkit.components.probes import built_fact
    from compatkit.components.verification import verify_once

    if not admitted:
        check_signature(store, reference, require_signature, verify)
    check_version(store, reference, verify)
    owner = pinned(reference)
    manifest = _manifest(store, reference)
    with add_component_note(owner):
        state = store.load_state(manifest, verify=verify)
    bounds_proof = built_fact(manifest.blueprint)
    bounded = verify == "always" or bounds_proof is None or not store.local_cache.is_proved(bounds_proof)
    module = rebuilt(manifest.blueprint, state, owner, share=True, bounded=bounded)
    verify_once(store, manifest, str(reference.digest), module, verify=verify, state=state, owner=owner)
    if bounded and bounds_proof is not None:
        store.local_cache.remember_proved(bounds_proof)
    return with_module(store, reference, manifest, module)


def with_module(
    store: Store, resolved: Reference, manifest: Manifest, module: nn.Module, *, reference: str = ""
) -> Component:
    """Return a component whose module is in memory.

    Args:
        store: Registry of the extractor that a head was trained with.
        resolved: Name, digest, and version if there is one.
        manifest: Manifest of the component.
        module: Module with its weights.
        reference: Name for reports; empty for name and version.
    """
    trained = next(trained_with(manifest), None)
    return Component(
        None,
        resolved,
        manifest,
        reference=reference or pinned(resolved),
        trained_function=None if trained is None else store.function_of(trained),
        module=module,
    )


def check_signature(store: Store, reference: Reference, require_signature: Trust, verify: Verify) -> None:
    """Raise if the store or the caller requires a signature and the component has no valid one.

    Args:
        store: Files of the registry, with its trusted keys.
        reference: Resolved reference.
        require_signature: Signature that the caller requires in addition; False for none.
        verify: As for ``load``.

    Raises:
        SignatureError: There is no valid signature.
        UsageError: ``verify`` is ``"never"``, but a signature covers only verified bytes.
    """
    for trust in (store.signers, require_signature):
        if trust is not None and trust is not False:
            from compatkit.registry.signing import verify as signatures

            signatures.require_signature(store, reference, trust, verify)


def check_version(store: Store, reference: Reference, verify: Verify) -> None:
    """Raise for a version number that promises a smaller change than the version contains.

    Args:
        store: Files of the registry.
        reference: Resolved reference; one without a version is not checked.
        verify: ``"never"`` skips the check.

    Raises:
        VersionUntrue: The version step is too small.
    """
    if reference.version is not None and verify != "never":
        store.check_number(reference.name, reference.version, str(reference.digest))


def rebuilt(
    blueprint: Blueprint,
    state: Mapping[str, Tensor],
    owner: str,
    *,
    share: bool = False,
    bounded: bool = True,
) -> nn.Module:
    """Return the module of a blueprint with weights, in eval mode.

    Args:
        blueprint: Blueprint of the module.
        state: Weights by name.
        owner: Name for messages.
        share: Whether the module may share the tensors of ``state``.
        bounded: As for ``build``.

    Raises:
        IntegrityError: The weights do not fit the blueprint.
        TooCostly: Building takes more time or memory than ``adapters.bounds`` allows.
        UnknownName: The blueprint's builder or model is unknown here.
        UsageError: The blueprint is that of a recombination.
    """
    from compatkit.adapters.blueprints import build
    from compatkit.adapters.builders import LibraryWarning, library_note

    if blueprint.side == "recombination":
        raise UsageError(
            f"{owner} is a recombination, composed of components; load it with Registry.load.",
            subject=owner,
        )
    note = library_note(blueprint) if blueprint.is_cut else None
    if note is not None:
        warnings.warn(f"{owner}: {note}", LibraryWarning, stacklevel=3)
    try:
        with add_component_note(owner):
            return build(blueprint, state=state, share=share, bounded=bounded).eval()
    except CutError as error:
        raise IntegrityError(
            f"{owner} cannot be rebuilt: {error} {note or ''}".rstrip(), subject=owner
        ) from error

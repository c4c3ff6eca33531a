"""Verify the signatures of components in a registry."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING

import attrs

from compatkit.errors import UsageError
from compatkit.foundation.codec import is_digest
from compatkit.registry.names import Reference
from compatkit.registry.signing.checks import SignatureVerdict, check_signature, check_signatures
from compatkit.registry.signing.trust import Trust, Trusted

if TYPE_CHECKING:
    from compatkit.registry.blobs import Verify
    from compatkit.registry.store import Store


@attrs.frozen
class SignedPart:
    """A component that is signed, or whose signatures are checked.

    Attributes:
        digest: Digest of the manifest.
        name: ``name@version`` under which it is used; None if it was selected by digest.
    """

    digest: str
    name: str | None = None

    def __str__(self) -> str:
        return self.name or self.digest


def signed_parts(store: Store, patterns: str | Iterable[str], *, every: bool = False) -> list[SignedPart]:
    """Return the components that references select.

    Args:
        store: Files of the registry.
        patterns: References or digests: names, globs, versions, aliases.
        every: Whether a name or glob selects all versions, withdrawn ones too, not only the latest.

    Raises:
        NotFound: A reference selects nothing.
    """
    parts: dict[SignedPart, None] = {}
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        if is_digest(pattern):
            parts[SignedPart(pattern)] = None
            continue
        for reference in store.select(pattern):
            is_all = every and not {"@", ":"} & set(pattern)
            for version in store.references.versions(reference.name) if is_all else ():
                digest = store.references.digest(reference.name, version)
                parts[signed_part(Reference(reference.name, version, digest=digest))] = None
            parts[signed_part(reference)] = None
    return list(parts)


def signed_part(reference: Reference) -> SignedPart:
    """Return the signed part of a resolved reference."""
    return SignedPart(str(reference.digest), f"{reference.name}@{reference.version}")


def verify(
    store: Store, reference: str, trust: Trust = None, *, now: datetime | None = None
) -> list[SignatureVerdict]:
    """Return the verdict on each signature of a component; raise if none is valid.

    Args:
        store: Files of the registry.
        reference: Reference to one component.
        trust: Trusted keys; None for those of the user.
        now: See ``check_signatures``.

    Raises:
        SignatureError: No signature is valid; the class is the reason.
        NotFound: The reference selects no component, or several.
    """
    part, trusted = _one_part(store, reference), Trusted.of(trust)
    return check_signatures(
        part.digest, store.signatures.of(part.digest, trusted), trusted, name=part.name, now=now
    )


def statements(store: Store, reference: str) -> list[SignatureVerdict]:
    """Return the unverified statements of a component's signatures.

    Args:
        store: Files of the registry.
        reference: Reference to one component.
    """
    part = _one_part(store, reference)
    no_keys = Trusted({})
    return [
        check_signature(data, part.digest, no_keys, name=part.name)
        for data in store.signatures.of(part.digest)
    ]


def require_signature(store: Store, reference: Reference, trust: Trust, verify: Verify) -> None:
    """Raise if a component to load has no valid signature by a trusted key.

    Args:
        store: Files of the registry.
        reference: Resolved reference.
        trust: Trusted keys.
        verify: Verification of the loaded bytes.

    Raises:
        SignatureError: No signature is valid; the class is the reason.
        UsageError: ``verify`` is ``"never"``.
    """
    if verify == "never":
        raise UsageError(
            "Expected verify='auto' or 'always', as signatures are required, got 'never': it compares no digests."
        )
    part, trusted = signed_part(reference), Trusted.of(trust)
    check_signatures(part.digest, store.signatures.of(part.digest, trusted), trusted, name=part.name)


def _one_part(store: Store, reference: str) -> SignedPart:
    parts = signed_parts(store, reference)
    if len(parts) != 1:
        raise UsageError(
            f"Expected a reference to one component, got {reference!r:.80}, which matches {len(parts)}."
        )
    return parts[0]

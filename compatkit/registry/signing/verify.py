"""Verify the signatures of a registry's components."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING

import attrs

from compatkit.errors import UsageError
from compatkit.foundation.codec import is_digest
from compatkit.registry.blobs import Verify
from compatkit.registry.names import Reference
from compatkit.registry.signing.judging import SignatureVerdict, judge, judge_all
from compatkit.registry.signing.trust import Trust, Trusted

if TYPE_CHECKING:
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


def subjects(store: Store, patterns: str | Iterable[str], *, every: bool = False) -> list[SignedPart]:
    """Return the components that references select.

    Args:
        store: The registry's files.
        patterns: Each a name, glob, version, alias, or a bare digest.
        every: Whether a name or glob selects all versions that are not withdrawn, not only the latest.

    Raises:
        NotFound: A reference selects nothing.
    """
    parts: dict[SignedPart, None] = {}
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        if is_digest(pattern):
            parts[SignedPart(pattern)] = None
            continue
        for reference in store.select(pattern):
            for version in store.versions(reference.name) if every and not {"@", ":"} & set(pattern) else ():
                parts[subject_of(store.resolve(Reference(reference.name, version)))] = None
            parts[subject_of(reference)] = None
    return list(parts)


def subject_of(reference: Reference) -> SignedPart:
    """Return the signed part of a resolved reference."""
    return SignedPart(str(reference.digest), f"{reference.name}@{reference.version}")


def verify(
    store: Store, reference: str, trust: Trust = None, *, now: datetime | None = None
) -> list[SignatureVerdict]:
    """Return the verdict on each signature of a component; raise if none is valid.

    Args:
        store: The registry's files.
        reference: One component.
        trust: Trusted keys; None for the user's own.
        now: See ``judge_all``.

    Raises:
        SignatureError: None is valid; the class is the reason.
        NotFound: The reference selects no component, or several.
    """
    (part,) = _only(store, reference)
    return judge_all(part.digest, store.signatures.of(part.digest), trust, name=part.name, now=now)


def statements(store: Store, reference: str) -> list[SignatureVerdict]:
    """Return the unverified statements of a component's signatures.

    Args:
        store: The registry's files.
        reference: One component.
    """
    (part,) = _only(store, reference)
    nobody = Trusted({})
    return [judge(data, part.digest, nobody, name=part.name) for data in store.signatures.of(part.digest)]


def admit(store: Store, reference: Reference, trust: Trust, verify: Verify) -> None:
    """Raise if a component that is loaded has no signature by a trusted key.

    Args:
        store: The registry's files.
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
    part = subject_of(reference)
    judge_all(part.digest, store.signatures.of(part.digest), trust, name=part.name)


def _only(store: Store, reference: str) -> list[SignedPart]:
    parts = subjects(store, reference)
    if len(parts) != 1:
        raise UsageError(
            f"Expected a reference to one component, got {reference!r:.80}, which matches {len(parts)}."
        )
    return parts

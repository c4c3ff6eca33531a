"""The signatures of the components of a registry: which references they are of, and whether one counts."""

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
    """What is signed, or shown.

    Attributes:
        digest: Of the manifest.
        name: ``name@version`` that it is shown as; None where it was asked for by its digest.
    """

    digest: str
    name: str | None = None

    def __str__(self) -> str:
        return self.name or self.digest


def subjects(store: Store, patterns: str | Iterable[str], *, every: bool = False) -> list[SignedPart]:
    """Return what references mean.

    Args:
        store: Where they are.
        patterns: Each a name, glob, version, alias, or a bare digest.
        every: Whether a name or glob means all its versions that were not withdrawn, and not only the latest.

    Raises:
        NotFound: One means nothing.
    """
    found: dict[SignedPart, None] = {}
    for one in [patterns] if isinstance(patterns, str) else patterns:
        if is_digest(one):
            found[SignedPart(one)] = None
            continue
        for reference in store.select(one):
            for version in store.versions(reference.name) if every and not {"@", ":"} & set(one) else ():
                found[subject_of(store.resolve(Reference(reference.name, version)))] = None
            found[subject_of(reference)] = None
    return list(found)


def subject_of(reference: Reference) -> SignedPart:
    """Return what a resolved reference shows."""
    return SignedPart(str(reference.digest), f"{reference.name}@{reference.version}")


def verify(
    store: Store, reference: str, trust: Trust = None, *, now: datetime | None = None
) -> list[SignatureVerdict]:
    """Return what was found out about each signature of a component; refuse if none counts.

    Args:
        store: The registry's files.
        reference: One component.
        trust: Keys that count; None for the user's own trusted keys.
        now: As for ``judge_all``.

    Raises:
        SignatureError: None counts; its class says why.
        NotFound: The reference means nothing, or several components.
    """
    (one,) = _only(store, reference)
    return judge_all(one.digest, store.signatures.of(one.digest), trust, name=one.name, now=now)


def statements(store: Store, reference: str) -> list[SignatureVerdict]:
    """Return what the signatures of a component say, by nobody's key: all are of unknown signers, or malformed.

    Args:
        store: The registry's files.
        reference: One component.
    """
    (one,) = _only(store, reference)
    nobody = Trusted({})
    return [judge(data, one.digest, nobody, name=one.name) for data in store.signatures.of(one.digest)]


def admit(store: Store, reference: Reference, trust: Trust, verify: Verify) -> None:
    """Refuse to load a component that no trusted key signed.

    Args:
        store: Where it is.
        reference: Resolved.
        trust: Whom to trust.
        verify: How its bytes are compared with the digest that is signed.

    Raises:
        SignatureError: No signature counts; its class says why.
        UsageError: Its bytes would not be compared.
    """
    if verify == "never":
        raise UsageError(
            "verify='never' does not compare bytes with their digests, so a signature would say nothing of what is "
            "loaded. Take 'auto' or 'always' where signatures are required."
        )
    one = subject_of(reference)
    judge_all(one.digest, store.signatures.of(one.digest), trust, name=one.name)


def _only(store: Store, reference: str) -> list[SignedPart]:
    found = subjects(store, reference)
    if len(found) != 1:
        raise UsageError(f"{reference!r:.80} means {len(found)} components; name one.")
    return found

"""Signing what a registry holds, and asking whose signatures a component has: statements, keys and files together."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any

import attrs

from compatkit.contracts.codec import is_digest
from compatkit.errors import UsageError
from compatkit.registry.blobs import Verify
from compatkit.registry.names import Reference
from compatkit.registry.signing import moments
from compatkit.registry.signing.signer import SigningKey
from compatkit.registry.signing.statement import Statement
from compatkit.registry.signing.trust import Trust, Trusted
from compatkit.registry.signing.verification import Verdict, judge, judge_all

if TYPE_CHECKING:
    from compatkit.registry.store import Store


@attrs.frozen
class Subject:
    """What is signed, or shown.

    Attributes:
        digest: Of the manifest.
        name: ``name@version`` that it is shown as; None where it was asked for by its digest.
    """

    digest: str
    name: str | None = None

    def __str__(self) -> str:
        return self.name or self.digest


@attrs.frozen
class Signed:
    """A signature that a component has now.

    Attributes:
        subject: The component.
        statement: What was signed.
        made: False if the same key had signed the same before, for as long at least.
    """

    subject: Subject
    statement: Statement
    made: bool

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        ends = self.statement.expires
        return {
            "reference": str(self.subject),
            "digest": self.subject.digest,
            "signed_as": self.statement.name,
            "signer": self.statement.signer,
            "signed": moments.written(self.statement.signed),
            "expires": None if ends is None else moments.written(ends),
            "made": self.made,
        }


def subjects(store: Store, patterns: str | Iterable[str], *, every: bool = False) -> list[Subject]:
    """Return what references mean.

    Args:
        store: Where they are.
        patterns: Each a name, glob, version, alias, or a bare digest.
        every: Whether a name or glob means all its versions that were not withdrawn, and not only the latest.

    Raises:
        NotFound: One means nothing.
    """
    found: dict[Subject, None] = {}
    for one in [patterns] if isinstance(patterns, str) else patterns:
        if is_digest(one):
            found[Subject(one)] = None
            continue
        for reference in store.select(one):
            for version in store.versions(reference.name) if every and not {"@", ":"} & set(one) else ():
                found[subject_of(store.resolve(Reference(reference.name, version)))] = None
            found[subject_of(reference)] = None
    return list(found)


def subject_of(reference: Reference) -> Subject:
    """Return what a resolved reference shows."""
    return Subject(str(reference.digest), f"{reference.name}@{reference.version}")


def sign(
    store: Store,
    patterns: str | Iterable[str],
    key: SigningKey,
    *,
    expires: datetime | None = None,
    named: bool = True,
    every: bool = False,
    now: datetime | None = None,
) -> list[Signed]:
    """Sign components; see ``Registry.care.sign``."""
    store.layout.check_writer(store.root)
    chosen = subjects(store, patterns, every=every)
    for one in chosen:
        store.manifest(one.digest)  # nobody vouches for what is not here, or damaged
    found: list[Signed] = []
    for one in chosen:
        envelope = key.sign(one.digest, one.name if named else None, expires=expires, now=now)
        statement = Statement.from_bytes(envelope.payload)
        before = _before(store, one, statement, key, now)
        if before is None:
            store.signatures.add(one.digest, envelope.to_bytes())
        found.append(Signed(one, before or statement, before is None))
    return found


def verify(
    store: Store, reference: str, trust: Trust = None, *, now: datetime | None = None
) -> list[Verdict]:
    """Return what was found out about each signature of a component; refuse if none counts.

    Raises:
        SignatureError: None counts; its class says why.
        NotFound: The reference means nothing, or several components.
    """
    (one,) = _only(store, reference)
    return judge_all(one.digest, store.signatures.of(one.digest), trust, name=one.name, now=now)


def statements(store: Store, reference: str) -> list[Verdict]:
    """Return what the signatures of a component say, by nobody's key: all are of unknown signers, or malformed."""
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


def _before(
    store: Store, one: Subject, wanted: Statement, key: SigningKey, now: datetime | None
) -> Statement | None:
    """Return a statement that this key signed before, and that says no less."""
    own = Trusted({key.public.id: key.public})
    for data in store.signatures.of(one.digest):
        found = judge(data, one.digest, own, name=wanted.name, now=now)
        said = found.statement
        if not found.good or said is None or said.name != wanted.name:
            continue
        if said.expires is None or (wanted.expires is not None and said.expires >= wanted.expires):
            return said
    return None


def _only(store: Store, reference: str) -> list[Subject]:
    found = subjects(store, reference)
    if len(found) != 1:
        raise UsageError(f"{reference!r:.80} means {len(found)} components; name one.")
    return found

"""Sign components and measured results with a private key."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any

import attrs

from compatkit.contracts.manifest import function_digest
from compatkit.registry.signing import dates
from compatkit.registry.signing.checks import check_signature
from compatkit.registry.signing.envelope import Statement
from compatkit.registry.signing.trust import Trusted
from compatkit.registry.signing.verify import SignedPart, signed_parts

if TYPE_CHECKING:
    from compatkit.registry.signing.private_keys import SigningKey
    from compatkit.registry.store import Store


@attrs.frozen
class SigningResult:
    """Result of signing a component.

    Attributes:
        subject: Signed component.
        statement: Signed statement.
        created: Whether the signature is new; False if an earlier one of the same key is valid for at least as long.
    """

    subject: SignedPart
    statement: Statement
    created: bool

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        ends = self.statement.expires
        return {
            "reference": str(self.subject),
            "digest": self.subject.digest,
            "signed_as": self.statement.name,
            "signer": self.statement.signer,
            "signed": dates.format_time(self.statement.signed),
            "expires": None if ends is None else dates.format_time(ends),
            "made": self.created,
        }


def sign(
    store: Store,
    patterns: str | Iterable[str],
    key: SigningKey,
    *,
    expires: datetime | None = None,
    bind_name: bool = True,
    every: bool = False,
    now: datetime | None = None,
) -> list[SigningResult]:
    """Sign components; see ``Registry.maintenance.sign``."""
    store.layout.check_writer(store.root)
    parts = signed_parts(store, patterns, every=every)
    for part in parts:
        store.manifest(part.digest)  # raises if it is missing or damaged
    return _signed(store, parts, key, expires=expires, with_name=bind_name, now=now)


def sign_evidence(
    store: Store, extractors: str, heads: str, key: SigningKey, *, expires: datetime | None = None
) -> list[SigningResult]:
    """Sign measured results of pairs; see ``Registry.maintenance.sign_evidence``."""
    store.layout.check_writer(store.root)
    sides = [
        [function_digest(store.manifest(reference)) for reference in store.select(side)]
        for side in (extractors, heads)
    ]
    results = attrs.evolve(store.evidence, trusted=None).results(*sides)
    parts = [SignedPart(result.digest) for result in results if not result.error]
    return _signed(store, parts, key, expires=expires, with_name=False, now=None)


def _signed(
    store: Store,
    parts: Iterable[SignedPart],
    key: SigningKey,
    *,
    expires: datetime | None,
    with_name: bool,
    now: datetime | None,
) -> list[SigningResult]:
    signatures: list[SigningResult] = []
    for part in parts:
        envelope = key.sign(part.digest, part.name if with_name else None, expires=expires, now=now)
        statement = Statement.from_bytes(envelope.payload)
        before = _earlier_statement(store, part, statement, key, now)
        if before is None:
            store.signatures.add(part.digest, envelope.to_bytes())
        signatures.append(SigningResult(part, before or statement, before is None))
    return signatures


def _earlier_statement(
    store: Store, part: SignedPart, wanted: Statement, key: SigningKey, now: datetime | None
) -> Statement | None:
    """Return an earlier statement of this key that covers the wanted one, or None."""
    own = Trusted({key.public.id: key.public})
    for data in store.signatures.of(part.digest, own):
        verdict = check_signature(data, part.digest, own, name=wanted.name, now=now)
        statement = verdict.statement
        if not verdict.valid or statement is None or statement.name != wanted.name:
            continue
        if statement.expires is None or (wanted.expires is not None and statement.expires >= wanted.expires):
            return statement
    return None

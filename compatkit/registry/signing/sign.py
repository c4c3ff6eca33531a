"""Signing what a registry holds."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any

import attrs

from compatkit.registry.signing import dates
from compatkit.registry.signing.envelope import Statement
from compatkit.registry.signing.keys import SigningKey
from compatkit.registry.signing.trust import Trusted
from compatkit.registry.signing.verify import SignedPart, judge, subjects

if TYPE_CHECKING:
    from compatkit.registry.store import Store


@attrs.frozen
class Signed:
    """A signature that a component has now.

    Attributes:
        subject: The component.
        statement: What was signed.
        made: False if the same key had signed the same before, for as long at least.
    """

    subject: SignedPart
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
            "signed": dates.written(self.statement.signed),
            "expires": None if ends is None else dates.written(ends),
            "made": self.made,
        }


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


def _before(
    store: Store, one: SignedPart, wanted: Statement, key: SigningKey, now: datetime | None
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

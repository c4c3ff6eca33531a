"""What is signed: an in-toto statement about one manifest.

Source: in-toto attestation framework, Statement v1, https://github.com/in-toto/attestation/tree/main/spec/v1. The
subject is the manifest by its sha256, and with it everything that the manifest names by digest: weights, runs, parents.
It has no idea of registries: the same statement is as good in any copy.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import attrs

from compatkit.contracts.codec import dumps, is_digest
from compatkit.errors import InvalidName, MalformedSignature
from compatkit.registry.names import Reference
from compatkit.registry.signing import moments
from compatkit.registry.signing.envelope import KEY_ID, strict

TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://compatkit/signature/v1"
"""A name that never changes its meaning; it is not looked up."""


@attrs.frozen
class Statement:
    """That a signer vouches for a manifest.

    Attributes:
        digest: Of the manifest, ``sha256:...``.
        name: ``name@version`` that it was signed as; None vouches for the bytes under any name.
        signer: Identity of the key, ``ed25519:...``.
        signed: When, by the signer's clock.
        expires: When it ends, None if it does not.
    """

    digest: str
    name: str | None
    signer: str
    signed: datetime
    expires: datetime | None

    def to_bytes(self) -> bytes:
        """Return the statement as canonical JSON."""
        subject: dict[str, Any] = {"digest": {"sha256": self.digest.removeprefix("sha256:")}}
        if self.name is not None:
            subject["name"] = self.name
        return dumps(
            {
                "_type": TYPE,
                "subject": [subject],
                "predicateType": PREDICATE_TYPE,
                "predicate": {
                    "expires": None if self.expires is None else moments.written(self.expires),
                    "signed": moments.written(self.signed),
                    "signer": self.signer,
                },
            }
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> Statement:
        """Read a statement.

        Raises:
            MalformedSignature: No strict JSON, of another type, or a field is missing, unknown or not valid.
        """
        value = strict(data, "a signed statement")
        kinds = value.get("_type"), value.get("predicateType")
        if kinds != (TYPE, PREDICATE_TYPE):
            raise MalformedSignature(
                f"a signed statement is of type {TYPE} and predicate {PREDICATE_TYPE}, got {kinds[0]!r:.80} and "
                f"{kinds[1]!r:.80}: it says something else, or a newer compatkit wrote it."
            )
        try:
            found = cls._read(value)
        except (AttributeError, KeyError, TypeError, ValueError):
            found = None
        if found is None or found.to_bytes() != data:
            raise MalformedSignature(
                "a signed statement has one subject (digest with sha256, perhaps name as NAME@VERSION) and a predicate "
                "of expires (a moment or null), signed (a moment such as 2026-01-31T12:00:00Z) and signer "
                f"('ed25519:' and 64 hex digits), in canonical JSON; got {data!r:.400}."
            )
        return found

    @classmethod
    def _read(cls, value: dict[str, Any]) -> Statement | None:
        (subject,) = value["subject"]
        predicate = value["predicate"]
        digest, name = f"sha256:{subject['digest']['sha256']}", subject.get("name")
        signed, ends = moments.read(predicate["signed"]), predicate["expires"]
        expires = None if ends is None else moments.read(ends)
        good = (
            is_digest(digest) and KEY_ID.fullmatch(predicate["signer"]) and (name is None or is_pinned(name))
        )
        if not good or signed is None or (ends is not None and expires is None):
            return None
        return cls(digest, name, predicate["signer"], signed, expires)


def is_pinned(name: object) -> bool:
    """Tell whether text is ``name@version`` in its one spelling."""
    try:
        found = Reference.parse(name)  # type: ignore[arg-type]  # what is no text is refused
    except InvalidName:
        return False
    return found.version is not None and str(found) == name

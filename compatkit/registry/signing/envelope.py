"""Format of a signature: an in-toto statement about one manifest in a DSSE envelope, both in canonical JSON.

Sources: Dead Simple Signing Envelope 1.0.0, https://github.com/secure-systems-lab/dsse (protocol.md, envelope.md);
in-toto attestation framework, Statement v1, https://github.com/in-toto/attestation/tree/main/spec/v1.

The signed bytes are ``PAE(type, body) = "DSSEv1" SP LEN(type) SP type SP LEN(body) SP body``, so neither type nor body
can be confused with anything else. The subject of the statement is the sha256 of the manifest, which covers everything
that the manifest refers to by digest: weights, runs, parents. It contains no registry, so a signature is valid in any
copy.

Stricter than DSSE: one signature per envelope, the standard alphabet of base64, canonical JSON. Therefore a signature
has exactly one encoding, and any changed bit of a file is detected.
"""

from __future__ import annotations

import base64
import re
from contextlib import suppress
from datetime import datetime
from typing import Any

import attrs

from compatkit.errors import FormatError, InvalidName, MalformedSignature
from compatkit.foundation.codec import dumps, is_digest, loads
from compatkit.registry.names import ENTRY_NAME, ENTRY_NUMBER, VERSION, Reference, check_alias, check_name
from compatkit.registry.signing import dates

LIMIT = 2**14
"""Maximum size of an envelope in bytes."""
PAYLOAD_TYPE = "application/vnd.in-toto+json"
"""Media type of an in-toto statement."""
TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://compatkit/signature/v1"
"""Identifier of the predicate about a manifest; it is not resolved, and its meaning never changes."""
CHANGE_TYPE = "https://compatkit/change/v1"
"""Identifier of the predicate about an entry of a log, such as the move of an alias."""
_ENTRY = re.compile(
    rf"refs/(?P<name>[^@]+)/@(?:log/(?P<alias>[^/]+)/{ENTRY_NUMBER}|tombstones/{ENTRY_NAME.pattern}|"
    rf"dropped/{VERSION.pattern}/{ENTRY_NUMBER}|published/{VERSION.pattern})|policies/[^/]+@{ENTRY_NUMBER}|settings/{ENTRY_NUMBER}"
)
"""Paths of signed entries."""
KEY_ID = re.compile("ed25519:[0-9a-f]{64}")
"""Identity of a key: the public key itself, encoded as in RFC 8032."""


def pae(kind: str, body: bytes) -> bytes:
    """Return the bytes to sign: DSSE's pre-authentication encoding of a payload with media type ``kind``."""
    name = kind.encode()
    return b"DSSEv1 %d %b %d %b" % (len(name), name, len(body), body)


@attrs.frozen
class Envelope:
    """A payload with its signature.

    Attributes:
        payload: The signed statement, of type ``PAYLOAD_TYPE``.
        key: Claimed identity of the key; unverified.
        signature: 64 bytes.
    """

    payload: bytes
    key: str
    signature: bytes

    @property
    def signed(self) -> bytes:
        """Bytes that the signature covers."""
        return pae(PAYLOAD_TYPE, self.payload)

    def to_bytes(self) -> bytes:
        """Return the envelope as canonical JSON."""
        return dumps(
            {
                "payload": base64.b64encode(self.payload).decode(),
                "payloadType": PAYLOAD_TYPE,
                "signatures": [{"keyid": self.key, "sig": base64.b64encode(self.signature).decode()}],
            }
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> Envelope:
        """Read an envelope.

        Raises:
            MalformedSignature: The data is too long, not strict JSON, or not canonical.
        """
        value = _read_object(data, "a signature")
        with suppress(AttributeError, KeyError, TypeError, ValueError):  # JSON of another shape
            (entry,) = value["signatures"]
            envelope = cls(base64.b64decode(value["payload"]), entry["keyid"], base64.b64decode(entry["sig"]))
            if (
                KEY_ID.fullmatch(envelope.key)
                and len(envelope.signature) == 64
                and envelope.to_bytes() == data
            ):
                return envelope
        raise MalformedSignature(
            f"Expected a DSSE envelope with payload, payloadType {PAYLOAD_TYPE!r}, and one signature with keyid "
            f"('ed25519:' and 64 hex digits) and sig (64 bytes), in canonical JSON with standard base64, got "
            f"{data!r:.200}."
        )


@attrs.frozen
class Statement:
    """A signer's statement about a manifest, or about an entry of a log.

    Attributes:
        digest: Digest of the manifest or entry, ``sha256:...``.
        name: ``name@version`` that was signed, None for any name; of an entry its path relative to the root.
        signer: Identity of the key, ``ed25519:...``.
        signed: Time of signing, from the signer's clock.
        expires: End of validity, or None.
        is_change: Whether it is about an entry of a log.
    """

    digest: str
    name: str | None
    signer: str
    signed: datetime
    expires: datetime | None
    is_change: bool = False

    def to_bytes(self) -> bytes:
        """Return the statement as canonical JSON."""
        subject: dict[str, Any] = {"digest": {"sha256": self.digest.removeprefix("sha256:")}}
        if self.name is not None:
            subject["name"] = self.name
        return dumps(
            {
                "_type": TYPE,
                "subject": [subject],
                "predicateType": CHANGE_TYPE if self.is_change else PREDICATE_TYPE,
                "predicate": {
                    "expires": None if self.expires is None else dates.format_time(self.expires),
                    "signed": dates.format_time(self.signed),
                    "signer": self.signer,
                },
            }
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> Statement:
        """Read a statement.

        Raises:
            MalformedSignature: The data is not strict JSON, of another type, or a field is missing, unknown or invalid.
        """
        value = _read_object(data, "a signed statement")
        kinds = value.get("_type"), value.get("predicateType")
        if kinds[0] != TYPE or kinds[1] not in (PREDICATE_TYPE, CHANGE_TYPE):
            raise MalformedSignature(
                f"Expected a statement of type {TYPE} with predicate {PREDICATE_TYPE} or {CHANGE_TYPE}, got "
                f"{kinds[0]!r:.80} and {kinds[1]!r:.80}; a newer compatkit may have written it."
            )
        with suppress(AttributeError, KeyError, TypeError, ValueError):  # JSON of another shape
            statement = cls._read(value)
            if statement is not None and statement.to_bytes() == data:
                return statement
        raise MalformedSignature(
            "Expected a statement with one subject (digest with sha256, optional name as NAME@VERSION) and a predicate "
            "with expires (time or null), signed (time such as 2026-01-31T12:00:00Z) and signer ('ed25519:' and 64 hex "
            f"digits), in canonical JSON, got {data!r:.400}."
        )

    @classmethod
    def _read(cls, value: dict[str, Any]) -> Statement | None:
        (subject,) = value["subject"]
        predicate = value["predicate"]
        digest, name = f"sha256:{subject['digest']['sha256']}", subject.get("name")
        is_change = value["predicateType"] == CHANGE_TYPE
        signed, ends = dates.parse_time(predicate["signed"]), predicate["expires"]
        expires = None if ends is None else dates.parse_time(ends)
        is_named = _is_entry(name) if is_change else name is None or _is_pinned(name)
        is_valid = is_digest(digest) and KEY_ID.fullmatch(predicate["signer"]) and is_named
        if not is_valid or signed is None or (ends is not None and expires is None):
            return None
        return cls(digest, name, predicate["signer"], signed, expires, is_change)


def parse(data: bytes) -> tuple[Envelope, Statement]:
    """Parse an envelope and its statement without verifying them.

    Raises:
        MalformedSignature: The envelope or statement is malformed, or their keys differ.
    """
    envelope = Envelope.from_bytes(data)
    statement = Statement.from_bytes(envelope.payload)
    if statement.signer != envelope.key:
        raise MalformedSignature(f"Expected the key {envelope.key} in the statement, got {statement.signer}.")
    return envelope, statement


def _read_object(data: bytes, what: str) -> dict[str, Any]:
    """Return the object of a small, strict JSON document."""
    try:
        value = loads(data, what=what, max_bytes=LIMIT, max_depth=8, max_values=256)
    except FormatError as error:
        raise MalformedSignature(str(error)) from error
    if not isinstance(value, dict):
        raise MalformedSignature(f"{what}: expected a JSON object, got {value!r:.80}.")
    return value


def _is_pinned(name: object) -> bool:
    """Return whether a value is ``name@version`` in canonical form."""
    try:
        reference = Reference.parse(name)  # type: ignore[arg-type]  # other types are refused
    except InvalidName:
        return False
    return reference.version is not None and str(reference) == name


def _is_entry(path: object) -> bool:
    """Return whether a value is the path of an entry of a log, relative to the root."""
    match = _ENTRY.fullmatch(path) if isinstance(path, str) else None
    if match is None:
        return False
    try:
        parts = (match["name"], check_name), (match["alias"], check_alias)
        return all(part is None or check(part) for part, check in parts)
    except InvalidName:
        return False

"""DSSE envelopes: a typed payload and one signature of it, in canonical JSON.

Source: Dead Simple Signing Envelope 1.0.0, https://github.com/secure-systems-lab/dsse (protocol.md, envelope.md). What
is signed is ``PAE(type, body) = "DSSEv1" SP LEN(type) SP type SP LEN(body) SP body``, so that neither the type nor the
bytes of the body can be taken for something else, and no JSON has to be put in order before it is verified.

Stricter than DSSE asks: one signature an envelope, the standard alphabet of base64 only, and exactly the bytes that
canonical JSON has for it. So there is one spelling of a signature, and no bit of a file can change unnoticed.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import Any

import attrs

from compatkit.contracts.codec import dumps, loads
from compatkit.errors import FormatError, MalformedSignature

LIMIT = 2**14
"""Bytes; no envelope is longer."""
PAYLOAD_TYPE = "application/vnd.in-toto+json"
"""What the payload is: an in-toto statement."""
SIGNATURE_BYTES = 64
KEY_ID = re.compile("ed25519:[0-9a-f]{64}")
"""A key's identity is the key itself, as RFC 8032 encodes it."""


def pae(kind: str, body: bytes) -> bytes:
    """Return the bytes that are signed: DSSE's pre-authentication encoding of a payload."""
    name = kind.encode()
    return b"DSSEv1 %d %b %d %b" % (len(name), name, len(body), body)


@attrs.frozen
class Envelope:
    """A payload with its signature.

    Attributes:
        payload: The bytes that were signed, under ``PAYLOAD_TYPE``.
        key: Identity of the key that is said to have signed; nothing is believed of it before it was verified.
        signature: 64 bytes.
    """

    payload: bytes
    key: str
    signature: bytes

    @property
    def signed(self) -> bytes:
        """The bytes that the signature is over."""
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
            MalformedSignature: Too long, no strict JSON, other fields, another type of payload, or other bytes than
                ``to_bytes`` has for it.
        """
        value = strict(data, "a signature")
        one = value.get("signatures")
        signatures = one if isinstance(one, list) else []
        if (
            value.keys() != {"payload", "payloadType", "signatures"}
            or len(signatures) != 1
            or not isinstance(signatures[0], dict)
            or signatures[0].keys() != {"keyid", "sig"}
        ):
            raise MalformedSignature(
                "a signature is a DSSE envelope with payload, payloadType and one entry of keyid and sig under "
                f"signatures; got {data!r:.120}."
            )
        if value["payloadType"] != PAYLOAD_TYPE:
            raise MalformedSignature(
                f"the payload of a signature has the type {PAYLOAD_TYPE!r}, got {value['payloadType']!r:.80}."
            )
        key, signature = signatures[0]["keyid"], _decoded(signatures[0]["sig"])
        if not isinstance(key, str) or not KEY_ID.fullmatch(key):
            raise MalformedSignature(
                f"keyid is 'ed25519:' and 64 lower-case hex digits, got {key!r:.100}; signatures of other kinds of "
                "keys are not read."
            )
        if len(signature) != SIGNATURE_BYTES:
            raise MalformedSignature(f"sig has {SIGNATURE_BYTES} bytes, got {len(signature)}.")
        found = cls(_decoded(value["payload"]), key, signature)
        if found.to_bytes() != data:
            raise MalformedSignature(
                "a signature is canonical JSON (sorted keys, no spaces, a newline at the end; base64 with padding and "
                f"'+' and '/'); got other bytes for the same values: {data!r:.120}."
            )
        return found


def strict(data: bytes, what: str) -> dict[str, Any]:
    """Return the object that small, strict JSON holds.

    Raises:
        MalformedSignature: It is none.
    """
    try:
        value = loads(data, what=what, max_bytes=LIMIT, max_depth=8, max_values=256)
    except FormatError as error:
        raise MalformedSignature(str(error)) from error
    if not isinstance(value, dict):
        raise MalformedSignature(f"{what}: expected a JSON object, got {value!r:.80}.")
    return value


def _decoded(text: object) -> bytes:
    if not isinstance(text, str):
        raise MalformedSignature(f"payload and sig are text in base64, got {text!r:.80}.")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise MalformedSignature(f"payload and sig are base64, got {text!r:.80}: {error}.") from None

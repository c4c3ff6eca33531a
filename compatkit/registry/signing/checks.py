"""Check whether signatures are valid: for this digest and name, by a trusted key, at the current time.

All code that requires signatures calls ``check_signature``, which returns a verdict for any bytes. Clocks may differ
by ``SKEW``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from datetime import datetime, timedelta
from typing import Any

import attrs

from compatkit.errors import (
    BadSignature,
    Distrusted,
    MalformedSignature,
    NotYetValid,
    OtherDigest,
    OtherName,
    SignatureError,
    SignatureExpired,
    SignerExpired,
    UnknownSigner,
    Unsigned,
)
from compatkit.foundation.codec import digest as digest_of
from compatkit.registry.names import check_digest
from compatkit.registry.signing import dates
from compatkit.registry.signing.envelope import Envelope, Statement, parse
from compatkit.registry.signing.keys import PublicKey, check_installed, verifies
from compatkit.registry.signing.trust import Trust, Trusted

SKEW = timedelta(minutes=5)
"""Tolerated difference between the clocks of signer and reader."""
_ERRORS: tuple[type[SignatureError], ...] = (
    MalformedSignature,
    OtherDigest,
    UnknownSigner,
    BadSignature,
    Distrusted,
    OtherName,
    NotYetValid,
    SignatureExpired,
    SignerExpired,
)
"""Errors in the order of the checks; of several invalid signatures, the one that passed most checks is reported."""


Accept = Callable[..., None]
"""Function that raises a SignatureError for a manifest without a valid signature.

Its arguments are the digest, the unverified signatures, and ``name@version`` or None.
"""


@attrs.frozen
class SignatureVerdict:
    """Verdict on one signature.

    Attributes:
        error: Error of an invalid signature; None for a valid one.
        statement: Signed statement, if readable; trustworthy only without an error.
        key: Key with the identity in the signature, if it is trusted.
    """

    error: SignatureError | None
    statement: Statement | None = None
    key: PublicKey | None = None

    @property
    def valid(self) -> bool:
        """Whether the signature is valid."""
        return self.error is None

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        statement = self.statement
        return {
            "good": self.valid,
            "code": self.error and self.error.code,
            "message": self.error and str(self.error),
            "signer": statement and statement.signer,
            "signer_name": self.key and self.key.name,
            "signed_as": statement and statement.name,
            "signed": statement and dates.format_time(statement.signed),
            "expires": statement and statement.expires and dates.format_time(statement.expires),
        }


def check_signature(
    data: bytes,
    digest: str,
    trusted: Trusted,
    *,
    name: str | None = None,
    now: datetime | None = None,
    is_change: bool = False,
) -> SignatureVerdict:
    """Check a signature, and return a verdict.

    Args:
        data: Content of a signature file; may be hostile.
        digest: Digest of the manifest, or of an entry of a log.
        trusted: Trusted keys.
        name: ``name@version`` under which the manifest is used, None if it is used by digest; path of an entry.
        now: Time of the check; None for the current time.
        is_change: Whether ``digest`` is that of an entry of a log.

    Raises:
        MissingDependency: ``cryptography`` is not installed.
    """
    try:
        envelope, statement = parse(data)
    except MalformedSignature as error:
        return SignatureVerdict(error)
    key = trusted.keys.get(envelope.key)
    if statement.is_change != is_change:
        actual = "an entry of a log" if statement.is_change else "a manifest"
        return SignatureVerdict(
            OtherDigest(f"expected another kind of signature, got one of {actual}."), statement, key
        )
    error = _error(envelope, statement, digest, trusted, name, dates.now() if now is None else now)
    return SignatureVerdict(error, statement, key)


def check_signatures(
    digest: str,
    signatures: Iterable[bytes],
    trust: Trust,
    *,
    name: str | None = None,
    now: datetime | None = None,
) -> list[SignatureVerdict]:
    """Check each signature of a manifest; raise if none is valid.

    Args:
        digest: Digest of the manifest.
        signatures: Contents of signature files.
        trust: Trusted keys.
        name: See ``check_signature``.
        now: Time at which signatures and keys must be valid; None for the current time.

    Raises:
        Unsigned: There is no signature.
        SignatureError: No signature is valid; the class is that of the one that passed most checks.
        KeyFileError: The trusted keys cannot be read.
    """
    trusted = Trusted.of(trust)
    verdicts = [check_signature(signature, digest, trusted, name=name, now=now) for signature in signatures]
    if (error := refusal(digest, name, verdicts)) is not None:
        raise error
    return verdicts


def check_change(
    path: str, data: bytes, signatures: Sequence[bytes], trusted: Trusted, *, at_signing: bool = False
) -> None:
    """Raise if no trusted key signed an entry.

    Args:
        path: Path of the entry, relative to the root.
        data: Content of the entry.
        signatures: Contents of its signature files; may be hostile.
        trusted: Trusted keys.
        at_signing: Whether signatures must have been valid when they were made, and not now: what a key did before it
            expired stays done.

    Raises:
        SignatureError: There is no valid signature; the class is the reason.
    """
    digest = digest_of(data)
    verdicts = [
        check_signature(
            signature,
            digest,
            trusted,
            name=path,
            is_change=True,
            now=_signed(signature) if at_signing else None,
        )
        for signature in signatures
    ]
    if (error := refusal(digest, path, verdicts)) is not None:
        raise error


def require(trust: Trust = None, *, now: Callable[[], datetime] = dates.now) -> Accept:
    """Return a function that refuses manifests without a valid signature; trusted keys are read once, now.

    Args:
        trust: Trusted keys; None for the user's own folder.
        now: Function that returns the current time.

    Raises:
        KeyFileError: The trusted keys cannot be read.
        MissingDependency: ``cryptography`` is not installed.
    """
    trusted = Trusted.of(trust)
    check_installed()

    def accept(digest: str, signatures: Sequence[bytes], name: str | None = None) -> None:
        check_signatures(check_digest(digest), signatures, trusted, name=name, now=now())

    return accept


def _error(
    envelope: Envelope,
    statement: Statement,
    digest: str,
    trusted: Trusted,
    name: str | None,
    now: datetime,
) -> SignatureError | None:
    """Return why a well-formed signature is invalid, or None."""
    key = trusted.keys.get(envelope.key)
    if statement.digest != digest:
        return OtherDigest(f"expected a signature of {digest}, got one of {statement.digest}.")
    if key is None and envelope.key not in trusted.distrusted:
        return UnknownSigner(
            f"signed by {envelope.key}, which is none of the {_describe(trusted)}. If its owner gave you this key, "
            f"not this registry: compatkit keys trust {envelope.key} --as NAME",
            subject=envelope.key,
        )
    signer = str(key or PublicKey(envelope.key))
    if not verifies(envelope.key, envelope.signature, envelope.signed):
        return BadSignature(
            f"not signed by the key {signer}: the signature does not verify. It is forged, or the file is damaged.",
            subject=envelope.key,
        )
    if (distrust := trusted.distrusted.get(envelope.key)) is not None:
        return Distrusted(f"signed by {signer}, which was distrusted on {distrust}.", subject=envelope.key)
    if None not in (name, statement.name) and statement.name != name:
        return OtherName(
            f"signed by {signer} as {statement.name}, but used as {name}: a name or version may point to another "
            "component. Ask the signer.",
            subject=name,
        )
    return _time_error(statement, key, signer, now)


def _time_error(
    statement: Statement, key: PublicKey | None, signer: str, now: datetime
) -> SignatureError | None:
    here = (
        f"it is {dates.format_time(now)} here, with a tolerance of {int(SKEW.total_seconds()) // 60} minutes"
    )
    if statement.signed - now > SKEW:
        return NotYetValid(
            f"signed by {signer} on {dates.format_time(statement.signed)}, in the future ({here}). Correct the clocks."
        )
    if statement.expires is not None and now - statement.expires > SKEW:
        return SignatureExpired(
            f"the signature of {signer} expired on {dates.format_time(statement.expires)} ({here}). Ask for a new one."
        )
    if key is not None and key.expires is not None and now - key.expires > SKEW:
        return SignerExpired(
            f"the key {signer} expired on {dates.format_time(key.expires)} ({here}). Ask for a signature with a new "
            "key, and trust that key."
        )
    return None


def refusal(digest: str, name: str | None, verdicts: Sequence[SignatureVerdict]) -> SignatureError | None:
    """Return the error for a component without a valid signature, or None.

    Args:
        digest: Digest of the manifest.
        name: ``name@version`` under which it is used, if any.
        verdicts: Verdicts on its signatures.
    """
    if any(verdict.valid for verdict in verdicts):
        return None
    subject = f"{name} ({digest})" if name else digest
    if not verdicts:
        return Unsigned(
            f"{subject} is not signed. Its publisher can sign it: compatkit sign {name or digest} --key FILE",
            subject=digest,
        )
    errors = [verdict.error for verdict in verdicts if verdict.error is not None]
    closest = copy(max(errors, key=lambda error: _ERRORS.index(type(error))))
    reasons = str(closest)
    if len(errors) > 1:
        listed = "; ".join(f"({number}) {error}" for number, error in enumerate(errors[:8], 1))
        more = f"; and {len(errors) - 8} more" if len(errors) > 8 else ""
        reasons = f"none of {len(errors)} signatures is valid: {listed}{more}"
    closest.args, closest.subject = (f"{subject}: {reasons}",), digest
    return closest


def _describe(trusted: Trusted) -> str:
    count = len(trusted.keys)
    keys = "one trusted key" if count == 1 else f"{count} trusted keys"
    return f"{keys} of {trusted.source}" if trusted.source else keys


def _signed(signature: bytes) -> datetime | None:
    """Return the time of signing that a signature states, unless that is in the future."""
    try:
        signed = parse(signature)[1].signed
    except MalformedSignature:
        return None
    return min(signed, dates.now())

"""Which signatures count: over this digest, as this name, by a key that is trusted, at this moment.

Whatever asks for signatures (loading, measuring, importing, pulling, ``verify_signatures``, measured results) comes to
``judge``, which says of any bytes what is wrong with them. Clocks may be wrong by ``SKEW`` either way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from datetime import datetime, timedelta
from typing import Any, Protocol

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
from compatkit.registry.names import check_digest
from compatkit.registry.signing import dates
from compatkit.registry.signing.envelope import Envelope, Statement, opened
from compatkit.registry.signing.keys import PublicKey, check_installed, verifies
from compatkit.registry.signing.trust import Trust, Trusted

SKEW = timedelta(minutes=5)
"""How far the clocks of signer and reader may be apart."""
_FURTHEST: tuple[type[SignatureError], ...] = (
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
"""In the order in which they are found: of several signatures that do not count, the last one's reason tells most."""


class Accept(Protocol):
    """Refuses a manifest whose signatures do not count."""

    def __call__(self, digest: str, signatures: Sequence[bytes], name: str | None = None) -> None:
        """Return if one signature counts.

        Args:
            digest: Of the manifest.
            signatures: Contents of files, not yet verified.
            name: ``name@version`` that it is shown as; None where it is taken by its digest alone.

        Raises:
            SignatureError: None does.
        """


@attrs.frozen
class SignatureVerdict:
    """What was found out about one signature.

    Attributes:
        error: Why it does not count; None if it does.
        statement: What it says, if it can be read; to be believed only if there is no error.
        key: The trusted key that made it, or is said to have made it, if it is known.
    """

    error: SignatureError | None
    statement: Statement | None = None
    key: PublicKey | None = None

    @property
    def good(self) -> bool:
        """True if it counts."""
        return self.error is None

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        said = self.statement
        return {
            "good": self.good,
            "code": self.error and self.error.code,
            "message": self.error and str(self.error),
            "signer": said and said.signer,
            "signer_name": self.key and self.key.name,
            "signed_as": said and said.name,
            "signed": said and dates.written(said.signed),
            "expires": said and said.expires and dates.written(said.expires),
        }


def judge(
    data: bytes, digest: str, trusted: Trusted, *, name: str | None = None, now: datetime | None = None
) -> SignatureVerdict:
    """Say whether a signature counts.

    Args:
        data: Of whatever origin.
        digest: Of the manifest that it is shown for.
        trusted: Whose signatures count.
        name: ``name@version`` that the manifest is shown as; None where it is taken by its digest alone.
        now: None takes this second.

    Raises:
        MissingDependency: ``cryptography`` is not installed.
    """
    try:
        envelope, statement = opened(data)
    except MalformedSignature as error:
        return SignatureVerdict(error)
    key = trusted.keys.get(envelope.key)
    error = _wrong(envelope, statement, digest, trusted, name, dates.now() if now is None else now)
    return SignatureVerdict(error, statement, key)


def judge_all(
    digest: str,
    signatures: Iterable[bytes],
    trust: Trust,
    *,
    name: str | None = None,
    now: datetime | None = None,
) -> list[SignatureVerdict]:
    """Say of each signature whether it counts; refuse if none does.

    Args:
        digest: Of the manifest.
        signatures: Contents of signature files.
        trust: Keys that count.
        name: As for ``judge``.
        now: Time at which signatures and keys must be valid; None for the present.

    Raises:
        Unsigned: There is no signature.
        SignatureError: None counts; the class says why the one that came furthest does not.
        KeyFileError: It cannot be found out whom to trust.
    """
    trusted = Trusted.of(trust)
    found = [judge(one, digest, trusted, name=name, now=now) for one in signatures]
    if (error := refusal(digest, name, found)) is not None:
        raise error
    return found


def require(trust: Trust = None, *, now: Callable[[], datetime] = dates.now) -> Accept:
    """Return what refuses manifests without a signature that counts; whom to trust is read once, here.

    Args:
        trust: Whom to trust; None takes the user's own folder.
        now: The clock.

    Raises:
        KeyFileError: It cannot be found out whom to trust.
        MissingDependency: ``cryptography`` is not installed.
    """
    trusted = Trusted.of(trust)
    check_installed()

    def accept(digest: str, signatures: Sequence[bytes], name: str | None = None) -> None:
        judge_all(check_digest(digest), signatures, trusted, name=name, now=now())

    return accept


def _wrong(
    envelope: Envelope,
    statement: Statement,
    digest: str,
    trusted: Trusted,
    name: str | None,
    now: datetime,
) -> SignatureError | None:
    """Return why a signature that can be read does not count, None if it does."""
    key = trusted.keys.get(envelope.key)
    if statement.digest != digest:
        return OtherDigest(
            f"the signature is over {statement.digest}, not over {digest}: it was put beside another component."
        )
    if key is None and envelope.key not in trusted.distrusted:
        return UnknownSigner(
            f"signed by {envelope.key}, which is none of the {_counted(trusted)}. If its owner gave you this very key "
            f"another way than this registry: compatkit keys trust {envelope.key} --as NAME",
            subject=envelope.key,
        )
    whose = str(key or PublicKey(envelope.key))
    if not verifies(envelope.key, envelope.signature, envelope.signed):
        return BadSignature(
            f"the key {whose} did not sign this: the signature does not verify. It was forged, or the file is damaged.",
            subject=envelope.key,
        )
    if (past := trusted.distrusted.get(envelope.key)) is not None:
        return Distrusted(f"signed by {whose}, which was distrusted on {past}.", subject=envelope.key)
    if None not in (name, statement.name) and statement.name != name:
        return OtherName(
            f"signed by {whose} as {statement.name}, but shown as {name}: a name or version was pointed at another "
            f"component. Ask the signer which is meant; whoever signs it as {name} vouches for that too.",
            subject=name,
        )
    return _out_of_time(statement, key, whose, now)


def _out_of_time(
    statement: Statement, key: PublicKey | None, whose: str, now: datetime
) -> SignatureError | None:
    here = f"it is {dates.written(now)} here, and {int(SKEW.total_seconds()) // 60} minutes are allowed for"
    if statement.signed - now > SKEW:
        return NotYetValid(
            f"signed by {whose} on {dates.written(statement.signed)}, which lies ahead ({here}). Set the "
            "clocks right."
        )
    if statement.expires is not None and now - statement.expires > SKEW:
        return SignatureExpired(
            f"the signature of {whose} ended on {dates.written(statement.expires)} ({here}). Have it signed again."
        )
    if key is not None and key.expires is not None and now - key.expires > SKEW:
        return SignerExpired(
            f"the key {whose} ended on {dates.written(key.expires)} ({here}). Have it signed with a new key, and "
            "trust that."
        )
    return None


def refusal(digest: str, name: str | None, found: Sequence[SignatureVerdict]) -> SignatureError | None:
    """Return why a component is refused, None if one of its signatures counts.

    Args:
        digest: Of the manifest.
        name: ``name@version`` that it is shown as, if any.
        found: What was found out about each of its signatures.
    """
    if any(one.good for one in found):
        return None
    whose = f"{name} ({digest})" if name else digest
    if not found:
        return Unsigned(
            f"{whose} is not signed. Whoever published it can do so: compatkit sign {name or digest} --key FILE",
            subject=digest,
        )
    errors = [one.error for one in found if one.error is not None]
    worst = copy(max(errors, key=lambda error: _FURTHEST.index(type(error))))
    reasons = str(worst)
    if len(errors) > 1:
        listed = "; ".join(f"({number}) {error}" for number, error in enumerate(errors[:8], 1))
        more = f"; and {len(errors) - 8} more" if len(errors) > 8 else ""
        reasons = f"none of {len(errors)} signatures counts: {listed}{more}"
    worst.args, worst.subject = (f"{whose}: {reasons}",), digest
    return worst


def _counted(trusted: Trusted) -> str:
    count = len(trusted.keys)
    keys = "one trusted key" if count == 1 else f"{count} trusted keys"
    return f"{keys} of {trusted.source}" if trusted.source else keys

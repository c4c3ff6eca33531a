"""Each reason for which the signature of a component does not count, staged in a registry, with what is then said."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import attrs
import pytest

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
from compatkit.registry.signing.checks import SKEW
from compatkit.registry.signing.envelope import LIMIT
from compatkit.registry.signing.private_keys import SigningKey
from compatkit.registry.signing.signatures import file_name
from compatkit.registry.signing.signer import sign
from compatkit.registry.signing.trust import Distrust, Trusted
from compatkit.registry.store import Store

HEAD = "digits/mnist.head"
NOW = datetime(2026, 6, 1, 12, 0, 0, tzinfo=UTC)
SECOND = timedelta(seconds=1)
Stage = Callable[[Store, Any, SigningKey, Trusted], Trusted | None]


def unsigned(store: Store, head: Any, key: SigningKey, trusted: Trusted) -> None:
    """Nothing lies beside the component."""


def by_a_stranger(store: Store, head: Any, key: SigningKey, trusted: Trusted) -> None:
    sign(store, HEAD, SigningKey.new("alice"), now=NOW)  # calls itself as the trusted one


def forged(store: Store, head: Any, key: SigningKey, trusted: Trusted) -> None:
    good = key.sign(head.digest, f"{HEAD}@1.0.0", now=NOW)
    strangers = SigningKey.new("mallory").sign(head.digest, f"{HEAD}@1.0.0", now=NOW).signature
    store.signatures.add(head.digest, attrs.evolve(good, signature=strangers).to_bytes())


def of_another_component(store: Store, head: Any, key: SigningKey, trusted: Trusted) -> None:
    other = "sha256:" + "cd" * 32
    data = key.sign(other, f"{HEAD}@1.0.0", now=NOW).to_bytes()
    with pytest.raises(OtherDigest):
        store.signatures.add(head.digest, data)
    folder = store.signatures.folder(head.digest)
    folder.mkdir()
    (folder / file_name(data, other)).write_bytes(data)


def signed_as_another_version(store: Store, head: Any, key: SigningKey, trusted: Trusted) -> None:
    store.signatures.add(head.digest, key.sign(head.digest, f"{HEAD}@0.9.0", now=NOW).to_bytes())


def signed_as_another_name(store: Store, head: Any, key: SigningKey, trusted: Trusted) -> None:
    store.signatures.add(head.digest, key.sign(head.digest, "digits/usps.head@1.0.0", now=NOW).to_bytes())


def ended(store: Store, head: Any, key: SigningKey, trusted: Trusted) -> None:
    sign(store, HEAD, key, expires=NOW - SKEW - SECOND, now=NOW - timedelta(days=1))


def by_a_key_that_ended(store: Store, head: Any, key: SigningKey, trusted: Trusted) -> Trusted:
    sign(store, HEAD, key, now=NOW - timedelta(days=1))
    public = attrs.evolve(key.public, expires=NOW - SKEW - SECOND)
    return attrs.evolve(trusted, keys={public.id: public})


def from_the_future(store: Store, head: Any, key: SigningKey, trusted: Trusted) -> None:
    sign(store, HEAD, key, now=NOW + SKEW + 2 * SECOND)


def by_a_distrusted_key(store: Store, head: Any, key: SigningKey, trusted: Trusted) -> Trusted:
    sign(store, HEAD, key, now=NOW)
    return attrs.evolve(
        trusted, distrusted={key.public.id: Distrust("2026-05-01T00:00:00Z", "laptop stolen")}
    )


def by_a_key_that_is_only_known_as_distrusted(
    store: Store, head: Any, key: SigningKey, trusted: Trusted
) -> Trusted:
    return attrs.evolve(by_a_distrusted_key(store, head, key, trusted), keys={})


def damaged(store: Store, head: Any, key: SigningKey, trusted: Trusted) -> None:
    sign(store, HEAD, key, now=NOW)
    (path,) = store.signatures.files(head.digest)
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:-10])


def too_long(store: Store, head: Any, key: SigningKey, trusted: Trusted) -> None:
    sign(store, HEAD, key, now=NOW)
    (path,) = store.signatures.files(head.digest)
    path.chmod(0o644)
    with path.open("ab") as file:
        file.truncate(2**40)  # sparse: nobody reads so much


def a_link_to_a_good_one(store: Store, head: Any, key: SigningKey, trusted: Trusted) -> None:
    sign(store, HEAD, key, now=NOW)
    (path,) = store.signatures.files(head.digest)
    path.rename(store.root.parent / "outside")
    path.symlink_to(store.root.parent / "outside")


REASONS: list[tuple[Stage, type[SignatureError], int, str, str]] = [
    (unsigned, Unsigned, 1, "unsigned", r"is not signed.*compatkit sign digits/mnist.head@1\.0\.0"),
    (
        by_a_stranger,
        UnknownSigner,
        1,
        "unknown-signer",
        r"one trusted key of the test's folder.*keys trust ed25519:",
    ),
    (forged, BadSignature, 3, "bad-signature", r"not signed by the key alice \(ed25519:\w{16}\).*forged"),
    (
        of_another_component,
        OtherDigest,
        3,
        "signature-other-digest",
        r"expected a signature of sha256:\w+, got one of sha256:cdcd",
    ),
    (
        signed_as_another_version,
        OtherName,
        1,
        "signature-other-name",
        r"as digits/mnist.head@0\.9\.0, but used as",
    ),
    (
        signed_as_another_name,
        OtherName,
        1,
        "signature-other-name",
        r"as digits/usps.head@1\.0\.0, but used as",
    ),
    (ended, SignatureExpired, 1, "signature-expired", r"expired on 2026-06-01T11:54:59Z .*new one"),
    (
        by_a_key_that_ended,
        SignerExpired,
        1,
        "signer-expired",
        r"key alice .*expired on 2026-06-01T11:54:59Z .*new key",
    ),
    (from_the_future, NotYetValid, 1, "signature-not-yet-valid", r"in the future.*5 minutes.*clocks"),
    (
        by_a_distrusted_key,
        Distrusted,
        1,
        "key-distrusted",
        r"distrusted on 2026-05-01T00:00:00Z: laptop stolen",
    ),
    (by_a_key_that_is_only_known_as_distrusted, Distrusted, 1, "key-distrusted", "laptop stolen"),
    (damaged, MalformedSignature, 3, "signature-malformed", "JSON"),
    (too_long, MalformedSignature, 3, "signature-malformed", f"at most {LIMIT} bytes"),
    (a_link_to_a_good_one, MalformedSignature, 3, "signature-malformed", "empty"),
]

"""Envelopes and statements: the standards by hand, one spelling only, and no bit that may change."""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import ed25519_reference as reference
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compatkit.errors import (
    BadSignature,
    FormatError,
    MalformedSignature,
    OtherDigest,
    SignatureError,
    UnknownSigner,
    Unsigned,
)
from compatkit.foundation.codec import dumps
from compatkit.registry.signing import keys
from compatkit.registry.signing.checks import SKEW, check_signature, check_signatures
from compatkit.registry.signing.envelope import LIMIT, PAYLOAD_TYPE, Envelope, Statement, pae
from compatkit.registry.signing.private_keys import SigningKey
from compatkit.registry.signing.trust import Trusted

DIGEST = "sha256:" + "ab" * 32
NAME = "digits/mnist.head@1.2.0"
MOMENT = datetime(2026, 1, 31, 12, 0, 0, tzinfo=UTC)
SEED = bytes(range(32))

RFC_8032 = [
    (
        "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e065224901555fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe"
        "24655141438e7a100b",
    ),
    (
        "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "72",
        "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302a"
        "eeb00d291612bb0c00",
    ),
    (
        "c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
        "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
        "af82",
        "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac18ff9b538d16f290ae67f760984dc6594a7c15e9716ed2"
        "8dc027beceea1ec40a",
    ),
]
"""Section 7.1: secret key, public key, message, signature."""


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> SigningKey:
    """A key from a known seed, without name and end."""
    file = tmp_path_factory.mktemp("keys") / "seed.pem"
    file.write_bytes(reference.pem(SEED))
    file.chmod(0o600)
    return SigningKey.load(file)


def trusting(key: SigningKey) -> Trusted:
    return Trusted({key.public.id: key.public})


@pytest.mark.parametrize(("secret", "public", "message", "signature"), RFC_8032)
def test_the_vectors_of_rfc_8032(
    tmp_path: Path, secret: str, public: str, message: str, signature: str
) -> None:
    seed, data = bytes.fromhex(secret), bytes.fromhex(message)
    assert reference.public(seed).hex() == public and reference.sign(seed, data).hex() == signature
    file = tmp_path / "vector.pem"
    file.write_bytes(reference.pem(seed))
    file.chmod(0o600)
    key = SigningKey.load(file)
    assert key.public.id == f"ed25519:{public}" and key._private.sign(data).hex() == signature
    assert keys.verifies(f"ed25519:{public}", bytes.fromhex(signature), data)
    assert not keys.verifies(f"ed25519:{public}", bytes.fromhex(signature), data + b"\x00")


def test_what_is_signed_is_written_as_dsse_asks() -> None:
    assert pae("http://example.com/HelloWorld", b"hello world") == (
        b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"
    )
    assert pae("", b"") == b"DSSEv1 0  0 "
    assert pae("é", b"\x00\xff") == b"DSSEv1 2 \xc3\xa9 2 \x00\xff"  # lengths count bytes
    assert pae("a 1", b"b") != pae("a", b"1 b")


def test_a_signature_is_the_one_of_the_slow_reference(key: SigningKey) -> None:
    envelope = key.sign(DIGEST, NAME, expires=MOMENT + timedelta(days=1), now=MOMENT)
    assert key.public.id == f"ed25519:{reference.public(SEED).hex()}"
    assert envelope.signature == reference.sign(SEED, pae(PAYLOAD_TYPE, envelope.payload))


def test_an_envelope_is_spelled_out_by_hand(key: SigningKey) -> None:
    envelope = key.sign(DIGEST, NAME, now=MOMENT)
    statement = (
        '{"_type":"https://in-toto.io/Statement/v1","predicate":{"expires":null,"signed":"2026-01-31T12:00:00Z",'
        f'"signer":"{key.public.id}"}},"predicateType":"https://compatkit/signature/v1",'
        f'"subject":[{{"digest":{{"sha256":"{"ab" * 32}"}},"name":"{NAME}"}}]}}\n'
    ).encode()
    signature = base64.b64encode(reference.sign(SEED, pae("application/vnd.in-toto+json", statement)))
    whole = (
        b'{"payload":"' + base64.b64encode(statement) + b'","payloadType":"application/vnd.in-toto+json",'
        b'"signatures":[{"keyid":"' + key.public.id.encode() + b'","sig":"' + signature + b'"}]}\n'
    )
    assert envelope.to_bytes() == whole and Envelope.from_bytes(whole) == envelope
    assert Statement.from_bytes(statement) == Statement(DIGEST, NAME, key.public.id, MOMENT, None)


def test_without_a_name_the_subject_is_the_digest_alone(key: SigningKey) -> None:
    payload = json.loads(key.sign(DIGEST, None, now=MOMENT).payload)
    assert payload["subject"] == [{"digest": {"sha256": "ab" * 32}}]


def test_every_bit_of_an_envelope_counts(key: SigningKey) -> None:
    data, trusted = key.sign(DIGEST, NAME, now=MOMENT).to_bytes(), trusting(key)
    assert check_signature(data, DIGEST, trusted, name=NAME, now=MOMENT).valid
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        assert not check_signature(bytes(flipped), DIGEST, trusted, name=NAME, now=MOMENT).valid, bit


def test_every_bit_of_the_digest_counts(key: SigningKey) -> None:
    data, trusted = key.sign(DIGEST, NAME, now=MOMENT).to_bytes(), trusting(key)
    for bit in range(256):
        flipped = bytearray(bytes.fromhex("ab" * 32))
        flipped[bit // 8] ^= 1 << bit % 8
        verdict = check_signature(data, f"sha256:{flipped.hex()}", trusted, now=MOMENT)
        assert isinstance(verdict.error, OtherDigest)


MOMENTS = st.datetimes(datetime(1, 1, 1), datetime(9999, 12, 31)).map(
    lambda item: item.replace(microsecond=0, tzinfo=UTC)
)


@given(
    digest=st.binary(min_size=32, max_size=32),
    name=st.sampled_from([None, NAME, "a@0.0.0", "x/y/z@999999999.0.1"]),
    signed=MOMENTS,
    expires=st.none() | MOMENTS,
    now=MOMENTS,
    bit=st.integers(min_value=0),
)
def test_whatever_is_signed_is_read_back_judged_by_the_clock_and_refused_when_changed(
    key: SigningKey, digest: bytes, name: str | None, signed: Any, expires: Any, now: Any, bit: int
) -> None:
    whole = f"sha256:{digest.hex()}"
    envelope = key.sign(whole, name, expires=expires, now=signed)
    statement = Statement(whole, name, key.public.id, signed, expires)
    assert Statement.from_bytes(envelope.payload) == statement
    data = envelope.to_bytes()
    verdict = check_signature(data, whole, trusting(key), name=name, now=now)
    assert verdict.statement == statement
    in_time = signed - now <= SKEW and (expires is None or now - expires <= SKEW)
    assert verdict.valid == in_time
    changed = bytearray(data)
    changed[bit // 8 % len(data)] ^= 1 << bit % 8
    assert not check_signature(bytes(changed), whole, trusting(key), name=name, now=now).valid


PIECES = st.sampled_from(
    [
        *(
            b'{"payload":"',
            b'","payloadType":"',
            b'","signatures":[{"keyid":"',
            b'","sig":"',
            b'"}]}\n',
            b"[",
            b"{",
        ),
        *(
            b"application/vnd.in-toto+json",
            b"ed25519:",
            b"ab" * 32,
            b"AA==",
            b"null",
            b"-0",
            b"1e999",
            b"\\ud800",
        ),
    ]
)


@given(st.binary(max_size=200) | st.lists(PIECES | st.binary(max_size=4), max_size=12).map(b"".join))
def test_verification_is_total(key: SigningKey, data: bytes) -> None:
    verdict = check_signature(data, DIGEST, trusting(key), name=NAME)
    assert isinstance(verdict.error, SignatureError)
    with pytest.raises(SignatureError):
        check_signatures(DIGEST, [data], trusting(key))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just(DIGEST),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(place=st.sampled_from(["_type", "subject", "predicate", "predicateType", "more"]), value=JSON)
def test_a_statement_of_other_values_is_malformed_also_when_it_is_signed(
    key: SigningKey, place: str, value: Any
) -> None:
    good = json.loads(key.sign(DIGEST, NAME, now=MOMENT).payload)
    try:
        payload = dumps({**good, place: value})
    except FormatError:  # NaN, half a surrogate: what nobody can write canonically
        payload = json.dumps({**good, place: value}).encode()
    envelope = Envelope(payload, key.public.id, key._private.sign(pae(PAYLOAD_TYPE, payload)))
    verdict = check_signature(envelope.to_bytes(), DIGEST, trusting(key), now=MOMENT)
    assert isinstance(verdict.error, MalformedSignature)


def changed(data: bytes, **values: Any) -> bytes:
    return dumps({**json.loads(data), **values})


def test_what_is_no_envelope_says_what_one_is(key: SigningKey) -> None:
    data = key.sign(DIGEST, NAME, now=MOMENT).to_bytes()
    item = json.loads(data)["signatures"][0]
    short = base64.b64encode(bytes(63)).decode()
    unpadded = base64.b64encode(Envelope.from_bytes(data).signature).decode().rstrip("=")
    trailing = (
        item["sig"][:-3] + chr(ord(item["sig"][-3]) + 1) + "=="
    )  # its last bits are no part of the 64 bytes
    for wrong, expected in {
        b"": "empty",
        b"\x80\x02}q\x00.": "UTF-8",
        b"[]": "JSON object",
        b"{" + b" " * LIMIT + b"}": "at most",
        data.replace(b'":"', b'": "'): "canonical JSON",
        data + b"\n": "canonical JSON",
        data.rstrip(): "canonical JSON",
        data.replace(b'"payload"', b'"payload":"","payload"'): "twice",
        changed(data, more=1): "DSSE envelope",
        changed(data, signatures=[]): "DSSE envelope",
        changed(data, signatures=[item, item]): "DSSE envelope",
        changed(data, signatures={"keyid": 1}): "DSSE envelope",
        changed(data, signatures=[{**item, "cert": ""}]): "DSSE envelope",
        changed(data, payloadType="text/plain"): "payloadType",
        changed(data, payload=1): "base64",
        changed(data, payload="*"): "base64",
        changed(data, payload="é"): "base64",
        changed(data, signatures=[{**item, "keyid": "RSA"}]): "keyid",
        changed(data, signatures=[{**item, "keyid": 7}]): "keyid",
        changed(data, signatures=[{**item, "keyid": item["keyid"].upper()}]): "keyid",
        changed(data, signatures=[{**item, "sig": short}]): "64 bytes",
        changed(data, signatures=[{**item, "sig": unpadded}]): "base64",
        changed(data, signatures=[{**item, "sig": trailing}]): "canonical JSON",
    }.items():
        with pytest.raises(MalformedSignature, match=expected):
            Envelope.from_bytes(wrong)


def test_a_statement_must_name_the_key_of_its_envelope(key: SigningKey) -> None:
    envelope = key.sign(DIGEST, NAME, now=MOMENT)
    other = "ed25519:" + "12" * 32
    verdict = check_signature(
        Envelope(envelope.payload, other, envelope.signature).to_bytes(), DIGEST, trusting(key)
    )
    assert isinstance(verdict.error, MalformedSignature) and other in str(verdict.error)


@pytest.mark.parametrize(
    "name", ["digits/mnist.head", "digits/mnist.head@^1", "../x@1.0.0", "a@01.0.0", "a@1.0.0 ", "A@1.0.0", ""]
)
def test_only_a_pinned_name_can_be_signed_for(key: SigningKey, name: str) -> None:
    payload = key.sign(DIGEST, NAME, now=MOMENT).payload.replace(NAME.encode(), name.encode())
    with pytest.raises(MalformedSignature, match="NAME@VERSION"):
        Statement.from_bytes(payload)


@pytest.mark.parametrize(
    "moment",
    ["2026-02-30T00:00:00Z", "2026-01-31T12:00:00+00:00", "2026-01-31", "2026-01-31T12:00:00.5Z", "never"],
)
def test_moments_have_one_spelling(key: SigningKey, moment: str) -> None:
    payload = key.sign(DIGEST, NAME, now=MOMENT).payload.replace(b"2026-01-31T12:00:00Z", moment.encode())
    with pytest.raises(MalformedSignature, match="time such as"):
        Statement.from_bytes(payload)


def test_a_key_that_is_no_point_of_the_curve_signs_nothing() -> None:
    nowhere = "ed25519:" + (2).to_bytes(32, "little").hex()
    assert not keys.verifies(nowhere, bytes(64), b"") and not keys.verifies(
        "ed25519:" + "ff" * 32, bytes(64), b""
    )


def test_of_several_signatures_one_that_counts_is_enough_and_else_the_nearest_tells_why(
    key: SigningKey,
) -> None:
    data, stranger = key.sign(DIGEST, NAME, now=MOMENT).to_bytes(), SigningKey.new("stranger")
    other = stranger.sign(DIGEST, NAME, now=MOMENT).to_bytes()
    forged = Envelope.from_bytes(data)
    forged = Envelope(forged.payload, forged.key, bytes(64)).to_bytes()
    trusted = trusting(key)
    verdict = check_signatures(DIGEST, [b"junk", other, forged, data], trusted, name=NAME, now=MOMENT)
    assert [item.valid for item in verdict] == [False, False, False, True]
    with pytest.raises(BadSignature, match=r"none of 3 signatures is valid: \(1\).*\(2\).*\(3\)"):
        check_signatures(DIGEST, [b"junk", other, forged], trusted, name=NAME, now=MOMENT)
    with pytest.raises(UnknownSigner, match=f"keys trust {stranger.public.id}"):
        check_signatures(DIGEST, [b"junk", other], trusted, name=NAME, now=MOMENT)
    with pytest.raises(MalformedSignature):
        check_signatures(DIGEST, [b"junk"], trusted, name=NAME, now=MOMENT)
    with pytest.raises(Unsigned, match=f"compatkit sign {NAME}"):
        check_signatures(DIGEST, [], trusted, name=NAME, now=MOMENT)
    with pytest.raises(MalformedSignature, match="and 12 more"):
        check_signatures(DIGEST, [b"junk"] * 20, trusted, name=NAME, now=MOMENT)


@pytest.mark.parametrize(
    ("path", "is_entry"),
    {
        "refs/a/b/@log/prod/3": True,
        "refs/a/@tombstones/1.0.0": True,
        "refs/a/@tombstones/1.0.0~2": True,
        "refs/../a/@log/prod/3": False,
        "refs/a/@log/../3": False,
        "refs/a/@log/prod/0": False,
        "refs/a/@tombstones/1.0.0~1": False,
        "refs/a/@versions/1.0.0": False,
        "policies/a@1": True,
        "policies/../a@1": False,
        "settings/1": True,
        "settings/0": False,
        "refs/a/@dropped/1.0.0/1": True,
        "refs/a/@dropped/../1": False,
        "a@1.0.0": False,
        "/refs/a/@log/prod/3": False,
    }.items(),
)
def test_only_paths_of_entries_are_names_of_changes(path: str, is_entry: bool):
    statement = Statement(
        "sha256:" + "ab" * 32, path, "ed25519:" + "cd" * 32, datetime(2026, 6, 1, tzinfo=UTC), None, True
    )
    if is_entry:
        assert Statement.from_bytes(statement.to_bytes()) == statement
        return
    with pytest.raises(MalformedSignature):
        Statement.from_bytes(statement.to_bytes())

"""Texts without credentials: many forms of them, and texts that only look like one."""

from __future__ import annotations

import time

import pytest

from compatkit.errors import CompatkitError
from compatkit.foundation.addresses import shown
from compatkit.foundation.credentials import has_secret, redacted, remember, safe_cause

PASSWORD = "hunter2xyz"
AWS = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
HUB = "hf_AbCdEfGhIjKlMnOpQrStUv"
ID = "AKIAIOSFODNN7EXAMPLE"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.SflKxwRJSMeKKF2QT4"
SIGNATURE = "fe5f80f77d5fa3beca038a248ff027d0445342fe2855ddc963176630326f1024"

ADDRESSES = {
    # address: secrets in it
    f"s3://KEY:{PASSWORD}@bucket/x": (PASSWORD, "KEY"),
    f"s3://{ID}:{AWS}@bucket/x": (ID, "wJalr", "K7MDENG", "bPxRfi"),
    f"s3://KEY:12/{PASSWORD}@bucket": (PASSWORD,),
    f"S3://KEY:{PASSWORD}@bucket": (PASSWORD,),
    f"s3:/KEY:{PASSWORD}@bucket": (PASSWORD,),
    f"s3:KEY:{PASSWORD}@bucket": (PASSWORD,),
    f"http//:me:{PASSWORD}@host": (PASSWORD,),
    f"s3://{PASSWORD}@bucket": (PASSWORD,),
    f"hf://{HUB}@datasets/USER/NAME": (HUB,),
    f"hf://me:{HUB}@datasets/USER/NAME@main": (HUB,),
    f"hf://{PASSWORD}@datasets/USER/NAME@main": (PASSWORD,),
    f"hf://datasets/{HUB}/NAME": (HUB,),
    f"sftp://me:{PASSWORD}@host:22/x": (PASSWORD, "me:"),
    f"sftp://me:{PASSWORD}@[::1]:22/x": (PASSWORD,),
    f"https://{PASSWORD}@[fe80::1]/x": (PASSWORD,),
    f"sftp://:{PASSWORD}@host/x": (PASSWORD,),
    f"sftp://me:a@{PASSWORD}@host/x": (PASSWORD,),
    f"sftp://me:a/{PASSWORD}@host/x": (PASSWORD,),
    f"sftp://me:a@b/{PASSWORD}@host/x": (PASSWORD,),
    f"sftp://me:a:{PASSWORD}@host/x": (PASSWORD,),
    f"sftp://me:a?{PASSWORD}@host/x": (PASSWORD,),
    f"sftp://me:a#{PASSWORD}@host/x": (PASSWORD,),
    f"sftp://me:a {PASSWORD}@host/x": (PASSWORD,),
    f"sftp://me:'{PASSWORD}\"@host/x": (PASSWORD,),
    f"sftp://me:%40{PASSWORD}%2F@host/x": (PASSWORD,),
    f"sftp://me%3A{PASSWORD}@host/x": (PASSWORD,),
    f"https://me:{PASSWORD}": (PASSWORD,),
    f"https://me:a/{PASSWORD}": (PASSWORD,),
    f"git+https://oauth2:{PASSWORD}@host/x": (PASSWORD,),
    f"webdavs://me:{PASSWORD}@host/x": (PASSWORD,),
    f"lab-9://me:{PASSWORD}@host/x": (PASSWORD,),
    f"s3%3A%2F%2FKEY%3A{PASSWORD}%40bucket": (PASSWORD,),
    f"https://h/x?X-Amz-Credential={ID}%2F2026&X-Amz-Signature={SIGNATURE}": (ID, SIGNATURE),
    f"https://h/x?X-Amz-Security-Token={JWT}": (JWT,),
    f"https://h/x?x-amz-signature={SIGNATURE}": (SIGNATURE,),
    f"https://h/x?X-Goog-Signature={SIGNATURE}&a=1": (SIGNATURE,),
    f"https://h/x?AWSAccessKeyId={ID}&Signature={PASSWORD}%3D": (ID, PASSWORD),
    f"https://h.blob.core.windows.net/c?sv=2022&sp=r&sig={PASSWORD}%3D": (PASSWORD,),
    f"https://h/x?a=1;sig={PASSWORD}": (PASSWORD,),
    f"https://h/x?token={PASSWORD}": (PASSWORD,),
    f"https://h/x?api_key={PASSWORD}": (PASSWORD,),
    f"https://h/x?key={PASSWORD}": (PASSWORD,),
    f"https://h/x?code={PASSWORD}": (PASSWORD,),
    f"https://h/x?subscription-key={PASSWORD}": (PASSWORD,),
    f"https://h/x#access_token={PASSWORD}": (PASSWORD,),
    f"https://h/x?a=1#{'aB3' * 9}": ("aB3aB3",),
}
TEXTS = {
    f"Unable to open s3://KEY:{PASSWORD}@bucket/x: denied": (PASSWORD,),
    f"'https://a/x','https://me:{PASSWORD}@b/x'": (PASSWORD,),
    f"HTTPSConnectionPool(host='h', port=443): url: /x?sig={PASSWORD} (Caused by ...)": (PASSWORD,),
    f"Client(secret={PASSWORD}, endpoint='x')": (PASSWORD,),
    f"Client(secret='{PASSWORD} {PASSWORD}')": (PASSWORD,),
    f"Client(key={ID}, token={PASSWORD})": (ID, PASSWORD),
    f"Client(key={PASSWORD})": (PASSWORD,),
    f"aws_secret_access_key = {AWS}?password={PASSWORD}": (PASSWORD,),
    f'{{"token": "{PASSWORD}", "a": 1}}': (PASSWORD,),
    f"{{'aws_session_token': b'{PASSWORD}'}}": (PASSWORD,),
    f"AccountName=a;AccountKey={PASSWORD}==;EndpointSuffix=x": (PASSWORD,),
    f"SharedAccessSignature=sv=2022&sig={PASSWORD}": (PASSWORD,),
    f"Authorization: Bearer {PASSWORD}": (PASSWORD,),
    f"{{'Authorization': 'Bearer {PASSWORD}'}}": (PASSWORD,),
    f"authorization=Basic {PASSWORD}==": (PASSWORD,),
    f"sent Bearer {PASSWORD} to the server": (PASSWORD,),
    f"X-Auth-Token: {PASSWORD}": (PASSWORD,),
    f"Set-Cookie: session={PASSWORD}; Path=/": (PASSWORD,),
    f"Password: {PASSWORD}": (PASSWORD,),
    f"the token {HUB} is not valid": (HUB,),
    f"{ID} {AWS}": (ID, AWS),
    f"ghp_{'a1' * 12} and {JWT}": ("a1a1", "SflKx"),
    f"-----BEGIN OPENSSH PRIVATE KEY-----\n{PASSWORD}\n-----END OPENSSH PRIVATE KEY-----": (PASSWORD,),
}
UNCHANGED = [
    "me@example.org, you@example.org",
    "digits/head@1.0.0 and digits/head@^1",
    f"oci://host/name@sha256:{'ab' * 32}",
    f"oci://host:5000/name@sha256:{'ab' * 32}",
    "hf://datasets/USER/NAME@BRANCH",
    "hf://datasets/USER/NAME@BRANCH/prefix",
    "hf:USER/NAME#COLUMN",
    "hf:USER/NAME:CONFIG#COLUMN",
    "see https://host: it is at https://host:8080, or http://host:port/x",
    "git@github.com:team/parts.git",
    "ssh://git@github.com/team/parts.git",
    "sftp://[::1]:22/parts@home",
    "https://[fe80::1%25eth0]:8080/@scope/x",
    "http://127.0.0.1:9000/refs/digits/@versions/1.0.0",
    "s3://bucket/refs/digits/@versions/1.0.0",
    "write s3://bucket/folder, or mail me@example.org",
    "https://host/x?versionId=3&page=2#anchor",
    "oci-layout:///data/folder:tag",
    "file:///data/me@home",
    "/data/me@home:x",
    "Expected an option key=value, such as endpoint_url=http://127.0.0.1:9000.",
    "sorted(words, key=len)",
    "The key: a file. The signature: missing. No password: use keys. The token must be text.",
    'headers={"Authorization": "Bearer ..."}',
    "basic authentication, bearer tokens, secret keys",
    "Run: pip install 'compatkit[remotes]'",
    f"sha256:{'0f' * 32}",
    "s3://***@bucket?sig=***",
]


@pytest.mark.parametrize(("address", "secrets"), ADDRESSES.items())
def test_an_address_is_shown_without_credentials(address: str, secrets: tuple[str, ...]):
    assert has_secret(address)
    text = shown(address)
    assert not any(secret in text for secret in secrets), text
    assert redacted(text) == text and not has_secret(text)


@pytest.mark.parametrize(
    ("text", "secrets"), [*TEXTS.items(), *((a, s) for a, s in ADDRESSES.items() if " " not in a)]
)
@pytest.mark.parametrize("around", ["{}", "cannot open '{}'.", 'got "{}", 2 more', "a\n{}\nb"])
def test_a_message_has_no_credentials(text: str, secrets: tuple[str, ...], around: str):
    error = CompatkitError(around.format(text), subject=text)
    error.add_note(f"See {text}.")
    for output in (str(error), repr(error), str(error.subject)):
        assert not any(secret in output for secret in secrets), output


@pytest.mark.parametrize("text", UNCHANGED)
def test_a_text_without_credentials_stays_as_it_is(text: str):
    assert redacted(text) == text
    assert not has_secret(text)
    assert str(CompatkitError(text, subject=text)) == text


@pytest.mark.parametrize("scheme", ["sftp", "webdavs"])
def test_a_user_who_logs_in_by_name_is_no_secret_and_is_not_shown(scheme: str):
    assert not has_secret(f"{scheme}://me@host/parts@1.0.0")
    assert has_secret(f"{scheme}://me:{PASSWORD}@host/x") and has_secret("hf://me@datasets/x/y")
    assert shown(f"{scheme}://me@host/parts@1.0.0") == f"{scheme}://host/parts@1.0.0"


def test_host_bucket_branch_and_parameters_stay_readable():
    assert shown(f"s3://KEY:{PASSWORD}@bucket/x/") == "s3://bucket/x"
    assert shown(f"hf://{PASSWORD}@datasets/U/N@main") == "hf://datasets/U/N@main"
    assert shown(f"https://h/x?a=1&sig={PASSWORD}&b=2") == "https://h/x?a=1&sig=***&b=2"


@pytest.fixture
def forgotten(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("compatkit.foundation.credentials._known", {})


@pytest.mark.parametrize(
    "options",
    [
        {"secret": "plain words"},
        {"key": "plain words"},
        {"client_kwargs": {"aws_secret_access_key": "plain words"}},
        {"headers": {"X-Anything": "plain words"}},
        {"headers": {"Authorization": "Bearer plain words"}},
        {"auth": ["me", "plain words"]},
        {"password": b"plain words"},
    ],
)
@pytest.mark.parametrize("form", ["plain words", "plain%20words", "plain+words"])
def test_values_of_options_are_removed_literally(forgotten: None, options: dict[str, object], form: str):
    remember("s3://bucket", {**options, "endpoint_url": "http://host"})
    text = f"the server http://host refused {form}: it is wrong"
    if form.startswith("plain words") or "headers" not in options:
        assert redacted(text) == "the server http://host refused ***: it is wrong"


def test_passwords_of_addresses_are_removed_literally(forgotten: None):
    remember("sftp://me:p%40ss word@host/x")
    assert redacted("no p@ss word, no p%40ss word, but compass words") == "no ***, no ***, but compass words"
    assert redacted("p@ss word", known=False) == "p@ss word"
    assert redacted("me and host") == "me and host"


def test_short_and_other_values_are_not_taken_for_secrets(forgotten: None):
    remember(
        "s3://me:abc@bucket", {"anon": True, "token": "", "region": "europe", "key_filename": "file.pem"}
    )
    remember("memory://x", {"headers": {"Accept": "text/html"}})
    assert redacted("abc True europe file.pem text/html") == "abc True europe file.pem text/html"


def test_a_cause_with_credentials_is_left_out():
    clean, inner = OSError("no"), OSError(f"s3://k:{PASSWORD}@b")
    outer = ValueError("no")
    outer.__cause__ = inner
    inner.__context__ = outer  # errors that cause each other end
    assert safe_cause(clean) is clean
    assert safe_cause(inner) is None and safe_cause(outer) is None


@pytest.mark.parametrize(
    "text",
    [
        "x" * 100_000,
        "token=" * 20_000,
        "key=" * 20_000,
        "-eyJ" * 20_000,
        "%3A%2F%2F" * 10_000,
        "s3://" * 20_000,
        "a:" * 50_000 + "@",
        "s3://a#" * 10_000,
        "https://" + "a/" * 50_000 + "@",
        "token='\"" * 10_000,
        "AKIA" * 20_000,
        "Authorization: " * 5_000,
        "-----BEGIN PRIVATE KEY-----" * 4_000,
    ],
    ids=lambda text: text[:12],
)
def test_long_texts_take_no_long_time(text: str):
    start = time.process_time()
    redacted(text)
    assert time.process_time() - start < 2


def test_each_name_of_a_secret_is_a_hint_by_itself() -> None:
    """Texts without a hint are not searched, so that each name that stands before a secret must be one."""
    names = "secret password passphrase token signature credential api_key account_key private_key assertion"
    for name in (
        *names.split(),
        "authorization",
        "pwd",
        "pass",
        "sig",
        "auth",
        "jwt",
        "sas",
        "GoogleAccessId",
        "AWSAccessKeyId",
    ):
        text = f'see https://host.example/path {{"{name}": "hidden12345"}}'
        assert "hidden12345" not in redacted(text), name

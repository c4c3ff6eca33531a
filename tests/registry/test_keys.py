"""Key files: who may read them, what opens them, and what is no key at all; whom a folder of keys trusts."""

from __future__ import annotations

import base64
import os
import re
import shutil
import stat
import subprocess
import sys
import warnings
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import ed25519_reference as reference
import pytest
from cryptography.hazmat.primitives import serialization as forms
from cryptography.hazmat.primitives.asymmetric import dsa, ec, ed448, rsa, x25519
from hypothesis import given
from hypothesis import strategies as st

from compatkit.errors import (
    CompatkitError,
    EnvironmentFailure,
    KeyExpired,
    KeyFileError,
    KeyTypeError,
    UnknownName,
    UsageError,
    WrongPassphrase,
)
from compatkit.registry.signing import dates
from compatkit.registry.signing.keys import LIMIT, PublicKey
from compatkit.registry.signing.private_keys import KeyWarning, SigningKey
from compatkit.registry.signing.trust import Folder, Trusted, TrustWarning
from compatkit.registry.store import Store

ENDS = datetime(2030, 1, 31, tzinfo=UTC)
PEM, PKCS8, PLAIN = forms.Encoding.PEM, forms.PrivateFormat.PKCS8, forms.NoEncryption()
OPENSSH, TRADITIONAL = forms.PrivateFormat.OpenSSH, forms.PrivateFormat.TraditionalOpenSSL
SUBJECT = forms.PublicFormat.SubjectPublicKeyInfo


def saved(folder: Path, name: str = "alice", **settings: Any) -> tuple[SigningKey, Path]:
    """Make a key and its files; return it with the private one."""
    passphrase = settings.pop("passphrase", None)
    key = SigningKey.new(name, **settings)
    key.save(folder / f"{name}.pem", passphrase=passphrase)
    return key, folder / f"{name}.pem"


def test_a_pair_of_files_holds_the_key_with_its_name_and_end(tmp_path: Path) -> None:
    key, file = saved(tmp_path, expires=ENDS)
    assert SigningKey.load(file).public == key.public == PublicKey(key.public.id, "alice", ENDS)
    assert PublicKey.from_bytes(file.with_suffix(".pub").read_bytes(), what="file") == key.public
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.with_suffix(".pub").stat().st_mode) & 0o077 == 0o044
    assert "keep it to yourself" in file.read_text() and "PRIVATE" not in file.with_suffix(".pub").read_text()


def test_a_public_key_is_spelled_out_by_hand() -> None:
    public = bytes.fromhex(
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
    )  # RFC 8032, 7.1
    file = PublicKey(f"ed25519:{public.hex()}", "alice", ENDS).to_bytes()
    assert file.decode() == (
        "# compatkit public key\nname: alice\nexpires: 2030-01-31T00:00:00Z\n-----BEGIN PUBLIC KEY-----\n"
        "MCowBQYDK2VwAyEA11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo=\n-----END PUBLIC KEY-----\n"
    )
    library: Any = forms.load_pem_public_key(file)
    assert library.public_bytes_raw() == public


@given(secret=st.binary(min_size=32, max_size=32), name=st.from_regex(r"[A-Za-z0-9]{1,9}", fullmatch=True))
def test_public_keys_come_back(secret: bytes, name: str) -> None:
    key = PublicKey(f"ed25519:{secret.hex()}", name, ENDS)
    assert PublicKey.from_bytes(key.to_bytes(), what="file") == key


@given(
    st.binary(max_size=200) | st.text(alphabet="-BEGIN PUBLCKYD=\nname: #Ae5", max_size=120).map(str.encode)
)
def test_what_is_no_key_file_is_one_clear_error(data: bytes) -> None:
    with pytest.raises(KeyFileError):
        PublicKey.from_bytes(data, what="file")


@pytest.mark.parametrize("algorithm", ["6f", "70"], ids=["X448", "Ed25519"])
def test_a_private_key_of_a_wrong_length_is_one_clear_error(tmp_path: Path, algorithm: str) -> None:
    """RFC 8410: the right structure, and 31 bytes, which are no key of either kind."""
    der = bytes.fromhex(f"302d020100300506032b65{algorithm}0421041f") + bytes(31)
    file = tmp_path / "short.pem"
    block = base64.b64encode(der).decode()
    file.write_text(f"-----BEGIN PRIVATE KEY-----\n{block}\n-----END PRIVATE KEY-----\n")
    file.chmod(0o600)
    with pytest.raises(KeyFileError) as caught:
        SigningKey.load(file)
    assert caught.value.code == "key-file" and str(file) in str(caught.value.subject)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl")
def test_openssl_reads_the_files_and_verifies_a_signature(tmp_path: Path) -> None:
    key, file = saved(tmp_path)
    envelope = key.sign("sha256:" + "ab" * 32, None)
    (tmp_path / "signed").write_bytes(envelope.signed)
    (tmp_path / "sig").write_bytes(envelope.signature)
    for command in (
        f"pkeyutl -verify -pubin -inkey {file.with_suffix('.pub')} -rawin -in signed -sigfile sig",
        f"pkey -in {file} -noout",
    ):
        done = subprocess.run(["openssl", *command.split()], cwd=tmp_path, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
    made = subprocess.run(
        ["openssl", "genpkey", "-algorithm", "ed25519"], capture_output=True, check=True
    ).stdout
    (tmp_path / "theirs.pem").write_bytes(made)
    (tmp_path / "theirs.pem").chmod(0o600)
    assert SigningKey.load(tmp_path / "theirs.pem").public.name == ""


def test_every_wrong_passphrase_is_called_one(tmp_path: Path) -> None:
    """One in 256 decrypts to something whose padding looks right, and fails later, as what it is parsed for."""
    _, file = saved(tmp_path, passphrase="correct horse")
    for number in range(600):
        with pytest.raises(WrongPassphrase):
            SigningKey.load(file, passphrase=f"wrong {number}")


def test_a_passphrase_opens_what_it_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key, file = saved(tmp_path, passphrase="correct horse")
    assert b"ENCRYPTED" in file.read_bytes()
    assert SigningKey.load(file, passphrase="correct horse").public == key.public
    assert SigningKey.load(file, passphrase=lambda: "correct horse").public == key.public
    for wrong in ("battery staple", lambda: "battery staple"):
        with pytest.raises(WrongPassphrase, match="passphrase is wrong"):
            SigningKey.load(file, passphrase=wrong)
    with pytest.raises(WrongPassphrase, match="COMPATKIT_KEY_PASSPHRASE"):
        SigningKey.load(file)
    monkeypatch.setenv("COMPATKIT_KEY_PASSPHRASE", "correct horse")
    assert SigningKey.load(file).public == key.public
    assert SigningKey.load(saved(tmp_path, "open")[1]).public.name == "open"  # needs none, and asks for none
    with pytest.raises(WrongPassphrase, match="got an empty one"):
        saved(tmp_path, "empty", passphrase="")
    assert not (tmp_path / "empty.pem").exists()


@pytest.mark.skipif(os.name == "nt", reason="rights of POSIX")
@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660])
def test_a_key_that_others_may_read_is_warned_of(tmp_path: Path, mode: int) -> None:
    _, file = saved(tmp_path)
    file.chmod(mode)
    with pytest.warns(KeyWarning, match=f"mode {mode:o}.*chmod 600"):
        SigningKey.load(file)
    file.chmod(0o400)
    with warnings.catch_warnings(action="error"):
        SigningKey.load(file)


@pytest.mark.skipif(os.name == "nt", reason="rights of POSIX")
def test_the_rights_do_not_depend_on_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        _, file = saved(tmp_path / "new")
    finally:
        os.umask(before)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def test_no_private_key_is_put_into_a_registry(tmp_path: Path) -> None:
    root = Store.init(tmp_path / "parts").root
    for place in (root / "alice.pem", root / "keys" / "alice.pem", root / "new" / "deep" / "alice.pem"):
        with pytest.raises(KeyFileError, match="is in the registry"):
            SigningKey.new("alice").save(place)
        assert not place.exists() and not place.with_suffix(".pub").exists()
    (tmp_path / "link").symlink_to(root / "keys")
    with pytest.raises(KeyFileError, match="is in the registry"):
        SigningKey.new("alice").save(tmp_path / "link" / "alice.pem")
    _, file = saved(tmp_path)
    shutil.copy(file, root / "keys" / "alice.pem")
    with pytest.warns(KeyWarning, match="is in the registry"):
        SigningKey.load(root / "keys" / "alice.pem")


def test_a_key_is_never_overwritten(tmp_path: Path) -> None:
    key, file = saved(tmp_path)
    with pytest.raises(KeyFileError, match="not overwritten"):
        saved(tmp_path)
    file.unlink()
    with pytest.raises(KeyFileError, match=r"alice\.pub exists"):
        saved(tmp_path)
    assert not file.exists()
    assert PublicKey.from_bytes(file.with_suffix(".pub").read_bytes(), what="file") == key.public
    with pytest.raises(KeyFileError, match="suffix of public keys"):
        SigningKey.new("bob").save(tmp_path / "bob.pub")


def test_where_no_file_can_be_made_neither_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentFailure, match="could not create"):
        SigningKey.new("alice").save(tmp_path / "file" / "alice.pem")
    opened = os.open

    def failing(path: Any, *args: Any, **settings: Any) -> int:
        if str(path).endswith(".pub"):
            raise OSError(28, "No space left on device")
        return opened(path, *args, **settings)

    monkeypatch.setattr(os, "open", failing)
    with pytest.raises(EnvironmentFailure, match="disk is full"):
        SigningKey.new("alice").save(tmp_path / "alice.pem")
    assert os.listdir(tmp_path) == ["file"]


def others() -> dict[str, Any]:
    return {
        "RSA": rsa.generate_private_key(65537, 2048),
        "EC": ec.generate_private_key(ec.SECP256R1()),
        "Ed448": ed448.Ed448PrivateKey.generate(),
        "X25519": x25519.X25519PrivateKey.generate(),
        "DSA": dsa.generate_private_key(2048),
    }


def test_keys_of_other_kinds_are_named(tmp_path: Path) -> None:
    for kind, key in others().items():
        with pytest.raises(KeyTypeError, match=f"expected an Ed25519 private key, got {kind}"):
            load_bytes(tmp_path, key.private_bytes(PEM, PKCS8, PLAIN))
        with pytest.raises(KeyTypeError, match=f"expected an Ed25519 public key, got {kind}"):
            PublicKey.from_bytes(key.public_key().public_bytes(PEM, SUBJECT), what="file")


def load_bytes(folder: Path, data: bytes) -> SigningKey:
    file = folder / "key.pem"
    file.write_bytes(data)
    file.chmod(0o600)
    return SigningKey.load(file)


def test_what_is_no_private_key_says_what_it_is(tmp_path: Path) -> None:
    key, file = saved(tmp_path)
    good = file.read_bytes()
    block = good[good.index(b"-----BEGIN") :]
    public = file.with_suffix(".pub").read_bytes()
    ssh = key._private.private_bytes(PEM, OPENSSH, PLAIN)
    old = others()["RSA"].private_bytes(PEM, TRADITIONAL, PLAIN)
    for wrong, expected in {
        b"": "expected a key file",
        b"secret": "expected a key file",
        good + block: "expected a key file",
        block[:-30]: "expected a key file",
        good + b"#" * LIMIT: "expected a key file",
        b"name: a b\n" + block: "Expected a key name",
        b"name: a\nname: b\n" + block: "above the key",
        b"expire: 2030-01-31T00:00:00Z\n" + block: "above the key",
        b"expires: soon\n" + block: "a time such as",
        block.replace(b"MC4", b"MC5"): "not a readable private key",
        block.replace(b"MC4", b"M=4"): "not a readable private key",
    }.items():
        with pytest.raises(KeyFileError, match=expected):
            load_bytes(tmp_path, wrong)
    for wrong, expected in {
        public: "got a PUBLIC KEY",
        ssh: "got a OPENSSH PRIVATE KEY",
        old: "got a RSA PRIVATE KEY",
    }.items():
        with pytest.raises(KeyTypeError, match=expected):
            load_bytes(tmp_path, wrong)
    with pytest.raises(KeyTypeError, match="Never share it"):
        PublicKey.from_bytes(good, what="file")
    with pytest.raises(KeyFileError, match="not a readable public key"):
        PublicKey.from_bytes(public.replace(b"MCow", b"M=ow"), what="file")
    with pytest.raises(KeyFileError, match="there is no file"):
        SigningKey.load(tmp_path / "none.pem")
    with pytest.raises(KeyFileError, match="there is no file"):
        SigningKey.load(tmp_path)


@pytest.mark.parametrize("name", ["", "a b", "-a", "a/b", "ü", "a" * 65, "a\n", "../a"])
def test_names_of_keys_are_plain(name: str) -> None:
    with pytest.raises(KeyFileError, match="Expected a key name"):
        SigningKey.new(name)


def test_nothing_is_signed_with_a_key_that_ended_and_no_signature_outlives_its_key() -> None:
    key, digest = SigningKey.new("alice", expires=ENDS), "sha256:" + "ab" * 32
    with pytest.raises(KeyExpired, match="expired on 2030-01-31T00:00:00Z"):
        key.sign(digest, None, now=ENDS)
    before = ENDS - timedelta(days=1)
    for requests, pulled in {
        None: ENDS,
        ENDS + timedelta(days=9): ENDS,
        before + timedelta(hours=1): before + timedelta(hours=1),
    }.items():
        assert (
            f'"expires":"{dates.format_time(pulled)}"'
            in key.sign(digest, None, expires=requests, now=before).payload.decode()
        )


def test_ends_are_written_as_a_span_a_day_or_a_moment() -> None:
    start = datetime(2026, 1, 31, 12, tzinfo=UTC)
    for text, expected in {
        "12h": "2026-02-01T00:00:00Z",
        "365d": "2027-01-31T12:00:00Z",
        "2w": "2026-02-14T12:00:00Z",
        "1y": "2027-01-31T12:00:00Z",
        "2026-02-28": "2026-02-28T00:00:00Z",
        "2026-01-31T12:00:01Z": "2026-01-31T12:00:01Z",
    }.items():
        assert dates.format_time(dates.parse_expiry(text, start=start)) == expected
    for text in ("", "0d", "-1d", "1.5d", "1m", "2026-02-30", "999999y", "2026-01-31T12:00:00", "٣d"):
        with pytest.raises(UsageError, match="Expected a duration"):
            dates.parse_expiry(text, start=start)
    for text in ("2026-01-31", "2026-01-31T12:00:00Z"):
        with pytest.raises(UsageError, match="Expected an end after"):
            dates.parse_expiry(text, start=start)


def test_a_folder_trusts_what_it_holds(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "trusted")
    assert folder.read() == Trusted({}, {}, str(folder.path))
    alice, bob = SigningKey.new("alice", expires=ENDS).public, SigningKey.new("bob").public
    assert folder.trust(alice) == alice
    assert folder.trust(bob, name="robert", expires=ENDS) == PublicKey(bob.id, "robert", ENDS)
    result = folder.read()
    assert (
        result.keys == {alice.id: alice, bob.id: PublicKey(bob.id, "robert", ENDS)} and not result.distrusted
    )
    assert (
        folder.trust(alice, name="alicia").name == "alicia" and folder.read().keys[alice.id].name == "alicia"
    )
    (folder.path / "README").write_text("other files mean nothing")
    (folder.path / ".hidden.pub").write_text("nor do these")
    (folder.path / "team.pub").write_bytes(SigningKey.new("team").public.to_bytes())
    assert sorted(key.name for key in folder.read().keys.values()) == ["alicia", "robert", "team"]


def test_distrust_lasts_whatever_is_put_beside_it(tmp_path: Path) -> None:
    folder, alice = Folder(tmp_path / "trusted"), SigningKey.new("alice").public
    folder.trust(alice)
    assert folder.distrust("alice", "laptop stolen") == alice
    result = folder.read()
    assert result.keys == {alice.id: alice} and result.distrusted[alice.id].reason == "laptop stolen"
    with pytest.raises(KeyFileError, match=r"was distrusted on .*laptop stolen.*--again"):
        folder.trust(alice)
    folder.distrust(alice.id, "another reason")
    assert folder.read().distrusted[alice.id].reason == "laptop stolen"
    folder.trust(alice, again=True)
    assert not folder.read().distrusted
    stranger = SigningKey.new("stranger").public
    assert folder.distrust(stranger.id) == PublicKey(stranger.id)  # also one that was never trusted
    assert str(folder.read().distrusted[stranger.id]).endswith("Z")


def test_a_key_is_found_by_name_or_digits(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    first, second = SigningKey.new("alice").public, SigningKey.new("alice").public
    folder.trust(first)
    digits = first.id.partition(":")[2]
    assert (
        folder.find("alice")
        == folder.find(digits[:8])
        == folder.find(first.id[:20])
        == folder.find(first.id)
        == first
    )
    folder.trust(second)
    with pytest.raises(UnknownName, match=r"matches 2 keys.*digits"):
        folder.find("alice")
    for unknown in ("bob", digits[:7], "ed25519:", ""):
        with pytest.raises(UnknownName, match="matches 0 keys"):
            folder.find(unknown)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.pub", b""),
        ("a.pub", b"\xff" * 9),
        ("a.pub", b"#" * (LIMIT + 1)),
        ("ab" * 32 + ".distrusted", b""),
        ("ab" * 32 + ".distrusted", b"[]"),
        ("ab" * 32 + ".distrusted", b'{"reason":1,"time":""}'),
        ("ab" * 32 + ".distrusted", b'{"reason":"","time":""}' + b" " * LIMIT),
    ],
)
def test_a_damaged_file_among_the_trusted_is_an_error_and_nothing_is_guessed(
    tmp_path: Path, name: str, data: bytes
) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(KeyFileError, match=re.escape(name)):
        Folder(tmp_path).read()


def test_whom_to_trust_is_said_in_many_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alice, file = saved(tmp_path / "mine")
    public = file.with_suffix(".pub")
    team = Folder(tmp_path / "team")
    bob = team.trust(SigningKey.new("bob").public)
    assert set(Trusted.of(alice.public.id).keys) == set(Trusted.of(public).keys) == {alice.public.id}
    assert set(Trusted.of(str(team.path)).keys) == {bob.id}
    assert set(Trusted.of([public, team.path]).keys) == {alice.public.id, bob.id}
    assert Trusted.of(Trusted({})) == Trusted({}) and Trusted.of() == Trusted.of(True)
    assert not Trusted.of().keys and str(tmp_path / "config") in Trusted.of().source
    Folder.of_user().trust(alice.public)
    assert set(Trusted.of(True).keys) == {alice.public.id}
    monkeypatch.setenv("COMPATKIT_TRUST", str(team.path))
    assert set(Trusted.of().keys) == {bob.id}
    team.distrust("bob")
    assert bob.id in Trusted.of([public, team.path]).distrusted
    sooner = Folder(tmp_path / "sooner")
    sooner.trust(alice.public, expires=ENDS)
    for both in ([public, sooner.path], [sooner.path, public]):  # of two ends the first counts
        assert Trusted.of(both).keys[alice.public.id].expires == ENDS
    (sooner.path / "zoe.pub").write_bytes(alice.public.to_bytes())
    assert sooner.read().keys[alice.public.id].expires == ENDS
    for wrong, expected in {
        "": "Expected a folder, file or key",
        tmp_path / "none": "no folder or file",
        "ed25519:12": "Expected 'ed25519:'",
        False: "Expected a folder, file or key",
    }.items():
        with pytest.raises(KeyFileError, match=expected):
            Trusted.of(wrong)


@pytest.mark.skipif(os.name == "nt", reason="rights of POSIX")
def test_a_folder_that_everybody_may_write_to_is_warned_of(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "open")
    folder.trust(SigningKey.new("alice").public)
    folder.path.chmod(0o777)
    with pytest.warns(TrustWarning, match="chmod o-w"):
        Trusted.of(folder.path)


def test_too_many_files_are_no_folder_of_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compatkit.registry.signing.trust.FILE_LIMIT", 2)
    for number in range(3):
        (tmp_path / f"{number}.pub").write_text("")
    with pytest.raises(KeyFileError, match="at most 2"):
        Folder(tmp_path).read()


def test_public_keys_and_trust_need_no_library(tmp_path: Path) -> None:
    script = f"""
import sys
sys.modules["cryptography"] = None
from compatkit.registry.signing.keys import PublicKey
from compatkit.registry.signing.trust import Folder, Trusted
from compatkit.registry.signing.private_keys import SigningKey
from compatkit.errors import MissingDependency
folder = Folder(__import__("pathlib").Path({str(tmp_path)!r}))
key = folder.trust(PublicKey("ed25519:{reference.public(bytes(32)).hex()}", "alice"))
assert Trusted.of(folder.path).keys == {{key.id: key}}
folder.distrust("alice")
try:
    SigningKey.new("bob")
except MissingDependency as error:
    assert error.exit_code == 4 and "pip install 'compatkit[signing]'" in str(error)
else:
    raise SystemExit("no error")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_error_is_of_this_library() -> None:
    assert all(
        issubclass(item, CompatkitError) for item in (KeyFileError, KeyTypeError, WrongPassphrase, KeyExpired)
    )
    assert {item.exit_code for item in (KeyFileError, KeyTypeError, WrongPassphrase, KeyExpired)} == {2}

"""Named remotes: saved in the user's configuration without secrets, and accepted wherever an address is."""

from __future__ import annotations

import json
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from far import EXTRACTOR, HEAD, content

import compatkit as ck
from compatkit.errors import FormatError, LayoutError, UnknownName, UsageError
from compatkit.foundation.configuration import configuration
from compatkit.registry.copy.settings import TransferSettings
from compatkit.registry.remotes import address, named
from compatkit.registry.remotes.named import SavedRemote
from compatkit.registry.remotes.pushpull import clone, pull, push
from compatkit.registry.signing.signer import sign
from compatkit.registry.store import Store


def test_a_name_stands_for_its_address(tmp_path: Path, store: Store, source: Store, memory: str):
    named.add("team", SavedRemote.of(memory))
    assert push(source, "team:").check().created == pull(store, memory).check().created
    assert pull(store, "team:").check().created == []
    assert content(clone("team:", tmp_path / "mine")[0].root).keys() == content(store.root).keys()
    registry = ck.Registry.clone("team:", tmp_path / "other")
    assert registry.pull("team:").created == [] and registry.push("team:").created == []


def test_the_name_of_a_folder_is_its_absolute_path(
    tmp_path: Path, source: Store, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    named.add("near", SavedRemote.of("far"))
    assert named.get("near").address == str(tmp_path / "far")
    push(source, "near:")
    assert (tmp_path / "far/compatkit.json").is_file()


def test_options_of_the_call_are_added_to_those_saved(
    store: Store, memory: str, monkeypatch: pytest.MonkeyPatch
):
    calls: list[object] = []
    monkeypatch.setattr(address, "open_address", lambda url, options: calls.append((url, options)))
    options = {"endpoint_url": "http://127.0.0.1:1", "anon": True}
    named.add("team", SavedRemote.of("s3://bucket/x", options))
    assert named.get("team").options == options
    address.locate("team:", {"endpoint_url": "http://127.0.0.1:2", "profile": "me"})
    assert calls == [("s3://bucket/x", {"endpoint_url": "http://127.0.0.1:2", "anon": True, "profile": "me"})]


def test_options_that_are_wrong_fail_when_the_remote_is_opened(store: Store, memory: str):
    named.add("bad", SavedRemote.of(memory, {"no_such_option": 1}))
    with pytest.raises(UsageError):
        pull(store, "bad:")


# --- trusted


@pytest.mark.parametrize("trusted", [True, False])
def test_changes_of_a_trusted_remote_are_followed(store: Store, source: Store, memory: str, trusted: bool):
    named.add("team", SavedRemote.of(memory, trusted=trusted))
    push(source, memory)
    pull(store, "team:")
    source.withdraw(HEAD, "2.0.0", "wrong data")
    source.set_alias(HEAD, "prod", None)
    push(source, memory)
    before = content(store.root)
    report = pull(store, "team:")
    if trusted:
        assert store.tombstone(HEAD, "2.0.0") is not None and "prod" not in store.aliases(HEAD)
        assert report.offered == []
    else:
        assert content(store.root) == before and {offer.kind for offer in report.offered} == {
            "withdrawal",
            "alias",
        }


def test_an_address_is_not_trusted_for_its_name(store: Store, source: Store, memory: str):
    named.add("team", SavedRemote.of(memory, trusted=True))
    push(source, memory)
    pull(store, "team:")
    source.withdraw(HEAD, "2.0.0", "wrong data")
    push(source, memory)
    assert pull(store, memory).offered and store.tombstone(HEAD, "2.0.0") is None


def test_trust_in_a_remote_does_not_replace_required_signatures(
    store: Store, source: Store, memory: str, key: ck.SigningKey
):
    named.add("team", SavedRemote.of(memory, trusted=True))
    for reference in (f"{EXTRACTOR}@1.0.0", f"{HEAD}@2.0.0"):
        sign(source, reference, key)
    push(source, memory)
    settings = TransferSettings().with_trust([key.public.id])
    pull(store, "team:", [EXTRACTOR, f"{HEAD}@2.0.0"], settings=settings)
    source.withdraw(HEAD, "2.0.0", "not signed")
    push(source, memory)
    report = pull(store, "team:", [EXTRACTOR, HEAD], settings=settings)
    assert store.tombstone(HEAD, "2.0.0") is None
    assert [offer.error is not None for offer in report.offered if offer.kind == "withdrawal"] == [True]


# --- what is refused


@pytest.mark.parametrize(
    "name", ["s3", "hf", "file", "Team", "a", "te am", "../up", "", "x" * 65, "1st", "a:b", "a/b"]
)
def test_names_that_could_be_mistaken_are_refused(name: str, memory: str):
    with pytest.raises(UsageError):
        named.add(name, SavedRemote.of(memory))
    assert named.names() == []


@pytest.mark.parametrize(
    ("address", "options"),
    [
        ("s3://KEY:SECRET@bucket/x", {}),
        ("s3://KEY@bucket/x", {}),
        ("hf://TOKEN@datasets/me/x", {}),
        ("https://me:HUNTER@host/x", {}),
        ("sftp://me:HUNTER@host/x", {}),
        ("https://host/x?X-Amz-Signature=abc", {}),
        ("https://host/x?token=abc", {}),
        ("s3://bucket/x", {"secret": "abc"}),
        ("s3://bucket/x", {"key": "abc"}),
        ("s3://bucket/x", {"token": "abc"}),
        ("s3://bucket/x", {"client_kwargs": {"aws_secret_access_key": "abc"}}),
        ("https://host/x", {"headers": {"Authorization": "Bearer abc"}}),
        ("s3://bucket/x", {"client_kwargs": {"endpoint_url": "http://a:b@host"}}),
        ("sftp://me@host/x", {"password": "abc"}),
        ("sftp://me@host/x", {"passphrase": "abc"}),
    ],
)
def test_secrets_are_not_saved(address: str, options: dict[str, object]):
    with pytest.raises(UsageError) as error:
        named.add("team", SavedRemote.of(address, options))
    assert not any(word in str(error.value) for word in ("SECRET", "TOKEN", "abc", "HUNTER", "KEY"))
    assert named.names() == []


@pytest.mark.parametrize(
    ("address", "options"),
    [
        ("sftp://me@host/~/x", {"key_filename": "/home/me/.ssh/id", "allow_agent": False}),
        ("s3://bucket/x", {"endpoint_url": "http://127.0.0.1:9000", "anon": True, "profile": "team"}),
        ("hf://datasets/me/x@main", {}),
        ("https://host/x", {"verify": "/etc/ca.pem"}),
    ],
)
def test_what_is_no_secret_is_saved(address: str, options: dict[str, object]):
    named.add("team", SavedRemote.of(address, options))
    assert named.get("team") == SavedRemote(address, options)


def test_a_name_is_taken_once_and_replaced_on_request(memory: str):
    with ThreadPoolExecutor(8) as pool:

        def save(number: int) -> bool:
            try:
                named.add("team", SavedRemote.of(f"{memory}-{number}"))
            except UsageError:
                return False
            return True

        assert sum(pool.map(save, range(16))) == 1
    named.add("team", SavedRemote.of(memory), replace=True)
    assert named.get("team").address == memory
    named.remove("team")
    for act in (named.remove, named.get):
        with pytest.raises(UnknownName):
            act("team")
    assert not list((configuration() / "remotes").iterdir())


def test_its_file_is_the_users_alone_and_read_strictly(memory: str):
    named.add("team", SavedRemote.of(memory, trusted=True))
    path = configuration() / "remotes/team.json"
    if os.name != "nt":
        assert (
            stat.S_IMODE(path.stat().st_mode) == 0o600 and stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        )
    whole = json.loads(path.read_text())
    for damaged in (
        "",
        "{",
        "[]",
        '{"address":1,"options":{},"trusted":true}',
        json.dumps({**whole, "more": 1}),
    ):
        path.write_text(damaged)
        with pytest.raises(FormatError):
            named.get("team")


def test_a_registry_cannot_name_a_remote(store: Store, memory: str):
    folder = store.root / "remotes"
    folder.mkdir()
    (folder / "team.json").write_text(json.dumps(SavedRemote(memory).to_json()))
    with pytest.raises(UnknownName):
        pull(store, "team:")


def test_a_folder_and_a_remote_of_one_name_are_told_apart(
    tmp_path: Path, store: Store, source: Store, memory: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.chdir(tmp_path)
    named.add("team", SavedRemote.of(memory))
    with pytest.raises(LayoutError, match="team:"):
        pull(store, "team")
    with pytest.raises(LayoutError, match="team:"):
        push(source, "team", settings=TransferSettings(create=False))
    push(source, "team")
    push(source, "./team:")
    assert (tmp_path / "team/compatkit.json").is_file() and (tmp_path / "team:/compatkit.json").is_file()
    with pytest.raises(LayoutError):
        pull(store, "team:")  # the remote, at which nothing is yet
    with pytest.raises(UsageError):
        Store.init("team:")

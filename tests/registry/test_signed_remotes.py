"""pull, clone and OCI layouts where signatures are required: what nobody trusted signed never gets a name here."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest
from far import EXTRACTOR, content, export, import_layout
from handmade import blobs_in
from signed import HEAD, NOW, REASONS, Stage, a_link_to_a_good_one

from compatkit.components.registry import Registry
from compatkit.errors import (
    CompatkitError,
    Incomplete,
    IntegrityError,
    KeyFileError,
    SignatureError,
    Unsigned,
)
from compatkit.registry.copy.settings import TransferSettings
from compatkit.registry.maintenance.check import examine
from compatkit.registry.names import Version
from compatkit.registry.remotes.pushpull import clone, pull, push
from compatkit.registry.signing.changes import sign_changes
from compatkit.registry.signing.checks import require
from compatkit.registry.signing.private_keys import SigningKey
from compatkit.registry.signing.signer import sign
from compatkit.registry.signing.trust import Trusted
from compatkit.registry.store import Store

Publish = Callable[..., Any]


def referenced_files(store: Store) -> dict[str, bytes]:
    """Return what stands in a registry besides bytes that nothing refers to."""
    return {path: data for path, data in content(store.root).items() if not path.startswith("blobs/")}


def withdrawn(store: Store) -> str:
    """Return the digest of the withdrawn head, which has to be signed without a name."""
    return str(store.references.digest(HEAD, Version.parse("1.0.0")))


@pytest.mark.parametrize(
    ("stage", "error", "exit_code", "code", "words"),
    [item for item in REASONS if item[0] is not a_link_to_a_good_one],
    ids=lambda each_error: getattr(each_error, "__name__", ""),
)
def test_each_reason_refuses_with_its_own_words_before_anything_comes(
    tmp_path: Path,
    store: Store,
    publish: Publish,
    key: SigningKey,
    trusted: Trusted,
    stage: Stage,
    error: type[SignatureError],
    exit_code: int,
    code: str,
    words: str,
):
    target = Store.init(tmp_path / "there")
    head = publish(target, HEAD, 1)
    target.set_alias(HEAD, "prod", "1.0.0")
    whom = stage(target, head, key, trusted) or trusted
    settings = TransferSettings(accept=require(whom, now=lambda: NOW))
    pulled = pull(store, str(target.root), settings=settings)
    with pytest.raises(Incomplete, match=f"(?s){HEAD}@1.0.0.*{words}") as refused:
        pulled.check()
    assert [type(entry) for entry in refused.value.errors] == [error]
    assert (refused.value.errors[0].code, refused.value.exit_code) == (code, exit_code)
    assert not referenced_files(store) and not blobs_in(store)


def test_a_link_in_the_place_of_a_signature_stops_the_pull(
    tmp_path: Path, store: Store, publish: Publish, key: SigningKey, trusted: Trusted
):
    target = Store.init(tmp_path / "there")
    a_link_to_a_good_one(target, publish(target, HEAD, 1), key, trusted)
    with pytest.raises(IntegrityError, match="signatures/"):
        pull(store, str(target.root), settings=TransferSettings().with_trust(trusted))
    assert not referenced_files(store)


@pytest.mark.parametrize("kind", ["folder", "memory", "layout"])
def test_what_is_signed_comes_and_the_rest_is_refused(
    tmp_path: Path, store: Store, source: Store, memory: str, key: SigningKey, trusted: Trusted, kind: str
):
    sign(source, f"{HEAD}@2.0.0", key)
    settings = TransferSettings().with_trust(trusted)
    if kind == "layout":
        export(source, tmp_path / "layout").check()
        pulled = import_layout(store, tmp_path / "layout", settings=settings)
    else:
        remote = str(source.root) if kind == "folder" else memory
        if kind == "memory":
            push(source, memory).check()
        planned = pull(store, remote, settings=TransferSettings(dry_run=True).with_trust(trusted))
        assert [str(reference) for reference in planned.created] == [f"{HEAD}@2.0.0"] and planned.refused
        pulled = pull(store, remote, settings=settings)
    withdrawn = [] if kind == "layout" else [f"{HEAD}@1.0.0"]  # nobody misses it: it is no refusal
    assert [offer.what for offer in pulled.offered if offer.kind == "version"] == withdrawn
    assert [refusal.what for refusal in pulled.refused] == [f"{EXTRACTOR}@1.0.0"]
    assert {type(refusal.error) for refusal in pulled.refused} == {Unsigned}
    assert [str(reference) for reference in pulled.created] == [f"{HEAD}@2.0.0"] and store.names() == [HEAD]
    assert [str(item) for item in store.versions(HEAD)] == ["2.0.0"]
    # the parent's bytes are vouched for by the head's signature; its name is not
    assert [str(reference) for reference in pulled.unnamed] == [f"{EXTRACTOR}@1.0.0"]
    assert examine(store).sound


def test_no_alias_is_moved_to_a_version_that_was_refused(
    tmp_path: Path, store: Store, publish: Publish, memory: str, key: SigningKey, trusted: Trusted
):
    source = Store.init(tmp_path / "two")
    for value in (1, 2):
        publish(source, HEAD, value)
        source.set_alias(HEAD, "prod", f"{value}.0.0")
    sign(source, f"{HEAD}@1.0.0", key)
    push(source, memory).check()
    pulled = pull(store, memory, settings=TransferSettings().with_trust(trusted))
    assert [str(reference) for reference in pulled.created] == [
        f"{HEAD}@1.0.0"
    ] and f"{HEAD}:prod" not in pulled.aliases
    assert any(f"{HEAD}:prod is 2.0.0" in item and "which is not in" in item for item in pulled.diverged)
    assert "prod" not in store.aliases(HEAD)
    sign(source, HEAD, key)
    push(source, memory).check()
    pulled = pull(store, memory, [HEAD], settings=TransferSettings().with_trust(trusted))
    assert [(offer.what, offer.error.code) for offer in pulled.offered] == [(f"{HEAD}:prod", "unsigned")]
    assert "prod" not in store.aliases(HEAD)
    sign_changes(source, [HEAD], key)
    push(source, memory).check()
    pulled = pull(store, memory, [HEAD], settings=TransferSettings().with_trust(trusted))
    assert f"{HEAD}:prod" in pulled.aliases and store.aliases(HEAD)["prod"] == "2.0.0"


def test_a_signature_over_other_bytes_does_not_help_what_was_swapped(
    store: Store, source: Store, memory: str, key: SigningKey, trusted: Trusted
):
    """The signed manifest stays as it is, and the version is pointed at another, or its weights are others."""
    sign(source, [EXTRACTOR, HEAD], key)
    push(source, memory).check()
    system = fsspec.filesystem("memory")
    other = withdrawn(source)
    system.pipe_file(f"{memory}/refs/{HEAD}/@versions/2.0.0", f"{other}\n".encode())
    weights = source.manifest(EXTRACTOR).payload.file.blob.removeprefix("sha256:")
    path = f"{memory}/blobs/sha256/{weights[:2]}/{weights}"
    system.pipe_file(path, system.cat_file(path)[:-1] + b"?")
    pulled = pull(store, memory, settings=TransferSettings().with_trust(trusted))
    result = {refusal.what: refusal.error for refusal in pulled.refused}
    assert isinstance(result[f"{HEAD}@2.0.0"], Unsigned)
    assert isinstance(result[f"{EXTRACTOR}@1.0.0"], IntegrityError) and weights in str(
        result[f"{EXTRACTOR}@1.0.0"]
    )
    assert not referenced_files(store)


def test_the_registry_asks_as_it_was_opened_and_as_it_is_told(tmp_path: Path, source: Store, key: SigningKey):
    sign(source, HEAD, key)
    mine, other = key.public.id, SigningKey.new("bob").public.id
    Registry.init(tmp_path / "here")
    with pytest.raises(Incomplete, match="none of the one trusted key"):
        Registry.open(tmp_path / "here").pull(
            str(source.root), HEAD, require_signature=other, versions="latest"
        )
    strict = Registry.open(tmp_path / "here", require_signature=mine)
    with pytest.raises(Incomplete, match="is not signed"):
        strict.pull(str(source.root), EXTRACTOR)
    with pytest.raises(Incomplete):  # both are asked for
        strict.pull(str(source.root), HEAD, require_signature=other, versions="latest")
    assert strict.store.names() == []
    assert len(strict.pull(str(source.root), HEAD, require_signature=mine, versions="latest").created) == 1
    with pytest.raises(Incomplete, match="is not signed"):
        Registry.clone(str(source.root), tmp_path / "copy", require_signature=mine)
    assert Registry.open(tmp_path / "copy").store.names() == [HEAD]
    with pytest.raises(KeyFileError, match="nowhere"):
        Registry.clone(str(source.root), tmp_path / "none", require_signature="nowhere")
    assert not (tmp_path / "none").exists()


def test_whatever_brings_components_asks_for_the_signatures_that_the_store_asks_for(
    tmp_path: Path, source: Store, key: SigningKey, trusted: Trusted
):
    export(source, tmp_path / "layout").check()
    sign(source, HEAD, key)
    strict = Store.open(Store.init(tmp_path / "here").root, trusted)
    with pytest.raises(Unsigned) as error:
        Registry(strict).maintenance.import_from(source, [EXTRACTOR])
    assert error.value.subject == source.resolve(EXTRACTOR).digest
    for pulled in (pull(strict, str(source.root), [EXTRACTOR]), import_layout(strict, tmp_path / "layout")):
        assert pulled.refused and all(isinstance(refusal.error, SignatureError) for refusal in pulled.refused)
    assert not referenced_files(strict) and not blobs_in(strict)
    done = Registry(strict).maintenance.import_from(source, [HEAD], versions="latest")
    assert [str(reference) for reference in done.created] == [f"{HEAD}@2.0.0"]
    assert [str(reference) for reference in done.unnamed] == [f"{EXTRACTOR}@1.0.0"]


def test_who_accepts_may_ask_for_more_than_a_signature(
    store: Store, source: Store, key: SigningKey, trusted: Trusted
):
    sign(source, [EXTRACTOR, HEAD], key)

    def accept(digest: str, signatures: Any, name: str) -> None:
        if name.startswith(HEAD):
            raise CompatkitError("heads stay away")

    settings = TransferSettings(accept=accept, versions="latest").with_trust(trusted)
    pulled = pull(store, str(source.root), settings=settings)
    assert [str(reference) for reference in pulled.created] == [f"{EXTRACTOR}@1.0.0"]
    assert [str(refusal.error) for refusal in pulled.refused] == ["heads stay away"]


def test_a_clone_of_what_is_all_signed_is_the_same(
    tmp_path: Path, source: Store, memory: str, key: SigningKey, trusted: Trusted
):
    sign(source, [EXTRACTOR, HEAD], key, every=True)
    sign_changes(source, [HEAD], key)
    push(source, memory).check()
    made, moved = clone(memory, tmp_path / "copy", settings=TransferSettings().with_trust(trusted))
    moved.check()
    assert content(made.root) == content(source.root)


def test_programs_are_told_the_code_of_each_refusal(source: Store, store: Store, trusted: Trusted):
    message = json.loads(
        json.dumps(pull(store, str(source.root), settings=TransferSettings().with_trust(trusted)).to_json())
    )
    assert {item["what"]: item["code"] for item in message["refused"]} == {
        f"{EXTRACTOR}@1.0.0": "unsigned",
        f"{HEAD}@2.0.0": "unknown-signer",
    }
    assert [(item["what"], item["code"]) for item in message["offered"]] == [(f"{HEAD}@1.0.0", "unsigned")]

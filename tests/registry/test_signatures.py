"""Signatures in a registry: made, kept, carried along; and each reason for which one does not count."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import attrs
import pytest
from signed import (
    HEAD,
    NOW,
    REASONS,
    SECOND,
    Stage,
    by_a_distrusted_key,
    by_a_key_that_ended,
    by_a_key_that_is_only_known_as_distrusted,
    damaged,
)

from compatkit.contracts.manifest import Parent
from compatkit.errors import (
    EnvironmentFailure,
    IntegrityError,
    InvalidName,
    MalformedSignature,
    NotFound,
    OtherDigest,
    OtherName,
    SignatureError,
    Unsigned,
    UsageError,
)
from compatkit.registry import disk as durable
from compatkit.registry.copy.report import SignatureWarning
from compatkit.registry.copy.settings import TransferSettings
from compatkit.registry.maintenance.check import examine
from compatkit.registry.maintenance.gc import plan
from compatkit.registry.maintenance.repair import plan as repair
from compatkit.registry.remotes.pushpull import import_components
from compatkit.registry.signing.checks import SKEW, require
from compatkit.registry.signing.envelope import Envelope
from compatkit.registry.signing.private_keys import SigningKey
from compatkit.registry.signing.signatures import Signatures, file_name
from compatkit.registry.signing.signer import sign
from compatkit.registry.signing.trust import Trusted
from compatkit.registry.signing.verify import SignedPart, signed_parts, statements, verify
from compatkit.registry.store import Store

Publish = Callable[..., Any]


@pytest.fixture
def head(store: Store, publish: Publish) -> Any:
    return publish(store, HEAD, 1)


def test_what_is_signed_lies_in_one_small_file_and_verifies(
    store: Store, head: Any, key: SigningKey, trusted: Trusted
) -> None:
    (done,) = sign(store, HEAD, key, now=NOW)
    assert done.created and done.subject == SignedPart(head.digest, f"{HEAD}@1.0.0")
    (path,) = (file for file in (store.root / "signatures").rglob("*") if file.is_file())
    assert path.parent.name == head.digest.removeprefix("sha256:")
    assert path.name == file_name(path.read_bytes(), head.digest)
    assert path.name.startswith(key.public.id.removeprefix("ed25519:")[:16]) and path.stat().st_size < 1000
    assert path.stat().st_mode & 0o222 == 0
    (result,) = verify(store, HEAD, trusted, now=NOW)
    assert result.valid and result.key == key.public and result.statement == done.statement
    assert examine(store).faults == ()


def test_signing_again_makes_a_file_only_where_it_says_more(
    store: Store, head: Any, key: SigningKey, trusted: Trusted
) -> None:
    def made(**settings: Any) -> bool:
        return sign(store, HEAD, key, **{"now": NOW, **settings})[0].created

    assert made(expires=NOW + timedelta(days=1)) and not made(expires=NOW + timedelta(days=1))
    assert not made(expires=NOW + timedelta(hours=1), now=NOW + SECOND)
    assert (
        made(expires=NOW + timedelta(days=2))
        and made()
        and not made()
        and not made(now=NOW + timedelta(days=99))
    )
    assert made(bind_name=False) and not made(bind_name=False)
    other = SigningKey.new("bob")
    assert sign(store, HEAD, other, now=NOW)[0].created
    assert len(store.signatures.files(head.digest)) == 5
    assert sum(verdict.valid for verdict in verify(store, HEAD, trusted, now=NOW)) == 4


def test_a_signature_that_does_not_count_any_more_is_made_again(
    store: Store, head: Any, key: SigningKey
) -> None:
    assert sign(store, HEAD, key, expires=NOW + timedelta(days=1), now=NOW)[0].created
    assert (
        sign(store, HEAD, key, expires=NOW + timedelta(days=1), now=NOW + timedelta(days=0.9))[0].created
        is False
    )
    later = NOW + timedelta(days=2)
    assert sign(store, HEAD, key, expires=later + timedelta(days=1), now=later)[0].created


def test_patterns_mean_what_they_mean_elsewhere(store: Store, publish: Publish, key: SigningKey) -> None:
    first = publish(store, "digits/a.head", 1)
    second = publish(store, "digits/a.head", 2)
    other = publish(store, "digits/b.head", 3)
    assert signed_parts(store, "digits/*") == [
        SignedPart(second.digest, "digits/a.head@2.0.0"),
        SignedPart(other.digest, "digits/b.head@1.0.0"),
    ]
    assert signed_parts(store, ["digits/a.head@1.0.0", first.digest]) == [
        SignedPart(first.digest, "digits/a.head@1.0.0"),
        SignedPart(first.digest),
    ]
    assert [signed.statement.name for signed in sign(store, first.digest, key)] == [None]
    assert signed_parts(store, "digits/*", every=True) == [
        SignedPart(first.digest, "digits/a.head@1.0.0"),
        SignedPart(second.digest, "digits/a.head@2.0.0"),
        SignedPart(other.digest, "digits/b.head@1.0.0"),
    ]
    assert signed_parts(store, "digits/a.head@^1", every=True) == [
        SignedPart(first.digest, "digits/a.head@1.0.0")
    ]
    store.withdraw("digits/a.head", "1.0.0", "wrong data")
    assert [str(signed.subject) for signed in sign(store, "digits/a.head", key, every=True)] == [
        "digits/a.head@1.0.0",
        "digits/a.head@2.0.0",
    ]
    with pytest.raises(NotFound):
        sign(store, "none/*", key)
    with pytest.raises(UsageError, match="matches 2"):
        verify(store, "digits/*", Trusted({}))


def test_nobody_vouches_for_what_is_missing_or_damaged(store: Store, head: Any, key: SigningKey) -> None:
    with pytest.raises(IntegrityError):
        sign(store, "sha256:" + "ab" * 32, key)
    path = store.objects.path(head.digest)
    path.chmod(0o644)
    path.write_bytes(path.read_bytes().replace(b"extractor", b"extractoR", 1))
    with pytest.raises(IntegrityError):
        sign(Store.open(store.root), HEAD, key)
    assert store.signatures.files(head.digest) == []


@pytest.mark.parametrize(
    ("stage", "error", "exit_code", "code", "words"),
    REASONS,
    ids=lambda verdict: getattr(verdict, "__name__", ""),
)
def test_each_reason_has_its_own_error_code_and_words(
    store: Store,
    head: Any,
    key: SigningKey,
    trusted: Trusted,
    stage: Stage,
    error: type[SignatureError],
    exit_code: int,
    code: str,
    words: str,
) -> None:
    whom = stage(store, head, key, trusted) or trusted
    with pytest.raises(error, match=f"(?s){HEAD}@1.0.0.*{words}") as refused:
        verify(store, HEAD, whom, now=NOW)
    assert type(refused.value) is error and (refused.value.code, refused.value.exit_code) == (code, exit_code)
    accept = require(whom, now=lambda: NOW)
    with pytest.raises(error):
        accept(head.digest, store.signatures.of(head.digest), f"{HEAD}@1.0.0")
    # a good one beside it counts, unless it is the key that does not
    sign(store, HEAD, key, now=NOW + SECOND)
    if stage not in (
        by_a_key_that_ended,
        by_a_distrusted_key,
        by_a_key_that_is_only_known_as_distrusted,
    ):
        assert sum(entry.valid for entry in verify(store, HEAD, whom, now=NOW)) == 1
        accept(head.digest, store.signatures.of(head.digest), f"{HEAD}@1.0.0")


def test_every_reason_is_a_class_of_its_own() -> None:
    shown = {error for _, error, *_ in REASONS}
    assert shown == set(SignatureError.__subclasses__())
    assert len({item.code for item in shown}) == len(shown)


def test_clocks_may_be_five_minutes_apart(store: Store, head: Any, key: SigningKey, trusted: Trusted) -> None:
    sign(store, HEAD, key, expires=NOW + timedelta(hours=1), now=NOW)
    assert verify(store, HEAD, trusted, now=NOW - SKEW)
    assert verify(store, HEAD, trusted, now=NOW + timedelta(hours=1) + SKEW)
    assert timedelta(minutes=5) == SKEW


def test_a_name_is_compared_only_where_one_is_shown_and_one_was_signed(
    store: Store, head: Any, key: SigningKey, trusted: Trusted
) -> None:
    sign(store, HEAD, key, now=NOW)
    store.publish("stolen/name", store.manifest(HEAD))
    with pytest.raises(OtherName, match=r"used as stolen/name@1\.0\.0"):
        verify(store, "stolen/name", trusted, now=NOW)
    assert verify(store, head.digest, trusted, now=NOW)  # the bytes, whatever they are called
    require(trusted, now=lambda: NOW)(head.digest, store.signatures.of(head.digest))
    sign(store, HEAD, key, bind_name=False, now=NOW)
    assert verify(store, "stolen/name", trusted, now=NOW)  # this the signer allowed


def test_an_older_signed_version_is_found_out_where_a_version_is_pinned(
    store: Store, publish: Publish, key: SigningKey, trusted: Trusted
) -> None:
    old, new = publish(store, HEAD, 1), publish(store, HEAD, 2)
    sign(store, [f"{HEAD}@1.0.0", f"{HEAD}@2.0.0"], key, now=NOW)
    path = store.references.folder(HEAD) / "@versions" / "2.0.0"
    path.chmod(0o644)
    path.write_text(f"{old.digest}\n")
    with pytest.raises(
        OtherName, match=r"as digits/mnist.head@1\.0\.0, but used as digits/mnist.head@2\.0\.0"
    ):
        verify(Store.open(store.root), f"{HEAD}@2.0.0", trusted, now=NOW)
    path.unlink()
    # what is not promised: a range finds the older version, which is signed as what it is
    assert verify(Store.open(store.root), f"{HEAD}@^1", trusted, now=NOW) and new


def test_statements_are_told_without_any_key(store: Store, head: Any, key: SigningKey) -> None:
    sign(store, HEAD, key, now=NOW)
    (result,) = statements(store, HEAD)
    assert not result.valid and result.statement is not None and result.statement.signer == key.public.id
    assert result.to_json()["signed_as"] == f"{HEAD}@1.0.0"


def test_unknown_files_are_left_alone(store: Store, head: Any, key: SigningKey, trusted: Trusted) -> None:
    sign(store, HEAD, key, now=NOW)
    folder = store.signatures.folder(head.digest)
    (folder / "README").write_text("notes")
    (folder / f"{'0' * 16}-{'0' * 64}.json.orig").write_text("")
    (folder / "deep").mkdir()
    assert len(verify(store, HEAD, trusted, now=NOW)) == 1
    assert {item.code for item in examine(store).faults} == {"stray"}


def test_a_folder_that_is_a_link_is_not_followed(
    store: Store, head: Any, key: SigningKey, trusted: Trusted
) -> None:
    sign(store, HEAD, key, now=NOW)
    shutil.move(store.root / "signatures", store.root.parent / "away")
    (store.root / "signatures").symlink_to(store.root.parent / "away")
    with pytest.raises(IntegrityError, match="symbolic link"):
        verify(store, HEAD, trusted, now=NOW)
    with pytest.raises(IntegrityError, match="symbolic link"):
        sign(store, HEAD, key)


def test_too_many_signatures_are_refused_and_not_read(
    store: Store, head: Any, trusted: Trusted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("compatkit.registry.signing.signatures.LIMIT_PER_MANIFEST", 3)
    folder = store.signatures.folder(head.digest)
    folder.mkdir()
    for number in range(4):
        (folder / f"{number:016x}-{number:064x}.json").write_bytes(b"x")
    with pytest.raises(SignatureError, match="expected at most 3 signatures, got 4"):
        store.signatures.of(head.digest)
    with pytest.raises(Unsigned):  # those of strangers do not count, and are not read
        verify(store, HEAD, trusted)
    own = next(iter(trusted.keys)).partition(":")[2][:16]
    for number in range(4):
        (folder / f"{own}-{number:064x}.json").write_bytes(b"x")
    with pytest.raises(SignatureError, match="expected at most 3 signatures, got 4"):
        verify(store, HEAD, trusted)


def test_only_signatures_of_this_manifest_are_kept(store: Store, head: Any, key: SigningKey) -> None:
    signatures, other = store.signatures, "sha256:" + "cd" * 32
    data = key.sign(head.digest, None, now=NOW).to_bytes()
    assert signatures.add(head.digest, data) and not signatures.add(head.digest, data)
    for wrong, error in {b"": MalformedSignature, b"\x00" * 99: MalformedSignature}.items():
        with pytest.raises(error):
            signatures.add(head.digest, wrong)
    envelope = Envelope.from_bytes(data)
    with pytest.raises(MalformedSignature, match="in the statement"):
        signatures.add(head.digest, attrs.evolve(envelope, key="ed25519:" + "00" * 32).to_bytes())
    with pytest.raises(OtherDigest):
        signatures.add(other, data)
    for digest in ("../../x", "sha256:" + "AB" * 32, ""):
        with pytest.raises(InvalidName):
            signatures.add(digest, data)
    assert signatures.of(head.digest) == [data] and signatures.of(other) == []


def test_a_damaged_file_is_not_taken_for_a_signature_that_is_there(
    store: Store, head: Any, key: SigningKey, trusted: Trusted
) -> None:
    damaged(store, head, key, trusted)
    with pytest.raises(MalformedSignature, match="verify --repair"):
        sign(store, HEAD, key, now=NOW)
    repair(examine(store)).apply()
    assert sign(store, HEAD, key, now=NOW)[0].created and verify(store, HEAD, trusted, now=NOW)


def test_a_failure_at_any_step_leaves_no_half_signature_and_a_retry_makes_it(
    store: Store, head: Any, key: SigningKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = 0
    for allowed in range(100):
        left = allowed

        def fail(operation: str, path: Path) -> None:
            nonlocal left, steps
            left, steps = left - 1, steps + 1
            if left < 0 and operation != "unlink":
                raise OSError(28, "No space left on device", str(path))

        with monkeypatch.context() as patched:
            patched.setattr(durable, "step", fail)
            try:
                sign(store, HEAD, key, now=NOW)
                break
            except EnvironmentFailure:
                pass
        assert all(Envelope.from_bytes(digest) for digest in Signatures(store.root).of(head.digest))
    assert allowed > 3 and len(store.signatures.of(head.digest)) == 1
    assert [item.code for item in examine(store).faults if item.severity == "error"] == []


def test_one_that_is_being_written_without_hard_links_is_waited_for(
    store: Store, head: Any, key: SigningKey, trusted: Trusted
) -> None:
    data = key.sign(head.digest, None, now=NOW).to_bytes()
    path = store.signatures.folder(head.digest) / file_name(data, head.digest)
    path.parent.mkdir()
    path.write_bytes(data[:100])

    def finish() -> None:
        time.sleep(0.05)
        path.write_bytes(data)

    with ThreadPoolExecutor(1) as beside:
        beside.submit(finish)
        assert verify(store, HEAD, trusted, now=NOW)
    assert not store.signatures.add(head.digest, data)


def test_an_import_brings_signatures_along(
    store: Store, head: Any, key: SigningKey, trusted: Trusted, tmp_path: Path
) -> None:
    sign(store, HEAD, key, now=NOW)
    target = Store.init(tmp_path / "target")
    done = import_components(store, target)
    assert done.signatures == 1 and done.to_json()["signatures"] == 1
    assert target.signatures.of(head.digest) == store.signatures.of(head.digest)
    assert verify(target, HEAD, trusted, now=NOW) and examine(target).faults == ()
    assert import_components(store, target).signatures == 0


def test_an_import_leaves_damaged_signatures_behind_and_says_so(
    store: Store, head: Any, key: SigningKey, trusted: Trusted, tmp_path: Path
) -> None:
    sign(store, HEAD, key, now=NOW)
    folder = store.signatures.folder(head.digest)
    (folder / f"{'0' * 16}-{'0' * 64}.json").write_bytes(b"{}")
    target = Store.init(tmp_path / "target")
    with pytest.warns(SignatureWarning, match="is not copied"):
        assert import_components(store, target).signatures == 1
    assert verify(target, HEAD, trusted, now=NOW) and examine(target).sound


def test_an_import_that_requires_signatures_brings_nothing_else(
    store: Store, publish: Publish, key: SigningKey, trusted: Trusted, tmp_path: Path
) -> None:
    extractor = publish(store, "digits/mnist.extractor", 1)
    head = publish(store, HEAD, 2, parents=(Parent("trained_with", extractor.digest),))
    target, accept = Store.init(tmp_path / "target"), require(trusted, now=lambda: NOW)
    before = sorted(target.root.rglob("*"))
    with pytest.raises(Unsigned, match=r"digits/mnist.head@1\.0\.0"):
        import_components(store, target, [HEAD], settings=TransferSettings(accept=accept))
    assert sorted(target.root.rglob("*")) == before
    sign(store, HEAD, key, now=NOW)
    done = import_components(store, target, [HEAD], settings=TransferSettings(accept=accept))
    # the parent's bytes are vouched for, for its digest stands in what is signed; its name and number are not
    assert [str(reference) for reference in done.created] == [f"{HEAD}@1.0.0"] and target.names() == [HEAD]
    assert [reference.digest for reference in done.unnamed] == [extractor.digest]
    assert target.manifest(extractor.digest) and target.resolve(HEAD).digest == head.digest
    sign(store, "digits/mnist.extractor", key, now=NOW)
    again = import_components(store, target, [HEAD], settings=TransferSettings(accept=accept))
    assert [str(reference) for reference in again.created] == [
        "digits/mnist.extractor@1.0.0"
    ] and not again.unnamed


def age(store: Store) -> None:
    for path in (store.root / "blobs").rglob("*"):
        os.utime(path, (1_700_000_000, 1_700_000_000))


def test_a_signature_keeps_nothing_alive_and_waits_for_its_manifest(
    store: Store, head: Any, key: SigningKey, trusted: Trusted
) -> None:
    manifest, payload = store.manifest(HEAD), store.read_blob(store.manifest(HEAD).payload.file.blob)
    sign(store, HEAD, key, now=NOW)
    age(store)
    assert plan(store).is_empty
    (store.references.folder(HEAD) / "@versions" / "1.0.0").unlink()
    fresh = Store.open(store.root)
    plan(fresh).apply()
    assert not list((store.root / "blobs/sha256").glob("*/*"))
    (fault,) = (item for item in examine(fresh).faults if item.code != "trash")
    assert (fault.code, fault.severity) == ("signature-orphan", "info") and head.digest[7:] in fault.path
    fresh.put_blob(payload)
    fresh.publish(HEAD, manifest)
    assert verify(fresh, HEAD, trusted, now=NOW)


def test_the_weights_of_a_withdrawn_version_may_go_though_it_is_signed(
    store: Store, publish: Publish, key: SigningKey
) -> None:
    publish(store, HEAD, 1)
    sign(store, HEAD, key, now=NOW)
    store.withdraw(HEAD, "1.0.0", "wrong data")
    age(store)
    tombstone = store.references.folder(HEAD) / "@tombstones" / "1.0.0"
    os.utime(tombstone, (1_700_000_000, 1_700_000_000))
    assert len(plan(store, withdrawn=True).withdrawn) == 1


def test_the_examination_looks_at_the_signatures_of_what_is_asked_for(
    store: Store, publish: Publish, key: SigningKey, trusted: Trusted
) -> None:
    item, other = publish(store, "digits/a.head", 1), publish(store, "digits/b.head", 2)
    for digest in (item.digest, other.digest):
        store.signatures.folder(digest).mkdir()
        (store.signatures.folder(digest) / f"{'0' * 16}-{'0' * 64}.json").write_bytes(b"{}")
    (fault,) = examine(store, patterns=["digits/a.head"]).faults
    assert fault.code == "signature-damaged" and fault.affected == ("digits/a.head@1.0.0",)
    assert [item.code for item in examine(store).faults] == ["signature-damaged"] * 2


def test_the_examination_compares_a_signature_with_its_name_and_place(
    store: Store, publish: Publish, key: SigningKey
) -> None:
    item, other = publish(store, "digits/a.head", 1), publish(store, "digits/b.head", 2)
    sign(store, "digits/a.head", key, now=NOW)
    (path,) = store.signatures.files(item.digest)
    store.signatures.folder(other.digest).mkdir()
    shutil.copy(path, store.signatures.folder(other.digest) / path.name)
    renamed = path.with_name(path.name[:20] + "0" * 61 + ".json")
    path.rename(renamed)
    result = {fault.path.rpartition("/")[2]: fault for fault in examine(store).faults}
    assert {fault.code for fault in result.values()} == {"signature-damaged"} and len(result) == 2
    assert "expected the file name" in result[renamed.name].what
    assert f"expected a signature of {other.digest}" in result[path.name].what

"""What a stranger may make of aliases, withdrawals, signatures and settings: nothing that stands here changes."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
from far import content, write

from compatkit.contracts.manifest import function_digest
from compatkit.errors import CompatkitError
from compatkit.foundation.codec import digest as digest_of
from compatkit.foundation.codec import dumps
from compatkit.registry.authorship import Author
from compatkit.registry.copy.changes import ChangeFollower
from compatkit.registry.copy.settings import TransferSettings
from compatkit.registry.names import Reference
from compatkit.registry.remotes.pushpull import import_components, pull
from compatkit.registry.settings import change_settings
from compatkit.registry.signing.envelope import Envelope
from compatkit.registry.signing.private_keys import SigningKey
from compatkit.registry.signing.signatures import LIMIT_PER_MANIFEST, file_name
from compatkit.registry.signing.signer import sign
from compatkit.registry.signing.trust import Distrust, Trusted
from compatkit.registry.signing.verify import verify
from compatkit.registry.store import Store

Publish = Callable[..., Any]
OWNER, MAINTAINER, STRANGER = (SigningKey.new(name) for name in ("owner", "maintainer", "mallory"))
NAME = "a/b"


def tombstone(action: str = "") -> bytes:
    """Return an entry of the log of a withdrawal."""
    fields = {"action": action} if action else {}
    return dumps({**fields, "reason": "why", "time": "2026-01-01T00:00:00+00:00"})


def bring(way: str, source: Store, target: Store, settings: TransferSettings | None = None) -> Any:
    """Copy everything, from an address or from a folder; an import raises what a pull reports."""
    if way == "import":
        return import_components(source, target, settings=settings)
    return pull(target, str(source.root), settings=settings)


@pytest.mark.parametrize("way", ["pull", "import"])
@pytest.mark.parametrize("dry_run", [False, True])
def test_an_alias_that_is_only_a_pointer_stands_here(
    tmp_path: Path, store: Store, publish: Publish, way: str, dry_run: bool
):
    """A pointer that was written by hand has no log; a remote with a log does not move it."""
    source = Store.init(tmp_path / "source")
    for value in (1, 2):
        publish(source, NAME, value)
    source.set_alias(NAME, "prod", "2.0.0")
    publish(store, NAME, 1)
    write(store, f"refs/{NAME}/@aliases/prod", b"1.0.0\n")
    report = bring(way, source, store, TransferSettings(dry_run=dry_run))
    assert store.aliases(NAME) == {"prod": "1.0.0"}
    assert [(offer.kind, offer.what, offer.detail) for offer in report.offered] == [
        ("alias", f"{NAME}:prod", "1.0.0 -> 2.0.0")
    ]
    bring(way, source, store, TransferSettings().following())
    assert store.aliases(NAME) == {"prod": "2.0.0"}


@pytest.mark.parametrize("way", ["pull", "import"])
@pytest.mark.parametrize("entries", [{3: ""}, {1: "", 3: ""}, {1: "", 2: ""}], ids=str)
def test_a_withdrawal_with_gaps_brings_no_version_past_the_checks(
    tmp_path: Path, store: Store, publish: Publish, way: str, entries: dict[int, str]
):
    """A withdrawn version is not checked as others are, so it must arrive withdrawn."""
    source = Store.init(tmp_path / "source")
    publish(source, NAME, 1)
    publish(store, NAME, 1)
    digest = publish(source, "other", 5, kind="head").digest
    write(source, f"refs/{NAME}/@versions/1.0.1", f"{digest} {NAME}@1.0.1\n".encode())
    for number, action in entries.items():
        write(
            source, f"refs/{NAME}/@tombstones/1.0.1" + (f"~{number}" if number > 1 else ""), tombstone(action)
        )
    if way == "import":
        with pytest.raises(CompatkitError):
            bring(way, source, store)
    else:
        report = bring(way, source, store)
        assert [refusal.what for refusal in report.refused] == [f"{NAME}@1.0.1"]
    assert [str(version) for version in store.references.versions(NAME)] == ["1.0.0"]


def test_a_version_whose_withdrawal_was_taken_back_before_its_drop_is_checked_again(
    tmp_path: Path, store: Store, publish: Publish
):
    """The log here says restored, and the remote says withdrawn: the version does not come in unchecked."""
    source = Store.init(tmp_path / "source")
    publish(source, NAME, 1)
    publish(store, NAME, 1)
    digest = publish(source, "other", 5, kind="head").digest
    write(source, f"refs/{NAME}/@versions/1.0.1", f"{digest} {NAME}@1.0.1\n".encode())
    for target in (source, store):
        write(target, f"refs/{NAME}/@tombstones/1.0.1", tombstone())
    write(store, f"refs/{NAME}/@tombstones/1.0.1~2", tombstone("restore"))
    report = pull(store, str(source.root))
    assert [refusal.what for refusal in report.refused] == [f"{NAME}@1.0.1"]
    assert [str(version) for version in store.references.versions(NAME)] == ["1.0.0"]


def test_a_damaged_log_of_withdrawals_does_not_keep_the_rest_from_coming(
    tmp_path: Path, store: Store, publish: Publish
):
    source = Store.init(tmp_path / "source")
    publish(source, NAME, 1)
    pull(store, str(source.root)).check()
    publish(source, "z", 2)
    write(source, f"refs/{NAME}/@tombstones/1.0.0", b"garbage")
    write(source, f"refs/{NAME}/@tombstones/1.0.0~2", tombstone("restore"))
    write(source, f"refs/{NAME}/@tombstones/1.0.0~3", tombstone())
    source.set_alias("z", "prod", "1.0.0")
    for settings in (TransferSettings(), TransferSettings().following()):
        report = pull(store, str(source.root), settings=settings)
        assert [refusal.what for refusal in report.refused] == [f"{NAME}@1.0.0"]
    assert store.aliases("z") == {"prod": "1.0.0"} and store.versions(NAME)


def test_a_restoration_that_is_followed_is_checked_as_one_that_is_made_here(
    tmp_path: Path, store: Store, publish: Publish
):
    """A version that is too small a step among those published since stays withdrawn."""
    source = Store.init(tmp_path / "source")
    publish(source, NAME, 1)
    pull(store, str(source.root)).check()
    digest = publish(source, "other", 5, kind="head").digest
    for target in (source, store):
        write(target, f"refs/{NAME}/@versions/1.0.1", f"{digest} {NAME}@1.0.1\n".encode())
        write(target, f"refs/{NAME}/@tombstones/1.0.1", tombstone())
    pull(store, str(source.root), settings=TransferSettings(aliases=False))
    write(source, f"refs/{NAME}/@tombstones/1.0.1~2", tombstone("restore"))
    before = content(store.root)
    pull(store, str(source.root), settings=attrs.evolve(TransferSettings().following(), dry_run=True))
    report = pull(store, str(source.root), settings=TransferSettings().following())
    assert [(refusal.what, refusal.error.code) for refusal in report.refused] == [
        (f"{NAME}@1.0.1", "version-untrue")
    ]
    assert content(store.root) == before


def test_a_withdrawal_does_not_hit_what_is_published_here_meanwhile(
    tmp_path: Path, store: Store, publish: Publish, monkeypatch: pytest.MonkeyPatch
):
    """The number of a withdrawn version that arrives is taken here, by another process, before the version is."""
    source = Store.init(tmp_path / "source")
    publish(source, NAME, 1)
    source.withdraw(NAME, "1.0.0", "theirs")
    withdraw_new = ChangeFollower.withdraw_new

    def late(follower: ChangeFollower, references: list[Reference]) -> set[Reference]:
        if references:
            publish(store, NAME, 2)
        return withdraw_new(follower, references)

    monkeypatch.setattr(ChangeFollower, "withdraw_new", late)
    report = pull(store, str(source.root))
    assert [refusal.error.code for refusal in report.refused] == ["version-exists"]
    assert [str(version) for version in store.versions(NAME)] == ["1.0.0"]


# --- signatures


def flood(source: Store, digest: str, path: str, key: SigningKey, first: int) -> None:
    """Fill the signatures of a digest with such that name a key and were not made by it."""
    good = key.sign(digest, path, is_change="@" not in path.rpartition("/")[2])
    shutil.rmtree(source.signatures.folder(digest), ignore_errors=True)
    for number in range(first, first + LIMIT_PER_MANIFEST):
        add(source, digest, attrs.evolve(good, signature=number.to_bytes(64, "big")))


def add(store: Store, digest: str, envelope: Envelope) -> None:
    """Write a signature by hand."""
    data = envelope.to_bytes()
    write(store, f"signatures/{digest.removeprefix('sha256:')}/{file_name(data, digest)}", data)


def test_no_number_of_forged_signatures_takes_one_away_that_counts(
    tmp_path: Path, store: Store, publish: Publish, trusted: Trusted, key: SigningKey
):
    """A hostile copy adds a thousand signatures at each pull, all in the name of the key that counts."""
    change_settings(
        store.root, Author.of(OWNER), owners=[OWNER.public.id], maintainers=[MAINTAINER.public.id]
    )
    change_settings(store.root, Author.of(OWNER), protected_aliases=["prod"])
    maintainer = Store.open(store.root, key=MAINTAINER)
    for value in (1, 2):
        digest = publish(maintainer, NAME, value).digest
        maintainer.set_alias(NAME, "prod", store.versions(NAME)[-1])
    sign(store, [NAME], key)
    head = publish(store, "z", 5, kind="head").digest
    functions = [function_digest(store.manifest(item)) for item in (digest, head)]
    source = Store.open(shutil.copytree(store.root, tmp_path / "source"))
    signed = [
        (digest, f"{NAME}@2.0.0", key),
        *(
            (digest_of((store.root / path).read_bytes()), path, signer)
            for path, signer in ((f"refs/{NAME}/@log/prod/2", MAINTAINER), ("settings/2", OWNER))
        ),
    ]
    folder = source.root / "evidence" / "/".join(name.rpartition(":")[2] for name in functions) / ("0" * 64)
    folder.mkdir(parents=True)
    (folder / signed[-1][0].removeprefix("sha256:")).write_text(f"{signed[-1][0]}\n")
    for number in range(2):
        for what, path, signer in signed:
            flood(source, what, path, signer, number * LIMIT_PER_MANIFEST)
        pull(store, str(source.root))
    assert store.aliases(NAME) == {"prod": "2.0.0"}
    assert store.rules.change.number == 2
    assert verify(store, f"{NAME}@2.0.0", trusted)
    assert sum(1 for _ in (store.root / "signatures").rglob("*.json")) < 3 * LIMIT_PER_MANIFEST
    # many keys that sign are no help either, and one that was distrusted is left out
    distrusted = {STRANGER.public.id: Distrust("2026-01-01T00:00:00Z", "a stranger")}
    for number in range(LIMIT_PER_MANIFEST + 1):
        add(store, digest, STRANGER.sign(digest, f"{NAME}@{number}.0.0"))
    assert verify(store, f"{NAME}@2.0.0", attrs.evolve(trusted, distrusted=distrusted))

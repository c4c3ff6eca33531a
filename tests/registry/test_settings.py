"""Settings that every door obeys: required signatures, roles, protected aliases; and who made a change."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import fsspec
import pytest

from compatkit.errors import (
    EnvironmentFailure,
    IntegrityError,
    LayoutError,
    NotAllowed,
    NotFound,
    SignatureError,
    Unsigned,
    UsageError,
)
from compatkit.foundation.codec import dumps
from compatkit.registry.authorship import VARIABLE, Author
from compatkit.registry.copy.settings import TransferSettings
from compatkit.registry.dropping import drop
from compatkit.registry.history import log
from compatkit.registry.maintenance.check import examine
from compatkit.registry.policies import Images, Policy
from compatkit.registry.publications import record_publication
from compatkit.registry.publish import Publisher
from compatkit.registry.remotes.pushpull import pull, push
from compatkit.registry.remotes.remote_settings import change_remote_settings, remote_rules
from compatkit.registry.restoring import restore
from compatkit.registry.second_names import copy
from compatkit.registry.settings import RegistrySettings, change_settings, rules_of
from compatkit.registry.signing.private_keys import SigningKey
from compatkit.registry.signing.verify import require_signature
from compatkit.registry.store import Store

Publish = Callable[..., Any]
NAME = "digits/mnist.head"
OWNER, MAINTAINER, PUBLISHER, STRANGER = (
    SigningKey.new(name) for name in ("owner", "maintainer", "publisher", "stranger")
)
DATA = Images("mnist/test", f"data:sha256:{'a' * 64}")


def acting(store: Store, key: SigningKey | None) -> Store:
    """Return the registry as somebody with a key opens it."""
    return Store.open(store.root, key=key)


def configure(store: Store, key: SigningKey | None = OWNER, **changes: Any) -> RegistrySettings:
    return change_settings(store.root, Author.of(key), **changes).settings


@pytest.fixture
def ruled(store: Store, publish: Publish) -> Store:
    """A registry with an owner, a maintainer and a publisher, two versions, and the protected alias ``prod``."""
    configure(
        store,
        owners=[OWNER.public.id],
        maintainers=[MAINTAINER.public.id],
        publishers=[PUBLISHER.public.id],
        protected_aliases=["prod", "release-*"],
    )
    for value in (1, 2):
        publish(acting(store, PUBLISHER), NAME, value)
    acting(store, MAINTAINER).set_alias(NAME, "prod", "1.0.0")
    return acting(store, None)


# --- who may change the settings


def test_without_owners_everybody_changes_them_and_with_owners_only_these(store: Store):
    assert store.rules.settings == RegistrySettings() and store.rules.change.number == 0
    key = MAINTAINER.public.id
    assert configure(store, None, maintainers=[key]).maintainers == (key,)
    with pytest.raises(NotAllowed):  # nobody could change them again
        configure(store, None, owners=[OWNER.public.id])
    configure(store, owners=[OWNER.public.id])
    for who in (None, STRANGER, MAINTAINER):
        with pytest.raises(NotAllowed) as error:
            configure(store, who, owners=[])
        assert (error.value.code, error.value.subject) == ("not-allowed", "settings")
    assert configure(store, protected_aliases=["prod"]).maintainers == (key,)
    assert [change.by for change in rules_of(store.root).history][1:] == [OWNER.public.id] * 2
    assert examine(store).faults == ()


@pytest.mark.parametrize(
    "changes",
    [
        {"require_signature": True},
        {"protected_aliases": ["prod"]},
        {"owners": ["alice"]},
        {"owners": "ed25519:" + "0" * 64},
        {"nothing": ["x"]},
        {"require_signature": "yes", "publishers": [OWNER.public.id]},
        {"publishers": [OWNER.public.id], "revoked": [OWNER.public.id]},
    ],
    ids=lambda changes: "-".join(changes),
)
def test_settings_that_cannot_be_are_refused(store: Store, changes: dict[str, Any]):
    with pytest.raises((UsageError, TypeError)):
        configure(store, **changes)
    assert not (store.root / "settings").exists()


def test_what_nobody_signed_does_not_count(ruled: Store):
    """Whoever can write files, but has no key, changes nothing for readers."""
    before = ruled.rules.settings
    fields = {"registry": ruled.id, "settings": attrs.asdict(RegistrySettings()), "time": "now"}
    forged = dumps({"by": OWNER.public.id, **fields})
    (ruled.root / "settings/2").write_bytes(forged)
    (ruled.root / "settings/3").write_bytes(b"garbage")
    assert ruled.rules.settings == before
    faults = examine(ruled).faults
    assert [(fault.code, fault.path) for fault in faults] == [
        ("settings-refused", "settings/2"),
        ("settings-refused", "settings/3"),
    ]
    assert configure(ruled, protected_aliases=["prod"]).protected_aliases == ("prod",)
    assert ruled.rules.change.number == 4


def test_a_change_counts_in_its_own_registry_only(tmp_path: Path, ruled: Store):
    """Settings that an owner signed for another registry are not theirs for this one."""
    other = Store.init(tmp_path / "other")
    configure(other, owners=[OWNER.public.id], maintainers=[STRANGER.public.id])
    configure(other, protected_aliases=["x"])
    source = other.root / "settings/2"
    digest = _digest(source.read_bytes())
    folder = ruled.signatures.folder(digest)
    shutil.copytree(other.signatures.folder(digest), folder, dirs_exist_ok=True)
    shutil.copy(source, ruled.root / "settings/2")
    assert ruled.rules.settings.maintainers == (MAINTAINER.public.id,)
    assert [fault.path for fault in examine(ruled).faults] == ["settings/2"]


def test_a_change_that_would_not_be_read_is_refused(ruled: Store, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("compatkit.registry.settings.MAX_ENTRIES", 2)
    configure(ruled, protected_aliases=["prod"])
    for door in (
        lambda: configure(ruled, protected_aliases=["canary"]),
        lambda: change_remote_settings(ruled.root, Author.of(OWNER), protected_aliases=["canary"]),
    ):
        with pytest.raises(IntegrityError) as error:
            door()
        assert error.value.subject == "settings"
    assert ruled.rules.settings.protected_aliases == ("prod",)


@pytest.mark.parametrize("log_of", [f"refs/{NAME}/@log/canary", "policies"])
def test_no_change_follows_the_last_number_that_is_read(ruled: Store, log_of: str):
    """A file of the last number, written by hand, does not make later changes vanish unnoticed."""
    folder = ruled.root / log_of
    folder.mkdir(parents=True, exist_ok=True)
    prefix = "digits%2fmnist.head@" if log_of == "policies" else ""
    (folder / f"{prefix}999999999").write_bytes(b"")
    policy = Policy(scope=NAME, mode="backward", data=DATA)
    maintainer = acting(ruled, MAINTAINER)
    with pytest.raises(IntegrityError):
        if log_of == "policies":
            maintainer.set_policy(NAME, policy)
        else:
            maintainer.set_alias(NAME, "canary", "1.0.0")


def test_an_owner_who_left_has_left_and_what_they_did_stays(ruled: Store):
    configure(ruled, owners=[OWNER.public.id, STRANGER.public.id])
    configure(ruled, STRANGER, owners=[STRANGER.public.id])
    with pytest.raises(NotAllowed):
        configure(ruled, OWNER, protected_aliases=[])
    assert ruled.rules.settings.maintainers == (MAINTAINER.public.id,)


# --- doors


def test_protected_aliases_are_moved_by_maintainers_only(ruled: Store):
    for who in (None, STRANGER, PUBLISHER):
        for alias in ("prod", "release-7"):
            with pytest.raises(NotAllowed) as error:
                acting(ruled, who).set_alias(NAME, alias, "2.0.0")
            assert error.value.subject == alias
    acting(ruled, None).set_alias(NAME, "canary", "2.0.0")
    acting(ruled, MAINTAINER).set_alias(NAME, "prod", "2.0.0")
    assert ruled.aliases(NAME) == {"canary": "2.0.0", "prod": "2.0.0"}


def test_a_move_of_a_protected_alias_that_nobody_signed_does_not_count(ruled: Store):
    """A stranger who writes into the bucket does not move ``prod`` for readers."""
    move = dumps({"from": "1.0.0", "time": "2026-01-01T00:00:00+00:00", "to": "2.0.0"})
    (ruled.root / f"refs/{NAME}/@log/prod/2").write_bytes(move)
    pointer = ruled.root / f"refs/{NAME}/@aliases/prod"
    pointer.chmod(0o644)
    pointer.write_bytes(b"2.0.0 2\n")
    assert str(ruled.resolve(f"{NAME}:prod").version) == "1.0.0"
    assert [fault.code for fault in examine(ruled).faults] == ["alias-unsigned"]
    STRANGER_store = acting(ruled, STRANGER)
    STRANGER_store.signatures.add(
        *(
            lambda digest: (
                digest,
                STRANGER.sign(digest, f"refs/{NAME}/@log/prod/2", is_change=True).to_bytes(),
            )
        )(_digest(move))
    )
    assert ruled.aliases(NAME)["prod"] == "1.0.0"
    acting(ruled, MAINTAINER).set_alias(NAME, "prod", "2.0.0")
    assert ruled.aliases(NAME)["prod"] == "2.0.0"


def test_a_maintainer_who_left_leaves_prod_where_it_is_and_a_revoked_key_does_not(
    ruled: Store, publish: Publish
):
    acting(ruled, MAINTAINER).set_alias(NAME, "prod", "2.0.0")
    configure(ruled, maintainers=[OWNER.public.id])
    assert ruled.aliases(NAME)["prod"] == "2.0.0"
    with pytest.raises(NotAllowed):
        acting(ruled, MAINTAINER).set_alias(NAME, "prod", "1.0.0")
    acting(ruled, OWNER).set_alias(NAME, "prod", "1.0.0")
    configure(ruled, revoked=[MAINTAINER.public.id])
    assert ruled.aliases(NAME)["prod"] == "1.0.0"


def test_withdrawals_drops_and_policies_are_of_maintainers(ruled: Store, publish: Publish):
    policy = Policy(scope=NAME, mode="backward", data=DATA)
    for who in (None, STRANGER, PUBLISHER):
        store = acting(ruled, who)
        for door in (
            lambda store=store: store.withdraw(NAME, "1.0.0", "why"),
            lambda store=store: store.set_policy(NAME, policy),
            lambda store=store: drop(store, f"{NAME}@2.0.0", "why"),
        ):
            with pytest.raises(NotAllowed):
                door()
    maintainer = acting(ruled, MAINTAINER)
    maintainer.withdraw(NAME, "1.0.0", "why")
    with pytest.raises(NotAllowed):
        restore(acting(ruled, STRANGER), NAME, "1.0.0", "why not")
    restore(maintainer, NAME, "1.0.0", "why not")
    maintainer.set_policy(NAME, policy)
    revision = ruled.policies.of(NAME)
    assert revision is not None and revision.by == MAINTAINER.public.id
    with pytest.raises(NotAllowed):
        acting(ruled, None).set_policy(NAME, None)


def test_where_signatures_are_required_every_door_asks_for_them(
    ruled: Store, publish: Publish, tmp_path: Path
):
    configure(ruled, require_signature=True)
    for who in (None, STRANGER, MAINTAINER):
        with pytest.raises(NotAllowed):
            publish(acting(ruled, who), NAME, 3)
        with pytest.raises(NotAllowed):
            copy(acting(ruled, who), f"{NAME}@1.0.0", "digits/other.head")
    assert [str(version) for version in ruled.versions(NAME)] == ["1.0.0", "2.0.0"]
    third = publish(acting(ruled, PUBLISHER), NAME, 3)
    signers = ruled.signers
    assert signers is not None
    require_signature(ruled, third, signers, "auto")
    copied = copy(acting(ruled, PUBLISHER), f"{NAME}@1.0.0", "digits/other.head")
    require_signature(ruled, copied, signers, "auto")
    # a version that somebody wrote by hand has no signature
    path = ruled.root / f"refs/{NAME}/@versions/9.0.0"
    path.write_bytes(f"{third.digest} {NAME}@9.0.0\n".encode())
    with pytest.raises(SignatureError):
        require_signature(ruled, ruled.resolve(f"{NAME}@9.0.0"), signers, "auto")
    path.unlink()
    # what is imported needs one too
    other = Store.init(tmp_path / "other")
    publish(other, "digits/new.head", 7)
    refused = pull(acting(ruled, None), str(other.root)).refused
    assert [type(refusal.error) for refusal in refused] == [Unsigned]
    publish(acting(other, PUBLISHER), "digits/new.head", 8)
    assert len(pull(acting(ruled, None), str(other.root), ["digits/new.head@^2"]).created) == 1


def test_whom_the_user_trusts_and_whom_the_registry_trusts_must_both_have_signed(ruled: Store):
    from compatkit.registry.signing.trust import Trusted

    configure(ruled, require_signature=True)
    both = Trusted({key.public.id: key.public for key in (PUBLISHER, STRANGER)})
    signers = Store.open(ruled.root, both).signers
    assert signers is not None and list(signers.keys) == [PUBLISHER.public.id]
    alone = Store.open(ruled.root, Trusted({STRANGER.public.id: STRANGER.public})).signers
    assert alone is not None and not alone.keys


@pytest.mark.parametrize("kind", ["memory", "folder"])
def test_a_remote_with_settings_takes_from_a_push_what_they_allow(
    tmp_path: Path, ruled: Store, publish: Publish, memory: str, kind: str
):
    configure(ruled, require_signature=True)
    remote = str(ruled.root)
    if kind == "memory":
        remote, system = memory, fsspec.filesystem("memory")
        for path in ruled.root.rglob("*"):
            if path.is_file():
                system.pipe_file(f"{memory}/{path.relative_to(ruled.root).as_posix()}", path.read_bytes())
    mine = Store.init(tmp_path / "mine")
    pull(mine, remote).check()
    publish(mine, "digits/unsigned.head", 5)
    publish(acting(mine, PUBLISHER), "digits/signed.head", 6)
    mine.set_alias(NAME, "prod", "2.0.0")
    mine.withdraw(NAME, "1.0.0", "a bug")
    report = push(mine, remote)
    assert [refusal.what for refusal in report.refused] == ["digits/unsigned.head@1.0.0"]
    assert [str(version) for version in report.created] == ["digits/signed.head@1.0.0"]
    assert [(offer.kind, offer.what) for offer in report.offered] == [
        ("withdrawal", f"{NAME}@1.0.0"),
        ("alias", f"{NAME}:prod"),
    ]
    maintained = acting(mine, MAINTAINER)
    maintained.set_alias(NAME, "prod", None)
    report = push(maintained, remote)
    assert report.aliases == []  # an unsigned move stands before it
    reader = Store.init(tmp_path / "reader")
    pull(reader, remote, [NAME]).check()
    assert reader.aliases(NAME) == {"prod": "1.0.0"} and not reader.references.withdrawn(NAME)


def test_an_incoming_move_of_a_protected_alias_needs_a_maintainer_here(
    tmp_path: Path, ruled: Store, publish: Publish
):
    other = Store.init(tmp_path / "other")
    pull(other, str(ruled.root)).check()
    other.set_alias(NAME, "prod", "2.0.0")
    following = TransferSettings().following()
    report = pull(ruled, str(other.root), settings=following)
    assert report.aliases == [] and ruled.aliases(NAME)["prod"] == "1.0.0"
    assert [(offer.what, offer.error.code) for offer in report.offered if offer.error] == [
        (f"{NAME}:prod", "unsigned")
    ]


@pytest.mark.parametrize("kind", ["memory", "folder"])
def test_settings_of_a_remote_are_changed_like_those_of_a_folder(
    tmp_path: Path, store: Store, memory: str, kind: str
):
    remote = memory if kind == "memory" else str(tmp_path / "far")
    push(store, remote)
    owner, stranger = Author.of(OWNER), Author.of(STRANGER)
    change = change_remote_settings(
        remote, owner, owners=[OWNER.public.id], maintainers=[MAINTAINER.public.id]
    )
    assert change.number == 1 and remote_rules(remote).settings == change.settings
    assert change_remote_settings(remote, owner, owners=[OWNER.public.id]) == remote_rules(remote).change
    with pytest.raises(NotAllowed):
        change_remote_settings(remote, stranger, owners=[STRANGER.public.id])
    if kind == "memory":  # whoever can write, but has no key, changes nothing
        system = fsspec.filesystem("memory")
        system.pipe_file(f"{memory}/settings/2", system.cat_file(f"{memory}/settings/1"))
        assert remote_rules(remote).change.number == 1
    assert change_remote_settings(remote, owner, maintainers=[]).number == (3 if kind == "memory" else 2)
    assert remote_rules(remote).settings.maintainers == ()
    with pytest.raises(LayoutError):
        remote_rules(f"{remote}-nowhere")
    with pytest.raises(UsageError):
        remote_rules(f"oci-layout://{tmp_path}/layout")


# --- who made a change


def test_every_change_says_who_made_it_and_from_which_commit(
    ruled: Store, publish: Publish, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    work = tmp_path / "work"
    work.mkdir()
    git = ["git", "-C", str(work), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "commit", "-q", "--allow-empty", "-m", "first"], check=True)
    commit = subprocess.run(
        [*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True
    ).stdout.strip()
    monkeypatch.chdir(work)
    maintainer = acting(ruled, MAINTAINER)
    publish(maintainer, NAME, 5)
    maintainer.set_alias(NAME, "prod", "2.0.0")
    maintainer.withdraw(NAME, "1.0.0", "a bug")
    restore(maintainer, NAME, "1.0.0", "none")
    copy(maintainer, f"{NAME}@1.0.0", f"{NAME}@7.0.0")
    copy(maintainer, f"{NAME}@1.0.0", f"{NAME}@8.0.0")
    drop(maintainer, f"{NAME}@8.0.0", "taken by the other team")
    assert [fault.code for fault in examine(ruled).faults] == ["trash"]
    entries = log(ruled, NAME)
    by_maintainer = [entry for entry in entries if entry.commit == commit]
    assert sorted(entry.what for entry in by_maintainer) == [
        "alias",
        "dropped",
        "published",
        "published",
        "restored",
        "withdrawn",
    ]
    assert {entry.by for entry in by_maintainer} == {MAINTAINER.public.id}
    assert {entry.by for entry in entries if entry.what == "published"} == {
        PUBLISHER.public.id,
        MAINTAINER.public.id,
    }
    target = Store.init(tmp_path / "copy")
    pull(target, str(ruled.root)).check()
    assert [(entry.what, entry.by, entry.commit) for entry in log(target, NAME)] == [
        (entry.what, entry.by, entry.commit) for entry in entries if entry.what != "dropped"
    ]


def test_without_a_key_the_user_is_named_and_the_environment_names_a_key(
    store: Store, publish: Publish, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    import getpass

    publish(store, NAME, 1)
    assert {entry.by for entry in log(store, NAME)} == {getpass.getuser()}
    PUBLISHER.save(tmp_path / "key.pem")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "key.pem"))
    reference = publish(Store.open(store.root), NAME, 2)
    assert log(store, NAME)[0].by == PUBLISHER.public.id
    from compatkit.registry.signing.trust import Trusted

    require_signature(store, reference, Trusted({PUBLISHER.public.id: PUBLISHER.public}), "auto")


def test_a_damaged_record_of_a_publication_hurts_nobody(store: Store, publish: Publish):
    publish(store, NAME, 1)
    record = store.root / f"refs/{NAME}/@published/1.0.0"
    record.chmod(0o644)
    record.write_bytes(json.dumps({"by": 5}).encode())
    assert store.resolve(NAME) and log(store, NAME)[0].by == ""
    report = examine(store)
    assert report.sound and [fault.code for fault in report.faults] == ["publication-damaged"]


def test_a_version_without_a_record_is_compared_with_concurrent_ones_too(
    store: Store, publish: Publish, monkeypatch: pytest.MonkeyPatch
):
    compared: list[object] = []

    def full(*arguments: Any, published: bool) -> None:
        if published:
            raise EnvironmentFailure("the disk is full")
        record_publication(*arguments, published=published)

    monkeypatch.setattr("compatkit.registry.publish.record_publication", full)
    monkeypatch.setattr(Publisher, "_check_linked", lambda self, state: compared.append(state.target))
    with pytest.raises(EnvironmentFailure):
        publish(store, NAME, 1)
    assert [str(version) for version in compared] == ["1.0.0"] == list(map(str, store.versions(NAME)))
    assert publish(store, NAME, 1).version == store.versions(NAME)[0]


def test_an_unknown_name_stays_unknown(ruled: Store):
    with pytest.raises(NotFound):
        acting(ruled, MAINTAINER).set_alias("digits/nothing", "prod", "1.0.0")


def _digest(data: bytes) -> str:
    from compatkit.foundation.codec import digest

    return digest(data)

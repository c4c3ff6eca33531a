"""A version gets a second name or number: the same manifest, with the rules and policies of the new name."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import attrs
import pytest

from compatkit.contracts.manifest import Parent
from compatkit.errors import (
    InvalidName,
    NotFound,
    OtherName,
    PolicyBroken,
    PolicyUndecided,
    UsageError,
    VersionExists,
    VersionTooSmall,
)
from compatkit.foundation.codec import dumps, loads
from compatkit.registry.maintenance.check import examine
from compatkit.registry.maintenance.gc import plan
from compatkit.registry.names import Reference, Version
from compatkit.registry.policies import Images, Policy
from compatkit.registry.required_partners import PolicyRequirement
from compatkit.registry.second_names import copy
from compatkit.registry.signing.private_keys import SigningKey
from compatkit.registry.signing.signer import sign
from compatkit.registry.signing.trust import Trusted
from compatkit.registry.signing.verify import verify
from compatkit.registry.store import Store

Publish = Callable[..., Any]
STAGING, PROD = "staging/eye", "prod/eye"
DATA = Images("mnist/test", "data:sha256:" + "a" * 64)


def versions(store: Store, name: str) -> dict[str, str | None]:
    """Return the digest of every version of a name, withdrawn ones too."""
    references = store.references
    return {str(version): references.digest(name, version) for version in references.versions(name)}


def test_a_copy_is_the_same_manifest_under_the_first_number_of_another_name(store: Store, publish: Publish):
    for value in range(3):
        source = publish(store, STAGING, value)
    copied = copy(store, STAGING, PROD)
    assert copied == Reference(PROD, Version(1, 0, 0), digest=source.digest)
    assert versions(store, PROD) == {"1.0.0": source.digest}
    assert store.resolve(STAGING) == source
    assert store.manifest(copied) == store.manifest(source)
    assert examine(store).faults == ()


def test_the_number_follows_the_latest_version_of_the_other_name(store: Store, publish: Publish):
    publish(store, PROD, 0)
    other = publish(store, STAGING, 1)
    assert str(copy(store, STAGING, PROD)) == f"{PROD}@2.0.0"
    assert str(copy(store, STAGING, PROD)) == f"{PROD}@2.0.0"  # again: nothing new
    assert str(copy(store, STAGING, f"{PROD}@5.0.0")) == f"{PROD}@5.0.0"
    assert str(copy(store, STAGING, PROD, major=True)) == f"{PROD}@5.0.0"
    assert {*versions(store, PROD).values()} >= {other.digest}


def test_its_own_name_gives_it_the_next_number_once(store: Store, publish: Publish):
    publish(store, STAGING, 0)
    assert str(copy(store, f"{STAGING}@1.0.0", STAGING)) == f"{STAGING}@1.0.1"
    assert str(copy(store, f"{STAGING}@1.0.0", STAGING)) == f"{STAGING}@1.0.1"
    assert str(copy(store, f"{STAGING}@1.0.1", STAGING, major=True)) == f"{STAGING}@2.0.0"
    publish(store, STAGING, 1)
    assert str(copy(store, f"{STAGING}@1.0.0", STAGING)) == f"{STAGING}@4.0.0"
    assert str(copy(store, f"{STAGING}@1.0.0", f"{STAGING}@1.0.0")) == f"{STAGING}@1.0.0"
    assert examine(store).faults == ()


def test_a_number_that_cannot_be_had_is_an_error_and_nothing_is_published(store: Store, publish: Publish):
    other = publish(store, PROD, 0)
    publish(store, PROD, 5)
    publish(store, STAGING, 1)
    before = versions(store, PROD)
    with pytest.raises(VersionExists) as refused:
        copy(store, STAGING, str(other))
    assert refused.value.subject == f"{PROD}@1.0.0"
    for number in ("1.0.1", "1.7.0", "2.1.0"):
        with pytest.raises(VersionTooSmall) as refused:
            copy(store, STAGING, f"{PROD}@{number}")
        assert refused.value.subject == f"{PROD}@{number}"
    assert versions(store, PROD) == before


@pytest.mark.parametrize("target", [f"{PROD}:best", f"{PROD}@^1", f"{PROD}@sha256:{'0' * 64}"])
def test_only_a_name_or_a_version_can_be_the_target(store: Store, publish: Publish, target: str):
    publish(store, STAGING)
    with pytest.raises(UsageError) as refused:
        copy(store, STAGING, target)
    assert refused.value.subject == target and store.names() == [STAGING]


def test_a_version_and_the_next_major_exclude_each_other(store: Store, publish: Publish):
    publish(store, STAGING)
    with pytest.raises(UsageError):
        copy(store, STAGING, f"{PROD}@2.0.0", major=True)
    with pytest.raises(InvalidName):
        copy(store, STAGING, "Prod/Eye")
    with pytest.raises(NotFound):
        copy(store, f"{STAGING}@7.0.0", PROD)
    assert store.names() == [STAGING]


def test_kinds_agree(store: Store, publish: Publish):
    eye = publish(store, STAGING)
    publish(store, PROD, 1, kind="head", parents=(Parent("trained_with", str(eye.digest)),))
    with pytest.raises(UsageError) as refused:
        copy(store, STAGING, PROD)
    assert refused.value.subject == PROD


@pytest.mark.parametrize("reference", [f"{STAGING}@1.0.0", f"{STAGING}@{{}}"])
def test_a_withdrawn_version_gets_no_second_name(store: Store, publish: Publish, reference: str):
    digest = publish(store, STAGING).digest
    store.withdraw(STAGING, "1.0.0", "trained on the test set")
    with pytest.raises((UsageError, NotFound)):
        copy(store, reference.format(digest), PROD)
    assert store.names() == [STAGING]


def test_a_manifest_in_another_spelling_keeps_its_digest(store: Store, publish: Publish):
    """Older programs left out fields with their default; the bytes, not the values, are the identity."""
    canonical = publish(store, STAGING)
    value = loads(store.read_blob(str(canonical.digest)), what="manifest")
    del value["extensions"]
    older = store.put_blob(dumps(value)).blob
    assert older != canonical.digest
    store.references.create("old/eye", Version(1, 0, 0), older)
    assert copy(store, "old/eye", PROD).digest == older
    assert versions(store, PROD) == {"1.0.0": older}


def test_children_hold_and_nothing_of_a_copy_is_collected(store: Store, publish: Publish):
    eye = publish(store, STAGING)
    hand = publish(store, "staging/hand", 1, kind="head", parents=(Parent("trained_with", str(eye.digest)),))
    copy(store, STAGING, PROD)
    copy(store, "staging/hand", "prod/hand")
    (store.root / f"refs/{STAGING}/@versions/1.0.0").unlink()
    (store.root / "refs/staging/hand/@versions/1.0.0").unlink()
    plan(store, grace=timedelta(0), alone=True).apply()
    for name, reference in ((PROD, eye), ("prod/hand", hand)):
        assert store.resolve(name).digest == reference.digest
        store.load_state(store.manifest(name), verify="always")


# --- policies of the other name


@pytest.fixture
def promised(store: Store, publish: Publish) -> Store:
    """``prod/eye`` with a released head and a policy, and another version in staging."""
    eye = publish(store, PROD, 0)
    publish(store, "prod/hand", 9, kind="head", parents=(Parent("trained_with", str(eye.digest)),))
    store.set_policy(PROD, Policy(scope=PROD, mode="backward", data=DATA))
    publish(store, STAGING, 1)
    return store


def test_what_nobody_measured_is_refused(promised: Store):
    with pytest.raises(PolicyUndecided) as refused:
        copy(promised, STAGING, PROD)
    assert refused.value.subject.name == PROD
    assert [*versions(promised, PROD)] == ["1.0.0"]


def test_what_passes_is_a_measured_step(promised: Store):
    asked: list[PolicyRequirement] = []
    assert str(copy(promised, STAGING, PROD, policy_checks=lambda _: asked.append)) == f"{PROD}@1.1.0"
    (requirement,) = asked
    assert [str(partner.reference) for partner in requirement.partners] == ["prod/hand@1.0.0"]


def test_what_fails_is_refused_and_the_next_major_is_open(promised: Store):
    def fail(requirement: PolicyRequirement) -> None:
        raise PolicyBroken("it fails", subject=requirement)

    with pytest.raises(PolicyBroken):
        copy(promised, STAGING, PROD, policy_checks=lambda _: fail, unmeasured=True)
    assert str(copy(promised, STAGING, PROD, policy_checks=lambda _: fail, major=True)) == f"{PROD}@2.0.0"


@pytest.mark.parametrize("target", [PROD, f"{PROD}@1.4.0"])
def test_what_is_let_in_unmeasured_is_recorded(promised: Store, target: str):
    copied = copy(promised, STAGING, target, unmeasured=True)
    assert str(copied) == (target if "@" in target else f"{PROD}@1.1.0")
    assert promised.policies.admitted(PROD) == {str(copied)}


def test_what_is_refused_for_its_number_is_not_recorded_as_let_in(promised: Store):
    with pytest.raises(VersionTooSmall):
        copy(promised, STAGING, f"{PROD}@1.0.1", unmeasured=True)
    assert promised.policies.admitted(PROD) == set()


def test_policies_of_the_old_name_do_not_bind_the_copy(promised: Store):
    assert str(copy(promised, PROD, "other/eye")) == "other/eye@1.0.0"


# --- signatures


def test_a_signature_of_the_old_name_does_not_count_under_the_new_one(
    store: Store, publish: Publish, key: SigningKey, trusted: Trusted
):
    publish(store, STAGING)
    sign(store, STAGING, key)
    copied = str(copy(store, STAGING, PROD))
    with pytest.raises(OtherName):
        verify(store, copied, trusted)
    sign(store, copied, key)
    assert any(verdict.valid for verdict in verify(store, copied, trusted))
    assert any(verdict.valid for verdict in verify(store, STAGING, trusted))


def test_where_signatures_are_required_an_unsigned_version_is_not_copied(
    store: Store, publish: Publish, key: SigningKey, trusted: Trusted
):
    from compatkit.errors import Unsigned

    publish(store, STAGING)
    strict = attrs.evolve(store, trusted=trusted)
    with pytest.raises(Unsigned):
        copy(strict, STAGING, PROD)
    assert store.names() == [STAGING]
    sign(store, STAGING, key)
    assert str(copy(strict, STAGING, PROD)) == f"{PROD}@1.0.0"

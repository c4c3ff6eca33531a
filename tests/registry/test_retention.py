"""Old versions are withdrawn by a rule, and nothing that is relied on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest

from compatkit.contracts.manifest import Parent
from compatkit.errors import NotAllowed, NotFound, UsageError
from compatkit.registry import disk as durable
from compatkit.registry.authorship import Author
from compatkit.registry.maintenance.check import examine
from compatkit.registry.maintenance.operations import Maintenance
from compatkit.registry.maintenance.retention import NEWEST, RetentionPlan
from compatkit.registry.names import Version
from compatkit.registry.policies import Images, Policy
from compatkit.registry.settings import change_settings
from compatkit.registry.signing.private_keys import SigningKey
from compatkit.registry.store import Store

Publish = Callable[..., Any]
EYE, HAND, REASON = "digits/eye", "digits/hand", "older than five releases"
DATA = Images("mnist/test", "data:sha256:" + "a" * 64)


def retention(store: Store, patterns: Any = "digits/*", keep: int = 2) -> RetentionPlan:
    return Maintenance(store).withdraw(patterns, keep=keep, reason=REASON)


def living(store: Store) -> list[str]:
    return [
        f"{name}@{version}"
        for name, version in store.references.each()
        if version not in store.references.withdrawn(name)
    ]


def why(plan: RetentionPlan) -> dict[str, str]:
    return {version.reference: version.why for version in plan.kept if version.why != NEWEST}


@pytest.fixture
def several(store: Store, publish: Publish) -> Store:
    """Five versions of one name, one of another, one elsewhere."""
    for value in range(5):
        publish(store, EYE, value)
    publish(store, HAND, 10)
    publish(store, "other/eye", 11)
    return store


def test_all_but_the_newest_of_each_name_are_withdrawn(several: Store) -> None:
    before = living(several)
    plan = retention(several)
    assert plan.withdrawn == tuple(f"{EYE}@{major}.0.0" for major in (1, 2, 3)) and why(plan) == {}
    assert living(several) == before, "a plan changes nothing"
    done = plan.apply()
    assert done == attrs.evolve(plan, kept=done.kept) and done.withdrawn == plan.withdrawn
    assert living(several) == [f"{EYE}@4.0.0", f"{EYE}@5.0.0", f"{HAND}@1.0.0", "other/eye@1.0.0"]
    note = several.tombstone(EYE, "1.0.0")
    assert note is not None and note.reason == REASON
    assert retention(several).withdrawn == (), "withdrawn versions do not count"
    assert examine(several).faults == ()


def test_what_an_alias_points_at_stays(several: Store) -> None:
    several.set_alias(EYE, "prod", "1.0.0")
    several.set_alias(EYE, "old", "1.0.0")
    plan = retention(several)
    assert plan.withdrawn == (f"{EYE}@2.0.0", f"{EYE}@3.0.0")
    assert "old, prod" in why(plan)[f"{EYE}@1.0.0"]
    several.set_alias(EYE, "late", "2.0.0")  # after the plan
    done = plan.apply()
    assert done.withdrawn == (f"{EYE}@3.0.0",) and set(why(done)) == {f"{EYE}@1.0.0", f"{EYE}@2.0.0"}
    assert f"{EYE}@2.0.0" in living(several)


def test_a_part_of_a_recombination_stays(several: Store, publish: Publish) -> None:
    parent = Parent("extractor", str(several.resolve(f"{EYE}@2.0.0").digest))
    publish(several, "digits/both", 12, kind="recombination", parents=(parent,))
    plan = retention(several)
    assert "digits/both@1.0.0" in why(plan)[f"{EYE}@2.0.0"] and f"{EYE}@2.0.0" not in plan.withdrawn
    several.withdraw("digits/both", "1.0.0", "gone")
    assert f"{EYE}@2.0.0" in retention(several).withdrawn


def test_what_a_policy_measures_with_stays(several: Store, publish: Publish) -> None:
    eye = several.resolve(f"{EYE}@1.0.0")
    publish(several, HAND, 20, kind="head", parents=(Parent("trained_with", str(eye.digest)),))
    assert f"{EYE}@1.0.0" in retention(several).withdrawn, "without a policy nothing relies on it"
    several.set_policy(EYE, Policy(scope=EYE, mode="full_transitive", data=DATA))
    plan = retention(several)
    assert f"{EYE}@1.0.0" not in plan.withdrawn and HAND in why(plan)[f"{EYE}@1.0.0"]
    assert plan.withdrawn == (f"{EYE}@2.0.0", f"{EYE}@3.0.0")


def test_a_withdrawal_that_is_refused_leaves_nothing_behind(several: Store) -> None:
    key = SigningKey.new("alice")
    change_settings(several.root, Author.of(key), maintainers=(key.public.id,))
    before = {path: path.stat().st_mtime_ns for path in several.root.rglob("*") if path.is_file()}
    with pytest.raises(NotAllowed) as error:
        retention(several).apply()
    with pytest.raises(NotAllowed):
        several.withdraw(EYE, "1.0.0", REASON)
    assert error.value.subject == retention(several).withdrawn[0]
    assert {path: path.stat().st_mtime_ns for path in several.root.rglob("*") if path.is_file()} == before
    assert examine(several).faults == ()
    done = retention(attrs.evolve(several, key=key)).apply()
    assert done.withdrawn and examine(several).faults == ()
    for label in done.withdrawn:
        name, _, number = label.partition("@")
        entry = several.references.withdrawals(name).tombstone(Version.parse(number))
        assert entry is not None and entry.by == key.public.id


@pytest.mark.parametrize("number", range(12))
def test_a_killed_call_is_continued_by_the_same_call(
    several: Store, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    class Killed(BaseException):
        pass

    left = number

    def step(operation: str, path: Any) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(durable, "step", step)
        retention(several).apply()
    assert f"{EYE}@5.0.0" in living(several) and f"{EYE}@4.0.0" in living(several)
    retention(several).apply()
    assert living(several) == [f"{EYE}@4.0.0", f"{EYE}@5.0.0", f"{HAND}@1.0.0", "other/eye@1.0.0"]
    assert not examine(several).count("error")


@pytest.mark.parametrize(
    ("patterns", "keep", "reason"),
    [
        (EYE, 0, REASON),
        (EYE, -1, REASON),
        (EYE, True, REASON),
        (EYE, 2, " "),
        (f"{EYE}@1.0.0", 2, REASON),
        (5, 2, REASON),
    ],
)
def test_wrong_words_are_refused(several: Store, patterns: Any, keep: Any, reason: str) -> None:
    with pytest.raises(UsageError):
        Maintenance(several).withdraw(patterns, keep=keep, reason=reason)


def test_a_pattern_matches_something(several: Store) -> None:
    with pytest.raises(NotFound) as error:
        retention(several, ["digits/*", "nothing/*"])
    assert error.value.subject == "nothing/*"

"""Requirements of policies on a new version; nothing is published on the result of an outdated requirement."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest

from compatkit.contracts.contract import Label
from compatkit.contracts.manifest import About, Manifest, Parent, Payload
from compatkit.errors import (
    CompatkitError,
    FormatError,
    PolicyBroken,
    PolicyUndecided,
    UsageError,
    VersionTooSmall,
)
from compatkit.registry.names import Reference
from compatkit.registry.policies import Images, Policy
from compatkit.registry.refs import References
from compatkit.registry.required_partners import PolicyRequirement
from compatkit.registry.store import Store

E, H = "digits/eye", "digits/hand"
DATA = Images("mnist/test", "data:sha256:" + "a" * 64)


@attrs.frozen
class Parts:
    """Publishes extractors and heads that differ by a number.

    Attributes:
        asked: Every requirement that was asked, in order.
    """

    store: Store
    put: Callable[..., Payload]
    build: Callable[..., Manifest]
    asked: list[PolicyRequirement] = attrs.field(factory=list)

    def extractor(self, value: int, **changes: Any) -> Manifest:
        return self.build(self.put(self.store, value), **changes)

    def head(
        self, value: int, *extractors: Reference, relation: str = "trained_with", **changes: Any
    ) -> Manifest:
        parents = tuple(Parent(relation, str(extractor.digest)) for extractor in extractors)
        return self.build(self.put(self.store, value), kind="head", parents=parents, **changes)

    def publish(self, name: str, manifest: Manifest, **more: Any) -> Reference:
        """Publish whatever a policy says."""
        return self.store.publish(name, manifest, **{"policy_check": self.asked.append, **more})

    def bind(self, mode: Any, scope: str = "digits/*", **changes: Any) -> None:
        self.store.set_policy(scope, Policy(scope=scope, mode=mode, data=DATA, **changes))

    def partners(self, name: str, manifest: Manifest, **more: Any) -> list[str]:
        return [
            str(partner.reference)
            for partner in self.store.policy_requirement(name, manifest, **more).partners
        ]

    def reason(self, name: str, manifest: Manifest, **more: Any) -> str:
        return self.store.policy_requirement(name, manifest, **more).reason


@pytest.fixture
def parts(store: Store, put: Callable[..., Payload], manifest_of: Callable[..., Manifest]) -> Parts:
    return Parts(store, put, manifest_of)


@pytest.fixture
def family(parts: Parts) -> Parts:
    """Two extractors of one line, each with a head of its own; and one head more for the first."""
    first = parts.publish(E, parts.extractor(0))
    parts.publish(H, parts.head(10, first))
    parts.publish("other/hand", parts.head(11, first))
    second = parts.publish(E, parts.extractor(1), measured=True)
    parts.publish(H, parts.head(12, second), measured=True)
    return parts


# Which partners


def test_backward_asks_for_the_heads_of_the_previous_version_alone(family: Parts) -> None:
    family.bind("backward")
    assert family.partners(E, family.extractor(2)) == [f"{H}@1.1.0"]


def test_backward_transitive_asks_for_the_heads_of_every_version_of_the_line(family: Parts) -> None:
    family.bind("backward_transitive")
    assert family.partners(E, family.extractor(2)) == [f"{H}@1.0.0", f"{H}@1.1.0", "other/hand@1.0.0"]


def test_the_bound_of_each_is_the_extractor_that_it_was_trained_with(family: Parts) -> None:
    family.bind("backward_transitive")
    requirement = family.store.policy_requirement(E, family.extractor(2))
    digests = {
        str(version): str(family.store.resolve(f"{E}@{version}").digest)
        for version in family.store.versions(E)
    }
    assert [partner.bound for partner in requirement.partners] == [
        digests["1.0.0"],
        digests["1.1.0"],
        digests["1.0.0"],
    ]
    assert requirement.previous == Reference(E, family.store.versions(E)[-1], digest=digests["1.1.0"])
    assert requirement.is_open and not requirement.reason


def test_the_number_asked_for_says_which_version_is_the_previous(family: Parts) -> None:
    family.bind("backward")
    family.publish(E, family.extractor(3), major=True)
    assert family.partners(E, family.extractor(2), version="1.0.5") == [f"{H}@1.0.0", "other/hand@1.0.0"]
    assert family.partners(E, family.extractor(2), version="1.7.0") == [f"{H}@1.1.0"]


def test_forward_asks_for_every_version_of_the_line_that_the_previous_head_was_trained_with(
    family: Parts,
) -> None:
    family.bind("forward")
    elsewhere = family.publish("else/eye", family.extractor(5))
    assert family.partners(H, family.head(20, elsewhere)) == [f"{E}@1.0.0", f"{E}@1.1.0"]
    family.publish("third", family.head(21, elsewhere))
    assert family.partners("third", family.head(22, elsewhere)) == []  # not in the scope
    family.bind("forward", "third")
    assert family.partners("third", family.head(22, elsewhere)) == ["else/eye@1.0.0"]


def test_forward_transitive_asks_for_the_lines_of_every_earlier_head(family: Parts) -> None:
    elsewhere = family.publish("else/eye", family.extractor(5))
    family.publish(H, family.head(20, elsewhere), measured=True)
    family.bind("forward")
    assert family.partners(H, family.head(21, elsewhere)) == ["else/eye@1.0.0"]
    family.bind("forward_transitive")
    assert family.partners(H, family.head(21, elsewhere)) == [f"{E}@1.0.0", f"{E}@1.1.0", "else/eye@1.0.0"]


def test_the_bound_of_a_new_head_is_its_own_extractor(family: Parts) -> None:
    family.bind("forward")
    own = family.store.resolve(f"{E}@1.0.0")
    assert {
        partner.bound for partner in family.store.policy_requirement(H, family.head(20, own)).partners
    } == {own.digest}
    assert {partner.bound for partner in family.store.policy_requirement(H, family.head(20)).partners} == {
        None
    }


def test_full_asks_both_ways(family: Parts) -> None:
    family.bind("full")
    assert family.partners(E, family.extractor(2)) and family.partners(H, family.head(20))


def test_a_patch_of_the_extractor_has_its_heads(family: Parts) -> None:
    """Heads name a manifest; another title makes another manifest, and no other function."""
    family.bind("backward")
    same = attrs.evolve(family.extractor(1), about=About(title="better told"))
    assert str(family.publish(E, same)) == f"{E}@1.1.1"
    assert family.partners(E, family.extractor(2)) == [f"{H}@1.1.0"]
    family.store.withdraw(E, "1.1.0", "its title")
    assert family.partners(E, family.extractor(2)) == [f"{H}@1.1.0"]


def test_of_several_heads_with_one_function_the_last_is_asked_for(family: Parts) -> None:
    family.bind("backward")
    message = attrs.evolve(family.store.manifest(f"{H}@1.1.0"), about=About(title="better told"))
    assert str(family.publish(H, message)) == f"{H}@1.1.1"
    assert family.partners(E, family.extractor(2)) == [f"{H}@1.1.1"]


def test_withdrawn_versions_do_not_count(family: Parts) -> None:
    family.bind("backward_transitive")
    family.store.withdraw("other/hand", "1.0.0", "wrong")
    assert family.partners(E, family.extractor(2)) == [f"{H}@1.0.0", f"{H}@1.1.0"]
    family.store.withdraw(E, "1.0.0", "wrong")
    assert family.partners(E, family.extractor(2)) == [f"{H}@1.1.0"]
    family.bind("forward_transitive")
    assert family.partners(H, family.head(20)) == [f"{E}@1.1.0"]


def test_only_the_extractor_that_a_head_was_trained_with_makes_it_a_partner(parts: Parts) -> None:
    first = parts.publish(E, parts.extractor(0))
    parts.publish(H, parts.head(10, first, relation="initialised_from"))
    parts.bind("backward")
    assert parts.reason(E, parts.extractor(1)) == "no head is released against 1.0.0"


def test_another_major_line_is_not_asked_about_unless_the_policy_holds_across(family: Parts) -> None:
    family.bind("backward_transitive")
    assert family.reason(E, family.extractor(2), version="2.0.0").startswith("it begins a new MAJOR line")
    assert family.reason(E, family.extractor(2), major=True).startswith("it begins a new MAJOR line")
    family.publish(E, family.extractor(2), major=True)
    assert family.reason(E, family.extractor(3)) == "no head is released against an earlier version"
    family.bind("backward_transitive", across_major=True)
    every = [f"{H}@1.0.0", f"{H}@1.1.0", "other/hand@1.0.0"]
    assert (
        family.partners(E, family.extractor(3))
        == family.partners(E, family.extractor(3), major=True)
        == every
    )
    family.bind("forward", across_major=True)
    assert family.partners(H, family.head(20)) == [f"{E}@1.0.0", f"{E}@1.1.0", f"{E}@2.0.0"]


def test_why_nothing_is_asked(family: Parts) -> None:
    assert family.reason(E, family.extractor(2)) == "no policy binds this name"
    family.bind("forward")
    assert family.reason(E, family.extractor(2)) == "the mode forward does not apply to extractors"
    assert family.reason("digits/new", family.head(2)) == "it is the first version"
    family.bind("backward")
    assert family.reason(E, family.extractor(1)) == "it has the function of 1.1.0, which is released"
    family.store.set_policy("digits/*", Policy(scope="digits/*", mode="none"))
    assert family.reason(E, family.extractor(2)) == "the mode none does not apply to extractors"


# Publishing


def refuse(requirement: PolicyRequirement) -> None:
    raise PolicyBroken("fails", subject=requirement)


@pytest.mark.parametrize("more", [{}, {"measured": True}, {"version": "1.2.0"}], ids=str)
def test_a_plain_publish_is_refused_and_told_what_to_call(family: Parts, more: dict[str, Any]) -> None:
    family.bind("backward")
    with pytest.raises(
        PolicyUndecided, match=rf"measurement of the new extractor with {H}@1\.1\.0.*Registry\.publish"
    ) as refused:
        family.store.publish(E, family.extractor(2), **more)
    assert refused.value.subject == family.store.policy_requirement(E, family.extractor(2))
    assert len(family.store.versions(E)) == 2


def test_what_no_policy_asks_about_is_published_as_ever(family: Parts) -> None:
    family.bind("backward")
    assert str(family.store.publish(H, family.head(30))) == f"{H}@2.0.0"
    assert str(family.store.publish("digits/new", family.extractor(30))) == "digits/new@1.0.0"
    assert str(family.store.publish(E, family.extractor(31), major=True)) == f"{E}@2.0.0"
    assert str(family.store.publish(E, family.extractor(32), version="4.0.0")) == f"{E}@4.0.0"


def test_a_passed_measurement_makes_new_weights_minor(family: Parts) -> None:
    family.bind("backward_transitive")
    assert str(family.publish(E, family.extractor(2))) == f"{E}@1.2.0"
    assert [len(option.partners) for option in family.asked] == [3]
    with pytest.raises(VersionTooSmall, match=r"at least 1\.3\.0"):
        family.publish(E, family.extractor(3), version="1.2.1")


def test_a_failed_one_is_refused_within_the_line_only(family: Parts) -> None:
    family.bind("backward")
    for more in ({}, {"version": "1.2.0"}):
        with pytest.raises(PolicyBroken):
            family.publish(E, family.extractor(2), policy_check=refuse, **more)
    assert str(family.publish(E, family.extractor(2), policy_check=refuse, version="2.0.0")) == f"{E}@2.0.0"
    assert str(family.publish(E, family.extractor(3), policy_check=refuse, major=True)) == f"{E}@3.0.0"


def test_across_majors_no_number_is_open_to_what_failed(family: Parts) -> None:
    family.bind("backward", across_major=True)
    for more in ({}, {"version": "2.0.0"}, {"major": True}):
        with pytest.raises(PolicyBroken):
            family.publish(E, family.extractor(2), policy_check=refuse, **more)


def test_where_nothing_was_measured_new_weights_stay_major(parts: Parts) -> None:
    """Nobody in this registry is lost, but nothing is known either; a policy without partners vouches for nothing."""
    parts.publish(E, parts.extractor(0))
    parts.bind("backward")
    assert str(parts.publish(E, parts.extractor(1))) == f"{E}@2.0.0"
    assert parts.asked == []


def test_a_measurement_brings_back_no_lost_partner(family: Parts) -> None:
    family.bind("backward")
    base = family.extractor(2)
    data = attrs.evolve(base.contract.data, labels=(Label("plane"),))
    less = attrs.evolve(base, contract=attrs.evolve(base.contract, data=data))
    assert str(family.publish(E, less)) == f"{E}@2.0.0"


def test_the_same_manifest_again_is_the_same_version(family: Parts) -> None:
    family.bind("backward")
    for more in ({}, {"version": "1.1.0"}, {"major": True}):
        assert str(family.publish(E, family.extractor(1), policy_check=refuse, **more)) == f"{E}@1.1.0"


def test_a_number_and_the_next_major_exclude_each_other(parts: Parts) -> None:
    with pytest.raises(UsageError, match="not both"):
        parts.publish(E, parts.extractor(0), version="2.0.0", major=True)


def test_nothing_is_published_under_a_damaged_policy(family: Parts) -> None:
    family.bind("backward")
    path = next((family.store.root / "policies").rglob("*@1"))
    path.chmod(0o644)
    path.write_bytes(b"{")
    for name, manifest in ((E, family.extractor(2)), (H, family.head(30)), ("digits/new", family.head(31))):
        with pytest.raises(FormatError, match="holds no policy"):
            family.publish(name, manifest)
    assert str(family.publish("free", family.head(31))) == "free@1.0.0"


# Beside others: what is linked while somebody measures


def during(parts: Parts, act: Callable[[], object]) -> Callable[[PolicyRequirement], None]:
    """Decide that it passes, after somebody else did something, once."""
    left = [act]

    def decide(requirement: PolicyRequirement) -> None:
        parts.asked.append(requirement)
        if left:
            left.pop()()

    return decide


def test_a_head_that_is_released_meanwhile_is_asked_about_too(family: Parts) -> None:
    family.bind("backward")
    own = family.store.resolve(f"{E}@1.1.0")
    decide = during(family, lambda: family.publish("late/hand", family.head(40, own)))
    family.publish(E, family.extractor(2), policy_check=decide)
    assert [[partner.reference.name for partner in option.partners] for option in family.asked] == [
        [H],
        [H, "late/hand"],
    ]


def test_a_candidate_that_is_published_meanwhile_becomes_the_previous_version(family: Parts) -> None:
    family.bind("backward_transitive")
    decide = during(family, lambda: family.publish(E, family.extractor(3)))
    assert str(family.publish(E, family.extractor(2), policy_check=decide)) == f"{E}@1.3.0"
    assert [str(option.previous) for option in family.asked] == [f"{E}@1.1.0", f"{E}@1.1.0", f"{E}@1.2.0"]


def test_a_policy_that_changes_meanwhile_is_the_one_that_binds(family: Parts) -> None:
    family.bind("backward")
    decide = during(family, lambda: family.bind("backward_transitive"))
    family.publish(E, family.extractor(2), policy_check=decide)
    assert [len(option.partners) for option in family.asked] == [1, 3]
    assert [option.revision.number for option in family.asked if option.revision] == [1, 2]


def test_a_policy_that_is_cleared_meanwhile_binds_no_more_and_vouches_for_nothing(family: Parts) -> None:
    family.bind("backward")
    decide = during(family, lambda: family.store.set_policy("digits/*", None))
    assert str(family.publish(E, family.extractor(2), policy_check=decide)) == f"{E}@2.0.0"


def test_a_partner_that_is_withdrawn_meanwhile_is_not_asked_about_again(family: Parts) -> None:
    family.bind("backward_transitive")
    decide = during(family, lambda: family.store.withdraw("other/hand", "1.0.0", "wrong"))
    family.publish(E, family.extractor(2), policy_check=decide)
    assert [len(option.partners) for option in family.asked] == [3, 2]


@pytest.fixture
def at_the_link(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Do something between the last look of a publish and its link, once: the one gap that is left."""

    def arrange(act: Callable[[], object]) -> None:
        real, left = References.create, [act]

        def create(
            self: References, name: str, version: Any, digest: str, ready: Any = None, **settings: Any
        ) -> bool:
            def looked() -> None:
                if ready is not None:
                    ready()
                if left:
                    left.pop()()

            return real(self, name, version, digest, looked, **settings)

        monkeypatch.setattr(References, "create", create)

    return arrange


def test_a_head_that_is_linked_in_the_gap_is_asked_about_afterwards(family: Parts, at_the_link: Any) -> None:
    family.bind("backward")
    own = family.store.resolve(f"{E}@1.1.0")
    at_the_link(lambda: family.publish("late/hand", family.head(40, own)))
    assert str(family.publish(E, family.extractor(2))) == f"{E}@1.2.0"
    assert [[partner.reference.name for partner in option.partners] for option in family.asked] == [
        [H],
        [H, "late/hand"],
    ]


def test_a_version_that_fails_afterwards_is_withdrawn_with_the_reason(
    family: Parts, at_the_link: Any
) -> None:
    family.bind("backward")
    own = family.store.resolve(f"{E}@1.1.0")
    at_the_link(lambda: family.publish("late/hand", family.head(40, own)))

    def decide(requirement: PolicyRequirement) -> None:
        if len(requirement.partners) > 1:
            raise PolicyBroken("late/hand@1.0.0 is lost", subject=requirement)

    with pytest.raises(PolicyBroken, match=r"late/hand@1\.0\.0 is lost .*was withdrawn again"):
        family.publish(E, family.extractor(2), policy_check=decide)
    tombstone = family.store.tombstone(E, "1.2.0")
    assert tombstone is not None and "late/hand@1.0.0 is lost" in tombstone.reason
    assert str(family.store.resolve(E)) == f"{E}@1.1.0"
    assert str(family.publish(E, family.extractor(2))) == f"{E}@1.3.0"  # the number is used up


@pytest.mark.parametrize("interruption", [KeyboardInterrupt(), RuntimeError("out of memory")])
def test_an_interrupted_second_look_withdraws_nothing(
    family: Parts, at_the_link: Any, interruption: BaseException
) -> None:
    family.bind("backward")
    own = family.store.resolve(f"{E}@1.1.0")
    at_the_link(lambda: family.publish("late/hand", family.head(40, own)))

    def decide(requirement: PolicyRequirement) -> None:
        if len(requirement.partners) > 1:
            raise interruption

    with pytest.raises(type(interruption)) as caught:
        family.publish(E, family.extractor(2), policy_check=decide)
    assert caught.value.__notes__[0].startswith(f"{E}@1.2.0 is published.")
    assert family.store.tombstone(E, "1.2.0") is None
    assert str(family.store.resolve(E)) == f"{E}@1.2.0"


def labeled(parts: Parts, value: int, *labels: str) -> Manifest:
    base = parts.extractor(value)
    data = attrs.evolve(base.contract.data, labels=tuple(map(Label, labels)))
    return attrs.evolve(base, contract=attrs.evolve(base.contract, data=data))


def test_a_step_from_a_version_that_was_linked_below_in_the_gap_is_checked(
    parts: Parts, at_the_link: Any
) -> None:
    """Both are a step of their own from 1.0.0; from 1.1.0 to 1.2.0 a label would be lost."""
    parts.publish("a", labeled(parts, 0, "x"))
    at_the_link(lambda: parts.publish("a", labeled(parts, 0, "x", "y"), version="1.1.0"))
    with pytest.raises(
        VersionTooSmall, match=r"no longer answers to all names of 'y'.* a@1\.2\.0 was withdrawn again"
    ):
        parts.publish("a", labeled(parts, 0, "x", "z"), version="1.2.0")
    assert [str(version) for version in parts.store.versions("a")] == ["1.0.0", "1.1.0"]


def test_a_step_to_a_version_that_was_linked_above_in_the_gap_is_checked(
    parts: Parts, at_the_link: Any
) -> None:
    parts.publish("a", labeled(parts, 0, "x"))
    at_the_link(lambda: parts.publish("a", labeled(parts, 0, "x", "y"), version="1.2.0"))
    with pytest.raises(VersionTooSmall, match=r"a@1\.1\.0 was withdrawn again"):
        parts.publish("a", labeled(parts, 0, "x", "z"), version="1.1.0")
    assert [str(version) for version in parts.store.versions("a")] == ["1.0.0", "1.2.0"]


def test_versions_that_go_together_may_be_linked_at_one_moment(parts: Parts, at_the_link: Any) -> None:
    parts.publish("a", labeled(parts, 0, "x"))
    at_the_link(lambda: parts.publish("a", labeled(parts, 0, "x", "y", "z"), version="1.2.0"))
    assert str(parts.publish("a", labeled(parts, 0, "x", "y"), version="1.1.0")) == "a@1.1.0"
    assert [str(version) for version in parts.store.versions("a")] == ["1.0.0", "1.1.0", "1.2.0"]


def test_every_error_of_a_policy_has_a_code_of_its_own() -> None:
    from compatkit import errors

    every = [
        var for var in vars(errors).values() if isinstance(var, type) and issubclass(var, CompatkitError)
    ]
    assert len({entry.code for entry in every}) == len(every)
    assert {entry.code: entry.exit_code for entry in every if entry.code.startswith("policy")} == {
        "policy-broken": 1,
        "policy-undecided": 2,
        "policy-data": 2,
        "policy-moved": 2,
    }

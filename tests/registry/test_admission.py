"""Versions from elsewhere get a name under a policy only once it is answered, also between concurrent writers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from compatkit.contracts.manifest import Manifest, Parent, Payload
from compatkit.errors import FormatError, Incomplete, PolicyBroken, PolicyUndecided, VersionUntrue
from compatkit.registry.copy.report import TransferReport
from compatkit.registry.copy.settings import TransferSettings
from compatkit.registry.names import Reference
from compatkit.registry.policies import Images, Policy
from compatkit.registry.remotes.pushpull import import_components, pull, push
from compatkit.registry.required_partners import PolicyRequirement
from compatkit.registry.store import Store

E, H = "digits/eye", "digits/hand"
DATA = Images("mnist/test", "data:sha256:" + "a" * 64)
Bring = Callable[..., TransferReport]


@attrs.frozen
class Both:
    """A registry with a policy, another that versions come from, and all that was asked here."""

    here: Store
    there: Store
    put: Callable[..., Payload]
    build: Callable[..., Manifest]
    asked: list[PolicyRequirement] = attrs.field(factory=list)

    def extractor(self, store: Store, value: int, name: str = E, **more: Any) -> Reference:
        return self._publish(store, name, self.build(self.put(store, value)), **more)

    def head(self, store: Store, value: int, extractor: Reference, name: str = H, **more: Any) -> Reference:
        parents = (Parent("trained_with", str(extractor.digest)),)
        manifest = self.build(self.put(store, value), kind="head", parents=parents)
        return self._publish(store, name, manifest, **more)

    def _publish(self, store: Store, name: str, manifest: Manifest, **more: Any) -> Reference:
        return store.publish(name, manifest, measured=True, policy_check=lambda _: None, **more)

    def bind(self, mode: Any = "backward", scope: str = E, **changes: Any) -> None:
        self.here.set_policy(scope, Policy(scope=scope, mode=mode, data=DATA, **changes))

    def passing(self, store: Store) -> Callable[[PolicyRequirement], None]:
        assert store is self.here or store.root == self.here.root
        return self.asked.append

    def names(self) -> list[str]:
        return [f"{name}@{version}" for name, version in self.here.references.each()]


@pytest.fixture
def both(tmp_path: Path, store: Store, put: Any, manifest_of: Any) -> Both:
    """Here: an extractor with a head. There: the same, and the extractor's next version."""
    made = Both(store, Store.init(tmp_path / "there"), put, manifest_of)
    for item in (made.here, made.there):
        made.head(item, 10, made.extractor(item, 0))
    made.extractor(made.there, 1)
    return made


def imported(both: Both, *patterns: str, **more: Any) -> TransferReport:
    return import_components(
        both.there, both.here, patterns or ("*",), settings=TransferSettings(aliases=False, **more)
    )


def pulled(both: Both, *patterns: str, **more: Any) -> TransferReport:
    return pull(both.here, str(both.there.root), patterns or None, settings=TransferSettings(**more)).check()


def pushed(both: Both, *patterns: str, **more: Any) -> TransferReport:
    return push(both.there, str(both.here.root), patterns or None, settings=TransferSettings(**more)).check()


WAYS = {"import": imported, "pull": pulled, "push": pushed}
ways = pytest.mark.parametrize("bring", WAYS.values(), ids=WAYS)


def why(error: BaseException) -> BaseException:
    """Return the one reason for which something did not come in."""
    return error.errors[0] if isinstance(error, Incomplete) else error


@ways
def test_what_nobody_measured_does_not_slip_past_a_policy(both: Both, bring: Bring) -> None:
    both.bind()
    with pytest.raises((PolicyUndecided, Incomplete), match=r"backward.*digits/hand@1\.0\.0") as refused:
        bring(both)
    assert isinstance(why(refused.value), PolicyUndecided)
    assert both.names() == [f"{E}@1.0.0", f"{H}@1.0.0"]


@ways
def test_what_passes_comes_in_and_is_asked_of_the_parts_that_are_here(both: Both, bring: Bring) -> None:
    both.bind()
    bring(both, E, policy_checks=both.passing)
    assert f"{E}@1.1.0" in both.names()
    (requirement,) = both.asked
    assert [str(partner.reference) for partner in requirement.partners] == [f"{H}@1.0.0"]


@ways
def test_what_no_policy_binds_is_not_asked(both: Both, bring: Bring) -> None:
    both.bind(scope="other/*")
    bring(both)
    assert f"{E}@1.1.0" in both.names()


@ways
def test_a_new_major_breaks_for_all_to_see_unless_the_policy_binds_it(both: Both, bring: Bring) -> None:
    both.there.withdraw(E, "1.1.0", "not this one")
    both.extractor(both.there, 2, major=True)
    both.bind(across_major=True)
    with pytest.raises((PolicyUndecided, Incomplete)):
        bring(both)
    both.bind()
    bring(both)
    assert f"{E}@2.0.0" in both.names() and not both.asked


@ways
def test_what_comes_in_unmeasured_is_written_into_the_log_of_the_policy(both: Both, bring: Bring) -> None:
    both.bind()
    bring(both, unmeasured=True)
    assert f"{E}@1.1.0" in both.names()
    log = both.here.policies.history(E)
    assert [(entry.number, entry.admitted) for entry in log] == [(1, ""), (2, f"{E}@1.1.0")]
    assert log[0].policy == log[1].policy == both.here.policies.of(E).policy  # type: ignore[union-attr]
    bring(both, unmeasured=True)
    assert len(both.here.policies.history(E)) == 2


@ways
def test_what_breaks_does_not_come_in_as_unmeasured(both: Both, bring: Bring) -> None:
    def breaks(requirement: PolicyRequirement) -> None:
        raise PolicyBroken("it does not work", subject=requirement)

    both.bind()
    with pytest.raises((PolicyBroken, Incomplete), match="it does not work"):
        bring(both, policy_checks=lambda store: breaks, unmeasured=True)
    assert f"{E}@1.1.0" not in both.names() and len(both.here.policies.history(E)) == 1


@ways
def test_a_damaged_policy_is_never_none(both: Both, bring: Bring) -> None:
    both.bind()
    (both.here.root / "policies/digits%2feye@1").write_bytes(b"{}")
    with pytest.raises((FormatError, Incomplete), match="Nothing in this scope is published") as refused:
        bring(both, policy_checks=both.passing, unmeasured=True)
    assert isinstance(why(refused.value), FormatError) and f"{E}@1.1.0" not in both.names()


@ways
def test_a_number_that_lies_does_not_come_in(both: Both, bring: Bring) -> None:
    source, digest = both.there, str(both.there.resolve(f"{E}@1.1.0").digest)
    source.withdraw(E, "1.1.0", "to be called a patch")
    assert source.references.create(E, Reference.parse(f"{E}@1.0.1").version or 0, digest)  # type: ignore[arg-type]
    with pytest.raises((VersionUntrue, Incomplete), match=r"needs at least 1\.1\.0") as refused:
        bring(both)
    assert isinstance(why(refused.value), VersionUntrue) and f"{E}@1.0.1" not in both.names()


def test_a_number_below_one_that_is_here_must_make_that_one_true(both: Both) -> None:
    here = both.here
    here.publish(E, attrs.evolve(here.manifest(E), training={"seed": 1}))  # 1.0.1, the weights of 1.0.0
    source = both.there
    digest = str(source.resolve(f"{E}@1.1.0").digest)
    for version in ("1.0.0", "1.1.0"):
        source.withdraw(E, version, "hidden")
    (source.root / f"refs/{E}/@versions/0.9.0").write_text(f"{digest}\n")
    imported(both, f"{E}@0.9.0")  # of another line
    (source.root / f"refs/{E}/@versions/1.0.0").unlink()
    (source.root / f"refs/{E}/@tombstones/1.0.0").unlink()
    source.references.create(E, Reference.parse(f"{E}@1.0.0").version, digest)  # type: ignore[arg-type]
    here.references.folder(E).joinpath("@versions/1.0.0").unlink()
    with pytest.raises(VersionUntrue, match=r"the step from 1\.0\.0 to 1\.0\.1 is smaller"):
        imported(both, f"{E}@1.0.0")


def test_heads_that_come_together_with_an_extractor_count_for_it(tmp_path: Path, both: Both) -> None:
    empty = attrs.evolve(both, here=Store.init(tmp_path / "empty"))
    empty.bind("backward_transitive")
    moved = pull(empty.here, str(both.there.root), settings=TransferSettings())
    assert [refusal.what for refusal in moved.refused] == [f"{E}@1.1.0"]
    assert empty.names() == [f"{E}@1.0.0", f"{H}@1.0.0"]
    pulled(empty, policy_checks=empty.passing)
    assert [str(partner.reference) for partner in empty.asked[0].partners] == [f"{H}@1.0.0"]


def test_what_follows_a_version_that_is_refused_is_asked_of_the_parts_before_it(both: Both) -> None:
    both.bind()
    both.extractor(both.there, 2)
    moved = pull(both.here, str(both.there.root), settings=TransferSettings())
    assert [refusal.what for refusal in moved.refused] == [f"{E}@1.1.0", f"{E}@1.2.0"]
    assert both.names() == [f"{E}@1.0.0", f"{H}@1.0.0"]


@ways
def test_where_nobody_relies_on_the_version_before_nothing_vouches_for_new_weights(
    both: Both, bring: Bring
) -> None:
    both.bind()
    bring(both, E, policy_checks=both.passing)
    both.extractor(both.there, 2)  # no head is released against 1.1.0
    with pytest.raises((PolicyUndecided, Incomplete), match=r"no result supports it.*at least 2\.0\.0"):
        bring(both, E, policy_checks=both.passing)
    both.here.set_policy(E, None)
    bring(both, E)
    assert f"{E}@1.2.0" in both.names()


def test_what_is_withdrawn_where_it_comes_from_is_not_asked(both: Both) -> None:
    both.bind()
    both.there.withdraw(E, "1.1.0", "wrong data")
    imported(both)
    assert both.here.tombstone(E, "1.1.0") is not None and not both.asked


def test_a_parent_that_is_refused_comes_without_its_name(both: Both) -> None:
    both.bind()
    both.head(both.there, 11, both.there.resolve(f"{E}@1.1.0"), name="digits/other")
    done = imported(both, "digits/other")
    assert [str(entry) for entry in done.unnamed] == [f"{E}@1.1.0"] and "digits/other@1.0.0" in both.names()
    moved = pulled(both, "digits/other")
    assert [str(entry) for entry in moved.unnamed] == [f"{E}@1.1.0"]


# Among many writers


def test_a_head_that_is_released_while_it_is_measured_is_measured_too(both: Both) -> None:
    both.bind()

    def decide(requirement: PolicyRequirement) -> None:
        both.asked.append(requirement)
        if len(both.asked) == 1:
            both.head(both.here, 12, both.here.resolve(f"{E}@1.0.0"), name="digits/new")

    pulled(both, E, policy_checks=lambda store: decide)
    assert [[partner.reference.name for partner in requirement.partners] for requirement in both.asked] == [
        [H],
        ["digits/hand", "digits/new"],
    ]


@ways
def test_what_was_linked_at_that_very_moment_is_decided_on_too(
    both: Both, bring: Bring, monkeypatch: pytest.MonkeyPatch
) -> None:
    from compatkit.registry import disk as durable

    both.bind()
    create = durable.create_once

    def and_another(path: Path, *rest: Any) -> bool:
        made = create(path, *rest)
        if path.parts[-3:] == ("eye", "@versions", "1.1.0"):
            monkeypatch.setattr(durable, "create_once", create)
            both.head(both.here, 12, both.here.resolve(f"{E}@1.0.0"), name="digits/new")
        return made

    def decide(requirement: PolicyRequirement) -> None:
        if len(requirement.partners) > 1:
            raise PolicyBroken("it does not work with digits/new", subject=requirement)

    monkeypatch.setattr(durable, "create_once", and_another)
    with pytest.raises((PolicyBroken, Incomplete), match="it does not work with digits/new"):
        bring(both, E, policy_checks=lambda store: decide)
    note = both.here.tombstone(E, "1.1.0")
    assert (
        note is not None
        and note.reason.startswith("Conflicts with")
        and "does not work with digits/new" in note.reason
    )

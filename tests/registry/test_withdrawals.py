"""A withdrawal can be taken back by a later entry of its log, the bytes permitting."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import attrs
import pytest

from compatkit.errors import (
    FormatError,
    IntegrityError,
    NotFound,
    PolicyUndecided,
    UsageError,
    VersionUntrue,
)
from compatkit.registry import disk as durable
from compatkit.registry.history import log
from compatkit.registry.maintenance.check import examine
from compatkit.registry.maintenance.gc import plan
from compatkit.registry.maintenance.repair import plan as plan_repair
from compatkit.registry.names import Version
from compatkit.registry.policies import Images, Policy
from compatkit.registry.restoring import restore
from compatkit.registry.signing.changes import sign_changes
from compatkit.registry.signing.private_keys import SigningKey
from compatkit.registry.store import Store

NAME = "digits/mnist.extractor"
ONE = Version.parse("1.0.0")
Publish = Callable[..., Any]


def test_a_version_is_withdrawn_restored_and_withdrawn_again(store: Store, publish: Publish):
    publish(store, NAME, 1)
    publish(store, NAME, 2)
    withdrawals = store.references.withdrawals(NAME)
    for number, reason in enumerate(("a bug", "no bug", "a bug after all", "fixed"), 1):
        if number % 2:
            store.withdraw(NAME, "1.0.0", reason)
            assert not withdrawals.append(ONE, "again", restore=False)
        else:
            restore(store, NAME, "1.0.0", reason)
            assert not withdrawals.append(ONE, "again", restore=True)
        reader = Store.open(store.root)
        assert [entry.reason for entry in withdrawals.log(ONE)][-1] == reason
        assert (ONE in reader.references.withdrawn(NAME)) == bool(number % 2)
        assert (str(reader.versions(NAME)[0]) == "2.0.0") == bool(number % 2)
        assert (NAME in [version.name for version in reader.index.search(text="1.0.0")]) in (True, False)
        live = [str(version.version) for version in reader.index.search(pattern=NAME)]
        assert live == (["2.0.0"] if number % 2 else ["1.0.0", "2.0.0"])
        assert examine(store).sound
        events = [entry.what for entry in log(store, NAME)]
        assert events.count("withdrawn") == (number + 1) // 2 and events.count("restored") == number // 2
    assert store.resolve(f"{NAME}@1.0.0").version == ONE


def test_what_is_not_withdrawn_or_unknown_or_without_a_reason_is_refused(store: Store, publish: Publish):
    publish(store, NAME, 1)
    with pytest.raises(NotFound) as error:
        restore(store, NAME, "1.0.0", "why not")
    assert error.value.subject == f"{NAME}@1.0.0"
    with pytest.raises(NotFound):
        restore(store, NAME, "7.0.0", "why not")
    store.withdraw(NAME, "1.0.0", "a bug")
    with pytest.raises(UsageError) as usage:
        restore(store, NAME, "1.0.0", "  ")
    assert usage.value.subject == f"{NAME}@1.0.0"
    assert store.references.withdrawn(NAME) == {ONE}


def test_collected_weights_do_not_come_back(store: Store, publish: Publish):
    version = publish(store, NAME, 1)
    publish(store, NAME, 2)
    store.withdraw(NAME, "1.0.0", "a bug")
    payload = store.manifest(str(version.digest)).payload.file.blob
    store.objects.path(payload).unlink()
    with pytest.raises(IntegrityError) as error:
        restore(store, NAME, "1.0.0", "it was fine")
    assert error.value.subject == payload and store.references.withdrawn(NAME) == {ONE}


def test_weights_of_a_restored_version_are_not_collected(store: Store, publish: Publish):
    publish(store, NAME, 1)
    publish(store, NAME, 2)
    store.withdraw(NAME, "1.0.0", "a bug")
    assert plan(store, grace=timedelta(0), alone=True, withdrawn=True).withdrawn
    restore(store, NAME, "1.0.0", "it was fine")
    assert not plan(store, grace=timedelta(0), alone=True, withdrawn=True).withdrawn


def test_a_number_that_became_too_small_a_step_is_refused(store: Store, publish: Publish):
    """1.1.0 follows 1.0.0 while 2.0.0 ... is what it would follow once restored."""
    publish(store, NAME, 1, version="1.0.0")
    middle = publish(store, NAME, 2)
    store.withdraw(NAME, middle.version, "a bug")
    publish(store, NAME, 1, version=str(middle.version.bumped("patch")))
    with pytest.raises(VersionUntrue):
        restore(store, NAME, middle.version, "it was fine")
    assert store.references.withdrawn(NAME) == {middle.version}


def test_a_policy_applies_to_a_restored_version(store: Store, publish: Publish):
    first = publish(store, NAME, 1)
    from compatkit.contracts.manifest import Parent

    publish(store, "digits/mnist.head", 5, kind="head", parents=(Parent("trained_with", str(first.digest)),))
    later = publish(store, NAME, 2)
    store.withdraw(NAME, later.version, "a bug")
    data = Images("mnist/test", f"data:sha256:{'a' * 64}")
    store.set_policy(NAME, Policy(scope=NAME, mode="backward", data=data, across_major=True))
    with pytest.raises(PolicyUndecided):
        restore(store, NAME, later.version, "it was fine")
    restore(store, NAME, later.version, "it was fine", unmeasured=True)
    assert f"{NAME}@{later.version}" in store.policies.admitted(NAME)


def test_an_interrupted_restoration_leaves_either_state_and_can_be_repeated(
    store: Store, publish: Publish, monkeypatch: pytest.MonkeyPatch
):
    publish(store, NAME, 1)
    publish(store, NAME, 2)
    store.withdraw(NAME, "1.0.0", "a bug")
    operations: list[str] = []
    monkeypatch.setattr(durable, "step", lambda operation, path: operations.append(operation))
    restore(store, NAME, "1.0.0", "fine")
    store.withdraw(NAME, "1.0.0", "a bug")
    assert len(operations) > 8
    for stop in range(len(operations)):
        steps = iter(range(len(operations)))

        def fail(operation: str, path: Path, stop: int = stop, steps: Any = steps) -> None:
            if next(steps, None) == stop:
                raise OSError(5, "stopped here", str(path))

        was = store.references.withdrawn(NAME)
        monkeypatch.setattr(durable, "step", fail)
        try:
            restore(store, NAME, "1.0.0", "fine")
        except Exception:
            pass
        monkeypatch.setattr(durable, "step", lambda operation, path: None)
        faults = {fault.code for fault in examine(store).faults if fault.severity == "error"}
        assert faults <= {"tombstone-missing"}, (stop, faults)
        if store.references.withdrawn(NAME):
            restore(store, NAME, "1.0.0", "fine")
        assert was and not store.references.withdrawn(NAME) and examine(store).sound
        store.withdraw(NAME, "1.0.0", "a bug")


def test_a_damaged_or_lost_entry_is_found_and_repaired_from_its_second_file(store: Store, publish: Publish):
    publish(store, NAME, 1)
    store.withdraw(NAME, "1.0.0", "a bug")
    restore(store, NAME, "1.0.0", "fine")
    path = store.root / f"refs/{NAME}/@tombstones/1.0.0~2"
    before = path.read_bytes()
    for damage, code in ((b"garbage", "tombstone-damaged"), (None, "tombstone-missing")):
        path.chmod(0o644)
        path.unlink() if damage is None else path.write_bytes(damage)
        assert [fault.code for fault in examine(store).faults if fault.severity == "error"] == [code]
        plan_repair(examine(store)).apply()
        assert path.read_bytes() == before and examine(store).sound
    first = (store.root / f"refs/{NAME}/@tombstones/1.0.0").read_bytes()
    path.chmod(0o644)
    path.write_bytes(first)  # a withdrawal under the number of a restoration
    with pytest.raises(FormatError):
        store.references.withdrawals(NAME).log(ONE)


def test_signed_changes_are_signed_once(store: Store, publish: Publish, key: SigningKey):
    publish(store, NAME, 1)
    attrs.evolve(store, key=key).set_alias(NAME, "prod", "1.0.0")
    store.withdraw(NAME, "1.0.0", "a bug")
    restore(attrs.evolve(store, key=key), NAME, "1.0.0", "fine")
    assert sign_changes(store, [NAME], key) == [f"refs/{NAME}/@tombstones/1.0.0"]
    assert sign_changes(store, [NAME], key) == [] and not examine(store).faults
    (store.root / f"refs/{NAME}/@log/prod/1").unlink()
    assert "signature-orphan" in [fault.code for fault in examine(store).faults]

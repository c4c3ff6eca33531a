"""A version's number that lies about what changed is found by verify, whoever wrote it, and does not load."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import attrs
import pytest

from compatkit.contracts.contract import Label
from compatkit.contracts.manifest import About, Manifest, Payload, to_bytes
from compatkit.errors import VersionUntrue
from compatkit.registry.layout_scan import VersionFile
from compatkit.registry.maintenance.check import examine
from compatkit.registry.maintenance.references import Published, StepChecks
from compatkit.registry.maintenance.survey import Survey
from compatkit.registry.names import Version
from compatkit.registry.store import Store

NAME = "digits/eye"


@pytest.fixture
def lines(store: Store, put: Callable[..., Payload], manifest_of: Callable[..., Manifest]) -> Any:
    """Writes a version as a hand or a hostile copy would, whatever the number says."""

    def write(number: str, value: int = 0, **changes: Any) -> str:
        data = to_bytes(manifest_of(put(store, value), **changes))
        digest = store.put_blob(data).blob
        assert store.references.create(NAME, Version.parse(number), digest)
        return digest

    return write


def steps(store: Store, *patterns: str) -> dict[str, str]:
    """Return what verify says of numbers, by version."""
    result = examine(store, patterns=patterns).faults
    assert {match.code for match in result} <= {"version-step"}
    return {match.affected[0]: match.what for match in result}


def load(store: Store, number: str) -> None:
    store.check_number(NAME, Version.parse(number), str(store.resolve(f"{NAME}@{number}").digest))


def test_new_weights_as_a_patch_lie(store: Store, lines: Any) -> None:
    lines("1.0.0")
    lines("1.0.1", 1)
    assert (
        "smaller than the change between them, which needs at least 1.1.0: (weights) new weights"
        in (steps(store)[f"{NAME}@1.0.1"])
    )
    with pytest.raises(VersionUntrue, match=r"digits/eye@1\.0\.1: .* too small a step.*compatkit withdraw"):
        load(store, "1.0.1")
    load(store, "1.0.0")


def test_a_lost_partner_within_a_line_lies_and_as_a_major_does_not(
    store: Store, lines: Any, manifest_of: Any
) -> None:
    ports = manifest_of(None).contract
    narrow = attrs.evolve(ports.structural.outputs[0], shape=("N", 16, "H", "W"), measured={})
    broken = attrs.evolve(ports, structural=attrs.evolve(ports.structural, outputs=(narrow,)))
    lines("1.0.0")
    lines("1.1.0", 1, contract=broken)
    assert "at least 2.0.0" in steps(store)[f"{NAME}@1.1.0"]
    store.withdraw(NAME, "1.1.0", "breaks its partners")
    lines("2.0.0", 1, contract=broken)
    assert not steps(store)
    load(store, "2.0.0")


def test_labels_that_were_removed_lie(store: Store, lines: Any, manifest_of: Any) -> None:
    def named(*names: str) -> Any:
        contract = manifest_of(None).contract
        return attrs.evolve(contract, data=attrs.evolve(contract.data, labels=tuple(map(Label, names))))

    lines("1.0.0", contract=named("a", "b"))
    lines("1.1.0", contract=named("a"))
    lines("1.2.0", contract=named("a", "c"))
    assert steps(store).keys() == {f"{NAME}@1.1.0"}  # 1.2.0 appends to what 1.1.0 says


def test_what_a_measurement_may_have_excused_is_no_lie(store: Store, lines: Any) -> None:
    lines("1.0.0")
    lines("1.1.0", 1)  # new weights as MINOR: whether they were measured is not in the manifest
    lines("1.1.1", 1, about=About(title="another"))
    lines("3.0.0", 2)
    assert not steps(store)
    for number in ("1.1.0", "1.1.1", "3.0.0"):
        load(store, number)


def test_a_pattern_compares_with_a_version_that_it_does_not_name(store: Store, lines: Any) -> None:
    lines("1.0.0")
    lines("1.0.1", 1)
    assert steps(store, f"{NAME}@1.0.1")
    assert not steps(store, f"{NAME}@1.0.0")


def test_a_damaged_version_below_is_told_alone_and_stops_nobody_else(store: Store, lines: Any) -> None:
    digest = lines("1.0.0")
    lines("1.0.1", 1)
    path = store.root / f"blobs/sha256/{digest[7:9]}/{digest[7:]}"
    path.chmod(0o600)
    path.write_bytes(b"x")
    assert [fault.code for fault in examine(store).faults if fault.code == "version-step"] == []
    load(store, "1.0.1")


def test_it_is_found_out_once(store: Store, lines: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    lines("1.0.0")
    lines("1.1.0", 1)
    load(store, "1.1.0")

    def read(*_: object, **__: object) -> None:
        raise AssertionError("a manifest was read again")

    monkeypatch.setattr(Store, "manifest", read)
    load(store, "1.1.0")


def test_the_time_grows_with_the_versions_and_not_with_their_square(store: Store) -> None:
    def seconds(count: int) -> float:
        survey = Survey(store.root)
        numbers = [Version(1, 0, index) for index in range(count)]
        survey.names[NAME].versions.update({number: VersionFile("", NAME, number) for number in numbers})
        published = [
            Published(NAME, number, f"sha256:{number.patch:064}", f"{NAME}@{number}") for number in numbers
        ]
        began = time.process_time()
        checked = StepChecks(survey, published, lambda digest: None)
        for entry in published:
            checked.check(entry)
        return time.process_time() - began

    few, many = (min(seconds(count) for _ in range(3)) for count in (1_000, 8_000))
    assert many < 24 * few  # 8 times as many; by the square it would be 64 times as long


def test_the_next_number_is_the_first_that_is_not_used(store: Store) -> None:
    digest = "sha256:" + "0" * 64
    for number in ("1.0.0", "1.0.1", "1.1.0", "2.0.0"):
        assert store.references.create(NAME, Version.parse(number), digest)
    dropped = store.root / f"refs/{NAME}/@dropped/1.0.2"
    dropped.mkdir(parents=True)
    used = store.references.used_numbers(NAME)
    assert Version(1, 0, 2) in used and len(used) == 5
    steps = {"patch": "1.0.3", "minor": "1.2.0", "major": "3.0.0"}
    for bump, expected in steps.items():
        target = store.references.next_number(NAME, Version(1, 0, 0), bump)  # type: ignore[arg-type]
        assert str(target) == expected and target not in used

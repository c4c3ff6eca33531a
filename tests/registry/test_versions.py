"""The least step: what a change between two components demands, and how publishing holds to it.

Equal shapes are not compatibility.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest
from changes import (
    CAR,
    INITIAL,
    MAJOR,
    MINOR,
    OLD,
    OTHER,
    PATCH,
    SHARED,
    Make,
    anchored,
    weights,
    with_contract,
    with_data,
    with_labels,
)

from compatkit.contracts.contract import Anchor, Label, Protocol
from compatkit.contracts.manifest import About, Manifest, Payload, from_bytes, to_bytes
from compatkit.errors import VersionTooSmall
from compatkit.registry.store import Store
from compatkit.registry.version_bumps import MAX_LISTED
from compatkit.registry.versions.diff import diff
from compatkit.registry.versions.rules import UNREAD

TABLE = [
    pytest.param(bump, level, make, id=f"{bump}: {name}")
    for bump, rows in (("major", MAJOR), ("minor", MINOR), ("patch", PATCH))
    for name, (level, make) in rows.items()
]


@pytest.mark.parametrize(("bump", "level", "make"), TABLE)
def test_the_change_decides(bump: str, level: str, make: Make) -> None:
    difference = diff(OLD, make(OLD))
    assert difference.bump == bump
    assert level in {change.level for change in difference.changes if change.bump == bump}


@pytest.mark.parametrize(("bump", "level", "make"), TABLE)
def test_what_no_check_reads_can_be_left_out_and_needs_a_patch_at_most(
    bump: str, level: str, make: Make
) -> None:
    new = make(OLD)
    every, read = diff(OLD, new).changes, diff(OLD, new, read_only=True).changes
    assert read == tuple(change for change in every if change.level not in UNREAD)
    assert all(change.bump == "patch" for change in every if change not in read)


def test_nothing_changed() -> None:
    assert diff(OLD, attrs.evolve(OLD)).changes == () and diff(OLD, OLD).bump == "none"


def test_normalization_that_asks_for_more_is_a_break() -> None:
    plain = with_contract(OLD, protocol=Protocol("none", (SHARED, INITIAL)))
    assert diff(plain, OLD).bump == "major"


def test_classes_named_for_the_first_time_lose_nobody() -> None:
    assert diff(with_data(OLD, labels=None), OLD).bump == "minor"


def test_dropping_one_of_two_heads_is_a_break_even_with_a_frozen_one() -> None:
    both = anchored(OLD, SHARED, OTHER)
    assert diff(both, weights(anchored(both, SHARED), SHARED)).bump == "major"


@pytest.mark.parametrize(
    "name",
    [
        "new weights",
        "same weights, other network",
        "same weights, other mean",
        "same weights, other interpolation",
    ],
)
def test_a_measurement_that_passed_makes_a_new_function_minor(name: str) -> None:
    difference = diff(OLD, MAJOR[name][1](OLD), measured=True)
    assert difference.bump == "minor"
    assert "whose stated measurement passed" in " ".join(change.reason for change in difference.changes)


@pytest.mark.parametrize(
    "name",
    ["label removed", "shared head dropped", "other channels", "images of one size only", "another kind"],
)
def test_a_measurement_brings_no_lost_partner_back(name: str) -> None:
    assert diff(OLD, weights(MAJOR[name][1](OLD)), measured=True).bump == "major"


@pytest.mark.parametrize("frozen", ["tensors", {"dcc": SHARED.digest}, [None, 3, [SHARED.digest]], None])
def test_what_training_says_of_frozen_heads_may_be_anything(frozen: Any) -> None:
    """It is free JSON; only a list of digests counts."""
    new = attrs.evolve(weights(OLD), training={"frozen": frozen})
    assert diff(OLD, new).bump == "major"


def test_reasons_name_what_was_lost() -> None:
    new = with_labels(weights(anchored(OLD, INITIAL)), CAR)
    reasons = {change.path: change.reason for change in diff(OLD, new).changes}
    assert reasons["tensors"] == "new weights, without a passed measurement"
    assert reasons["labels[0].name"] == "output 0 no longer answers to all names of 'plane'"
    assert reasons["labels[1]"] == "label 'automobile' removed"
    assert (
        reasons["anchors[0].digest"]
        == "the auxiliary head dcc tensors:sha256:111111111111, which parts shared, was dropped"
    )


# Publishing

Draft = Callable[..., Manifest]


@pytest.fixture
def draft(store: Store, put: Callable[..., Payload]) -> Draft:
    """Return a manifest with weights of this value, anchored to these heads, some of which did not move."""

    def make(value: int, *anchors: Anchor, frozen: tuple[Anchor, ...] = ()) -> Manifest:
        training = {"frozen": [anchor.digest for anchor in frozen]}
        return attrs.evolve(anchored(OLD, *anchors), payload=put(store, value), training=training)

    return make


def test_a_step_that_is_too_small_is_refused_with_the_reasons_level_by_level(
    store: Store, draft: Draft
) -> None:
    store.publish("a", draft(0, SHARED))
    new = attrs.evolve(draft(1, OTHER), about=About(title="better"))
    with pytest.raises(VersionTooSmall) as refused:
        store.publish("a", new, version="1.1.0")
    assert str(refused.value) == (
        "a@1.1.0 is too small a step from 1.0.0: at least 2.0.0 is needed, because (weights) new weights, without a "
        "passed measurement; (protocol) the auxiliary head dcc tensors:sha256:111111111111, which parts shared, was "
        "dropped. New weights stay within a major line only if they were trained against the frozen auxiliary head "
        "of the version before, or were measured. Publish without a version to get the least step, or ask for 2.0.0 "
        "or more."
    )
    assert [str(version) for version in store.versions("a")] == ["1.0.0"]


def test_only_what_asks_for_more_than_was_given_is_a_reason(store: Store, draft: Draft) -> None:
    store.publish("a", draft(0, SHARED))
    new = attrs.evolve(draft(0, SHARED, OTHER), about=About(title="better"))
    with pytest.raises(
        VersionTooSmall, match=r"because \(protocol\) anchor added: the auxiliary head rotation [^;]*$"
    ):
        store.publish("a", new, version="1.0.1")
    assert str(store.publish("a", new, version="1.1.0")) == "a@1.1.0"


def test_an_older_line_goes_on_with_weights_for_its_own_frozen_head(store: Store, draft: Draft) -> None:
    """Compared is what stands just below the number: 1.0.0, whatever came later."""
    store.publish("a", draft(0, SHARED))
    store.publish("a", draft(1, OTHER))
    new = draft(2, SHARED, frozen=(SHARED,))
    with pytest.raises(VersionTooSmall, match=r"from 1\.0\.0: at least 1\.1\.0 is needed"):
        store.publish("a", new, version="1.0.1")
    assert str(store.publish("a", new, version="1.1.0")) == "a@1.1.0"
    assert str(store.publish("a", draft(3, SHARED, frozen=(SHARED,)))) == "a@3.0.0"  # after the latest, 2.0.0


def test_who_vouches_for_a_measurement_stays_within_the_line(store: Store, draft: Draft) -> None:
    store.publish("a", draft(0))
    assert str(store.publish("a", draft(1), measured=True)) == "a@1.1.0"
    with pytest.raises(VersionTooSmall, match=r"at least 1\.2\.0"):
        store.publish("a", draft(2), version="1.1.1", measured=True)
    assert str(store.publish("a", draft(2))) == "a@2.0.0"


def test_the_same_values_written_by_another_program_are_a_patch(store: Store, draft: Draft) -> None:
    """It may leave out what has a default: other bytes, no difference."""
    data = to_bytes(draft(0))
    short = data.replace(b',"extensions":{}', b"")
    assert short != data and not diff(from_bytes(short), from_bytes(data)).changes
    digest = store.put_blob(short).blob
    folder = store.root / "refs" / "a" / "@versions"
    folder.mkdir(parents=True)
    (folder / "1.0.0").write_text(f"{digest}\n")
    assert str(store.publish("a", draft(0))) == "a@1.0.1"


def test_a_refusal_lists_some_of_many_reasons(
    store: Store, put: Callable[..., Payload], manifest_of: Callable[..., Manifest]
) -> None:
    names = [f"class {number}" for number in range(500)]
    base = manifest_of(put(store))
    store.publish("a/b", with_data(base, labels=tuple(map(Label, names))))
    with pytest.raises(VersionTooSmall, match=r"; and \d+ more") as refused:
        store.publish("a/b", with_data(base, labels=tuple(map(Label, names[::-1]))), version="1.0.1")
    assert str(refused.value).count("(data)") <= MAX_LISTED

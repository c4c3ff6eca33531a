"""What changed between two components, level by level: nothing is left out, everything says where and why."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import attrs
from changes import MAJOR, MINOR, OLD, PATCH, PLANE, Make, weights, with_contract, with_labels, with_output
from hypothesis import given, settings
from hypothesis import strategies as st

from compatkit.contracts.contract import Statistical
from compatkit.contracts.manifest import About, Manifest, function_digest, to_bytes
from compatkit.foundation.codec import loads
from compatkit.registry.versions.diff import ABSENT, LEVELS, Change, diff, path_text, value_text


def test_a_change_as_json_says_where_it_is() -> None:
    (change,) = diff(OLD, attrs.evolve(OLD, extensions={"a/b~": {"n": None}})).changes
    assert change.to_json() == {
        "level": "extensions",
        "path": '["a/b~"]',
        "pointer": "/extensions/a~1b~0",
        "after": {"n": None},
        "bump": "patch",
        "reason": "of other programs; no check reads it",
    }
    result = diff(OLD, with_output(OLD, shape=("N", 64, "H", "W"))).to_json()
    assert (result["bump"], result["equal_shapes"], result["tensors"]) == ("major", False, None)
    assert {"path": "outputs[0].shape[1]", "before": 32, "after": 64}.items() <= result["changes"][0].items()
    assert json.loads(json.dumps(result)) == result


def test_new_weights_behind_equal_ports_are_pointed_out() -> None:
    assert diff(OLD, weights(OLD)).equal_shapes
    assert not diff(OLD, with_output(weights(OLD), name="map")).equal_shapes
    assert not diff(OLD, with_labels(OLD, PLANE)).equal_shapes


def test_the_text_goes_level_by_level_and_the_largest_step_leads() -> None:
    probe = OLD.contract.statistical.probe
    assert probe is not None
    first, second = (
        with_contract(OLD, statistical=Statistical(None, attrs.evolve(probe, sketch=(value,) * 16)))
        for value in (0.5, 0.25)
    )
    new = attrs.evolve(weights(second), about=About(title="x"))
    assert str(diff(first, new)) == (
        "least step: major\n"
        "about\n"
        "  patch: for people only\n"
        '    title: "" -> "x"\n'
        "weights\n"
        "  major: new weights, without a passed measurement\n"
        "    tensors: tensors:sha256:aaaaaaaaaaaa -> tensors:sha256:bbbbbbbbbbbb\n"
        "  patch: goes with the new weights\n"
        "    file.blob: sha256:aaaaaaaaaaaa -> sha256:bbbbbbbbbbbb\n"
        "statistical\n"
        "  minor: statistics or probe measured anew; check reads them\n"
        "    probe.sketch: 16 values changed\n"
        "training\n"
        "  patch: a record of the run; no check reads it\n"
        "    frozen: added []"
    )
    assert str(diff(OLD, OLD)) == "no difference"


def test_values_for_people() -> None:
    assert value_text("sha256:" + "ab" * 32) == "sha256:abababababab"
    assert value_text({"blob": "sha256:" + "0" * 64}) == '{"blob": "sha256:000000000000"}'
    assert value_text("x" * 100).endswith(" ...") and len(value_text("x" * 100)) == 60
    assert path_text(("tags", "a.b", 0, "c")) == 'tags["a.b"][0].c'


def test_a_path_is_short_whatever_the_keys_are() -> None:
    assert path_text(("k" * 80,)) == "k" * 80
    assert path_text(("k" * 81, "x")) == f'["{"k" * 80}..."].x'
    deep = path_text(tuple(f"key{depth}" for depth in range(100)))
    assert len(deep) == 199 and deep.startswith("key0.key1.") and deep.endswith(".key98.key99")
    extensions = [
        attrs.evolve(OLD, extensions={"k" * 512: {"x" * 512: {"y" * 512: number}}}) for number in (1, 2)
    ]
    (change,) = diff(*extensions).changes
    assert len(change.path) == 199 and len(change.to_json()["pointer"]) > 1536, "programs get all of it"


# Properties of all pairs

text = st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), max_size=4)
numbers = st.one_of(st.integers(-2, 2), st.sampled_from([0.0, -0.0, 1.0, 1.5, 1e-300]))
values = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, text),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(["a", "a.b", "é", "0"]), inner)
    ),
    max_leaves=6,
)
objects = st.dictionaries(st.sampled_from(["a", "frozen", "steps"]), values, max_size=3)
makes = [make for rows in (MAJOR, MINOR, PATCH) for _, make in rows.values()]


@st.composite
def changes(draw: Callable[..., Any]) -> Make:
    """Some rows of the table, one after the other, and any JSON where it may stand."""
    chosen = draw(st.lists(st.sampled_from(makes), max_size=3))
    free = draw(st.dictionaries(st.sampled_from(["training", "extensions"]), objects))

    def change(manifest: Manifest) -> Manifest:
        for make in chosen:
            manifest = make(manifest)
        return attrs.evolve(manifest, **free)

    return change


pairs = given(changes(), changes())
few = settings(max_examples=40, deadline=None)


@few
@pairs
def test_empty_exactly_where_the_bytes_are_equal(first: Make, second: Make) -> None:
    a, b = first(OLD), second(OLD)
    assert (not diff(a, b).changes) == (to_bytes(a) == to_bytes(b))
    assert not diff(a, a).changes


@few
@pairs
def test_the_changes_turn_one_manifest_into_the_other(first: Make, second: Make) -> None:
    """So they cover everything that differs, with the values before and after."""
    a, b = first(OLD), second(OLD)
    value = loads(to_bytes(a), what="a")
    result = diff(a, b).changes
    for change in reversed(
        [match for match in result if match.after is ABSENT]
    ):  # the last item of a list first
        apply(value, change)
    for change in (match for match in result if match.after is not ABSENT):
        apply(value, change)
    assert json.dumps(value, sort_keys=True) == json.dumps(loads(to_bytes(b), what="b"), sort_keys=True)


def apply(value: Any, change: Change) -> None:
    """Do to a JSON value what a change says; what it says was there must be there."""
    *above, last = change.location
    for key in above:
        value = value[key]
    if change.before is not ABSENT:
        assert json.dumps(value[last]) == json.dumps(change.before)
    if change.after is ABSENT:
        value.pop(last)
    elif change.before is ABSENT and isinstance(value, list):
        assert len(value) == last
        value.append(change.after)
    else:
        value[last] = change.after


@few
@pairs
def test_both_directions_list_the_same_places(first: Make, second: Make) -> None:
    forward, back = diff(first(OLD), second(OLD)).changes, diff(second(OLD), first(OLD)).changes
    assert [(x.level, x.location, x.path) for x in forward] == [(x.level, x.location, x.path) for x in back]
    assert len({x.location for x in forward}) == len({(x.level, x.path) for x in forward}) == len(forward)
    assert [LEVELS.index(x.level) for x in forward] == sorted(LEVELS.index(x.level) for x in forward)


@few
@pairs
def test_a_patch_keeps_its_evidence(first: Make, second: Make) -> None:
    """Evidence is kept by the digest of the function: a PATCH never changes it."""
    a, b = first(OLD), second(OLD)
    if diff(a, b).bump in ("none", "patch"):
        assert function_digest(a) == function_digest(b)


@few
@pairs
def test_every_change_says_why_and_a_measurement_never_raises_the_step(first: Make, second: Make) -> None:
    a, b = first(OLD), second(OLD)
    plainly, vouched = diff(a, b), diff(a, b, measured=True)
    order = ("none", "patch", "minor", "major")
    assert all(x.reason and x.bump != "none" for x in plainly.changes)
    assert all(
        order.index(y.bump) <= order.index(x.bump)
        for x, y in zip(plainly.changes, vouched.changes, strict=True)
    )

"""Policies as values and on disk: strict, found by the most specific scope, changed by whoever saw the last change."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compatkit.errors import FormatError, IntegrityError, InvalidName, PolicyMoved, UsageError
from compatkit.foundation.codec import dumps
from compatkit.registry import disk as durable
from compatkit.registry.maintenance.gc import plan
from compatkit.registry.policies import MODES, Images, Policy, from_bytes, to_bytes
from compatkit.registry.policy_scopes import by_specificity, check_scope, matches
from compatkit.registry.policylog import PolicyLog
from compatkit.registry.store import Store

DATA = Images("mnist/test", "data:sha256:" + "a" * 64)
NONE, BACKWARD = (
    Policy(scope="a/b", mode="none"),
    Policy(scope="a/b", mode="backward", data=DATA, tolerance=0.03),
)
FILE = "policies/a%2fb@1"


def policy(scope: str = "a/b", mode: Any = "backward", **changes: Any) -> Policy:
    return Policy(**{"scope": scope, "mode": mode, "data": None if mode == "none" else DATA, **changes})


# Values


def test_a_policy_comes_back_as_it_was_written() -> None:
    for item in (NONE, BACKWARD, policy("a/*", "full_transitive", cap=500, seed=3, across_major=True)):
        assert from_bytes(to_bytes(item, "now"), what="x") == (item, "now", "", {})
    assert from_bytes(to_bytes(None, "then"), what="x") == (None, "then", "", {})
    assert from_bytes(to_bytes(NONE, "now", "a/b@1.1.0"), what="x") == (NONE, "now", "a/b@1.1.0", {})
    author = {"by": "alice", "commit": "ab" * 20}
    assert from_bytes(to_bytes(NONE, "now", author=author), what="x") == (NONE, "now", "", author)


def test_what_is_kept_spells_everything_out() -> None:
    assert json.loads(to_bytes(BACKWARD, "2026-01-01T00:00:00+00:00")) == {
        "time": "2026-01-01T00:00:00+00:00",
        "policy": {
            "schema": 1,
            "scope": "a/b",
            "mode": "backward",
            "data": {"name": "mnist/test", "digest": "data:sha256:" + "a" * 64},
            "metric": {"name": "recombination_accuracy", "version": "1"},
            "normalisation": "batch",
            "tolerance": 0.03,
            "cap": None,
            "seed": 0,
            "batch_size": 256,
            "across_major": False,
        },
    }


def test_a_tolerance_of_no_points_is_a_number_with_a_point() -> None:
    assert policy(tolerance=0) == policy(tolerance=0.0)
    assert b'"tolerance":0.0' in to_bytes(policy(tolerance=0), "")


@pytest.mark.parametrize(
    "changes",
    [
        {"mode": "backwards"},
        {"mode": None},
        {"data": None},
        {"data": ("mnist/test", DATA.digest)},
        {"tolerance": 1.0},
        {"tolerance": -0.1},
        {"tolerance": float("nan")},
        {"tolerance": True},
        {"tolerance": "0.03"},
        {"cap": 0},
        {"cap": 2.0},
        {"cap": True},
        {"seed": -1},
        {"seed": 2**31},
        {"batch_size": 1},
        {"bn_policy": "stored"},
        {"bn_policy": "mix:0"},
        {"bn_policy": "mix:many"},
        {"metric": "Accuracy"},
        {"metric_version": ""},
        {"across_major": 1},
    ],
    ids=str,
)
def test_values_that_no_policy_can_have(changes: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="policy: "):
        policy(**changes)


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 201, 3])
def test_images_are_named_in_one_line(name: Any) -> None:
    with pytest.raises(UsageError, match="name of a data set"):
        Images(name, DATA.digest)
    with pytest.raises(UsageError, match="digest should be"):
        Images("mnist/test", "sha256:" + "a" * 64)


def test_none_measures_nothing() -> None:
    with pytest.raises(UsageError, match="leave data out"):
        Policy(scope="a/b", mode="none", data=DATA)


def test_which_kinds_a_mode_asks_something_of() -> None:
    request = {
        mode: [name for name in ("extractor", "head", "auxiliary_head") if policy(mode=mode).concerns(name)]
        for mode in MODES
    }
    assert request == {
        "none": [],
        "backward": ["extractor"],
        "backward_transitive": ["extractor"],
        "forward": ["head"],
        "forward_transitive": ["head"],
        "full": ["extractor", "head"],
        "full_transitive": ["extractor", "head"],
    }


@pytest.mark.parametrize(
    "change",
    [
        lambda value: value.pop("seed"),
        lambda value: value.update(more=1),
        lambda value: value.update(schema=2),
        lambda value: value.update(schema=True),
        lambda value: value.update(scope="a/"),
        lambda value: value.update(scope="A"),
        lambda value: value.update(tolerance=0),
        lambda value: value.update(tolerance="0.03"),
        lambda value: value.update(data=[]),
        lambda value: value["data"].update(digest="sha256:0"),
        lambda value: value["metric"].pop("version"),
        lambda value: value.update(mode=["backward"]),
        lambda value: value.update(cap="500"),
    ],
)
def test_what_is_read_is_as_strict_as_what_is_written(change: Callable[[dict[str, Any]], object]) -> None:
    value = BACKWARD.to_json()
    change(value)
    with pytest.raises((FormatError, InvalidName)):
        from_bytes(dumps({"policy": value, "time": "now"}), what="policy")


# Scopes


@pytest.mark.parametrize(
    ("value", "expected"),
    [("a/b", "a/b"), ("digits/", "digits/*"), ("*", "*"), ("a/b/*.head", "a/b/*.head"), ("m?", "m?")],
)
def test_a_scope_is_a_name_a_prefix_or_a_glob(value: str, expected: str) -> None:
    assert check_scope(value) == expected


@pytest.mark.parametrize(
    "scope",
    ["", "/", "A", "a//b", "../*", "a/b/c/*", "*" * 201, "a[bc]", "*\n", ".*", "a.", "con", "a%2f*", 3, None],
)
def test_what_is_no_scope(scope: Any) -> None:
    with pytest.raises(InvalidName):
        check_scope(scope)


def test_the_most_specific_scope_comes_first() -> None:
    """A name; then the longest beginning without wildcard; then the most letters; then the fewest wildcards."""
    order = [
        "digits/mnist.head",
        "digits/mnist*",
        "digits/m*.head",
        "digits/m*",
        "digits/?*.head",
        "digits/*",
        "*.head",
        "*",
    ]
    for shuffled in itertools.islice(itertools.permutations(order), 0, None, 997):
        assert by_specificity(shuffled) == order


@given(
    st.lists(st.text("ab*?", min_size=1, max_size=4).filter(lambda text: set(text) & set("*?")), unique=True)
)
def test_the_order_of_scopes_has_no_ties(scopes: list[str]) -> None:
    assert by_specificity(scopes) == by_specificity(reversed(scopes))


def test_a_glob_matches_whole_names_across_slashes() -> None:
    assert matches("*.head", "digits/mnist.head") and matches("digits/*", "digits/a/b")
    assert not matches("digits/*", "digits") and not matches("a/b", "a/b.c")


# On disk


def test_a_name_is_bound_by_the_most_specific_policy_alone(store: Store) -> None:
    for scope, mode in {"*": "full", "digits/*": "backward", "digits/free": "none"}.items():
        store.set_policy(scope, policy(scope, mode))
    bound = {
        name: getattr(store.policies.of(name), "scope", None) for name in ("other", "digits/a", "digits/free")
    }
    assert bound == {"other": "*", "digits/a": "digits/*", "digits/free": "digits/free"}
    assert [entry.scope for entry in store.policies.all()] == ["digits/free", "digits/*", "*"]
    store.set_policy("digits/*", None)
    assert store.policies.of("digits/a").policy.mode == "full"  # cleared: the wider one counts again
    assert store.policies.of("digits/free").policy.mode == "none"


def test_every_change_stays_in_the_history(store: Store) -> None:
    for item in (BACKWARD, NONE, NONE, None, None, BACKWARD):
        store.set_policy("a/b", item)
    history = store.policies.history("a/b")
    assert [(entry.number, entry.policy) for entry in history] == [
        (1, BACKWARD),
        (2, NONE),
        (3, None),
        (4, BACKWARD),
    ]
    assert all(entry.time.endswith("+00:00") for entry in history)
    assert store.policies.history("a/c") == [] and store.policies.current("a/c") is None


def test_nothing_is_written_where_nothing_changes(store: Store) -> None:
    assert store.set_policy("a/b", None) is None and list((store.root / "policies").iterdir()) == []
    first = store.set_policy("a/b", BACKWARD)
    assert store.set_policy("a/b", policy(tolerance=0.03)) == first


def test_only_whoever_saw_the_last_change_may_change_it(store: Store) -> None:
    store.set_policy("a/b", BACKWARD, expected=None)
    store.set_policy("a/b", NONE, expected=1)
    with pytest.raises(
        PolicyMoved, match=r"should be revision 1, but is revision 2, a/b: none: another process changed it"
    ):
        store.set_policy("a/b", None, expected=1)
    with pytest.raises(PolicyMoved, match="should be no policy"):
        store.set_policy("a/b", None, expected=None)
    with pytest.raises(PolicyMoved, match="but is revision 2"):
        store.set_policy("a/b", None, expected=BACKWARD)
    assert store.set_policy("a/b", None, expected=NONE).number == 3
    with pytest.raises(PolicyMoved, match="but is no policy"):
        store.set_policy("a/b", NONE, expected=NONE)
    assert store.set_policy("a/b", BACKWARD, expected=None).number == 4


def test_no_change_of_many_is_lost(store: Store) -> None:
    """Eight threads count up, each only from what it saw."""

    def count_up() -> None:
        policies = PolicyLog(store.root)
        for _ in range(5):
            while True:
                seen = policies.current("a/b")
                cap = (
                    1
                    if seen is None or seen.policy is None or seen.policy.cap is None
                    else seen.policy.cap + 1
                )
                try:
                    policies.set("a/b", policy(cap=cap), expected=None if seen is None else seen.number)
                    break
                except PolicyMoved:
                    continue

    with ThreadPoolExecutor(8) as pool:
        for entry in [pool.submit(count_up) for _ in range(8)]:
            entry.result()
    assert [entry.policy.cap for entry in store.policies.history("a/b") if entry.policy] == list(range(1, 41))


def test_a_policy_is_for_its_own_scope(store: Store) -> None:
    with pytest.raises(InvalidName, match="is for 'a/b', not for 'a/c'"):
        store.set_policy("a/c", BACKWARD)


def test_an_interrupted_change_at_any_step_is_made_or_not(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.set_policy("a/b", NONE)
    real, steps = durable.step, itertools.count(1)
    for last in steps:
        left = last

        def step(operation: str, path: Path) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                raise KeyboardInterrupt
            real(operation, path)

        monkeypatch.setattr(durable, "step", step)
        before = store.policies.current("a/b")
        try:
            store.set_policy("a/b", policy(cap=last))
        except KeyboardInterrupt:
            now = store.policies.current("a/b")
            assert now == before or (now.number == before.number + 1 and now.policy == policy(cap=last))
        else:
            break
    assert last > 5 and store.policies.current("a/b").policy == policy(cap=last)


def test_an_empty_file_is_no_policy_of_nobody(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without hard links a crash leaves one; an older policy, or none, must not bind in silence."""
    monkeypatch.setattr(durable, "link", lambda source, target: False)
    store.set_policy("a/b", BACKWARD)
    cut = store.root / "policies" / "a%2fb@2"
    cut.write_bytes(b"")
    os.utime(cut, (1, 1))
    with pytest.raises(FormatError, match="the file is empty: writing it was interrupted"):
        store.policies.of("a/b")
    assert store.set_policy("a/b", NONE).number == 3
    assert store.policies.current("a/b").policy == NONE


@pytest.mark.parametrize(
    "content",
    [
        b"x",
        b"{}",
        b'{"policy":null}',
        b'{"policy":{},"time":""}',
        b" " * 2**17,
        to_bytes(policy("a/c"), ""),
        b"\xff",
    ],
    ids=range(7),
)
def test_a_damaged_policy_stops_its_scope_until_it_is_set_again(store: Store, content: bytes) -> None:
    """Going on as if there were none would be a way around it."""
    store.set_policy("*", policy("*", "none"))
    store.set_policy("a/b", BACKWARD)
    path = store.root / FILE
    path.chmod(0o644)
    path.write_bytes(content)
    for ask in (lambda: store.policies.of("a/b"), store.policies.all, lambda: store.policies.history("a/b")):
        with pytest.raises(
            FormatError, match=r"holds no policy of 'a/b'.*Nothing in this scope is published"
        ):
            ask()
    assert store.policies.of("other").scope == "*"
    assert store.set_policy("a/b", BACKWARD).number == 2
    assert store.policies.of("a/b").policy == BACKWARD


def test_foreign_files_are_no_policies(store: Store) -> None:
    folder = store.root / "policies"
    for name in (
        "a%2fb",
        "A@1",
        "a%2Fb@1",
        "a%2fb@1~",
        "notes.txt",
        "%2a",
        "a%2fb@0",
        "a%2fb@01",
        "@1",
        "a@b@1",
    ):
        (folder / name).write_text("x")
    (folder / "a%2fb@1.bak").mkdir()
    assert store.policies.all() == [] and store.policies.of("a/b") is None


@pytest.mark.parametrize("where", ["policies", FILE])
def test_no_link_is_followed(store: Store, tmp_path: Path, where: str) -> None:
    store.set_policy("a/b", BACKWARD)
    path = store.root / where
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(IntegrityError):
        store.policies.of("a/b")
    with pytest.raises(IntegrityError):
        store.set_policy("a/b", NONE)


def test_collecting_and_examining_leave_policies_alone(store: Store, publish: Callable[..., Any]) -> None:
    from datetime import timedelta

    from compatkit.registry.maintenance.check import examine

    publish(store, "a/b")
    store.set_policy("a/b", BACKWARD)
    plan(store, grace=timedelta(0), alone=True).apply()
    assert store.policies.of("a/b").policy == BACKWARD
    assert examine(store).faults == ()

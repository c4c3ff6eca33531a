"""alias and withdraw: moves are stated, kept, and refused where somebody else was faster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from compatkit.registry.store import Store

HEAD = "digits/left.head"


def test_an_alias_is_pointed_shown_moved_and_removed(run: Any, parts: Path) -> None:
    assert run("alias", HEAD, "prod", "1.0.0").out == f"{HEAD}:prod is 1.0.0\n"
    assert run("alias", HEAD, "prod").out == f"{HEAD}:prod is 1.0.0\n"
    assert run("alias", HEAD, "prod", "--json").json == {"name": HEAD, "alias": "prod", "version": "1.0.0"}
    document = run("alias", HEAD, "prod", "--remove", "--expected", "1.0.0", "--json").json
    assert document == {"name": HEAD, "alias": "prod", "before": "1.0.0", "version": None}
    assert Store.open(parts).aliases(HEAD) == {}
    assert [move.after for move in Store.open(parts).alias_log(HEAD, "prod")] == ["1.0.0", None]


@pytest.mark.usefixtures("parts")
def test_a_move_from_elsewhere_than_expected_is_refused(run: Any) -> None:
    run("alias", HEAD, "prod", "1.0.0")
    result = run("alias", HEAD, "prod", "1.0.0", "--expected", "none")
    assert result.code == 2 and "should point at nothing, but points at 1.0.0" in result.err


@pytest.mark.usefixtures("parts")
@pytest.mark.case("B6")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((HEAD, "prod", "9.0.0"), "has no version 9.0.0"),
        ((HEAD, "1.0", "1.0.0"), "could be mistaken for a version"),
        ((HEAD, "latest", "1.0.0"), "could be mistaken"),
        ((HEAD, "prod"), "has no alias 'prod'"),
        (("nobody", "prod", "1.0.0"), "no component is named 'nobody'"),
        ((HEAD, "prod", "1.0.0", "--remove"), "exclude each other"),
        ((HEAD, "prod", "--expected", "1.0.0"), "needs a VERSION"),
    ],
)
def test_what_an_alias_cannot_be(run: Any, words: tuple[str, ...], expected: str) -> None:
    result = run("alias", *words)
    assert result.code == 2 and expected in result.err


def test_a_withdrawn_version_says_why_and_its_digest_still_finds_it(run: Any, parts: Path) -> None:
    digest = Store.open(parts).resolve(HEAD).digest
    run("alias", HEAD, "prod", "1.0.0")
    output = run("withdraw", f"{HEAD}@1.0.0", "--reason", "trained on the test set")
    assert (
        output.code == 0
        and f"{HEAD}@{digest}" in output.out
        and "alias prod still points at it" in output.out
    )
    result = run("show", f"{HEAD}:prod")
    assert result.code == 2 and "trained on the test set" in result.err
    assert run("show", f"{HEAD}@{digest}").code == 0
    again = run("withdraw", f"{HEAD}@1.0.0", "--reason", "another reason", "--json").json
    assert again["reason"] == "trained on the test set" and again["digest"] == digest


@pytest.mark.usefixtures("parts")
def test_what_cannot_be_withdrawn(run: Any) -> None:
    assert "Name the version" in run("withdraw", HEAD, "--reason", "x").err
    assert "has no version 7.0.0" in run("withdraw", f"{HEAD}@7.0.0", "--reason", "x").err
    assert run("withdraw", f"{HEAD}@1.0.0").code == 2
    assert "needs a reason" in run("withdraw", f"{HEAD}@1.0.0", "--reason", " ").err

"""What makes no difference between class names, and what only looks the same."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compatkit.contracts.labels import common, look_alikes, non_ascii, skeleton, spelling


@pytest.mark.parametrize(
    ("first", "other"),
    [
        ("Aquarium_Fish", "aquarium fish"),
        ("caf\u00e9", "cafe\u0301"),
        ("STRASSE", "stra\u00dfe"),
        ("fish", "\ufb01sh"),  # a ligature is two letters in any case
        ("  big\u00a0 cat ", "BIG_CAT"),
    ],
)
def test_equal_spellings(first: str, other: str) -> None:
    assert spelling(first) == spelling(other)
    assert common([first], [other]) == [(0, 0)] and look_alikes([first], [other], [(0, 0)]) == []


@pytest.mark.parametrize(
    ("first", "other"),
    [
        ("cat", "\u0441\u0430t"),  # Cyrillic
        ("BOX", "\u0392\u039f\u03a7"),  # Greek
        ("cat", "\uff23\uff21\uff34"),  # full width
        ("cat", "\U0001d41c\U0001d41a\U0001d42d"),  # mathematical bold
        ("cat", "c\u00adat"),  # soft hyphen
        ("t-shirt", "t\u2013shirt"),  # en dash
        ("caf\u00e9", "c\u0430f\u00e9"),
    ],
)
def test_look_alikes_are_other_spellings_of_one_skeleton(first: str, other: str) -> None:
    assert spelling(first) != spelling(other)
    assert skeleton(first) == skeleton(other)
    assert common([first], [other]) == []
    assert look_alikes([first], [other], []) == look_alikes([other], [first], []) == [(0, 0)]
    assert non_ascii(other)


@pytest.mark.parametrize(
    ("first", "other"), [("0", "O"), ("1", "l"), ("cat", "\u043a\u043e\u0442"), ("a", "\u00e4")]
)
def test_these_are_no_look_alikes(first: str, other: str) -> None:
    assert skeleton(first) != skeleton(other)


def test_a_class_with_a_partner_may_have_a_look_alike_too() -> None:
    """The second class of the right side has no partner, and looks like the first of the left."""
    left, right = ["cat", "dog"], ["cat", "c\u0430t"]
    assert common(left, right) == [(0, 0)]
    assert look_alikes(left, right, [(0, 0)]) == [(0, 1)]
    assert look_alikes(left, ["cat", "dog"], [(0, 0), (1, 1)]) == []


def test_a_look_alike_of_a_synonym_is_found() -> None:
    assert look_alikes(["automobile"], ["\u0441\u0430r"], []) == [(0, 0)]


def test_strange_characters_are_named_once_and_many_are_counted() -> None:
    assert non_ascii("cat") == ""
    assert non_ascii("\u0430b\u0430") == "U+0430 CYRILLIC SMALL LETTER A"
    assert non_ascii("\ue000") == "U+E000 without a name"
    assert non_ascii("\u0430\u0431\u0432\u0433\u0434\u0435").endswith("GHE and 2 more")


@settings(deadline=None)
@given(st.text(max_size=12))
def test_any_text_has_a_spelling_and_a_skeleton(name: str) -> None:
    assert spelling(spelling(name)) == spelling(name)
    assert spelling(unicodedata.normalize("NFD", name)) == spelling(unicodedata.normalize("NFC", name))
    assert skeleton(name) == skeleton(unicodedata.normalize("NFC", name)) or not name.isprintable()
    non_ascii(name)

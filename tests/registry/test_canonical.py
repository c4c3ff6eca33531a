"""Canonical JSON: one value, one sequence of bytes; whatever is ambiguous is refused."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compatkit.errors import FormatError
from compatkit.foundation import codec
from compatkit.foundation.codec import MAX_VALUES, digest, dumps, loads

finite = st.floats(allow_nan=False, allow_infinity=False)
text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | finite | text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=4),
    max_leaves=12,
)


def test_keys_are_sorted_and_nothing_is_padded():
    assert dumps({"b": [1, 2.5, None], "a": "é"}) == '{"a":"é","b":[1,2.5,null]}\n'.encode()


def test_composed_and_decomposed_text_have_the_same_bytes():
    assert dumps("e\u0301") == dumps("\u00e9") == '"é"\n'.encode()


def test_digest_of_the_empty_input_is_the_published_one():
    assert digest(b"") == "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


@given(values)
def test_a_value_survives_and_its_bytes_are_a_fixed_point(value: object):
    try:
        data = dumps(value)
    except FormatError:
        return  # two keys that are one in NFC
    assert dumps(loads(data, what="value")) == data


@given(st.dictionaries(text, st.integers(), max_size=6), st.randoms())
def test_the_order_of_insertion_does_not_matter(value: dict[str, int], random):
    keys = list(value)
    random.shuffle(keys)
    try:
        assert dumps({key: value[key] for key in keys}) == dumps(value)
    except FormatError:
        assert len({dumps(key) for key in keys}) < len(keys)


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        ({"a": [float("nan")]}, r"value\.a\[0\]: JSON has no nan"),
        (float("inf"), "JSON has no inf"),
        ({1: 2}, "keys must be strings"),
        ({"e\u0301": 1, "\u00e9": 2}, "two keys become"),
        ("\ud800", "surrogate"),
        ({"k" * 10**6: [{"x": float("nan")}]}, r"value\.k{80}\[0\]\.x: JSON has no nan"),
        ({"a": {1, 2}}, "expected a JSON value, got set"),
        (b"bytes", "expected a JSON value, got bytes"),
    ],
)
def test_what_json_cannot_say_is_refused_with_its_path(value: object, complaint: str):
    with pytest.raises(FormatError, match=complaint):
        dumps(value)


def nested(depth: int) -> bytes:
    return b"[" * depth + b"]" * depth


@pytest.mark.case("E1")
@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "empty file"),
        (b'{"a": 1', "not valid JSON"),
        (b'{"a": 1, "a": 1}', "'a' appears twice"),
        (b'{"x": {"a": 1, "a": 2}}', "'a' appears twice"),
        (b"NaN", "NaN is not a finite float"),
        (b"[-Infinity]", "-Infinity is not a finite float"),
        (b"[1e999]", "1e999 is not a finite float"),
        (b"\xff", "expected UTF-8"),
        ("\ufeff1".encode(), "not valid JSON"),
        (b'"\\ud800"', "surrogate"),
        (b"1 2", "not valid JSON"),
        (b"9" * 5000, "not valid JSON"),
        (b"[1, -0]", "-0 is a whole number to some readers"),
        (b"[01]", "not valid JSON"),
        (b"[1,]", "not valid JSON"),
        (b"'a'", "not valid JSON"),
        (b'"a\tb"', "not valid JSON"),
        (nested(101), "nested deeper than 100"),
        (nested(10_000), "nested deeper than 100"),
        (nested(200_000), "nested deeper than 100"),
        (b" " * (64 * 2**20 + 1), "at most 67108864 bytes"),
    ],
    ids=lambda value: repr(value[:24]) if isinstance(value, bytes) else None,
)
def test_reading_refuses_what_two_parsers_could_read_differently(data: bytes, complaint: str):
    with pytest.raises(FormatError, match=f"^thing: .*{complaint}"):
        loads(data, what="thing")


def test_minus_zero_is_refused_as_a_whole_number_only():
    assert loads(b'[-0.0, "-0", -1, 0, -0.5]', what="value") == [0.0, "-0", -1, 0, -0.5]


@pytest.mark.case("E1")
def test_keys_have_a_longest_length_and_texts_have_none():
    value = {"k" * 512: ["t" * 100_000, {"\u00e9" * 512: {}}]}
    assert loads(dumps(value), what="value") == value
    for long in ({"k" * 513: 1}, [1, {"a": [{"\u00e9" * 513: {}}]}]):
        with pytest.raises(FormatError, match="thing: a key has 513 characters"):
            loads(dumps(long), what="thing")
        assert loads(dumps(long), what="thing", any_key=True) == long


@pytest.mark.case("E1")
def test_values_are_counted_before_they_are_made(monkeypatch: pytest.MonkeyPatch):
    assert MAX_VALUES == 1_000_000
    assert loads(b"[" + b"0," * 9 + b"0]", what="thing", max_values=10) == [0] * 10
    monkeypatch.setattr(codec.json, "loads", lambda *args, **kwargs: pytest.fail("parsed"))
    for data in (b"[" + b"0," * 10 + b"0]", b"[" + b"[]," * 6 + b"0]", b'{"a":{"b":[[[[[[[[[]]]]]]]]]}}'):
        with pytest.raises(FormatError, match="thing: expected at most 10 commas and opening brackets"):
            loads(data, what="thing", max_values=10)


def test_the_deepest_allowed_value_is_written_and_read():
    value = json.loads(nested(100))
    assert loads(dumps(value), what="value") == value
    with pytest.raises(FormatError, match="deeper"):
        dumps([value])

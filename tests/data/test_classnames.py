"""Class names of labels that are written down: names, numbers, and places in a list."""

from __future__ import annotations

import pytest

from compatkit.data.classnames import encode_labels, parse_class_names, text_lines
from compatkit.errors import DataError


def labels(*written: str, names: list[str] | None = None) -> tuple[tuple[str, ...], list[int]]:
    classes, result = encode_labels(written, "list.csv", names)
    return classes, result.tolist()


def test_without_names() -> None:
    assert labels("b", "a", "b") == (("a", "b"), [1, 0, 1])
    assert labels("10", "9", "2") == (("2", "9", "10"), [2, 1, 0])
    assert labels("10", "9", "x") == (("10", "9", "x"), [0, 1, 2])


def test_with_names() -> None:
    assert labels("2", "0", "00", names=["x", "y", "z"]) == (("x", "y", "z"), [2, 0, 0])
    assert labels("z", "x", names=["x", "y", "z"]) == (("x", "y", "z"), [2, 0])
    assert labels("1", "0", names=["1", "0"]) == (("1", "0"), [0, 1])  # names that are numbers


@pytest.mark.parametrize(
    ("written", "names", "subject"),
    [("3", ["x", "y"], "3"), ("-1", ["x"], "-1"), ("w", ["x"], "w"), ("", None, ""), ("٣", ["x"] * 9, "٣")],
)
def test_labels_that_are_none(written: str, names: list[str] | None, subject: str) -> None:
    with pytest.raises(DataError) as caught:
        labels(written, names=names)
    assert caught.value.subject == subject


def test_lines() -> None:
    assert text_lines("\ufeffa b \r\n\n\tc\n".encode(), "x") == ["a b", "c"]
    with pytest.raises(DataError) as caught:
        text_lines(b"\xff", "x")
    assert caught.value.subject == "x"


def test_names_in_the_order_of_their_numbers() -> None:
    assert parse_class_names(b"cat\ndog\n\n\n", "x") == ["cat", "dog"]
    for data in (b"cat\n\ndog\n", b"\ncat\n", b"cat\r\n \t\r\ndog", b"\xff"):
        with pytest.raises(DataError) as caught:
            parse_class_names(data, "x")
        assert caught.value.subject == "x"

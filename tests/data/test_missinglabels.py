"""Texts that are no names of classes: one rule for what is written beside images and for what is declared."""

from __future__ import annotations

import pytest

from compatkit.data.classnames import encode_labels
from compatkit.data.missinglabels import check_class_names, check_label_texts
from compatkit.data.validation import check_names
from compatkit.errors import DataError

MARKS = [
    "",
    "nan",
    "NaN",
    "-nan",
    "None",
    "none",
    "NULL",
    "null",
    "NA",
    "n/a",
    "N/A",
    "<NA>",
    "#N/A",
    "NaT",
    "nil",
    "?",
]


@pytest.mark.parametrize("mark", [*MARKS, "-1", "-100", "-1.0", "undefined", "-"])
def test_marks_in_the_place_of_a_label(mark: str) -> None:
    with pytest.raises(DataError) as caught:
        encode_labels(["cat", mark, "dog"], "list.csv")
    assert caught.value.code == "data" and caught.value.subject == mark and "number 2" in str(caught.value)


@pytest.mark.parametrize("label", ['"cat"', "'cat'", "\u201ccat\u201d", "`cat`"])
def test_labels_that_kept_their_quotes(label: str) -> None:
    with pytest.raises(DataError) as caught:
        check_label_texts(["dog", label], "list.csv")
    assert caught.value.subject == label
    check_label_texts([label], "list.csv", declared=[label])


def test_what_a_list_names_is_a_class_unless_it_is_no_word() -> None:
    for name in ("none", "NA", "-1", "null"):
        assert encode_labels([name, "cat"], "list.csv", ["cat", name])[0] == ("cat", name)
    with pytest.raises(DataError) as caught:
        encode_labels(["nan", "cat"], "list.csv", ["cat", "nan"])
    assert caught.value.subject == "nan"
    with pytest.raises(DataError) as caught:
        encode_labels(["0", "1"], "list.csv", ["cat", "NaN"])
    assert caught.value.subject == "NaN"


def test_numbers_with_a_point() -> None:
    with pytest.raises(DataError) as caught:
        encode_labels(["0.0", "1.0"], "list.csv")
    assert caught.value.subject == "0.0"
    assert encode_labels(["1.0", "1.5"], "list.csv")[0] == ("1.0", "1.5")
    assert encode_labels(["1.0", "2.0"], "list.csv", ["1.0", "2.0"])[0] == ("1.0", "2.0")


@pytest.mark.parametrize("name", ["nan", "NaN", "None", "NULL", "NA", "n/a", "<NA>", "-1", " ", '"dog"'])
def test_declared_names_that_programs_made(name: str) -> None:
    with pytest.raises(DataError) as caught:
        check_class_names(["cat", name], "a.npz", "Call it otherwise.")
    assert caught.value.subject == name


def test_declared_names_that_are_words() -> None:
    check_class_names(
        ["none", "nothing", "nan bread", "nana", "-10 degrees", "1", "train", "car"], "a.npz", ""
    )


def test_parts_in_the_place_of_classes() -> None:
    for check in (
        lambda names: check_class_names(names, "a.npz", ""),
        lambda names: encode_labels(names, "a.npz"),
    ):
        with pytest.raises(DataError) as caught:
            check(["Train", "Test"])
        assert caught.value.subject == "a.npz"
    assert encode_labels(["train", "test"], "list.csv", ["train", "test"])[0] == ("train", "test")


@pytest.mark.parametrize(
    "names",
    [
        ("0", "00"),
        ("1", "1.0"),
        ("7", "+7"),
        ("01", "1."),
        ("cat", " cat"),
        ("big cat", "big  cat"),
        ("Big_cat", "big cat"),
    ],
)
def test_classes_that_are_one_but_for_their_spelling(names: tuple[str, str]) -> None:
    with pytest.raises(DataError) as caught:
        check_names(names, "x")
    assert caught.value.subject == names[1]


def test_numbers_that_differ() -> None:
    names = ("0", "1", "10", "100", "1.5", "1.50", "1.1", "1.10", "-1", "0x1")
    assert check_names(names, "x") == names


def test_labels_are_composed() -> None:
    classes, labels = encode_labels(["caf\u00e9", "cafe\u0301", "dog"], "list.csv")
    assert classes == ("caf\u00e9", "dog") and labels.tolist() == [0, 0, 1]

"""The data level: images, and classes by name; look-alikes are told, ambiguity is refused, size costs little."""

from __future__ import annotations

import time

import attrs
import pytest
from sample_components import GRAY, codes, extractor, head, labels, only

from compatkit.contracts import labels as compared
from compatkit.contracts.check import check
from compatkit.contracts.contract import Data, Label
from compatkit.contracts.labels import label_findings, spelling
from compatkit.errors import DataError

DIGITS = labels("0", "1", "2")


def test_other_input_images_are_only_said() -> None:
    usps = Data((16, 16), "RGB", (0.1, 0.2, 0.3), (0.25, 0.25, 0.25))
    report = check(extractor(), head(data=usps))
    result = only(report, "input-differs")
    assert (result.level, result.severity) == ("data", "informs")
    assert "own preprocessing" in result.remedy
    assert result.expected == "size 16, 16; channels RGB; mean 0.1, 0.2, 0.3; std 0.25, 0.25, 0.25"
    assert report.wiring == "direct"
    assert "input-differs" not in codes(check(extractor(), head()))


def data_of(*names: str) -> Data:
    return attrs.evolve(GRAY, labels=labels(*names))


def test_classes_are_compared_by_name_only_with_the_data_asked_for() -> None:
    left, right = extractor(), head(classes=DIGITS)
    assert not {"labels-partial", "labels-disjoint"} & codes(check(left, right))
    assert not {"labels-partial", "labels-disjoint"} & codes(check(left, right, data=data_of("2", "1", "0")))
    partial = only(check(left, right, data=data_of("1", "2", "3")), "labels-partial")
    assert partial.severity == "informs"
    assert "2 classes in common are counted: 1, 2" in partial.remedy
    assert only(check(left, right, data=data_of("cat", "dog")), "labels-disjoint").severity == "warns"
    assert only(check(left, head(), data=data_of("1")), "labels-disjoint").actual == "no named classes"


def test_classes_match_by_their_other_names() -> None:
    right = head(classes=(Label("automobile", ("car",)), Label("cat")))
    report = check(extractor(), right, data=data_of("cat", "car"))
    assert not {"labels-partial", "labels-disjoint"} & codes(report)


@pytest.mark.case("F")
def test_a_class_that_fits_two_is_refused() -> None:
    with pytest.raises(DataError, match="both"):
        check(extractor(), head(classes=labels("car", "automobile")), data=data_of("car"))


@pytest.mark.case("F")
@pytest.mark.parametrize(
    ("name", "character"),
    [
        ("c\u0430t", "U+0430 CYRILLIC SMALL LETTER A"),
        ("\u0421AT", "U+0421 CYRILLIC CAPITAL LETTER ES"),
        ("c\u03b1t", "U+03B1 GREEK SMALL LETTER ALPHA"),
        ("\uff43at", "U+FF43 FULLWIDTH LATIN SMALL LETTER C"),
        ("ca\u200bt", "U+200B ZERO WIDTH SPACE"),
    ],
)
def test_look_alikes_are_not_taken_for_equal_and_are_said(name: str, character: str) -> None:
    report = check(extractor(), head(classes=labels(name, "dog")), data=data_of("cat", "dog"))
    assert "1 classes in common are counted: dog" in only(report, "labels-partial").remedy
    result = only(report, "labels-look-alike")
    assert result.expected == "'cat'"
    assert character in result.actual


def test_names_of_one_script_are_no_look_alikes() -> None:
    """Also digits and letters: EMNIST has a class ``0`` and a class ``O``."""
    report = check(
        extractor(), head(classes=labels("\u043a\u043e\u0442", "O", "l")), data=data_of("dog", "0", "1")
    )
    assert "labels-look-alike" not in codes(report)


def test_composition_case_and_underscores_make_no_difference() -> None:
    right = head(classes=labels("Caf\u00e9_Crème", "STRASSE"))
    report = check(extractor(), right, data=data_of("cafe\u0301 cre\u0300me", "stra\u00dfe"))
    assert not {"labels-partial", "labels-look-alike"} & codes(report)


def test_many_look_alikes_are_counted() -> None:
    left, right = [f"c{n}o" for n in range(9)], [f"c{n}\u043e" for n in range(9)]
    result = only(check(extractor(), head(classes=labels(*right)), data=data_of(*left)), "labels-look-alike")
    assert result.expected == "'c0o', 'c1o', 'c2o' and 6 more"


@pytest.mark.case("F")
@pytest.mark.parametrize(("first", "second"), [("cat", "cat"), ("cat", "Cat"), ("big cat", "big_cat")])
def test_two_classes_of_one_name_in_one_contract_are_refused_by_name(first: str, second: str) -> None:
    two = f"number 1, {first!r}, and number 3, {second!r}"
    with pytest.raises(DataError, match=f"classes of the head have the same name: {two}"):
        check(extractor(), head(classes=labels(first, "dog", second)), data=data_of("cat"))
    with pytest.raises(DataError, match=f"classes of the requested data have the same name: {two}"):
        check(extractor(), head(classes=DIGITS), data=data_of(first, "dog", second))


def test_ten_thousand_classes_are_compared_at_once() -> None:
    first = labels(*(f"class_{number}" for number in range(10_000)))
    other = labels(*(f"Class {number}" for number in range(9_999, -1, -1)))
    spelling.cache_clear()
    begun = time.process_time()
    assert label_findings(first, other) == ()
    assert time.process_time() - begun < 5  # 0.04 where nothing else runs; each with each takes half a minute
    spelled = spelling.cache_info().misses
    assert label_findings(first, other) == ()
    assert spelling.cache_info().misses == spelled  # remembered


def test_the_first_of_many_classes_are_named_and_all_are_counted() -> None:
    result = only(
        check(
            extractor(), head(classes=labels(*map(str, range(10_000)))), data=data_of(*map(str, range(5_000)))
        ),
        "labels-partial",
    )
    assert "... (5000 classes)" in result.expected and "... (10000 classes)" in result.actual
    assert len(str(result)) < 600


def test_comparisons_are_remembered_up_to_a_number_and_a_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compared, "_cache", {})
    monkeypatch.setattr(compared, "MAX_COMPARISONS", 3)
    saved = [labels(str(number)) for number in range(9)]
    for item in saved:
        assert [label_finding.code for label_finding in label_findings(DIGITS, item)] in (
            ["labels-partial"],
            ["labels-disjoint"],
        )
        assert len(compared._cache) <= 3
    monkeypatch.setattr(compared, "MAX_CACHED_CLASSES", 4)
    for item in saved:
        label_findings(DIGITS, item)
        assert len(compared._cache) <= 2


def test_data_without_classes_is_said_to_have_none() -> None:
    report = check(extractor(), head(classes=DIGITS), data=attrs.evolve(GRAY, labels=()))
    assert only(report, "labels-disjoint").expected == "no named classes"

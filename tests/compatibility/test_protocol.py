"""The protocol level: whose statistics batch normalisation needs, and what both were trained against."""

from __future__ import annotations

import attrs
import pytest
from components import GREY, codes, extractor, head, initial, labels, only, shared

from compatkit.compatibility import check


@pytest.mark.parametrize(
    ("left", "right", "named"),
    [
        ("batch", "none", "the extractor"),
        ("none", "batch", "the head"),
        ("batch", "batch", "the extractor and the head"),
    ],
)
def test_batch_normalisation_needs_a_policy_and_images(left: str, right: str, named: str) -> None:
    found = only(check(extractor(normalisation=left), head(normalisation=right)), "normalisation-needed")
    assert (found.level, found.severity) == ("protocol", "informs")
    assert found.whose == f"batch normalisation in {named}"
    assert "reestimate (unlabelled images" in found.remedy


def test_without_batch_normalisation_no_policy_is_needed() -> None:
    assert "normalisation-needed" not in codes(check(extractor(), head()))


def test_shared_initial_weights_are_no_promise_and_a_shared_head_is() -> None:
    left = extractor(anchors=(initial("one"), shared("dcc")))
    same = check(left, head(anchors=(initial("one"),)))
    assert same.promise == "shared-init"
    assert only(same, "initial-weights-shared").severity == "informs"
    assert "never a promise" in only(same, "initial-weights-shared").remedy
    both = check(left, head(anchors=(shared("dcc"), initial("one"))))
    assert both.promise == "shared-head"
    assert only(both, "head-shared").severity == "promises"
    assert codes(both) >= {"initial-weights-shared", "head-shared"}
    other = check(left, head(anchors=(initial("two"), shared("other"))))
    assert other.promise == "none"


@pytest.mark.parametrize(
    ("left", "right", "said"),
    [
        ("cat dog ship", "cat dog ship", "3 of 3"),
        ("cat dog ship", "dog cat ship", "1 of 3"),
        ("cat dog ship frog", "dog ship", "0 of 2"),
        ("automobile dog", "car dog", "2 of 2"),
    ],
)
def test_equal_initial_weights_tell_how_many_class_rows_coincide(left: str, right: str, said: str) -> None:
    """Class layers that start equal help where the same class stands at the same row."""
    both = (initial("one"),)
    one = extractor(anchors=both, data=attrs.evolve(GREY, labels=labels(*left.split())))
    other = head(anchors=both, classes=labels(*right.split()))
    found = only(check(one, other), "initial-weights-shared")
    assert f"{said} common classes stand at the same row" in found.came


def test_classes_that_are_not_known_or_ambiguous_are_not_counted() -> None:
    both = (initial("one"),)
    twice = attrs.evolve(GREY, labels=labels("cat", "cat"))
    for one in (extractor(anchors=both), extractor(anchors=both, data=twice)):
        found = only(check(one, head(anchors=both, classes=labels("cat", "dog"))), "initial-weights-shared")
        assert found.came == "the same"

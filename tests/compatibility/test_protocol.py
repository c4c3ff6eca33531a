"""The protocol level: whose statistics batch normalisation needs, and what both were trained against."""

from __future__ import annotations

import pytest
from components import codes, extractor, head, initial, only, shared

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

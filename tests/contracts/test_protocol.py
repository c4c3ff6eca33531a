"""The protocol level: whose statistics batch normalization needs, and what both were trained against."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest
from sample_components import codes, extractor, head, initial, labels, only, shared
from small import data_set, quick

import compatkit as ck
from compatkit.contracts.check import check


@pytest.mark.parametrize(
    ("left", "right", "names"),
    [
        ("batch", "none", "the extractor"),
        ("none", "batch", "the head"),
        ("batch", "batch", "the extractor and the head"),
    ],
)
def test_batch_normalization_needs_a_policy_and_images(left: str, right: str, names: str) -> None:
    result = only(check(extractor(norm=left), head(norm=right)), "normalization-needed")
    assert (result.level, result.severity) == ("protocol", "informs")
    assert result.between == f"batch normalization in {names}"
    assert "reestimate (unlabeled images" in result.remedy


def test_without_batch_normalization_no_policy_is_needed() -> None:
    assert "normalization-needed" not in codes(check(extractor(), head()))


def test_shared_initial_weights_are_no_promise_and_a_shared_head_is() -> None:
    left = extractor(anchors=(initial("one"), shared("dcc")))
    same = check(left, head(anchors=(initial("one"),)))
    assert same.promise == "shared-init"
    assert only(same, "initial-weights-shared").severity == "informs"
    assert "no promise by itself" in only(same, "initial-weights-shared").remedy
    both = check(left, head(anchors=(shared("dcc"), initial("one"))))
    assert both.promise == "shared-head"
    assert only(both, "head-shared").severity == "promises"
    assert codes(both) >= {"initial-weights-shared", "head-shared"}
    other = check(left, head(anchors=(initial("two"), shared("other"))))
    assert other.promise == "none"


@pytest.mark.parametrize(
    ("left", "right", "message"),
    [
        ("cat dog ship", "cat dog ship", "3 of 3"),
        ("cat dog ship", "dog cat ship", "1 of 3"),
        ("cat dog ship frog", "dog ship", "0 of 2"),
        ("automobile dog", "car dog", "2 of 2"),
    ],
)
def test_equal_class_layers_tell_how_many_rows_coincide(left: str, right: str, message: str) -> None:
    """They help where the same class stands at the same row."""
    first, other = (attrs.evolve(initial("one"), classes=labels(*names.split())) for names in (left, right))
    result = only(check(extractor(anchors=(first,)), head(anchors=(other,))), "initial-weights-shared")
    assert result.actual == f"the same; class layers too: {message} common classes have the same row"


def test_class_layers_that_started_apart_or_have_a_class_twice_are_not_counted() -> None:
    known = attrs.evolve(initial("one"), classes=labels("cat", "dog"))
    for classes in (None, labels("cat", "cat")):
        evolve = attrs.evolve(initial("one"), classes=classes)
        result = only(check(extractor(anchors=(evolve,)), head(anchors=(known,))), "initial-weights-shared")
        assert result.actual == "the same"


@pytest.mark.parametrize(
    ("class_layer", "came"),
    [
        ("identical", "the same; class layers too: 1 of 3 common classes have the same row"),
        ("own", "the same"),
    ],
)
def test_published_parts_tell_of_their_rows(tmp_path: Path, class_layer: str, came: str) -> None:
    registry = ck.Registry.init(tmp_path / "parts")
    tasks = [
        ck.Task(name, data_set(name, classes=classes), "resnet8_cifar", "layer2", size=16)
        for name, classes in (("a", ("0", "1", "2")), ("b", ("1", "0", "2")))
    ]
    registry.publish(
        quick(steps=0).fit(tasks, [ck.use("identical_init", class_layer=class_layer)]), prefix="d"
    )
    result = only(registry.check("d/a.extractor", "d/b.head"), "initial-weights-shared")
    assert result.actual == came

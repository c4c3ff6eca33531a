"""The key of a figure: what moves it, what does not, and why a kept figure is stale; each case written out."""

from __future__ import annotations

from typing import Any

import pytest
from measured import ASKED, circumstances, settings

from compatkit.contracts import evidence as cells
from compatkit.evaluation.conditions import is_kept, key_of, question_of, stale_reason

BATCH = {"policy": "batch", "batch_size": 30, "seed": 1}
"""100 images in four batches."""


def test_a_key_written_out() -> None:
    assert key_of(settings(**BATCH, bound="value:sha256:ab")) == {
        "metric": "recombination_accuracy",
        "metric_version": cells.METRIC_VERSION,
        "data": ASKED["data_digest"],
        "normalisation": "batch",
        "batches": 4,
        "seed": 1,
        "precision": "float32",
        "adapters": [],
        "bound": "value:sha256:ab",
    }


ANOTHER_CELL: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "the images": ({}, {"data_digest": "data:sha256:other"}),
    "the policy": (BATCH, {"policy": "reestimate"}),
    "how much stored statistics count": ({**BATCH, "policy": "mix:16"}, {"policy": "mix:32"}),
    "stored statistics in place of those of the batch": (BATCH, {"policy": "running"}),
    "the number of batches": (BATCH, {"batch_size": 50}),
    "the order of the images": (BATCH, {"seed": 2}),
    "the precision": ({}, {"precision": "bfloat16"}),
    "another head that gives the bound": ({"bound": "value:sha256:a"}, {"bound": "value:sha256:b"}),
    "an adapter": ({}, {"adapters": [("value:sha256:c", "cast")]}),
    "the order of adapters": (
        {"adapters": [("value:sha256:c", "cast"), ("value:sha256:d", "pool")]},
        {"adapters": [("value:sha256:d", "pool"), ("value:sha256:c", "cast")]},
    ),
}
THE_SAME_CELL: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "the seed with stored statistics": ({"seed": 1}, {"seed": 2}),
    "the batch size with stored statistics": ({"batch_size": 10}, {"batch_size": 20}),
    "batches of other sizes that are as many": (BATCH, {"batch_size": 27}),
    "the seed of a single batch": ({"policy": "batch", "seed": 1}, {"seed": 2}),
    "everything about normalization where there is none": (
        {**BATCH, "batch_norm": False},
        {"policy": "running", "batch_size": 7, "seed": 5},
    ),
    "the name of the images": ({}, {"data": "b/test"}),
    "the words for an adapter": (
        {"adapters": [("value:sha256:c", "cast to float32")]},
        {"adapters": [("value:sha256:c", "cast")]},
    ),
    "the device": ({"device": "cpu"}, {"device": "cuda"}),
    "the version of torch": ({"torch": "2.14.1"}, {"torch": "2.15.0"}),
    "the head's own extractor being the other": ({"own": False}, {"own": True}),
}


def adapted(changes: dict[str, Any]) -> dict[str, Any]:
    """Return settings with adapters, which ``settings`` has no name for."""
    inside = {**ASKED, **{name: change for name, change in changes.items() if name in (*ASKED, "adapters")}}
    return {**circumstances(**inside), **{n: o for n, o in changes.items() if n not in inside}}


@pytest.mark.parametrize(("base", "change"), ANOTHER_CELL.values(), ids=ANOTHER_CELL)
def test_what_makes_another_cell(base: dict[str, Any], change: dict[str, Any]) -> None:
    assert key_of(adapted(base)) != key_of(adapted({**base, **change}))


@pytest.mark.parametrize(("base", "change"), THE_SAME_CELL.values(), ids=THE_SAME_CELL)
def test_what_makes_no_other_cell(base: dict[str, Any], change: dict[str, Any]) -> None:
    assert key_of(adapted(base)) == key_of(adapted({**base, **change}))


def test_a_new_version_of_the_metric_is_another_key_of_the_same_question(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = settings()
    monkeypatch.setattr(cells, "METRIC_VERSION", "2")
    after = settings()
    assert key_of(before) != key_of(after) and question_of(before) == question_of(after)
    reason = stale_reason(key_of(after), key_of(before), before)
    assert reason == "the metric recombination_accuracy changed from version 1 to 2"


def test_other_images_of_the_same_name_are_the_same_question() -> None:
    before, after = settings(), settings(data_digest="data:sha256:" + "c" * 64)
    assert question_of(before) == question_of(after) != question_of(settings(data="b/test"))
    reason = stale_reason(key_of(after), key_of(before), before)
    assert (
        reason.startswith("the images of a/test have changed (data:") and "now data:cccccccccccc)" in reason
    )


def test_samples_of_the_same_name_are_questions_of_their_own() -> None:
    whole, some = settings(), settings(data_digest="data:sha256:b", sample=True)
    other = settings(data_digest="data:sha256:c", sample=True)
    assert len({question_of(item) for item in (whole, some, other)}) == 3


def test_another_bound_is_the_same_question_and_a_missing_one_takes_any() -> None:
    none, first, two = (settings(bound=bound) for bound in ("", "value:sha256:" + "1" * 64, "value:sha256:2"))
    assert question_of(none) == question_of(first) == question_of(two)
    assert is_kept(key_of(none), key_of(first)) and is_kept(key_of(none), key_of(none))
    assert not is_kept(key_of(first), key_of(none)) and not is_kept(key_of(first), key_of(two))
    reason = stale_reason(key_of(first), key_of(none), none)
    assert reason == "the bound is that of another head (none, now value:111111111111)"


def test_all_that_moved_is_told() -> None:
    before = settings(metric_version="0")
    after = settings(data_digest="data:sha256:d", bound="value:sha256:e")
    reason = stale_reason(key_of(after), key_of(before), before)
    assert [part.split()[1] for part in reason.split("; ")] == ["metric", "images", "bound"]

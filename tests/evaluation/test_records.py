"""Cells as the registry keeps them: nothing is lost on the way, and nothing odd is let in."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from measured import cell, settings

from compatkit.contracts.evidence import Cell, Figure, weak_or_compatible
from compatkit.contracts.grades import Grade
from compatkit.errors import FormatError
from compatkit.evaluation.records import SHOWN_DAMAGED, Cells, record
from compatkit.foundation.codec import dumps, loads
from compatkit.registry.evidence import StoredResult, from_bytes, key_of, to_bytes

LEFT, RIGHT = "value:sha256:" + "1" * 64, "value:sha256:" + "2" * 64

shares = st.floats(0, 1)
figures = st.builds(
    lambda correct, more, *rest: Figure(rest[0], correct, correct + more, *rest[1:]),
    st.integers(0, 10**6),
    st.integers(1, 10**6),
    shares,
    shares,
    shares,
)
numbers = st.none() | st.floats(-10, 10)


def graded(cell: Cell) -> Cell:
    """Grade a cell by its figures, as whoever measures does."""
    if cell.grade != "compatible" or cell.chance is None or cell.restricted is None:
        return cell
    limit = 1.0 if cell.bound is None else cell.bound.accuracy
    return attrs.evolve(cell, grade=weak_or_compatible(cell.restricted.accuracy, cell.chance, limit))


measured = st.builds(
    Cell,
    st.just("e@1.0.0"),
    st.just("h@1.0.0"),
    st.sampled_from(["direct", "needs-adapter"]),
    st.just("none"),
    st.sampled_from(["none", "undecided", "chance", "compatible", "perfect"]),
    figures,
    st.none() | figures,
    numbers,
    st.none() | figures,
    numbers,
    st.none() | st.tuples(st.floats(-1, 1), st.floats(-1, 1)),
    st.lists(st.text("abc ", max_size=3), max_size=3).map(tuple),
    st.builds(
        settings,
        seed=st.integers(0, 5),
        policy=st.sampled_from(["batch", "running"]),
        bound=st.sampled_from(["", LEFT]),
        device=st.sampled_from(["cpu", "cuda"]),
        own=st.just(False),
    ),
).map(graded)


def stored_result(cell: Cell, **changes: Any) -> StoredResult:
    """Return a result as it comes out of a registry, with parts replaced."""
    data = loads(dumps({**record(cell), **changes}), what="the result")
    return StoredResult(
        LEFT, RIGHT, "sha256:" + "0" * 64, 0, data["conditions"], data["settings"], data["figures"]
    )


@given(measured)
def test_a_cell_comes_back_as_it_was(one: Cell) -> None:
    assert Cells().of(stored_result(one), "e@1.0.0", "h@1.0.0") == one


@pytest.mark.parametrize(("right", "grade"), [(54, "weak"), (55, "compatible")])
def test_what_was_kept_before_there_was_a_weak_grade_is_graded_by_its_figures(
    right: int, grade: Grade
) -> None:
    first = cell("compatible", right)  # chance .1, no bound: half of the way to 1 is .55
    assert record(attrs.evolve(first, grade=grade)) == record(first)
    assert Cells().of(stored_result(first), "e", "h").grade == grade


def test_the_parts_are_called_as_they_are_called_now() -> None:
    first = cell()
    result = Cells().of(stored_result(first), "new@2.0.0", "other@3.0.0", promise="shared-head", own=True)
    assert (result.extractor, result.head, result.promise, result.own) == (
        "new@2.0.0",
        "other@3.0.0",
        "shared-head",
        True,
    )
    assert result.restricted == first.restricted and Cells().of(stored_result(first), "a", "b").own is False


def odd(**changes: Any) -> dict[str, Any]:
    return {**record(cell())["figures"], **changes}


ODD: dict[str, tuple[dict[str, Any], str]] = {
    "no accuracy": ({"figures": odd(restricted=None)}, r"not complete.*restricted"),
    "a share above 1": (
        {"figures": odd(restricted=[1.5, 50, 100, 0.4, 0.6])},
        r"not complete.*restricted\[0\]",
    ),
    "a share that is text": ({"figures": odd(bound=["x", 50, 100, 0.4, 0.6])}, "not complete.*bound"),
    "more right than images": (
        {"figures": odd(restricted=[0.5, 101, 100, 0.4, 0.6])},
        "101 correct of 100",
    ),
    "no images": ({"figures": odd(restricted=[0.5, 0, 0, 0.4, 0.6])}, "not complete.*restricted"),
    "a figure cut off": ({"figures": odd(restricted=[0.5, 50])}, "not complete"),
    "a stale grade": ({"figures": odd(grade="stale")}, "no grade 'stale'"),
    "a grade that is a list": ({"figures": odd(grade=[])}, "not complete"),
    "chance as text": ({"figures": odd(chance="low")}, "not complete.*chance"),
    "a field less": ({"figures": {"grade": "perfect"}}, "not complete"),
    "classes as text": ({"settings": {**record(cell())["settings"], "classes": "01"}}, "classes"),
    "a list among the settings": ({"settings": {**record(cell())["settings"], "x": []}}, "texts and numbers"),
    "no seed": (
        {"settings": {k: v for k, v in record(cell())["settings"].items() if k != "seed"}},
        "missing required field `seed`",
    ),
    "a seed that is true": ({"settings": {**record(cell())["settings"], "seed": True}}, "not usable.*seed"),
    "no batch": ({"settings": {**record(cell())["settings"], "batch_size": 0}}, "not usable.*batch_size"),
    "settings of another key": (
        {"settings": {**record(cell())["settings"], "precision": "bfloat16"}},
        "not those of the key",
    ),
}


@pytest.mark.parametrize(("changes", "message"), ODD.values(), ids=ODD)
def test_what_is_no_measured_cell_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(FormatError, match=message):
        Cells().of(stored_result(cell(), **changes), "e", "h")


def test_a_damaged_result_says_why() -> None:
    with pytest.raises(FormatError, match="bits fell over"):
        Cells().of(attrs.evolve(stored_result(cell()), error="bits fell over"), "e", "h")


def test_damaged_results_are_told_together() -> None:
    damaged = Cells()
    damaged.warn(stacklevel=2)  # nothing to tell: no warning, which would be an error here
    for number in range(SHOWN_DAMAGED + 4):
        damaged.leave_out(f"e{number}", "h", FormatError("gone."))
    with pytest.warns(
        UserWarning, match=r"e0 with h: a result is left out: gone; .* and 4 more results; as if"
    ):
        damaged.warn(stacklevel=2)


def test_a_document_names_its_own_key() -> None:
    inside = record(cell())
    data = to_bytes(LEFT, RIGHT, **inside)
    key = key_of(inside["conditions"])
    assert from_bytes(data, LEFT, RIGHT, key, "it")[0] == inside["conditions"]
    for place in ((RIGHT, LEFT, key), (LEFT, LEFT, key), (LEFT, RIGHT, key_of({}))):
        with pytest.raises(FormatError, match="it is stored for another pair or other conditions"):
            from_bytes(data, *place, "it")


@pytest.mark.parametrize(
    "value",
    [[], {}, {"kind": "result"}, {"kind": "result", "schema": 2}, {"accuracy": 0.5}, attrs.asdict(cell())],
)
def test_what_is_not_written_as_a_result_is_none(value: Any) -> None:
    with pytest.raises(FormatError, match=r"^it.*Measure again"):
        from_bytes(dumps(value), LEFT, RIGHT, key_of({}), "it")


def test_a_document_with_another_field_is_none() -> None:
    value = loads(to_bytes(LEFT, RIGHT, {}, {}, {}), what="it")
    for wrong in ({**value, "more": 1}, {**value, "figures": []}):
        with pytest.raises(FormatError, match=r"^it.*Measure again"):
            from_bytes(dumps(wrong), LEFT, RIGHT, key_of({}), "it")

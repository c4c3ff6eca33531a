"""Filters: what is read, which side they are meant of, what fits, and every refusal."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from measured import cell

from compatkit.components.matrices.filters import first_mismatch, parse
from compatkit.contracts.evidence import Cell
from compatkit.errors import UsageError

BARE = Cell("e", "h", "direct", "shared-head", "none")


@pytest.mark.parametrize(
    ("text", "fitting", "others"),
    [
        ("grade=compatible", [cell("compatible")], [cell("chance"), BARE]),
        ("grade=compatible,perfect", [cell("compatible"), cell("perfect")], [cell("undecided")]),
        ("promise=shared-head", [BARE], [cell()]),
        ("wiring=direct", [BARE], [attrs.evolve(BARE, wiring="refused")]),
        ("state=measured", [cell()], [BARE, attrs.evolve(cell(), grade="stale")]),
        ("state=barred, stale", [BARE, attrs.evolve(cell(), grade="stale")], [cell()]),
        ("accuracy>=.5", [cell(correct=50), cell(correct=51)], [cell(correct=49), BARE]),
        ("accuracy<=0.5", [cell(correct=50)], [cell(correct=51), BARE]),
        (
            "recovered>=.9",
            [attrs.evolve(cell(), recovered=0.9)],
            [attrs.evolve(cell(), recovered=0.89), cell()],
        ),
    ],
)
def test_filters_of_cells(text: str, fitting: list[Cell], others: list[Cell]) -> None:
    (condition,) = parse(text)
    assert all(map(condition.matches, fitting)) and not any(map(condition.matches, others))


def test_what_is_known_before_a_measurement_is_asked_before() -> None:
    where = parse(["promise=shared-head", "grade=perfect"])
    assert first_mismatch(where, cell(), before=True) == "promise=shared-head"
    assert (
        first_mismatch(where, BARE, before=True) == ""
        and first_mismatch(where, BARE, before=False) == "grade=perfect"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("digits", "expected a filter FIELD=VALUE"),
        ("", "expected a filter FIELD=VALUE"),
        ("=x", "expected a filter FIELD=VALUE"),
        ("grad=perfect", "Unknown filter 'grad'. Did you mean 'grade'"),
        ("tag:domain=x", "`compatkit search` finds them by tags"),
        ("kind=head", "Unknown filter 'kind'"),
        ("grade=perfct", "'perfct'"),
        ("state=left-out", "measured, stale, missing, barred"),
        ("grade=", "perfect"),
        ("grade>=perfect", "compared by =, not by >="),
        ("accuracy=.5", "compared by >= or <=, not by ="),
        ("accuracy>=high", "a share from 0 to 1"),
        ("recovered>=nan", "expected a number"),
        ("accuracy>=1.5", "a share from 0 to 1"),
        ("accuracy<=-0.1", "a share from 0 to 1"),
    ],
)
def test_what_is_no_filter_is_told_with_what_there_is(text: str, message: str) -> None:
    with pytest.raises(UsageError) as error:
        parse(text)
    assert message in str(error.value)


@pytest.mark.parametrize(
    "requested", [3, None, [3], {"grade": "perfect"}, b"grade=perfect", [None, "grade=perfect"]]
)
def test_filters_are_texts(requested: Any) -> None:
    with pytest.raises(UsageError) as caught:
        parse(requested)
    assert caught.value.code == "usage" and not isinstance(caught.value.subject, str)


def test_a_share_recovered_may_lie_outside_0_to_1() -> None:
    assert parse(["recovered>=1.5", "recovered<=-0.5"])[0].minimum == 1.5

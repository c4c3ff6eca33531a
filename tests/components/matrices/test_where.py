"""Filters: what is read, which side they are meant of, what fits, and every refusal."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from measured import cell

from compatkit.components.matrices.where import parse
from compatkit.contracts.evidence import Cell
from compatkit.errors import UsageError
from compatkit.registry.index.search import Query

BARE = Cell("e", "h", "direct", "shared-head", "none")


@pytest.mark.parametrize(
    ("texts", "extractors", "heads"),
    [
        ((), None, None),
        (["grade=perfect"], None, None),
        (["model=resnet*"], Query(kind="extractor", model="resnet*"), Query(kind="head", model="resnet*")),
        (["head.model=vgg"], None, Query(kind="head", model="vgg")),
        (["extractor.channels=32"], Query(kind="extractor", channels=32), None),
        (["class=cat"], None, Query(kind="head", label="cat")),
        (["extractor.class=cat"], Query(kind="extractor", label="cat"), None),
        (
            ["tag:domain=digits", "head.tag:size=big"],
            Query(kind="extractor", tags={"domain": "digits"}),
            Query(kind="head", tags={"domain": "digits", "size": "big"}),
        ),
        ("latest=yes", Query(kind="extractor", latest=True), Query(kind="head", latest=True)),
        ("anchor=abcd", Query(kind="extractor", anchor="abcd"), Query(kind="head", anchor="abcd")),
        ("text=two words", Query(kind="extractor", text="two words"), Query(kind="head", text="two words")),
        (
            "tag:note=a=b",
            Query(kind="extractor", tags={"note": "a=b"}),
            Query(kind="head", tags={"note": "a=b"}),
        ),
    ],
)
def test_filters_of_components_are_those_of_a_search(texts: Any, extractors: Any, heads: Any) -> None:
    found = parse(texts)
    for side, wanted in (("extractor", extractors), ("head", heads)):
        assert found.query(side) == (None if wanted is None else attrs.evolve(wanted, withdrawn=True))


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
    (condition,) = parse(text).conditions
    assert all(map(condition.fits, fitting)) and not any(map(condition.fits, others))


def test_what_is_known_before_a_measurement_is_asked_before() -> None:
    where = parse(["promise=shared-head", "grade=perfect"])
    assert where.refused(cell(), before=True) == "promise=shared-head"
    assert where.refused(BARE, before=True) == "" and where.refused(BARE, before=False) == "grade=perfect"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("digits", "expected a filter FIELD=VALUE"),
        ("", "expected a filter FIELD=VALUE"),
        ("=x", "expected a filter FIELD=VALUE"),
        ("grad=perfect", "no filter 'grad'. Did you mean 'grade'"),
        ("tag:=x", "no filter 'tag:'"),
        ("tag=x", "Did you mean 'tag:KEY'"),
        ("kind=head", "no filter 'kind'"),
        ("adapter.model=x", "no filter 'adapter.model'"),
        ("grade=perfct", "got 'perfct'. Did you mean 'perfect'"),
        ("state=left-out", "state is one of measured, stale, missing, barred"),
        ("grade=", "grade is one of"),
        ("grade>=perfect", "compared by =, not by >="),
        ("accuracy=.5", "compared by >= or <=, not by ="),
        ("accuracy>=high", "expected a number"),
        ("accuracy>=nan", "expected a number"),
        ("accuracy>=1.5", "a share from 0 to 1"),
        ("accuracy<=-0.1", "a share from 0 to 1"),
        ("channels=many", "expected a whole number"),
        ("latest=true", "expected yes or no"),
        ("model=", "expected a value"),
    ],
)
def test_what_is_no_filter_is_told_with_what_there_is(text: str, said: str) -> None:
    with pytest.raises(UsageError) as error:
        parse(text)
    assert said in str(error.value)


@pytest.mark.parametrize(
    "given", [3, None, [3], {"grade": "perfect"}, b"grade=perfect", [None, "grade=perfect"]]
)
def test_filters_are_texts(given: Any) -> None:
    with pytest.raises(UsageError) as caught:
        parse(given)
    assert caught.value.code == "usage" and not isinstance(caught.value.subject, str)


def test_a_share_recovered_may_lie_outside_0_to_1() -> None:
    assert parse(["recovered>=1.5", "recovered<=-0.5"]).conditions[0].least == 1.5


def test_one_field_cannot_be_two_things() -> None:
    with pytest.raises(UsageError, match="must equal 'a', too"):
        parse(["tag:x=a", "head.tag:x=b"])
    with pytest.raises(UsageError, match="must equal 'a\\*', too"):
        parse(["model=a*", "model=b*"])
    assert parse(["model=a*", "model=a*"]).sides["head"] == {"model": "a*"}


def test_a_search_that_cannot_be_made_is_refused_as_by_search() -> None:
    with pytest.raises(UsageError, match="hexadecimal"):
        parse("anchor=xyz").query("head")

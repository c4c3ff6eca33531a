"""The empirical level and the verdict: what was measured counts, and equal shapes are not compatibility."""

from __future__ import annotations

import json
from typing import Any

import attrs
import pytest
from sample_components import extractor, head, initial, maps, only, shared

from compatkit.contracts.check import check
from compatkit.contracts.evidence import Cell, Figure
from compatkit.contracts.report import REQUIREMENTS, Report
from compatkit.errors import UsageError


def cell(grade: str, accuracy: float = 0.5) -> Cell:
    figure = Figure(accuracy, int(accuracy * 100), 100, accuracy - 0.1, accuracy + 0.1)
    return Cell("e", "h", "direct", "none", grade, figure, figure, 0.1, figure, 1.0)  # type: ignore[arg-type]


@pytest.mark.case("F")
def test_evidence_is_the_newest_that_is_not_stale() -> None:
    def graded(*grades: str) -> Report:
        return check(extractor(), head(), evidence=[cell(grade) for grade in grades])

    assert graded().evidence == "none"
    assert graded("compatible").evidence == "compatible"
    assert graded("perfect", "chance").evidence == "chance"
    assert graded("compatible", "stale").evidence == "compatible"
    assert graded("stale").evidence == "stale"
    assert (
        check(extractor(), head(), evidence=[attrs.evolve(cell("none"), restricted=None)]).evidence == "none"
    )
    result = only(graded("compatible"), "evidence")
    assert (result.level, result.severity) == ("empirical", "informs")
    assert "0.500 [0.400, 0.600] on 100 images" in result.actual
    assert "measure again" in only(graded("stale"), "evidence").remedy


def test_all_figures_of_a_measurement_are_told() -> None:
    result = only(check(extractor(), head(), evidence=[cell("compatible")]), "evidence")
    assert result.expected == "chance 0.100, bound 0.500"
    assert result.actual == "0.500 [0.400, 0.600] on 100 images, recovered 1.000: compatible"
    assert only(check(extractor(), head(), evidence=[cell("chance")]), "evidence").severity == "warns"


@pytest.mark.parametrize(
    ("anchors", "grades", "came"),
    [
        ((), (), "neither"),
        ((initial("one"),), (), "only shared initial weights"),
        ((), ("stale",), "only measurements from before the metric changed"),
    ],
)
def test_equal_shapes_are_not_compatibility(anchors: Any, grades: Any, came: str) -> None:
    """Untrained together, wired directly, not measured: the sentence stands in every form of the report."""
    evidence = [cell(grade) for grade in grades]
    report = check(extractor(anchors=anchors), head(anchors=anchors), evidence=evidence)
    assert report.word == "unproven" and report.unproven
    assert "Equal shapes are not compatibility." in str(report)
    result = only(report, "unproven")
    assert (result.level, result.severity) == ("empirical", "warns")
    assert result.actual == f"{came}; equal shapes are not compatibility"
    assert "equal shapes are not compatibility" in json.dumps(report.to_json())


def test_where_more_than_shapes_speaks_nothing_is_said_of_them() -> None:
    promised = check(extractor(anchors=(shared("dcc"),)), head(anchors=(shared("dcc"),)))
    measured = check(extractor(), head(), evidence=[cell("compatible")])
    unequal = check(extractor(maps(64)), head(maps(128)))
    for report in (promised, measured, unequal):
        assert "equal shapes" not in str(report).lower()
        assert not report.unproven


@pytest.mark.parametrize(
    ("wiring", "promise", "evidence", "word"),
    [
        ("refused", "shared-head", "perfect", "refused"),
        ("needs-adapter", "none", "none", "adaptable"),
        ("needs-adapter", "none", "chance", "incompatible"),
        ("direct", "none", "none", "unproven"),
        ("direct", "shared-init", "none", "unproven"),
        ("direct", "shared-head", "none", "promised"),
        ("direct", "shared-head", "stale", "promised"),
        ("direct", "shared-head", "chance", "incompatible"),
        ("direct", "none", "undecided", "undecided"),
        ("direct", "none", "compatible", "compatible"),
        ("direct", "none", "perfect", "perfect"),
    ],
)
def test_one_word(wiring: str, promise: str, evidence: str, word: str) -> None:
    assert Report(wiring, promise, evidence).word == word  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wiring", "promise", "evidence", "satisfied"),
    [
        ("refused", "shared-head", "perfect", ""),
        ("needs-adapter", "shared-head", "perfect", ""),
        ("direct", "shared-head", "chance", ""),
        ("direct", "none", "none", "direct"),
        ("direct", "none", "undecided", "direct"),
        ("direct", "shared-init", "none", "direct shared-init"),
        ("direct", "shared-head", "stale", "direct shared-init shared-head"),
        ("direct", "none", "compatible", "direct compatible"),
        ("direct", "shared-head", "perfect", "direct shared-init shared-head compatible perfect"),
    ],
)
def test_requirements(wiring: str, promise: str, evidence: str, satisfied: str) -> None:
    report = Report(wiring, promise, evidence)  # type: ignore[arg-type]
    assert [level for level in REQUIREMENTS if report.satisfies(level)] == satisfied.split()


def test_an_unknown_requirement_is_refused_with_a_near_name() -> None:
    with pytest.raises(UsageError, match="Did you mean 'shared-head'"):
        Report("direct", "none", "none").satisfies("sharedhead")

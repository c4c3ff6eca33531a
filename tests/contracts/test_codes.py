"""Every finding: a pair that provokes it, with its level, severity and remedy, and one that does not.

The findings listed here are those of docs/explanation/contracts.md, no more and no fewer.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import attrs
import pytest
from sample_components import (
    FEATURES,
    GRAY,
    extractor,
    figures,
    head,
    initial,
    labels,
    manifest,
    maps,
    shared,
    tokens,
    vector,
)

from compatkit.contracts.check import check
from compatkit.contracts.contract import Contract, Data, Label, Port, Protocol, Structural
from compatkit.contracts.evidence import Cell, Figure
from compatkit.contracts.manifest import Manifest, Parent, manifest_digest
from compatkit.contracts.report import Finding

PAGE = Path(__file__).resolve().parents[2] / "docs" / "explanation" / "contracts.md"


class Pair(NamedTuple):
    """Two components, and what is known around them."""

    extractor: Manifest
    head: Manifest
    data: Data | None = None
    evidence: Sequence[Cell] = ()


class Case(NamedTuple):
    """A finding, a pair that has it and one that has not."""

    code: str
    level: str
    severity: str
    remedy: str
    provoked: Pair
    innocent: Pair

    def __str__(self) -> str:
        return f"{self.code}-{self.severity}"


def seam(output: Port, taken: Port) -> Pair:
    return Pair(extractor(output), head(taken))


def several(names: Sequence[str], taken: Sequence[str]) -> Pair:
    inputs, request = ([attrs.evolve(FEATURES, name=name) for name in side] for side in (names, taken))
    return Pair(
        manifest("extractor", Contract(Structural((FEATURES,), tuple(inputs)), GRAY, Protocol("none"))),
        manifest("head", Contract(Structural(tuple(request), (FEATURES,)), GRAY, Protocol("none"))),
    )


def pair_for_classes(of_head: Sequence[str], *names: str) -> Pair:
    return Pair(extractor(), head(classes=labels(*of_head)), attrs.evolve(GRAY, labels=labels(*names)))


def anchored(left: Any, right: Any) -> Pair:
    return Pair(extractor(anchors=(left,)), head(anchors=(right,)))


def measured(grade: Any) -> Pair:
    figure = Figure(0.5, 50, 100, 0.4, 0.6)
    cell = Cell("e", "h", "direct", "none", grade, figure, figure, 0.1, figure, 1.0)
    return Pair(extractor(), head(), None, [cell])


def made_with(manifest: Manifest, other: Manifest) -> Pair:
    """The first extractor, with a head that was made with the other one."""
    return Pair(manifest, attrs.evolve(head(), parents=(Parent("trained_with", manifest_digest(other)),)))


SAME = Pair(extractor(), head())
HALF = attrs.evolve(GRAY, size=(4, 4))

CASES = [
    Case(
        "ports-differ", "structural", "refuses", "same tensors cross", several("ab", "a"), several("ab", "ab")
    ),
    Case(
        "dtype-differs",
        "structural",
        "adaptable",
        "^cast",
        seam(maps(4, dtype="bfloat16"), maps(4)),
        seam(maps(4), maps(4)),
    ),
    Case(
        "dtype-differs",
        "structural",
        "refuses",
        "floating-point",
        seam(maps(4, dtype="int64"), maps(4)),
        SAME,
    ),
    Case(
        "layout-differs",
        "structural",
        "adaptable",
        "^permute",
        seam(maps(4), maps(4, layout="NHWC")),
        seam(maps(4), maps(4)),
    ),
    Case(
        "layout-differs",
        "structural",
        "refuses",
        "grid",
        seam(tokens(4, 7), maps(4)),
        seam(tokens(4, 16), tokens(4, 16)),
    ),
    Case(
        "rank-differs",
        "structural",
        "adaptable",
        "^pool",
        seam(maps(4), vector(4)),
        seam(vector(4), vector(4)),
    ),
    Case(
        "rank-differs",
        "structural",
        "refuses",
        "before its pooling",
        seam(vector(4), maps(4)),
        seam(maps(4), maps(4)),
    ),
    Case(
        "pooled-differs",
        "structural",
        "adaptable",
        "^pool",
        seam(maps(4, 4, 4), maps(4, 1, 1, pooled=True)),
        seam(maps(4, 1, 1, pooled=True), maps(4, 1, 1, pooled=True)),
    ),
    Case(
        "pooled-differs",
        "structural",
        "refuses",
        "before its pooling",
        seam(maps(4, 1, 1, pooled=True), maps(4)),
        seam(maps(4), maps(4)),
    ),
    Case(
        "pooled-differs",
        "structural",
        "warns",
        "^$",
        seam(vector(4, pooled=False), vector(4)),
        seam(vector(4), vector(4)),
    ),
    Case(
        "tokens-differ",
        "structural",
        "adaptable",
        "^drop-tokens",
        seam(tokens(4, prefix=5), tokens(4)),
        seam(tokens(4), tokens(4)),
    ),
    Case(
        "tokens-differ",
        "structural",
        "refuses",
        "class tokens",
        seam(tokens(4), tokens(4, prefix=1)),
        seam(tokens(4), tokens(4)),
    ),
    Case(
        "spatial-differs",
        "structural",
        "adaptable",
        "^resize",
        seam(maps(4, 4, 4), maps(4, 2, 2)),
        seam(maps(4, 2, 2), maps(4, 2, 2)),
    ),
    Case(
        "spatial-differs",
        "structural",
        "refuses",
        "grid",
        seam(tokens(4, 7), tokens(4, 4)),
        seam(tokens(4, 4), tokens(4, 4)),
    ),
    Case(
        "spatial-differs",
        "structural",
        "informs",
        "^$",
        seam(maps(4, measured={"8x8": (4, 4)}), maps(4, measured={"8x8": (2, 2)})),
        seam(maps(4, measured={"8x8": (4, 4)}), maps(4, measured={"8x8": (4, 4)})),
    ),
    Case(
        "channels-differ",
        "structural",
        "adaptable",
        "^project",
        seam(maps(64), maps(128)),
        seam(maps(64), maps(64)),
    ),
    Case(
        "range-differs",
        "structural",
        "warns",
        "activation",
        seam(maps(4, range="signed"), maps(4, range="nonnegative")),
        seam(maps(4, range="nonnegative"), maps(4, range="signed")),
    ),
    Case("input-differs", "data", "informs", "own preprocessing", Pair(extractor(data=HALF), head()), SAME),
    Case(
        "labels-partial",
        "data",
        "informs",
        "1 classes in common",
        pair_for_classes("ab", "b", "c"),
        pair_for_classes("ab", "a", "b"),
    ),
    Case(
        "labels-disjoint",
        "data",
        "warns",
        "not defined",
        pair_for_classes("ab", "c"),
        pair_for_classes("ab", "b"),
    ),
    Case(
        "labels-look-alike",
        "data",
        "warns",
        "rename",
        pair_for_classes(["c\u0430t"], "cat"),
        pair_for_classes(["dog"], "cat"),
    ),
    Case(
        "normalization-needed",
        "protocol",
        "informs",
        "reestimate",
        Pair(extractor(norm="batch"), head()),
        SAME,
    ),
    Case(
        "initial-weights-shared",
        "protocol",
        "informs",
        "no promise by itself",
        anchored(initial("one"), initial("one")),
        anchored(initial("one"), initial("two")),
    ),
    Case(
        "head-shared",
        "protocol",
        "promises",
        "^$",
        anchored(shared("dcc"), shared("dcc")),
        anchored(shared("dcc"), shared("rp")),
    ),
    Case(
        "one-network",
        "protocol",
        "promises",
        "^$",
        made_with(extractor(), extractor()),
        made_with(extractor(), attrs.evolve(extractor(), payload=attrs.evolve(extractor().payload, count=2))),
    ),
    Case(
        "statistics-far",
        "statistical",
        "warns",
        "bn_policy.*bridge",
        Pair(extractor(features=figures(0.9, 0.8)), head(features=figures(0.4, 0.8))),
        Pair(extractor(features=figures(0.5, 0.8)), head(features=figures(0.4, 0.8))),
    ),
    Case("evidence", "empirical", "informs", "^$", measured("compatible"), SAME),
    Case("evidence", "empirical", "warns", "measure again", measured("stale"), measured("perfect")),
    Case("unproven", "empirical", "warns", "compatkit matrix", SAME, anchored(shared("dcc"), shared("dcc"))),
]


def findings_of(pair: Pair) -> list[Finding]:
    return list(check(pair.extractor, pair.head, data=pair.data, evidence=pair.evidence).findings)


@pytest.mark.case("F")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_pair_provokes_it(case: Case) -> None:
    hits = [
        match
        for match in findings_of(case.provoked)
        if (match.code, match.severity) == (case.code, case.severity)
    ]
    assert len(hits) == 1
    (first,) = hits
    assert first.level == case.level
    assert re.search(case.remedy, first.remedy)
    assert first.expected and first.actual and first.between


@pytest.mark.case("F")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_another_pair_does_not(case: Case) -> None:
    assert (case.code, case.severity) not in {
        (match.code, match.severity) for match in findings_of(case.innocent)
    }


def test_the_page_lists_these_findings_and_no_others() -> None:
    section = PAGE.read_text().split("\n## Findings\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| `([a-z-]+)` \| (\w+) \| (\w+) \|", section, re.MULTILINE)
    assert len(rows) == len(set(rows))
    assert set(rows) == {(case.code, case.level, case.severity) for case in CASES}


def test_a_remedy_for_what_is_adaptable_begins_with_the_adapter() -> None:
    adapters = {"cast", "permute", "pool", "drop-tokens", "resize", "project"}
    words = [
        re.match(r"[a-z-]+", match.remedy)
        for case in CASES
        for match in findings_of(case.provoked)
        if match.severity == "adaptable"
    ]
    assert {word.group() for word in words if word} == adapters


def test_another_name_of_a_class_is_looked_at_too() -> None:
    pair = Pair(
        extractor(),
        head(classes=(Label("automobile", ("c\u0430t",)),)),
        attrs.evolve(GRAY, labels=labels("cat")),
    )
    assert "labels-look-alike" in {match.code for match in findings_of(pair)}

"""Every extractor with every head: the same as pair by pair, in a fraction of the time, without losing a finding."""

from __future__ import annotations

import json
import time
from typing import Any, get_args

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sample_components import GRAY, extractor, figures, head, initial, labels, maps, shared, vector
from sample_contracts import cells, data, manifests

from compatkit.contracts.channels import ChannelStatistics
from compatkit.contracts.check import check
from compatkit.contracts.contract import Statistical
from compatkit.contracts.evidence import Cell, Figure
from compatkit.contracts.manifest import Manifest, Parent, manifest_digest
from compatkit.contracts.report import SEVERITIES, Level
from compatkit.errors import DataError, UnknownName, UsageError
from compatkit.reports.verdicts import check_all

LEVELS = get_args(Level)
FIGURE = Figure(0.5, 50, 100, 0.4, 0.6)
MEASURED = Cell("e", "h", "direct", "none", "compatible", FIGURE, FIGURE, 0.1, FIGURE, 1.0)


def few() -> tuple[dict[str, Manifest], dict[str, Manifest]]:
    """Three extractors and four heads: all words but two, by hand."""
    dcc = (shared("dcc"),)
    lefts = {"a": extractor(maps(4), anchors=dcc), "b": extractor(maps(8)), "c": extractor(vector(4))}
    rights = {"p": head(maps(4), anchors=dcc), "q": head(maps(8)), "r": head(maps(4)), "s": head(vector(4))}
    return lefts, rights


def test_words_of_a_table() -> None:
    table = check_all(*few(), evidence={("b", "q"): [MEASURED]})
    words = [[summary.report.word for summary in row] for row in table.summaries]
    assert words == [
        ["promised", "adaptable", "unproven", "adaptable"],
        ["adaptable", "compatible", "adaptable", "adaptable"],
        ["refused", "refused", "refused", "unproven"],
    ]
    assert table.counts() == {"compatible": 1, "promised": 1, "unproven": 2, "adaptable": 5, "refused": 3}
    assert table.summary() == "12 pairs: 1 compatible, 1 promised, 2 unproven, 5 adaptable, 3 refused"
    assert list(table.counts()) == ["compatible", "promised", "unproven", "adaptable", "refused"]


def test_heads_are_promised_the_very_extractors_that_they_were_made_with() -> None:
    lefts, rights = few()
    for column, row in (("r", "a"), ("s", "c")):
        parents = (Parent("trained_with", manifest_digest(lefts[row])),)
        rights[column] = attrs.evolve(rights[column], parents=parents)
    lefts["a again"] = attrs.evolve(lefts["a"], about=attrs.evolve(lefts["a"].about, title="Another version"))
    table = check_all(lefts, rights)
    promised = {
        (left, right)
        for left in lefts
        for right in rights
        if table.report(left, right).promise == "one-network"
    }
    assert promised == {("a", "r"), ("c", "s")}
    same = (
        ("a again", "r"),
        ("a again", "p"),
        ("nothing", "r"),
    )  # the second names no extractor, the third is no pair
    known = check_all(lefts, rights, own=same)
    assert known.report("a again", "r").promise == known.summaries[3][2].report.promise == "one-network"
    assert known.report("a again", "p").promise == known.summaries[3][0].report.promise == "shared-head"
    words = [[summary.report.promise for summary in row] for row in table.summaries]
    assert words == [[table.report(left, right).promise for right in rights] for left in lefts]
    assert set(table.unsatisfied("shared-head")).isdisjoint(promised)


def test_what_pairs_do_not_satisfy_is_named() -> None:
    table = check_all(*few(), evidence={("b", "q"): [MEASURED]})
    assert table.unsatisfied("direct")[:3] == [("a", "q"), ("a", "s"), ("b", "p")]
    assert len(table.unsatisfied("direct")) == 8
    assert len(table.unsatisfied("shared-head")) == 11
    assert ("b", "q") not in table.unsatisfied("compatible")
    with pytest.raises(UsageError, match="Did you mean 'direct'"):
        table.unsatisfied("drect")


def test_findings_are_grouped_by_code_and_severity_gravest_first() -> None:
    groups = check_all(*few()).groups()
    assert [(group.code, group.severity, group.pairs) for group in groups] == [
        ("rank-differs", "refuses", 3),
        ("channels-differ", "adaptable", 5),
        ("rank-differs", "adaptable", 2),
        ("unproven", "warns", 3),
        ("head-shared", "promises", 1),
    ]
    assert sorted(SEVERITIES.index(group.severity) for group in groups) == [
        SEVERITIES.index(group.severity) for group in groups
    ]
    first = groups[0]
    assert (first.extractor, first.head, first.example.actual) == ("c", "p", "a vector (NC)")


def test_a_report_is_made_when_it_is_asked_for() -> None:
    lefts, rights = few()
    table = check_all(lefts, rights)
    report = table.report("a", "q")
    assert (report.extractor, report.head) == ("a", "q")
    assert report.findings == check(lefts["a"], rights["q"]).findings
    with pytest.raises(UnknownName, match="no head 'x' was checked"):
        table.report("a", "x")


def test_parts_without_references_are_numbered() -> None:
    table = check_all([extractor()], [head(), head()])
    assert (table.extractors, table.heads) == (("extractor 1",), ("head 1", "head 2"))
    assert "2 pairs: 2 unproven" in repr(table)


def test_no_parts_are_no_pairs() -> None:
    table = check_all([], [head()])
    assert (table.summary(), table.counts(), table.groups()) == ("0 pairs", {}, [])


def test_the_wrong_part_is_named() -> None:
    with pytest.raises(UsageError, match="of kind extractor or encoder, but x/y is of kind head"):
        check_all({"x/y": head()}, {})
    with pytest.raises(UsageError, match="but head 1 is of kind extractor"):
        check_all([extractor()], [extractor()])
    request = attrs.evolve(GRAY, labels=labels("cat"))
    with pytest.raises(DataError, match=r"Two of the classes of the head x/twice have the same name"):
        check_all([extractor()], {"x/twice": head(classes=labels("cat", "Cat"))}, data=request)


def test_classes_alone_say_what_those_of_data_say() -> None:
    expected_labels = labels("cat", "owl")
    parts = [extractor()], {"x/h": head(classes=labels("cat", "dog"))}
    alone, with_data, none = (
        check_all(*parts, data=item).to_json()
        for item in (expected_labels, attrs.evolve(GRAY, labels=expected_labels), None)
    )
    assert alone == with_data != none


BLOBS = {
    "sha256:near": ChannelStatistics([0.0, 1.0], [1.0, 1.0]),
    "sha256:far": ChannelStatistics([0.0, 9.0], [1.0, 1.0]),
    "sha256:more": ChannelStatistics([0.0, 1.0, 2.0], [1.0, 1.0, 1.0]),
}


@st.composite
def relatives(draw: Any, kind: Any) -> list[Manifest]:
    """Return contracts that differ in a few things, so that each level must tell apart by what it depends on."""
    result = draw(st.lists(manifests(kind), min_size=1, max_size=2))
    for _ in range(draw(st.integers(0, 3))):
        first, other = draw(st.sampled_from(result)), draw(manifests(kind))
        contract = first.contract
        levels = draw(st.sets(st.sampled_from(["structural", "data", "protocol", "statistical"]), max_size=2))
        changes = {level: getattr(other.contract, level) for level in levels}
        if draw(st.booleans()):
            side = "outputs" if kind == "extractor" else "inputs"
            ports = tuple(
                attrs.evolve(
                    port,
                    name=draw(st.sampled_from([port.name, f"{port.name}2"])),
                    measured=draw(st.sampled_from([port.measured, {}])),
                )
                for port in getattr(contract.structural, side)
            )
            changes["structural"] = attrs.evolve(contract.structural, **{side: ports})
        result.append(attrs.evolve(first, contract=attrs.evolve(contract, **changes)))
    return [draw(described(match)) for match in result]


@st.composite
def described(draw: Any, manifest: Manifest) -> Manifest:
    """Return a component whose statistics of the channels were kept, or not, for some ports."""
    edges = st.sampled_from([None, *({"blob": blob, "bytes": 8} for blob in (*BLOBS, "sha256:unread"))])
    known = manifest.contract.statistical.features
    features = known and tuple(attrs.evolve(port, per_channel=draw(edges)) for port in known)
    return attrs.evolve(manifest, contract=attrs.evolve(manifest.contract, statistical=Statistical(features)))


@settings(max_examples=80, deadline=None)
@given(
    relatives("extractor"),
    relatives("head"),
    st.none() | data(),
    st.lists(cells(), max_size=3),
    st.lists(cells(), max_size=3),
    st.sampled_from([{}, BLOBS]),
)
def test_it_says_what_a_check_of_each_pair_says(
    lefts: list[Manifest],
    rights: list[Manifest],
    target_data: Any,
    known: list[Cell],
    others: list[Cell],
    blobs: Any,
) -> None:
    lefts, rights = [*lefts, lefts[0]], [*rights, rights[-1]]  # equal contracts are compared once
    evidence = {("extractor 1", "head 2"): known, ("extractor 2", "head 1"): others}
    table = check_all(lefts, rights, data=target_data, evidence=evidence, channels=blobs)
    numbered = zip(table.pairs(), [(left, right) for left in lefts for right in rights], strict=True)
    for (extractor_name, head_name, summary), pair in numbered:
        cells_of_pair = evidence.get((extractor_name, head_name), ())
        report = check(*pair, data=target_data, evidence=cells_of_pair, channels=blobs)
        answers = summary.report
        assert (answers.wiring, answers.promise, answers.evidence) == (
            report.wiring,
            report.promise,
            report.evidence,
        )
        levels = [
            dict.fromkeys(
                (finding.code, finding.severity) for finding in report.findings if finding.level == level
            )
            for level in LEVELS
        ]
        assert list(summary.codes) == [code for level in levels for code in level]
        result = attrs.evolve(report, extractor=extractor_name, head=head_name)
        assert table.report(extractor_name, head_name) == result
        assert json.dumps(table.report(extractor_name, head_name).to_json()) == json.dumps(result.to_json())


def varied(count: int) -> tuple[list[Manifest], list[Manifest]]:
    """Return parts whose contracts differ at every level."""
    lefts, rights = [], []
    for number in range(count):
        anchors = (initial(str(number)), shared(str(number)), shared(str(number // 2)))
        images = attrs.evolve(GRAY, size=(8, 8 + number))
        seam = maps(4 + number % 5, measured={f"8x{8 + number}": (4 + number, 4)})
        features = figures(number / 100, 0.8)
        left = extractor(seam, data=images, anchors=anchors, norm="batch", features=features)
        classes = labels(*(f"class {index}" for index in range(number, number + 10)))
        lefts.append(left)
        rights.append(head(seam, data=images, anchors=anchors, classes=classes, features=features))
    return lefts, rights


def test_a_thousand_different_pairs_take_less_than_a_tenth_of_a_millisecond_each() -> None:
    parts, request = varied(32), attrs.evolve(GRAY, labels=labels(*(f"class {index}" for index in range(10))))
    taken = []
    for _ in range(3):
        begun = time.process_time()
        check_all(*parts, data=request)
        taken.append(time.process_time() - begun)
    assert min(taken) / 32**2 < 110e-6


@pytest.mark.case("H")
@pytest.mark.slow
def test_ninety_thousand_different_pairs_take_less_than_ten_seconds() -> None:
    parts, request = (
        varied(300),
        attrs.evolve(GRAY, labels=labels(*(f"class {index}" for index in range(10)))),
    )
    begun = time.process_time()
    table = check_all(*parts, data=request)
    assert time.process_time() - begun < 10
    assert sum(table.counts().values()) == 90_000

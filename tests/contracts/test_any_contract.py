"""What holds for every two contracts that the registry accepts."""

from __future__ import annotations

import json
import re
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from sample_contracts import cells, data, manifests

from compatkit.contracts.check import check
from compatkit.contracts.contract import Data
from compatkit.contracts.contract_rules import check_new_contract
from compatkit.contracts.evidence import Cell
from compatkit.contracts.manifest import Manifest
from compatkit.contracts.report import REQUIREMENTS, SEVERITIES, WORDS

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "explanation" / "contracts.md").read_text()
LISTED = set(re.findall(r"^\| `([a-z-]+)` \| (\w+) \| (\w+) \|", PAGE, re.MULTILINE))

extractors, heads = manifests("extractor"), manifests("head")
evidence = st.lists(cells(), max_size=3)
some = settings(max_examples=60, deadline=None)


@some
@given(extractors, heads)
def test_the_strategies_make_what_the_registry_accepts(left: Manifest, right: Manifest) -> None:
    for item in (left, right):
        check_new_contract(item.contract, item.blueprint, "manifest")


@some
@given(extractors, heads, st.none() | data(), evidence)
def test_a_check_never_fails_and_its_answers_follow_from_its_findings(
    left: Manifest, right: Manifest, target_data: Data | None, known: list[Cell]
) -> None:
    report = check(left, right, data=target_data, evidence=known)
    severities = {finding.severity for finding in report.findings}
    codes = {finding.code for finding in report.findings}
    assert (report.wiring == "direct") == (not severities & {"refuses", "adaptable"})
    assert (report.wiring == "refused") == ("refuses" in severities)
    assert (report.promise == "shared-head") == ("head-shared" in codes)
    assert (report.promise == "none") == (
        not codes & {"head-shared", "initial-weights-shared", "one-network"}
    )
    assert (report.evidence == "none") == ("evidence" not in codes)
    assert report.unproven == ("unproven" in codes) == ("Equal shapes" in str(report))
    assert {(finding.code, finding.level, finding.severity) for finding in report.findings} <= LISTED
    assert severities <= set(SEVERITIES)


@some
@given(extractors, heads, evidence)
def test_the_word_says_no_more_than_the_answers(left: Manifest, right: Manifest, known: list[Cell]) -> None:
    report = check(left, right, evidence=known)
    word, measured = report.word, report.evidence in ("perfect", "compatible", "undecided")
    assert word in WORDS
    assert (word == "refused") == (report.wiring == "refused")
    assert (word == "incompatible") == (report.evidence == "chance" and report.wiring != "refused")
    assert (word == report.evidence) == (measured and report.wiring == "direct")
    satisfied = [level for level in REQUIREMENTS if report.satisfies(level)]
    assert not satisfied or (report.wiring == "direct" and report.evidence != "chance")
    assert ("direct" in satisfied) == bool(satisfied)
    json.dumps(report.to_json(), allow_nan=False)

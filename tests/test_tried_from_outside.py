"""The page of outside reports: its rows name reports by their addresses, and tests that exist."""

from __future__ import annotations

import ast
import re

import pytest
from pages import REPOSITORY

PAGE = (REPOSITORY / "docs" / "reference" / "tried_from_outside.md").read_text()
ROWS = [
    [cell.strip() for cell in line[1:-1].split("|")]
    for line in PAGE.splitlines()
    if line.startswith("| ") and "https://" in line
]
REPORT = re.compile(
    r"\[([\w.-]+/[\w.-]+)#(\d+)\]\(https://github\.com/([\w.-]+/[\w.-]+)/(issues|pull)/(\d+)\)"
)
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def functions(path: str) -> set[str]:
    """The names of a file's tests, methods of classes included."""
    tree = ast.parse((REPOSITORY / path).read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: REPORT.findall(row[0])[0][0])
def test_a_row_names_reports_and_tests(row: list[str]) -> None:
    reports, symptom, answer, shown_by = row
    assert len(REPORT.findall(reports)) == reports.count("https://"), reports
    for shown, number, repository, _, real in REPORT.findall(reports):
        assert (shown, number) == (repository, real)
    assert symptom and answer
    assert len(TEST.findall(shown_by)) == shown_by.count("::") > 0, shown_by
    for path, name in TEST.findall(shown_by):
        assert name.startswith("test_") and name in functions(path), f"{path} has no test {name}"


def test_the_page_counts_its_reports() -> None:
    reports = {(repository, number) for row in ROWS for _, _, repository, _, number in REPORT.findall(row[0])}
    assert f"{len(reports)} reports" in PAGE

"""The catalogue: no case without a test, no test of an unknown case, and a page that says what came out."""

from __future__ import annotations

from pathlib import Path

import pytest
from catalogue import CASES, GROUPS, Outcome, carriers, page, summary

REPOSITORY = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("case", CASES)
def test_a_case_has_a_test(case: str) -> None:
    assert carriers().get(case), f"no test carries pytest.mark.case({case!r}): {CASES[case]}"


def test_no_test_carries_an_unknown_case() -> None:
    assert set(carriers()) <= set(CASES)
    assert {case[0] for case in CASES} == set(GROUPS)


def test_the_page_lists_every_case_with_its_tests() -> None:
    text = (REPOSITORY / "docs" / "reference" / "catalogue.md").read_text(encoding="utf-8")
    assert [
        line.split(" ")[1] for line in text.splitlines() if line.startswith("| ") and "case" not in line[:8]
    ] == [*CASES]
    missing = {
        test
        for tests in carriers().values()
        for test in tests
        if f"`{test.removeprefix('tests/')}`" not in text
    }
    assert not missing, "write the page again: pytest --catalogue=docs/reference/catalogue.md"


def test_markers_are_read_from_functions_classes_modules_and_parameters(tmp_path: Path) -> None:
    (tmp_path / "test_x.py").write_text(
        "import pytest\n"
        "pytestmark = [pytest.mark.slow, pytest.mark.case('A1')]\n"
        "@pytest.mark.case('B1', 'B2')\n"
        "def test_one(): ...\n"
        "@pytest.mark.parametrize('a', [pytest.param(1, marks=pytest.mark.case('C1'))])\n"
        "def test_two(a): ...\n"
        "@pytest.mark.case('D1')\n"
        "class TestMany:\n"
        "    def test_three(self): ...\n"
    )
    inside = f"{tmp_path.name}/test_x.py::"
    first, two, three = f"{inside}test_one", f"{inside}test_two", f"{inside}TestMany::test_three"
    assert carriers(tmp_path) == {
        "A1": [first, two, three],
        "B1": [first],
        "B2": [first],
        "C1": [two],
        "D1": [three],
    }


def test_the_worst_outcome_counts_and_a_skip_says_why() -> None:
    passed, failed = Outcome("passed"), Outcome("failed")
    skipped = Outcome("skipped", "no named\npipes | here")
    assert summary([passed, skipped]) == "passed" and summary([passed, failed]) == "**failed**"
    assert summary([skipped]) == "skipped: no named pipes \\| here" and summary([]) == "not run"


def test_a_page_has_one_line_a_case() -> None:
    test = carriers()["A1"][0]
    lines = [line for line in page({test: [Outcome("passed")]}).splitlines() if line.startswith("| A1 |")]
    assert (
        len(lines) == 1 and f"`{test.removeprefix('tests/')}`" in lines[0] and lines[0].endswith("| passed |")
    )
    assert page({}).count("| not run |") == len(CASES)

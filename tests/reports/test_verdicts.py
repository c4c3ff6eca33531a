"""Verdicts of many pairs as a table, marks, a list, Markdown and JSON: one vocabulary, nothing lost, nothing driven."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import attrs
import pytest
from rich.console import Console
from sample_components import extractor, head, maps, shared, vector

from compatkit.contracts.report import EQUAL_SHAPES, WORDS
from compatkit.reports.tables import STYLES
from compatkit.reports.verdicts import Verdicts, check_all
from compatkit.reports.wording import VERDICTS, verdict_of_word

DCC = (shared("dcc"),)


@pytest.fixture
def table() -> Verdicts:
    """Two extractors and three heads: promised, unproven, adaptable, refused."""
    lefts = {
        "a/one.extractor@1.0.0": extractor(maps(4), anchors=DCC),
        "b/flat.extractor@1.0.0": extractor(vector(4)),
    }
    rights = {
        "a/one.head@1.0.0": head(maps(4), anchors=DCC),
        "b/flat.head@2.1.0": head(vector(4)),
        "b/wide.head@1.0.0": head(maps(8)),
    }
    return check_all(lefts, rights)


def crowd(count: int) -> Verdicts:
    """Many parts with long names."""
    lefts = {f"zoo/network-number-{index}.extractor@1.0.0": extractor() for index in range(count)}
    return check_all(lefts, {name.replace("extractor", "head"): head() for name in lefts})


def printed(value: Verdicts, width: int, *, encoding: str = "utf-8", color: Any = None) -> str:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    Console(
        file=file, width=width, color_system=color, force_terminal=color is not None, legacy_windows=False
    ).print(value)
    file.flush()
    return file.buffer.getvalue().decode(encoding)  # type: ignore[attr-defined]


def test_every_word_of_a_check_has_mark_sign_style_and_meaning() -> None:
    for word in WORDS:
        result = verdict_of_word(word)
        assert result.word == word and len(result.mark) == len(result.sign) == 1 and result.meaning
        assert result.key in STYLES
    signs = [verdict.sign for verdict in VERDICTS.values()]
    marks = [verdict.mark for verdict in VERDICTS.values()]
    assert len(set(signs)) == len(signs) and len(set(marks)) == len(marks)


def test_the_table_reads_well(table: Verdicts) -> None:
    text = str(table)
    assert text.splitlines()[1:9] == [
        "                     a/one.head   b/flat.head   b/wide.head",
        "  extractor \\ head   @1.0.0       @2.1.0        @1.0.0",
        " ───────────────────────────────────────────────────────────",
        "  a/one.extractor    ◇ promised   ⇄ adaptable   ⇄ adaptable",
        "  @1.0.0",
        "  b/flat.extractor   ✕ refused    ≟ unproven    ✕ refused",
        "  @1.0.0",
        "",
    ]
    assert "6 pairs: 1 promised, 1 unproven, 2 adaptable, 2 refused" in text
    assert max(map(len, text.splitlines())) <= 100


def test_what_unproven_means_is_said_in_every_form(table: Verdicts) -> None:
    for text in (str(table), printed(table, 40), printed(table, 24), table.to_markdown()):
        assert EQUAL_SHAPES in " ".join(text.split())
    assert "equal shapes are not compatibility" in table.to_json()
    promised = check_all([extractor(anchors=DCC)], [head(anchors=DCC)])
    for text in (str(promised), promised.to_markdown(), promised.to_json()):
        assert "equal shapes" not in text.lower()


def test_each_finding_is_told_once_with_its_number_of_pairs(table: Verdicts) -> None:
    text = " ".join(str(table).split())
    assert "refuses rank-differs (structural): 2 pairs" in text
    assert "adaptable rank-differs (structural): 1 pair" in text
    assert "adaptable channels-differ (structural): 2 pairs" in text
    assert "expected 8 channels actual 4 channels remedy project" in text
    assert "example a/one.extractor@1.0.0 with b/wide.head@1.0.0" in text
    assert (
        text.index("refuses rank-differs")
        < text.index("adaptable rank-differs")
        < text.index("warns unproven")
    )


def test_narrow_terminals_get_marks_and_a_key(table: Verdicts) -> None:
    marks = printed(table, 40)
    assert "H3" in marks and "E2" in marks and "E1  a/one.extractor@1.0.0" in marks
    assert max(map(len, marks.splitlines())) <= 40
    several = crowd(30)
    blocks = printed(several, 100)
    assert "H30" in blocks and "H1   zoo/network-number-0.head@1.0.0" in blocks
    assert max(map(len, blocks.splitlines())) <= 100


def test_without_unicode_signs_stand_for_marks(table: Verdicts) -> None:
    for width in (100, 40, 24):
        text = printed(table, width, encoding="ascii")
        assert text.isascii()
        assert "p promised" in " ".join(text.split()) and "x refused" in " ".join(text.split())


def test_colors_only_repeat_the_words(table: Verdicts) -> None:
    assert "\x1b[" in printed(table, 100, color="standard")
    assert "\x1b[" not in printed(table, 100)


def test_markdown_has_the_grid_the_legend_and_the_findings(table: Verdicts, tmp_path: Path) -> None:
    text = table.to_markdown(tmp_path / "verdicts.md")
    assert (tmp_path / "verdicts.md").read_text() == text
    assert "| **b/flat.extractor@1.0.0** | ✕ refused | ≟ unproven | ✕ refused |" in text
    assert "- ◇ **promised**: Not measured." in text
    assert "| `channels-differ` | structural | adaptable | 2 |" in text
    for block in text.split("\n\n"):
        rows = [line for line in block.splitlines() if line.startswith("|")]
        assert len({row.replace("\\|", "").count("|") for row in rows}) <= 1


def test_json_holds_every_report_and_each_finding_once(table: Verdicts, tmp_path: Path) -> None:
    text = table.to_json(tmp_path / "verdicts.json")
    assert (tmp_path / "verdicts.json").read_text() == text
    value = json.loads(text)
    assert set(value) == {"schema", "kind", "extractors", "heads", "counts", "pairs", "findings"}
    assert (value["schema"], value["kind"]) == (1, "verdicts")
    assert value["counts"] == {"promised": 1, "unproven": 1, "adaptable": 2, "refused": 2}
    assert len(value["pairs"]) == 6
    assert len({json.dumps(finding) for finding in value["findings"]}) == len(value["findings"])
    for pair in value["pairs"]:
        report = table.report(pair["extractor"], pair["head"])
        whole = {**pair, "findings": [value["findings"][place] for place in pair["findings"]]}
        assert whole == report.to_json()


def test_names_cannot_drive_the_terminal_or_the_markup() -> None:
    hostile = "evil/\x1b[2J|<b>\u202e[bold]@1.0.0"
    table = check_all({hostile: extractor(maps(4))}, {hostile: head(maps(8))})
    for text in (str(table), printed(table, 30), table.to_markdown()):
        assert "\x1b" not in text and "\u202e" not in text
    assert "<b>" not in table.to_markdown() and "[bold]" in str(table)
    assert json.loads(table.to_json())["heads"] == [hostile]


def test_a_finding_without_a_remedy_and_many_pairs_reads_well() -> None:
    lefts = [attrs.evolve(extractor(anchors=DCC)) for _ in range(3)]
    text = " ".join(str(check_all(lefts, [head(anchors=DCC)])).split())
    assert "promises head-shared (protocol): 3 pairs expected trained against" in text
    assert text.endswith("actual the same example extractor 1 with head 1")


def test_no_pairs_are_said() -> None:
    assert "0 pairs" in str(check_all([], []))
    assert "0 pairs" in check_all([], []).to_markdown()

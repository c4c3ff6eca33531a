"""The page of claims: each verdict is of one kind, the tally is that of its tables, figures are those of kept runs."""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path

import pytest

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results"
PAGE = (RESULTS / "claims.md").read_text()
VERDICTS = ("shown", "shown weaker", "not shown", "reversed", "not run")
DEFINED = re.compile(
    r"±|within the spread|beyond the spread|\bnearly \*\*|\*\*reversed|\*\*[Nn]ot shown|\*\*[Ss]hown"
)


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip()[1:-1].split("|")]


def claims() -> list[list[str]]:
    """The rows of the tables whose first column is `claim`."""
    rows: list[list[str]] = []
    for table in re.findall(r"^\| claim \|.*\n\|[-|]+\n((?:\|.*\n)+)", PAGE, re.MULTILINE):
        rows += [cells(line) for line in table.splitlines()]
    return rows


def verdicts(cell: str) -> list[str]:
    return [word for word in re.findall(r"\*\*([a-z ]+)\*\*", cell) if word in VERDICTS]


def tally() -> list[str]:
    firsts = Counter(verdicts(row[3])[0] for row in claims())
    others = Counter(word for row in claims() for word in set(verdicts(row[3])[1:]) - {verdicts(row[3])[0]})
    lines = [f"| **{word}** | {firsts[word]} | {others[word]} |" for word in VERDICTS]
    return [*lines, f"| all | {firsts.total()} | |"]


def test_every_claim_has_one_verdict_first() -> None:
    assert len(claims()) > 60
    for row in claims():
        assert len(row) == 5, row[0]
        assert re.match(rf"\*\*({'|'.join(VERDICTS)})\*\*", row[3]), f"{row[0]}: {row[3]}"


def test_the_tally_is_that_of_the_tables() -> None:
    section = PAGE.split("\n## Tally\n")[1].split("\n## ")[0]
    assert [line for line in section.splitlines() if line.startswith("|")][2:] == tally()


def test_words_are_defined_once_and_pages_that_use_them_say_where() -> None:
    words = PAGE.split("\n## Words\n")[1].split("\n## ")[0]
    assert all(f"| **{word}** |" in words for word in VERDICTS)
    for page in sorted(RESULTS.glob("*.md")):
        if page.name != "claims.md" and DEFINED.search(page.read_text()):
            assert "claims.md#words" in page.read_text(), f"{page.name} uses words that claims.md defines"


def runs(folder: str) -> dict[str, list[dict[str, float]]]:
    """The values of a folder's kept runs: by arm, a mapping for each seed."""
    result: dict[str, list[dict[str, float]]] = {}
    for line in (RESULTS / folder / "runs.jsonl").read_text().splitlines():
        run = json.loads(line)
        result.setdefault(run["arm"], []).append(run["values"])
    return result


def shown(values: list[float]) -> str:
    return ", ".join(f"{value:.2f}".removeprefix("0") for value in values)


def test_rotation_prediction_on_objects_is_as_it_was_kept() -> None:
    section = PAGE.split("\n### Rotation prediction on objects\n")[1].split("\n## ")[0]
    rows = [cells(line) for line in section.splitlines() if "/table.md" in line]
    assert len(rows) == 6
    for row in rows:
        (folder,) = re.findall(r"\((.+)/table\.md\)", row[7])
        saved = runs(folder)
        plain = saved.get("none", runs("along")["none"])[: len(saved["rp"])]
        measured = [
            shown([run[name] for run in arm])
            for name in ("recombined", "own")
            for arm in (saved["rp"], plain)
        ]
        assert row[3:7] == measured, folder


@pytest.mark.parametrize(
    ("claim", "folder", "arm", "name", "figure"),
    [
        ("independent networks are at", "digits-exchanged", "none", "recombined", max),
        ("independent networks are at", "digits", "none", "recombined", max),
        ("independent networks are at", "3.6", "none", "recombined", max),
        ("independent networks are at", "3.11", "independent", "steps-0", max),
        ("independent networks are at", "halves-own", "none", "recombined", min),
        ("independent networks are at", "halves-own", "none", "recombined", max),
    ],
)
def test_single_seeds_are_those_that_were_kept(
    claim: str, folder: str, arm: str, name: str, figure: object
) -> None:
    assert callable(figure)
    (row,) = [row for row in claims() if row[0].startswith(claim)]
    assert shown([figure(run[name] for run in runs(folder)[arm])]) in row[2]


@pytest.mark.parametrize(
    ("claim", "folder", "names"),
    [
        ("labels are told as well", "2.8", ["gradient", "logistic"]),
        ("transfer peaks before", "4.12", ["target-3", "target-5", "source-3", "source-5"]),
        ("own accuracy does not suffer", "halves-own", ["own"]),
    ],
)
def test_means_are_those_of_kept_runs(claim: str, folder: str, names: list[str]) -> None:
    """Each mean of each arm is in the row, to two digits or three; of noise, up to a half of the labels."""
    (row,) = [row for row in claims() if row[0].startswith(claim)]
    for arm, run_ in runs(folder).items():
        for name in names if arm != "noise-100" else ():
            mean = sum(run[name] for run in run_) / len(run_)
            assert any(f"{mean:.{digits}f}".removeprefix("0") in row[2] for digits in (2, 3)), (
                arm,
                name,
                mean,
            )

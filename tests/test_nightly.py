"""The list of nightly tests: it names tests that exist, and is made by cost."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import nightly
import pytest

TESTS = Path(nightly.__file__).parent


def functions(path: Path) -> set[str]:
    """Return the tests of a file as node ids write them: ``Class::name`` or ``name``."""
    names: set[str] = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}::{item.name}" for item in node.body if isinstance(item, ast.FunctionDef)}
        elif isinstance(node, ast.FunctionDef):
            names.add(node.name)
    return names


def test_every_listed_test_exists() -> None:
    by_file: dict[str, set[str]] = {}
    for line in nightly.listed():
        file, _, function = line.partition("[")[0].partition("::")
        by_file.setdefault(file, set()).add(function)
    missing = {
        file: sorted(wanted - (functions(TESTS / file) if (TESTS / file).exists() else set()))
        for file, wanted in by_file.items()
    }
    assert not {file: names for file, names in missing.items() if names}


def test_the_costliest_go_first_and_first_cases_stay_while_they_are_cheap() -> None:
    seconds = {"a.py::t[0]": 1.0, "a.py::t[1]": 3.0, "a.py::u": 5.0, "b.py::v": 1.5, "b.py::w": 0.5}
    assert nightly.chosen(seconds, budget=11.0, largest=9.0) == set()
    assert nightly.chosen(seconds, budget=9.0, largest=9.0) == {"a.py::t[1]"}
    assert nightly.chosen(seconds, budget=3.0, largest=2.0) == {"a.py::t[1]", "a.py::u"}
    assert nightly.chosen(seconds, budget=0.0, largest=2.0) == {"a.py::t[1]", "a.py::u"}


def test_functions_whose_cases_are_all_listed_take_one_line_and_so_do_those_without_the_first() -> None:
    known = [f"a.py::{name}" for name in ("t[0]", "t[1]", "u[0]", "u[1]", "v", "w[0]", "w[1]", "w[2]")]
    chosen = {f"a.py::{name}" for name in ("t[0]", "t[1]", "u[1]", "v", "w[1]", "w[2]")}
    lines = nightly.shortened(chosen, known)
    assert lines == ["a.py::t", "a.py::u[1]", "a.py::v", "a.py::w[1:]"]
    assert nightly.expanded(lines, reversed(known)) == chosen


def test_what_guards_every_commit_stays() -> None:
    assert nightly.chosen({"test_readme.py::t": 9.0, "a.py::u": 9.0}, 0.0, 2.0) == {"a.py::u"}


@pytest.mark.parametrize(
    ("node_id", "room"),
    [
        ("tests/registry/test_gc.py::test_a", "compatkit/registry"),
        ("tests/adapters/cutting/test_chains.py::test_a[1]", "compatkit/adapters"),
        ("tests/regularizers/test_dcc.py::test_a", "plugins/regularizers"),
        ("tests/plugins/metrics/test_cka.py::test_a", "plugins/metrics"),
        ("tests/plugins/test_plan.py::test_a", "compatkit/plugins"),
        ("tests/experiments/studies/test_peak.py::test_a", "studies"),
        ("tests/test_readme.py::test_a", "compatkit"),
    ],
)
def test_a_test_belongs_to_the_room_of_its_folder(node_id: str, room: str) -> None:
    assert nightly.room(node_id) == room


def test_a_run_records_what_each_test_cost_and_leaves_out_what_is_listed(tmp_path: Path) -> None:
    listed = "".join(f"{name}\n" for name in ("test_them.py::test_listed", "test_them.py::test_cases[1]"))
    for name in ("conftest.py", "nightly.py", "catalogue.py"):
        (tmp_path / name).write_text((TESTS / name).read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "nightly.txt").write_text(listed, encoding="utf-8")
    (tmp_path / "test_them.py").write_text(
        "import pytest\n"
        "def test_listed(): pass\n"
        "@pytest.mark.parametrize('case', [0, 1])\n"
        "def test_cases(case): sum(range(10**6))\n",
        encoding="utf-8",
    )
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--processor-seconds",
        "record.csv",
    ]
    finished = subprocess.run(
        [*command, "-m", "not nightly", "-o", "markers=nightly"], cwd=tmp_path, capture_output=True, text=True
    )
    assert "1 passed, 2 deselected" in finished.stdout, finished.stdout
    header, row = (tmp_path / "record.csv").read_text(encoding="utf-8").splitlines()
    assert header == "test,seconds"
    test, seconds = row.split(",")
    assert test == "test_them.py::test_cases[0]" and float(seconds) > 0

"""The README says what is true: its commands run as written, its links lead somewhere, its examples fit the code."""

from __future__ import annotations

import ast
import functools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from followed import Example
from generated import filled
from pages import PAGES, REPOSITORY, blocks
from small import data_set, write_pack

README = (REPOSITORY / "README.md").read_text()
DEMO, TESTS = "demo", "tests"


def command(mark: str) -> str:
    """The one command in the fenced block that follows ``<!-- mark -->``."""
    result = re.findall(rf"^<!-- {mark} -->\n```bash\n(.*?)\n```$", README, re.MULTILINE | re.DOTALL)
    assert len(result) == 1, (
        f"README.md: one fenced bash block right after <!-- {mark} -->, found {len(result)}"
    )
    return result[0]


@pytest.mark.parametrize("mark", [DEMO, TESTS])
def test_each_command_is_one_line_that_makes_its_own_environment(mark: str) -> None:
    text = command(mark)
    assert "\n" not in text and ";" not in text and "|" not in text
    first, *others = (shlex.split(step) for step in text.split(" && "))
    assert first[:3] == ["python3", "-m", "venv"] and len(first) == 4
    assert others, "nothing happens in the environment"
    for words in others:
        assert words[0].startswith(f"{first[3]}/bin/"), f"{words[0]} is not of the environment {first[3]}"


def test_the_environment_of_the_tests_is_ignored_by_git() -> None:
    ignored = {line.strip("/\n") for line in (REPOSITORY / ".gitignore").read_text().splitlines()}
    for mark in (DEMO, TESTS):
        assert command(mark).split(" && ")[0].split()[-1] in ignored


RECORDER = """#!/bin/sh
for word in "$0" "$@"; do printf '%s\\n' "$word"; done >> "$RECORD"
printf 'END\\n' >> "$RECORD"
if [ "$2" = venv ]; then mkdir -p "$3/bin"; cp "$RECORDER" "$3/bin/pip"; cp "$RECORDER" "$3/bin/pytest"; fi
"""


@pytest.mark.skipif(
    shutil.which("bash") is None, reason="the continuous integration script is written for bash"
)
def test_the_continuous_integration_runs_the_test_command_word_for_word(tmp_path: Path) -> None:
    """Every program is replaced by one that only writes down how it was called."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(REPOSITORY / ".ci" / "run", tmp_path / ".ci" / "run")
    shutil.copy(REPOSITORY / "README.md", tmp_path)
    programs, record = tmp_path / "programs", tmp_path / "record"
    programs.mkdir()
    for name in ("python3", "chromium"):
        (programs / name).write_text(RECORDER)
        (programs / name).chmod(0o755)
    variables = {
        **os.environ,
        "PATH": f"{programs}:/usr/bin:/bin",
        "RECORD": str(record),
        "RECORDER": str(programs / "python3"),
    }
    done = subprocess.run(
        [str(tmp_path / ".ci" / "run")],
        env=variables,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    calls = [word.strip("\n").split("\n") for word in record.read_text().split("END\n") if word]
    wanted = [shlex.split(step) for step in command(TESTS).split(" && ")]
    wanted[0][0] = str(programs / "python3")
    assert calls == wanted


class Link(NamedTuple):
    page: Path
    target: str


@functools.cache
def links() -> list[Link]:
    result: list[Link] = []
    for page in PAGES:
        text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        result += [Link(page, target) for target in re.findall(r"\]\(([^)\s]+)\)", text)]
    return [link for link in result if not re.match(r"[a-z]+:", link.target)]


def headings(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", filled(page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_links_lead_somewhere(page: Path) -> None:
    wrong: list[str] = []
    for link in links():
        if link.page == page:
            name, _, anchor = link.target.partition("#")
            target = (page.parent / name).resolve() if name else page
            inside = target.exists() and target.is_relative_to(REPOSITORY)
            if not inside or (anchor and anchor not in headings(target)):
                wrong.append(link.target)
    assert not wrong, f"{page.name} points at what is not there"


def test_every_page_is_linked_from_another() -> None:
    reached = {(link.page.parent / link.target.split("#")[0]).resolve() for link in links()}
    for page in (REPOSITORY / "docs").rglob("*.md"):
        if page.name not in ("index.md", "table.md"):
            assert page in reached, f"no page links to {page.relative_to(REPOSITORY)}"


def test_the_example_in_python_fits_the_code() -> None:
    example = Example()
    for block in blocks(REPOSITORY / "README.md", "python"):
        example.visit(ast.parse(block.text))
    followed = {
        "Registry",
        "Task",
        "load",
        "Trainer",
        "fit",
        "use",
        "publish",
        "recombine",
        "matrix",
        "to_html",
    }
    assert followed <= example.calls, f"the example no longer shows {sorted(followed - example.calls)}"


def test_the_example_checker_sees_what_does_not_fit() -> None:
    for wrong in (
        "ck.Regstry.init('x')",
        "ck.Registry.init('x', exists=True)",
        "ck.Registry.init('x').recombin('a', 'b')",
        "r = ck.Registry.init('x')\nr.matrix(extractors='a', heads='b', data=[], normalization='batch')",
        "ck.Trainer(steps=1).fit([], regularizer=[])",
        "ck.Task('a')",
        "ck.data.lod('mnist')",
    ):
        with pytest.raises((AssertionError, AttributeError, TypeError)):
            Example().visit(ast.parse(f"import compatkit as ck\n{wrong}"))


def test_the_manifest_on_the_format_page_is_one() -> None:
    from compatkit.contracts.manifest import from_bytes, to_bytes

    page = (REPOSITORY / "docs" / "reference" / "format.md").read_text()
    (example,) = re.findall(r"^```json\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    written = json.loads(to_bytes(from_bytes(example.encode())))
    assert written == json.loads(example), "the page leaves out a field, or its example is not a manifest"


def test_the_format_page_tells_of_every_folder_and_type() -> None:
    from compatkit.registry.layout import FOLDERS, LAYOUT, MARKER
    from compatkit.registry.weights.header import DTYPES

    page = (REPOSITORY / "docs" / "reference" / "format.md").read_text()
    assert f"`{' '.join(DTYPES)}`" in page
    assert f"`layout` is {LAYOUT}." in page
    for name in (MARKER, *(folder.split("/")[0] for folder in FOLDERS)):
        assert re.search(rf"(^|\s){re.escape(name)}(/|\s)", page, re.MULTILINE), name


def test_the_python_of_the_page_runs_as_a_script_and_ends_without_a_word(tmp_path: Path) -> None:
    """On small packs and few steps; what a script leaves to the interpreter's end must not complain either."""
    for seed, name in enumerate(("mnist", "usps", "typeset")):
        data = data_set(name, classes=tuple("0123456789"), size=(16, 16), seed=seed)
        write_pack(tmp_path, data)
    programs = [block.text for block in blocks(REPOSITORY / "README.md", "python")]
    text = (
        "".join(programs).replace("steps=2000", "steps=2, batch_size=8").replace("typeset-digits", "typeset")
    )
    assert text.count("steps=2,") == 2
    (tmp_path / "script.py").write_text(text)
    done = subprocess.run(
        [sys.executable, "-W", "error", "script.py"],
        cwd=tmp_path,
        env={**os.environ, "COMPATKIT_DATA": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    complaints = [line for line in done.stderr.splitlines() if ": step 2 of 2; " not in line]
    assert (done.returncode, complaints) == (0, [])
    assert (tmp_path / "matrix.html").exists() and "digits/mnist.extractor" in done.stdout

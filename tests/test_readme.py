"""The README says what is true: its commands run as written, its links lead somewhere, its examples fit the code."""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import attrs
import pytest
from small import data_set, write_pack

import compatkit as ck
from compatkit.cli import COMMANDS, program

REPOSITORY = Path(__file__).resolve().parents[1]
README = (REPOSITORY / "README.md").read_text()
PAGES = sorted(
    [*REPOSITORY.glob("*.md"), *(REPOSITORY / "docs").rglob("*.md"), *REPOSITORY.glob("examples/**/*.md")]
)
DEMO, TESTS = "demo", "tests"


def command(mark: str) -> str:
    """The one command in the fenced block that follows ``<!-- mark -->``."""
    found = re.findall(rf"^<!-- {mark} -->\n```bash\n(.*?)\n```$", README, re.MULTILINE | re.DOTALL)
    assert len(found) == 1, (
        f"README.md: one fenced bash block right after <!-- {mark} -->, found {len(found)}"
    )
    return found[0]


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
    calls = [one.strip("\n").split("\n") for one in record.read_text().split("END\n") if one]
    wanted = [shlex.split(step) for step in command(TESTS).split(" && ")]
    wanted[0][0] = str(programs / "python3")
    assert calls == wanted


class Link(NamedTuple):
    page: Path
    target: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(REPOSITORY)}-{self.target}"


def links() -> list[Link]:
    found: list[Link] = []
    for page in PAGES:
        text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        found += [Link(page, target) for target in re.findall(r"\]\(([^)\s]+)\)", text)]
    return [link for link in found if not re.match(r"[a-z]+:", link.target)]


def headings(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("link", links(), ids=str)
def test_links_lead_somewhere(link: Link) -> None:
    name, _, anchor = link.target.partition("#")
    there = (link.page.parent / name).resolve() if name else link.page
    assert there.exists(), f"{link.page.name} points at {link.target}"
    assert there.is_relative_to(REPOSITORY)
    assert not anchor or anchor in headings(there), f"{there.name} has no heading {anchor!r}"


def test_the_documentation_is_reached_from_the_readme() -> None:
    reached = {(link.page.parent / link.target.split("#")[0]).resolve() for link in links()}
    for page in (REPOSITORY / "docs").glob("*.md"):
        assert page in reached, f"no page links to {page.name}"


def commands() -> list[str]:
    blocks = re.findall(r"^```bash\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [line for line in lines if line.startswith("compatkit ")]


@pytest.mark.parametrize("line", commands(), ids=lambda line: line.split("#")[0].strip())
def test_command_lines_are_understood(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are parsed, not run; files that they name must be there."""
    monkeypatch.chdir(REPOSITORY)
    words = shlex.split(line, comments=True)[1:]
    place = next(index for index, word in enumerate(words) if word in COMMANDS)
    with program.make_context("compatkit", list(words)) as context:
        chosen = program.get_command(context, words[place])
        assert chosen is not None
        rest = ["." if word == "DIR" else word for word in words[place + 1 :]]
        chosen.make_context(words[place], rest, parent=context)


class Instance(NamedTuple):
    """Some object of a class, as far as an example's types can be followed."""

    kind: type


class Example(ast.NodeVisitor):
    """Follows an example without running it: names, attributes, and whether calls fit the signatures."""

    def __init__(self) -> None:
        self.known: dict[str, Any] = {}
        self.calls: set[str] = set()

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            if alias.name == "compatkit":
                self.known[alias.asname or alias.name] = ck

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        module = __import__(str(node.module), fromlist=["*"])
        for alias in node.names:
            self.known[alias.asname or alias.name] = getattr(module, alias.name)

    def visit_Assign(self, node: ast.Assign) -> None:
        value = self.follow(node.value)
        for target in node.targets:
            if isinstance(target, ast.Name):
                self.known[target.id] = value

    def visit_Expr(self, node: ast.Expr) -> None:
        self.follow(node.value)

    def follow(self, node: ast.expr) -> Any:
        """Return what an expression gives, ``None`` where it is not known; look into everything below it."""
        if isinstance(node, ast.Name):
            return self.known.get(node.id)
        if isinstance(node, ast.Attribute):
            return member(self.follow(node.value), node.attr)
        if isinstance(node, ast.Call):
            for argument in [*node.args, *(one.value for one in node.keywords)]:
                self.follow(argument)
            return self.called(self.follow(node.func), node)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.follow(child)
        return None

    def called(self, function: Any, node: ast.Call) -> Any:
        if function is None or isinstance(function, Instance):
            return None
        names = [str(one.arg) for one in node.keywords]
        inspect.signature(function).bind(*node.args, **dict.fromkeys(names))
        self.calls.add(getattr(function, "__name__", ""))
        if isinstance(function, type):
            return Instance(function)
        return annotated(getattr(function, "__annotations__", {}).get("return"))


def member(owner: Any, name: str) -> Any:
    if owner is None:
        return None
    if owner is ck:
        assert name in ck.__all__, f"compatkit.{name} is no public name"
    if not isinstance(owner, Instance):
        return getattr(owner, name)
    fields = attrs.fields_dict(owner.kind) if attrs.has(owner.kind) else {}
    if name in fields:
        return annotated(fields[name].type)
    found = getattr(owner.kind, name)
    return found.__get__(object()) if inspect.isfunction(found) else found


def annotated(annotation: Any) -> Instance | None:
    """Return an instance of the public class that an annotation names, ``None`` for anything else."""
    found = (
        getattr(ck, annotation, None) if isinstance(annotation, str) and annotation in ck.__all__ else None
    )
    return Instance(found) if isinstance(found, type) else None


def python_blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


def test_the_example_in_python_fits_the_code() -> None:
    example = Example()
    for block in python_blocks(REPOSITORY / "README.md"):
        example.visit(ast.parse(block))
    followed = {"init", "Task", "load", "Trainer", "fit", "use", "publish", "recombine", "matrix", "to_html"}
    assert followed <= example.calls, f"the example no longer shows {sorted(followed - example.calls)}"


def test_the_example_checker_sees_what_does_not_fit() -> None:
    for wrong in (
        "ck.Regstry.init('x')",
        "ck.Registry.init('x', exists=True)",
        "ck.Registry.init('x').recombin('a', 'b')",
        "r = ck.Registry.init('x')\nr.matrix(extractors='a', heads='b', data=[], normalization='batch')",
        "ck.Trainer(steps=1).fit([], regulariser=[])",
        "ck.Task('a')",
        "ck.data.lod('mnist')",
    ):
        with pytest.raises((AssertionError, AttributeError, TypeError)):
            Example().visit(ast.parse(f"import compatkit as ck\n{wrong}"))


@pytest.mark.parametrize("page", [page for page in PAGES if python_blocks(page)], ids=lambda page: page.name)
def test_examples_compile(page: Path) -> None:
    for block in python_blocks(page):
        compile(block, str(page), "exec")


def test_modules_that_examples_import_exist() -> None:
    for page in PAGES:
        for block in python_blocks(page):
            for node in ast.walk(ast.parse(block)):
                if isinstance(node, ast.ImportFrom) and str(node.module).startswith("compatkit"):
                    module: ModuleType = __import__(str(node.module), fromlist=["*"])
                    for alias in node.names:
                        assert hasattr(module, alias.name), f"{page.name}: {node.module}.{alias.name}"


def test_the_manifest_on_the_format_page_is_one() -> None:
    from compatkit.contracts.manifest import from_bytes, to_bytes

    page = (REPOSITORY / "docs" / "format.md").read_text()
    (example,) = re.findall(r"^```json\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    written = json.loads(to_bytes(from_bytes(example.encode())))
    assert written == json.loads(example), "the page leaves out a field, or its example is not a manifest"


def test_the_format_page_tells_of_every_folder_and_type() -> None:
    from compatkit.registry.layout import FOLDERS, LAYOUT, MARKER
    from compatkit.registry.weights.header import DTYPES

    page = (REPOSITORY / "docs" / "format.md").read_text()
    assert f"`{' '.join(DTYPES)}`" in page
    assert f"`layout` is {LAYOUT}." in page
    for name in (MARKER, *(folder.split("/")[0] for folder in FOLDERS)):
        assert re.search(rf"(^|\s){re.escape(name)}(/|\s)", page, re.MULTILINE), name


def test_the_python_of_the_page_runs_as_a_script_and_ends_without_a_word(tmp_path: Path) -> None:
    """On small packs and few steps; what a script leaves to the interpreter's end must not complain either."""
    for seed, name in enumerate(("mnist", "usps", "typeset")):
        data = data_set(name, classes=tuple("0123456789"), size=(16, 16), seed=seed)
        write_pack(tmp_path, data)
    blocks = re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    text = "".join(blocks).replace("steps=2000", "steps=2, batch_size=8").replace("typeset-digits", "typeset")
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

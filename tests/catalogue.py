"""The catalogue of bad input and bad surroundings: every case, and the tests that show it.

A test shows a case by ``@pytest.mark.case("A1")``. ``pytest --catalogue=docs/catalogue.md`` writes the page with what
came out; the markers are read from the sources, so that tests that did not run are listed too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

TESTS = Path(__file__).parent

GROUPS = {
    "A": "Bytes of tensor files",
    "B": "Names and paths",
    "C": "File systems",
    "D": "Crashes and concurrency",
    "E": "Metadata",
    "F": "Composition",
    "G": "Loading",
    "H": "Scale",
    "I": "Plugins",
}
CASES = {
    "A1": "empty file, 7 bytes, header length 0, 2^63, beyond the file, 100 MB + 1; a huge one in a small file "
    "allocates nothing",
    "A2": "header that is not UTF-8, not JSON, deeply nested, padded in front or behind",
    "A3": "overlaps, holes, reversed or negative offsets, trailing bytes, truncated body, overflowing shapes, sizes "
    "that do not match, types below one byte",
    "A4": "unknown dtype, metadata that is not text",
    "A5": "duplicate keys, identical and different",
    "A6": "tensors named `__metadata__`, nothing, with NUL, as a path, with 10 kB, as twins in NFC and NFD",
    "A7": "400,000 tensors of no size: a cap on their number and lengths",
    "A8": "NaN and infinity in the weights: refused at publish unless allowed",
    "A9": "one flipped bit at the first, last or any byte, swapped blobs, a zeroed page, right size and wrong bytes",
    "A10": "pickle, zip archive, web page, git-lfs pointer under the name of a tensor file: named, never opened",
    "A11": "tied, strided, big-endian, object, fp8 and bf16 tensors, scalars, whole-number buffers",
    "B1": "names as paths: `../`, nested, `..\\`, `/etc`, `C:\\`, `C:/`, `D:rel`, `\\\\server\\share`, mixed; under "
    "the rules of POSIX and of Windows, everywhere",
    "B2": "digests of wrong length, in capitals, `sha256:../../x`, of other algorithms",
    "B3": "`CON`, `NUL.txt`, dot or space at the end, colon, beyond 255 bytes, look-alikes, NFC and NFD, right to "
    "left, emoji, half surrogates",
    "B4": "names that differ in case only, on a file system that folds case",
    "B5": "a name that is a folder of another: `a/b` and `a/b/c`",
    "B6": "spellings of one version, an alias that is a version, alias loops, aliases of what is gone",
    "C1": "a link in place of a blob, reference, `tmp` or folder; a swapped hard link; pipe, device or socket in place "
    "of a file",
    "C2": "read-only folder, read-only file system, no right, another owner, umask and group",
    "C3": "disk full, quota, file too large, too many open files, interrupted calls, short writes",
    "C4": "no hard links, no symbolic links, no working lock, rename across devices",
    "C5": "a clock that goes backwards or is coarse: a change within a tick is still seen",
    "C6": "stray files of editors and file managers, unfinished temporary files",
    "D1": "SIGKILL at every step of a publish, then open, check, and try again",
    "D2": "many processes publish one version: the same bytes, different bytes",
    "D3": "many processes move one alias: no update is lost",
    "D4": "publishing beside collecting: nothing is left dangling",
    "D5": "reading beside writing and deleting",
    "D6": "threads of one process; a fork after opening",
    "D7": "a lock that is stale, whose owner is dead, or whose folder cannot be written",
    "D8": "loaders in processes that were forked or spawned",
    "E1": "manifest truncated, no JSON, duplicate keys, NaN, another schema, unknown fields, 100 MB, 10,000 deep; "
    "other digest than its name; blob missing or of another size",
    "E2": "a contract that lies about its weights",
    "E3": "index damaged, gone, of an old schema, locked, on a network: built again, never fatal",
    "E4": "a layout newer than the library",
    "F": "parts that do not fit, unknown contract fields, missing and circular parents, stale evidence, several heads",
    "G": "no such device, no bf16, meta tensors, missing or unknown keys, buffers only, another timm, renamed "
    "architecture, no network, missing plugin",
    "H": "100,000 components, 10,000 versions of one, 10,000 aliases, a matrix of 300 x 300",
    "I": "broken, misspelt, blocked, clashing and missing plugins",
}


class Outcome(NamedTuple):
    """What came out of one test: ``"passed"``, ``"failed"`` or ``"skipped"``, and why it was skipped."""

    word: str
    reason: str = ""


@cache
def carriers(folder: Path = TESTS) -> dict[str, list[str]]:
    """Return the tests of each case, as ``tests/registry/test_names.py::test_...``, read from the sources."""
    found: dict[str, list[str]] = {}
    for path in sorted(folder.rglob("test_*.py")):
        where = path.relative_to(folder.parent).as_posix()
        for test, case in _marked(ast.parse(path.read_text(encoding="utf-8"))):
            found.setdefault(case, []).append(f"{where}::{test}")
    return found


def page(outcomes: Mapping[str, Iterable[Outcome]]) -> str:
    """Return the page.

    Args:
        outcomes: What came out, by test; a test with several parameters has several.
    """
    shown = carriers()
    lines = [
        "# Catalogue",
        "",
        "Bad input and bad surroundings, case by case, and the tests that show what happens: a typed error or no",
        "effect, never a crash, a hang or a silent change. Written by `pytest --catalogue=docs/catalogue.md`, with",
        "`-m 'not gpu'` for those that take longer too; what is promised is in [security.md](security.md).",
    ]
    for letter, title in GROUPS.items():
        lines += [
            "",
            f"## {letter}. {title}",
            "",
            "| case | what comes | shown by | outcome |",
            "|---|---|---|---|",
        ]
        for case, words in CASES.items():
            if case[0] == letter:
                lines.append(_row(case, words, shown.get(case, []), outcomes))
    return "\n".join(lines) + "\n"


def _row(case: str, words: str, tests: list[str], outcomes: Mapping[str, Iterable[Outcome]]) -> str:
    said = [summary(outcomes.get(test, ())) for test in tests]
    results = [one for test in tests for one in outcomes.get(test, ())]
    names = "<br>".join(
        f"`{test.removeprefix('tests/')}`" + (f": {what}" if what != "passed" else "")
        for test, what in zip(tests, said, strict=True)
    )
    return f"| {case} | {_cell(words)} | {_cell(names)} | {summary(results)} |"


def summary(outcomes: Iterable[Outcome]) -> str:
    """Return several outcomes in a few words; the worst counts, and a pass before a skip."""
    listed = list(outcomes)
    words = {one.word for one in listed}
    if "failed" in words:
        return "**failed**"
    if "passed" in words:
        return "passed"
    return f"skipped: {_cell(listed[0].reason)}" if listed else "not run"


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def _marked(tree: ast.Module) -> Iterator[tuple[str, str]]:
    everywhere = [
        case
        for node in tree.body
        if isinstance(node, ast.Assign) and any(_named(one, "pytestmark") for one in node.targets)
        for case in _cases([node.value])
    ]
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef) and inner.name.startswith("test"):
                    own = [*everywhere, *_cases(node.decorator_list), *_cases(inner.decorator_list)]
                    yield from ((f"{node.name}::{inner.name}", case) for case in dict.fromkeys(own))
        elif isinstance(node, ast.FunctionDef) and node.name.startswith("test"):
            own = [*everywhere, *_cases(node.decorator_list)]
            yield from ((node.name, case) for case in dict.fromkeys(own))


def _named(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _cases(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the arguments of every ``pytest.mark.case(...)``, also inside ``pytest.param``."""
    for call in (one for node in nodes for one in ast.walk(node)):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "case":
            yield from (one.value for one in call.args if isinstance(one, ast.Constant))

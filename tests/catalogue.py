"""The catalogue of bad input and bad surroundings: every case, and the tests that show it.

A test shows a case by ``@pytest.mark.case("A1")``. ``pytest --catalogue=docs/reference/catalogue.md`` writes the page
with what came out; the markers are read from the sources, so that tests that did not run are listed too.
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
    "A1": "empty file; 7 bytes; header length 0, 2^63, beyond the end of the file, 100 MB + 1 (a huge length in "
    "a small file allocates nothing)",
    "A2": "header that is not UTF-8, not JSON, deeply nested, or padded at either end",
    "A3": "overlaps, gaps, reversed or negative offsets, trailing bytes, truncated body, overflowing shapes, "
    "mismatched sizes, types below one byte",
    "A4": "unknown dtype; metadata that is not text",
    "A5": "duplicate keys, with equal and with different values",
    "A6": "tensor names: `__metadata__`, empty, with NUL, a path, 10 kB long, twins in NFC and NFD",
    "A7": "400,000 tensors of size zero: their number and name lengths are capped",
    "A8": "NaN and infinity in the weights: publishing refuses them unless allowed",
    "A9": "one flipped bit (first, last, any byte), swapped blobs, a zeroed page, wrong bytes of the right size",
    "A10": "pickle, zip archive, web page or git-lfs pointer in place of a tensor file: named, never opened",
    "A11": "tied, strided, big-endian, object, fp8 and bf16 tensors, scalars, integer buffers",
    "B1": "names as paths: `../`, nested, `..\\`, `/etc`, `C:\\`, `C:/`, `D:rel`, `\\\\server\\share`, mixed; "
    "POSIX and Windows rules apply on every system",
    "B2": "digests of wrong length, in capitals, `sha256:../../x`, of other algorithms",
    "B3": "`CON`, `NUL.txt`, trailing dot or space, colon, beyond 255 bytes, look-alikes, NFC and NFD, "
    "right-to-left, emoji, lone surrogates",
    "B4": "names that differ only in case, on a case-insensitive file system",
    "B5": "a name that is a folder of another: `a/b` and `a/b/c`",
    "B6": "spellings of one version, an alias that looks like a version, alias loops, aliases of deleted versions",
    "C1": "a link in place of a blob, reference, `tmp` or folder; a swapped hard link; a pipe, device or socket "
    "in place of a file",
    "C2": "read-only folder, read-only file system, missing permissions, another owner, umask and group",
    "C3": "disk full, quota, file too large, too many open files, interrupted calls, short writes",
    "C4": "no hard links, no symbolic links, no working lock, rename across devices",
    "C5": "a clock that goes backwards or is coarse: a change within one tick is still seen",
    "C6": "stray files of editors and file managers, unfinished temporary files",
    "D1": "SIGKILL at every step of a publish, then open, check, and retry",
    "D2": "many processes publish one version: with the same bytes, with different bytes",
    "D3": "many processes move one alias: no update is lost",
    "D4": "publishing during garbage collection: no dangling references",
    "D5": "reading during writing and deleting",
    "D6": "threads of one process; a fork after opening",
    "D7": "a stale lock, a lock of a dead process, a lock folder that is not writable",
    "D8": "data loaders in forked or spawned processes",
    "E1": "manifest truncated, not JSON, with duplicate keys, NaN, another schema or unknown fields, 100 MB, "
    "10,000 levels deep; its digest is not its name; its blob is missing or of another size",
    "E2": "a contract that contradicts its weights",
    "E3": "index damaged, missing, of an old schema, locked, or on a network drive: rebuilt, or an error that says "
    "what to do",
    "E4": "a layout newer than the library",
    "F": "parts that do not fit, unknown contract fields, missing and circular parents, stale evidence, several "
    "heads",
    "G": "missing device, no bf16, meta tensors, missing or unknown keys, buffers only, another timm, renamed "
    "architecture, no network connection, missing plugin",
    "H": "100,000 components, 10,000 versions of one, 10,000 aliases, a 300 x 300 matrix",
    "I": "broken, misspelt, blocked, conflicting and missing plugins",
}


class Outcome(NamedTuple):
    """What came out of one test: ``"passed"``, ``"failed"`` or ``"skipped"``, and why it was skipped."""

    word: str
    reason: str = ""


@cache
def carriers(folder: Path = TESTS) -> dict[str, list[str]]:
    """Return the tests of each case, as ``tests/registry/test_names.py::test_...``, read from the sources."""
    result: dict[str, list[str]] = {}
    for path in sorted(folder.rglob("test_*.py")):
        where = path.relative_to(folder.parent).as_posix()
        for test, case in _marked(ast.parse(path.read_text(encoding="utf-8"))):
            result.setdefault(case, []).append(f"{where}::{test}")
    return result


def page(outcomes: Mapping[str, Iterable[Outcome]]) -> str:
    """Return the page.

    Args:
        outcomes: What came out, by test; a test with several parameters has several.
    """
    shown = carriers()
    lines = [
        "# Catalogue",
        "",
        "Bad input and hostile environments, with the tests of each case. The result is a typed error or no effect,",
        "never a crash, a hang or a silent change ([guarantees](../explanation/security.md)). This page is written by",
        "`pytest --catalogue=docs/reference/catalogue.md`; add `-m 'not gpu'` to run the slow tests too.",
    ]
    for letter, title in GROUPS.items():
        lines += [
            "",
            f"## {letter}. {title}",
            "",
            "| case | input | tests | outcome |",
            "|---|---|---|---|",
        ]
        for case, words in CASES.items():
            if case[0] == letter:
                lines.append(_row(case, words, shown.get(case, []), outcomes))
    return "\n".join(lines) + "\n"


def _row(case: str, words: str, tests: list[str], outcomes: Mapping[str, Iterable[Outcome]]) -> str:
    result = [summary(outcomes.get(test, ())) for test in tests]
    results = [entry for test in tests for entry in outcomes.get(test, ())]
    names = "<br>".join(
        f"`{test.removeprefix('tests/')}`" + (f": {what}" if what != "passed" else "")
        for test, what in zip(tests, result, strict=True)
    )
    return f"| {case} | {_cell(words)} | {_cell(names)} | {summary(results)} |"


def summary(outcomes: Iterable[Outcome]) -> str:
    """Return several outcomes in a few words; the worst counts, and a pass before a skip."""
    listed = list(outcomes)
    words = {entry.word for entry in listed}
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
        if isinstance(node, ast.Assign) and any(_named(target, "pytestmark") for target in node.targets)
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
    for call in (entry for node in nodes for entry in ast.walk(node)):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "case":
            yield from (arg.value for arg in call.args if isinstance(arg, ast.Constant))

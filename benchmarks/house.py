"""Measure the size of the package and the dependencies between its subpackages ("rooms").

Run ``python benchmarks/house.py [--root FOLDER] [--json]`` in a checkout. Figures come from the sources without
running them, except for the last seven (traced; left out with ``--still``): the number of files of
``compatkit`` that run during training of two tasks with two regularizers, one step of it, one publish, one push into a
new folder, one load, one recombination, and one matrix written as a page. Layers are the length of the longest chain of
rooms that import each other; imports in functions and for annotations count too. Lines of code exclude docstrings,
comments and blank lines.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import io
import json
import re
import sys
import tempfile
import tokenize
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path


def modules(package: Path) -> dict[str, str]:
    """Return the text of every module of a package by its dotted name, relative to the package."""
    paths = sorted(package.rglob("*.py"))
    return {".".join(path.relative_to(package).with_suffix("").parts): path.read_text() for path in paths}


def imports(name: str, tree: ast.AST, known: set[str]) -> Iterator[str]:
    """Yield the modules of ``compatkit`` that a module imports, at any level of nesting."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            whole = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            whole = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for imported in whole:
            if imported.split(".")[0] != "compatkit":
                continue
            parts = imported.split(".")[1:]
            while parts and ".".join(parts) not in known and ".".join((*parts, "__init__")) not in known:
                parts.pop()
            target = ".".join(parts)
            target = target if target in known else ".".join((*parts, "__init__"))
            if parts and target != name:
                yield target


def components(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the strongly connected components with more than one member, the largest first (Tarjan)."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    groups: list[list[str]] = []

    def visit(node: str) -> None:
        number[node] = low[node] = len(number)
        stack.append(node)
        for other in graph[node]:
            if other not in number:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], number[other])
        if low[node] == number[node]:
            index = stack.index(node)
            groups.append(stack[index:])
            del stack[index:]

    for node in graph:
        if node not in number:
            visit(node)
    return sorted((group for group in groups if len(group) > 1), key=len, reverse=True)


def layers(graph: dict[str, set[str]]) -> int:
    """Return the length of the longest chain of rooms; rooms in an import cycle share one layer."""
    circle = {room: index for index, group in enumerate(components(graph)) for room in group}
    height: dict[str, int] = {}

    def up(room: str) -> int:
        if room not in height:
            height[room] = 0  # ends the recursion in a cycle
            below = (other for other in graph[room] if circle.get(other, -1) != circle.get(room, -2))
            height[room] = 1 + max(map(up, below), default=0)
        return height[room]

    return max(map(up, graph))


def code_lines(text: str) -> int:
    """Count the lines of code."""
    tree = ast.parse(text)
    documented: set[int] = set()
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            documented.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    empty = {
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    }
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in empty:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - documented)


DIALECT = frozenset(
    "one found held kept said told came there lent brought stand asked given whose named".split()
)
"""Names that do not describe their values."""


def bound_names(tree: ast.AST) -> Iterator[str]:
    """Yield every name that a module binds: variables, parameters, functions, classes, import aliases."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.alias) and node.asname:
            yield node.asname


def dialect(folder: Path) -> int:
    """Count the names of ``DIALECT`` that the modules below a folder bind."""
    return sum(
        name in DIALECT
        for path in folder.rglob("*.py")
        for name in bound_names(ast.parse(path.read_text(encoding="utf-8")))
    )


PRIVATE_NAMES = frozenset(
    "place places most facts made told says said held kept came asked given stands anew".split()
)
"""Names from earlier naming conventions that do not describe their values."""
RELATIVE_ARGUMENT = re.compile(r"^\s+\w+: (Of|That|Whose|What|As|Where|By) ", re.MULTILINE)
"""Description of an argument that begins in the middle of a sentence: ``folder: Of the component``."""
RELATIVE_DOCSTRING = re.compile(r"(Of|That|What|Whose|Those|As) ")
"""Beginning of a docstring that has neither a verb nor a noun."""


def docstrings(tree: ast.AST) -> Iterator[str]:
    """Yield every string that stands by itself: docstrings, and descriptions below assignments."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            yield node.value.value


def private_words(folder: Path) -> int:
    """Count the private names and the docstrings and arguments described by relative clauses below a folder."""
    count = 0
    for path in folder.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        count += len(RELATIVE_ARGUMENT.findall(text))
        count += sum(RELATIVE_DOCSTRING.match(docstring) is not None for docstring in docstrings(tree))
        count += sum(name in PRIVATE_NAMES for name in bound_names(tree))
    return count


def rooms_of(texts: dict[str, str]) -> dict[str, int]:
    """Return the lines of code of each room."""
    lines: Counter[str] = Counter()
    for name, text in texts.items():
        lines[name.split(".")[0]] += code_lines(text)
    return dict(sorted(lines.items()))


def measured(root: Path) -> dict[str, object]:
    """Return every static figure of the sources below ``root``."""
    package = root / "compatkit"
    texts = modules(package)
    trees = {name: ast.parse(text) for name, text in texts.items()}
    known = set(texts)
    graph = {name: set(imports(name, tree, known)) for name, tree in trees.items()}
    graph["__init__"] = set()  # it imports other modules lazily
    rooms: dict[str, set[str]] = {name.split(".")[0]: set() for name in graph}
    for name, others in graph.items():
        room = name.split(".")[0]
        rooms[room] |= {imported.split(".")[0] for imported in others} - {room}
    classes = Counter(
        node.name
        for tree in trees.values()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    sizes = {name: len(text.splitlines()) for name, text in texts.items()}
    circles = components(graph)

    def part(folder: str) -> dict[str, int]:
        inside = [name for name in texts if name.split(".")[0] == folder]
        return {"files": len(inside), "code": sum(code_lines(texts[name]) for name in inside)}

    return {
        "entries at the top": len({name.split(".")[0] for name in texts} - {"__init__", "__main__"}),
        "layers of rooms": layers(rooms),
        "arrows between rooms": sum(map(len, rooms.values())),
        "files in the largest import circle": len(circles[0]) if circles else 0,
        "import circles": len(circles),
        "lines": sum(sizes.values()),
        "lines of code": sum(map(code_lines, texts.values())),
        "files": len(texts),
        "lines of code by room": [f"{name}={count}" for name, count in rooms_of(texts).items()],
        "registry": part("registry"),
        "training": part("training"),
        **{
            f"dialect names in {folder}": dialect(root / folder)
            for folder in ("compatkit", "plugins", "studies", "tests", "benchmarks", "examples")
        },
        "private words in compatkit": private_words(package),
        "class names defined more than once": sorted(name for name, count in classes.items() if count > 1),
        "files under 25 lines": sorted(
            name for name, size in sizes.items() if size < 25 and not name.endswith("__init__")
        ),
        "files above 420 lines": sorted(name for name, size in sizes.items() if size > 420),
        "raise": sum(isinstance(node, ast.Raise) for tree in trees.values() for node in ast.walk(tree)),
        "except": sum(
            isinstance(node, ast.ExceptHandler) for tree in trees.values() for node in ast.walk(tree)
        ),
    }


def files_run(job: Callable[[], object], package: Path, one_step: bool = False) -> int:
    """Count the files of ``package`` with functions called by a job; module bodies run by imports do not count.

    With ``one_step`` only calls between the third and the fourth step of the first optimizer count: one training step
    of every task, and the code of the loop around it.
    """
    from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook

    seen: set[str] = set()
    moves: list[Optimizer] = []

    def note(frame, event, argument) -> None:  # type: ignore[no-untyped-def]
        if event == "call" and frame.f_code.co_flags & inspect.CO_OPTIMIZED:  # no body of a module or class
            seen.add(frame.f_code.co_filename)

    def moved(optimizer: Optimizer, *_: object) -> None:
        if not moves or optimizer is moves[0]:
            moves.append(optimizer)
            sys.setprofile(note if len(moves) == 3 else None)

    handle = register_optimizer_step_post_hook(moved) if one_step else None
    sys.setprofile(None if one_step else note)
    try:
        job()
    finally:
        sys.setprofile(None)
        if handle is not None:
            handle.remove()
    return sum(path.startswith(str(package)) for path in seen)


def traced() -> dict[str, int]:
    """Return the number of files of the installed package that each operation runs."""
    import attrs
    import numpy as np

    import compatkit as ck

    draw = np.random.default_rng(0)
    images = draw.integers(0, 256, (40, 16, 16, 3), dtype=np.uint8), np.arange(40) % 2
    data = ck.DataSet.of("noise", images, images, ("a", "b"))
    tasks = [
        ck.Task(name, attrs.evolve(data, name=name), "simple_cnn", "forward_features", size=(16, 16))
        for name in ("left", "right")
    ]
    package, methods = Path(ck.__file__).parent, ["dcc", "rotation_prediction"]
    trainer = ck.Trainer(steps=5, batch_size=16, progress=False)
    trained = files_run(lambda: trainer.fit(tasks, methods), package)
    stepped = files_run(lambda: trainer.fit(tasks, methods), package, one_step=True)
    fit = ck.Trainer(steps=1, batch_size=16, progress=False).fit(
        [ck.Task("noise", data, "simple_cnn", "forward_features", size=(16, 16))]
    )
    with tempfile.TemporaryDirectory() as folder:
        registry = ck.Registry(Path(folder) / "parts", create=True)
        published = files_run(lambda: registry.publish(fit, prefix="noise"), package)
        pushed = files_run(lambda: registry.push(f"file://{folder}/far", "noise*", create=True), package)
        pair = "noise/noise.extractor", "noise/noise.head"
        joined = files_run(lambda: registry.recombine(*pair), package)
        loaded = files_run(lambda: registry.load(pair[0]), package)
        tests, page = [data.test], Path(folder) / "matrix.html"
        paged = files_run(lambda: registry.matrix(*pair, tests).to_html(page), package)
    return {
        "files run by a fit": trained,
        "files run by a step": stepped,
        "files run by a publish": published,
        "files run by a push": pushed,
        "files run by a load": loaded,
        "files run by a recombination": joined,
        "files run by a matrix and its page": paged,
    }


def main() -> None:
    """Measure, and print a line for each figure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--root", type=Path, default=Path(__file__).resolve().parents[1], help="folder of a checkout"
    )
    parser.add_argument("--still", action="store_true", help="only static figures, without running code")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    figures = measured(options.root) | ({} if options.still else traced())
    if options.json:
        print(json.dumps(figures, indent=1))
        return
    for name, value in figures.items():
        shown = f"{len(value)}: {' '.join(value)}" if isinstance(value, list) else value
        print(f"{name:<36} {shown}")


if __name__ == "__main__":
    main()

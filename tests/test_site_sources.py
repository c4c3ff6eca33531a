"""The reference of the site is whole: every public name, command, hook, recipe key and error code is on a page."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import attrs
import click
import command_pages
import generated
import hook_tables
import json_tables
import pytest
import recipe_tables
import terms
from docstring_code import fenced
from docstrings import described
from markdown import Markdown
from markdown_text import code, escaped, table
from outside_links import OutsideLinks, outside
from pages import REPOSITORY

import compatkit as ck
from compatkit import cli, errors
from compatkit.cli import COMMANDS, DEFECT, INTERRUPTED, TERMINATED
from compatkit.cli.documents import documents, schema
from compatkit.data.specification import KEYS
from compatkit.experiments.recipes import SWEEP
from compatkit.experiments.recipes.recipe import TOP
from compatkit.hooks import EFFECTS, Registration, Training
from compatkit.plugins.implementations import arguments_of
from compatkit.training.task import Task
from compatkit.training.trainer import Trainer

DOCS = REPOSITORY / "docs"
API = DOCS / "reference" / "api"
DIRECTIVE = re.compile(r"^::: ([\w.]+)\n((?:    .*\n)*)", re.MULTILINE)
MEMBERS = re.compile(r"^ +members: \[(.*)\]$", re.MULTILINE)
NOT_FOR_USERS = {"compatkit.__version__"}


def text(name: str) -> str:
    return (DOCS / "reference" / name).read_text(encoding="utf-8")


def documented() -> tuple[dict[int, str], set[str]]:
    """Return the objects that pages document, by identity, and the modules that they document as a whole."""
    found: dict[int, str] = {}
    whole: set[str] = set()
    for page in (*API.glob("*.md"), DOCS / "reference" / "hooks.md"):
        for path, options in DIRECTIVE.findall(page.read_text(encoding="utf-8")):
            value = named(path)
            found[id(value)] = path
            members = MEMBERS.search(options)
            if members is not None:
                found |= {id(getattr(value, name)): f"{path}.{name}" for name in members[1].split(", ")}
            elif isinstance(value, ModuleType):
                whole.add(value.__name__)
    return found, whole


def named(path: str) -> Any:
    """Return what a dotted path names; raises where there is no such thing."""
    parts = path.split(".")
    value: Any = importlib.import_module(parts[0])
    for at, part in enumerate(parts[1:], 2):
        try:
            value = getattr(value, part)
        except AttributeError:
            value = importlib.import_module(".".join(parts[:at]))
    return value


def public_modules() -> list[str]:
    """Return the modules whose names plugins and studies may import, as the page of the architecture lists them."""
    page = (DOCS / "explanation" / "architecture.md").read_text(encoding="utf-8")
    (names,) = re.findall(
        r"import public names only: `compatkit.__all__`,(.+?)\.\n", " ".join(page.split()) + "\n"
    )
    return re.findall(r"`(compatkit[\w.]+)`", names.split(". ")[0])


def public() -> dict[str, Any]:
    """Return all public values by name."""
    values = {f"compatkit.{name}": getattr(ck, name) for name in ck.__all__}
    modules = [*public_modules(), "compatkit.data", "compatkit.registry.signing.public"]
    for name in modules:
        module = importlib.import_module(name)
        homes = {name, *(f"{name}.{part}" for part in ("markers", "registration", "training"))}
        own = [key for key, value in vars(module).items() if getattr(value, "__module__", "") in homes]
        for key in getattr(module, "__all__", own):
            if not key.startswith("_") and not str(getattr(module, key)).startswith("~"):  # type variables
                values[f"{name}.{key}"] = getattr(module, key)
    return values


def test_every_public_name_is_on_a_page() -> None:
    found, whole = documented()
    missing = [
        name
        for name, value in public().items()
        if name not in NOT_FOR_USERS
        and id(value) not in found
        and getattr(value, "__module__", None) not in whole
        and not isinstance(value, ModuleType)
    ]
    assert not missing, f"give each a line `::: NAME` in a page of docs/reference/api: {missing}"


def test_a_public_name_without_a_page_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ck, "__all__", [*ck.__all__, "planted"])
    monkeypatch.setattr(ck, "planted", lambda: None, raising=False)
    with pytest.raises(AssertionError, match="planted"):
        test_every_public_name_is_on_a_page()


def test_the_public_modules_are_those_of_the_architecture() -> None:
    assert {"compatkit.errors", "compatkit.training.testing", "compatkit.evaluation.metrics"} <= set(
        public_modules()
    )


def test_every_generated_part_is_on_one_page() -> None:
    marks = [mark for page in DOCS.rglob("*.md") for mark in generated.MARK.findall(page.read_text("utf-8"))]
    assert sorted(marks) == sorted(generated.PARTS)


def test_every_command_has_a_heading_its_options_and_its_examples() -> None:
    page = command_pages.page()
    headings = re.findall(
        r"^#+ (.+)$", re.sub(r"^```.*?^```$", "", page, flags=re.MULTILINE | re.DOTALL), re.MULTILINE
    )
    assert set(COMMANDS) <= set(headings)
    parameters = 0
    for words, command, _ in command_pages.commands():
        assert words in headings
        section = page.split(f"# {words}\n", 1)[1].partition("\n##")[0]
        for line in getattr(command, "examples", {}) if not isinstance(command, click.Group) else ():
            assert line.split()[1] in section
        for parameter in command.params if not isinstance(command, click.Group) else ():
            if isinstance(parameter, click.Option) and parameter not in command_pages.SHARED:
                assert code(parameter.opts[0]) in section, (words, parameter.opts)
                parameters += 1
    assert parameters > 100
    for parameter in command_pages.SHARED:
        assert code(parameter.opts[0]) in command_pages.shared()


def test_every_document_has_a_heading_and_every_key_in_it_a_row() -> None:
    parts = re.split(r"^##+ (.+)\n", json_tables.page(), flags=re.MULTILINE)[1:]
    sections = dict(zip(parts[::2], parts[1::2], strict=True))
    headings = {command: heading for heading in sections for command in heading.split(", ")}
    rows = 0

    def check(value: dict[str, Any], path: str, heading: str) -> None:
        nonlocal rows
        for option in value.get("anyOf", ()):
            check(option, path, heading)
        for key, step in (("items", "[]"), ("additionalProperties", ".*")):
            if isinstance(value.get(key), dict):
                check(value[key], path + step, heading)
        for key, inner in value.get("properties", {}).items():
            own = f"{path}.{key}".removeprefix("[].").removeprefix(".")
            linked = [to for to in re.findall(r"\[(.+?)\]\(#", sections[heading]) if row(key) in sections[to]]
            assert row(own) in sections[heading] or linked, (heading, own)
            rows += 1
            if row(own) in sections[heading]:
                check(inner, own, heading)

    def row(path: str) -> str:
        return f"| {code(path)} |"

    for command in documents():
        *kinds, _ = schema(command)["anyOf"]  # the last is the error
        for kind in kinds:
            check(kind, "", headings[command])
    assert rows > 500 and row("steps[].rung") in sections["bridge"]


def test_the_exit_codes_are_those_of_the_program() -> None:
    rows = {int(number) for number in re.findall(r"^\| (\d+) \|", text("cli.md"), re.MULTILINE)}
    exits = {kind.exit_code for kind in error_classes()}
    assert rows == {0, DEFECT, INTERRUPTED, TERMINATED} | exits


def test_every_hook_is_in_the_overview() -> None:
    overview = hook_tables.overview()
    for layer in (Registration, Training):
        assert f"::: compatkit.hooks.{layer.__name__}\n" in text("hooks.md")
        for name, arguments in arguments_of(layer).items():
            (row,) = [line for line in overview.splitlines() if f".{name}]" in line]
            assert code(f"{name}({', '.join(arguments)})") in row
    (losses,) = [line for line in overview.splitlines() if ".compatkit_losses]" in line]
    assert all(code(effect) in losses for effect in EFFECTS)


def error_classes() -> list[type[errors.CompatkitError]]:
    return [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.CompatkitError)
    ]


def test_every_error_code_is_under_its_exit_code_with_its_class() -> None:
    rows = []
    for section in text("errors.md").split("\n## ")[1:]:
        number = re.match(r"Exit code (\d)", section)
        found = re.findall(r"^\| `([\w-]+)` \| `(\w+)` \| .+ \| .+ \|$", section, re.MULTILINE)
        rows += [(number[1] if number else "", *row) for row in found]
    by_signature = set(
        errors.SignatureError.__subclasses__()
    )  # tests/registry/test_signatures_page.py has these
    known = [
        (str(kind.exit_code), kind.code, kind.__name__)
        for kind in error_classes()
        if kind not in by_signature
    ]
    assert sorted(rows) == sorted(known)


def test_every_code_without_a_class_is_named() -> None:
    source = Path(cli.__file__).read_text(encoding="utf-8")
    for name in re.findall(r'Failure\([^)]*?"([a-z-]+)", (?:DEFECT|INTERRUPTED|TERMINATED)\)', source):
        assert f"`{name}`" in text("errors.md")


def test_every_key_of_a_recipe_is_on_its_page() -> None:
    page = generated.filled(text("recipes.md"))
    for name in (*TOP, SWEEP):
        assert f"| `{name}` |" in page or f"| [`{name}`](#{name}) |" in page, name
    data = page.partition("### tasks.data")[2].partition("\n###")[0]
    assert sorted(
        re.findall(r"`([\w]+)`", "".join(re.findall(r"^\| (`.+?) \|", data, re.MULTILINE)))
    ) == sorted(KEYS)
    for kind in (Task, Trainer):
        for name in (
            recipe_tables.task_keys() if kind is Task else [field.name for field in attrs.fields(kind)]
        ):
            assert f"| {code(name)} |" in page, (kind, name)
    for name in ("weight", "as", "start", "stop", "before", "after"):
        assert f"| {code(name)} |" in page.partition("\n## regularizers")[2]


def test_a_key_has_its_type_limits_default_and_meaning() -> None:
    rows = {
        line.split(" | ")[0].removeprefix("| "): line for line in recipe_tables.of_class(Trainer).splitlines()
    }
    row = rows[code("batch_size")]
    assert "a whole number from 2 up" in row and code("64") in row and "Images per step" in row
    assert "required" in rows[code("steps")] and "required" not in rows[code("ema")]
    assert described(Task)["mixup"].startswith("Parameter of the beta distribution")


def test_texts_are_escaped_in_tables() -> None:
    assert escaped("a|b <c> *d* `e|f`") == "a&#124;b &#60;c&#62; &#42;d&#42; <code>e&#124;<wbr>f</code>"
    assert table(("a",), [("x\ny",)]) == "| a |\n|---|\n| x y |"
    assert table(("a",), []) == ""


@pytest.mark.parametrize(
    ("link", "page", "path"),
    [
        ("../../examples/photos.toml", "first_hour/photos.md", "examples/photos.toml"),
        ("../CONTRIBUTING.md#x", "index.md", "CONTRIBUTING.md"),
        ("../../../outside", "how_to/serving.md", "../outside"),
        ("../reference/data.md", "how_to/serving.md", None),
        ("#here", "index.md", None),
        ("https://example.org/a", "index.md", None),
    ],
)
def test_a_link_that_leaves_the_pages_is_seen(link: str, page: str, path: str | None) -> None:
    assert outside(link, page) == path


def rendered(text: str, extension: OutsideLinks | terms.Terms, page: str = "how_to/serving.md") -> str:
    extension.page = page
    return Markdown(extensions=[extension, "tables"]).convert(text)


def test_a_link_that_leaves_the_pages_becomes_code_or_leads_to_the_repository(
    caplog: pytest.LogCaptureFixture,
) -> None:
    link = "[recipe](../../examples/photos.toml) [`tests`](../../tests) [page](../index.md)"
    plain = rendered(link, OutsideLinks(REPOSITORY, None))
    assert '<code title="In the repository: examples/photos.toml">recipe</code>' in plain
    assert '<span title="In the repository: tests"><code>tests</code></span>' in plain
    assert '<a href="../index.md">page</a>' in plain and caplog.text == ""
    there = rendered(link, OutsideLinks(REPOSITORY, "https://example.org/kit/"))
    assert 'href="https://example.org/kit/blob/main/examples/photos.toml"' in there
    assert 'href="https://example.org/kit/tree/main/tests"' in there
    for missing in ("../../examples/nothing.toml", "../../../outside"):
        rendered(f"[x]({missing})", OutsideLinks(REPOSITORY, None))
        assert "does not exist" in caplog.text
        caplog.clear()


def test_the_first_place_of_a_word_leads_to_the_glossary() -> None:
    words = terms.Terms(DOCS)
    page = rendered("# Rungs\n\n`rung` **rung** and two rungs, a rung, a [promise](x.md) prompt\n", words)
    assert page.count("<a class") == 1 and ">rungs</a>, a rung" in page
    assert 'href="../reference/glossary.md#rung"' in page and "title=" in page
    assert "<a class" not in rendered("a rung", words, "results/bridges.md")
    page = rendered(
        '`x` `"imagenet-strong"`, `imagenet-strong` [`create_transform`](x.md) `create_transform`', words
    )
    assert '<a href="../reference/recipes.md#tasksaugment"><code>"imagenet-strong"</code></a>, <code>' in page
    assert page.endswith("<code>create_transform</code></p>")
    glossary = rendered((DOCS / terms.GLOSSARY).read_text(encoding="utf-8"), words, terms.GLOSSARY)
    for term in terms.TERMS:
        assert glossary.count(f'<td id="{terms.anchor(term)}">') == 1


def test_code_of_docstrings_is_fenced() -> None:
    text = "Do it.\n\nExample::\n\n    def f():\n\n        return 1\n\nArgs:\n    x: As in::\n\n            f(1)\n"
    first = "Do it.\n\n**Example**\n\n```python\ndef f():\n\n    return 1\n```\n"
    assert fenced(text).startswith(first)
    assert "    x: As in:\n\n    ```python\n    f(1)\n    ```\n" in fenced(text)
    assert fenced("Plain: text.\n\n    indented") == "Plain: text.\n\n    indented"

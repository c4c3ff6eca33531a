"""One page for each method and metric: ``python website/plugin_pages.py`` writes docs/methods and docs/metrics.

Paper, remarks, cost and limits are those of the plugin's docstring, settings those of its class. What a docstring
cannot hold is in ``website/methods/*.toml`` and ``website/metrics/*.toml``: the formula, when to use it, an example,
what was measured, a picture. Each of these files is one group, in the order of their names.
"""

from __future__ import annotations

import argparse
import inspect
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, get_type_hints

import attrs
from docstrings import described
from markdown_text import code, escaped, table
from plugin_examples import method_example, method_recipe, metric_command, metric_example

from compatkit.foundation.limits import Limit
from compatkit.plugins import Offer, Setting, find, names

REPOSITORY = Path(__file__).resolve().parents[1]
KINDS = {"methods": "regularizers", "metrics": "metrics"}
"""Kind of plugin by folder of its pages."""
SECTION = re.compile(r"^([A-Z][A-Za-z ]+): ?(.*)$")
IN_OTHER_PLACES = ("Paper", "Papers", "Equation", "Equations", "Rule", "Cost", "Limits")
"""Sections of a docstring that a page has in a place of their own."""
PARTS = ("title", "when", "equation", "symbols", "measured", "picture", "alt")
"""What an entry of a group's file must have, besides an example."""
LEFT = "Write it again with: python website/plugin_pages.py"
LONG_EQUATION = 100
"""Characters from which an equation is divided."""


@attrs.frozen
class Page:
    """What a page is made from.

    Attributes:
        folder: ``methods`` or ``metrics``.
        name: Name of the plugin.
        group: Title of its group.
        entry: Its entry in the file of the group.
        summary: First paragraph of the plugin's docstring.
        sections: The docstring's other parts by their labels; what has none is under an empty one.
    """

    folder: str
    name: str
    group: str
    entry: Mapping[str, Any]
    summary: str
    sections: Mapping[str, str]

    @property
    def offer(self) -> Offer:
        """The plugin."""
        return find(KINDS[self.folder], self.name)

    def section(self, *labels: str) -> str:
        """Return the first of these sections of the docstring, or an empty text."""
        return next((self.sections[label] for label in labels if label in self.sections), "")


def groups(folder: str) -> list[dict[str, Any]]:
    """Return the groups of a kind with their entries."""
    files = sorted((REPOSITORY / "website" / folder).glob("*.toml"))
    return [tomllib.loads(file.read_text(encoding="utf-8")) for file in files]


def sections(docstring: str) -> tuple[str, dict[str, str]]:
    """Return the first paragraph of a docstring, and its labelled parts."""
    first, _, rest = docstring.partition("\n\n")
    found: dict[str, list[str]] = {}
    label = ""
    for line in rest.splitlines():
        begins = SECTION.match(line)
        if begins:
            label, line = begins[1], begins[2]
        elif not line.startswith(" "):
            label = ""
        if line.strip():
            found.setdefault(label, []).append(line.strip())
    return " ".join(first.split()), {label: " ".join(lines) for label, lines in found.items()}


@cache
def pages(folder: str) -> tuple[Page, ...]:
    """Return what the pages of a folder are made from, in the order of the groups.

    Raises:
        KeyError: A plugin has no entry, or an entry no plugin.
    """
    found = []
    for group in groups(folder):
        for name, entry in group.items():
            if name in ("title", "text"):
                continue
            module = sys.modules[inspect.getmodule(_hook(folder, name)).__name__]  # type: ignore[union-attr]
            summary, parts = sections(inspect.getdoc(module) or "")
            found.append(Page(folder, name, group["title"], entry, summary, parts))
    own = {name for name in names(KINDS[folder]) if _own(folder, name)}
    wrong = own ^ {page.name for page in found}
    if wrong:
        raise KeyError(f"website/{folder}/*.toml and the plugins differ in {sorted(wrong)}")
    return tuple(found)


def _own(folder: str, name: str) -> bool:
    return find(KINDS[folder], name).distribution == "compatkit"


def _hook(folder: str, name: str) -> Any:
    from importlib import import_module
    from importlib.metadata import entry_points

    (point,) = entry_points(group="compatkit", name=f"{KINDS[folder]}.{name}")
    return vars(import_module(point.module))[f"compatkit_{KINDS[folder]}"]


def settings_table(page: Page) -> str:
    """Return the table of a plugin's settings, or a sentence that it has none."""
    factory = page.offer.factory
    meanings: dict[str, str] = {}
    for kind in (
        reversed(inspect.getmro(factory)) if inspect.isclass(factory) else (_returned(factory), factory)
    ):
        meanings |= described(kind)
    fields = {field.name: field for field in attrs.fields(factory)} if attrs.has(factory) else {}  # type: ignore[arg-type]
    rows = [
        (code(setting.name), _type(setting, fields), _default(setting), escaped(meanings[setting.name]))
        for setting in page.offer.settings
    ]
    return table(("setting", "value", "default", "meaning"), rows) or "It has no settings of its own."


def _returned(factory: Any) -> Any:
    return get_type_hints(factory)["return"]


def _type(setting: Setting, fields: Mapping[str, Any]) -> str:
    validator = fields[setting.name].validator if setting.name in fields else None
    words = str(validator) if isinstance(validator, Limit) else ""
    return escaped(words) if words else code(setting.annotation)


def _default(setting: Setting) -> str:
    return "required" if setting.required else code(repr(setting.default))


def ratio(name: str) -> str:
    """Return the measured cost of a method, or an empty text."""
    file = REPOSITORY / "docs" / "results" / "method_costs.json"
    if not file.is_file():
        return ""
    kept = json.loads(file.read_text(encoding="utf-8"))
    if name not in kept["methods"]:
        return ""
    found = kept["methods"][name]
    return (
        f"A step of ResNet-20 took **{found['ratio']:.2f} times** as long as without it "
        f"(rounds from {found['least']:.2f} to {found['most']:.2f}; [all methods](../results/method_costs.md))."
    )


def body(page: Page) -> Iterator[str]:
    """Yield the blocks of a page."""
    entry = page.entry
    yield f"# {page.name}"
    yield f"<!-- Made from the plugin and website/{page.folder}/*.toml. {LEFT} -->"
    yield escaped(page.summary)
    yield f"**When to use it.** {entry['when']}"
    yield f"![{entry['alt']}]({entry['picture']})"
    if page.folder == "methods":
        yield f"```python\n{method_example(entry)}\n```"
        yield "The same in a [recipe](../reference/recipes.md#regularizers):"
        yield f"```toml\n{method_recipe(entry)}\n```"
    else:
        yield f"```python\n{metric_example(page.name, entry)}\n```"
        command = metric_command(page.name, entry)
        yield f"```bash\n{command}\n```" if command else ""
        yield f"## Results\n\n{entry['results'].strip()}"
    yield f"## Equation\n\n$$\n{displayed(entry['equation'].strip())}\n$$\n\n{entry['symbols'].strip()}"
    yield f"## Settings\n\n{settings_table(page)}"
    if page.folder == "methods":
        yield "`weight`, `start` and `stop` are those of [every method](../reference/recipes.md#regularizers)."
    remarks = [
        f"**{label}.** {escaped(text[:1].upper() + text[1:])}" if label else escaped(text)
        for label, text in page.sections.items()
        if label not in IN_OTHER_PLACES
    ]
    if remarks or "notes" in entry:
        yield "\n\n".join(["## Remarks", *remarks, *([entry["notes"].strip()] if "notes" in entry else [])])
    cost = escaped(_sentence(page.section("Cost")))
    yield f"## Cost\n\n{cost} {ratio(page.name) if page.folder == 'methods' else ''}".rstrip()
    yield f"## What we measured\n\n{entry['measured'].strip()}"
    yield f"## Limits\n\n{escaped(_sentence(page.section('Limits')))}"
    yield f"## Paper\n\n{escaped(page.section('Paper', 'Papers'))}"


def displayed(equation: str) -> str:
    """Return an equation of several parts with a line for each, where they are too long for one."""
    if len(equation) < LONG_EQUATION or r"\qquad" not in equation:
        return equation
    lines = re.sub(r"\s*\\q?quad\s*", lambda found: "\n" + r"\\[6pt] ", equation)
    return "\n".join([r"\begin{gathered}", lines, r"\end{gathered}"])


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


HEADS = {
    "methods": (
        "# Methods",
        "Every method that compatkit ships, one page each: paper, equation, settings, cost, picture, limits. A method "
        "is a regularizer plugin; name it in `Trainer.fit(tasks, [...])`, in a recipe, or in a sweep. "
        "[Cost of all](../results/method_costs.md); [write one](../how_to/plugins/index.md).",
    ),
    "metrics": (
        "# Metrics",
        "Every metric that compatkit ships, one page each: paper, equation, settings, results, cost, picture, limits. "
        "[How to measure](../reference/metrics.md) says what they have in common; "
        "[write one](../how_to/plugins/metrics.md).",
    ),
}


def index(folder: str) -> str:
    """Return the page that lists a folder's pages by group."""
    title, lead = HEADS[folder]
    blocks = [title, f"<!-- Made from the plugins and website/{folder}/*.toml. {LEFT} -->", lead]
    for group in groups(folder):
        rows = [
            (
                f"[{code(page.name)}]({page.name}.md)",
                escaped(_sentence(page.summary.partition(": ")[2] or page.summary).rstrip(".")),
                escaped(_short(page.section("Paper", "Papers"))),
            )
            for page in pages(folder)
            if page.group == group["title"]
        ]
        name = "method" if folder == "methods" else "metric"
        blocks += [f"## {group['title']}", group["text"], table((name, "what it does", "source"), rows)]
    return "\n\n".join(blocks) + "\n"


def _short(paper: str) -> str:
    """Return authors and year, or the title, of the first paper."""
    return paper.partition('"')[0].rstrip(", ") or paper.split('"')[1]


def written(folder: str) -> dict[Path, str]:
    """Return the text of every page of a folder by its path in docs/, with examples as ruff formats them."""
    texts = {f"{page.name}.md": "\n\n".join(filter(None, body(page))) + "\n" for page in pages(folder)}
    texts["index.md"] = index(folder)
    with tempfile.TemporaryDirectory() as place:
        for name, text in texts.items():
            Path(place, name).write_text(text, encoding="utf-8")
        command = [
            sys.executable,
            "-m",
            "ruff",
            "format",
            "-q",
            "--config",
            str(REPOSITORY / "pyproject.toml"),
            place,
        ]
        subprocess.run(command, check=True)
        return {Path(folder, name): Path(place, name).read_text(encoding="utf-8") for name in texts}


def main() -> None:
    """Write the pages, and remove those of plugins that are gone."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    for folder in KINDS:
        place = REPOSITORY / "docs" / folder
        place.mkdir(exist_ok=True)
        made = written(folder)
        for page in place.glob("*.md"):
            if page.relative_to(REPOSITORY / "docs") not in made:
                page.unlink()
        for path, text in made.items():
            (REPOSITORY / "docs" / path).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()

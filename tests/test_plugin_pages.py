"""Every method and metric has a page with all of its parts, made from the plugin as it is; so have the pictures."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import draw
import pytest
from pages import PAGES, REPOSITORY, blocks
from PIL import Image
from plugin_examples import metric_command
from plugin_pages import KINDS, LEFT, PARTS, index, pages, sections, settings_table, written

from compatkit.experiments.recipes.recipe import check
from compatkit.plugins import find, names
from compatkit.plugins.settings import check_settings

DOCS = REPOSITORY / "docs"
EVERY = [page for folder in KINDS for page in pages(folder)]
RECIPE = """
prefix = "parts"
{text}
[trainer]
steps = 2
[[tasks]]
name = "digits"
data = "digits"
model = "resnet8_cifar"
cut = "layer2"
"""


@pytest.mark.parametrize("folder", KINDS)
def test_every_page_is_there_and_as_its_sources_say(folder: str) -> None:
    made = written(folder)
    kept = {page.relative_to(DOCS): page.read_text(encoding="utf-8") for page in (DOCS / folder).glob("*.md")}
    assert sorted(kept) == sorted(made), LEFT
    assert [str(path) for path, text in made.items() if kept[path] != text] == [], LEFT
    own = [name for name in names(KINDS[folder]) if find(KINDS[folder], name).distribution == "compatkit"]
    assert {page.name for page in pages(folder)} == set(own)
    assert all(f"({name}.md)" in index(folder) for name in own)


def test_no_part_of_a_page_is_empty() -> None:
    for page in EVERY:
        assert all(page.entry.get(part, "").strip() for part in PARTS if part != "title"), page.name
        assert page.folder == "methods" or page.entry["results"].strip(), page.name
        for labels in (("Cost",), ("Limits",), ("Paper", "Papers")):
            assert len(page.section(*labels)) > 10, f"{page.name} has no section {' or '.join(labels)}"
        assert page.summary and settings_table(page), page.name


def test_sections_of_a_docstring_are_told_apart() -> None:
    text = "Name: what\n    it does.\n\nPaper: A,\n    Sec. 2.\nCost: none.\nA remark: of\nno label.\n\nLimits: a."
    assert sections(text) == (
        "Name: what it does.",
        {"Paper": "A, Sec. 2.", "Cost": "none.", "A remark": "of", "": "no label.", "Limits": "a."},
    )


def test_the_recipe_of_every_method_is_understood(tmp_path: Path) -> None:
    for page in pages("methods"):
        (block,) = blocks(DOCS / "methods" / f"{page.name}.md", "toml")
        recipe = check(
            tomllib.loads(RECIPE.format(text=_before_tables(block.text))), tmp_path / "recipe.toml"
        )
        assert page.name in [use.name for use in recipe.regularizers]
        for use in recipe.regularizers:
            offer = find("regularizers", use.name)
            check_settings(use.settings, offer.settings, offer.owner)


def _before_tables(text: str) -> str:
    """Put the table of frozen parts behind the keys of the recipe, as TOML asks for."""
    keys, bracket, table = text.partition("[frozen]")
    return f"{keys}\n{bracket}{table}"


def test_every_metric_has_a_command_or_says_that_it_needs_python() -> None:
    without = {page.name for page in pages("metrics") if not metric_command(page.name, page.entry)}
    assert without == {"weight_map", "posterior_collapse"}


def test_pictures_are_drawn_by_their_sources(tmp_path: Path) -> None:
    draw.draw(tmp_path)
    assert sorted(tmp_path.rglob("*.png")) == sorted(tmp_path / name for name in draw.drawings())
    for name, function in draw.drawings().items():
        with Image.open(tmp_path / name) as drawn, Image.open(draw.PICTURES / name) as kept:
            assert kept.size == drawn.size and kept.size[0] > 800, name
            assert kept.info["Source"] == draw.digest(function), f"{name}: python website/draw.py"


def test_every_drawing_is_on_a_page_with_words_in_its_place() -> None:
    shown: dict[str, str] = {}
    for page in PAGES:
        for alt, link in re.findall(r"!\[([^\]]*)\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
            target = (page.parent / link).resolve()
            assert target.is_file(), f"{page}: {link}"
            if target.is_relative_to(draw.PICTURES):
                shown[target.relative_to(draw.PICTURES).as_posix()] = alt
    for name in draw.drawings():
        assert len(shown.get(name, "").split()) >= 5, f"{name} is on no page, or without words"

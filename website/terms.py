"""Words of the glossary: the first place of each on a page leads to the glossary, and shows the meaning."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from xml.etree.ElementTree import Element

from markdown import Extension, Markdown
from markdown.treeprocessors import Treeprocessor

GLOSSARY = "reference/glossary.md"
TERMS = (
    *(
        "anchor",
        "auxiliary head",
        "batch-norm policy",
        "blueprint",
        "bridge",
        "cache key",
        "evidence",
        "function digest",
    ),
    *(
        "micro-batch",
        "normalization-needed",
        "probe",
        "promise",
        "recombination",
        "rung",
        "stitching layer",
        "upper bound",
    ),
)
"""Words that mean something else outside this project, or nothing; common ones such as "step" are left alone."""
CODES = {
    "imagenet-strong": "reference/recipes.md#tasksaugment",
    "create_transform": "reference/recipes.md#tasksaugment",
    "normalization-needed": f"{GLOSSARY}#normalization-needed",
}
"""Where words lead that stand as code."""
NOT_IN = {"a", "code", "pre", "h1", "h2", "h3", "h4", "h5", "h6", "th", "strong"}
LEFT_OUT = ("results/", "reference/api/", "reference/hooks.md")
"""Pages that are looked up and not read from the beginning."""
AFTER_INLINE_BEFORE_MKDOCS = 9


def meanings(glossary: Path) -> dict[str, str]:
    """Return the meanings of the linked words, as the glossary has them."""
    rows = re.findall(r"^\| `?([^|`]+?)`? \| (.+) \|$", glossary.read_text(encoding="utf-8"), re.MULTILINE)
    found = dict(rows)
    return {term: re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", found[term]).replace("`", "") for term in TERMS}


def anchor(term: str) -> str:
    """Return the anchor of a word in the glossary."""
    return re.sub(r"\W+", "-", term)


class Terms(Extension):
    """Markdown extension that links the words.

    Attributes:
        page: Path in docs/ of the page that is rendered.
    """

    def __init__(self, docs: Path) -> None:
        super().__init__()
        self.meanings, self.page = meanings(docs / GLOSSARY), ""

    def extendMarkdown(self, md: Markdown) -> None:
        """Add the search for words."""
        md.treeprocessors.register(_Search(md, self), "terms", AFTER_INLINE_BEFORE_MKDOCS)


class _Search(Treeprocessor):
    def __init__(self, md: Markdown, terms: Terms) -> None:
        super().__init__(md)
        self.terms = terms

    def run(self, root: Element) -> None:
        if self.terms.page == GLOSSARY:
            for cell in root.iter("td"):
                term = "".join(cell.itertext()).strip()
                if term in self.terms.meanings:
                    cell.set("id", anchor(term))
        elif not self.terms.page.startswith(LEFT_OUT):
            for term, meaning in self.terms.meanings.items():
                self._link(root, term, meaning)
            for word, target in CODES.items():
                if not target.startswith(f"{self.terms.page}#"):
                    self._link_code(root, word, target)

    def _link_code(self, root: Element, word: str, target: str) -> None:
        """Make a link of the first place of a word that stands as code."""
        for parent, child in pairs(root):
            if child.tag == "code" and (child.text or "").strip('"') == word:
                if parent.tag != "a":
                    link, at = Element("a", {"href": self._address(target)}), list(parent).index(child)
                    link.tail, child.tail = child.tail, None
                    parent.remove(child)
                    link.append(child)
                    parent.insert(at, link)
                return

    def _address(self, target: str) -> str:
        """Return the address of a page in docs/ from the page that is rendered."""
        return posixpath.relpath(target, posixpath.dirname(self.terms.page) or ".")

    def _link(self, root: Element, term: str, meaning: str) -> None:
        """Make a link of the first place of a word."""
        pattern = re.compile(rf"(?<![\w-]){re.escape(term)}s?(?![\w-])", re.IGNORECASE)
        for parent, before in texts(root):
            text = (parent.text if before is None else before.tail) or ""
            found = pattern.search(text)
            if found is None:
                continue
            address = self._address(f"{GLOSSARY}#{anchor(term)}")
            link = Element("a", {"class": "term", "href": address, "title": meaning})
            link.text, link.tail = found[0], text[found.end() :]
            if before is None:
                parent.text = text[: found.start()]
                parent.insert(0, link)
            else:
                before.tail = text[: found.start()]
                parent.insert(list(parent).index(before) + 1, link)
            return


def texts(element: Element) -> Iterator[tuple[Element, Element | None]]:
    """Yield where texts stand, in their order: an element, and the child that a text follows, or None."""
    if element.tag in NOT_IN:
        return
    yield element, None
    for child in list(element):
        yield from texts(child)
        yield element, child


def pairs(element: Element) -> Iterator[tuple[Element, Element]]:
    """Yield every element below another, with its parent, in their order."""
    for child in list(element):
        yield element, child
        yield from pairs(child)

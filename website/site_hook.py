"""What MkDocs does besides for this site: links that leave docs/, words of the glossary, tables from the sources."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from generated import filled
from outside_links import OutsideLinks
from terms import Terms

REPOSITORY = Path(__file__).resolve().parents[1]
_extensions: list[OutsideLinks | Terms] = []


def on_config(config: Any) -> Any:
    """Add the treatment of links that leave docs/, and of words of the glossary."""
    _extensions[:] = [OutsideLinks(REPOSITORY, config.repo_url), Terms(REPOSITORY / "docs")]
    config.markdown_extensions.extend(_extensions)
    return config


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Fill in generated parts, remember the page for its links, and leave tables of results out of the search."""
    for extension in _extensions:
        extension.page = page.file.src_uri
    if page.is_homepage:
        page.meta["hide"] = ["navigation", "toc"]
    if page.file.name == "table":
        page.meta["search"] = {"exclude": True}
    return filled(markdown)

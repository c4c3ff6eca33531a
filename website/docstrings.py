"""Descriptions of attributes and arguments, from Google-style docstrings."""

from __future__ import annotations

import inspect
from typing import Any

from griffe import Docstring, DocstringSectionKind, Parser

KINDS = (DocstringSectionKind.attributes, DocstringSectionKind.parameters)


def described(documented: Any) -> dict[str, str]:
    """Return the descriptions of the attributes of a class, or of the arguments of a function, by name."""
    text = Docstring(inspect.getdoc(documented) or "")
    sections = text.parse(Parser.google, warnings=False)
    return {
        item.name: item.description for section in sections if section.kind in KINDS for item in section.value
    }

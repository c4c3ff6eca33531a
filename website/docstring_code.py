"""Code in docstrings, which stands indented below a line that ends with two colons, as blocks of Python on pages."""

from __future__ import annotations

import re
from textwrap import dedent
from typing import Any

from griffe import Extension, Object

BLOCK = re.compile(r"^(?P<indent> *)(?P<text>.*)::\n\n(?P<code>(?:(?P=indent) {4}.*\n|\n)+)", re.MULTILINE)


def fenced(docstring: str) -> str:
    """Return a docstring with its code in fences."""
    return BLOCK.sub(_fence, f"{docstring}\n").removesuffix("\n")


def _fence(found: re.Match[str]) -> str:
    text = "**Example**" if found["text"] == "Example" else f"{found['text']}:"
    lines = [text, "", "```python", *dedent(found["code"]).strip("\n").split("\n"), "```", ""]
    return "".join(f"{found['indent']}{line}".rstrip() + "\n" for line in lines)


class DocstringCode(Extension):
    """Writes the code of every docstring in fences."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Change the docstring of a module, class, function or attribute."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)

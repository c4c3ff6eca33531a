"""Render the pages of a catalogue, and its data as scripts.

Markup is autoescaped; scripts set text, never markup. The policy of each page allows only its own files, and forbids
scripts to create markup from text (trusted types).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from compatkit.reports.drawing import shade

SCRIPTS = ("theme.js", "shared.js", "table.js", "graph.js", "component.js")
STYLE = "catalogue.css"
SHADES = 10
PAGES = ("index.html", "component.html", "list.html")
_TYPES = "require-trusted-types-for 'script'; trusted-types catalogue"
_REST = f"img-src data:; base-uri 'none'; form-action 'none'; {_TYPES}"
POLICY = f"default-src 'none'; script-src 'self' file:; style-src 'self' file:; {_REST}"
"""Policy in each page. For Firefox a page in a folder has an origin of its own, which ``'self'`` does not match."""
SERVED_POLICY = f"default-src 'none'; script-src 'self'; style-src 'self'; {_REST}; frame-ancestors 'none'"
"""Policy in the headers of a served page; both hold."""
_ESCAPED = "<>&\u2028\u2029"
"""Characters that are written as escapes, so that no text looks like markup, wherever a script is put."""


def page(name: str, view: Mapping[str, Any], *, live: str = "", digits: int = 0) -> bytes:
    """Return a page.

    Args:
        name: One of ``PAGES``.
        view: Values of the front page, by field.
        live: State of the registry, for a served page that asks for changes; empty for a page in a folder.
        digits: Number of hexadecimal digits that tell the file of a component's data.
    """
    policy = (
        SERVED_POLICY.partition("; frame-ancestors")[0] if live else POLICY
    )  # a page cannot forbid frames itself
    text = _templates().get_template(f"{name}.j2").render(view=view, live=live, digits=digits, policy=policy)
    return text.encode("utf-8", "backslashreplace")


def data_script(path: str, value: Any) -> bytes:
    """Return JSON values as a script that hands them to the page.

    Args:
        path: Path of the script in the catalogue, by which the page knows it.
        value: JSON values. Objects have keys of this program only, as a key of a registry could be ``__proto__``.
    """
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in _ESCAPED:  # faster than str.translate
        text = text.replace(character, f"\\u{ord(character):04x}")
    script = f"catalogue.receive({json.dumps(path)},{text});\n"
    return script.encode("utf-8", "backslashreplace")


@cache
def assets() -> Mapping[str, bytes]:
    """Return scripts and style by their path in the catalogue."""
    folder = files("compatkit.reports.catalogue")
    content = {f"assets/{name}": (folder / name).read_bytes() for name in SCRIPTS}
    style = _templates().from_string((folder / STYLE).read_text(encoding="utf-8"))
    shades = [shade(level / SHADES) for level in range(SHADES + 1)]
    return {**content, f"assets/{STYLE}": style.render(shades=shades).encode()}


@cache
def _templates() -> Environment:
    return Environment(
        loader=PackageLoader("compatkit.reports.catalogue", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )

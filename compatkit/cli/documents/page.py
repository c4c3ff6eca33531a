"""The page about all documents, from their types."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from compatkit.cli.documents import Failed, documents, kinds_of
from compatkit.foundation.json_schemas import schema_of

START = """# JSON of each command

Every command prints one JSON value with `--json`, on standard output; all else goes to standard error.
`compatkit schema COMMAND` prints its JSON Schema (2020-12), with everything below. `compatkit schema --page FILE`
makes this page from the same types; the tests compare with them what commands print.

What is stable: within a version of a format, fields are added, and never removed or changed in meaning. So ignore
fields that you do not know. Messages, remedies, titles and notes are for people, and change freely; codes do not.
Documents with a field `schema` have that version of their own. Times are UTC, ISO 8601; digests are `sha256:` and 64
hex digits; shares and accuracies are from 0 to 1.
"""
FAILED = """## Errors

A command that fails prints this in place of its document, and its exit code says what kind of error it is. Commands
that report what they found (`verify`, `doctor`, `check`, `diff --exit-code`) print their document with other exit codes
too.
"""
OBJECTS = """## Objects

Objects that are parts of the documents above, by name.
"""


class _Page:
    """Writes documents, and collects the objects that they are made of."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}

    def word(self, schema: dict[str, Any]) -> str:
        """Return a type in words, with a link to an object."""
        if "anyOf" in schema:
            return " or ".join(dict.fromkeys(map(self.word, schema["anyOf"])))
        if "enum" in schema:
            return ", ".join(f"`{json.dumps(value)}`" for value in schema["enum"])
        if "properties" in schema:
            return self._object(schema)
        kind = schema.get("type", "any value")
        if kind == "array":
            items = schema.get("prefixItems")
            if items is not None:
                return f"[{', '.join(map(self.word, items))}]"
            return f"list of {self.word(schema['items'])}"
        if kind == "object":
            values = schema.get("additionalProperties")
            return f"object of {self.word(values)} by key" if isinstance(values, dict) else "object"
        return " or ".join(kind) if isinstance(kind, list) else kind

    def _object(self, schema: dict[str, Any]) -> str:
        title, number = schema["title"], 1
        while self.objects.setdefault(title, schema)["properties"] != schema["properties"]:
            number += 1
            title = f"{schema['title']} {number}"
        return f"[{title}](#{title.lower().replace(' ', '-')})"

    def rows(self, schema: dict[str, Any]) -> Iterator[str]:
        """Yield a table of the fields of an object."""
        yield "| field | type | meaning |\n|---|---|---|"
        for name, value in schema["properties"].items():
            optional = "" if name in schema["required"] else ", may be absent"
            meaning = value.get("description", "").replace("``", "`").replace("|", "\\|")
            yield f"| `{name}` | {self.word(value)}{optional} | {meaning} |"
        yield ""

    def document(self, schema: dict[str, Any]) -> Iterator[str]:
        """Yield a document: the fields of an object, or what a list holds."""
        if "properties" in schema:
            yield f"{schema['description']}\n"
            yield from self.rows(schema)
        else:
            yield f"A {self.word(schema)}.\n"


def page() -> str:
    """Return the page as Markdown."""
    made = _Page()
    lines = [START]
    for command in sorted(documents()):
        lines.append(f"## compatkit {command}\n")
        kinds = kinds_of(command)
        for number, kind in enumerate(kinds):
            if number:
                lines.append("Or:\n")
            lines += made.document(schema_of(kind))
    lines += [FAILED, *made.document(schema_of(Failed)), OBJECTS]
    known: set[str] = set()
    while left := sorted(made.objects.keys() - known):  # tables name further objects
        for title in left:
            known.add(title)
            lines += [f"### {title}\n", *made.rows(made.objects[title])]
    return "\n".join(lines).rstrip() + "\n"

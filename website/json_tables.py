"""What commands print with ``--json``: a table of keys for each, from the declared documents."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from markdown.extensions.toc import slugify
from markdown_text import code, escaped, table

from compatkit.cli.documents import FAILED, documents, kinds_of
from compatkit.foundation.json_schemas import schema_of

HEADS = ("key", "type", "meaning")
FEW = 3
"""Most keys of a class that tables repeat; one with more keys has its own table if it occurs more than once."""


def page() -> str:
    """Return the tables of all commands, and those of objects that several of them print."""
    groups: dict[str, list[str]] = {}
    for command in sorted(documents()):
        groups.setdefault(json.dumps(_schemas(command)), []).append(command)
    tables = _Tables({", ".join(commands): _schemas(commands[0]) for commands in groups.values()})
    return "\n\n".join(tables.blocks())


def failed() -> str:
    """Return the table of what a command prints that fails."""
    return "\n\n".join(_Tables({}).document(schema_of(FAILED)))


def _schemas(command: str) -> list[dict[str, Any]]:
    return [schema_of(kind) for kind in kinds_of(command)]


class _Tables:
    """Tables of documents, in which objects that several documents hold are links.

    Attributes:
        documents: Schemas of the documents of each section, by heading.
        headings: Heading of the table of each object that has one, by its content.
        objects: Objects that several documents hold, by heading.
    """

    def __init__(self, documents: Mapping[str, list[dict[str, Any]]]) -> None:
        self.documents = documents
        self.headings: dict[str, str] = {}
        self.objects: dict[str, dict[str, Any]] = {}
        uses = Counter[str]()
        for heading, schemas in documents.items():
            for _, option in (found for schema in schemas for found in _inside(schema, "")):
                self.headings.setdefault(_content(option), heading)
        for schemas in documents.values():
            for option in (option for schema in schemas for option in _deep(schema)):
                content, title = _content(option), option.get("title")
                uses[content] += 1
                if uses[content] > 1 and title and len(option["properties"]) > FEW:
                    if content not in self.headings and title not in self.objects:
                        self.headings[content], self.objects[title] = title, option

    def blocks(self) -> Iterator[str]:
        """Yield headings and tables of all documents, then of the objects that several hold."""
        for heading, schemas in self.documents.items():
            yield f"## {heading}"
            options = ["\n\n".join(self.document(schema, heading)) for schema in schemas]
            yield "\n\nOr:\n\n".join(dict.fromkeys(options))
        yield "## Objects"
        for title, schema in sorted(self.objects.items()):
            yield f"### {title}"
            yield from self.document(schema, title)

    def document(self, schema: dict[str, Any], heading: str = "") -> Iterator[str]:
        """Yield what a document is, and the table of its keys, or a link to the heading above the table."""
        options = [option for _, option in _inside(schema, "")]
        prefix = "In a list: " * (schema.get("type") == "array")
        if not options:
            yield f"{self._type(schema).capitalize()}."
        for option in options:
            if self.headings.get(_content(option), heading) == heading:
                yield prefix + escaped(option["description"])
                yield table(HEADS, self._rows(option, ""))
            else:
                yield f"{prefix}As {self._type(option)}."

    def _rows(self, schema: dict[str, Any], path: str) -> Iterator[tuple[str, str, str]]:
        """Yield path, type and meaning of each key of an object, and of the objects in it."""
        properties = schema["properties"]
        for key in (*schema["required"], *(key for key in properties if key not in schema["required"])):
            value, absent = properties[key], "" if key in schema["required"] else ", may be absent"
            yield code(path + key), self._type(value) + absent, escaped(value.get("description", ""))
            for inside, option in _inside(value, path + key):
                if _content(option) not in self.headings:
                    yield from self._rows(option, f"{inside}.")

    def _type(self, schema: dict[str, Any]) -> str:
        """Return a type in words."""
        if "anyOf" in schema:
            return " or ".join(dict.fromkeys(map(self._type, schema["anyOf"])))
        if "enum" in schema:
            return ", ".join(code(json.dumps(value)) for value in schema["enum"])
        if "properties" in schema:
            heading = self.headings.get(_content(schema))
            return f"[{heading}](#{slugify(heading, '-')})" if heading else "object"
        kind = schema.get("type", "any value")
        if "prefixItems" in schema:
            return f"list of {' and '.join(dict.fromkeys(map(self._type, schema['prefixItems'])))}"
        if "items" in schema:
            return f"list of {self._type(schema['items'])}"
        if isinstance(values := schema.get("additionalProperties"), dict):
            return f"{self._type(values)} by key"
        return " or ".join(kind) if isinstance(kind, list) else kind


def _inside(schema: Mapping[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the objects with keys that a value is or holds, with the paths that lead there."""
    if "properties" in schema:
        yield path, dict(schema)
    for option in schema.get("anyOf", ()):
        yield from _inside(option, path)
    if "items" in schema:
        yield from _inside(schema["items"], f"{path}[]")
    if isinstance(schema.get("additionalProperties"), dict):
        yield from _inside(schema["additionalProperties"], f"{path}.*")


def _deep(schema: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the objects in a document at any depth."""
    for _, option in _inside(schema, ""):
        yield option
        for value in option["properties"].values():
            yield from _deep(value)


def _content(schema: Mapping[str, Any]) -> str:
    return json.dumps(schema["properties"])

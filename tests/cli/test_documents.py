"""The documents of --json: a schema for each command, and what types become.

That commands print what their schema says is checked in every test that runs one (``conftest.run``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal, NamedTuple

import attrs
import click
import jsonschema
import pytest
from documented import check_document
from every_command import EVERY, found

from compatkit.cli.documents import documents, kinds_of, schema
from compatkit.foundation.json_schemas import Object, Sometimes, schema_of


def objects(value: Any) -> list[dict[str, Any]]:
    """Return all objects with properties in a schema."""
    if isinstance(value, list):
        return [each for item in value for each in objects(item)]
    if not isinstance(value, dict):
        return []
    own = [value] if isinstance(value.get("properties"), dict) else []
    return own + [each for item in value.values() for each in objects(item)]


def test_every_command_has_a_document() -> None:
    leaves = {" ".join(words) for words in EVERY if not isinstance(found(words), click.Group)}
    assert documents().keys() == leaves


@pytest.mark.parametrize("command", sorted(documents()))
def test_schemas_are_valid_and_closed(command: str) -> None:
    made = schema(command)
    jsonschema.Draft202012Validator.check_schema(made)
    assert made["$schema"].endswith("2020-12/schema")
    for each in objects(made):
        assert each["additionalProperties"] is False and set(each["required"]) <= each["properties"].keys()


@pytest.mark.parametrize("command", sorted(documents()))
def test_documents_and_keys_that_are_put_together_for_them_have_a_meaning(command: str) -> None:
    def check(kind: Any) -> None:
        if isinstance(kind, list | tuple | dict):
            for part in kind.values() if isinstance(kind, dict) else kind:
                check(part)
        if isinstance(kind, Object):
            properties = schema_of(kind)["properties"]
            assert all(properties[key]["description"] for key in kind.keys), kind.keys
            for part in (*kind.parts, *kind.keys.values()):
                check(part)

    check(kinds_of(command))
    for kind in kinds_of(command):
        assert all(each["description"] for each in objects(schema_of(kind))[:1]), kind


def test_the_command_prints_schemas_and_lists_commands(run: Any) -> None:
    assert json.loads(run("schema", "ls").out) == schema("ls")
    assert run("schema", "remote", "list", "--json").json == schema("remote list")
    assert run("schema").out.split("\n")[:-1] == sorted(documents())
    error = run("schema", "lss", "--json").json["error"]
    assert error["code"] == "unknown-name" and "'ls'" in error["message"]


def test_a_document_with_another_field_or_without_one_is_noticed() -> None:
    sound = {"root": "parts", "id": "x", "created": True}
    for words in (["init"], ["--registry", "parts", "init", "--json"]):
        check_document(words, json.dumps(sound))
        check_document(words, json.dumps({"error": {"code": "usage", "message": "no", "report": None}}))
        for wrong in ({**sound, "more": 1}, {"root": "parts"}, {**sound, "created": "yes"}, [sound]):
            with pytest.raises(AssertionError):
                check_document(words, json.dumps(wrong))


@attrs.frozen
class Inner:
    """An object that may be None.

    Attributes:
        named: A field that has another key,
            on two lines.
        left_out: A field that may be absent; see ``named``.
    """

    named: int = attrs.field(metadata={"key": "other"})
    left_out: float = attrs.field(default=0.0, metadata={"absent_where_default": True})
    choice: Literal["a", "b"] | None = None


@attrs.frozen
class Extended(Inner):
    """Another.

    Attributes:
        hidden: What JSON has no value for.
    """

    hidden: Fraction = Fraction(1)


class Row(NamedTuple):
    """A row."""

    inner: Inner
    pair: tuple[int, str]


INNER = {
    "title": "Inner",
    "description": "An object that may be null.",
    "type": "object",
    "properties": {
        "other": {"type": "integer", "description": "A field that has another key, on two lines."},
        "left_out": {"type": "number", "description": "A field that may be absent; see `other`."},
        "choice": {"anyOf": [{"enum": ["a", "b"]}, {"type": "null"}]},
    },
    "required": ["other", "choice"],
    "additionalProperties": False,
}


def test_what_types_become() -> None:
    assert schema_of(Inner) == INNER
    assert schema_of(Row)["properties"] == {
        "inner": INNER,
        "pair": {
            "type": "array",
            "prefixItems": [{"type": "integer"}, {"type": "string"}],
            "minItems": 2,
            "maxItems": 2,
        },
    }
    by_key = {"type": "object", "additionalProperties": {"type": ["number", "null"]}}
    assert schema_of({str: float | None}) == by_key == schema_of(Mapping[str, float | None])
    assert schema_of(Any) == {}
    assert schema_of((int, None)) == {"type": ["integer", "null"]}
    assert schema_of([Path]) == {"type": "array", "items": {"type": "string"}}
    for wrong in (complex, Extended, [Object(Extended)]):
        with pytest.raises(TypeError):
            schema_of(wrong)


def test_what_objects_become() -> None:
    assert schema_of(Object("Words.", Inner)) == {**INNER, "description": "Words."}
    assert schema_of(Object(Extended, without=("hidden",)))["properties"] == INNER["properties"]
    made = schema_of(
        Object(
            Object("First.", kept=(Sometimes(int), "Kept."), replaced=(Sometimes(int), "Replaced.")),
            Extended,
            replaced=(str, "New."),
            hidden=[str],
            rare=(Sometimes([Object("Last.")]), "Rare."),
            without=("left_out",),
            sometimes=("choice",),
        )
    )
    assert made == {
        "title": "Extended",
        "description": "First.",
        "type": "object",
        "properties": {
            "kept": {"type": "integer", "description": "Kept."},
            "replaced": {"type": "string", "description": "New."},
            "other": INNER["properties"]["other"],
            "choice": INNER["properties"]["choice"],
            "hidden": {
                "type": "array",
                "items": {"type": "string"},
                "description": "What JSON has no value for.",
            },
            "rare": {"type": "array", "items": schema_of(Object("Last.")), "description": "Rare."},
        },
        "required": ["replaced", "other", "hidden"],
        "additionalProperties": False,
    }

"""The documents of --json: a schema for each command, the page about them, and what types become.

That commands print what their schema says is checked in every test that runs one (``conftest.run``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypedDict

import attrs
import click
import jsonschema
import pytest
from documented import check_document
from every_command import EVERY, found

from compatkit.cli.documents import documents, kinds_of, schema
from compatkit.cli.documents.page import page
from compatkit.foundation.json_schemas import Merged, meanings, schema_of

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "json.md"


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
def test_fields_that_are_put_together_for_a_document_have_a_meaning(command: str) -> None:
    def check(kind: Any) -> None:
        for part in (
            kind.classes if isinstance(kind, Merged) else kind if isinstance(kind, list | tuple) else ()
        ):
            check(part)
        if isinstance(kind, type) and kind.__module__.startswith("compatkit.cli.documents"):
            assert kind.__annotations__.keys() == meanings(kind).keys(), kind

    check(kinds_of(command))


def test_the_page_is_made_from_the_types() -> None:
    assert PAGE.read_text() == page(), "compatkit schema --page docs/reference/json.md"


def test_the_command_prints_schemas_lists_commands_and_writes_the_page(run: Any, tmp_path: Path) -> None:
    assert json.loads(run("schema", "ls").out) == schema("ls")
    assert run("schema", "remote", "list", "--json").json == schema("remote list")
    assert run("schema").out.split("\n")[:-1] == sorted(documents())
    assert run("schema", "--page", tmp_path / "json.md").code == 0
    assert (tmp_path / "json.md").read_text() == page()
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
    """An object.

    Attributes:
        named: A field that has another key,
            on two lines.
        left_out: A field that may be absent.
    """

    named: int = attrs.field(metadata={"key": "other"})
    left_out: float = attrs.field(default=0.0, metadata={"absent_where_default": True})
    choice: Literal["a", "b"] | None = None


class Row(NamedTuple):
    """A row."""

    inner: Inner
    pair: tuple[int, str]


class Outer(TypedDict):
    """A document.

    Attributes:
        rows: Rows.
    """

    rows: list[Row]
    values: NotRequired[Mapping[str, float | None]]
    anything: Any
    part: Annotated[Any, Merged(Inner, without=("choice",))]


def test_what_types_become() -> None:
    inner = {
        "title": "Inner",
        "description": "An object.",
        "type": "object",
        "properties": {
            "other": {"type": "integer", "description": "A field that has another key, on two lines."},
            "left_out": {"type": "number", "description": "A field that may be absent."},
            "choice": {"anyOf": [{"enum": ["a", "b"]}, {"type": "null"}]},
        },
        "required": ["other", "choice"],
        "additionalProperties": False,
    }
    assert schema_of(Inner) == inner
    made = schema_of(Outer)
    assert made["required"] == ["rows", "anything", "part"]
    assert made["properties"]["rows"]["items"]["properties"]["pair"] == {
        "type": "array",
        "prefixItems": [{"type": "integer"}, {"type": "string"}],
        "minItems": 2,
        "maxItems": 2,
    }
    assert made["properties"]["values"] == {
        "type": "object",
        "additionalProperties": {"type": ["number", "null"]},
    }
    assert made["properties"]["anything"] == {}
    assert made["properties"]["part"]["properties"].keys() == {"other", "left_out"}
    assert schema_of((int, None)) == {"type": ["integer", "null"]}
    assert schema_of([Path]) == {"type": "array", "items": {"type": "string"}}
    with pytest.raises(TypeError):
        schema_of(complex)

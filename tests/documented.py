"""What commands print, compared with the schemas of their documents."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import jsonschema
from jsonschema.exceptions import best_match

from compatkit.cli.documents import documents, schema


@cache
def validator(command: str) -> Any:
    """Return what compares JSON with the document of a command."""
    return jsonschema.Draft202012Validator(schema(command))


def check_document(words: list[str], out: str) -> None:
    """Compare what a command prints with its schema; without a command, with that of errors."""
    plain = [word for word in words if not word.startswith("-")]
    if "plugins" in plain and not {"list", "new"} & {*plain}:
        plain.insert(plain.index("plugins") + 1, "list")  # the default
    pairs = zip(plain, [*plain[1:], ""], strict=True)
    commands = [line for first, second in pairs for line in (f"{first} {second}", first)]
    command = next((line for line in commands if line in documents()), "")
    if error := best_match(validator(command).iter_errors(json.loads(out))):
        raise AssertionError(f"{command} --json, {error.json_path}: {error.message[:500]}")

"""What each command prints with ``--json``, as types: their schemas, and their meanings in words."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

from compatkit.foundation.json_schemas import DIALECT, Object, schema_of

ROOMS = ("registry", "sharing", "setup", "measuring", "training")
"""Modules with documents; the last three import torch."""


FAILED = Object(
    "What any command prints in place of its document if it fails.",
    error=(
        Object(
            "An error.",
            code=(str, "Stable code: see the page of errors."),
            message=(str, "What was expected, what came, what to do; for people, and not stable."),
            report=(dict | None, "Report that explains it, or null."),
        ),
        "The error.",
    ),
)


@cache
def documents() -> dict[str, Any]:
    """Return the documents of all commands by their words."""
    return {command: kind for room in ROOMS for command, kind in _documents_of(room).items()}


def kinds_of(command: str) -> tuple[Any, ...]:
    """Return the documents of which a command prints one; empty if it is unknown.

    Args:
        command: Its words, such as ``"remote list"``.
    """
    for room in ROOMS:
        if (kind := _documents_of(room).get(command)) is not None:
            return kind if isinstance(kind, tuple) else (kind,)
    return ()


def schema(command: str) -> dict[str, Any]:
    """Return the JSON Schema of what a command prints, in success and in error.

    Args:
        command: Its words.
    """
    kinds = (*kinds_of(command), FAILED)
    return {"$schema": DIALECT, "title": f"compatkit {command} --json", **schema_of(kinds)}


def _documents_of(room: str) -> dict[str, Any]:
    return import_module(f"compatkit.cli.documents.{room}").DOCUMENTS

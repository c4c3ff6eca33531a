"""Errors keep their class, subject and attributes on the way up; context is added to them as a note."""

from __future__ import annotations

import re
from copy import copy
from pathlib import Path

import pytest

from compatkit import errors
from compatkit.errors import CompatkitError, IntegrityError, PluginError
from compatkit.registry.store import add_component_note

ROOT = Path(__file__).parents[1]
CLASSES = [
    value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, CompatkitError)
]


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_a_note_becomes_part_of_the_message_once(kind: type[CompatkitError]) -> None:
    error = PluginError("x.", plugin="mine", hook="h") if kind is PluginError else kind("x.", subject="mine")
    before = dict(vars(error))
    error.add_note("Read for a@1.0.0.")
    error.add_note("Read for a@1.0.0.")
    assert str(error) == "x. Read for a@1.0.0."
    assert vars(error) == before
    assert vars(copy(error)) == before


@pytest.mark.parametrize(
    "kind", [kind for kind in CLASSES if issubclass(kind, IntegrityError)], ids=lambda kind: kind.__name__
)
def test_an_error_about_bytes_is_raised_on_with_the_component(kind: type[IntegrityError]) -> None:
    error = kind("damaged.", subject="sha256:1")
    with pytest.raises(kind) as caught, add_component_note("a@1.0.0"):
        raise error
    assert caught.value is error
    assert (str(error), error.subject) == ("damaged. Read for a@1.0.0.", "sha256:1")


@pytest.mark.parametrize("package", ["compatkit", "plugins", "studies"])
def test_no_error_is_made_again_from_its_class(package: str) -> None:
    """Constructors differ: ``type(error)(message, subject=...)`` is a TypeError for a PluginError."""
    again = re.compile(r"raise type\(\w+\)\(|\btype\((error|problem|worst|exception|exc|cause)\)\(")
    texts = {path: path.read_text() for path in (ROOT / package).rglob("*.py")}
    assert texts
    assert [str(path) for path, text in texts.items() if again.search(text)] == []


def test_near_words_are_those_that_begin_so_then_those_spelled_so() -> None:
    known = ["retrain", "rotation_of_hue", "rotation_prediction", "station"]
    assert errors.near("rotation", known, 3) == ["rotation_of_hue", "rotation_prediction", "station"]
    assert errors.suggest("rotation_p", known) == " Did you mean 'rotation_prediction'?"
    assert errors.near("ro", known) == []
    assert errors.suggest("retrian", known) == " Did you mean 'retrain'?"

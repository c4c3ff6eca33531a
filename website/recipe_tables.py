"""The keys of a recipe with type, default, limits and meaning, from the classes that read them."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, get_type_hints

import attrs
from docstrings import described
from markdown_text import code, escaped, table
from timm.data.transforms_factory import create_transform

from compatkit.adapters.augmentation import FROM_TASK, PRESETS
from compatkit.contracts.manifest import About
from compatkit.data.transforms import Shift
from compatkit.experiments.recipes import task_keys
from compatkit.experiments.recipes.recipe import FrozenParts
from compatkit.experiments.recipes.values import _describe
from compatkit.foundation.limits import Limit
from compatkit.plugins import use
from compatkit.training.evaluating import EarlyStopping
from compatkit.training.optim import Schedule
from compatkit.training.task import Rest, Task
from compatkit.training.trainer import Trainer

HEADS = ("key", "value", "default", "meaning")
NOT_IN_RECIPES = ("patchify", "patch_size", "max_seq_len")
"""Beginnings of arguments of ``create_transform`` for networks that take patches in place of images."""
WORDS = {
    "data": "a name, a path, an address or a table",
    "extractor": "the name of a component",
    "head": "the name of a component",
    "loggers": "a table",
    "schedule": '"step", "cosine", "constant" or a table',
    "stop_early": "a table",
    "weights": "a string",
}
"""Values of keys that the classes take in another form than recipes."""


def of_class(kind: type, keys: Iterable[str] | None = None) -> str:
    """Return the table of the keys that an attrs class reads: all of its fields, or some."""
    fields = {field.name: field for field in attrs.fields(kind)}
    hints, meanings = get_type_hints(kind), described(kind)
    return table(
        HEADS,
        [
            (
                code(name),
                value_of(fields[name], hints[name]),
                default_of(fields[name].default),
                escaped(meanings[name]),
            )
            for name in (fields if keys is None else keys)
        ],
    )


def value_of(field: attrs.Attribute[Any], hint: Any) -> str:
    """Return what values a key takes: the words of its limit, else those of its type."""
    if field.name in WORDS:
        return escaped(WORDS[field.name])
    limit = field.validator if isinstance(field.validator, Limit) else None
    words = str(limit) if limit is not None and "written" not in field.metadata else ""
    if not words or words in ("a string", "a finite number"):
        words = _describe(field.metadata.get("written", hint)) or words
    for python, toml in (
        (", or None", ""),
        ("True or False", "true or false"),
        ("a mapping of", "a table of"),
    ):
        words = words.replace(python, toml)
    return escaped(words.replace("'", '"'))


def default_of(value: Any) -> str:
    """Return a default as it is written in TOML; nothing where a key that is left out has no value."""
    if value is attrs.NOTHING or value is inspect.Parameter.empty:
        return "required"
    if isinstance(value, attrs.Factory) or value is None or value in ((), {}, ""):  # type: ignore[arg-type]
        return ""
    return code(json.dumps(value))


def of_function(function: Callable[..., Any], meanings: Mapping[str, str], *left_out: str) -> str:
    """Return the table of the arguments of a function that recipes may give by name."""
    rows = [
        (code(name.rstrip("_")), default_of(parameter.default), escaped(meanings[name]))
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is not parameter.VAR_KEYWORD and not name.startswith(left_out or ("\0",))
    ]
    return table(("key", "default", "meaning"), rows)


def presets() -> str:
    """Return the presets of ``augment`` that are arguments of timm's ``create_transform``."""
    rows = [
        (
            code(f'"{name}"'),
            ", ".join(code(f"{key} = {json.dumps(value)}") for key, value in given.items()) or "timm's own",
        )
        for name, given in PRESETS.items()
    ]
    return table(("preset", "arguments"), rows)


PARTS: Mapping[str, Callable[[], str]] = {
    "keys of tasks": lambda: of_class(Task, task_keys()),
    "keys of rest": partial(of_class, Rest),
    "keys of trainer": partial(of_class, Trainer),
    "keys of schedule": partial(of_class, Schedule),
    "keys of stop_early": partial(of_class, EarlyStopping),
    "keys of frozen": partial(of_class, FrozenParts),
    "keys of about": partial(of_class, About),
    "keys of shift": partial(of_class, Shift),
    "keys of regularizers": lambda: of_function(use, described(use)),
    "presets of augment": presets,
    "arguments of create_transform": lambda: of_function(
        create_transform, described(create_transform), *FROM_TASK, *NOT_IN_RECIPES
    ),
}

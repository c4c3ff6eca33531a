"""Filters of a search."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import get_args

import attrs

from compatkit.contracts.kinds import Kind
from compatkit.errors import UsageError
from compatkit.foundation.limits import Number, OneOf
from compatkit.foundation.spelling import normalize_text

KINDS: tuple[str, ...] = get_args(Kind)
_ANCHOR = re.compile(r"(?:tensors:)?(?:sha256:)?([0-9a-f]{4,64})")
MAX_TERMS = 100
"""Maximum number of tags, or of words, in one search."""
MAX_CHARACTERS = 1000
"""Maximum length of a filter."""
ANCHOR = "tensors:sha256:"
"""Prefix of the digest of an anchor."""


def _text(instance: object, field: attrs.Attribute[str | None], value: str | None) -> None:
    if value is not None and not _is_text(value):
        raise UsageError(f"{field.name}: expected text, got {value!r:.100}.", subject=value)
    if value is not None and len(value) > MAX_CHARACTERS:
        raise UsageError(
            f"{field.name}: expected at most {MAX_CHARACTERS} characters, got {len(value)}.", subject=value
        )


def _is_text(value: object) -> bool:
    return isinstance(value, str) and not any("\ud800" <= character <= "\udfff" for character in value)


def _pattern(instance: object, field: attrs.Attribute[str | None], value: str | None) -> None:
    _text(instance, field, value)
    if value is not None and ("@" in value or ":" in value):
        raise UsageError(
            f"expected a glob of names such as 'digits/*.head', got {value!r}. A search takes no versions or "
            "aliases; see --latest.",
            subject=value,
        )


def _tags(instance: object, field: attrs.Attribute[Mapping[str, str]], value: Mapping[str, str]) -> None:
    is_valid = isinstance(value, Mapping) and all(
        key and _is_text(key) and _is_text(value[key]) for key in value
    )
    if not is_valid or len(value) > MAX_TERMS:
        raise UsageError(
            f"tags: expected at most {MAX_TERMS} texts by name, such as {{'domain': 'digits'}}; got {value!r:.200}."
        )


def _words(instance: object, field: attrs.Attribute[str | None], value: str | None) -> None:
    _text(instance, field, value)
    if value is not None and len(value.split()) > MAX_TERMS:
        raise UsageError(
            f"{field.name}: expected at most {MAX_TERMS} words, got {len(value.split())}.", subject=value
        )


def _number(least: int, *, optional: bool = False) -> Number:
    return Number(least=least, below=2**63, whole=True, optional=optional)


def _anchor(value: str | None) -> str | None:
    if value is None:
        return None
    match = _ANCHOR.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise UsageError(
            f"anchor: expected the first 4 to 64 hexadecimal digits of its digest, with or without '{ANCHOR}', "
            f"got {value!r:.100}.",
            subject=value,
        )
    return ANCHOR + match[1]


@attrs.frozen(kw_only=True)
class Query:
    """Filters of a search; a version must match all of them.

    Attributes:
        pattern: Glob over whole names; ``*`` also matches ``/``.
        kind: Kind of the component.
        tags: Required tags with their values.
        model: Glob over the model of the blueprint.
        channels: Feature width of a port.
        label: Any name of a class; case, spaces and underscores are ignored.
        anchor: First hexadecimal digits of the digest of an anchor.
        parent: Manifest digest of a parent, or a reference to it.
        digest: Manifest digest, to find the names of a component.
        text: Words, all of which must occur in the title, description, model or tags (``key=value``); case is ignored.
        anywhere: Words, each of which must occur there or in the name.
        latest: Whether to return only the latest version of each name that is not withdrawn.
        withdrawn: Whether to return withdrawn versions too.
        limit: Maximum number of results; None for all.
        offset: Number of results to skip.
    """

    pattern: str | None = attrs.field(default=None, validator=_pattern)
    kind: str | None = attrs.field(default=None, validator=OneOf(KINDS, optional=True))
    tags: Mapping[str, str] = attrs.field(factory=dict, validator=_tags)
    model: str | None = attrs.field(default=None, validator=_text)
    channels: int | None = attrs.field(default=None, validator=_number(1, optional=True))
    label: str | None = attrs.field(default=None, validator=_text)
    anchor: str | None = attrs.field(default=None, converter=_anchor)
    parent: str | None = attrs.field(default=None, validator=_text)
    digest: str | None = attrs.field(default=None, validator=_text)
    text: str | None = attrs.field(default=None, validator=_words)
    anywhere: str | None = attrs.field(default=None, validator=_words)
    latest: bool = False
    withdrawn: bool = False
    limit: int | None = attrs.field(default=None, validator=_number(0, optional=True))
    offset: int = attrs.field(default=0, validator=_number(0))

    @property
    def words(self) -> list[str]:
        """Normalized words of ``text``."""
        return normalize_text(self.text or "").split()

"""Searching: what may be asked, and what is found."""

from __future__ import annotations

import re
from collections.abc import Mapping
from difflib import get_close_matches
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Any, NamedTuple

import attrs

from compatkit.contracts.contract import Kind
from compatkit.contracts.display import visible
from compatkit.errors import UsageError
from compatkit.registry.index.profiles import KINDS, Profile, searched, spelled

_ANCHOR = re.compile(r"(?:tensors:)?(?:sha256:)?([0-9a-f]{4,64})")
MOST = 100
"""Tags or words in one search."""
LONGEST = 1000
"""Characters of a filter."""
ANCHOR = "tensors:sha256:"
"""Before the hexadecimal digits of every anchor's digest."""


class Found(NamedTuple):  # made in a third of the time of an attrs class, hundreds at once
    """One version of one component, as far as it is searched for.

    Attributes:
        digest: Of the manifest; ``""`` where the version's file is damaged.
        bytes: Of the payload file.
        channels: Feature widths: of the outputs of an extractor, of the inputs of anything else.
        classes: Number of classes, None for a component without.
        anchors: Tensor digests that it was trained against.
        parents: Manifest digests by relation.
        withdrawn: Whether only its digest still finds it.
        error: Why nothing else is known; ``""`` for a sound one.
    """

    name: str
    version: str
    digest: str
    kind: Kind | str = ""
    builder: str = ""
    model: str = ""
    split: str = ""
    parameters: int = 0
    bytes: int = 0
    title: str = ""
    licence: str = ""
    classes: int | None = None
    tags: Mapping[str, str] = MappingProxyType({})
    channels: tuple[int, ...] = ()
    anchors: tuple[str, ...] = ()
    parents: tuple[tuple[str, str], ...] = ()
    withdrawn: bool = False
    error: str = ""

    def __str__(self) -> str:
        return f"{self.name}@{self.version}"

    def __repr__(self) -> str:
        said = f"{self.kind.replace('_', ' ')}, {self.model} @ {self.split}" if not self.error else "damaged"
        return f"Found({visible(str(self))!r}: {visible(said)}{', withdrawn' if self.withdrawn else ''})"

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values; of a damaged version, name, digest and error only."""
        place = {"name": self.name, "version": self.version, "digest": self.digest or None}
        if self.error:
            return {**place, "withdrawn": self.withdrawn, "error": self.error}
        facts = {field: value for field, value in self._asdict().items() if field not in (*place, "error")}
        lists = {
            "tags": dict(self.tags),
            "channels": list(self.channels),
            "anchors": list(self.anchors),
            "parents": [{"relation": relation, "component": digest} for relation, digest in self.parents],
        }
        return place | facts | lists


def _text(instance: object, field: attrs.Attribute[str | None], value: str | None) -> None:
    if value is not None and not _is_text(value):
        raise UsageError(f"{field.name}: expected text, got {value!r:.100}.", subject=value)
    if value is not None and len(value) > LONGEST:
        raise UsageError(
            f"{field.name}: expected at most {LONGEST} characters, got {len(value)}.", subject=value
        )


def _is_text(value: object) -> bool:
    return isinstance(value, str) and not any("\ud800" <= one <= "\udfff" for one in value)


def _pattern(instance: object, field: attrs.Attribute[str | None], value: str | None) -> None:
    _text(instance, field, value)
    if value is not None and ("@" in value or ":" in value):
        raise UsageError(
            f"a search looks for names: expected a glob such as 'digits/*.head', got {value!r}. Versions and aliases "
            "are no part of it; see --latest.",
            subject=value,
        )


def _kind(instance: object, field: attrs.Attribute[str | None], value: str | None) -> None:
    if value is not None and value not in KINDS:
        near = get_close_matches(str(value), KINDS, 1)
        hint = f"; perhaps {near[0]!r}" if near else ""
        raise UsageError(f"kind {value!r:.80} is not one of {', '.join(KINDS)}{hint}.", subject=value)


def _tags(instance: object, field: attrs.Attribute[Mapping[str, str]], value: Mapping[str, str]) -> None:
    fits = isinstance(value, Mapping) and all(key and _is_text(key) and _is_text(value[key]) for key in value)
    if not fits or len(value) > MOST:
        raise UsageError(
            f"tags are at most {MOST} texts by name, such as {{'domain': 'digits'}}; got {value!r:.200}."
        )


def _words(instance: object, field: attrs.Attribute[str | None], value: str | None) -> None:
    _text(instance, field, value)
    if value is not None and len(value.split()) > MOST:
        raise UsageError(
            f"{field.name}: expected at most {MOST} words, got {len(value.split())}.", subject=value
        )


def _whole(instance: object, field: attrs.Attribute[int | None], value: int | None) -> None:
    if value is not None:
        _offset(instance, field, value)


def _offset(instance: object, field: attrs.Attribute[Any], value: int) -> None:
    least = 1 if field.name == "channels" else 0
    if type(value) is not int or not least <= value < 2**63:
        raise UsageError(f"{field.name} is a whole number from {least}, got {value!r:.80}.", subject=value)


def _anchor(value: str | None) -> str | None:
    if value is None:
        return None
    match = _ANCHOR.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise UsageError(
            f"an anchor is given by the first 4 to 64 hexadecimal digits of its digest ('{ANCHOR}' in front or not), "
            f"got {value!r:.100}.",
            subject=value,
        )
    return ANCHOR + match[1]


@attrs.frozen(kw_only=True)
class Query:
    """What is searched for: every filter that is given must fit.

    Attributes:
        pattern: Glob over whole names; ``*`` also matches ``/``.
        tags: Every one must be there with this value.
        model: Glob over the blueprint's model.
        channels: One of the feature widths.
        label: A class, by any of its names; case, spaces and underscores make no difference.
        anchor: First hexadecimal digits of the digest of an anchor.
        parent: Manifest digest of a parent, or a reference to it.
        digest: Manifest digest, for the names that a component has.
        text: Words that all stand in the title, the description, the model or the tags (``key=value``), case makes no
            difference.
        anywhere: Words each of which stands there, or in the name.
        latest: Only the latest version of each name that is not withdrawn.
        withdrawn: Whether withdrawn versions are found too.
        limit: At most so many; None for all.
        offset: How many of the first are left out.
    """

    pattern: str | None = attrs.field(default=None, validator=_pattern)
    kind: str | None = attrs.field(default=None, validator=_kind)
    tags: Mapping[str, str] = attrs.field(factory=dict, validator=_tags)
    model: str | None = attrs.field(default=None, validator=_text)
    channels: int | None = attrs.field(default=None, validator=_whole)
    label: str | None = attrs.field(default=None, validator=_text)
    anchor: str | None = attrs.field(default=None, converter=_anchor)
    parent: str | None = attrs.field(default=None, validator=_text)
    digest: str | None = attrs.field(default=None, validator=_text)
    text: str | None = attrs.field(default=None, validator=_words)
    anywhere: str | None = attrs.field(default=None, validator=_words)
    latest: bool = False
    withdrawn: bool = False
    limit: int | None = attrs.field(default=None, validator=_whole)
    offset: int = attrs.field(default=0, validator=_offset)

    @property
    def words(self) -> list[str]:
        """The words of ``text`` as they are compared."""
        return searched(self.text or "").split()

    def fits(self, name: str, about: Profile, digest: str) -> bool:
        """Tell whether a version with these facts is one, whatever its number; the plain rule behind every index."""
        tests = (
            self.pattern is None or fnmatchcase(name, self.pattern),
            self.kind in (None, about.kind),
            self.tags.items() <= about.tags.items(),
            self.model is None or fnmatchcase(about.model, self.model),
            self.channels is None or self.channels in about.channels,
            self.label is None or any(spelled(self.label) in names for names in about.classes),
            self.anchor is None or any(one.startswith(self.anchor) for one in about.anchors),
            self.parent is None or any(one == self.parent for _, one in about.parents),
            self.digest in (None, digest),
            all(word in about.words for word in self.words),
            all(word in name or word in about.words for word in searched(self.anywhere or "").split()),
        )
        return all(tests)


def found(
    name: str, version: str, digest: str, about: Profile | None, *, withdrawn: bool, error: str = ""
) -> Found:
    """Return what is told of a version, from the facts of its manifest."""
    if about is None:
        return Found(name, version, digest, withdrawn=withdrawn, error=error)
    facts = (about.kind, about.builder, about.model, about.split, about.parameters, about.bytes, about.title)
    return Found(
        name,
        version,
        digest,
        *facts,
        licence=about.licence,
        classes=len(about.classes) or None,
        tags=about.tags,
        channels=about.channels,
        anchors=about.anchors,
        parents=about.parents,
        withdrawn=withdrawn,
    )

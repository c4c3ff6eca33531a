"""Search: queries, their SQL, and the results."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, get_args

import attrs

from compatkit.contracts.contract import Kind
from compatkit.contracts.contract_rules import casefolded
from compatkit.errors import UsageError
from compatkit.foundation.display import network_and_cut, visible
from compatkit.foundation.limits import Number, OneOf

KINDS: tuple[str, ...] = get_args(Kind)
_ANCHOR = re.compile(r"(?:tensors:)?(?:sha256:)?([0-9a-f]{4,64})")
MAX_TERMS = 100
"""Maximum number of tags, or of words, in one search."""
MAX_CHARACTERS = 1000
"""Maximum length of a filter."""
ANCHOR = "tensors:sha256:"
"""Prefix of the digest of an anchor."""
_COLUMNS = (
    "v.name, v.major || '.' || v.minor || '.' || v.patch, m.digest, m.kind, m.builder, m.model, m.cut, m.parameters,"
    " m.bytes, m.title, m.license, m.classes, m.lists, v.withdrawn"
)
_SORTED = " ORDER BY v.name, v.major, v.minor, v.patch LIMIT ? OFFSET ?"
Sql = tuple[str, tuple[Any, ...]]
"""Part of an SQL statement, and its values."""


class SearchResult(NamedTuple):  # created three times as fast as an attrs class
    """One version of a component, with its searchable properties.

    Attributes:
        name: Name of the component.
        version: Its version.
        digest: Digest of the manifest.
        kind: Kind of the component.
        builder: Library that builds it.
        model: Model that it is a part of.
        cut: Module after which the model was cut.
        parameters: Number of its parameters.
        bytes: Size of the payload file.
        title: Title in the manifest.
        license: License in the manifest.
        channels: Feature widths: of the outputs of an extractor, of the inputs of other kinds.
        classes: Number of classes, None for a component without classes.
        tags: Tags in the manifest.
        anchors: Tensor digests that it was trained against.
        parents: Relation and manifest digest of each parent.
        withdrawn: Whether the version was withdrawn: it is then found by its digest only.
    """

    name: str
    version: str
    digest: str
    kind: Kind | str = ""
    builder: str = ""
    model: str = ""
    cut: str = ""
    parameters: int = 0
    bytes: int = 0
    title: str = ""
    license: str = ""
    classes: int | None = None
    tags: Mapping[str, str] = MappingProxyType({})
    channels: tuple[int, ...] = ()
    anchors: tuple[str, ...] = ()
    parents: tuple[tuple[str, str], ...] = ()
    withdrawn: bool = False

    def __str__(self) -> str:
        return f"{self.name}@{self.version}"

    def __repr__(self) -> str:
        described = f"{self.kind.replace('_', ' ')}, {network_and_cut(self.model, self.cut)}"
        return f"SearchResult({visible(str(self))!r}: {visible(described)}{', withdrawn' if self.withdrawn else ''})"

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        return {
            **self._asdict(),
            "tags": dict(self.tags),
            "channels": list(self.channels),
            "anchors": list(self.anchors),
            "parents": [{"relation": relation, "component": digest} for relation, digest in self.parents],
        }


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


def search(connection: sqlite3.Connection, query: Query) -> list[SearchResult]:
    """Return the matching versions, sorted by name and version.

    Args:
        connection: Connection to the index.
        query: Filters.
    """
    matching, values = _matching(query)
    window = -1 if query.limit is None else query.limit, query.offset
    rows = connection.execute(f"SELECT {_COLUMNS} {matching}{_SORTED}", (*values, *window)).fetchall()
    return [_result(row) for row in rows]


def count(connection: sqlite3.Connection, query: Query) -> int:
    """Return the number of matching versions, ignoring limit and offset.

    Args:
        connection: Connection to the index.
        query: Filters.
    """
    matching, values = _matching(query)
    return connection.execute(f"SELECT count(*) {matching}", values).fetchone()[0]


def glob(column: str, pattern: str | None) -> Sql:
    """Return the SQL condition for a glob: SQLite's own GLOB, which is faster, where it is equivalent.

    Args:
        column: Column of the table.
        pattern: Glob with ``*``, ``?`` and ``[...]``; None for no condition.
    """
    if pattern is None:
        return "", ()
    if not pattern.isascii():  # names are ASCII; SQLite rejects half a surrogate pair
        return " AND 0", ()
    if "[" in pattern or "\0" in pattern:
        return f" AND fnmatch({column}, ?)", (pattern,)
    return f" AND {column} GLOB ?", (pattern,)


def normalize_name(name: str) -> str:
    """Normalize case, spaces, underscores and Unicode composition of a class name."""
    return " ".join(casefolded(name).replace("_", " ").split())


def normalize_text(text: str) -> str:
    """Normalize case and spaces of text for word search."""
    return " ".join(casefolded(text).split())


def _matching(query: Query) -> Sql:
    """Return FROM and WHERE clauses for versions ``v`` with manifests ``m``: by exact terms if any, else by name."""
    terms, values = _terms(query)
    if terms or query.digest is not None:
        sql = "FROM manifests m CROSS JOIN versions v ON v.manifest = m.id WHERE m.error IS NULL"
    else:
        sql = "FROM versions v CROSS JOIN manifests m ON m.id = v.manifest WHERE m.error IS NULL"
    sql += f" AND m.id IN ({terms})" if terms else ""
    sql += " AND v.latest" if query.latest else ""
    sql += "" if query.withdrawn else " AND NOT v.withdrawn"
    for column, pattern in (("v.name", query.pattern), ("m.model", query.model)):
        condition, more = glob(column, pattern)
        sql, values = sql + condition, values + more
    for column, value in (("m.digest", query.digest), ("m.kind", query.kind)):
        if value is not None:
            sql, values = f"{sql} AND {column} = ?", (*values, value)
    for word in normalize_text(query.anywhere or "").split():
        sql += " AND (instr(v.name, ?) > 0 OR instr(m.words, ?) > 0)"
        values += (word, word)
    return sql + " AND instr(m.words, ?) > 0" * len(query.words), (*values, *query.words)


def _terms(query: Query) -> Sql:
    """Return the statement that selects the manifests with every exact term; empty without such filters."""
    equal = "field = ? AND value = ?"
    terms: list[Sql] = [(equal, (f"tag:{key}", value)) for key, value in query.tags.items()]
    if query.channels is not None:
        terms.append((equal, ("channels", str(query.channels))))
    if query.parent is not None:
        terms.append((equal, ("parent", query.parent)))
    if query.anchor is not None:  # 'g' comes after every hexadecimal digit
        between = "field = ? AND value >= ? AND value < ?"
        terms.append((between, ("anchor", query.anchor, f"{query.anchor}g")))
    if query.label is not None:
        within = "field = ? AND value IN (SELECT list FROM classes WHERE name = ?)"
        terms.append((within, ("classes", normalize_name(query.label))))
    sql = " INTERSECT ".join(f"SELECT manifest FROM terms WHERE {condition}" for condition, _ in terms)
    return sql, tuple(value for _, values in terms for value in values)


def _result(row: tuple[Any, ...]) -> SearchResult:
    tags, channels, anchors, parents = json.loads(row[12])
    values = (*row[:12], tags, tuple(channels), tuple(anchors), tuple(map(tuple, parents)), bool(row[13]))
    return SearchResult._make(values)

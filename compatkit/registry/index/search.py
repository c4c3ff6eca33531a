"""Search: queries, their SQL, and the results."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from compatkit.contracts.kinds import Kind
from compatkit.foundation.display import network_and_cut, visible
from compatkit.foundation.spelling import normalize_name, normalize_text

if TYPE_CHECKING:
    from compatkit.registry.index.query import Query

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

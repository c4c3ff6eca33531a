"""Search: queries, their SQL, and the components found."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, get_args

import attrs

from compatkit.contracts.contract import Kind
from compatkit.contracts.contract_rules import folded
from compatkit.errors import UsageError, suggest
from compatkit.foundation.display import network_and_cut, visible
from compatkit.registry.index.tables import Unusable

KINDS: tuple[str, ...] = get_args(Kind)
_ANCHOR = re.compile(r"(?:tensors:)?(?:sha256:)?([0-9a-f]{4,64})")
MOST = 100
"""Tags or words in one search."""
LONGEST = 1000
"""Characters of a filter."""
ANCHOR = "tensors:sha256:"
"""Prefix of every anchor's digest."""
MANY = 1000
"""Manifests: if more fit, walking along the names finds the first versions sooner than sorting all that fit."""
STARS = 3
"""SQLite backtracks at every star of a glob; a pattern with more stars is matched by Python."""
SOUND = "v.manifest NOT NULL AND v.manifest NOT IN (SELECT id FROM manifests WHERE error IS NOT NULL)"
_COLUMNS = (
    "f.name, v.major, v.minor, v.patch, v.state, m.digest, m.kind, m.builder, m.model, m.split, m.parameters, m.bytes,"
    " m.title, m.licence, m.classes, m.more"
)
Sql = tuple[str, tuple[Any, ...]]
"""A part of a statement, and its values."""
_decode = json.JSONDecoder().raw_decode  # what json.loads does, without its preparations


class SearchResult(NamedTuple):  # made in a third of the time of an attrs class, hundreds at once
    """One version of one component, as far as it is searched for.

    Attributes:
        digest: Of the manifest.
        bytes: Of the payload file.
        channels: Feature widths: of the outputs of an extractor, of the inputs of anything else.
        classes: Number of classes, None for a component without.
        anchors: Tensor digests that it was trained against.
        parents: Manifest digests by relation.
        withdrawn: Whether only its digest still finds it.
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
    if value is not None and len(value) > LONGEST:
        raise UsageError(
            f"{field.name}: expected at most {LONGEST} characters, got {len(value)}.", subject=value
        )


def _is_text(value: object) -> bool:
    return isinstance(value, str) and not any("\ud800" <= character <= "\udfff" for character in value)


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
        hint = suggest(value, KINDS)
        raise UsageError(f"kind {value!r:.80} is not one of {', '.join(KINDS)}.{hint}", subject=value)


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
    """Filters of a search; a version must match all that are set.

    Attributes:
        pattern: Glob over whole names; ``*`` also matches ``/``.
        tags: Every one must be there with this value.
        model: Glob over the blueprint's model.
        channels: One of the feature widths.
        label: A class, by any of its names; case, spaces and underscores make no difference.
        anchor: First hexadecimal digits of the digest of an anchor.
        parent: Manifest digest of a parent, or a reference to it.
        digest: Manifest digest, to find the names of a component.
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


def search(connection: sqlite3.Connection, query: Query) -> list[SearchResult]:
    """Return the versions that fit, by name and rising version.

    Args:
        connection: To the index.
        query: What to look for.
    """
    of_names, names = _named(query)
    facts, fact_values = _facts(query)
    few = _few(connection, query)
    if few is None:
        along = "folders f CROSS JOIN versions v ON v.folder = f.id"
        terms, values = _each_term(query)
    else:
        along, terms, values = f"{_these(few)} CROSS JOIN folders f ON f.id = v.folder", "", ()
    sql = (
        f"SELECT {_COLUMNS} FROM {along} CROSS JOIN manifests m ON m.id = v.manifest"
        f" WHERE m.error IS NULL{_of_versions(query)}{of_names}{terms}{facts}"
        " ORDER BY f.name, v.major, v.minor, v.patch LIMIT ? OFFSET ?"
    )
    window = -1 if query.limit is None else query.limit, query.offset
    return [
        _found(row) for row in connection.execute(sql, (*names, *values, *fact_values, *window)).fetchall()
    ]


def count(connection: sqlite3.Connection, query: Query) -> int:
    """Return how many versions fit, ignoring limit and offset.

    Args:
        connection: To the index.
        query: What to look for.
    """
    of_names, names = _named(query)
    hits, values = _hits(query)
    along = "folders f CROSS JOIN versions v ON v.folder = f.id" if of_names else "versions v"
    fits = f"v.manifest IN ({hits})" if hits else SOUND
    sql = f"SELECT count(*) FROM {along} WHERE {fits}{_of_versions(query)}{of_names}"
    return connection.execute(sql, (*values, *names)).fetchone()[0]


def glob(column: str, pattern: str | None) -> Sql:
    """Return the SQL condition for a glob: SQLite's own GLOB, which is faster, where it means the same.

    Args:
        column: Of the table.
        pattern: With ``*``, ``?`` and ``[...]``; None for no condition.
    """
    if pattern is None:
        return "", ()
    if not pattern.isascii():  # no name is like that; half a surrogate pair would be no text to SQLite
        return " AND 0", ()
    if len(pattern) > LONGEST or "[" in pattern or "\0" in pattern or pattern.count("*") > STARS:
        return f" AND fnmatch({column}, ?)", (pattern,)
    return f" AND {column} GLOB ?", (pattern,)


def spelled(name: str) -> str:
    """Return a class name without differences in case, spaces, underscores and Unicode composition."""
    return " ".join(folded(name).replace("_", " ").split())


def searched(text: str) -> str:
    """Normalize text for a search for words."""
    return " ".join(folded(text).split())


def _of_versions(query: Query) -> str:
    latest = " AND v.latest" if query.latest else ""
    return latest + (" AND v.state < 2" if query.withdrawn else " AND v.state < 1")


def _named(query: Query) -> Sql:
    """Return the conditions on the name ``f.name`` of a version ``v``."""
    sql, values = glob("f.name", query.pattern)
    for word in searched(query.anywhere or "").split():
        sql += " AND (instr(f.name, ?) > 0 OR v.manifest IN (SELECT id FROM manifests WHERE instr(words, ?) > 0))"
        values += (word, word)
    return sql, values


def _few(connection: sqlite3.Connection, query: Query) -> list[int] | None:
    """Return the only manifests that can fit, if they are few; None if they are many, or not restricted."""
    hits, values = _with_terms(query)
    if not hits:
        hits, values = _hits(query)
    if not hits:
        return None
    rows = connection.execute(f"{hits} LIMIT {MANY}", values).fetchall()
    return [number for (number,) in rows] if len(rows) < MANY else None


def _these(manifests: list[int]) -> str:
    """Return the versions ``v`` of some manifests, as a table."""
    return f"(SELECT * FROM versions WHERE manifest IN ({', '.join(map(str, manifests))})) v"


def _hits(query: Query) -> Sql:
    """Return the statement that selects the manifests that fit; empty if nothing restricts them."""
    (within, values), (facts, fact_values) = _with_terms(query), _facts(query)
    if not facts:
        return within, values
    of_terms = f" AND m.id IN ({within})" if within else ""
    # of damaged manifests no kind is known
    return f"SELECT m.id FROM manifests m WHERE m.kind NOT NULL{of_terms}{facts}", values + fact_values


def _with_terms(query: Query) -> Sql:
    """Return the statement that selects the manifests that have every term; empty if no term is asked for."""
    terms = _terms(query)
    within = " INTERSECT ".join(f"SELECT manifest FROM terms WHERE {condition}" for condition, _ in terms)
    return within, tuple(value for _, values in terms for value in values)


def _each_term(query: Query) -> Sql:
    """Return the condition that a manifest ``m`` has every term, for a walk along all versions that may end early."""
    terms = _terms(query)
    each = (
        f" AND EXISTS (SELECT 1 FROM terms WHERE {condition} AND manifest = m.id)" for condition, _ in terms
    )
    return "".join(each), tuple(value for _, values in terms for value in values)


def _terms(query: Query) -> list[Sql]:
    """Return conditions on a row of ``terms`` that belongs to a manifest; each must hold of one of its rows."""
    equal = "field = ? AND value = ?"
    conditions: list[Sql] = [(equal, (f"tag:{key}", value)) for key, value in query.tags.items()]
    if query.channels is not None:
        conditions.append((equal, ("channels", str(query.channels))))
    if query.parent is not None:
        conditions.append((equal, ("parent", query.parent)))
    if query.anchor is not None:  # 'g' comes after every hexadecimal digit
        conditions.append(
            ("field = ? AND value >= ? AND value < ?", ("anchor", query.anchor, f"{query.anchor}g"))
        )
    if query.label is not None:
        within = "field = ? AND value IN (SELECT list FROM classes WHERE name = ?)"
        conditions.append((within, ("classes", spelled(query.label))))
    return conditions


def _facts(query: Query) -> Sql:
    """Return the conditions on the columns of a manifest ``m``."""
    sql, values = glob("m.model", query.model)
    for column, value in (("m.digest", query.digest), ("m.kind", query.kind)):
        if value is not None:
            sql, values = f"{sql} AND {column} = ?", (*values, value)
    return sql + " AND instr(m.words, ?) > 0" * len(query.words), (*values, *query.words)


def _found(row: tuple[Any, ...]) -> SearchResult:
    name, major, minor, patch, state, digest = row[:6]
    try:
        tags, channels, anchors, parents = _decode(row[15])[0]
    except (TypeError, ValueError) as problem:
        raise Unusable(f"{name} is not written as expected: {problem}", broken=True) from problem
    lists = tags, tuple(channels), tuple(anchors), tuple(map(tuple, parents))
    return SearchResult._make((name, f"{major}.{minor}.{patch}", digest, *row[6:15], *lists, state > 0))

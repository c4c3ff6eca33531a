"""Queries as SQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from compatkit.registry.index.folders import UNFINISHED, WITHDRAWN
from compatkit.registry.index.profiles import searched, spelled
from compatkit.registry.index.search import LONGEST, Query

STARS = 3
"""SQLite goes back for every star of a glob; a pattern with more is left to Python."""
SOUND = "v.manifest NOT NULL AND v.manifest NOT IN (SELECT id FROM manifests WHERE error IS NOT NULL)"


class Filter(NamedTuple):
    """A filter of manifests: as the set of those that fit, and as a question to a row ``m``."""

    hits: str
    of_row: str
    values: tuple[Any, ...]


def of_versions(query: Query) -> str:
    """Return the conditions of a query on versions."""
    latest = " AND v.latest" if query.latest else ""
    return latest + (f" AND v.state < {UNFINISHED}" if query.withdrawn else f" AND v.state < {WITHDRAWN}")


def glob(column: str, pattern: str | None) -> tuple[str, tuple[str, ...]]:
    """Return the condition that a glob matches; the one of SQLite where both mean the same, which is faster."""
    if pattern is None:
        return "", ()
    if not pattern.isascii():  # no name is like that; half a surrogate pair would be no text to SQLite
        return " AND 0", ()
    if len(pattern) > LONGEST or "[" in pattern or "\0" in pattern or pattern.count("*") > STARS:
        return f" AND fnmatch({column}, ?)", (pattern,)
    return f" AND {column} GLOB ?", (pattern,)


def named(query: Query) -> tuple[str, tuple[str, ...]]:
    """Return the conditions of a query on the name ``f.name`` of a version ``v``, and their values."""
    sql, values = glob("f.name", query.pattern)
    for word in searched(query.anywhere or "").split():
        sql += " AND (instr(f.name, ?) > 0 OR v.manifest IN (SELECT id FROM manifests WHERE instr(words, ?) > 0))"
        values += (word, word)
    return sql, values


def filters(query: Query) -> list[Filter]:
    """Return the filters that a query applies to manifests."""
    found = [_term("value = ?", f"tag:{key}", value) for key, value in query.tags.items()]
    if query.channels is not None:
        found.append(_term("value = ?", "channels", str(query.channels)))
    if query.parent is not None:
        found.append(_term("value = ?", "parent", query.parent))
    if query.digest is not None:
        found.append(
            Filter("SELECT id AS manifest FROM manifests WHERE digest = ?", "m.digest = ?", (query.digest,))
        )
    if query.anchor is not None:  # 'g' comes after every hexadecimal digit
        found.append(_term("value >= ? AND value < ?", "anchor", query.anchor, f"{query.anchor}g"))
    if query.label is not None:
        within = "value IN (SELECT list FROM classes WHERE name = ?)"
        found.append(_term(within, "classes", spelled(query.label)))
    model, models = glob("m.model", query.model)
    of = f"{' AND m.kind = ?' if query.kind else ''}{model}" + " AND instr(m.words, ?) > 0" * len(query.words)
    if of:
        given = ((query.kind,) if query.kind else ()) + models + tuple(query.words)
        sound = f"m.error IS NULL{of}"
        found.append(Filter(f"SELECT id AS manifest FROM manifests m WHERE {sound}", sound, given))
    return found


def _term(condition: str, field: str, *values: str) -> Filter:
    fits = f"manifest FROM terms WHERE field = ? AND {condition}"  # two anchors may begin alike
    return Filter(f"SELECT DISTINCT {fits}", f"EXISTS (SELECT {fits} AND manifest = m.id)", (field, *values))


def together(given: Sequence[Filter]) -> tuple[str, tuple[Any, ...]]:
    """Return the SQL of the manifests that pass all filters, and its values."""
    return " INTERSECT ".join(one.hits for one in given), tuple(
        value for one in given for value in one.values
    )

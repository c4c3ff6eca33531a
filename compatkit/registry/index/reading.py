"""Answers from the tables; what is about to be told is compared with its file first."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Any

import attrs

from compatkit.registry.index.evidence import Files
from compatkit.registry.index.folders import UNFINISHED, WITHDRAWN
from compatkit.registry.index.queries import SOUND, Filter, filters, glob, named, of_versions, together
from compatkit.registry.index.results import Results
from compatkit.registry.index.scanning import LINE_BYTES, Number, read_plain, stamp
from compatkit.registry.index.search import Found, Query
from compatkit.registry.index.tables import Tables, Unusable
from compatkit.registry.index.writing import Writer
from compatkit.registry.results import Result

MANY = 1000
"""Manifests: where more fit, walking along the names finds the first page sooner than sorting all that fit."""
FEW = 500
"""Manifests whose versions are sorted with all that is told of them."""
ROUNDS = 5
"""How often a page is asked for again because its files changed in the meantime."""
After = tuple[str, Number]

_COLUMNS = (
    "f.name, v.major, v.minor, v.patch, v.stamp, v.state, v.error, m.digest, m.error, m.kind, m.builder, m.model,"
    " m.split, m.parameters, m.bytes, m.title, m.licence, m.classes, m.more"
)
_ONE = (
    f"SELECT {_COLUMNS} FROM folders f CROSS JOIN versions v ON v.folder = f.id LEFT JOIN manifests m"
    " ON m.id = v.manifest WHERE f.name = ? AND v.major = ? AND v.minor = ? AND v.patch = ?"
)
Row = tuple[Any, ...]
_decode = json.JSONDecoder().raw_decode  # what json.loads does, without its preparations


@attrs.frozen(eq=False)
class Reader:
    """Asks the tables.

    Attributes:
        tables: Open, and refreshed as far as that is needed.
        writer: Reads again what turns out to be old.
        refs: Path of the folder of all names.
        measured: The tables of results.
    """

    tables: Tables
    writer: Writer
    refs: str = attrs.field(
        init=False, default=attrs.Factory(lambda self: f"{self.writer.references.root}/refs", takes_self=True)
    )
    measured: Results = attrs.field(
        init=False,
        default=attrs.Factory(
            lambda self: Results(self.tables.connection, Files(self.writer.references.root)), takes_self=True
        ),
    )

    def names(self, pattern: str | None) -> list[str]:
        """Return all names that have a version, sorted, or those that a glob matches."""
        fits, values = glob("name", pattern)
        sql = f"SELECT name FROM folders WHERE versions > 0{fits} ORDER BY name"
        return [name for (name,) in self.tables.connection.execute(sql, values).fetchall()]

    def find(self, name: str, number: Number) -> Found | None:
        """Return one version, compared with its files; None if there is none."""
        values = name, *number
        row = self.tables.connection.execute(_ONE, values).fetchone()
        if row is None:
            version = ".".join(map(str, number))
            if not os.path.lexists(f"{self.writer.references.folder(name)}/@versions/{version}"):
                return None
        elif self._holds(row) and self._is_withdrawn(row) == (row[5] == WITHDRAWN):
            return _found(row)
        self.writer.rescan([name])
        row = self.tables.connection.execute(_ONE, values).fetchone()
        return None if row is None else _found(row)

    def page(self, query: Query, after: After | None = None) -> list[Found]:
        """Return what fits, by name and rising version.

        Args:
            query: What is searched for.
            after: Name and version that were told last.
        """
        for _ in range(ROUNDS):
            rows = self._rows(query, after)
            old = {row[0] for row in rows if not self._holds(row)}
            if not old:
                return [_found(row) for row in rows]
            self.writer.rescan(sorted(old))
        return [_found(row) for row in self._rows(query, after) if self._holds(row)]

    def count(self, query: Query) -> int:
        """Return how many versions fit, as far as the tables know."""
        hits, values = together(filters(query))
        fits, names = named(query)
        along = "folders f CROSS JOIN versions v ON v.folder = f.id" if fits else "versions v"
        within = f"v.manifest IN ({hits})" if hits else SOUND
        sql = f"SELECT count(*) FROM {along} WHERE {within}{of_versions(query)}{fits}"
        return self.tables.connection.execute(sql, (*values, *names)).fetchone()[0]

    def roots(self) -> Iterator[tuple[str, str]]:
        """Yield every name with the digest of each manifest that a version of it points at."""
        yield from self.tables.connection.execute(
            "SELECT DISTINCT f.name, m.digest FROM versions v JOIN folders f ON f.id = v.folder"
            " JOIN manifests m ON m.id = v.manifest"
        ).fetchall()

    def edges(self) -> Iterator[tuple[str, str]]:
        """Yield every manifest's digest with each digest that must be kept with it."""
        yield from self.tables.connection.execute(
            "SELECT m.digest, e.digest FROM edges e JOIN manifests m ON m.id = e.manifest"
        ).fetchall()

    def referenced(self) -> set[str]:
        """Return the digests of all that any version keeps: its manifest, and along edges what those keep."""
        rows = self.tables.connection.execute(
            "WITH RECURSIVE kept (id) AS (SELECT DISTINCT manifest FROM versions WHERE manifest IS NOT NULL"
            " UNION SELECT m.id FROM kept CROSS JOIN edges e ON e.manifest = kept.id AND e.followed"
            " CROSS JOIN manifests m ON m.digest = e.digest)"
            " SELECT digest FROM kept CROSS JOIN manifests USING (id)"
            " UNION ALL SELECT e.digest FROM kept CROSS JOIN edges e ON e.manifest = kept.id"
        )
        return {digest for (digest,) in rows}

    def results(self, extractors: Sequence[str], heads: Sequence[str]) -> list[Result]:
        """Return what was measured of every extractor with every head, by function digest."""
        return self.measured.find(extractors, heads)

    def counts(self) -> dict[str, int]:
        """Return how many names, versions, manifests and damaged ones the tables hold."""
        sql = (
            f"SELECT (SELECT count(*) FROM folders WHERE versions > 0), (SELECT count(*) FROM versions WHERE state <"
            f" {UNFINISHED}), (SELECT count(*) FROM manifests WHERE kind NOT NULL OR error NOT NULL),"
            " (SELECT count(*) FROM manifests WHERE error IS NOT NULL)"
            " + (SELECT count(*) FROM versions WHERE error IS NOT NULL)"
        )
        numbers = self.tables.connection.execute(sql).fetchone()
        return dict(zip(("names", "versions", "manifests", "damaged"), numbers, strict=True))

    def is_current(self, path: str, mark: int, digest: str | None) -> bool:
        """Tell whether a version's file is still the one that was read."""
        try:
            if mark:
                return stamp(os.lstat(path)) == mark
            return read_plain(path, LINE_BYTES + 1)[1] == f"{digest}\n".encode()
        except OSError:
            return False

    def _holds(self, row: Row) -> bool:
        return self.is_current(f"{self.refs}/{row[0]}/@versions/{row[1]}.{row[2]}.{row[3]}", row[4], row[7])

    def _is_withdrawn(self, row: Row) -> bool:
        if row[5] == UNFINISHED:
            return False
        return os.path.lexists(f"{self.refs}/{row[0]}/@tombstones/{row[1]}.{row[2]}.{row[3]}")

    def _rows(self, query: Query, after: After | None) -> list[Row]:
        rest = of_versions(query)
        names, values = named(query)
        if after is not None:
            names += " AND (f.name, v.major, v.minor, v.patch) > (?, ?, ?, ?)"
            values += (after[0], *after[1])
        end = f"{rest}{names} ORDER BY f.name, v.major, v.minor, v.patch LIMIT ? OFFSET ?"
        values += (-1 if query.limit is None else query.limit, query.offset)
        passes = filters(query)
        hits = self._hits(passes) if passes else MANY
        if hits < MANY:
            wanted, given = together(passes)
            along = (
                f"({wanted}) h CROSS JOIN versions v ON v.manifest = h.manifest"
                " CROSS JOIN folders f ON f.id = v.folder"
            )
            sql = f"SELECT {_COLUMNS} FROM {along} CROSS JOIN manifests m ON m.id = h.manifest WHERE 1{end}"
            if hits > FEW:
                # first the keys alone: sorting whole rows to keep the first ones takes three times as long
                keys = f"SELECT f.name, v.folder, v.major, v.minor, v.patch FROM {along} WHERE 1{end}"
                sql = (
                    f"SELECT {_COLUMNS} FROM ({keys}) f CROSS JOIN versions v ON v.folder = f.folder"
                    " AND v.major = f.major AND v.minor = f.minor AND v.patch = f.patch"
                    " CROSS JOIN manifests m ON m.id = v.manifest"
                )
        else:
            fits = "".join(f" AND {one.of_row}" for one in passes)
            given = tuple(value for one in passes for value in one.values)
            sql = (
                f"SELECT {_COLUMNS} FROM folders f CROSS JOIN versions v ON v.folder = f.id CROSS JOIN manifests m"
                f" ON m.id = v.manifest WHERE m.error IS NULL{fits}{end}"
            )
        rows = self.tables.connection.execute(sql, (*given, *values)).fetchall()
        return sorted(rows, key=itemgetter(0, 1, 2, 3))

    def _hits(self, passes: Sequence[Filter]) -> int:
        """Return how many manifests pass, at most ``MANY``."""
        hits, values = together(passes)
        sql = f"SELECT count(*) FROM (SELECT 1 FROM ({hits}) LIMIT {MANY})"
        return self.tables.connection.execute(sql, values).fetchone()[0]


def _found(row: Row) -> Found:
    name, major, minor, patch, _, state, error, digest, manifest_error = row[:9]
    version = f"{major}.{minor}.{patch}"
    if error or manifest_error or state == UNFINISHED:
        problem = error or manifest_error or ""
        return Found(name, version, digest or "", withdrawn=state == WITHDRAWN, error=problem)
    try:
        tags, channels, anchors, parents = _decode(row[18])[0]
    except (TypeError, ValueError) as problem:
        raise Unusable(f"{name}@{version} is not written as expected: {problem}", broken=True) from problem
    lists = tags, tuple(channels), tuple(anchors), tuple(map(tuple, parents))
    return Found._make((name, version, digest, *row[9:18], *lists, state == WITHDRAWN, ""))

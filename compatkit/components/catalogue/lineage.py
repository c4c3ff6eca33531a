"""The lineage of a component as a graph in columns: its parents on the left, its children on the right."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import attrs

from compatkit.components.catalogue.snapshot import Snapshot
from compatkit.registry.index.search import SearchResult
from compatkit.reports.contracts import short_digest

GENERATIONS = 3
"""Columns on each side."""
MAX_COLUMN = 12
"""Maximum number of components in a column; the last place says how many more there are."""
Edge = tuple[str, str, str]
"""Digest of the parent, digest of the child, relation."""


@attrs.define(eq=False)
class _Walk:
    """One side of the graph, column by column."""

    snapshot: Snapshot
    columns: list[list[str]] = attrs.field(factory=list)
    edges: dict[Edge, None] = attrs.field(factory=dict)
    more: list[int] = attrs.field(factory=list)

    def run(self, start: str, seen: set[str], next_of: Callable[[str], Iterable[Edge]], end: int) -> None:
        """Add the next columns.

        Args:
            start: Digest of the component in the middle.
            seen: Digests that have a place; each gets one only.
            next_of: Returns the edges of a component to the next column.
            end: Place of the other end in an edge.
        """
        column = [start]
        for _ in range(GENERATIONS):
            edges = [edge for digest in column for edge in next_of(digest)]
            found = [digest for digest in dict.fromkeys(edge[end] for edge in edges) if digest not in seen]
            column = found if len(found) <= MAX_COLUMN else found[: MAX_COLUMN - 1]
            seen |= {*column}
            self.edges |= dict.fromkeys(edge for edge in edges if edge[end] in seen)
            if not column:
                break
            self.columns.append(column)
            self.more.append(len(found) - len(column))


def parents(snapshot: Snapshot, digest: str) -> Iterator[Edge]:
    """Yield the edges from the parents of a component."""
    for place in snapshot.places.get(digest, ())[:1]:
        for relation, parent in place.parents:
            yield parent, digest, relation


def children(snapshot: Snapshot, digest: str) -> Iterator[Edge]:
    """Yield the edges to the children of a component."""
    for relation, child in snapshot.children.get(digest, ()):
        yield digest, child.digest, relation


def graph(snapshot: Snapshot, version: SearchResult) -> dict[str, Any]:
    """Return the lineage of a component, with columns and rows for its drawing.

    Args:
        snapshot: The registry.
        version: The component.

    Returns:
        ``nodes``: label, kind, column, row, and address within the catalogue (empty if it has no name here);
        ``edges``: number of the parent, number of the child, relation. Parents are left of their children, unless
        both are reached by ways of different length.
    """
    seen, left, right = {version.digest}, _Walk(snapshot), _Walk(snapshot)
    left.run(version.digest, seen, lambda digest: parents(snapshot, digest), 0)
    right.run(version.digest, seen, lambda digest: children(snapshot, digest), 1)
    sides = [*zip(left.columns, left.more, strict=True)][::-1]
    sides += [([version.digest], 0), *zip(right.columns, right.more, strict=True)]
    nodes: list[tuple[str, str, int, int, str]] = []
    numbers: dict[str, int] = {}
    for column, (digests, more) in enumerate(sides):
        for row, digest in enumerate(digests):
            numbers[digest] = len(nodes)
            nodes.append((*_label(snapshot, digest, version), column, row, _address(snapshot, digest)))
        if more:
            nodes.append((f"and {more:,} more", "", column, len(digests), ""))
    edges = [
        (numbers[parent], numbers[child], relation.replace("_", " "))
        for parent, child, relation in {**left.edges, **right.edges}
        if parent in numbers and child in numbers
    ]
    return {"nodes": nodes, "edges": edges, "self": numbers[version.digest]}


def _label(snapshot: Snapshot, digest: str, own: SearchResult) -> tuple[str, str]:
    place = own if digest == own.digest else snapshot.place(digest)
    if place is None:
        return short_digest(digest), "not in this registry"
    return str(place), f"{place.kind.replace('_', ' ')}{', withdrawn' if place.withdrawn else ''}"


def _address(snapshot: Snapshot, digest: str) -> str:
    place = snapshot.place(digest)
    return "" if place is None else str(place)

"""Upper bounds of cells: which head gives the bound, and for which cells it is valid."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from compatkit.components.loading import PartLoader
from compatkit.contracts.evidence import Cell, without_bound
from compatkit.contracts.manifest import TRAINED_WITH
from compatkit.errors import IntegrityError, NotFound
from compatkit.evaluation.component import Component
from compatkit.evaluation.conditions import BOUND
from compatkit.evaluation.prospect import no_bound, unknown_classes
from compatkit.registry.names import Version


def bounds_of(
    parts: PartLoader, extractors: Sequence[Component], heads: Sequence[Component]
) -> dict[str, Component]:
    """Return the head that gives the upper bound of each extractor, by reference of the extractor.

    The first of ``heads`` that was trained with the extractor, else such a head of the registry: preferably the one
    with the matching name (``x.head`` for ``x.extractor``), else the first by name and version. Withdrawn heads do not
    count.

    Args:
        parts: Loader of the registry's components.
        extractors: Rows of the matrix.
        heads: Columns of the matrix.
    """
    bounds: dict[str, Component] = {}
    for extractor in extractors:
        own = next((head for head in heads if head.is_own(extractor)), None) or _registered_head(
            parts, extractor
        )
        if own is not None:
            bounds[extractor.reference] = own
    return bounds


def _registered_head(parts: PartLoader, extractor: Component) -> Component | None:
    references = parts.store.references
    released = (references.digest(extractor.name, version) for version in references.versions(extractor.name))
    same = (
        digest
        for digest in released
        if digest is not None and parts.function_of(digest) == extractor.function
    )
    own_name = f"{extractor.name.removesuffix('.extractor')}.head"
    hits = [
        hit
        for digest in sorted({extractor.digest, *same})
        for hit in parts.store.index.search(parent=digest, kind="head")
        if (TRAINED_WITH, digest) in hit.parents
    ]
    for hit in sorted(hits, key=lambda hit: (hit.name != own_name, hit.name, Version.parse(hit.version))):
        try:
            return parts.component(parts.store.resolve(f"{hit.name}@{hit.version}"))
        except (NotFound, IntegrityError):
            continue  # deleted since the index was updated, or damaged
    return None


@attrs.frozen(eq=False)
class OwnHead:
    """The head that gives the upper bound of an extractor, applied to recorded cells.

    The bound is valid only if the head knows all common classes of a cell. Old records contain invalid bounds; their
    counts suffice to grade the cell again without one.

    Attributes:
        head: Head that was trained with the extractor.
    """

    head: Component
    _known: dict[int, tuple[Sequence[str], Sequence[str]]] = attrs.field(init=False, factory=dict)

    def checked(self, cell: Cell) -> Cell:
        """Return a recorded cell, without its bound if this head gave it but does not know all its classes."""
        if cell.settings[BOUND] != self.head.function:
            return cell
        common = cell.common
        if id(common) not in self._known:  # shared by cells; stored, so that its id is not reused
            self._known[id(common)] = common, unknown_classes(self.head.labels, common)
        unknown = self._known[id(common)][1]
        if not unknown:
            return cell
        return attrs.evolve(
            without_bound(cell), findings=(*cell.findings, no_bound(self.head.reference, unknown))
        )

"""Upper bounds of cells: the head that gives them, and whether they are one for the classes of a cell."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from compatkit.components.loading import PartLoader
from compatkit.contracts.evidence import Cell, without_bound
from compatkit.contracts.manifest import TRAINED
from compatkit.errors import IntegrityError, NotFound
from compatkit.evaluation.component import Component
from compatkit.evaluation.conditions import BOUND
from compatkit.evaluation.prospect import no_bound, unknown_classes
from compatkit.registry.names import Version


def bounds_of(
    parts: PartLoader, extractors: Sequence[Component], heads: Sequence[Component]
) -> dict[str, Component]:
    """Return the head that gives the upper bound of each extractor, by reference of the extractor.

    It is the first of ``heads`` that was trained with the extractor, else one of the registry: the one beside it by
    name, else the first name and lowest version. Withdrawn ones do not count.

    Args:
        parts: Components of the registry.
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
    beside = f"{extractor.name.removesuffix('.extractor')}.head"
    hits = [
        hit
        for digest in sorted({extractor.digest, *same})
        for hit in parts.store.index.search(parent=digest, kind="head")
        if (TRAINED, digest) in hit.parents
    ]
    for hit in sorted(hits, key=lambda hit: (hit.name != beside, hit.name, Version.parse(hit.version))):
        try:
            return parts.component(parts.store.resolve(f"{hit.name}@{hit.version}"))
        except (NotFound, IntegrityError):
            continue  # deleted since the index was updated, or damaged
    return None


@attrs.frozen(eq=False)
class OwnHead:
    """The head that gives the upper bound of an extractor, applied to recorded cells.

    A bound over classes that it does not know is none; before this was ruled out, such bounds were recorded. The counts
    of a record suffice to grade it again.

    Attributes:
        head: The head.
    """

    head: Component
    _known: dict[int, tuple[Sequence[str], Sequence[str]]] = attrs.field(init=False, factory=dict)

    def judge(self, cell: Cell) -> Cell:
        """Return a recorded cell, without a bound if this head gave it and does not know all its classes."""
        if cell.settings[BOUND] != self.head.function:
            return cell
        common = cell.common
        if id(common) not in self._known:  # shared by cells; kept, so that its identity is not reused
            self._known[id(common)] = common, unknown_classes(self.head.labels, common)
        unknown = self._known[id(common)][1]
        if not unknown:
            return cell
        return attrs.evolve(
            without_bound(cell), findings=(*cell.findings, no_bound(self.head.reference, unknown))
        )

"""Kept results of pairs, by the functions of their parts."""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Mapping, Sequence

import attrs

from compatkit.contracts.evidence import Cell
from compatkit.contracts.manifest import TRAINED_WITH
from compatkit.errors import FormatError
from compatkit.evaluation.records import Cells, is_accuracy
from compatkit.registry.evidence import UnsignedEvidence
from compatkit.registry.index.search import SearchResult
from compatkit.registry.store import Store


@attrs.frozen
class KeptResult:
    """A measured pair.

    Attributes:
        extractor: Function digest of the extractor.
        head: Function digest of the head.
        digest: Digest of the document.
        cell: Figures and settings; its references are the function digests.
    """

    extractor: str
    head: str
    digest: str
    cell: Cell

    def partner(self, function: str) -> str:
        """Return the function digest of the other part."""
        return self.head if function == self.extractor else self.extractor


@attrs.frozen(eq=False)
class KeptResults:
    """All kept results of a registry, newest first.

    Attributes:
        by_extractor: Results by function digest of the extractor.
        by_head: Results by function digest of the head.
        newest: Newest result by function digests of extractor and head.
        damaged: Number of results that cannot be read.
    """

    by_extractor: Mapping[str, Sequence[KeptResult]]
    by_head: Mapping[str, Sequence[KeptResult]]
    newest: Mapping[tuple[str, str], KeptResult]
    damaged: int

    def of(self, function: str) -> Sequence[KeptResult]:
        """Return the results of a part with all partners."""
        return [*self.by_extractor.get(function, ()), *self.by_head.get(function, ())]

    def __len__(self) -> int:
        return sum(map(len, self.by_extractor.values()))


def kept_results(store: Store, by_function: Mapping[str, Sequence[SearchResult]]) -> KeptResults:
    """Return the kept results of a registry whose extractor has a name in it.

    Args:
        store: The registry; if it requires signatures, results without one do not count.
        by_function: Its versions by function digest.
    """
    by_extractor = defaultdict[str, list[KeptResult]](list)
    by_head = defaultdict[str, list[KeptResult]](list)
    newest = dict[tuple[str, str], KeptResult]()
    cells, damaged = Cells(), 0
    digests = {function: {one.digest for one in every} for function, every in by_function.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UnsignedEvidence)
        for extractor in sorted(store.evidence.extractors()):
            heads = sorted(store.evidence.partners(extractor))
            for result in filter(is_accuracy, reversed(store.evidence.results([extractor], heads))):
                own = any(
                    relation == TRAINED_WITH and parent in digests.get(extractor, ())
                    for version in by_function.get(result.head, ())
                    for relation, parent in version.parents
                )
                try:
                    cell = cells.of(result, extractor, result.head, own=own)
                except FormatError:
                    damaged += 1
                    continue
                kept = KeptResult(extractor, result.head, result.digest, cell)
                newest.setdefault((extractor, result.head), kept)
                by_extractor[extractor].append(kept)
                by_head[result.head].append(kept)
    return KeptResults(dict(by_extractor), dict(by_head), newest, damaged)

"""What there is: names, manifests, what fits a search, what a pattern means, how two parts compare."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import attrs

from compatkit.components.loading import pinned
from compatkit.components.pairs import check_pair, check_pairs
from compatkit.contracts.check import Report
from compatkit.contracts.manifest import Manifest
from compatkit.errors import UsageError
from compatkit.registry.names import Reference
from compatkit.registry.store import Store
from compatkit.registry.versions.differences import Difference, diff

if TYPE_CHECKING:
    from compatkit.contracts.contract import Data
    from compatkit.reports.listing import Listing
    from compatkit.reports.verdicts import Verdicts


class Finding:
    """What a registry tells without reading weights.

    Attributes:
        store: The files; it stores and finds, and knows no network.
    """

    store: Store

    def manifest(self, reference: str) -> Manifest:
        """Return the manifest that a reference points at; reads no weights."""
        return self.store.manifest(reference)

    def names(self, pattern: str | None = None) -> list[str]:
        """Return component names, sorted; ``pattern`` is a glob over whole names."""
        return self.store.names(pattern)

    def search(self, words: str | None = None, **filters: Any) -> Listing:
        """Return the components that fit all filters, by name and rising version; reads no manifests.

        Args:
            words: Each of them stands in name, title, description, network or tags, such as ``"digits resnet"``; case
                makes no difference.
            filters: ``pattern`` (glob over names), ``kind``, ``tags`` (a mapping), ``model`` (glob), ``channels``,
                ``label`` (a class), ``anchor``, ``parent``, ``text``, ``latest``, ``withdrawn``, ``limit``, ``offset``:
                see ``compatkit.registry.index.search.Query``.

        Returns:
            A list of ``Found`` that shows itself as a table.

        Raises:
            UsageError: A filter is unknown, or not usable as given.
        """
        from compatkit.reports.listing import Listing

        return Listing(self.store.index.search(anywhere=words, **filters))

    def select(self, patterns: str | Sequence[str], kind: str) -> list[Reference]:
        """Return what patterns mean, each component once; reads no weights.

        Args:
            patterns: Such as ``"digits/*.head@^1"``.
            kind: What all matches must be: ``"extractor"``, ``"head"``, ``"auxiliary_head"``, ...

        Raises:
            NotFound: A pattern matches nothing.
            UsageError: A match is of another kind.
        """
        wanted = [patterns] if isinstance(patterns, str) else list(patterns)
        found: dict[str, Reference] = {}
        for reference in (one for pattern in wanted for one in self.store.select(pattern)):
            found.setdefault(str(reference.digest), reference)
        for reference in found.values():
            came = self.store.manifest(reference).kind
            if came != kind:
                raise UsageError(
                    f"{pinned(reference)} is of kind {came}, where {kind} is expected; narrow the pattern "
                    f"{', '.join(wanted)}."
                )
        return list(found.values())

    def check(self, extractor: str, head: str, *, data: Data | None = None) -> Report:
        """Compare the contracts of an extractor and a head, and what was measured of them; reads no weights."""
        return check_pair(self.store, self.store.resolve(extractor), self.store.resolve(head), data=data)

    def check_all(
        self, extractors: str | Sequence[str], heads: str | Sequence[str], *, data: Data | None = None
    ) -> Verdicts:
        """Compare every extractor's contract with every head's, and what was measured; reads no weights.

        Args:
            extractors: Pattern, or patterns, such as ``"digits/*"``; what is no extractor is passed over.
            heads: The same for heads.
            data: Classes that the pairs are meant for; None leaves classes out of the check.

        Raises:
            NotFound: A pattern matches no extractor, or no head.
            UsageError: A reference that is no pattern is no extractor, or no head.
            DataError: Two classes of the data, or of a head, have one name, or one means the same as two of the
                other side.
        """
        lefts, rights = ([one] if isinstance(one, str) else one for one in (extractors, heads))
        return check_pairs(self.store, lefts, rights, data=data)

    def diff(self, old: str, new: str, *, tensors: bool = False) -> Difference:
        """Return what changed between two components, level by level, and the least step that it demands.

        Args:
            old: Reference of the version before; of any name and kind.
            new: Reference of what follows it.
            tensors: Compare the weights too, tensor by tensor; else no weights are read.

        Raises:
            NotFound: Nothing has that name or version.
            IntegrityError: A manifest, or a payload that is compared, is missing or damaged.
        """
        before, after = self.store.manifest(old), self.store.manifest(new)
        found = diff(before, after)
        if not tensors:
            return found
        from compatkit.registry.versions.tensors import tensor_changes

        states = self.store.load_state(before), self.store.load_state(after)
        return attrs.evolve(found, tensors=tensor_changes(*states))

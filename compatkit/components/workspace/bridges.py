"""Bridges of many pairs, and those that are published."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import attrs

from compatkit.contracts.arguments import named
from compatkit.registry.store import Store

if TYPE_CHECKING:
    from compatkit.components.bridges.climbing import Progress
    from compatkit.components.bridges.recorded import BridgeRecord
    from compatkit.components.bridges.results import Bridge
    from compatkit.data.dataset import Split


@named
@attrs.frozen(eq=False)
class Bridges:
    """Bridges between the parts of a registry; ``Registry.bridge`` builds one.

    Attributes:
        store: The files.
    """

    store: Store

    def of(self, extractor: str, head: str) -> list[BridgeRecord]:
        """Return the published bridges between two parts, with how they were judged; reads no weights.

        Args:
            extractor: Reference of an extractor.
            head: Reference of the head that was bridged; a refitted one counts as a bridge of the one it was.

        Raises:
            NotFound: Nothing has that name or version.
        """
        from compatkit.components.bridges.recorded import recorded

        return list(recorded(self.store, self.store.resolve(extractor), self.store.resolve(head)))

    def between(
        self,
        extractors: str | Sequence[str],
        heads: str | Sequence[str],
        data: Mapping[str, Split],
        rung: str,
        *,
        tests: Mapping[str, Split] | None = None,
        images: int = 1000,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> dict[tuple[str, str], Bridge]:
        """Bridge every pair of parts that were not trained together, for ``matrix(..., bridges=...)``.

        A pair for which it cannot be built is left out, with a warning that says why.

        Args:
            extractors: Pattern, or patterns.
            heads: Pattern, or patterns.
            data: Images of each extractor's domain, by its name; labels are not read.
            rung: One that is an adapter: ``"permutation"``, ``"procrustes"``, ``"ridge"``, ``"ridge-procrustes"``,
                ``"ridge3x3"`` or ``"stitch"``; or ``"best"``, which climbs all of these in closed form and takes
                the one that agrees most.
            tests: Labelled images to measure every rung on, by the extractor's name.
            images: As for ``bridge``.
            seed: As for ``bridge``.
            progress: Called with pairs done, pairs in all, and the pair.

        Returns:
            By the pinned references of extractor and head.

        Raises:
            UsageError: The rung is none, changes the head or needs labels.
            DataError: An extractor has no images, or too few.
        """
        from compatkit.components.bridges.assembling import between

        lefts, rights = (
            self.store.select(extractors, "extractor"),
            self.store.select(heads, "head"),
        )
        return between(
            self.store,
            lefts,
            rights,
            data,
            rung,
            tests=tests or {},
            images=images,
            seed=seed,
            progress=progress,
        )

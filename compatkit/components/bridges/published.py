"""Published bridges of a registry, and new bridges for many pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING

import attrs

from compatkit.components.bridges.ladder import (
    BEST,
    BEST_OF,
    LABELED,
    WITHOUT_ADAPTER,
    chosen_rungs,
)
from compatkit.components.bridges.pairs import BridgedPairs, Pair, names_of_pairs, not_inserting
from compatkit.components.bridges.records import BridgeRecord, recorded
from compatkit.components.bridges.sets import bridge_pairs
from compatkit.components.loading import PartLoader
from compatkit.errors import DataError, UsageError, type_of
from compatkit.foundation.arguments import checks_arguments
from compatkit.plugins.launching import Launcher
from compatkit.registry.second_names import check_kind
from compatkit.registry.store import Store

if TYPE_CHECKING:
    from compatkit.components.bridges.ladder import Bridge
    from compatkit.data.dataset import Split
    from compatkit.evaluation.component import Component
    from compatkit.evaluation.conditions import Progress


@checks_arguments
@attrs.frozen(eq=False)
class Bridges:
    """Bridges between the parts of a registry; ``Registry.bridge`` builds one.

    Attributes:
        store: Store of the registry.
    """

    store: Store

    def of(self, extractor: str, head: str) -> list[BridgeRecord]:
        """Return the published bridges between two parts with their judgments; reads no weights.

        Args:
            extractor: Reference of an extractor.
            head: Reference of the original head; a refitted head counts as a bridge of its origin.

        Raises:
            NotFound: A reference does not resolve.
        """
        return list(recorded(self.store, self.store.resolve(extractor), self.store.resolve(head)))

    def between(
        self,
        extractors: str | Sequence[str],
        heads: str | Sequence[str],
        data: Mapping[str, Split],
        rung: str,
        *,
        tests: Mapping[str, Split] | None = None,
        max_images: int = 1000,
        seed: int = 0,
        progress: Progress | None = None,
        record: bool = True,
        publish: str | None = None,
        accept_doubtful: bool = False,
        workers: int | None = None,
        launcher: str = "auto",
        cluster: str | None = None,
    ) -> BridgedPairs:
        """Bridge every pair of parts that were not trained together, for ``matrix(..., bridges=...)``.

        Each bridge is kept in the registry when it is made, and the next call with the same parts, images and settings
        takes it from there. Pairs whose bridge cannot be built are left out with a warning.

        Args:
            extractors: Pattern, or patterns.
            heads: Pattern, or patterns.
            data: Images of each extractor's domain, by name or pinned reference; labels are ignored.
            rung: A rung that inserts an adapter: ``"permutation"``, ``"procrustes"``, ``"ridge"``,
                ``"ridge-procrustes"``, ``"ridge3x3"``, ``"stitch"`` or a plugin's; or ``"best"``, which tries all of
                these in closed form and takes the one with the highest agreement.
            tests: Labeled images to measure every rung on, with the same keys.
            max_images: As for ``bridge``.
            seed: As for ``bridge``.
            progress: Called with pairs done, pairs in all, and the pair.
            record: Whether kept bridges are taken, and new ones kept.
            publish: Publish each bridge whose verdict is ``fit`` when it is made, as ``publish/EXTRACTOR--HEAD`` with
                the names of the parts without ``.extractor`` and ``.head``, and with dots for slashes.
            accept_doubtful: Publish bridges of every verdict.
            workers: Number of processes that bridge a pair each at a time; None for this process alone.
            launcher: As for ``matrix``. A pair that kills its process twice, or whose parts are damaged, is left out
                with a warning.
            cluster: As for ``matrix``.

        Returns:
            Bridges by pinned references of extractor and head, and why other pairs have none.

        Raises:
            NotFound: A pattern matches nothing.
            UsageError: The rung is unknown, changes the head or needs labels; workers are asked for and the registry is
                a remote; two pairs would be published under one name, or a name is of another kind.
            DataError: An extractor has no images, or too few.
            EnvironmentFailure: A worker does not see the registry, or a bridge cannot be published.
        """
        from compatkit.components.bridges.inputs import BridgeRequest
        from compatkit.components.bridges.keeping import settings_of
        from compatkit.components.bridges.publishing import check_names
        from compatkit.components.bridges.publishing import publish as publish_bridge
        from compatkit.components.bridges.splits import split_held_out
        from compatkit.components.projecting import own_extractor
        from compatkit.components.workers.carrying import check_shared

        launch = Launcher(launcher, workers, cluster)
        if not isinstance(data, Mapping):
            raise UsageError(f"data= expects a mapping from extractor name to images, got {type_of(data)}.")
        rungs = _rungs(rung)
        parts = PartLoader(self.store)
        owns: dict[str, Component] = {}
        lefts, rights = (
            [parts.component(reference) for reference in self.store.select(patterns, kind)]
            for patterns, kind in ((extractors, "extractor"), (heads, "head"))
        )
        pairs = list[Pair]()
        for left, right in product(lefts, rights):
            if right.is_own(left):
                continue
            if (images := _images_of(left, data)) is None:
                raise DataError(
                    f"{left.name} has no images to fit a bridge on; images were given for {', '.join(data)}."
                )
            test, notes = _tests_of(right, _images_of(left, tests or {}))
            request = BridgeRequest(
                data=images, test=test, rungs=rungs, until=None, max_images=max_images, seed=seed
            )
            pairs.append(Pair(left, right, request, settings_of(request, right), notes))
        for split in {id(pair.request.data): pair.request.data for pair in pairs}.values():
            split_held_out(split, max_images, seed)  # raises if there are too few
        names = {} if publish is None else names_of_pairs(publish, pairs)
        for name in names.values():
            check_names(self.store, name)
            for suffix, kind in (("", "recombination"), (".adapter", "adapter")):
                check_kind(self.store, f"{name}{suffix}", kind)
        if not launch.here:
            check_shared(self.store, {part.reference: part for part in (*lefts, *rights)}.values())

        def own(head: Component) -> Component:
            if head.reference not in owns:
                owns[head.reference] = own_extractor(self.store, head)
            return owns[head.reference]

        def publish_one(pair: Pair, bridge: Bridge) -> str | None:
            if publish is None or not (bridge.says == "fit" or accept_doubtful):
                return None
            name = names[pair.references]
            published = publish_bridge(self.store, name, bridge, accept_doubtful=accept_doubtful)
            return str(published["recombination"])

        every = len(lefts) * len(rights)
        return bridge_pairs(self.store, pairs, own, rung, record, launch, publish_one, progress, every)


def _rungs(rung: str) -> Sequence[str]:
    """Return the rungs to try for a rung or ``"best"``, after refusing those that insert no adapter."""
    if rung in LABELED:
        raise UsageError(
            f"The rung {rung} needs labels, which are not used here. Use a rung that inserts an adapter without "
            f"them, such as ridge, or {BEST}.",
            subject=rung,
        )
    if rung in WITHOUT_ADAPTER:
        raise not_inserting(rung)
    return BEST_OF if rung == BEST else chosen_rungs([rung], False)


def _images_of(extractor: Component, images: Mapping[str, Split]) -> Split | None:
    return images.get(extractor.reference, images.get(extractor.name))


def _tests_of(head: Component, test: Split | None) -> tuple[Split | None, tuple[str, ...]]:
    """Return the test images if the head knows one of their classes; else None and a note."""
    from compatkit.components.bridges.judging import has_known_class

    if test is None or has_known_class(test, head):
        return test, ()
    return None, (
        f"No accuracy is measured: {test.name} holds no image of a class that {head.reference} knows.",
    )

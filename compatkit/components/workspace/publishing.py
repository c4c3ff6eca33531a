"""Publish what was trained, put together or made elsewhere, by its type."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import attrs

from compatkit.components import promises
from compatkit.components.bridges.keeping import publish as publish_bridge
from compatkit.components.bridges.keeping import references
from compatkit.components.bridges.results import Bridge
from compatkit.components.domains import Adapted
from compatkit.components.loading import pinned
from compatkit.components.recombinations import publish_recombination
from compatkit.components.releasing import Release
from compatkit.components.seams import publish_adapter
from compatkit.contracts.arguments import named
from compatkit.contracts.manifest import About, Manifest
from compatkit.errors import UsageError
from compatkit.evaluation.adapter import Adapter
from compatkit.evaluation.recombination import Recombination
from compatkit.registry.names import check_name
from compatkit.registry.store import Store
from compatkit.training.fit import Fit

if TYPE_CHECKING:
    from torch import Tensor

    from compatkit.components.outcomes import Outcome
    from compatkit.components.promises import Given, Progress


def publish(store: Store, what: Any, *name: str, **settings: Any) -> Any:
    """Publish by type; see ``Registry.publish``."""
    ways = Publish(store)
    known: Mapping[type, Callable[..., Any]] = {
        Fit: ways.fit,
        Adapted: ways.adapted,
        Recombination: ways.recombination,
        Adapter: ways.adapter,
        Bridge: ways.bridge,
        Manifest: ways.manifest,
    }
    for kind, way in known.items():
        if isinstance(what, kind):
            return way(what, *name, **settings)
    raise UsageError(
        "Only what Trainer.fit, adapt, recombine or bridge returned, an adapter or a manifest is published, "
        f"got {what!r:.80}.",
        subject=what,
    )


@named
@attrs.frozen
class Publish:
    """What is done with each type, and which settings it takes.

    Attributes:
        store: Where components go.
    """

    store: Store

    def fit(
        self,
        fit: Fit,
        *,
        prefix: str,
        version: str | None = None,
        major: bool = False,
        about: About | None = None,
        data: Given = (),
        progress: Progress | None = None,
        dry_run: bool = False,
    ) -> dict[str, str] | dict[str, Outcome]:
        """Publish the parts of a fit below ``prefix``."""
        release = Release.of(
            self.store,
            fit,
            lambda key: f"{prefix}/{key}",
            about=about,
            version=version,
            major=major,
            data=data,
            progress=progress,
        )
        return release.rehearse() if dry_run else references(release.publish())

    def adapted(
        self,
        adapted: Adapted,
        name: str,
        *,
        version: str | None = None,
        major: bool = False,
        about: About | None = None,
        data: Given = (),
        progress: Progress | None = None,
    ) -> str:
        """Publish an adapted extractor; its head is the source's, as it was."""
        check_name(name)
        release = Release.of(
            self.store,
            adapted.fit,
            lambda key: name,
            about=about,
            version=version,
            major=major,
            data=data,
            progress=progress,
        )
        (reference,) = release.publish().values()
        return pinned(reference)

    def recombination(
        self,
        recombination: Recombination,
        name: str,
        *,
        version: str | None = None,
        about: About | None = None,
    ) -> str:
        """Publish a recombination, which pins its parts by digest."""
        return pinned(publish_recombination(self.store, name, recombination, version=version, about=about))

    def adapter(
        self, adapter: Adapter, name: str, *, version: str | None = None, about: About | None = None
    ) -> str:
        """Publish an adapter."""
        check_name(name)
        return pinned(publish_adapter(self.store, name, adapter, version=version, about=about))

    def bridge(
        self, bridge: Bridge, name: str, *, rung: str | None = None, about: About | None = None
    ) -> dict[str, str]:
        """Publish the adapter or the refitted head of a bridge, and the recombination that pins all parts."""
        check_name(name)
        return references(publish_bridge(self.store, name, bridge, rung, about))

    def manifest(
        self,
        manifest: Manifest,
        name: str,
        *,
        state: Mapping[str, Tensor],
        version: str | None = None,
        major: bool = False,
        data: Given = (),
        progress: Progress | None = None,
    ) -> str:
        """Publish a component that was not trained here, once its contract is proved by its module."""
        check_name(name)
        return pinned(
            promises.register(
                self.store,
                name,
                manifest,
                state,
                version=version,
                major=major,
                data=data,
                progress=progress,
            )
        )

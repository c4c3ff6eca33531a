"""Parts that were never trained to fit: the ladder of bridges between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from compatkit.components.loading import load
from compatkit.components.workspace.finding import Finding
from compatkit.contracts.manifest import About
from compatkit.errors import IncompatibleError
from compatkit.registry.names import check_name

if TYPE_CHECKING:
    from compatkit.components.bridges.climbing import Progress
    from compatkit.components.bridges.recorded import BridgeRecord
    from compatkit.components.bridges.results import Bridge
    from compatkit.data.dataset import Split


class Bridging(Finding):
    """Bridges between parts."""

    def bridge(
        self,
        extractor: str,
        head: str,
        data: Split,
        *,
        labels: Split | None = None,
        test: Split | None = None,
        head_data: Split | None = None,
        rungs: Sequence[str] | None = None,
        until: float | None = 0.8,
        images: int = 1000,
        on: Literal["src", "dst", "mix"] | None = None,
        seed: int = 0,
        progress: Progress | None = None,
    ) -> Bridge:
        """Bring a head to an extractor that it was not trained with, from the cheapest way to the dearest.

        Every rung is judged by its agreement: on how many held-out images it says what the head's own network says,
        whose statistics of batch normalisation are estimated on images of this domain too. What chance gives is taken
        off (Cohen's kappa). No label is needed. Behind each rung the head's statistics are estimated anew.

        Args:
            extractor: Reference of an extractor.
            head: Reference of a head; the extractor that it was trained with must be in this registry.
            data: Images of the extractor's domain, whose labels are not read; up to 500, or half of them, are held out.
            labels: Labelled images of that domain, for the rungs that are trained with labels. One of five is not
                trained on, nor are those held out of ``data``: by these such a rung is chosen, and judged.
            test: Labelled images to measure accuracy on; nothing is chosen by them.
            head_data: Images of the head's domain, to pair features on; labels are not read.
            rungs: Of ``compatkit.components.bridges.rungs.RUNGS``; None takes all but ``"infomax"``, and those that
                need labels only where there are some.
            until: Agreement from which no further rung is climbed, if the bridge also fits; None climbs all.
            images: How many to fit on at most.
            on: Where features are paired: ``"src"``, on ``data``; ``"dst"``, on ``head_data``; ``"mix"``, on both.
                None takes ``"dst"`` where ``head_data`` is given.
            seed: Of orders and draws.
            progress: Called with rungs done, rungs in all, and the rung's name.

        Raises:
            IncompatibleError: The parts cannot be wired, the head's own extractor is not here, or no rung could be
                climbed; says why.
            DataError: Too few images, features that are not finite or do not change, no class in common.
            UsageError: A setting is not usable as given.
        """
        from compatkit.components.bridges.assembling import Wish, bridge

        wish = Wish(
            data=data,
            labels=labels,
            test=test,
            head_data=head_data,
            rungs=rungs,
            until=until,
            images=images,
            on=on if on is not None else "src" if head_data is None else "dst",
            seed=seed,
            progress=progress,
        )
        report = self.check(extractor, head)
        if report.wiring == "refused":
            raise IncompatibleError(str(report), subject=report)
        left, right = (load(self.store, self.store.resolve(one)) for one in (extractor, head))
        return bridge(self.store, left, right, report, wish)

    def bridges_between(
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

        lefts, rights = self.select(extractors, "extractor"), self.select(heads, "head")
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

    def bridges_of(self, extractor: str, head: str) -> list[BridgeRecord]:
        """Return the published bridges between two parts, with how they were judged; reads no weights.

        Args:
            extractor: Reference of an extractor.
            head: Reference of the head that was bridged; a refitted one counts as a bridge of the one it was.

        Raises:
            NotFound: Nothing has that name or version.
        """
        from compatkit.components.bridges.recorded import recorded

        return list(recorded(self.store, self.store.resolve(extractor), self.store.resolve(head)))

    def publish_bridge(
        self, name: str, bridge: Bridge, *, rung: str | None = None, about: About | None = None
    ) -> dict[str, str]:
        """Keep a bridge: the fitted adapter or the refitted head, and the recombination that pins all parts.

        The recombination records under ``training["bridge"]`` by which rung it is bridged and how well that does.

        Args:
            name: Of the recombination, such as ``"digits/mnist-usps"``; the adapter becomes ``<name>.adapter``, the
                head ``<name>.head``.
            bridge: From ``bridge``.
            rung: None takes the chosen one.
            about: Title, description, tags, licence and source.

        Returns:
            Pinned references by ``"adapter"``, ``"head"`` and ``"recombination"``, of what there is.

        Raises:
            UsageError: The rung was not climbed, or was left out.
            IntegrityError: A part is not in this registry.
            EnvironmentFailure: Disk full, no right to write.
        """
        from compatkit.components.bridges.keeping import publish, references

        check_name(name)
        return references(publish(self.store, name, bridge, rung, about))

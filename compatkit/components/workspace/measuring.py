"""What was measured, and heads to train against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from compatkit.components.loading import load
from compatkit.components.workspace.finding import Finding
from compatkit.contracts.batchnorm import DEFAULT, under_old_name
from compatkit.errors import UsageError

if TYPE_CHECKING:
    from compatkit.components.bridges.results import Bridge
    from compatkit.components.matrices.where import Where
    from compatkit.components.promises import Progress
    from compatkit.data.dataset import Split
    from compatkit.evaluation.matrix import Adapters, LoadedPart
    from compatkit.reports.matrix import Matrix
    from compatkit.training.state import AuxiliaryHead, ReleasedExtractor


class Measuring(Finding):
    """Figures of pairs, and heads for training."""

    def matrix(
        self,
        extractors: str | Sequence[str],
        heads: str | Sequence[str],
        data: Sequence[Split] | Mapping[str, Split] | None = None,
        *,
        bn_policy: str = DEFAULT,
        batch_size: int = 256,
        seed: int = 0,
        precision: str = "float32",
        device: str = "cpu",
        fill: str = "missing",
        where: str | Sequence[str] = (),
        adapters: Adapters | None = None,
        bridges: Mapping[tuple[str, str], Bridge] | None = None,
        progress: Progress | None = None,
        record: bool = True,
        normalisation: str | None = None,
    ) -> Matrix:
        """Return what every extractor with every head reaches, on the extractor's own test set.

        Evidence comes first: a cell is taken where a result is kept under exactly the conditions asked for, and no
        weight is read for it. What is missing is measured, each extractor running once over its images with the heads
        that are wanted, and kept as soon as the extractor is done. ``settings["cells"]`` of the matrix says how many
        cells were taken and how many measured.

        Args:
            extractors: Pattern, or patterns, such as ``"digits/*.extractor"``; what is of another kind is passed over.
            heads: Pattern, or patterns.
            data: Test sets; an extractor takes the one of the data set it was trained on (by the name before
                the slash: ``mnist/train`` and ``mnist/test``), or a mapping from extractor pattern to test set. None
                finds them again: where they lay when the extractor was published on this machine, else by name; with
                ``fill="none"``, the images that it was last measured on.
            bn_policy: ``"batch"`` (as in the paper), ``"reestimate"``, ``"mix:16"`` or ``"running"``.
            batch_size: Images in a batch; part of the result unless under ``"running"``.
            seed: Of the order of the images, part of the result unless under ``"running"``.
            precision: ``"float32"``, or ``"bfloat16"`` (``"bf16"``) by autocast.
            device: Where to run, if anything runs; ``"auto"`` takes an accelerator where there is one.
            fill: ``"missing"`` measures what nothing is known of, ``"stale"`` also what changed since (another version
                of the metric, other images of the same name, another head that gives the bound), ``"all"`` everything
                anew, with a warning where figures differ from those kept under the same key, ``"none"`` nothing.
            where: Filters ``FIELD=VALUE`` of components and cells, all of which must fit: see
                ``compatkit.components.matrices.where``.
            adapters: ``Recombination.inserted`` by the pinned references of extractor and head, for pairs that are
                to be measured with adapters between; kept under a key of their own, never as evidence of the pair.
            bridges: From ``bridges_between``: their adapters, and what each rung gave among the findings of the cell.
                Under ``"batch"`` or ``"reestimate"``, where the head has batch normalisation.
            progress: Called with done, total and what is being done.
            record: Keep the figures in the registry as evidence, for ``check`` to read.
            normalisation: The old name of ``bn_policy``.

        Raises:
            NotFound: A pattern matches nothing, or nothing fits the filters.
            UsageError: A setting, a filter or a bridge is not usable as given; a reference that is no pattern is of
                another kind.
            DataError: An extractor has no test set among ``data``, or more than one; its own cannot be found again.
        """
        from compatkit.components.matrices.filling import Request, answer, check_fill
        from compatkit.components.matrices.where import parse
        from compatkit.evaluation.conditions import Conditions

        policy = under_old_name(bn_policy, normalisation)
        stand = {} if bridges is None else _standing(bridges, policy)
        between = {pair: steps for pair, steps in {**(adapters or {}), **stand}.items() if steps}
        filters = parse(where)
        if data is None and check_fill(fill) != "none":
            data = self._tests(extractors, filters)
        request = Request(
            extractors=extractors,
            heads=heads,
            data=data,
            conditions=Conditions(policy, batch_size, seed, precision, device),
            where=filters,
            fill=check_fill(fill),
            adapters=between,
            record=record,
            progress=progress,
        )
        matrix = answer(self.store, request)
        if not bridges:
            return matrix
        notes = {pair: one.lines() for pair, one in bridges.items()}
        return matrix.with_ladders(notes, {pair: one.ladder() for pair, one in bridges.items()})

    def auxiliary_heads(self, pattern: str | Sequence[str]) -> dict[str, AuxiliaryHead]:
        """Return shared heads to train new parts against: ``Trainer.fit(..., frozen=...)``.

        Raises:
            NotFound: The pattern matches nothing.
            UsageError: A match is no auxiliary head.
        """
        from compatkit.training.networks import parameters_digest
        from compatkit.training.state import AuxiliaryHead

        found: dict[str, AuxiliaryHead] = {}
        for part in self._select(pattern, "auxiliary_head"):
            name = part.reference.split("@")[0].rsplit(".", 1)[-1]
            if name in found:
                raise UsageError(
                    f"{', '.join([pattern] if isinstance(pattern, str) else pattern)} means several heads {name!r}, "
                    f"{part.reference} among them; a run takes one. Narrow the pattern."
                )
            labels = part.manifest.contract.data.labels
            found[name] = AuxiliaryHead(
                name,
                part.manifest.blueprint,
                part.module,
                labels,
                frozen=True,
                digest=parameters_digest(part.module),
                origin=part.digest,
                initials=tuple(part.manifest.training.get("initial", ())),
            )
        return found

    def released(
        self, head: str | None = None, extractor: str | None = None
    ) -> dict[str, AuxiliaryHead | ReleasedExtractor]:
        """Return released parts that new ones are to stay compatible with: ``Trainer.fit(..., frozen=...)``.

        Args:
            head: Reference of a target head, for ``backward_compatibility``.
            extractor: Reference of an extractor, for its forward term and for ``feature_distillation``.

        Raises:
            NotFound: Nothing has that name or version.
            UsageError: A reference is of another kind, the head's classes have no names, or none is given.
            IntegrityError: A part is damaged.
        """
        from compatkit.training.state import EXTRACTOR, HEAD, AuxiliaryHead, ReleasedExtractor

        if head is None and extractor is None:
            raise UsageError(
                "released expects the reference of a head, of an extractor, or of both; got none."
            )
        found: dict[str, AuxiliaryHead | ReleasedExtractor] = {}
        if head is not None:
            (part,) = self._select(str(self.store.resolve(head)), "head")
            manifest, labels = part.manifest, part.manifest.contract.data.labels
            if not labels:
                raise UsageError(
                    f"{part.reference} does not say what its outputs mean, so that no image is known to be of one of "
                    "its classes. Publish it with labels (compatkit split --labels).",
                    subject=part.reference,
                )
            found[HEAD] = AuxiliaryHead(
                HEAD,
                manifest.blueprint,
                part.module,
                labels,
                frozen=True,
                digest=manifest.payload.tensors,
                origin=part.digest,
                initials=tuple(manifest.training.get("initial", ())),
            )
        if extractor is not None:
            (part,) = self._select(str(self.store.resolve(extractor)), "extractor")
            manifest = part.manifest
            found[EXTRACTOR] = ReleasedExtractor(
                manifest.blueprint,
                part.module,
                manifest.contract.data,
                manifest.payload.tensors,
                part.reference,
            )
        return found

    def frozen(
        self, *, heads: str | Sequence[str] = (), head: str | None = None, extractor: str | None = None
    ) -> dict[str, AuxiliaryHead | ReleasedExtractor]:
        """Return everything that a run is trained against: auxiliary heads, and released parts.

        Args:
            heads: See ``auxiliary_heads``.
            head: See ``released``.
            extractor: See ``released``.

        Raises:
            CompatkitError: As ``auxiliary_heads`` and ``released`` do.
        """
        found: dict[str, AuxiliaryHead | ReleasedExtractor] = {}
        if heads:
            found |= self.auxiliary_heads(heads)
        if head is not None or extractor is not None:
            found |= self.released(head, extractor)
        return found

    def _tests(self, extractors: str | Sequence[str], where: Where) -> dict[str, Split]:
        from compatkit.components.matrices.sides import Sides
        from compatkit.components.workspace.images import OR_SET, images_again

        places = [one.place for one in Sides(self.store).choose(extractors, "extractor", where)]
        found = images_again(self.store, places, f"Pass data=, {OR_SET}")
        return {name: data.test for name, data in found.items()}

    def _select(self, patterns: str | Sequence[str], kind: str) -> list[LoadedPart]:
        return [load(self.store, reference) for reference in self.select(patterns, kind)]


def _standing(bridges: Mapping[tuple[str, str], Bridge], normalisation: str) -> Adapters:
    """Return the adapters of bridges; a matrix without any is asked for without torch."""
    from compatkit.components.bridges.celled import inserted

    return inserted(bridges, normalisation)

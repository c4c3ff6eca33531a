"""What a registry holds: names and components, how they compare, and what pairs of them reach."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from compatkit.components.pairs import check_pair, check_pairs
from compatkit.contracts.batchnorm import DEFAULT, under_old_name
from compatkit.contracts.check import Report
from compatkit.contracts.display import LINES, Shown
from compatkit.errors import CompatkitError, InvalidName, NotFound
from compatkit.registry.store import Store
from compatkit.registry.versions.diff import Difference, diff

if TYPE_CHECKING:
    from compatkit.components.bridges.results import Bridge
    from compatkit.components.matrices.where import Where
    from compatkit.components.promises import Progress
    from compatkit.contracts.contract import Data
    from compatkit.data.dataset import Split
    from compatkit.evaluation.matrix import Adapters
    from compatkit.reports.listing import Listing
    from compatkit.reports.matrix import Matrix
    from compatkit.reports.verdicts import Verdicts


class Finding(Shown):
    """Names to components, as a mapping, and questions about them.

    Attributes:
        store: The files; it stores and finds, and knows no network.
    """

    store: Store

    def __iter__(self) -> Iterator[str]:
        """Yield the names that have a version which is not withdrawn, sorted; damaged components are passed over."""
        return (one.name for one in self.store.index.search(latest=True))

    def __len__(self) -> int:
        """Return how many names ``iter`` yields."""
        return self.store.index.count(latest=True)

    def __contains__(self, reference: object) -> bool:
        """Tell whether a reference leads to a component: a name, with a version, range or alias if need be."""
        try:
            return isinstance(reference, str) and bool(self.store.resolve(reference))
        except (NotFound, InvalidName):
            return False

    def names(self, pattern: str | None = None) -> list[str]:
        """Return component names, sorted; ``pattern`` is a glob over whole names."""
        return self.store.names(pattern)

    def versions(self, name: str) -> list[str]:
        """Return the versions of a name, rising, without withdrawn ones.

        Raises:
            NotFound: No such name.
        """
        return [str(one) for one in self.store.versions(name)]

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
            bridges: From ``bridges.between``: their adapters, and what each rung gave among the findings of the cell.
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

    def _tests(self, extractors: str | Sequence[str], where: Where) -> dict[str, Split]:
        from compatkit.components.matrices.sides import Sides
        from compatkit.components.workspace.images import OR_SET, images_again

        places = [one.place for one in Sides(self.store).choose(extractors, "extractor", where)]
        found = images_again(self.store, places, f"Pass data=, {OR_SET}")
        return {name: data.test for name, data in found.items()}

    def _told(self) -> str:
        """Return where it is and what is in it: the first names with their latest versions."""
        where = f"Registry({str(self.store.root)!r})"
        try:
            count = len(self)
            shown = self.search(latest=True, limit=LINES - 10)
        except CompatkitError as error:  # a value that cannot be read is still shown
            return f"{where}: {error}"
        more = [f"... and {count - len(shown):,} more names"] if count > len(shown) else []
        return "\n".join(
            [f"{where}: {count:,} component{'' if count == 1 else 's'}", *str(shown).split("\n"), *more]
        )


def _standing(bridges: Mapping[tuple[str, str], Bridge], normalisation: str) -> Adapters:
    """Return the adapters of bridges; a matrix without any is asked for without torch."""
    from compatkit.components.bridges.celled import inserted

    return inserted(bridges, normalisation)

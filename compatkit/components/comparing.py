"""Registry methods that compare components: check contracts, measure a matrix, rank extractors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from compatkit.components.loading import PartLoader
from compatkit.components.pairs import check_pair, check_pairs
from compatkit.contracts.batchnorm import DEFAULT
from compatkit.contracts.check import Report
from compatkit.errors import UsageError, type_of
from compatkit.foundation.arguments import texts_of
from compatkit.foundation.limits import COUNT, SEED, Number
from compatkit.registry.store import Store

if TYPE_CHECKING:
    from compatkit.components.bridges.ladder import Bridge
    from compatkit.components.ranking import Ranking
    from compatkit.contracts.check import Classes
    from compatkit.data.dataset import DataSet, Split
    from compatkit.evaluation.conditions import Progress
    from compatkit.evaluation.matrix import Adapters
    from compatkit.reports.matrix import Matrix
    from compatkit.reports.verdicts import Verdicts


class Comparing:
    """Registry methods that compare components.

    Attributes:
        store: Files of the registry.
    """

    store: Store

    def check(
        self, extractor: str, head: str, *, data: Classes | None = None, bn_policy: str = DEFAULT
    ) -> Report:
        """Compare the contracts of an extractor and a head, including evidence; reads no weights.

        Args:
            extractor: Reference of an extractor.
            head: Reference of a head.
            data: Classes that the pair is meant for; None skips the comparison of classes.
            bn_policy: Batch-norm policy that the pair is meant to run under, as in ``matrix``. Only figures under it
                count as evidence; others are only reported.

        Raises:
            NotFound: A reference does not resolve.
            UsageError: ``extractor`` or ``head`` has another kind, or the policy is unknown.
        """
        parts = PartLoader(self.store)
        left, right = (parts.component(self.store.resolve(reference)) for reference in (extractor, head))
        return check_pair(self.store, left, right, data=data, bn_policy=bn_policy)

    def check_all(
        self,
        extractors: str | Sequence[str],
        heads: str | Sequence[str],
        *,
        data: Classes | None = None,
        bn_policy: str = DEFAULT,
    ) -> Verdicts:
        """Compare every extractor's contract with every head's, including evidence; reads no weights.

        Args:
            extractors: Pattern, or patterns, such as ``"digits/*"``; other kinds are skipped.
            heads: Pattern, or patterns, of heads.
            data: Classes that the pairs are meant for; None skips the comparison of classes.
            bn_policy: As for ``check``.

        Raises:
            NotFound: A pattern matches no extractor, or no head.
            UsageError: A reference that is not a pattern has another kind, or the policy is unknown.
            DataError: Two classes of the data, or of a head, have the same name, or one matches two of the other
                side.
        """
        return check_pairs(self.store, extractors, heads, data=data, bn_policy=bn_policy)

    def rank(
        self,
        extractors: str | Sequence[str],
        data: DataSet | Split,
        *,
        scores: Sequence[str] | None = None,
        examples: int = 1000,
        controls: bool = False,
        seed: int = 0,
        batch_size: int = 256,
        device: str = "cpu",
        sources: Callable[[str], DataSet] | None = None,
        progress: Progress | None = None,
    ) -> Ranking:
        """Score extractors for a data set before any training.

        Each extractor runs once over a sample of the target's training images, with its stored statistics; its own head
        runs on the features. Accuracy on the target's test images is read from evidence, for heads trained on the
        extractor's features and for extractors initialized from it.

        Args:
            extractors: Pattern, or patterns.
            data: Target data; the training split of a data set is scored.
            scores: Names of metrics, whose first figure is the score; None for all that compatkit brings. A metric with
                a setting ``source`` gets images, labels and class names of the extractor's own training data; one with
                ``mean`` and ``std``, too, gets all images as bytes, and these to normalize them with.
            examples: Maximum number of examples, balanced over classes.
            controls: Also score extractors with Gaussian weights of equal norms.
            seed: Seed of the sample and the controls.
            batch_size: Images per pass.
            device: Device to run on.
            sources: Returns the training data set of an extractor by its reference; None loads it as ``matrix`` does.
            progress: Called with done, total and the extractor.

        Raises:
            NotFound: A pattern matches nothing.
            UnknownName: A score is not installed.
            UsageError: ``data`` is not a data set or split; ``scores`` is empty; or a number is too small.
        """
        from compatkit.components.matrices.bounds import bounds_of
        from compatkit.components.ranking import ExtractorScore, Ranking, agreements_of
        from compatkit.components.scoring import SCORES, Origins, measured_on, score
        from compatkit.data.dataset import DataSet, Split
        from compatkit.plugins.discovery import find

        if not isinstance(data, DataSet | Split):
            raise UsageError(
                f"data= expects a data set or a split with labels; got {type_of(data)}.", subject=data
            )
        Number(least=2, whole=True).check("rank", examples=examples)
        COUNT.check("rank", batch_size=batch_size)
        SEED.check("rank", seed=seed)
        names = SCORES
        if scores is not None:
            names = texts_of(scores, "scores", "the name of a score, such as 'logme'")
        if not names:
            raise UsageError(f"Name at least one score, such as {', '.join(SCORES)}.", subject="scores")
        metrics = {name: find("metrics", name) for name in names}
        train, tests = (data.train, data.test) if isinstance(data, DataSet) else (data, data)
        sample = train if len(train) <= examples else train.subset(examples, seed)
        parts = PartLoader(self.store)
        chosen = [parts.component(reference) for reference in self.store.select(extractors, "extractor")]
        heads = bounds_of(parts, chosen, [])
        rows, passes, origins = (
            list[ExtractorScore](),
            dict[str, float](),
            Origins(self.store, sample, sources, seed),
        )
        for number, part in enumerate(chosen):
            if progress is not None:
                progress(number, len(chosen), part.reference)
            head = heads.get(part.reference)
            scored, passes[part.reference] = score(
                part, head, metrics, origins, controls, seed, batch_size, device
            )
            rows += scored
        if progress is not None:
            progress(len(chosen), len(chosen), "")
        best = {part.reference: measured_on(self.store, parts, part, tests) for part in chosen}
        measured = {name: figure for name, figure in best.items() if figure is not None}
        order = list(metrics)
        rows.sort(key=lambda row: (order.index(row.score), row.goodness is None, -(row.goodness or 0.0)))
        return Ranking(
            data=train.name,
            examples=len(sample),
            rows=tuple(rows),
            measured=measured,
            agreements=agreements_of(order, rows, measured),
            passes=passes,
        )

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
        channels_last: bool = False,
        fill: str = "missing",
        where: str | Sequence[str] = (),
        adapters: Adapters | None = None,
        bridges: Mapping[tuple[str, str], Bridge] | None = None,
        progress: Progress | None = None,
        record: bool = True,
        workers: int | None = None,
        launcher: str = "auto",
        cluster: str | None = None,
        metrics: Sequence[str] | Mapping[str, Mapping[str, Any]] = (),
    ) -> Matrix:
        """Return the accuracy of every extractor with every head, on the extractor's own test set.

        A cell comes from evidence, without reading weights, if there is a result under these very conditions. Missing
        cells are measured: each extractor runs once over its images with the requested heads, then its results are
        recorded. ``settings["cells"]`` of the matrix counts cells from evidence and measured ones.

        Args:
            extractors: Pattern, or patterns, such as ``"digits/*.extractor"``; other kinds are skipped.
            heads: Pattern, or patterns.
            data: Test sets, of which each extractor uses that of its training data set (matched by the name before the
                slash: ``mnist/train`` and ``mnist/test``); or a mapping from extractor pattern to test set. None loads
                them from where they were when the extractor was published on this machine, else by name; with
                ``fill="none"`` cells are those of the images of the last measurement.
            bn_policy: ``"batch"`` (as in the paper), ``"reestimate"``, ``"mix:16"`` or ``"running"``.
            batch_size: Images per batch; part of the conditions except under ``"running"``.
            seed: Seed of the order of the images; part of the conditions except under ``"running"``.
            precision: ``"float32"``, or ``"bfloat16"`` (``"bf16"``) with autocast.
            device: Device to run on; ``"auto"`` for an accelerator if there is one.
            channels_last: Images and weights of convolutions as NHWC in memory, which is faster for many networks and
                slower for wide layers on small maps. Figures are equal but for rounding; no part of the conditions.
            fill: ``"missing"`` measures cells without a result; ``"stale"`` also cells whose metric version, images of
                the same name or upper-bound head changed since; ``"all"`` measures everything and warns if figures
                differ from recorded ones under the same key; ``"none"`` measures nothing.
            where: Filters ``FIELD=VALUE`` of cells, all of which must match; see
                ``compatkit.components.matrices.filters``.
            adapters: ``Recombination.inserted`` by pinned references of extractor and head, for pairs to be measured
                with adapters; recorded under a separate key, never as evidence of the bare pair.
            bridges: Result of ``bridges.between``: their adapters are used, and cells list the results of the rungs.
                For heads with batch normalization only under ``"batch"`` or ``"reestimate"``.
            progress: Called with done, total and a description.
            record: Record the figures as evidence, for ``check`` to read.
            workers: Number of processes that measure rows, or blocks of rows, at a time; None for this process alone.
            launcher: ``"process"`` (on this machine), ``"ray"`` (on a cluster), ``"sequential"`` or a plugin's;
                ``"auto"``: ``ray`` if ``cluster`` is given, processes if ``workers`` is. A cell that kills its process
                twice, or cannot be measured, stays missing with the reason, and a warning.
            cluster: Address of a cluster, such as ``"ray://head:10001"``; all of its machines must see the registry
                at the same path.
            metrics: Names of metric plugins, or their settings by name: ``{"accuracy": {"top": 5}}``. Each measures the
                recombined network of a cell on the images of the common classes, in the pass of the accuracy; those
                that compare two networks get the extractor with its own head. ``Cell.metrics`` has their figures,
                which are evidence like the accuracy. One that fails for a pair leaves the reason there, and a warning.

        Raises:
            UnknownName: A metric does not exist.
            PluginError: A plugin of a metric is broken, or a setting is invalid.
            NotFound: A pattern matches nothing.
            UsageError: A setting, a filter or a bridge is invalid; a metric needs layers, which pairs do not share; a
                reference that is not a pattern has another kind.
            EnvironmentFailure: A worker does not see the registry.
            DataError: ``data`` contains no test set for an extractor, or several; or its own cannot be loaded.
        """
        from compatkit.components.bridges.ladder import inserted
        from compatkit.components.matrices.filling import matrix
        from compatkit.evaluation.conditions import Conditions
        from compatkit.plugins.launching import Launcher

        if not isinstance(adapters, Mapping | None):
            raise UsageError(
                f"adapters= expects adapters by the pinned references of extractor and head; got {type_of(adapters)}.",
                subject=adapters,
            )
        between = {**(adapters or {}), **({} if bridges is None else inserted(bridges, bn_policy))}
        between = {pair: chain for pair, chain in between.items() if chain}
        conditions = Conditions(bn_policy, batch_size, seed, precision, device, channels_last)
        launch = Launcher(launcher, workers, cluster)
        result = matrix(
            self.store,
            extractors,
            heads,
            data,
            conditions,
            where,
            fill,
            between,
            record,
            progress,
            launch,
            metrics,
        )
        if not bridges:
            return result
        notes = {pair: bridge.lines() for pair, bridge in bridges.items()}
        return result.with_ladders(notes, {pair: bridge.ladder() for pair, bridge in bridges.items()})

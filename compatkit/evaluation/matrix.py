"""The compatibility matrix: every extractor with every head, each extractor run once over its images.

Source: Gygli, Uijlings, Ferrari (2021), "Towards Reusable Network Components by Learning Compatible
Representations": n_ab(x) = h_b(f_a(x)) on the test images of a (Sec. 3 and 4), with the unrecombined
network n_aa as upper bound and batch statistics at test time (App. C.1).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor, nn

from compatkit.contracts.contract import Data
from compatkit.contracts.evidence import Cell, figure, grade, paired_interval_of_counts, recovered
from compatkit.contracts.metric_figures import MetricFigure
from compatkit.data.dataset import Split
from compatkit.errors import DataError
from compatkit.evaluation.adapter import Adapter
from compatkit.evaluation.assembly import Assembly
from compatkit.evaluation.batchnorm import has_batch_norm
from compatkit.evaluation.component import Component
from compatkit.evaluation.conditions import Conditions, ImageFacts, Progress, Settings
from compatkit.evaluation.extractor_pass import EvaluatedHead, evaluate_heads
from compatkit.evaluation.pair_metrics import Meter, PairMetric, labels_of, subject_of
from compatkit.evaluation.preprocessing import Prepared, prepare
from compatkit.evaluation.prospect import BROKEN, Prospect, no_bound, notes_of, prospect, unknown_classes
from compatkit.evaluation.recombination import joined_contract
from compatkit.evaluation.tally import Tally, chance_level

Adapters = Mapping[tuple[str, str], Sequence[Adapter]]
"""Adapters by (extractor, head) reference."""
Metrics = Mapping[tuple[str, str], Sequence[PairMetric]]
"""Metrics by (extractor, head) reference."""


@attrs.define(eq=False)
class _PlannedCell(EvaluatedHead):
    """A planned cell.

    Attributes:
        prospect: Result of the check; its reason says why the pair cannot be measured.
        adapters: Adapters between the two.
        bound: Tally of the extractor's own head on the classes of this cell, or None.
        meters: Metrics that run on it.
        refused: Figures of metrics that do not apply to it, with the reason.
    """

    extractor: Component = attrs.field(kw_only=True)
    head: Component = attrs.field(kw_only=True)
    prospect: Prospect = attrs.field(kw_only=True)
    adapters: Sequence[Adapter] = attrs.field(kw_only=True)
    bound: Tally | None = None
    meters: list[Meter] = attrs.field(factory=list)
    refused: list[MetricFigure] = attrs.field(factory=list)

    @property
    def reason(self) -> str:
        """Why there is no figure, or empty."""
        return self.failure or self.prospect.reason


@attrs.define(eq=False)
class _LastImages:
    """Cache of the last extractor's prepared images, for the next one if it needs the same."""

    split: Split | None = None
    data: Data | None = None
    prepared: Prepared | None = None

    def images(self, split: Split, data: Data) -> Prepared:
        """Return a split with the channels and size of ``data``."""
        alike = attrs.evolve(data, labels=None, mean=(), std=())
        if self.prepared is None or self.split is not split or self.data != alike:
            self.split, self.data, self.prepared = split, alike, None  # free the old images first
            self.prepared = prepare(split, data)
        return self.prepared


def measure(
    extractors: Sequence[Component],
    heads: Sequence[Component],
    data: Mapping[str, Split],
    conditions: Conditions,
    *,
    adapters: Adapters | None = None,
    only: Collection[tuple[str, str]] | None = None,
    bounds: Mapping[str, Component] | None = None,
    metrics: Metrics | None = None,
    each: Callable[[list[Cell]], None] | None = None,
    progress: Progress | None = None,
) -> list[Cell]:
    """Measure every extractor with every head on the extractor's own test images.

    Each extractor runs once over its images and all heads take its features, batch by batch; under ``reestimate`` and
    ``mix:N`` it runs twice, first for the statistics. Modules are left bitwise unchanged. Pairs that cannot be wired
    directly are not measured; their cell gives the reason.

    Args:
        extractors: Rows.
        heads: Columns; the first one trained with an extractor gives the upper bound of its row.
        data: Test images by reference of the extractor; preprocessed as its contract says.
        conditions: Policy, batches, precision, device.
        adapters: Adapters of the pairs that need them; cells name them in ``settings``.
        only: Pairs of references to measure; None for all.
        bounds: Heads that give the upper bound, by reference of the extractor; they need not be columns.
        metrics: Metrics by references of extractor and head, computed in the same pass; see ``Cell.metrics``.
        each: Called with the cells of an extractor when it has run, including that of a bound that is no column.
        progress: Called after every batch.

    Returns:
        Cells, row by row.

    Raises:
        UsageError: A component has the wrong kind.
        DataError: An extractor has no test images, or too few for batch statistics.
        EnvironmentFailure: The device does not exist.
    """
    for part in extractors:
        if part.reference not in data:
            known = ", ".join(data) or "no extractor"
            raise DataError(f"{part.reference} has no test images; they were given for {known}.")
    between, rows = adapters or {}, list[tuple[ImageFacts, list[_PlannedCell], _PlannedCell | None]]()
    for part in extractors:
        images = ImageFacts.of(data[part.reference])
        chosen = [head for head in heads if only is None or (part.reference, head.reference) in only]
        name = part.reference
        pairs = [_pair(part, head, images, between.get((name, head.reference), ())) for head in chosen]
        rows.append((images, pairs, _own(part, heads, pairs, images, bounds or {})))
    steps = [
        conditions.passes(len(data[part.reference])) if any(not pair.reason for pair in pairs) else 0
        for part, (_, pairs, _) in zip(extractors, rows, strict=True)
    ]
    cells, ready = list[Cell](), _LastImages()
    for number, (part, (images, pairs, own)) in enumerate(zip(extractors, rows, strict=True)):
        before, total, name = sum(steps[:number]), sum(steps), part.reference

        def tick(done: int, before: int = before, total: int = total, name: str = name) -> None:
            if progress is not None:
                progress(before + done, total, name)

        measured = _row(
            part, pairs, own, data[part.reference], images, conditions, ready, tick, metrics or {}
        )
        if each is not None:
            each(measured)
        cells += measured[: len(pairs)]
    return cells


def _own(
    extractor: Component,
    heads: Sequence[Component],
    pairs: Sequence[_PlannedCell],
    images: ImageFacts,
    bounds: Mapping[str, Component],
) -> _PlannedCell | None:
    """Return the cell that gives the bound of a row, taken from ``pairs`` if it is there."""
    own_heads = (candidate for candidate in heads if candidate.is_own(extractor))
    head = bounds.get(extractor.reference) or next(own_heads, None)
    if head is None:
        return None
    same = (pair for pair in pairs if pair.head.reference == head.reference and not pair.adapters)
    return next(same, None) or _pair(extractor, head, images, ())


def _pair(
    extractor: Component, head: Component, images: ImageFacts, adapters: Sequence[Adapter]
) -> _PlannedCell:
    known = prospect(extractor, head, images, adapted=bool(adapters))
    report = attrs.evolve(known.report, extractor=extractor.reference, head=head.reference)
    known = attrs.evolve(known, report=report)
    name, outputs = head.reference, len(head.labels)
    return _PlannedCell(name, outputs, extractor=extractor, head=head, prospect=known, adapters=adapters)


def _row(
    extractor: Component,
    pairs: Sequence[_PlannedCell],
    own: _PlannedCell | None,
    split: Split,
    images: ImageFacts,
    conditions: Conditions,
    ready: _LastImages,
    tick: Callable[[int], None],
    metrics: Metrics,
) -> list[Cell]:
    """Run one extractor; each head fills its own cell, the extractor's own head also the bounds."""
    labels = torch.from_numpy(split.labels)
    extra = [own] if own is not None and own not in pairs and any(not pair.reason for pair in pairs) else []
    wired = [pair for pair in (*pairs, *extra) if not pair.reason]
    started: dict[tuple[tuple[int, int], ...], Tally] = {}
    for pair in wired:
        same = tuple(pair.prospect.classes)
        if same not in started:
            started[same] = Tally.start(labels, same, len(split.classes))
        pair.tallies = [started[same].empty()]
        joined = [adapter.module for adapter in pair.adapters]
        pair.module = nn.Sequential(*joined, pair.head.module) if joined else pair.head.module
    if own is not None and own in wired:
        _bound(own, wired, labels, len(split.classes))
    if wired:
        data = extractor.manifest.contract.data
        for pair in wired:
            chosen = metrics.get((extractor.reference, pair.head.reference), ()) if pair in pairs else ()
            _set_up(pair, chosen, own if own in wired else None, split, conditions.bn_policy)
        meters = [meter for pair in wired for meter in pair.meters]
        evaluate_heads(extractor.module, wired, ready.images(split, data), data, conditions, tick, meters)
    norms, bound = has_batch_norm(extractor.module), own.head.function if own is not None else ""
    cells: list[Cell] = []
    for pair in (*pairs, *extra):
        either, adapters = (
            norms or has_batch_norm(pair.head.module),
            [(a.function, str(a)) for a in pair.adapters],
        )
        settings = conditions.settings(images, batch_norm=either, bound=bound, adapters=adapters)
        settings |= {"device": conditions.device, "torch": str(torch.__version__)}
        settings |= {"channels_last": True} if conditions.channels_last else {}
        settings["own"] = pair.head.is_own(pair.extractor)
        cells.append(_cell(pair, split, settings, own))
    return cells


def _set_up(
    pair: _PlannedCell, metrics: Sequence[PairMetric], own: _PlannedCell | None, split: Split, bn_policy: str
) -> None:
    """Start the metrics of a pair; those that lack what they compare with get the reason."""
    if not metrics:
        return
    network = _network(pair, bn_policy)
    other = _network(own, bn_policy) if own is not None else None
    names = [label.name for label in pair.head.labels]
    for mine, theirs in pair.prospect.classes:
        names[theirs] = split.classes[mine]  # synonyms are named as the images name them
    labels = labels_of(torch.from_numpy(split.labels), pair.prospect.classes, len(split.classes))
    for metric in metrics:
        compared = own if metric.compares else None
        reason = ""
        if metric.compares and own is None:
            reason = (
                f"it compares with the own network of {pair.extractor.reference}, which has no own head here"
            )
        elif "other_logits" in metric.inputs and own is not None and own.head.labels != pair.head.labels:
            reason = f"it compares logits, and {own.head.reference} has other classes"
        if reason:
            pair.refused += metric.without_figure("failed", reason)
            continue
        subject = subject_of(network, other if metric.compares else None, names)
        pair.meters.append(Meter(metric, pair, compared, subject, labels))


def _network(pair: _PlannedCell, bn_policy: str) -> Assembly:
    """Return the recombined network; its parts are shared with the pass."""
    contracts = pair.extractor.manifest.contract, pair.head.manifest.contract
    return Assembly(
        pair.extractor.module,
        pair.head.module,
        contract=joined_contract(*contracts, pair.adapters),
        adapters=[adapter.module for adapter in pair.adapters],
        bn_policy=bn_policy,
    )


def _bound(own: _PlannedCell, wired: Sequence[_PlannedCell], labels: Tensor, classes: int) -> None:
    """Count the bound of each pair with the extractor's own head, once per set of common classes.

    A pair with a class that this head does not know gets none: it is no bound for what the head cannot answer.
    """
    counts: dict[frozenset[int], Tally] = {}
    for pair in wired:
        classes_of_pair = frozenset(mine for mine, _ in pair.prospect.classes)
        known = [match for match in own.prospect.classes if match[0] in classes_of_pair]
        if len(known) < len(classes_of_pair):
            continue
        if classes_of_pair not in counts:
            counts[classes_of_pair] = Tally.start(labels, known, classes)
            own.tallies.append(counts[classes_of_pair])
        pair.bound = counts[classes_of_pair]


def _cell(pair: _PlannedCell, split: Split, settings: Settings, own: _PlannedCell | None) -> Cell:
    report, common = pair.prospect.report, pair.prospect.common
    names = pair.extractor.reference, pair.head.reference
    shared_fields: dict[str, Any] = {"common": common, "settings": settings, "reason": pair.reason}
    if pair.reason:
        notes = notes_of(pair.prospect, settings, figures=False)
        return Cell(*names, report.wiring, report.promise, "none", findings=notes, **shared_fields)
    tally, bound = pair.tallies[0], pair.bound if own is not None and not own.reason else None
    chance = chance_level(torch.from_numpy(split.labels), [mine for mine, _ in pair.prospect.classes])
    measured, free = (figure(correct, tally.count) for correct in tally.correct())
    limit = figure(int(bound.restricted.sum()), bound.count) if bound is not None else None
    difference = None
    if own is not None and bound is not None:
        # If the head is the bound itself, the difference is 0 by definition.
        same = pair.head.function == own.head.function and torch.equal(tally.restricted, bound.restricted)
        difference = (0.0, 0.0) if same else paired_interval_of_counts(*tally.against(bound), tally.count)
    if tally.broken:
        settings[BROKEN] = tally.broken
    notes = notes_of(pair.prospect, settings, figures=True)
    if own is not None and (unknown := unknown_classes(own.head.labels, common)):
        notes += (no_bound(own.head.reference, unknown),)
    return Cell(
        *names,
        report.wiring,
        report.promise,
        grade(measured, chance, limit, difference),
        restricted=measured,
        unrestricted=free,
        chance=chance,
        bound=limit,
        recovered=recovered(measured.accuracy, chance, limit.accuracy if limit is not None else None),
        difference=difference,
        findings=notes,
        metrics=(*(found for meter in pair.meters for found in meter.figures()), *pair.refused),
        **shared_fields,
    )

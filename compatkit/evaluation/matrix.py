"""The compatibility matrix: every extractor with every head, each extractor run once over its images.

Source: Gygli, Uijlings, Ferrari (2021), "Towards Reusable Network Components by Learning Compatible
Representations": n_ab(x) = h_b(f_a(x)) on the test images of a (Sec. 3 and 4), with the unrecombined
network n_aa as upper bound and batch statistics at test time (App. C.1).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import attrs
import torch
from torch import nn

from compatkit.compatibility import Report, check
from compatkit.data.classes import common, label
from compatkit.data.dataset import Split
from compatkit.errors import DataError
from compatkit.evaluation.adapter import Adapter
from compatkit.evaluation.cells import ADAPTED, METRIC, METRIC_VERSION, Cell
from compatkit.evaluation.figures import Tally, chance_level
from compatkit.evaluation.normalisation import check_policy, normalised
from compatkit.evaluation.passes import Column, Conditions, run
from compatkit.evaluation.preprocessing import prepare
from compatkit.evidence import figure, grade, paired_interval_of_counts, recovered
from compatkit.registry.manifest import Manifest

Progress = Callable[[int, int, str], None]
"""Called with batches done, batches in all, and what is being done."""
Settings = dict[str, str | int | float]
Adapters = Mapping[tuple[str, str], Sequence[Adapter]]
"""What stands between an extractor and a head, by their references."""


@attrs.frozen(eq=False)
class LoadedPart:
    """A component with its module.

    Attributes:
        reference: Pinned reference, ``name@version``.
        digest: Manifest digest, ``sha256:...``.
        function: Function digest, ``value:sha256:...``.
        module: With its weights.
        trained_with: For heads: manifest digest of the extractor it was trained with.
    """

    reference: str
    digest: str
    function: str
    kind: str
    manifest: Manifest
    module: nn.Module
    trained_with: str | None = None


@attrs.define(eq=False)
class _Pair:
    """One cell to be.

    Attributes:
        classes: Common classes: index in the split, output of the head.
        reason: Why the pair is not measured, else empty.
        adapters: What stands between the two.
    """

    extractor: LoadedPart
    head: LoadedPart
    report: Report
    classes: list[tuple[int, int]]
    reason: str
    adapters: Sequence[Adapter] = ()
    tally: Tally | None = None
    bound: Tally | None = None

    @property
    def own(self) -> bool:
        """The head was trained with this extractor."""
        return self.head.trained_with == self.extractor.digest

    @property
    def module(self) -> nn.Module:
        """What takes the extractor's features: the head, behind its adapters if there are any."""
        if not self.adapters:
            return self.head.module
        return nn.Sequential(*(one.module for one in self.adapters), self.head.module)

    @property
    def outputs(self) -> int:
        """Count of classes that the head's contract names."""
        return len(self.head.manifest.contract.data.labels or ())


def measure(
    extractors: Sequence[LoadedPart],
    heads: Sequence[LoadedPart],
    data: Mapping[str, Split],
    *,
    policy: str = "batch",
    batch_size: int = 256,
    seed: int = 0,
    precision: str = "float32",
    device: str = "cpu",
    adapters: Adapters | None = None,
    progress: Progress | None = None,
) -> list[Cell]:
    """Measure every extractor with every head on the extractor's own test images.

    Each extractor runs once over its images and all heads take its features, batch by batch; under
    ``reestimate`` once more, for the statistics. Modules are as before afterwards, bit for bit. Pairs that
    cannot be wired directly are not measured; their cell says why.

    Args:
        extractors: Rows.
        heads: Columns; the first that an extractor was trained with gives the bound of its row.
        data: Test images of each extractor, by its reference; preprocessed as its contract says.
        policy: ``"batch"``: statistics of each batch, formed from all images of the split.
            ``"reestimate"``: of extractor and head anew from the same images, unlabelled. ``"running"``: as
            stored.
        batch_size: Largest batch; the images are split into equal batches up to it.
        seed: Of the order of the images.
        precision: ``"float32"`` (TF32 off), or ``"bfloat16"`` by autocast.
        device: Where to run; modules return to where they were.
        adapters: For pairs that need some; their cells name them in ``settings``.
        progress: Called after every batch.

    Returns:
        Cells, row by row.

    Raises:
        UsageError: Wrong kinds of components, an unknown policy or precision, a batch size below 1.
        DataError: An extractor has no test images, or too few for batch statistics.
        EnvironmentFailure: There is no such device.
    """
    conditions = Conditions(check_policy(policy), batch_size, seed, precision, device)
    for part in extractors:
        if part.reference not in data:
            given = ", ".join(data) or "no extractor"
            raise DataError(f"{part.reference} has no test images; they were given for {given}.")
    between = adapters or {}
    rows = [
        [
            _pair(one, head, data[one.reference], between.get((one.reference, head.reference), ()))
            for head in heads
        ]
        for one in extractors
    ]
    steps = [
        conditions.passes(len(data[part.reference])) if any(not pair.reason for pair in row) else 0
        for part, row in zip(extractors, rows, strict=True)
    ]
    cells: list[Cell] = []
    for number, (part, row) in enumerate(zip(extractors, rows, strict=True)):
        before, total, name = sum(steps[:number]), sum(steps), part.reference

        def tick(done: int, before: int = before, total: int = total, name: str = name) -> None:
            if progress is not None:
                progress(before + done, total, name)

        cells += _row(part, row, data[part.reference], conditions, tick)
    return cells


def _pair(extractor: LoadedPart, head: LoadedPart, split: Split, adapters: Sequence[Adapter]) -> _Pair:
    labels = tuple(label(name) for name in split.classes)
    asked = attrs.evolve(extractor.manifest.contract.data, labels=labels)
    report = check(extractor.manifest, head.manifest, data=asked)
    report = attrs.evolve(report, extractor=extractor.reference, head=head.reference)
    classes = common(labels, head.manifest.contract.data.labels or ())
    reason = ""
    if report.wiring == "refused" or (report.wiring == "needs-adapter" and not adapters):
        barred = [one.code for one in report.findings if one.severity in ("refuses", "adaptable")]
        reason = f"wiring {report.wiring}: {', '.join(barred)}"
    elif not classes:
        reason = f"no class in common with {split.name}"
    elif not any(split.counts[own] for own, _ in classes):
        reason = f"{split.name} holds no image of a common class"
    return _Pair(extractor, head, report, classes, reason, adapters)


def _row(
    extractor: LoadedPart,
    pairs: Sequence[_Pair],
    split: Split,
    conditions: Conditions,
    tick: Callable[[int], None],
) -> list[Cell]:
    """Run one extractor; every head counts for its own cell, the extractor's own head for the bounds too."""
    labels = torch.from_numpy(split.labels)
    wired = [pair for pair in pairs if not pair.reason]
    own = next((pair for pair in wired if pair.own), None)
    columns: list[Column] = []
    for pair in wired:
        pair.tally = Tally.start(labels, pair.classes, len(split.classes))
        columns.append(Column(pair.module, pair.head.reference, pair.outputs, [pair.tally]))
    if own is not None:
        for pair in wired:
            kept = {mine for mine, _ in pair.classes}
            known = [one for one in own.classes if one[0] in kept]
            pair.bound = Tally.start(labels, known, len(split.classes), counted=kept)
            columns[wired.index(own)].tallies.append(pair.bound)
    if wired:
        data = extractor.manifest.contract.data
        run(extractor.module, columns, prepare(split, data), data, conditions, tick)
    for pair, column in zip(wired, columns, strict=True):
        pair.reason = column.failure
    bounded = own is not None and not own.reason
    return [_cell(pair, split, _settings(pair, split, conditions), bounded) for pair in pairs]


def _settings(pair: _Pair, split: Split, conditions: Conditions) -> Settings:
    settings: Settings = {
        "metric": METRIC,
        "metric_version": METRIC_VERSION,
        **attrs.asdict(conditions),
        "data": split.name,
        "data_digest": split.digest,
        "own": pair.own,
        "normalised": normalised(pair.extractor.module, pair.head.module),
    }
    return settings | ({ADAPTED: "; ".join(map(str, pair.adapters))} if pair.adapters else {})


def _cell(pair: _Pair, split: Split, settings: Settings, bounded: bool) -> Cell:
    notes = [str(one) for one in pair.report.findings]
    if not settings["normalised"]:
        notes.append(
            f"No batch normalisation in either part: the policy {settings['policy']!r} changes nothing."
        )
    cell = Cell(
        pair.extractor.reference,
        pair.head.reference,
        pair.report.wiring,
        pair.report.promise,
        "none",
        common=tuple(split.classes[mine] for mine, _ in pair.classes),
        settings=settings,
        findings=tuple(notes),
        reason=pair.reason,
    )
    tally, bound = pair.tally, pair.bound if bounded else None
    if pair.reason or tally is None:
        return cell
    chance = chance_level(torch.from_numpy(split.labels), [mine for mine, _ in pair.classes])
    measured, free = (figure(correct, tally.count) for correct in tally.correct())
    limit = figure(bound.correct()[0], bound.count) if bound is not None else None
    difference = None
    if bound is not None:
        # On its own extractor the head is the bound itself: the difference is 0 by definition, not by count.
        same = pair.own and torch.equal(tally.restricted, bound.restricted)
        difference = (0.0, 0.0) if same else paired_interval_of_counts(*tally.against(bound), tally.count)
    if tally.broken:
        notes.append(f"{tally.broken} images gave outputs that are not finite; they count as wrong.")
    return attrs.evolve(
        cell,
        grade=grade(measured, chance, limit, difference),
        restricted=measured,
        unrestricted=free,
        chance=chance,
        bound=limit,
        recovered=recovered(measured.accuracy, chance, limit.accuracy if limit is not None else None),
        difference=difference,
        findings=tuple(notes),
    )

"""Similarity of layers of two networks, or of many runs of two."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from compatkit.errors import DataError, UsageError, type_of
from compatkit.evaluation.metrics import Measured, Metric, Table, TableCell
from compatkit.foundation.arguments import checks_arguments
from compatkit.foundation.limits import OneOf
from compatkit.measuring.activations import Activations
from compatkit.measuring.arrays import Layers, on_arrays
from compatkit.measuring.measure import metrics_of
from compatkit.measuring.measurement import Measurement


@checks_arguments
def similarity(
    left: Activations | Layers | Sequence[Activations | Layers],
    right: Activations | Layers | Sequence[Activations | Layers] | None = None,
    metrics: Sequence[str | Metric] = ("cka", "procrustes"),
    *,
    batch_size: int | None = None,
    nonfinite: str = "refuse",
    exclude_same: bool = True,
) -> Measurement:
    """Compare all layers of two networks, or of several runs of each, on the same samples.

    Args:
        left: Outputs of a network's layers: ``ck.activations(...)``, or arrays by layer, one row a sample. Several
            runs (seeds) of a network as a list: then all pairs of runs are compared at once. Tensors that are all on
            one GPU are compared there.
        right: Those of another network; None compares ``left`` with itself.
        metrics: Names of installed metrics of two networks' outputs, or metrics.
        batch_size: Samples that a metric sees at once, for ``minibatch_cka``; None is all.
        nonfinite: ``"refuse"``: a layer with values that are not finite is an error; ``"mark"``: its cells are
            undefined, with the reason.
        exclude_same: Whether the mean over runs leaves out a run with itself, where ``right`` is None.

    Returns:
        Tables with the axes ``this`` and ``other``. With several runs they have the axes ``this run`` and ``other run``
        too, every pair of runs is kept, and ``<name>/mean`` and ``<name>/spread`` (standard deviation over the pairs)
        have the layers alone.

    Raises:
        UsageError: A metric takes something else than outputs of two networks.
        DataError: The samples differ, runs have different layers, or values are not finite.
    """
    OneOf(("refuse", "mark")).check("similarity", nonfinite=nonfinite)
    lefts, rights = _runs(left, "left"), _runs(left if right is None else right, "right")
    positions = _check_samples([*lefts, *rights])
    several = len(lefts) > 1 or len(rights) > 1
    sides = [_joined(runs, several) for runs in (lefts, rights)]
    flattened = {run.settings.get("flatten") for run in (*lefts, *rights) if isinstance(run, Activations)}
    results = on_arrays(
        [_recorded_as(flattened, metric) for metric in metrics_of(metrics)],
        {"outputs": sides[0], "other_outputs": sides[0] if right is None else sides[1]},
        batch_size=batch_size,
        positions=positions,
        refuse=nonfinite == "refuse",
    )
    if several:
        apart = exclude_same and right is None
        results = tuple(summary for table in results for summary in _over_runs(table, lefts, rights, apart))
    settings: dict[str, Any] = {"runs": [len(lefts), len(rights)]}
    if isinstance(lefts[0], Activations):
        settings |= {"order": lefts[0].order, "this": dict(lefts[0].settings)}
    if isinstance(rights[0], Activations):
        settings |= {"other": dict(rights[0].settings)}
    return Measurement({result.name: result for result in results}, settings)


def _recorded_as(flattened: set[Any], metric: Metric) -> Metric:
    """Return a metric whose estimator says how the rows were flattened when they were recorded."""
    if len(flattened) == 1 and getattr(metric, "flatten", "") == "all" and attrs.has(type(metric)):
        return attrs.evolve(metric, flatten=next(iter(flattened)) or "all")  # type: ignore[arg-type]
    return metric


def _runs(activations: Any, side: str) -> list[Any]:
    runs = [activations] if isinstance(activations, Mapping) else activations
    listed = isinstance(runs, Sequence) and runs
    if not listed or not all(isinstance(run, Mapping) and run for run in runs):
        raise UsageError(
            f"{side} expects activations, arrays by layer, or a list of these, one per run; got "
            f"{type_of(activations)}.",
            subject=side,
        )
    for number, run in enumerate(runs):
        if list(run) != list(runs[0]):
            raise DataError(
                f"Run {number} of {side} has the layers {', '.join(run)}, run 0 {', '.join(runs[0])}; they must be "
                "the same.",
                subject=number,
            )
    return list(runs)


def _check_samples(runs: Sequence[Any]) -> NDArray[np.int64] | None:
    """Return the positions of the samples that all runs share, None where no run states any.

    Raises:
        DataError: Two runs have different data, or the samples in another order.
    """
    stated = [run for run in runs if isinstance(run, Activations)]
    for run in stated[1:]:
        names, digests = (
            [str(each.settings.get(key, "tensors")) for each in (stated[0], run)]
            for key in ("data", "data_digest")
        )
        positions, others = stated[0].positions, run.positions
        if digests[0] != digests[1]:
            first, other = (f"{name} ({digest[:24]})" for name, digest in zip(names, digests, strict=True))
            message = f"Activations of different images: {first} and {other}. Record both on the same images."
            raise DataError(message, subject=names[1])
        if len(positions) != len(others):
            message = f"Activations of different numbers of images: {len(positions):,} and {len(others):,}."
            raise DataError(message, subject=len(others))
        if (positions != others).any():
            at = int((positions != others).argmax())
            raise DataError(
                f"The images have different orders: position {at:,} is image {positions[at]:,} and image "
                f"{others[at]:,}. Record both with the same seed.",
                subject=at,
            )
    return stated[0].positions if stated else None


def _joined(runs: Sequence[Layers], several: bool) -> dict[str, Any]:
    if not several:
        return dict(runs[0])
    return {f"{number}/{name}": rows for number, run in enumerate(runs) for name, rows in run.items()}


def _over_runs(
    table: Measured, lefts: Sequence[Layers], rights: Sequence[Layers], apart: bool
) -> tuple[Table, ...]:
    """Return a table of layers of runs with its runs as axes, their mean and their spread."""
    if not isinstance(table, Table) or tuple(table.axes) != ("this", "other"):
        raise UsageError(
            f"The result {table.name!r} is not a table of this by other layers, as several runs need. Compare two "
            "runs.",
            subject=table.name,
        )
    this, other = tuple(lefts[0]), tuple(rights[0])
    a, b, p, q = len(lefts), len(rights), len(this), len(other)
    index = np.arange(a * p * b * q).reshape(a, p, b, q).transpose(0, 2, 1, 3)  # runs first
    runs = {"this run": tuple(map(str, range(a))), "other run": tuple(map(str, range(b)))}
    layers = {"this": this, "other": other}
    all_runs = attrs.evolve(
        table, axes={**runs, **layers}, cells=tuple(table.cells[at] for at in index.ravel())
    )
    pairs = [(i, j) for i in range(a) for j in range(b) if not (apart and i == j)]
    cells = [[table.cells[index[i, j, k, m]] for i, j in pairs] for k in range(p) for m in range(q)]
    summaries = []
    for name, figure in (("mean", _mean), ("spread", _spread)):
        values = tuple(_summary(some, figure) for some in cells)
        about = f"{name} over {len(pairs)} pairs of runs; {table.estimator}"
        full_name = f"{table.name}/{name}"
        summaries.append(attrs.evolve(table, name=full_name, axes=layers, cells=values, estimator=about))
    return all_runs, *summaries


APART = 0.1
"""Two similarities that differ by more disagree."""


def smaller(table: Table, other: Table) -> Table:
    """Return the smaller of two similarities for each pair of layers (Bonheme and Grzes 2023, Sec. 2.3).

    Where CKA and Procrustes disagree, one of them is too high: Procrustes for lack of samples, CKA where the strongest
    directions hide a difference.

    Args:
        table: A table of ``this`` by ``other`` layers.
        other: Another, of the same layers.

    Returns:
        Undefined where either is; the estimator says how often they disagree.
    """
    pairs = list(zip(table.cells, other.cells, strict=True))
    cells, apart = [], 0
    for left, right in pairs:
        if left.value is None or right.value is None:
            cells.append(left if left.value is None else right)
            continue
        apart += abs(left.value - right.value) > APART
        cells.append(left if left.value <= right.value else right)
    how = f"smaller of {table.name} and {other.name}, which differ by more than {APART:g} in {apart} of {len(pairs)}"
    return attrs.evolve(table, name="smaller", cells=tuple(cells), estimator=how, equation="Sec. 2.3")


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def _spread(values: Sequence[float]) -> float:
    return float(np.std(values, ddof=1)) if len(values) > 1 else math.nan


def _summary(cells: Sequence[TableCell], figure: Any) -> TableCell:
    """Return a figure over pairs of runs, with the reason of the first that has one."""
    values = [cell.value for cell in cells if cell.value is not None]
    reasons = [cell for cell in cells if cell.status != "ok"]
    value = figure(values)
    if math.isnan(value):
        return TableCell(None, "undefined", reasons[0].reason if reasons else f"{len(values)} pairs of runs")
    if not reasons:
        return TableCell(value)
    status = "approximate" if all(cell.status == "approximate" for cell in reasons) else "degenerate"
    return TableCell(value, status, f"{len(reasons)} of {len(cells)} pairs: {reasons[0].reason}")

"""Metrics on arrays that are there already, and similarity of layers of two networks or of many runs of two."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any
from zipfile import BadZipFile

import attrs
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from compatkit.contracts.arguments import named
from compatkit.errors import DataError, UsageError, type_of
from compatkit.metrics import (
    Cell,
    Measured,
    Metric,
    Observation,
    Subject,
    Table,
    advance,
    conclude,
    finalised,
    observed,
)
from compatkit.training.activations import Activations, unreadable
from compatkit.training.measuring import Measurement, metrics_of

ROLES = ("outputs", "other_outputs", "inputs", "weights", "other_weights", "logits", "labels", "images")
"""What an array may be to a metric, in the order in which arrays are given."""
LAYERED = ROLES[:5]
BLOCK = 2**22
"""Values that are looked at at once."""
Layers = Mapping[str, Any]


def roles_of(metric: Metric) -> tuple[str, ...]:
    """Return which arrays a metric needs, in their order.

    Args:
        metric: Any; one of two networks' outputs gives ``("outputs", "other_outputs")``.

    Raises:
        UsageError: It needs a network, which arrays are not.
    """
    wanted, ending = set(observed(metric)), set(finalised(metric))
    if not wanted:  # of weights alone
        others = {"other_weights"} if {"other", "other_layers"} & ending else set()
        return tuple(role for role in ROLES if role in {"weights", *others})
    if {"network", "other"} & (wanted | ending):
        raise UsageError(
            f"{type(metric).__name__} runs a network, which arrays are not. Give the network itself to ck.measure, or "
            "its parts to `compatkit metric`.",
            subject=type(metric).__name__,
        )
    wanted = {"weights" if name == "layers" else name for name in wanted}
    return tuple(role for role in ROLES if role in wanted)


def on_arrays(
    metrics: Sequence[str | Metric],
    arrays: Mapping[str, Any],
    *,
    batch_size: int | None = None,
    positions: NDArray[np.int64] | None = None,
    refuse: bool = True,
) -> tuple[Measured, ...]:
    """Return the results of metrics on arrays.

    Args:
        metrics: Names of installed metrics, or metrics, that take the same arrays.
        arrays: By role (``ROLES``): of the first five an array, or arrays by layer; numpy or torch, one row a sample.
            ``weights``: ``(out, in)``, or a convolution's ``(out, in, h, w)`` with stride 1 and no padding.
        batch_size: Samples that a metric sees at once; None is all.
        positions: Indices of the samples; None counts them.
        refuse: Whether values that are not finite are refused; otherwise a metric says what it makes of them.

    Raises:
        UsageError: An array is missing, or not taken.
        DataError: An array is no array of numbers, has other samples, or values that are not finite.
    """
    chosen = metrics_of(metrics)
    held = {role: _tensors(role, given, refuse) for role, given in arrays.items()}
    for metric in chosen:
        _check_roles(metric, held)
    samples = [
        (role, name, one)
        for role, layers in held.items()
        if not role.endswith("weights")
        for name, one in layers.items()
    ]
    count = len(positions) if positions is not None else len(samples[0][2]) if samples else 0
    for role, name, one in samples:
        if len(one) != count and (positions is None or len(one) % max(1, count)):
            raise DataError(
                f"Every array needs one row a sample: {name!r} of {role} has {len(one):,}, the first one {count:,}. "
                "Record all on the same samples.",
                subject=name,
            )
    layers = _modules(held, "weights", "outputs")
    others = _modules(held, "other_weights", "other_outputs")
    subject = Subject(
        network=nn.Sequential(*layers.values()),
        layers=layers,
        other=nn.Sequential(*others.values()) if others else None,
        other_layers=others,
    )
    index = torch.arange(count) if positions is None else torch.from_numpy(positions)
    results: list[Measured] = []
    with torch.no_grad():
        for metric in chosen:
            state = metric.init()
            for at in torch.arange(count).split(batch_size or max(1, count)) if observed(metric) else ():
                state = advance(metric, state, _observation(held, index, at), subject)
            results += conclude(metric, state, subject)
    return tuple(results)


def read_array(path: str | os.PathLike[str]) -> Any:
    """Return the array of a ``.npy`` file, or the arrays of a ``.npz`` file by name, such as layers.

    Args:
        path: The file; no code in it is run.

    Raises:
        DataError: It cannot be read, or holds objects.
    """
    try:
        # Mapped, not read; copy-on-write, as torch wants arrays that can be written.
        found = np.load(path, mmap_mode="c", allow_pickle=False)
        return found if isinstance(found, np.ndarray) else dict(found)
    except (OSError, ValueError, EOFError, BadZipFile) as error:
        raise DataError(
            f"{os.fspath(path)} cannot be read as arrays of numbers: {unreadable(error)}. Write numbers with "
            "numpy.save, or numpy.savez.",
            subject=os.fspath(path),
        ) from error


def _check_roles(metric: Metric, held: Mapping[str, Any]) -> None:
    needed = roles_of(metric)
    if set(needed) != set(held):
        raise UsageError(
            f"{type(metric).__name__} takes {len(needed)} arrays: {', '.join(needed)}; got {len(held)}: "
            f"{', '.join(held)}.",
            subject=type(metric).__name__,
        )


def _tensors(role: str, given: Any, refuse: bool) -> dict[str, Tensor]:
    layers = given if role in LAYERED and isinstance(given, Mapping) else {"array": given}
    if not layers:
        raise DataError(f"There is no array for {role}; give at least one.", subject=role)
    return {name: _tensor(name, one, role, refuse) for name, one in layers.items()}


def _tensor(name: str, given: Any, role: str, refuse: bool) -> Tensor:
    """Return an array as a tensor, float32 or float64 (labels int64), without a copy where that is possible."""
    what = "whole numbers" if role == "labels" else "real numbers"
    wanted = f"{name!r} of {role} is to be a dense array of {what}, one row a sample"
    try:
        if isinstance(given, Tensor):
            given = given.detach().cpu()
            given = (given.float() if given.dtype == torch.bfloat16 else given).numpy()
        values = np.asanyarray(given)
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"{wanted}; got {type_of(given)}: {error}", subject=name) from error
    kinds = "iu" if role == "labels" else "fiub"
    masked = isinstance(values, np.ma.MaskedArray)
    if values.dtype.kind not in kinds or values.ndim < 1 or not values.size or masked:
        raise DataError(
            f"{wanted}; got {type_of(given)} of {values.dtype} with shape {values.shape}."
            + (" Fill what is masked, or leave these rows out." if masked else ""),
            subject=name,
        )
    wide = values.dtype.kind == "f" and values.dtype.itemsize >= np.dtype(np.float64).itemsize
    kind = np.int64 if role == "labels" else np.float64 if wide else np.float32
    values = values.astype(kind, copy=False)
    if refuse and role != "labels":
        _check_finite(name, role, values)
    return torch.from_numpy(values if values.flags.writeable else values.copy())


def _check_finite(name: str, role: str, values: NDArray[Any]) -> None:
    rows = max(1, BLOCK * len(values) // values.size)
    for first in range(0, len(values), rows):
        wrong = ~np.isfinite(values[first : first + rows]).reshape(min(rows, len(values) - first), -1).all(1)
        if wrong.any():
            raise DataError(
                f"{name!r} of {role} holds values that are not finite, in row {first + int(wrong.argmax()):,} first. "
                "Record in float32, look at the weights, or leave the layer out.",
                subject=name,
            )


def _modules(held: Mapping[str, Mapping[str, Tensor]], weights: str, outputs: str) -> dict[str, nn.Module]:
    """Return layers with these weights, or layers without any for the names of outputs."""
    found: dict[str, nn.Module] = {name: nn.Identity() for name in held.get(outputs, {})}
    for name, one in held.get(weights, {}).items():
        if one.ndim == 2:
            layer: Any = nn.Linear(*reversed(one.shape), bias=False)
        elif one.ndim == 4:
            layer = nn.Conv2d(one.shape[1], one.shape[0], (one.shape[2], one.shape[3]), bias=False)
        else:
            raise DataError(
                f"{name!r} of {weights} has shape {tuple(one.shape)}; expected (out, in) or (out, in, h, w).",
                subject=name,
            )
        layer.weight = nn.Parameter(one, requires_grad=False)
        found[name] = layer
    return found


def _observation(held: Mapping[str, Mapping[str, Tensor]], index: Tensor, at: Tensor) -> Observation:
    first, last = int(at[0]), int(at[-1]) + 1

    def part(one: Tensor) -> Tensor:
        each = len(one) // len(index)  # positions of an image are rows that follow each other
        return one[first * each : last * each]

    layered: dict[str, Any] = {
        role: {name: part(one) for name, one in held.get(role, {}).items()} for role in LAYERED[:3]
    }
    single: dict[str, Any] = {
        role: part(held[role]["array"]) if role in held else torch.empty(0) for role in ROLES[5:]
    }
    return Observation(**single, **layered, positions=index[at])


@named
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
        left: What the layers of a network gave: ``ck.activations(...)``, or arrays by layer, one row a sample. Several
            runs (seeds) of a network as a list: then all pairs of runs are compared at once.
        right: The same of another network; None compares ``left`` with itself.
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
    if nonfinite not in ("refuse", "mark"):
        raise UsageError(f"nonfinite= is 'refuse' or 'mark'; got {nonfinite!r:.60}.", subject=nonfinite)
    lefts, rights = _runs(left, "left"), _runs(left if right is None else right, "right")
    positions = _check_samples([*lefts, *rights])
    several = len(lefts) > 1 or len(rights) > 1
    sides = [_joined(runs, several) for runs in (lefts, rights)]
    flattened = {one.settings.get("flatten") for one in (*lefts, *rights) if isinstance(one, Activations)}
    found = on_arrays(
        [_recorded_as(flattened, one) for one in metrics_of(metrics)],
        {"outputs": sides[0], "other_outputs": sides[0] if right is None else sides[1]},
        batch_size=batch_size,
        positions=positions,
        refuse=nonfinite == "refuse",
    )
    if several:
        apart = exclude_same and right is None
        found = tuple(one for table in found for one in _over_runs(table, lefts, rights, apart))
    facts: dict[str, Any] = {"runs": [len(lefts), len(rights)]}
    if isinstance(lefts[0], Activations):
        facts |= {"order": lefts[0].order, "this": dict(lefts[0].settings)}
    if isinstance(rights[0], Activations):
        facts |= {"other": dict(rights[0].settings)}
    return Measurement({one.name: one for one in found}, facts)


def _recorded_as(flattened: set[Any], metric: Metric) -> Metric:
    """Return a metric whose estimator says how the rows were flattened when they were recorded."""
    if len(flattened) == 1 and getattr(metric, "flatten", "") == "all" and attrs.has(type(metric)):
        return attrs.evolve(metric, flatten=next(iter(flattened)) or "all")  # type: ignore[arg-type]
    return metric


def _runs(given: Any, side: str) -> list[Any]:
    runs = [given] if isinstance(given, Mapping) else list(given) if isinstance(given, Sequence) else []
    if not runs or not all(isinstance(one, Mapping) and one for one in runs):
        raise UsageError(
            f"{side} expects activations, arrays by layer, or a list of these, one a run; got {type_of(given)}.",
            subject=side,
        )
    for number, one in enumerate(runs):
        if list(one) != list(runs[0]):
            raise DataError(
                f"Run {number} of {side} has the layers {', '.join(one)}, run 0 {', '.join(runs[0])}; runs of a "
                "network have the same ones.",
                subject=number,
            )
    return runs


def _check_samples(runs: Sequence[Any]) -> NDArray[np.int64] | None:
    """Return the positions of the samples that all runs share, None where no run states any.

    Raises:
        DataError: Two runs have different data, or the samples in another order.
    """
    stated = [one for one in runs if isinstance(one, Activations)]
    for one in stated[1:]:
        digests = [each.settings.get("data_digest") for each in (stated[0], one)]
        if digests[0] != digests[1]:
            names = [
                f"{each.settings.get('data', 'tensors')} ({str(digest).rpartition(':')[2][:12]})"
                for each, digest in zip((stated[0], one), digests, strict=True)
            ]
            raise DataError(
                f"Activations of different images cannot be compared: {names[0]} and {names[1]}. Record both networks "
                "on the same images.",
                subject=one.settings.get("data", "tensors"),
            )
        here, there = stated[0].positions, one.positions
        if len(here) != len(there):
            raise DataError(
                f"Activations of {len(here):,} and of {len(there):,} images cannot be compared.",
                subject=len(there),
            )
        if (here != there).any():
            place = int((here != there).argmax())
            raise DataError(
                f"The images come in different orders: at place {place:,}, image {here[place]:,} and image "
                f"{there[place]:,}. Record both with the same seed.",
                subject=place,
            )
    return stated[0].positions if stated else None


def _joined(runs: Sequence[Layers], several: bool) -> dict[str, Any]:
    if not several:
        return dict(runs[0])
    return {f"{number}/{name}": one for number, run in enumerate(runs) for name, one in run.items()}


def _over_runs(
    table: Measured, lefts: Sequence[Layers], rights: Sequence[Layers], apart: bool
) -> tuple[Table, ...]:
    """Return a table of layers of runs with its runs as axes, their mean and their spread."""
    if not isinstance(table, Table) or tuple(table.axes) != ("this", "other"):
        raise UsageError(
            f"The result {table.name!r} is no table of this by other layers; several runs need one. Compare two runs "
            "at a time.",
            subject=table.name,
        )
    this, other = tuple(lefts[0]), tuple(rights[0])
    a, b, p, q = len(lefts), len(rights), len(this), len(other)
    places = np.arange(a * p * b * q).reshape(a, p, b, q).transpose(0, 2, 1, 3)  # runs first
    axes = {
        "this run": tuple(map(str, range(a))),
        "other run": tuple(map(str, range(b))),
        "this": this,
        "other": other,
    }
    whole = attrs.evolve(table, axes=axes, cells=tuple(table.cells[at] for at in places.ravel()))
    pairs = [(i, j) for i in range(a) for j in range(b) if not (apart and i == j)]
    cells = [[table.cells[places[i, j, k, m]] for i, j in pairs] for k in range(p) for m in range(q)]
    summaries = []
    for name, figure in (("mean", _mean), ("spread", _spread)):
        summaries.append(
            attrs.evolve(
                table,
                name=f"{table.name}/{name}",
                axes={"this": this, "other": other},
                cells=tuple(_summary(some, figure) for some in cells),
                estimator=f"{name} over {len(pairs)} pairs of runs; {table.estimator}",
            )
        )
    return whole, *summaries


APART = 0.1
"""Two similarities that differ by more disagree."""


def smaller(one: Table, other: Table) -> Table:
    """Return the smaller of two similarities for each pair of layers (Bonheme and Grzes 2023, Sec. 2.3).

    Where CKA and Procrustes disagree, one of them is too high: Procrustes for lack of samples, CKA where the strongest
    directions hide a difference.

    Args:
        one: A table of ``this`` by ``other`` layers.
        other: Another, of the same layers.

    Returns:
        Undefined where either is; the estimator says how often they disagree.
    """
    pairs = list(zip(one.cells, other.cells, strict=True))
    cells, apart = [], 0
    for left, right in pairs:
        if left.value is None or right.value is None:
            cells.append(left if left.value is None else right)
            continue
        apart += abs(left.value - right.value) > APART
        cells.append(left if left.value <= right.value else right)
    how = f"smaller of {one.name} and {other.name}, which differ by more than {APART:g} in {apart} of {len(pairs)}"
    return attrs.evolve(one, name="smaller", cells=tuple(cells), estimator=how, equation="Sec. 2.3")


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def _spread(values: Sequence[float]) -> float:
    return float(np.std(values, ddof=1)) if len(values) > 1 else math.nan


def _summary(cells: Sequence[Cell], figure: Any) -> Cell:
    """Return a figure over pairs of runs, with the reason of the first that has one."""
    values = [one.value for one in cells if one.value is not None]
    reasons = [one for one in cells if one.status != "ok"]
    value = figure(values)
    if math.isnan(value):
        return Cell(None, "undefined", reasons[0].reason if reasons else f"{len(values)} pairs of runs")
    if not reasons:
        return Cell(value)
    status = "approximate" if all(one.status == "approximate" for one in reasons) else "degenerate"
    return Cell(value, status, f"{len(reasons)} of {len(cells)} pairs: {reasons[0].reason}")

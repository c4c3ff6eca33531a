"""Metrics: inputs, results, the protocol that every metric implements, and construction by name."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import attrs

from compatkit.errors import DataError, PluginError, UnknownName
from compatkit.plugins.isolation import suggestion
from compatkit.plugins.loading import Offer
from compatkit.reports.tabular import Tabular

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray
    from torch import Tensor, nn

Direction = Literal["higher", "lower", "none"]
Status = Literal["ok", "approximate", "degenerate", "undefined"]
PROPERTIES = ("unit", "direction", "estimator", "count", "paper", "equation")
"""Attributes of results that are columns of their tables."""
COLUMNS = ("metric", "value", "status", "reason", *PROPERTIES)
FLATTENINGS = ("all", "pooled", "positions")


@attrs.frozen(kw_only=True)
class Result(Tabular):
    """The result of a metric, with the properties needed to interpret it.

    Attributes:
        name: Name of the metric.
        value: Measured value; None if and only if ``status`` is ``undefined``.
        unit: ``"1"`` for a share or a ratio, ``"nats"``, ``"bits"``, ``"count"``, ...
        direction: Which values are better.
        estimator: Kind of estimate: ``"plug-in"``, ``"unbiased"``, ...
        count: Number of examples it was computed from.
        paper: Source of the metric.
        equation: Equation or section in ``paper``.
        status: ``approximate``: sampled, or not converged; ``degenerate``: defined but unreliable.
        reason: Why the status is not ``ok``, else empty.
    """

    name: str
    value: float | None
    unit: str
    direction: Direction
    estimator: str
    count: int
    paper: str
    equation: str
    status: Status = "ok"
    reason: str = ""

    def __attrs_post_init__(self) -> None:
        _check_value(self.name, self.value, self.status, self.reason)

    def _rows(self) -> list[dict[str, Any]]:
        figure = {name: getattr(self, name) for name in ("value", "status", "reason", *PROPERTIES)}
        return [{"metric": self.name, **figure}]

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return attrs.asdict(self)


@attrs.frozen
class TableCell:
    """One value of a table; value, status and reason as in ``Result``."""

    value: float | None
    status: Status = "ok"
    reason: str = ""


@attrs.frozen(kw_only=True)
class Table(Tabular):
    """Results of a metric over a grid of layers, classes, ...; see ``Result`` for the other attributes.

    As a table it has a row for each cell, with the names along the axes as columns.

    Attributes:
        axes: Names along each axis: ``{"layer": ("conv1", "fc"), "class": ("cat", "dog")}``.
        cells: Row-major: the last axis varies fastest.
    """

    name: str
    axes: Mapping[str, tuple[str, ...]]
    cells: tuple[TableCell, ...]
    unit: str
    direction: Direction
    estimator: str
    count: int
    paper: str
    equation: str

    def __attrs_post_init__(self) -> None:
        wanted = math.prod(len(names) for names in self.axes.values())
        if len(self.cells) != wanted or any(len(set(names)) != len(names) for names in self.axes.values()):
            raise PluginError(
                f"Metric {self.name!r}: a table with axes {dict(self.axes)} needs {wanted} cells and distinct names "
                f"along each axis; got {len(self.cells)} cells.",
                plugin=self.name,
            )
        for cell in self.cells:
            _check_value(self.name, cell.value, cell.status, cell.reason)

    def _rows(self) -> list[dict[str, Any]]:
        properties = {name: getattr(self, name) for name in PROPERTIES}
        columns = self._axis_columns()
        return [
            {
                "metric": self.name,
                **dict(zip(columns, names, strict=True)),
                **attrs.asdict(cell),
                **properties,
            }
            for names, cell in self
        ]

    def _grid(self) -> tuple[str, str, str] | None:
        columns = self._axis_columns()
        return (columns[0], columns[1], "value") if len(columns) == 2 else None

    def _axis_columns(self) -> list[str]:
        return [axis if axis not in COLUMNS else f"axis {axis}" for axis in self.axes]

    def __iter__(self) -> Iterator[tuple[tuple[str, ...], TableCell]]:
        """Yield the names along the axes together with each cell."""
        return zip(product(*self.axes.values()), self.cells, strict=True)

    def at(self, **names: str) -> TableCell:
        """Return one cell: ``table.at(layer="fc", **{"class": "cat"})``.

        Raises:
            UnknownName: An axis is missing or unknown, or has no such name.
        """
        position = 0
        for axis, known in self.axes.items():
            if names.get(axis) not in known:
                raise UnknownName(
                    f"The table {self.name!r} has {', '.join(known)} along {axis!r}; got {names.get(axis)!r}."
                )
            position = position * len(known) + known.index(names[axis])
        if unknown := names.keys() - self.axes.keys():
            raise UnknownName(f"The table {self.name!r} has the axes {', '.join(self.axes)}; got {unknown}.")
        return self.cells[position]

    @property
    def values(self) -> NDArray[np.float64]:
        """The values as an array with one dimension per axis; NaN where undefined."""
        import numpy as np

        flat = [math.nan if cell.value is None else cell.value for cell in self.cells]
        return np.array(flat).reshape([len(names) for names in self.axes.values()])

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        axes = {axis: list(names) for axis, names in self.axes.items()}
        return {**attrs.asdict(self), "axes": axes, "cells": [attrs.asdict(cell) for cell in self.cells]}


Measured = Result | Table


def _check_value(name: str, value: float | None, status: Status, reason: str) -> None:
    finite = value is not None and math.isfinite(value)
    if finite == (status == "undefined") or (value is None) == finite or (status == "ok") == bool(reason):
        raise PluginError(
            f"Metric {name!r}: expected a finite value, or None with the status 'undefined', and a reason with every "
            f"status except 'ok'; got {value!r} with {status!r} and {reason!r}.",
            plugin=name,
        )


@attrs.frozen(eq=False, kw_only=True)
class Observation:
    """One batch and its activations; ``update`` receives those attributes that it names as arguments.

    Attributes:
        images: Input of the network, ``(batch, ...)``.
        labels: Class indices, ``(batch,)``, int64.
        positions: Indices of the examples in the data set, ``(batch,)``, int64.
        logits: Output of the network, ``(batch, classes)``, float32.
        inputs: Input of each layer by name; the first if there are several tensors. A layer called several times in
            one pass appears as ``name#1``, ``name#2``, ...
        outputs: Output of each layer, before an in-place activation changes it.
        other_logits: ``logits`` of the other network, on the same images with its own preprocessing.
        other_inputs: ``inputs`` of the other network.
        other_outputs: ``outputs`` of the other network.
    """

    images: Tensor
    labels: Tensor
    positions: Tensor
    logits: Tensor
    inputs: Mapping[str, Tensor] = attrs.field(factory=dict)
    outputs: Mapping[str, Tensor] = attrs.field(factory=dict)
    other_logits: Tensor | None = None
    other_inputs: Mapping[str, Tensor] = attrs.field(factory=dict)
    other_outputs: Mapping[str, Tensor] = attrs.field(factory=dict)


@attrs.frozen(eq=False, kw_only=True)
class Subject:
    """The network under measurement; ``update`` and ``finalize`` receive those attributes that they name.

    Attributes:
        network: Network in eval mode.
        layers: Requested layers by name.
        classes: Class names in the order of the labels.
        other: Second network, or None.
        other_layers: The same layers of the second network.
    """

    network: nn.Module
    layers: Mapping[str, nn.Module] = attrs.field(factory=dict)
    classes: Sequence[str] = ()
    other: nn.Module | None = None
    other_layers: Mapping[str, nn.Module] = attrs.field(factory=dict)


def flattened(name: str, values: Tensor, how: str) -> Tensor:
    """Return the output of a layer as rows, ``(n, p)``, float32 or float64.

    Args:
        name: Name of the layer, for messages.
        values: Maps ``(batch, channels, height, width)``, tokens ``(batch, length, channels)``, or one vector or number
            an image.
        how: ``"all"``: every value of an image is a column, in any form; ``"pooled"``: channels, each the mean over its
            positions; ``"positions"``: channels, with each position of each image a row. Vectors stay as they are.

    Raises:
        DataError: The values have no positions in a known form, or are not real numbers.
    """
    if values.is_complex() or values.ndim < 1 or (how != "all" and values.ndim > 4):
        raise DataError(
            f"The layer {name!r} gives {values.dtype} of shape {tuple(values.shape)}; expected maps, tokens or "
            "vectors of real numbers. Choose another layer, or flatten='all'.",
            subject=name,
        )
    if not values.is_floating_point() or values.element_size() < 4:
        values = values.float()
    if how == "all" or values.ndim < 3:
        return values.reshape(len(values), -1)
    last = values.movedim(1, -1) if values.ndim == 4 else values
    rows = last.reshape(len(values), -1, last.shape[-1])
    return rows.mean(1) if how == "pooled" else rows.flatten(0, 1)


OBSERVED = tuple(field.name for field in attrs.fields(Observation))
KNOWN = tuple(field.name for field in attrs.fields(Subject))


@runtime_checkable
class Metric(Protocol):
    """Single-pass metric with mergeable states.

    Methods declare their inputs as argument names; see ``Observation`` and ``Subject``. The ``update`` of a metric
    of weights alone takes only the state and is never called.

    States live on the device of the batches and are read only by ``finalize``, so batches cause no synchronization.
    """

    def init(self) -> Any:
        """Return the state before the first batch."""
        ...

    @property
    def update(self) -> Callable[..., Any]:
        """``update(state, logits, labels)`` or other arguments: return the new state, leave the old one unchanged."""
        ...

    def merge(self, left: Any, right: Any) -> Any:
        """Return the state for the batches of both.

        Args:
            left: State of some batches.
            right: State of others.
        """
        ...

    @property
    def finalize(self) -> Callable[..., Any]:
        """``finalize(state)`` or with names of ``Subject``: return a ``Result``, a ``Table`` or a tuple of these."""
        ...


def update_arguments(metric: Metric) -> tuple[str, ...]:
    """Return the argument names of a metric's ``update``, without the state.

    Raises:
        PluginError: ``update`` or ``finalize`` names an unknown argument.
    """
    finalized(metric)
    return _taken(metric.update, (*OBSERVED, *KNOWN))


def finalized(metric: Metric) -> tuple[str, ...]:
    """Return the argument names of a metric's ``finalize``, without the state."""
    return _taken(metric.finalize, KNOWN)


def advance(metric: Metric, state: Any, observation: Observation, subject: Subject) -> Any:
    """Return the state after one more batch.

    Args:
        metric: Metric to update.
        state: State so far.
        observation: The batch.
        subject: The network under measurement.
    """
    sources = {name: observation if name in OBSERVED else subject for name in update_arguments(metric)}
    return metric.update(state, **{name: getattr(source, name) for name, source in sources.items()})


def conclude(metric: Metric, state: Any, subject: Subject) -> tuple[Measured, ...]:
    """Return the results of a metric.

    Args:
        metric: Metric that created ``state``.
        state: State after the last batch.
        subject: The network under measurement.

    Raises:
        PluginError: The metric returned something else, or two results with the same name.
    """
    returned = metric.finalize(state, **{name: getattr(subject, name) for name in finalized(metric)})
    results = returned if isinstance(returned, tuple) else (returned,)
    if not results or not all(isinstance(result, (Result, Table)) for result in results):
        raise PluginError(
            f"finalize of {metric!r} returned {type(returned).__name__}. Return a ck.metrics.Result or Table, or a "
            "tuple of these."
        )
    names = [result.name for result in results]
    if len(set(names)) != len(names):
        raise PluginError(f"finalize of {metric!r} returned two results with the same name: {names}.")
    return results


def _taken(method: Callable[..., Any], known: Sequence[str]) -> tuple[str, ...]:
    """Return the argument names after the state."""
    names = tuple(inspect.signature(method).parameters)[1:]
    for name in names:
        if name not in known:
            raise PluginError(
                f"{getattr(method, '__qualname__', method)} has the unknown argument "
                f"{name!r}.{suggestion(name, known)} Known: {', '.join(known)}."
            )
    return names


def make_metric(name: str, **settings: Any) -> Metric:
    """Make a metric of an installed plugin.

    Args:
        name: Name of the metric.
        settings: Keyword arguments of its factory.

    Raises:
        UnknownName: No installed distribution provides it.
        PluginError: The plugin is broken, or a setting is invalid.
    """
    from compatkit.plugins.discovery import find

    return check_metric(find("metrics", name), settings)


def check_metric(offer: Offer, settings: dict[str, Any]) -> Metric:
    """Make a metric from a plugin's offer and check its methods.

    Args:
        offer: A plugin's factory of a metric.
        settings: Keyword arguments for it.

    Raises:
        PluginError: The factory returned a class, or an object that lacks a method.
    """
    metric = offer.make(settings)
    if isinstance(metric, type):
        raise offer.owner.error(
            f"its factory returns the class {metric.__name__!r}; return an instance of it."
        )
    methods = ("init", "update", "merge", "finalize")
    if missing := [name for name in methods if not callable(getattr(metric, name, None))]:
        raise offer.owner.error(f"the metric lacks {', '.join(missing)}; it needs {', '.join(methods)}.")
    try:
        update_arguments(metric)
    except PluginError as error:
        raise offer.owner.error(str(error)) from error
    return metric


def equal_norm_weights(network: nn.Module, draw: torch.Generator) -> nn.Module:
    """Return a copy whose convolutions and linear layers have Gaussian filters of the same norms: a control.

    Biases, normalization and buffers stay: what a trained network knows beyond the scale of its filters is gone.

    Args:
        network: Left unchanged.
        draw: A generator on the CPU.
    """
    import copy

    import torch
    from torch import nn

    control = copy.deepcopy(network)
    with torch.no_grad():
        for layer in control.modules():
            if isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.Linear):
                norms = layer.weight.double().flatten(1).norm(dim=1, keepdim=True)
                rows = torch.randn(layer.weight.flatten(1).shape, generator=draw, dtype=torch.float64)
                scaled = (rows / rows.norm(dim=1, keepdim=True)).to(norms.device) * norms
                layer.weight.copy_(scaled.view_as(layer.weight))
    return control

"""Metrics: their inputs, their results, their way through batches, and how to make one by name."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import attrs

from compatkit.errors import PluginError, UnknownName
from compatkit.plugins.isolation import suggestion
from compatkit.plugins.loading import Offer

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor, nn

Direction = Literal["higher", "lower", "none"]
Status = Literal["ok", "approximate", "degenerate", "undefined"]


@attrs.frozen(kw_only=True)
class Result:
    """The result of a metric, with the facts needed to interpret it.

    Attributes:
        name: Of the metric.
        value: The figure; None exactly where ``status`` is ``undefined``.
        unit: ``"1"`` for a share or a ratio, ``"nats"``, ``"bits"``, ``"count"``, ...
        direction: Which values are better.
        estimator: Kind of estimate: ``"plug-in"``, ``"unbiased"``, ...
        count: Examples that it was computed from.
        paper: Source of the metric.
        equation: Equation or section there.
        status: ``approximate``: not converged or sampled; ``degenerate``: defined, but not to be trusted.
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

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return attrs.asdict(self)


@attrs.frozen
class Cell:
    """One figure of a table; value, status and reason as in a ``Result``."""

    value: float | None
    status: Status = "ok"
    reason: str = ""


@attrs.frozen(kw_only=True)
class Table:
    """The results of a metric for each combination of layers, classes, ...; see ``Result`` for the other attributes.

    Attributes:
        axes: Names along each axis, by the axis: ``{"layer": ("conv1", "fc"), "class": ("cat", "dog")}``.
        cells: Row by row, the last axis fastest.
    """

    name: str
    axes: Mapping[str, tuple[str, ...]]
    cells: tuple[Cell, ...]
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
                f"Metric {self.name!r}: a table of {dict(self.axes)} holds {wanted} cells, and names along an axis "
                f"differ; got {len(self.cells)} cells.",
                plugin=self.name,
            )
        for one in self.cells:
            _check_value(self.name, one.value, one.status, one.reason)

    def __iter__(self) -> Iterator[tuple[tuple[str, ...], Cell]]:
        """Yield the names along the axes with the cell."""
        return zip(product(*self.axes.values()), self.cells, strict=True)

    def at(self, **names: str) -> Cell:
        """Return one cell: ``table.at(layer="fc", **{"class": "cat"})``.

        Raises:
            UnknownName: An axis is not named, or has no such name.
        """
        place = 0
        for axis, known in self.axes.items():
            if names.get(axis) not in known:
                raise UnknownName(
                    f"The table {self.name!r} has {', '.join(known)} along {axis!r}; got {names.get(axis)!r}."
                )
            place = place * len(known) + known.index(names[axis])
        if unknown := names.keys() - self.axes.keys():
            raise UnknownName(f"The table {self.name!r} has the axes {', '.join(self.axes)}; got {unknown}.")
        return self.cells[place]

    @property
    def values(self) -> NDArray[np.float64]:
        """The figures, one dimension an axis, NaN where undefined."""
        import numpy as np

        flat = [math.nan if one.value is None else one.value for one in self.cells]
        return np.array(flat).reshape([len(names) for names in self.axes.values()])

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        axes = {axis: list(names) for axis, names in self.axes.items()}
        return {**attrs.asdict(self), "axes": axes, "cells": [attrs.asdict(one) for one in self.cells]}


Measured = Result | Table


def _check_value(name: str, value: float | None, status: Status, reason: str) -> None:
    if (value is None) != (status == "undefined") or (value is not None and not math.isfinite(value)):
        raise PluginError(
            f"Metric {name!r}: a result holds a finite value, or None with the status 'undefined'; "
            f"got {value!r} with {status!r}.",
            plugin=name,
        )
    if (status == "ok") == bool(reason):
        raise PluginError(
            f"Metric {name!r}: a reason goes with every status but 'ok'; got {status!r} with {reason!r}.",
            plugin=name,
        )


@attrs.frozen(eq=False, kw_only=True)
class Observation:
    """One batch on its way through a network: arguments that ``update`` may take, by these names.

    Attributes:
        images: Input of the network, ``(batch, ...)``.
        labels: Class indices, ``(batch,)``, int64.
        positions: Of the examples in the data, ``(batch,)``, int64.
        logits: Output of the network, ``(batch, classes)``, float32.
        inputs: Input of each layer, by its name; of several tensors the first. A layer that is called several times in
            a pass has ``name#1``, ``name#2``, ...
        outputs: Output of each layer, before an in-place activation changed it.
        other_logits: The same of the other network, on the same images with its own preprocessing.
        other_inputs: The same of the other network.
        other_outputs: The same of the other network.
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
    """The network under measurement: arguments that ``update`` and ``finalise`` may take, by these names.

    Attributes:
        network: In eval mode.
        layers: The requested layers, by name.
        classes: Names of the classes, in the order of the labels.
        other: Another network, None where there is none.
        other_layers: Its layers of those names.
    """

    network: nn.Module
    layers: Mapping[str, nn.Module] = attrs.field(factory=dict)
    classes: Sequence[str] = ()
    other: nn.Module | None = None
    other_layers: Mapping[str, nn.Module] = attrs.field(factory=dict)


OBSERVED = tuple(one.name for one in attrs.fields(Observation))
KNOWN = tuple(one.name for one in attrs.fields(Subject))


@runtime_checkable
class Metric(Protocol):
    """Passes once through batches; states of parts of the data can be merged.

    A method names its inputs as arguments, and receives them by these names: see ``Observation`` and ``Subject``. A
    metric of weights alone has an ``update`` of the state alone, and receives no batch.

    States live on the device of the batches, and are not read before ``finalise``, so no batch waits for the device.
    """

    def init(self) -> Any:
        """Return the state before the first batch."""
        ...

    @property
    def update(self) -> Callable[..., Any]:
        """``update(state, logits, labels)``, or other names: the state after one more batch; the old one stays."""
        ...

    def merge(self, left: Any, right: Any) -> Any:
        """Return the state after the batches of both."""
        ...

    @property
    def finalise(self) -> Callable[..., Any]:
        """``finalise(state)``, or with names of ``Subject``: a ``Result``, a ``Table``, or a tuple of these."""
        ...


def observed(metric: Metric) -> tuple[str, ...]:
    """Return the names that a metric's ``update`` takes besides the state.

    Raises:
        PluginError: It, or ``finalise``, requests an unknown argument.
    """
    given = {"update": _taken(metric.update, (*OBSERVED, *KNOWN)), "finalise": _taken(metric.finalise, KNOWN)}
    return given["update"]


def advance(metric: Metric, state: Any, observation: Observation, subject: Subject) -> Any:
    """Return the state after one more batch."""
    names = observed(metric)
    return metric.update(
        state, **{name: getattr(observation if name in OBSERVED else subject, name) for name in names}
    )


def conclude(metric: Metric, state: Any, subject: Subject) -> tuple[Measured, ...]:
    """Return the results of a metric.

    Raises:
        PluginError: It returned something else, or two results of one name.
    """
    names = _taken(metric.finalise, KNOWN)
    found = metric.finalise(state, **{name: getattr(subject, name) for name in names})
    results = found if isinstance(found, tuple) else (found,)
    if not results or not all(isinstance(one, (Result, Table)) for one in results):
        raise PluginError(
            f"finalise of {metric!r} returned {type(found).__name__}. Return a compatkit.metrics.Result, a Table, or "
            "a tuple of these."
        )
    if len({one.name for one in results}) != len(results):
        raise PluginError(
            f"finalise of {metric!r} gave two results of one name: {[one.name for one in results]}."
        )
    return results


def _taken(method: Callable[..., Any], known: Sequence[str]) -> tuple[str, ...]:
    """Return the arguments after the state."""
    names = tuple(inspect.signature(method).parameters)[1:]
    for name in names:
        if name not in known:
            raise PluginError(
                f"{getattr(method, '__qualname__', method)} takes {name!r}, which is no known argument."
                f"{suggestion(name, known)} There are {', '.join(known)}."
            )
    return names


def make_metric(name: str, **settings: Any) -> Metric:
    """Find a metric among the installed plugins and make it.

    Raises:
        UnknownName: No installed distribution has it.
        PluginError: It is broken, or a setting is not usable.
    """
    from compatkit.plugins.discovery import find

    return check_metric(find("metrics", name), settings)


def check_metric(offer: Offer, settings: dict[str, Any]) -> Metric:
    """Make an offered metric, and check its methods.

    Raises:
        PluginError: The object lacks a method, or is a class.
    """
    made = offer.make(settings)
    if isinstance(made, type):
        raise offer.owner.error(f"its factory returns the class {made.__name__!r}; return an instance of it.")
    missing = [
        word for word in ("init", "update", "merge", "finalise") if not callable(getattr(made, word, None))
    ]
    if missing:
        raise offer.owner.error(
            f"the metric lacks {', '.join(missing)}; it needs init, update, merge, finalise."
        )
    try:
        observed(made)
    except PluginError as error:
        raise offer.owner.error(str(error)) from error
    return made

"""Metrics: what they give back, how they go through batches, and how to get one by name."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

import attrs

from compatkit.errors import PluginError
from compatkit.plugins.loading import Offer

if TYPE_CHECKING:
    from torch import Tensor

Direction = Literal["higher", "lower", "none"]
Status = Literal["ok", "approximate", "degenerate", "undefined"]


@attrs.frozen(kw_only=True)
class Result:
    """What a metric measured, with what is needed to read it.

    Attributes:
        name: Of the metric.
        value: The figure; None exactly where ``status`` is ``undefined``.
        unit: ``"1"`` for a share or a ratio, ``"nats"``, ``"bits"``, ``"count"``, ...
        direction: Which values are better.
        estimator: What is computed, in words: ``"plug-in"``, ``"unbiased"``, ...
        count: Examples that it rests on.
        paper: Where the metric is from.
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
        undefined = self.value is None
        if undefined != (self.status == "undefined") or (
            self.value is not None and not math.isfinite(self.value)
        ):
            raise PluginError(
                f"Metric {self.name!r}: a result holds a finite value, or None with the status 'undefined'; "
                f"got {self.value!r} with {self.status!r}.",
                plugin=self.name,
            )
        if (self.status == "ok") == bool(self.reason):
            raise PluginError(
                f"Metric {self.name!r}: a reason goes with every status but 'ok'; got {self.status!r} with "
                f"{self.reason!r}.",
                plugin=self.name,
            )

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return attrs.asdict(self)


@runtime_checkable
class Metric(Protocol):
    """Goes once through batches of logits and labels; states of parts of the data can be merged.

    States live where the batches live, and are not read before ``finalise``, so no batch waits for a device.
    """

    def init(self) -> Any:
        """Return the state before the first batch."""
        ...

    def update(self, state: Any, logits: Tensor, labels: Tensor) -> Any:
        """Return the state after one more batch.

        Args:
            state: From ``init`` or ``update``; not changed.
            logits: ``(batch, classes)``.
            labels: Class indices, ``(batch,)``, int64.
        """
        ...

    def merge(self, left: Any, right: Any) -> Any:
        """Return the state after the batches of both."""
        ...

    def finalise(self, state: Any) -> Result:
        """Return the result."""
        ...


def make_metric(name: str, **settings: Any) -> Metric:
    """Find a metric among the installed plugins and make it.

    Raises:
        UnknownName: No installed distribution has it.
        PluginError: It is broken, or a setting is not usable.
    """
    from compatkit.plugins.discovery import find

    return check_metric(find("metrics", name), settings)


def check_metric(offer: Offer, settings: dict[str, Any]) -> Metric:
    """Make the metric that is offered, and refuse what is none.

    Raises:
        PluginError: What the factory returns lacks a method, or is a class.
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
    return made

"""For authors of plugins: checks to run in their own tests, on a factory that need not be installed.

Example::

    from compatkit.testing import assert_builder, assert_metric, assert_regularizer

    def test_conforms():
        assert_regularizer(FeatureNorm, target=2.0)
        assert_metric(Confidence)
        assert_builder(build, "small", num_classes=5)
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from compatkit.errors import PluginError
from compatkit.metrics import Metric, Result, check_metric
from compatkit.plugins import Bound, Offer, PluginWarning, RunPlugins, use
from compatkit.plugins.conformance import check_builder
from compatkit.plugins.plan import EVENTS

if TYPE_CHECKING:
    from torch import Tensor

    Batches = Sequence[tuple[Tensor, Tensor]]

NAME = "tested"
RELATIVE, ABSOLUTE = 1e-5, 1e-6
"""Tolerances: float32 sums over batches may be taken in another order, and may cancel."""


def assert_regularizer(factory: Callable[..., Any], **settings: Any) -> None:
    """Check what can be told of a regularizer without training.

    It is made twice, as a run that uses it twice would; its hooks are spelt, marked and take the arguments
    that they will get; a state goes with a way to load it; making it leaves global random states alone.

    Args:
        factory: What the registration hook registers.
        **settings: Keyword arguments for it.

    Raises:
        PluginError: What does not hold, and the remedy.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("error", PluginWarning)
        try:
            uses = [use(NAME, **settings), use(NAME, as_=f"{NAME}_twice", **settings)]
            plugins = RunPlugins.create(uses, factories={NAME: factory})
        except PluginWarning as warning:
            raise PluginError(str(warning), plugin=NAME) from warning
    bounds: list[Bound] = [bound for event in EVENTS for bound in getattr(plugins, event)]
    if not bounds:
        raise PluginError(
            f"The regularizer {factory!r} keeps a state but takes part in no event of a run. Implement one "
            f"of {', '.join(EVENTS)}.",
            plugin=NAME,
        )


def assert_metric(factory: Callable[..., Any], *, batches: Batches | None = None, **settings: Any) -> None:
    """Check that a metric streams: the result must not depend on how the examples are cut into batches.

    Args:
        factory: What the registration hook registers.
        batches: Logits ``(batch, classes)`` and labels ``(batch,)``; random ones by default, at least two.
        **settings: Keyword arguments for the factory.

    Raises:
        PluginError: What does not hold, and the remedy.
    """
    metric = check_metric(Offer("metrics", NAME, factory), settings)
    parts = list(batches) if batches is not None else _batches()
    if len(parts) < 2:
        raise PluginError(
            f"assert_metric needs at least two batches to merge; got {len(parts)}.", plugin=NAME
        )
    whole = _result(metric, _pass(metric, parts), "after one pass")
    _same(whole, _result(metric, _pass(metric, _halved(parts)), "with smaller batches"), "smaller batches")
    left, right = _pass(metric, parts[:1]), _pass(metric, parts[1:])
    before = _result(metric, left, "after the first batch")
    _same(whole, _result(metric, metric.merge(left, right), "after merge"), "merging two parts")
    metric.update(left, *parts[1])
    _same(
        before, _result(metric, left, "once more"), "updating or merging a copy; make a new state each time"
    )
    empty = _result(metric, metric.init(), "without examples")
    if empty.status != "undefined":
        raise PluginError(
            f"The metric {whole.name!r} gives {empty.value} ({empty.status}) without any example. "
            "Give None with the status 'undefined' and a reason.",
            plugin=NAME,
        )


def assert_builder(factory: Callable[..., Any], model: str, /, **kwargs: Any) -> None:
    """Check that a part can be rebuilt from a model's name and keyword arguments alone.

    The network is built several times: names, shapes and, from one seed, values are the same; it gives logits in
    train and eval mode; other class counts change nothing but the class layer that it states.

    Args:
        factory: What the registration hook registers.
        model: One of its models.
        **kwargs: Keyword arguments for it, as a manifest would keep them.

    Raises:
        PluginError: What does not hold, and the remedy.
    """
    check_builder(Offer("builders", NAME, factory), model, kwargs)


def _batches() -> list[tuple[Tensor, Tensor]]:
    import torch

    source = torch.Generator().manual_seed(0)
    return [
        (
            torch.randn(count, 5, generator=source, requires_grad=True),
            torch.randint(0, 5, (count,), generator=source),
        )
        for count in (8, 6, 3)
    ]


def _halved(parts: Batches) -> list[tuple[Tensor, Tensor]]:
    cut = [(logits, labels, (len(labels) + 1) // 2) for logits, labels in parts]
    pieces = [((a[:n], b[:n]), (a[n:], b[n:])) for a, b, n in cut]
    return [piece for pair in pieces for piece in pair if len(piece[1])]


def _pass(metric: Metric, parts: Batches) -> Any:
    state = metric.init()
    for logits, labels in parts:
        state = metric.update(state, logits, labels)
        if state is None:
            raise PluginError(f"update of {metric!r} returned None. Return the new state.", plugin=NAME)
    return state


def _result(metric: Metric, state: Any, when: str) -> Result:
    result = metric.finalise(state)
    if not isinstance(result, Result):
        raise PluginError(
            f"finalise of {metric!r} returned a {type(result).__name__} {when}. "
            "Return a compatkit.metrics.Result.",
            plugin=NAME,
        )
    return result


def _same(expected: Result, came: Result, change: str) -> None:
    one, other = expected.value, came.value
    close = one == other or (
        one is not None and other is not None and math.isclose(one, other, rel_tol=RELATIVE, abs_tol=ABSOLUTE)
    )
    if not close or expected.count != came.count:
        raise PluginError(
            f"The metric {expected.name!r} changed from {one} (of {expected.count}) to {other} "
            f"(of {came.count}) by {change}.",
            plugin=NAME,
        )

"""The author kit refuses what would only show in somebody's run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import pytest
import torch

from compatkit import hookimpl
from compatkit.errors import PluginError
from compatkit.metrics import Result
from compatkit.testing import assert_metric, assert_regularizer


class Norm:
    def __init__(self, target: float = 1.0) -> None:
        self.target = target

    @hookimpl
    def compatkit_losses(self, step: Any) -> Any:
        return {"norm": step.features.mean()}


class Misspelt:
    @hookimpl
    def compatkit_lossess(self, step: Any) -> Any: ...


class StateOnly:
    @hookimpl
    def compatkit_state(self) -> Any: ...

    @hookimpl
    def compatkit_load_state(self, state: Any) -> Any: ...


class Drawn(Norm):
    def __init__(self) -> None:
        self.layer = torch.nn.Linear(2, 2)


def test_good_regularizer() -> None:
    assert_regularizer(Norm)
    assert_regularizer(Norm, target=2.0)


one = Norm()


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (Misspelt, "Did you mean 'compatkit_losses'"),
        (StateOnly, "takes part in no event of a run"),
        (Drawn, "its factory changed torch's random state"),
        (lambda: one, "returned the same object"),
        (lambda: Norm, "is the class 'Norm', not an instance"),
    ],
)
def test_bad_regularizer(factory: Callable[..., Any], message: str) -> None:
    with pytest.raises(PluginError, match=message):
        assert_regularizer(factory)


@attrs.define
class Mean:
    """Mean logit; the switches break one promise each."""

    mean_of_means: bool = False
    in_place: bool = False
    zero: bool = False
    merges: bool = True

    def init(self) -> Any:
        return [0.0, 0]

    def update(self, state: Any, logits: Any, labels: Any) -> Any:
        total, count = float(logits.detach().sum()), len(labels)
        if self.mean_of_means:
            total, count = total / count, 1
        if self.in_place:
            state[0] += total
            state[1] += count
            return state
        return [state[0] + total, state[1] + count]

    def merge(self, left: Any, right: Any) -> Any:
        return [left[0] + right[0], left[1] + right[1]] if self.merges else left

    def finalise(self, state: Any) -> Result:
        value = state[0] / state[1] if state[1] else (0.0 if self.zero else None)
        status = "undefined" if value is None else "ok"
        return Result(
            name="mean",
            value=value,
            unit="1",
            direction="none",
            estimator="plug-in",
            count=state[1],
            paper="none",
            equation="none",
            status=status,
            reason="" if status == "ok" else "no examples",
        )


def test_good_metric() -> None:
    assert_metric(Mean)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mean_of_means": True}, "by smaller batches"),
        ({"in_place": True}, "make a new state each time"),
        ({"zero": True}, "without any example"),
        ({"merges": False}, "by merging two parts"),
        ({"nonsense": 1}, "no setting 'nonsense'"),
    ],
)
def test_bad_metric(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(PluginError, match=message):
        assert_metric(Mean, **settings)


def test_what_is_no_metric() -> None:
    with pytest.raises(PluginError, match="the metric lacks init, update, merge, finalise"):
        assert_metric(Norm)
    with pytest.raises(PluginError, match="its factory returns the class 'Mean'"):
        assert_metric(lambda: Mean)
    with pytest.raises(PluginError, match="at least two batches"):
        assert_metric(Mean, batches=[(torch.zeros(1, 2), torch.zeros(1))])


@pytest.mark.parametrize(
    ("value", "status", "reason"),
    [
        (None, "ok", ""),
        (1.0, "undefined", "x"),
        (float("nan"), "ok", ""),
        (1.0, "ok", "x"),
        (1.0, "degenerate", ""),
    ],
)
def test_result_that_contradicts_itself(value: Any, status: Any, reason: str) -> None:
    with pytest.raises(PluginError, match="Metric 'm': "):
        Result(
            name="m",
            value=value,
            unit="1",
            direction="none",
            estimator="",
            count=1,
            paper="",
            equation="",
            status=status,
            reason=reason,
        )

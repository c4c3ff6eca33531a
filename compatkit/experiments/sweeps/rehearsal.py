"""Everything of a sweep that can be known before the first run begins, and the digest of each run's plan."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import attrs
import torch

from compatkit.components.workspace import Registry
from compatkit.contracts.codec import digest, dumps
from compatkit.errors import CompatkitError, UsageError
from compatkit.experiments.recipes import Recipe
from compatkit.experiments.sweeps.orders import Bench, Order
from compatkit.experiments.sweeps.records import SCHEMA
from compatkit.plugins.plan import RunPlugins
from compatkit.registry.disk import read as read_file
from compatkit.training.prepare import FitRequest, prepare
from compatkit.training.settings import BESIDE

Progress = Callable[[int, int, str], None]


def rehearse(
    orders: Sequence[Order], bench: Bench, registry: Registry | None, progress: Progress
) -> list[Order]:
    """Load all data sets and begin a run of every kind; seeds make no other kind.

    Args:
        orders: Their plans are not known yet.
        bench: Keeps the data sets for the runs.
        registry: Where heads to train against are; None where there is none yet.
        progress: Called with done, total and what is done.

    Returns:
        The orders with their plans.

    Raises:
        CompatkitError: A run cannot be trained; the message names it, and nothing was trained.
    """
    kinds: set[bytes] = set()
    planned: list[Order] = []
    for number, order in enumerate(orders):
        progress(number, len(orders), f"checks {order.run}")
        try:
            plan = bench.recipe(order)
            if plan.against and registry is None:
                raise UsageError(
                    f"It trains against {', '.join(map(str, plan.against.values()))}, and {order.registry} is no "
                    "registry yet."
                )
            heads = registry.frozen(**plan.against) if registry is not None else {}
            decides = _decides(order, plan, {name: head.digest for name, head in heads.items()})
            kind = dumps({**decides, "trainer": {**decides["trainer"], "seed": 0}})
            if kind not in kinds:
                trainer = attrs.evolve(plan.trainer, checkpoint=None, execution="eager")
                request = FitRequest(trainer, plan.tasks, plan.regularizers, heads, plan.frozen_statistics)
                with prepare(request):
                    kinds.add(kind)
        except CompatkitError as error:
            error.args = (f"Run {order.run}: {error} Nothing was trained.", *error.args[1:])
            raise
        planned.append(attrs.evolve(order, plan=digest(dumps(decides))))
    return planned


def _decides(order: Order, plan: Recipe, heads: Mapping[str, str]) -> dict[str, Any]:
    """Return everything that decides the result of a run and is known before it, as JSON values."""
    settings = attrs.asdict(plan.trainer, filter=lambda one, _: one.name not in BESIDE)
    return {
        "schema": SCHEMA,
        "prefix": order.prefix,
        "trainer": settings,
        "tasks": [_task(task) for task in plan.tasks],
        "regularizers": RunPlugins.create(plan.regularizers).manifest(),
        "frozen": {"heads": dict(heads), "statistics": plan.frozen_statistics},
        "versions": {name: version(name) for name in ("compatkit",)} | {"torch": torch.__version__},
    }


def _task(task: Any) -> dict[str, Any]:
    weights = task.weights
    if weights is not None and weights != "pretrained":
        path = Path(weights)
        found = read_file(path, path.parent)
        weights = digest(found[0]) if found is not None else str(path)
    return {
        **{name: getattr(task, name) for name in ("name", "backbone", "split", "builder", "size", "augment")},
        "kwargs": dict(task.kwargs),
        "weights": weights,
        "data": {side: getattr(task.data, side).digest for side in ("train", "test")}
        | {"name": task.data.name},
    }

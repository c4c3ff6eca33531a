"""Checks that authors of plugins run in their own tests, on a factory that need not be installed.

Example::

    from compatkit.training.testing import assert_builder, assert_metric, assert_regularizer

    def test_conforms():
        assert_regularizer(FeatureNorm, target=2.0)
        assert_metric(Confidence)
        assert_builder(build, "small", num_classes=5)
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from compatkit.data.dataset import DataSet, Split
from compatkit.errors import PluginError
from compatkit.evaluation.layers import recording
from compatkit.evaluation.metrics import (
    Measured,
    Metric,
    Observation,
    Result,
    Subject,
    TableCell,
    advance,
    check_metric,
    conclude,
    update_arguments,
)
from compatkit.plugins import Bound, Offer, PluginWarning, RunPlugins, use
from compatkit.plugins.builders import check_builder
from compatkit.plugins.plan import EVENTS
from compatkit.training.conformance import Trial
from compatkit.training.prepare import Frozen
from compatkit.training.task import Task

if TYPE_CHECKING:
    from torch import Tensor

    Batches = Sequence[tuple[Tensor, Tensor] | Observation]

NAME = "tested"
RELATIVE, ABSOLUTE = 1e-5, 1e-6
"""Tolerances: float32 sums over batches may be taken in another order, and may cancel."""


def assert_regularizer(
    factory: Callable[..., Any],
    *,
    tasks: Sequence[Task] | None = None,
    frozen: Frozen = None,
    **settings: Any,
) -> None:
    """Check a regularizer by training with it, a few steps of a few runs on a CPU.

    It is created twice, as in a run with two instances: its hooks must have known names, marks and arguments; a state
    needs a way to load it; creating it must not change global random states. In the runs, all parameters that its
    losses depend on must be trained; two runs of one seed, and one that is interrupted and resumed, must agree; a hook
    that is declared pure is called twice; views and losses must leave weights alone; a loss must not grow with the
    batch; nothing may write into images, labels or features; and a step in bf16 with two micro-batches must work. With
    ``compatkit_after_evaluation``, each step is followed by an evaluation. Samplers must leave weights alone. Dry runs,
    which take no step or steps without ``compatkit_pretrain``, must work, and so must a teardown after them or an
    interruption.

    Args:
        factory: As given to the registration hook.
        tasks: Tasks to train, at least 8 images each; by default two small residual networks on noise of 3 x 16 x 16
            pixels, of three classes.
        frozen: As for ``Trainer.fit``, if it trains against released parts.
        **settings: Keyword arguments for the factory.

    Raises:
        PluginError: A requirement does not hold; the message has the remedy. Also if the regularizer refuses the tasks.
        TrainingError: A loss is not finite.
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
            f"The regularizer {factory!r} implements no event of a run. Implement one of {', '.join(EVENTS)}.",
            plugin=NAME,
        )
    Trial(factory, uses[0], tasks or small_tasks(), frozen).run()


def assert_metric(
    factory: Callable[..., Any],
    *,
    batches: Batches | None = None,
    subject: Subject | None = None,
    **settings: Any,
) -> None:
    """Check that a metric streams: the result must not depend on how the examples are cut into batches.

    Without any example a result is undefined, unless it counts none, as one of weights alone does.

    Args:
        factory: As given to the registration hook.
        batches: Logits ``(batch, classes)`` and labels ``(batch,)``, or ``ck.metrics.Observation`` where the metric
            needs more; at least two. Random ones by default, of 3 x 8 x 8 pixels through two small networks.
        subject: The network that those batches belong to; by default the first of the two networks, its layers
            ``hidden``, ``act`` and ``fc``, and the second as the other one.
        **settings: Keyword arguments for the factory.

    Raises:
        PluginError: A requirement does not hold; the message has the remedy.
    """
    metric = check_metric(Offer("metrics", NAME, factory), settings)
    default_subject, default_batches = _defaults()
    about = subject if subject is not None else default_subject
    parts = default_batches if batches is None else [_observation(batch) for batch in batches]
    if len(parts) < 2:
        raise PluginError(
            f"assert_metric needs at least two batches to merge; got {len(parts)}.", plugin=NAME
        )

    def results(state: Any) -> tuple[Measured, ...]:
        return conclude(metric, state, about)

    full = results(_pass(metric, parts, about))
    if not update_arguments(metric):
        _same(full, results(metric.merge(metric.init(), metric.init())), "merging two parts")
        return
    _same(full, results(_pass(metric, _halved(parts), about)), "smaller batches")
    left, right = _pass(metric, parts[:1], about), _pass(metric, parts[1:], about)
    before = results(left)
    _same(full, results(metric.merge(left, right)), "merging two parts")
    advance(metric, left, parts[1], about)
    _same(before, results(left), "updating or merging a copy; make a new state each time")
    for result, empty in zip(full, results(metric.init()), strict=True):
        if result.count and any(cell.status != "undefined" for cell in _cells(empty)):
            raise PluginError(
                f"The metric {empty.name!r} gives {[cell.value for cell in _cells(empty)]} without any example. Give "
                "None with the status 'undefined' and a reason.",
                plugin=NAME,
            )


def assert_builder(factory: Callable[..., Any], model: str, /, **kwargs: Any) -> None:
    """Check that a part can be rebuilt from a model's name and keyword arguments alone.

    The network is built several times: names, shapes and, from one seed, values are the same; it gives logits in
    train and eval mode; other class counts change nothing but the class layer that it states.

    Args:
        factory: As given to the registration hook.
        model: One of its models.
        **kwargs: Keyword arguments for it, as a manifest would keep them.

    Raises:
        PluginError: A requirement does not hold; the message has the remedy.
    """
    check_builder(Offer("builders", NAME, factory), model, kwargs)


def small_tasks() -> list[Task]:
    """Return the default tasks for a regularizer: two, with noise of 3 x 16 x 16 pixels, 12 images, three classes."""
    draw, names = np.random.default_rng(0), ("a", "b", "c")
    labels = np.arange(12, dtype=np.int64) % len(names)

    def split(name: str) -> Split:
        return Split(draw.integers(0, 256, (12, 16, 16, 3), np.uint8), labels, names, name)

    sets = [DataSet(name, split(f"{name}/train"), split(f"{name}/test")) for name in ("left", "right")]
    return [Task(data.name, data, "resnet8_cifar", "layer2", size=16) for data in sets]


def _defaults() -> tuple[Subject, list[Observation]]:
    """Return the default networks and batches for a metric."""
    import torch

    source = torch.Generator().manual_seed(0)

    def network() -> torch.nn.Sequential:
        module = torch.nn.Sequential()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(torch.randint(0, 2**31, (), generator=source)))
            module.add_module("flat", torch.nn.Flatten())
            module.add_module("hidden", torch.nn.Linear(192, 6))
            module.add_module("act", torch.nn.Tanh())
            module.add_module("fc", torch.nn.Linear(6, 5))
        return module.eval()

    pair = network(), network()
    layers = [{name: getattr(network, name) for name in ("hidden", "act", "fc")} for network in pair]
    classes = tuple("abcde")
    about = Subject(network=pair[0], layers=layers[0], classes=classes, other=pair[1], other_layers=layers[1])
    batches: list[Observation] = []
    for count in (8, 6, 3):
        images = torch.rand(count, 3, 8, 8, generator=source)
        fields: dict[str, Any] = {"images": images, "positions": sum(len(batch.labels) for batch in batches)}
        fields["positions"] = torch.arange(count) + fields["positions"]
        fields["labels"] = torch.randint(0, 5, (count,), generator=source)
        for prefix, member, named_layers in zip(("", "other_"), pair, layers, strict=True):
            with recording(named_layers, inputs=True, outputs=True) as record:
                # Spread out, and with a gradient, as what comes out of a network that is trained.
                fields[f"{prefix}logits"] = member(images) * 5
            fields[f"{prefix}inputs"], fields[f"{prefix}outputs"] = record.take(1)
        batches.append(Observation(**fields))
    return about, batches


def _observation(batch: tuple[Tensor, Tensor] | Observation) -> Observation:
    if isinstance(batch, Observation):
        return batch
    import torch

    logits, labels = batch
    return Observation(images=logits, labels=labels, positions=torch.arange(len(labels)), logits=logits)


def _halved(parts: Sequence[Observation]) -> list[Observation]:
    halves = [(part, (len(part.labels) + 1) // 2) for part in parts]
    pieces = [(_rows(part, slice(0, n)), _rows(part, slice(n, None))) for part, n in halves]
    return [piece for pair in pieces for piece in pair if len(piece.labels)]


def _rows(batch: Observation, rows: slice) -> Observation:
    def taken(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name: tensor[rows] for name, tensor in value.items()}
        return value[rows]

    values = {field.name: getattr(batch, field.name) for field in attrs.fields(Observation)}
    return attrs.evolve(batch, **{name: taken(value) for name, value in values.items() if value is not None})


def _pass(metric: Metric, parts: Sequence[Observation], about: Subject) -> Any:
    state = metric.init()
    if not update_arguments(metric):
        return state
    for batch in parts:
        state = advance(metric, state, batch, about)
        if state is None:
            raise PluginError(f"update of {metric!r} returned None. Return the new state.", plugin=NAME)
    return state


def _cells(result: Measured) -> tuple[TableCell, ...]:
    if isinstance(result, Result):
        return (TableCell(result.value, result.status, result.reason),)
    return result.cells


def _same(expected: Sequence[Measured], actual: Sequence[Measured], change: str) -> None:
    for full, part in zip(expected, actual, strict=True):
        pairs = zip(_cells(full), _cells(part), strict=True)
        if not all(_close(left.value, right.value) for left, right in pairs) or full.count != part.count:
            before, after = ([cell.value for cell in _cells(result)] for result in (full, part))
            counts = f"from {before} (of {full.count}) to {after} (of {part.count})"
            raise PluginError(f"The metric {full.name!r} changed {counts} by {change}.", plugin=NAME)


def _close(left: float | None, right: float | None) -> bool:
    if left is None or right is None:
        return left is right
    return math.isclose(left, right, rel_tol=RELATIVE, abs_tol=ABSOLUTE)

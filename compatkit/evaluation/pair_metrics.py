"""Metric plugins on pairs: which apply, and one of them on one pair beside the pass that gives its accuracy.

A metric sees the recombined network under the batch-norm policy of the cell, on those test images whose class the head
knows. Labels count the outputs of the head, as for ``measure`` on a recombination.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import attrs
import torch
from torch import Tensor, nn

from compatkit.contracts.metric_figures import MetricFigure
from compatkit.errors import UsageError, type_of
from compatkit.evaluation.extractor_pass import EvaluatedHead
from compatkit.evaluation.metrics import (
    Measured,
    Metric,
    Observation,
    Result,
    Subject,
    advance,
    check_metric,
    conclude,
    finalized,
    update_arguments,
)
from compatkit.evaluation.prospect import have_batch_norm
from compatkit.plugins.discovery import find
from compatkit.plugins.isolation import described
from compatkit.plugins.loading import Offer, shown

if TYPE_CHECKING:
    from compatkit.evaluation.component import Component
    from compatkit.evaluation.conditions import Conditions, ImageFacts, Settings

LAYERS = frozenset(("inputs", "outputs", "other_inputs", "other_outputs", "layers", "other_layers"))
"""Inputs of a metric that need named layers."""
MAX_FIGURES = 1000
"""Largest number of figures that a matrix keeps of one metric and one pair."""
Names = Sequence[str]


@attrs.frozen(eq=False)
class PairMetric:
    """A metric plugin with its settings, for any number of pairs.

    Attributes:
        offer: The plugin's factory.
        name: Name by which it was asked for: ``accuracy``, or ``package:accuracy``.
        settings: Its settings, JSON values.
        inputs: Inputs that its methods name.
    """

    offer: Offer
    name: str
    settings: Mapping[str, Any]
    inputs: frozenset[str]

    @classmethod
    def named(cls, name: str, settings: Mapping[str, Any]) -> PairMetric:
        """Return a metric by name.

        Args:
            name: Name of the plugin.
            settings: Keyword arguments of its factory, JSON values.

        Raises:
            UnknownName: No installed distribution provides it.
            UsageError: It needs what a pair does not have, or a setting is not a JSON value.
            PluginError: The plugin is broken, or a setting is invalid.
        """
        offer = find("metrics", name)
        try:
            settings = json.loads(json.dumps(dict(settings), allow_nan=False, sort_keys=True))
        except (TypeError, ValueError) as error:
            raise UsageError(
                f"Settings of {name} in a matrix are JSON values, since its figures are stored by them: {error}.",
                subject=name,
            ) from error
        metric = check_metric(offer, dict(settings))
        updated = set(update_arguments(metric))
        if lacking := sorted(LAYERS & updated):
            raise UsageError(
                f"The metric {name} needs layers ({', '.join(lacking)}), which heads and extractors of a matrix do not "
                f"share. Measure single pairs: `compatkit metric EXTRACTOR HEAD {name} --layer GLOB`.",
                subject=name,
            )
        return cls(offer, name, settings, frozenset((*updated, *finalized(metric))))

    @property
    def label(self) -> str:
        """Name with settings: ``accuracy(top=5)``."""
        return f"{self.offer.name}({shown(self.settings)})" if self.settings else self.offer.name

    @property
    def plugin(self) -> str:
        """Distribution and version."""
        return f"{self.offer.distribution or 'unknown'} {self.offer.version or ''}".strip()

    @property
    def key(self) -> str:
        """Distribution, name and settings, by which its figures are stored."""
        settings = f" {json.dumps(self.settings, sort_keys=True)}" if self.settings else ""
        return f"{self.offer.distribution or 'unknown'}:metrics.{self.offer.name}{settings}"

    @property
    def compares(self) -> bool:
        """Whether it compares two networks."""
        return any(name.startswith("other") for name in self.inputs)

    def make(self) -> Metric:
        """Return a new metric."""
        return check_metric(self.offer, dict(self.settings))

    def conditions(
        self,
        conditions: Conditions,
        images: ImageFacts,
        extractor: Component,
        head: Component,
        own: Component | None,
        adapters: Sequence[tuple[str, str]] = (),
    ) -> Settings:
        """Return the settings that determine the key of its figures: those of the accuracy, for this metric.

        Args:
            conditions: Conditions of the matrix.
            images: Images that the pair is measured on.
            extractor: Extractor of the pair.
            head: Head of the pair.
            own: The extractor's own head, or None.
            adapters: Function digest and description of each adapter.
        """
        compared = own if self.compares else None
        heads = [head] if compared is None else [head, compared]
        settings = conditions.settings(
            images,
            batch_norm=any(have_batch_norm(extractor.manifest, part.manifest) for part in heads),
            bound="" if compared is None else compared.function,
            adapters=adapters,
        )
        return settings | {"metric": self.key, "metric_version": self.offer.version or ""}

    def without_figure(self, status: Any, reason: str) -> tuple[MetricFigure, ...]:
        """Return the figure of a pair without a result.

        Args:
            status: ``missing`` or ``failed``.
            reason: Why.
        """
        return (MetricFigure(self.offer.name, self.label, status=status, reason=reason, plugin=self.plugin),)


def pair_metrics(metrics: Any) -> tuple[PairMetric, ...]:
    """Return metrics by their names.

    Args:
        metrics: Names, or a mapping from names to settings.

    Raises:
        UnknownName: A metric does not exist.
        UsageError: Another type, the same metric twice, or one that needs what a pair does not have.
        PluginError: A plugin is broken, or a setting is invalid.
    """
    if isinstance(metrics, Mapping):
        items = list(metrics.items())
    elif isinstance(metrics, Iterable) and not isinstance(metrics, str | bytes):
        items = [(name, {}) for name in metrics]
    else:
        raise _unfit(metrics)
    for name, settings in items:
        if not isinstance(name, str):
            raise _unfit(name)
        if not isinstance(settings, Mapping):
            raise _unfit(settings)
    asked: dict[str, PairMetric] = {}
    for name, settings in items:
        metric = PairMetric.named(name, settings)
        if metric.key in asked:
            raise UsageError(f"The metric {metric.label} is named twice; name it once.", subject=name)
        asked[metric.key] = metric
    return tuple(asked.values())


def _unfit(came: Any) -> UsageError:
    return UsageError(
        "metrics= expects names of installed metrics, such as ['accuracy'], or settings by name, such as "
        f"{{'accuracy': {{'top': 5}}}}: figures are stored by them. Got {type_of(came)}.",
        subject=came,
    )


@attrs.define(eq=False)
class Meter:
    """A metric on one pair; a failure of the plugin ends it and is kept as text.

    Attributes:
        asked: The metric.
        head: The pair in the pass.
        other: The extractor's own head in the pass, for metrics of two networks.
        subject: The recombined network, and the own one.
        labels: Class of each image as an output of the head, -1 for classes it does not know; int64, ``(images,)``.
        failure: Why there is no result, or empty.
        results: What the metric returned.
    """

    asked: PairMetric
    head: EvaluatedHead
    other: EvaluatedHead | None
    subject: Subject
    labels: Tensor
    failure: str = ""
    results: tuple[Measured, ...] = ()
    _metric: Any = attrs.field(init=False, default=None)
    _state: Any = attrs.field(init=False, default=None)

    def __attrs_post_init__(self) -> None:
        with self._guarded():
            self._metric = self.asked.make()
            self._state = self._metric.init()

    def observe(self, positions: Tensor, images: Tensor, logits: Mapping[EvaluatedHead, Tensor]) -> None:
        """Add one batch.

        Args:
            positions: Indices of the images, ``(batch,)``.
            images: Normalized images, ``(batch, channels, height, width)``.
            logits: Logits of each head that took the features, ``(batch, outputs)``.
        """
        if self.failure or self.head not in logits or not update_arguments(self._metric):
            return
        labels = self.labels[positions]
        known = labels >= 0
        if not known.any():
            return
        rows = known.nonzero()[:, 0].to(images.device)

        def of(values: Tensor) -> Tensor:
            return values.to(images.device)[rows]

        other = None if self.other is None else logits.get(self.other)
        batch = Observation(
            images=of(images),
            labels=of(labels),
            positions=of(positions),
            logits=of(logits[self.head]),
            other_logits=None if other is None else of(other),
        )
        with self._guarded():
            self._state = advance(self._metric, self._state, batch, self.subject)

    def conclude(self) -> None:
        """Take the results; the network is still as it was for the last batch."""
        if not self.failure:
            with self._guarded():
                self.results = conclude(self._metric, self._state, self.subject)

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # a plugin may raise anything; the accuracies stay
            self.failure = f"{self.asked.offer.owner}: {described(error)}"

    def figures(self) -> tuple[MetricFigure, ...]:
        """Return the figures of the cell; tables give one for each of their cells."""
        figures = () if self.failure else tuple(_figures(self.asked, self.results))
        if self.failure or not figures:
            reason = self.failure or "it gives no figure of a network without named layers"
            return self.asked.without_figure("failed", reason)
        if len(figures) > MAX_FIGURES:
            return self.asked.without_figure(
                "failed",
                f"it gives {len(figures):,} figures, and a matrix keeps up to {MAX_FIGURES:,} of a pair; use "
                "`compatkit metric`",
            )
        return figures


def _figures(asked: PairMetric, results: Sequence[Measured]) -> Iterator[MetricFigure]:
    for result in results:
        single = isinstance(result, Result)
        for names, cell in [((), result)] if single else list(result):
            yield MetricFigure(
                name=f"{result.name}[{', '.join(names)}]" if names else result.name,
                metric=asked.label,
                value=None if cell.value is None else float(cell.value),
                status=cell.status,
                reason=cell.reason,
                unit=result.unit,
                direction=result.direction,
                estimator=result.estimator,
                count=int(result.count),
                plugin=asked.plugin,
            )


def labels_of(split_labels: Tensor, classes: Sequence[tuple[int, int]], count: int) -> Tensor:
    """Return the output of the head for each image, -1 for classes that it does not know.

    Args:
        split_labels: Classes of the images, int64 ``(n,)``.
        classes: Common classes: (index in the split, output of the head).
        count: Number of classes of the split.
    """
    outputs = torch.full((count,), -1, dtype=torch.int64)
    for mine, theirs in classes:
        outputs[mine] = theirs
    return outputs[split_labels.long()]


def subject_of(network: nn.Module, other: nn.Module | None, classes: Names) -> Subject:
    """Return the networks as a metric gets them: the shells are in eval mode like their parts."""
    for module in filter(None, (network, other)):
        module.training = False
        for child in module.children():
            if isinstance(child, nn.ModuleList):
                child.training = False
    return Subject(network=network, classes=classes, other=other)

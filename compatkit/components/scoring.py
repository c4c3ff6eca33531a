"""Score extractors for a data set before any training."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import attrs

from compatkit.components.images import OR_SET, images_again
from compatkit.components.loading import PartLoader
from compatkit.components.ranking import RANDOM, ExtractorScore
from compatkit.data.dataset import DataSet, Split
from compatkit.errors import DataError, UsageError, type_of
from compatkit.evaluation.component import Component
from compatkit.evaluation.metrics import (
    Metric,
    Observation,
    Result,
    Subject,
    TableCell,
    advance,
    check_metric,
    conclude,
    equal_norm_weights,
    finalized,
    update_arguments,
)
from compatkit.evaluation.records import is_accuracy, read_figures

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor, nn

    from compatkit.contracts.contract import Data
    from compatkit.registry.store import Store

OF_EXTRACTOR = frozenset(("outputs", "logits", "network", "layers"))
"""Arguments of ``update`` and ``finalize`` that depend on the extractor; a metric that takes none scores data sets."""
SCORES = ("logme", "h_score", "leep", "nce", "theory_transfer")
NORMALIZING = frozenset(("source", "mean", "std"))
"""Settings of a metric that normalizes images of bytes itself, and so computes once what normalizations share."""
MAX_SOURCE = 1000
"""Maximum number of images of a source data set."""
PREPARED = 2
"""Sets of images of bytes that are kept: those of the target, and of the last source."""


def score(
    part: Component,
    head: Component | None,
    offers: Mapping[str, Any],
    origins: Origins,
    controls: bool,
    seed: int,
    batch_size: int,
    device: str,
) -> tuple[list[ExtractorScore], float]:
    """Return all scores of one extractor, and the seconds of its pass."""
    import torch

    contract, sample = part.manifest.contract.data, origins.sample
    began, rows = time.perf_counter(), list[ExtractorScore]()
    examples = origins.pixels(sample, contract), sample.labels
    seen = _observe(part.module, head, *examples, contract, batch_size, device)
    took, random = time.perf_counter() - began, list[Observation]()
    if controls:
        other = equal_norm_weights(part.module, torch.Generator().manual_seed(seed))
        random = _observe(other, head, *examples, contract, batch_size, device)
    subject = Subject(network=part.module, layers={"features": part.module}, classes=sample.classes)
    for name, offer in offers.items():
        start = time.perf_counter()
        others, direction = dict[str, TableCell](), "none"
        try:
            metric, figures = origins.figures(name, offer, part, head, seen, subject)
            cell, others, direction = figures[0], dict(figures[1]), figures[2]
            if controls and {"outputs", "logits"} & set(update_arguments(metric)):
                others[RANDOM] = _figures(metric, random, subject)[0]
        except DataError as error:
            cell = TableCell(None, "undefined", str(error))
        rows.append(
            ExtractorScore(
                score=name,
                extractor=part.reference,
                cell=cell,
                other_values=others,
                direction=direction,  # type: ignore[arg-type]
                seconds=time.perf_counter() - start,
            )
        )
    return rows, took


Figures = tuple[TableCell, dict[str, TableCell], str]


def _figures(metric: Any, seen: Iterable[Observation], subject: Subject) -> Figures:
    """Return the first figure of a metric, the others by their name along the last axis, and the direction."""
    state = metric.init()
    for observation in seen:
        state = advance(metric, state, observation, subject)
    result = conclude(metric, state, subject)[0]
    if isinstance(result, Result):
        return TableCell(result.value, result.status, result.reason), {}, result.direction
    if not result.cells:
        raise DataError("the metric compares networks; a score rates a single one, such as logme")
    (_, first), *others = list(result)
    return first, {names[-1]: cell for names, cell in others}, result.direction


def _observe(
    module: nn.Module,
    head: Component | None,
    pixels: Tensor,
    classes: NDArray[np.int64],
    contract: Data,
    batch_size: int,
    device: str,
) -> list[Observation]:
    """Return the features of an extractor and the logits of its own head for images of bytes, on the device.

    Scores reduce them there, most to a row of features for each image.
    """
    import torch

    from compatkit.evaluation.batchnorm import evaluation_mode
    from compatkit.evaluation.conditions import Conditions
    from compatkit.evaluation.extractor_pass import moved_to, precision_context
    from compatkit.evaluation.preprocessing import normalize

    labels, observations = torch.from_numpy(classes).long(), list[Observation]()
    modules = [module, *([head.module] if head is not None else [])]
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(precision_context(Conditions("running", batch_size, 0, "float32", device)))
        for network in modules:
            stack.enter_context(moved_to(network, device))
            stack.enter_context(evaluation_mode(network))
        for at in torch.arange(len(pixels)).split(batch_size):
            images = normalize(pixels[at], contract, device=device)
            features = module(images.clone())
            copied = features.clone()  # the head may change its input
            logits = features.flatten(1) if head is None else head.module(features)
            observations.append(
                Observation(
                    images=images,
                    labels=labels[at].to(images.device),
                    positions=at.to(images.device),
                    logits=logits.float(),
                    outputs={"features": copied},
                )
            )
    return observations


class Origins:
    """Source data sets of extractors, and the scores of data sets, each computed once."""

    def __init__(
        self, store: Store, sample: Split, sources: Callable[[str], DataSet] | None, seed: int
    ) -> None:
        """Initialize with the arguments of ``rank``, and the target's images."""
        self.store, self.sample, self.sources, self.seed = store, sample, sources, seed
        self._pixels: dict[Any, Tensor] = {}
        self._loaded: dict[str, DataSet] = {}
        self._scored: dict[Any, tuple[Metric, Figures] | DataError] = {}

    def figures(
        self,
        name: str,
        offer: Any,
        part: Component,
        head: Component | None,
        seen: Iterable[Observation],
        subject: Subject,
    ) -> tuple[Metric, Figures]:
        """Return a score and its figures.

        A metric says what it depends on by its arguments: one that takes nothing of the extractor is computed once
        for each source and preprocessing, one that takes no images once for each source. One with the settings
        ``NORMALIZING`` gets images of bytes, and the mean and standard deviation to normalize them with.

        Args:
            name: Name of the score.
            offer: Factory of the metric, from a plugin.
            part: Extractor to score.
            head: Its own head, or None.
            seen: Features and logits of the target's images.
            subject: Network of the extractor.

        Raises:
            DataError: The score is undefined.
        """
        preprocessing = attrs.evolve(part.manifest.contract.data, labels=None)
        settings = inspect.signature(offer.factory).parameters.keys()
        has_source, normalizing = "source" in settings, settings >= NORMALIZING
        train = self._data(part).train if has_source else None
        source = None if train is None else (train.digest, train.classes)
        for key in ((name, source, preprocessing), (name, source, None)):
            if key in self._scored:
                if isinstance(known := self._scored[key], DataError):
                    raise known
                return known
        given: dict[str, Any] = {}
        if train is not None:
            given["source"] = self._prepared(train, preprocessing, normalized=not normalizing)
        if normalizing:
            given |= {"mean": preprocessing.mean, "std": preprocessing.std}
            seen = [self._as_bytes(preprocessing)]
        metric = check_metric(offer, given)
        inputs = {*update_arguments(metric), *finalized(metric)}
        if "logits" in inputs and head is None:
            raise DataError("this score needs predictions, and the extractor has no head in this registry")
        key = name, source, preprocessing if has_source or "images" in inputs else None
        outcome: tuple[Metric, Figures] | DataError
        try:
            outcome = metric, _figures(metric, seen, subject)
        except DataError as error:
            outcome = error
        if not OF_EXTRACTOR & inputs:
            self._scored[key] = outcome
        if isinstance(outcome, DataError):
            raise outcome
        return outcome

    def _data(self, part: Component) -> DataSet:
        if self.sources is not None:
            data = self.sources(part.reference)
            if not isinstance(data, DataSet):
                raise UsageError(
                    f"rank: sources= returns the data set of an extractor; got {type_of(data)}.",
                    subject="sources",
                )
            return data
        trained = str(part.manifest.training.get("data"))  # name and digest
        if trained not in self._loaded:
            again = images_again(self.store, [part.resolved], f"Give sources=, {OR_SET}")
            self._loaded[trained] = again[part.reference]
        return self._loaded[trained]

    def pixels(self, split: Split, contract: Data) -> Tensor:
        """Return images as bytes with the size and channels of a contract; the last used are kept.

        Args:
            split: Images.
            contract: Preprocessing; mean and standard deviation play no part.

        Returns:
            uint8 ``(n, channels, height, width)``.
        """
        from compatkit.evaluation.preprocessing import prepare

        key = split.digest, attrs.evolve(contract, mean=(), std=(), labels=None)
        images = self._pixels.pop(key) if key in self._pixels else prepare(split, contract).images
        self._pixels[key] = images
        while len(self._pixels) > PREPARED:
            self._pixels.pop(next(iter(self._pixels)))
        return images

    def _as_bytes(self, contract: Data) -> Observation:
        """Return the target's images as bytes, in one batch."""
        import torch

        images = self.pixels(self.sample, contract)
        labels = torch.from_numpy(self.sample.labels).long()
        positions = torch.arange(len(images))
        return Observation(
            images=images, labels=labels, positions=positions, logits=images.new_empty(len(images), 0)
        )

    def _prepared(
        self, train: Split, contract: Data, *, normalized: bool
    ) -> tuple[Any, Any, tuple[str, ...]]:
        """Return images, normalized for the extractor or as bytes, labels and class names."""
        import torch

        from compatkit.evaluation.preprocessing import normalize

        sample = train if len(train) <= MAX_SOURCE else train.subset(MAX_SOURCE, self.seed)
        images = self.pixels(sample, contract)
        images = normalize(images, contract) if normalized else images
        return images, torch.from_numpy(sample.labels).long(), sample.classes


def measured_on(store: Store, parts: PartLoader, part: Component, tests: Split) -> tuple[float, str] | None:
    """Return the best recorded accuracy on test images, of the extractor or one fine-tuned from it, and how."""
    accuracies = list[tuple[float, str]]()
    started = {
        str(hit.digest): parts.function_of(str(hit.digest))
        for hit in store.index.search(parent=part.digest, kind="extractor")
        if ("initialised_from", part.digest) in hit.parents
    }
    ways = {part.function: "a head on its features"}
    ways |= {function: "fine-tuned from it" for function in started.values() if function is not None}
    for function, how in ways.items():
        partners = sorted(store.evidence.partners(function))
        for result in store.evidence.results([function], partners) if partners else ():
            settings = result.settings
            if result.error or settings.get("data_digest") != tests.digest or settings.get("adapters"):
                continue
            if not is_accuracy(result):
                continue
            figure = read_figures(result.figures)[1]
            accuracies.append((figure.accuracy, how))
    return max(accuracies, default=None)

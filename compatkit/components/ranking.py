"""Rank extractors for a data set: scores before any training, beside what was measured after it."""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from itertools import combinations, permutations
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from compatkit.components.images import OR_SET, images_again
from compatkit.components.loading import Parts
from compatkit.components.matrices.bounds import bounds_of
from compatkit.contracts.arguments import named, texts_of
from compatkit.contracts.display import Shown, aligned
from compatkit.data.dataset import DataSet, Split
from compatkit.errors import DataError, UsageError, type_of
from compatkit.evaluation.component import Component
from compatkit.evaluation.records import read_figures
from compatkit.limits import COUNT, WHOLE, Number
from compatkit.metrics import (
    Cell,
    Direction,
    Observation,
    Result,
    Subject,
    advance,
    check_metric,
    conclude,
    equal_norm_weights,
    observed,
)

if TYPE_CHECKING:
    from torch import nn

    from compatkit.components.registry import Registry
    from compatkit.registry.store import Store

SCORES = ("logme", "h_score", "leep", "nce", "theory_transfer")
FEW = 6
"""Extractors below which a rank correlation says little: of 5, one random order in 120 agrees in full."""
RANDOM = "random weights"
MEASURED = "measured"
"""What stands beside the scores: accuracy after training."""
BESIDE = ("permuted", RANDOM, "from scratch")
"""Figures that are printed beside a score; ``to_json`` has all."""
EXACT = 8
"""Most values whose orders are all tried."""
DRAWS = 20_000
"""Random orders of more values."""


@attrs.frozen(kw_only=True)
class Scored:
    """One score of one extractor.

    Attributes:
        score: Name of the metric.
        extractor: Reference.
        cell: The score: the first figure of the metric.
        beside: Its other figures by name, such as permuted labels or the bound from scratch; with controls those of
            random weights.
        direction: Which values are better.
        seconds: Of the score alone; the pass of the extractor is its own entry of ``Ranking.passes``.
    """

    score: str
    extractor: str
    cell: Cell
    beside: Mapping[str, Cell]
    direction: Direction
    seconds: float

    @property
    def goodness(self) -> float | None:
        """The value, higher for better; None if there is none."""
        value = self.cell.value
        return value if value is None or self.direction != "lower" else -value


@attrs.frozen(kw_only=True)
class Agreement:
    """Rank correlation of two columns of a ranking.

    Attributes:
        one: A score.
        other: Another, or ``measured``.
        count: Extractors that have both.
        correlation: Spearman's; None for fewer than three, or where all values are equal.
        chance: Share of random orders that agree at least as well; None with the correlation.
    """

    one: str
    other: str
    count: int
    correlation: float | None
    chance: float | None


@attrs.frozen(eq=False, repr=False, kw_only=True)
class Ranking(Shown):
    """Scores of extractors for a data set.

    Attributes:
        data: Name of the images that were scored.
        examples: Their number.
        rows: By score; of each score the best extractor first, those without a value last.
        measured: Accuracy on the target's test images by extractor, with how its head came about; only those measured.
        agreements: Of all pairs of scores, and of each score with ``measured``.
        passes: Seconds that each extractor took for the images.
    """

    data: str
    examples: int
    rows: tuple[Scored, ...]
    measured: Mapping[str, tuple[float, str]]
    agreements: tuple[Agreement, ...]
    passes: Mapping[str, float]

    def best(self, score: str) -> str:
        """Return the extractor that a score puts first, or ``"measured"``: the one with the best accuracy.

        Raises:
            UsageError: It is no score of this ranking.
            DataError: It has no value for any.
        """
        if score == MEASURED:
            if self.measured:
                return max(self.measured, key=lambda name: self.measured[name][0])
            raise DataError(
                "No extractor was measured on the target's test images. Measure heads trained on their features, or "
                "networks that started from them, on these (Registry.matrix, `compatkit matrix`), or name a score.",
                subject=score,
            )
        known = dict.fromkeys(one.score for one in self.rows)
        if score not in known:
            raise UsageError(
                f"{score!r} is no score of this ranking. It has {', '.join(known)}, and {MEASURED}.",
                subject=score,
            )
        for one in self.rows:
            if one.score == score and one.goodness is not None:
                return one.extractor
        raise DataError(f"{score!r} has no value for any extractor of this ranking.", subject=score)

    @property
    def caution(self) -> str:
        """What few extractors allow one to conclude; empty if there are enough."""
        count = len(self.passes)
        if count >= FEW:
            return ""
        return (
            f"{count} extractors: a rank correlation means little, as one random order in {math.factorial(count)} "
            "agrees in full."
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        measured = {name: {"accuracy": one, "how": how} for name, (one, how) in self.measured.items()}
        return {**attrs.asdict(self), "measured": measured, "caution": self.caution}

    def __str__(self) -> str:
        beside = [name for name in BESIDE if any(name in one.beside for one in self.rows)]
        table: list[tuple[str, ...]] = [("score", "extractor", "value", *beside, "measured", "seconds", "")]
        for one in self.rows:
            found = self.measured.get(one.extractor)
            others = (_shown(one.beside[name]) if name in one.beside else "" for name in beside)
            accuracy = "" if found is None else f"{found[0]:.3f}"
            said = f"{one.cell.status} {one.cell.reason}" if one.cell.status != "ok" else ""
            name = f"{one.score} ({one.direction})"
            table.append(
                (name, one.extractor, _shown(one.cell), *others, accuracy, f"{one.seconds:.2f}", said)
            )
        pairs: list[tuple[str, ...]] = [("rank correlation", "", "extractors", "Spearman", "chance")]
        for one in self.agreements:
            figures = (
                ("-", "-") if one.correlation is None else (f"{one.correlation:.2f}", f"{one.chance:.3f}")
            )
            pairs.append((one.one, one.other, str(one.count), *figures))
        head = f"{self.examples:,} examples of {self.data}; {sum(self.passes.values()):.1f} s for all passes"
        ways = sorted({how for _, how in self.measured.values()})
        told = (
            [f"measured: {'; '.join(ways)}"]
            if ways
            else ["measured: no result on the target's test images yet"]
        )
        parts = [head, "", *aligned(table), "", *aligned(pairs), "", *told, self.caution]
        return "\n".join(parts).rstrip()


def _shown(cell: Cell) -> str:
    return "-" if cell.value is None else f"{cell.value:.4g}"


@named
def rank(
    registry: Registry,
    extractors: str | Sequence[str],
    data: DataSet | Split,
    *,
    scores: Sequence[str] = SCORES,
    examples: int = 1000,
    controls: bool = False,
    seed: int = 0,
    batch_size: int = 256,
    device: str = "cpu",
    sources: Callable[[str], DataSet] | None = None,
    progress: Callable[[int, int, str], None] | None = None,
) -> Ranking:
    """Score extractors for a data set before any training.

    Each extractor runs once over a sample of the target's training images, with its stored statistics, and its own
    head over the features. Accuracy that was measured on the target's test images is read from evidence: of heads
    trained on the extractor's features, and of extractors that started from it.

    Args:
        registry: Where the extractors are.
        extractors: Pattern, or patterns.
        data: The target; of a data set the training split is scored.
        scores: Names of metrics whose first figure is the score. One with a setting ``source`` is given images, labels
            and class names of the extractor's own training data.
        examples: Most examples, balanced over classes.
        controls: Whether to score extractors with Gaussian weights of equal norms, too.
        seed: Of the sample and the controls.
        batch_size: Images a pass.
        device: Where the networks run.
        sources: Returns the data set of an extractor by its reference; None looks where they were.
        progress: Called with done, total and the extractor.

    Raises:
        NotFound: A pattern matches nothing.
        UnknownName: A score is not installed.
        UsageError: ``data`` is no data set; no score is named; a number is too small.
    """
    if not isinstance(data, DataSet | Split):
        raise UsageError(
            f"data= expects a data set or a split with labels; got {type_of(data)}.", subject=data
        )
    Number(least=2, whole=True).check("rank", examples=examples)
    COUNT.check("rank", batch_size=batch_size)
    WHOLE.check("rank", seed=seed)
    chosen = texts_of(scores, "scores", "the name of a score, such as 'logme'")
    if not chosen:
        raise UsageError(f"Name at least one score, such as {', '.join(SCORES)}.", subject="scores")
    offers = {name: _offer(name) for name in chosen}
    split = data.train if isinstance(data, DataSet) else data
    sample = split if len(split) <= examples else split.subset(examples, seed)
    parts = Parts(registry.store)
    lefts = [parts.component(place) for place in registry.store.select(extractors, "extractor")]
    heads = bounds_of(parts, lefts, [])
    rows, passes = list[Scored](), dict[str, float]()
    for number, part in enumerate(lefts):
        if progress is not None:
            progress(number, len(lefts), part.reference)
        found, passes[part.reference] = _score(
            part,
            heads.get(part.reference),
            sample,
            offers,
            registry.store,
            sources,
            controls,
            seed,
            batch_size,
            device,
        )
        rows += found
    if progress is not None:
        progress(len(lefts), len(lefts), "")
    tests = data.test if isinstance(data, DataSet) else data
    measured = {
        part.reference: one
        for part in lefts
        if (one := _measured(registry.store, parts, part, tests)) is not None
    }
    ordered = [
        one
        for name in chosen
        for one in sorted(
            (row for row in rows if row.score == name),
            key=lambda row: (row.goodness is None, -(row.goodness or 0.0)),
        )
    ]
    return Ranking(
        data=split.name,
        examples=len(sample),
        rows=tuple(ordered),
        measured=measured,
        agreements=_agreements(chosen, ordered, measured),
        passes=passes,
    )


def _offer(name: str) -> Any:
    from compatkit.plugins.discovery import find

    return find("metrics", name)


def _score(
    part: Component,
    head: Component | None,
    sample: Split,
    offers: Mapping[str, Any],
    store: Store,
    sources: Callable[[str], DataSet] | None,
    controls: bool,
    seed: int,
    batch_size: int,
    device: str,
) -> tuple[list[Scored], float]:
    """Return all scores of one extractor, and the seconds of its pass."""
    import torch

    contract = part.manifest.contract.data
    began, rows = time.perf_counter(), list[Scored]()
    seen = _observe(part.module, head, sample, contract, batch_size, device)
    took, random = time.perf_counter() - began, list[Observation]()
    if controls:
        other = equal_norm_weights(part.module, torch.Generator().manual_seed(seed))
        random = _observe(other, head, sample, contract, batch_size, device)
    subject = Subject(network=part.module, layers={"features": part.module}, classes=sample.classes)
    for name, offer in offers.items():
        start = time.perf_counter()
        settings: dict[str, Any] = {}
        beside, direction = dict[str, Cell](), "none"
        try:
            if "source" in inspect.signature(offer.factory).parameters:
                settings["source"] = _source(part, store, sources, seed)
            metric = check_metric(offer, settings)
            if "logits" in (wanted := observed(metric)) and head is None:
                raise DataError("it has no head of its own in this registry, whose predictions are scored")
            cell, beside, direction = _figures(metric, seen, subject)
            if controls and {"outputs", "logits"} & set(wanted):
                beside[RANDOM] = _figures(metric, random, subject)[0]
        except DataError as error:
            cell = Cell(None, "undefined", str(error))
        rows.append(
            Scored(
                score=name,
                extractor=part.reference,
                cell=cell,
                beside=beside,
                direction=direction,  # type: ignore[arg-type]
                seconds=time.perf_counter() - start,
            )
        )
    return rows, took


def _figures(metric: Any, seen: Iterable[Observation], subject: Subject) -> tuple[Cell, dict[str, Cell], str]:
    """Return the first figure of a metric, the others by their name along the last axis, and the direction."""
    state = metric.init()
    for one in seen:
        state = advance(metric, state, one, subject)
    found = conclude(metric, state, subject)[0]
    if isinstance(found, Result):
        return Cell(found.value, found.status, found.reason), {}, found.direction
    if not found.cells:
        raise DataError("it gives no figure for a single network; a score such as logme does")
    (_, first), *others = list(found)
    return first, {names[-1]: cell for names, cell in others}, found.direction


def _observe(
    module: nn.Module, head: Component | None, sample: Split, contract: Any, batch_size: int, device: str
) -> list[Observation]:
    """Return what an extractor gives for images, and what its own head makes of it, on the CPU."""
    import torch

    from compatkit.evaluation.conditions import Conditions
    from compatkit.evaluation.normalisation import evaluation_mode
    from compatkit.evaluation.passes import numerics, placed
    from compatkit.evaluation.preprocessing import normalise, prepare

    labels, found = torch.from_numpy(sample.labels).long(), list[Observation]()
    modules = [module, *([head.module] if head is not None else [])]
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(numerics(Conditions("running", batch_size, 0, "float32", device)))
        for one in modules:
            stack.enter_context(placed(one, device))
            stack.enter_context(evaluation_mode(one))
        for at in torch.arange(len(sample)).split(batch_size):
            prepared = prepare(sample.take(at.numpy()), contract)
            images = normalise(prepared.images, contract, device=device)
            features = module(images.clone())
            kept = features.clone()  # the head may change its input
            logits = features.flatten(1) if head is None else head.module(features)
            found.append(
                Observation(
                    images=images.cpu(),
                    labels=labels[at],
                    positions=at,
                    logits=logits.float().cpu(),
                    outputs={"features": kept.cpu()},
                )
            )
    return found


def _source(
    part: Component, store: Store, sources: Callable[[str], DataSet] | None, seed: int
) -> tuple[Any, Any, tuple[str, ...]]:
    """Return images as the extractor takes them, labels and class names of what it was trained on."""
    import torch

    from compatkit.evaluation.preprocessing import normalise, prepare

    if sources is None:
        held = images_again(store, [part.resolved], f"Give sources=, {OR_SET}")[part.reference]
    else:
        held = sources(part.reference)
        if not isinstance(held, DataSet):
            raise UsageError(
                f"rank: sources= returns the data set of an extractor; got {type_of(held)}.",
                subject="sources",
            )
    train = held.train if len(held.train) <= SOURCE else held.train.subset(SOURCE, seed)
    contract = part.manifest.contract.data
    images = normalise(prepare(train, contract).images, contract)
    return images, torch.from_numpy(train.labels).long(), train.classes


SOURCE = 1000
"""Most examples of a source."""


def _measured(store: Store, parts: Parts, part: Component, tests: Split) -> tuple[float, str] | None:
    """Return the best accuracy on the target's test images, of the extractor or of one that started from it."""
    found = list[tuple[float, str]]()
    started = {
        str(hit.digest): parts.function_of(str(hit.digest))
        for hit in store.index.search(parent=part.digest, kind="extractor")
        if ("initialised_from", part.digest) in hit.parents
    }
    ways = {part.function: "a head on its features"}
    ways |= {function: "fine-tuned from it" for function in started.values() if function is not None}
    for function, how in ways.items():
        partners = sorted(store.evidence.partners(function))
        for result in store.evidence.kept([function], partners) if partners else ():
            settings = result.settings
            if result.error or settings.get("data_digest") != tests.digest or settings.get("adapters"):
                continue
            figure = read_figures(result.figures)[1]
            found.append((figure.accuracy, how))
    return max(found, default=None)


def _agreements(
    scores: Sequence[str], rows: Sequence[Scored], measured: Mapping[str, tuple[float, str]]
) -> tuple[Agreement, ...]:
    columns: dict[str, dict[str, float]] = {
        name: {one.extractor: one.goodness for one in rows if one.score == name and one.goodness is not None}
        for name in scores
    }
    if measured:
        columns[MEASURED] = {name: one for name, (one, _) in measured.items()}
    found = []
    for one, other in combinations(columns, 2):
        both = [name for name in columns[one] if name in columns[other]]
        value, chance = spearman(
            [columns[one][name] for name in both], [columns[other][name] for name in both]
        )
        found.append(Agreement(one=one, other=other, count=len(both), correlation=value, chance=chance))
    return tuple(found)


def spearman(left: Sequence[float], right: Sequence[float]) -> tuple[float | None, float | None]:
    """Return the rank correlation, equal values sharing their mean rank, and the share of random orders as high.

    The share is exact for up to 8 values, and estimated from 20,000 orders for more.

    Args:
        left: Values.
        right: As many values.

    Returns:
        None twice for fewer than three values, or where all values of a side are equal.
    """
    from scipy.stats import rankdata

    one, other = (np.asarray(rankdata(side)) - (len(side) + 1) / 2 for side in (left, right))
    size = math.sqrt(float((one**2).sum() * (other**2).sum()))
    if len(one) < 3 or not size:
        return None, None
    value = float(one @ other) / size
    if len(one) <= EXACT:
        orders = np.array(list(permutations(range(len(one)))))
    else:
        orders = np.argsort(np.random.default_rng(0).random((DRAWS, len(one))), axis=1)
    return value, float((other[orders] @ one / size >= value - 1e-9).mean())

"""Ranking of extractors: scores, accuracy measured after training, and the rank correlations between them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations, permutations
from typing import Any

import attrs
import numpy as np

from compatkit.errors import DataError, UsageError
from compatkit.evaluation.metrics import Direction, TableCell
from compatkit.foundation.display import Shown, aligned
from compatkit.reports.tabular import Tabular

FEW = 6
"""Minimum number of extractors for a meaningful rank correlation: of 5, one random order in 120 agrees in full."""
RANDOM = "random weights"
MEASURED = "measured"
"""Column for accuracy after training."""
PRINTED = ("permuted", RANDOM, "from scratch")
"""Further figures of a score that are printed; ``to_json`` has all."""
TIE = 0.05
"""A score is a tie if the best leads the second by at most this share of its lead over the controls."""
MEASURE = "Train a head on each (registry.task with freeze_extractor=True) and measure it."
MAX_EXACT = 8
"""Maximum number of values for which all orders are tried."""
DRAWS = 20_000
"""Number of random orders for more values."""


@attrs.frozen(kw_only=True)
class ExtractorScore:
    """Score of an extractor by a metric.

    Attributes:
        score: Name of the metric.
        extractor: Reference of the extractor.
        cell: Value of the score: the first value of the metric.
        other_values: Other values of the metric by name, such as with permuted labels or the bound from scratch, and
            with controls those of random weights.
        direction: Which values are better.
        seconds: Time of the score alone, without the pass of the extractor (``Ranking.passes``).
    """

    score: str
    extractor: str
    cell: TableCell
    other_values: Mapping[str, TableCell] = attrs.field(metadata={"key": "beside"})
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
        first: A score.
        second: Another score, or ``measured``.
        count: Number of extractors that have both.
        correlation: Spearman's correlation; None for fewer than three, or if all values of a column are equal.
        chance: Share of random orders that agree at least as well; None with the correlation.
    """

    first: str
    second: str
    count: int
    correlation: float | None
    chance: float | None


@attrs.frozen(eq=False, repr=False, kw_only=True)
class Ranking(Shown, Tabular):
    """Scores of extractors for a data set.

    As a table it has a row for each score of each extractor, with its further figures and the measured accuracy.

    Attributes:
        data: Name of the images that were scored.
        examples: Number of images.
        rows: Scores, grouped by metric; the best extractor first, those without a value last.
        measured: Accuracy on the target's test images by extractor, and how its head was trained; only measured ones.
        agreements: Rank correlations of all pairs of scores, and of each score with ``measured``.
        passes: Seconds that each extractor took for the images.
    """

    data: str
    examples: int
    rows: tuple[ExtractorScore, ...]
    measured: Mapping[str, tuple[float, str]]
    agreements: tuple[Agreement, ...]
    passes: Mapping[str, float]

    _columns = ("score", "extractor", "value", "status", "reason", "direction")

    def _rows(self) -> list[dict[str, Any]]:
        return [self._row(scored) for scored in self.rows]

    def _row(self, scored: ExtractorScore) -> dict[str, Any]:
        accuracy, how = self.measured.get(scored.extractor, (None, None))
        return {
            "score": scored.score,
            "extractor": scored.extractor,
            **attrs.asdict(scored.cell),
            "direction": scored.direction,
            **{name: cell.value for name, cell in scored.other_values.items()},
            MEASURED: accuracy,
            "measured as": how,
            "data": self.data,
            "examples": self.examples,
            "seconds": scored.seconds,
        }

    def best(self, score: str) -> str:
        """Return the extractor that a score puts first, or ``"measured"``: the one with the best accuracy.

        Raises:
            UsageError: The ranking has no such score.
            DataError: The score has no value for any extractor.
        """
        if score == MEASURED:
            if self.measured:
                return max(self.measured, key=lambda name: self.measured[name][0])
            raise DataError(
                "No extractor was measured on the target's test images. Measure heads trained on their features, or "
                "networks that started from them, on these (Registry.matrix, `compatkit matrix`), or name a score.",
                subject=score,
            )
        known = dict.fromkeys(row.score for row in self.rows)
        if score not in known:
            raise UsageError(
                f"{score!r} is no score of this ranking. It has {', '.join(known)}, and {MEASURED}.",
                subject=score,
            )
        for row in self.rows:
            if row.score == score and row.goodness is not None:
                return row.extractor
        raise DataError(f"{score!r} has no value for any extractor of this ranking.", subject=score)

    @property
    def advice(self) -> str:
        """Advice which extractor to use, in one line."""
        if len(self.passes) > 1 and set(self.measured) == set(self.passes):
            return _by_measurement({name: accuracy for name, (accuracy, _) in self.measured.items()})
        scores = dict.fromkeys(row.score for row in self.rows)
        firsts = {score: first_of([row for row in self.rows if row.score == score]) for score in scores}
        return _by_scores(firsts, len(self.passes))

    @property
    def caution(self) -> str:
        """Caution about too few extractors; empty if there are enough."""
        count = len(self.passes)
        if count >= FEW:
            return ""
        return (
            f"{count} extractor{'s' * (count != 1)}: a rank correlation means little, as one random order in "
            f"{math.factorial(count)} agrees in full."
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        measured = {
            name: {"accuracy": accuracy, "how": how} for name, (accuracy, how) in self.measured.items()
        }
        rows = [
            {"beside" if name == "other_values" else name: value for name, value in attrs.asdict(row).items()}
            for row in self.rows
        ]
        return {
            **attrs.asdict(self),
            "rows": rows,
            "measured": measured,
            "advice": self.advice,
            "caution": self.caution,
        }

    def __str__(self) -> str:
        names = [name for name in PRINTED if any(name in row.other_values for row in self.rows)]
        table: list[tuple[str, ...]] = [("score", "extractor", "value", *names, "measured", "seconds", "")]
        for row in self.rows:
            measured = self.measured.get(row.extractor)
            others = (_shown(row.other_values[name]) if name in row.other_values else "" for name in names)
            accuracy = "" if measured is None else f"{measured[0]:.3f}"
            status = f"{row.cell.status} {row.cell.reason}" if row.cell.status != "ok" else ""
            score = f"{row.score} ({row.direction})"
            table.append(
                (score, row.extractor, _shown(row.cell), *others, accuracy, f"{row.seconds:.2f}", status)
            )
        pairs: list[tuple[str, ...]] = [("rank correlation", "", "extractors", "Spearman", "chance")]
        for agreement in self.agreements:
            figures = (
                ("-", "-")
                if agreement.correlation is None
                else (f"{agreement.correlation:.2f}", f"{agreement.chance:.3f}")
            )
            pairs.append((agreement.first, agreement.second, str(agreement.count), *figures))
        head = f"{self.examples:,} examples of {self.data}; {sum(self.passes.values()):.1f} s for all passes"
        ways = sorted({how for _, how in self.measured.values()})
        basis = (
            [f"measured: {'; '.join(ways)}"]
            if ways
            else ["measured: no result on the target's test images yet"]
        )
        parts = [head, "", *aligned(table), "", *aligned(pairs), "", *basis, self.caution, "", self.advice]
        return "\n".join(parts)


def first_of(rows: Sequence[ExtractorScore]) -> tuple[str, str]:
    """Return the extractor that a score clearly ranks first, or the reason why there is none.

    Args:
        rows: Rows of one score, the best first.

    Returns:
        The extractor and an empty reason, or an empty name and a reason.
    """
    sound = [row for row in rows if row.goodness is not None and row.cell.status in ("ok", "approximate")]
    if not sound:
        return "", "has no sound value"
    goodness = [row.goodness or 0.0 for row in sound]
    sign = -1 if sound[0].direction == "lower" else 1
    others = [sound[0].other_values[name].value for name in PRINTED if name in sound[0].other_values]
    controls = [sign * value for value in others if value is not None]
    lead = goodness[0] - max(controls) if controls else abs(goodness[0])
    if lead <= 0:
        return "", "is not above its controls"
    if len(sound) > 1 and goodness[0] - goodness[1] <= TIE * lead:
        return "", f"puts {sound[0].extractor} and {sound[1].extractor} side by side"
    return sound[0].extractor, ""


def _by_measurement(accuracies: Mapping[str, float]) -> str:
    best, second, *_ = sorted(accuracies, key=lambda name: -accuracies[name])
    if accuracies[best] == accuracies[second]:
        return f"Take {best} or {second}: both were measured best, {accuracies[best]:.3f}."
    return f"Take {best}: it was measured best, {accuracies[best]:.3f}; next is {second}, {accuracies[second]:.3f}."


def _by_scores(firsts: Mapping[str, tuple[str, str]], extractors: int) -> str:
    """Return the advice from the first of each score, or why it has none."""
    chosen: dict[str, list[str]] = {}
    for score, (extractor, _) in firsts.items():
        if extractor:
            chosen.setdefault(extractor, []).append(score)
    if not chosen:
        whys = "; ".join(f"{score} {why}" for score, (_, why) in firsts.items())
        return f"The scores do not separate these extractors: {whys}. {MEASURE}"
    max_count = max(map(len, chosen.values()))
    best, *equal = [name for name, scores in chosen.items() if len(scores) == max_count]
    if equal:
        sides = "; ".join(f"{', '.join(scores)}: {name}" for name, scores in chosen.items())
        return f"The scores disagree ({sides}). {MEASURE}"
    which = f"{max_count} of {len(firsts)} scores ({', '.join(chosen[best])})"
    if extractors == 1:
        return f"{best} is the only one: {which} are above their controls."
    return f"Take {best}: {which} put it first, above their controls."


def _shown(cell: TableCell) -> str:
    return "-" if cell.value is None else f"{cell.value:.4g}"


def agreements_of(
    scores: Sequence[str], rows: Sequence[ExtractorScore], measured: Mapping[str, tuple[float, str]]
) -> tuple[Agreement, ...]:
    """Return the rank correlation of each pair of columns.

    Args:
        scores: Names of the scores, in the order of the columns.
        rows: Scores of all extractors.
        measured: As in ``Ranking``.
    """
    columns: dict[str, dict[str, float]] = {
        name: {row.extractor: row.goodness for row in rows if row.score == name and row.goodness is not None}
        for name in scores
    }
    if measured:
        columns[MEASURED] = {name: accuracy for name, (accuracy, _) in measured.items()}
    agreements = []
    for first, second in combinations(columns, 2):
        both = [name for name in columns[first] if name in columns[second]]
        value, chance = spearman(
            [columns[first][name] for name in both], [columns[second][name] for name in both]
        )
        agreements.append(
            Agreement(first=first, second=second, count=len(both), correlation=value, chance=chance)
        )
    return tuple(agreements)


def spearman(left: Sequence[float], right: Sequence[float]) -> tuple[float | None, float | None]:
    """Return the rank correlation, equal values sharing their mean rank, and the share of random orders as high.

    The share is exact for up to 8 values, and estimated from 20,000 orders for more.

    Args:
        left: Values of one side.
        right: Equally many values.

    Returns:
        (None, None) for fewer than three values, or where all values of a side are equal.
    """
    from scipy.stats import rankdata

    left_ranks, right_ranks = (np.asarray(rankdata(side)) - (len(side) + 1) / 2 for side in (left, right))
    size = math.sqrt(float((left_ranks**2).sum() * (right_ranks**2).sum()))
    if len(left_ranks) < 3 or not size:
        return None, None
    value = float(left_ranks @ right_ranks) / size
    if len(left_ranks) <= MAX_EXACT:
        orders = np.array(list(permutations(range(len(left_ranks)))))
    else:
        orders = np.argsort(np.random.default_rng(0).random((DRAWS, len(left_ranks))), axis=1)
    return value, float((right_ranks[orders] @ left_ranks / size >= value - 1e-9).mean())

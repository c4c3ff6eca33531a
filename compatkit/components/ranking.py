"""A ranking of extractors: scores beside what was measured after training, and how far their orders agree."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import combinations, permutations
from typing import Any

import attrs
import numpy as np

from compatkit.contracts.display import Shown, aligned
from compatkit.errors import DataError, UsageError
from compatkit.metrics import Cell, Direction
from compatkit.reports.tabular import Tabular

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
class Ranking(Shown, Tabular):
    """Scores of extractors for a data set.

    As a table it has a row for each score of each extractor, with the figures beside it and what was measured.

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

    _columns = ("score", "extractor", "value", "status", "reason", "direction")

    def _rows(self) -> list[dict[str, Any]]:
        return [self._row(scored) for scored in self.rows]

    def _row(self, scored: Scored) -> dict[str, Any]:
        accuracy, how = self.measured.get(scored.extractor, (None, None))
        return {
            "score": scored.score,
            "extractor": scored.extractor,
            **attrs.asdict(scored.cell),
            "direction": scored.direction,
            **{name: cell.value for name, cell in scored.beside.items()},
            MEASURED: accuracy,
            "measured as": how,
            "data": self.data,
            "examples": self.examples,
            "seconds": scored.seconds,
        }

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
            f"{count} extractor{'s' * (count != 1)}: a rank correlation means little, as one random order in "
            f"{math.factorial(count)} agrees in full."
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


def agreements_of(
    scores: Sequence[str], rows: Sequence[Scored], measured: Mapping[str, tuple[float, str]]
) -> tuple[Agreement, ...]:
    """Return the rank correlation of each pair of columns.

    Args:
        scores: Their names, in the order of the columns.
        rows: Scores of all extractors.
        measured: As of ``Ranking``.
    """
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

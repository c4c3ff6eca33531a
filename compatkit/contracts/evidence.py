"""Measurements of a pair: cells and figures as plain values, intervals, and grades."""

from __future__ import annotations

import math
from typing import Literal

import attrs

from compatkit.contracts.grades import Grade
from compatkit.contracts.metric_figures import MetricFigure
from compatkit.errors import UsageError

METRIC = "recombination_accuracy"
METRIC_VERSION = "1"
"""Increase whenever the same parts, images and settings would give another accuracy."""
ADAPTED = "adapters"
"""Setting with the adapters between the parts; such a measurement is no evidence of the pair without adapters."""
STATE = "state"
"""Setting of a cell without measurement: ``missing`` or ``left-out``; barred if absent."""

WEAK_RECOVERED = 0.5
"""Minimal share of the way from chance to the bound for ``compatible``; ``weak`` below, if above chance."""
State = Literal["measured", "stale", "missing", "barred", "left-out"]


@attrs.frozen
class Part:
    """A component as a row or column of a report.

    Attributes:
        reference: Pinned reference, ``name@version``.
        digest: Manifest digest, ``sha256:...``.
        function: Function digest, ``value:sha256:...``.
        kind: Kind of component, such as ``extractor``.
        summary: Summary of the contract for display, text by label.
    """

    reference: str
    digest: str
    function: str
    kind: str
    summary: dict[str, str] = attrs.field(factory=dict)


@attrs.frozen
class Figure:
    """An accuracy with its counts and 95 % Wilson interval.

    Attributes:
        accuracy: Share of correct examples, in [0, 1].
        correct: Number of correct examples.
        count: Number of examples.
        low: Lower end of the interval, in [0, 1].
        high: Upper end of the interval, in [0, 1].
    """

    accuracy: float
    correct: int
    count: int
    low: float
    high: float


@attrs.frozen
class Rung:
    """Result of one bridging method (a rung of the ladder) for a pair.

    Attributes:
        name: Name of the rung.
        seconds: Duration of the fit in seconds.
        images: Number of unlabeled images of the fit.
        agreement: Share of held-out images with the same prediction as the head's own network.
        accuracy: Accuracy on test images, if there were any.
        chosen: Whether the accuracies of the cell were measured with this rung.
        labels: Number of labeled images of the fit.
    """

    name: str
    seconds: float
    images: int
    agreement: Figure
    accuracy: Figure | None = None
    chosen: bool = False
    labels: int = 0


@attrs.frozen
class Cell:
    """An extractor with another network's head, measured on the extractor's test images.

    Attributes:
        extractor: Reference of the extractor.
        head: Reference of the head.
        wiring: ``refused``, ``needs-adapter`` or ``direct``; only direct pairs are measured.
        promise: ``none``, ``shared-init``, ``shared-head`` or ``one-network``.
        grade: Evidence in one word.
        restricted: Accuracy on examples of the common classes, argmax over the common outputs (as in the paper);
            None if nothing could be measured.
        unrestricted: Accuracy on the same examples, argmax over all outputs of the head.
        chance: Share of the most frequent common class among those examples.
        bound: Accuracy of the extractor with its own head, same images, same policy (n_aa); None unless that head
            knows all common classes.
        recovered: (accuracy - chance) / (bound - chance); None unless there is a bound above chance.
        difference: Paired 95 % interval of accuracy minus bound.
        common: Common classes, named as in the data set.
        settings: Conditions of the measurement: metric, data, policy, batch size, seed, precision, the bound's head,
            device, ...; ``compatkit.evaluation.conditions`` defines which of them the figures depend on.
        findings: Findings of the check as text, for display.
        reason: Reason for a missing or stale measurement; else empty.
        ladder: Result of each rung, if the parts are bridged.
        metrics: Figures of metric plugins, if any were asked for.
    """

    extractor: str
    head: str
    wiring: str
    promise: str
    grade: Grade
    restricted: Figure | None = None
    unrestricted: Figure | None = None
    chance: float | None = None
    bound: Figure | None = None
    recovered: float | None = None
    difference: tuple[float, float] | None = None
    common: tuple[str, ...] = ()
    settings: dict[str, str | bool | int | float] = attrs.field(factory=dict)
    findings: tuple[str, ...] = ()
    reason: str = ""
    ladder: tuple[Rung, ...] = ()
    metrics: tuple[MetricFigure, ...] = ()

    @property
    def state(self) -> State:
        """State of the measurement under the requested conditions.

        ``measured``: measured under exactly these conditions. ``stale``: measured, but metric, images or bound have
        changed since. ``missing``: not measured yet. ``barred``: cannot be measured, because the parts cannot be wired
        or share no class with the images. ``left-out``: not requested.
        """
        if self.restricted is not None:
            return "stale" if self.grade == "stale" else "measured"
        state = self.settings.get(STATE)
        return "missing" if state == "missing" else "left-out" if state == "left-out" else "barred"

    def left_out(self, reason: str) -> Cell:
        """Return a placeholder for a cell that was not requested.

        Args:
            reason: Reason for leaving it out.
        """
        fields = (self.extractor, self.head, self.wiring, self.promise, "none")
        return Cell(*fields, settings={STATE: "left-out"}, reason=reason)

    def __repr__(self) -> str:
        texts = [self.grade if self.state == "measured" else self.state]
        if self.restricted is not None:
            texts.append(f"accuracy {self.restricted.accuracy:.3f} of {self.restricted.count:,} images")
        if self.bound is not None:
            texts.append(f"bound {self.bound.accuracy:.3f}")
        if self.recovered is not None:
            texts.append(f"recovered {self.recovered:.2f}")
        return f"Cell({self.extractor!r}, {self.head!r}: {', '.join([*texts, *filter(None, [self.reason])])})"

    def holds_under(self, bn_policy: str) -> bool:
        """Return whether the measurement is valid for a batch-norm policy.

        It is if it was made under this policy, if neither part has batch normalization, or if the settings of the cell
        name no policy.

        Args:
            bn_policy: Batch-norm policy, such as ``"batch"``.
        """
        return (
            not self.settings.get("normalised", True) or self.settings.get("policy", bn_policy) == bn_policy
        )

    @property
    def own(self) -> bool:
        """Whether the head was trained with this extractor."""
        return bool(self.settings.get("own", False))


def weak_or_compatible(accuracy: float, chance: float, limit: float) -> Grade:
    """Return ``weak`` below half of the way from chance to the bound (to 1 without a bound), else ``compatible``.

    Args:
        accuracy: Accuracy of the recombination, above chance.
        chance: Share of the most frequent class.
        limit: Accuracy of the bound, or 1.
    """
    return "weak" if accuracy < chance + WEAK_RECOVERED * (limit - chance) else "compatible"


Z95 = 1.959963984540054
"""97.5 % point of the standard normal distribution, for two-sided 95 % intervals."""
CHANCE_P = 0.01
"""An accuracy is above chance if the exact one-sided binomial test gives a smaller p."""
CHANCE_RECOVERED = 0.1
"""Minimal share of the way from chance to the bound; below it, a pair is ``chance``."""
PERFECT_LOSS = 0.01
"""A pair is ``perfect`` if its 95 % interval excludes a loss of this much accuracy against the bound."""


def wilson(correct: int, n: int) -> tuple[float, float]:
    """Return the 95 % Wilson score interval of ``correct`` out of ``n``; ``(0, 1)`` for no examples.

    Source: Wilson (1927), "Probable inference, the law of succession, and statistical inference".

    Args:
        correct: Number of correct examples.
        n: Number of examples.

    Raises:
        UsageError: ``correct`` is not within 0 to ``n``.
    """
    _check_counts(correct, n)
    if n == 0:
        return 0.0, 1.0
    share, square = correct / n, Z95 * Z95
    center = (share + square / (2 * n)) / (1 + square / n)
    half = Z95 / (1 + square / n) * math.sqrt(share * (1 - share) / n + square / (4 * n * n))
    low = 0.0 if correct == 0 else max(0.0, center - half)
    high = 1.0 if correct == n else min(1.0, center + half)
    return low, high


def figure(correct: int, n: int) -> Figure:
    """Return an accuracy with its interval.

    Args:
        correct: Number of correct examples.
        n: Number of examples.

    Raises:
        UsageError: There are no examples, or ``correct`` is not within 0 to ``n``.
    """
    if n == 0:
        raise UsageError("An accuracy needs at least one example; got none.")
    return Figure(correct / n, correct, n, *wilson(correct, n))


def above_chance(correct: int, n: int, chance: float) -> float:
    """Return p of the exact one-sided binomial test: P(X >= ``correct``) for X ~ B(``n``, ``chance``).

    The sum runs away from the mode, so its terms decrease and none is lost to rounding. The first term comes from
    log-gamma functions, so nothing overflows for large ``n``.

    Args:
        correct: Number of correct examples.
        n: Number of examples.
        chance: Probability of a correct guess.

    Raises:
        UsageError: ``correct`` is not within 0 to ``n``, or ``chance`` not within 0 to 1.
    """
    _check_counts(correct, n)
    if not 0 <= chance <= 1:
        raise UsageError(f"Expected a chance level from 0 to 1, got {chance}.")
    if correct == 0 or chance == 1:
        return 1.0
    if chance == 0:
        return 0.0
    if correct > n * chance:
        return min(1.0, _tail(correct, n, chance))
    # P(X >= k) = 1 - P(X <= k - 1), and P(X <= k - 1) = P(n - X >= n - k + 1) with n - X ~ B(n, 1 - chance).
    return 1.0 - min(1.0, _tail(n - correct + 1, n, 1 - chance))


def paired_interval_of_counts(gained: int, lost: int, n: int) -> tuple[float, float]:
    """Return the 95 % interval of the difference of two accuracies on the same examples.

    Normal approximation on the per-example differences (-1, 0, 1), with one example gained and one lost added, so that
    the interval does not collapse to a point if both agree on all of few examples.

    Args:
        gained: Number of examples that only the pair classifies correctly.
        lost: Number of examples that only the reference network classifies correctly.
        n: Number of examples.

    Source: Bonett and Price (2012), "Adjusted Wald confidence interval for a difference of binomial
        proportions based on paired data", the interval of the title.

    Raises:
        UsageError: There are no examples, or the counts exceed them.
    """
    if n < 1 or gained < 0 or lost < 0 or gained + lost > n:
        raise UsageError(f"A paired interval needs gained + lost <= n and n >= 1; got {gained}, {lost}, {n}.")
    up, down = (gained + 1) / (n + 2), (lost + 1) / (n + 2)
    half = Z95 * math.sqrt((up + down - (up - down) ** 2) / (n + 2))
    return max(-1.0, up - down - half), min(1.0, up - down + half)


def recovered(accuracy: float, chance: float, bound: float | None) -> float | None:
    """Return (accuracy - chance) / (bound - chance); None unless there is a bound above chance.

    Args:
        accuracy: Accuracy of the recombination.
        chance: Share of the most frequent class.
        bound: Accuracy of the extractor's own network, or None.
    """
    if bound is None or bound <= chance:
        return None
    return (accuracy - chance) / (bound - chance)


def grade(
    measured: Figure,
    chance: float,
    bound: Figure | None = None,
    difference: tuple[float, float] | None = None,
) -> Grade:
    """Return the grade of a pair.

    Rules in this order; p is from ``above_chance``, and *bar* is the accuracy that recovers a tenth of the way from
    chance to the bound (to 1 without a bound):

    1. ``undecided``: the bound itself is not above chance (p >= .01), so there is nothing to recover.
    2. p < .01: ``chance`` if less than a tenth is recovered; ``perfect`` if the paired interval of the
       difference to the bound lies above -1 point; ``weak`` if less than half is recovered; else ``compatible``.
    3. p >= .01: ``chance`` if the Wilson interval ends below the bar; else ``undecided``: with this many
       examples a pair that recovers a tenth cannot be distinguished from chance.

    If there are too few examples to separate perfect from compatible, the lower grade is returned.

    Args:
        measured: Accuracy of the recombination.
        chance: Share of the most frequent class.
        bound: Accuracy of the unrecombined network on the same examples, if measured.
        difference: Paired 95 % interval of accuracy minus bound.
    """
    if bound is not None and above_chance(bound.correct, bound.count, chance) >= CHANCE_P:
        return "undecided"
    limit = bound.accuracy if bound is not None else 1.0
    bar = chance + CHANCE_RECOVERED * (limit - chance)
    if above_chance(measured.correct, measured.count, chance) >= CHANCE_P:
        return "chance" if measured.high < bar else "undecided"
    if bound is not None and measured.accuracy < bar:
        return "chance"
    if difference is not None and difference[0] > -PERFECT_LOSS:
        return "perfect"
    return weak_or_compatible(measured.accuracy, chance, limit)


def without_bound(cell: Cell) -> Cell:
    """Return a measured cell without its upper bound, graded again from its counts."""
    if cell.restricted is None or cell.bound is None:
        return cell
    unbound_grade = cell.grade if cell.grade == "stale" else grade(cell.restricted, cell.chance or 0.0)
    return attrs.evolve(cell, grade=unbound_grade, bound=None, recovered=None, difference=None)


def _tail(k: int, n: int, chance: float) -> float:
    """Return P(X >= k) for k above the mean of B(n, chance), 0 < chance < 1."""
    if k > n:
        return 0.0
    log = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
    term = math.exp(log + k * math.log(chance) + (n - k) * math.log1p(-chance))
    total, odds = 0.0, chance / (1 - chance)
    while k <= n and term > total * 1e-17:
        total += term
        term *= (n - k) / (k + 1) * odds
        k += 1
    return total


def _check_counts(correct: int, n: int) -> None:
    if not 0 <= correct <= n:
        raise UsageError(f"Counts must satisfy 0 <= correct <= n, got {correct} correct of n = {n}.")

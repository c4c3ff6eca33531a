"""Intervals, chance, share recovered and grades: against scipy, exact fractions and cases worked by hand."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom, binomtest

from compatkit.contracts.evidence import (
    above_chance,
    figure,
    grade,
    paired_interval_of_counts,
    recovered,
    wilson,
)
from compatkit.errors import UsageError


@pytest.mark.parametrize(
    ("correct", "n"), [(0, 1), (1, 1), (0, 20), (7, 20), (20, 20), (965, 1000), (9999, 10_000)]
)
def test_wilson_agrees_with_scipy(correct: int, n: int) -> None:
    reference = binomtest(correct, n).proportion_ci(confidence_level=0.95, method="wilson")
    assert wilson(correct, n) == pytest.approx((reference.low, reference.high), abs=1e-12)


def test_wilson_of_seven_in_twenty_worked_by_hand() -> None:
    # z^2 = 3.841459; center = (.35 + 3.841459 / 40) / (1 + 3.841459 / 20) = .446036 / 1.192073 = .374169
    # half = 1.959964 / 1.192073 * sqrt(.35 * .65 / 20 + 3.841459 / 1600) = 1.644164 * .1173708 = .192977
    assert wilson(7, 20) == pytest.approx((0.181192, 0.567146), abs=2e-6)


def test_wilson_of_nothing_says_nothing() -> None:
    assert wilson(0, 0) == (0.0, 1.0)


@settings(deadline=None)
@given(st.integers(1, 300), st.data())
def test_wilson_holds_the_share_and_is_symmetric(n: int, data: st.DataObject) -> None:
    correct = data.draw(st.integers(0, n))
    low, high = wilson(correct, n)
    assert 0 <= low <= correct / n <= high <= 1
    assert (1 - high, 1 - low) == pytest.approx(wilson(n - correct, n), abs=1e-12)


def exact_tail(correct: int, n: int, chance: Fraction) -> Fraction:
    """P(X >= correct) in exact fractions, term by term."""
    terms = (math.comb(n, k) * chance**k * (1 - chance) ** (n - k) for k in range(correct, n + 1))
    return sum(terms, Fraction(0))


def test_above_chance_is_exact_on_every_count_of_a_small_sample() -> None:
    for chance in (Fraction(1, 10), Fraction(1, 3), Fraction(9, 10)):
        for correct in range(26):
            assert above_chance(correct, 25, float(chance)) == pytest.approx(
                float(exact_tail(correct, 25, chance)), rel=1e-12
            )


@pytest.mark.parametrize("correct", [0, 900, 999, 1000, 1001, 1069, 1070, 1300, 5000, 10_000])
def test_above_chance_holds_for_ten_thousand_examples(correct: int) -> None:
    reference = binom.sf(correct - 1, 10_000, 0.1)
    assert above_chance(correct, 10_000, 0.1) == pytest.approx(reference, rel=1e-9, abs=1e-300)


def test_above_chance_at_the_ends() -> None:
    assert above_chance(0, 10, 0.0) == 1.0
    assert above_chance(1, 10, 0.0) == 0.0
    assert above_chance(10, 10, 1.0) == 1.0
    assert above_chance(0, 0, 0.1) == 1.0


def test_paired_interval_worked_by_hand() -> None:
    # 100 examples, 4 gained, 10 lost: up = 5 / 102, down = 11 / 102, difference -.0588235;
    # half = 1.959964 * sqrt((16 / 102 - .0034602) / 102) = 1.959964 * .0387808 = .0760089
    assert paired_interval_of_counts(4, 10, 100) == pytest.approx((-0.134832, 0.017185), abs=2e-6)


def test_paired_interval_tends_to_the_normal_one_of_the_differences() -> None:
    gained, lost, n = 300, 500, 100_000
    difference = (gained - lost) / n
    deviation = math.sqrt((gained + lost) / n - difference**2)
    low, high = paired_interval_of_counts(gained, lost, n)
    assert low == pytest.approx(difference - 1.96 * deviation / math.sqrt(n), abs=1e-5)
    assert high == pytest.approx(difference + 1.96 * deviation / math.sqrt(n), abs=1e-5)


def test_paired_interval_of_two_that_agree_shrinks_with_the_examples_but_not_to_a_point() -> None:
    assert paired_interval_of_counts(0, 0, 20)[0] < -0.05
    assert paired_interval_of_counts(0, 0, 1000)[0] > -0.01


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=60))
def test_paired_interval_turns_around_with_its_arguments(pairs: list[tuple[bool, bool]]) -> None:
    gained, lost = pairs.count((True, False)), pairs.count((False, True))
    low, high = paired_interval_of_counts(gained, lost, len(pairs))
    assert -1 <= low < high <= 1
    assert paired_interval_of_counts(lost, gained, len(pairs)) == pytest.approx((-high, -low))


def test_recovered_is_the_share_of_the_way_from_chance_to_the_bound() -> None:
    assert recovered(0.1, 0.1, 0.9) == 0.0
    assert recovered(0.9, 0.1, 0.9) == 1.0
    assert recovered(0.3, 0.1, 0.9) == pytest.approx(0.25)
    assert recovered(0.02, 0.1, 0.9) == pytest.approx(-0.1)
    assert recovered(0.5, 0.1, 0.1) is None
    assert recovered(0.5, 0.1, None) is None


BOUND = figure(970, 1000)
FAR = (-0.5, -0.4)


@pytest.mark.parametrize(
    ("correct", "n", "bound", "difference", "expected"),
    [
        (100, 1000, BOUND, FAR, "chance"),  # at chance, and 1000 examples exclude a tenth recovered (.187)
        (60, 1000, BOUND, FAR, "chance"),  # below chance
        (180, 1000, BOUND, FAR, "chance"),  # clearly above chance, but less than a tenth recovered
        (190, 1000, BOUND, FAR, "weak"),
        (534, 1000, BOUND, FAR, "weak"),  # half of the way from .1 to .97 is .535
        (535, 1000, BOUND, FAR, "compatible"),
        (800, 1000, BOUND, (-0.19, -0.15), "compatible"),
        (965, 1000, BOUND, (-0.012, 0.002), "compatible"),  # perhaps perfect: the weaker grade stands
        (968, 1000, BOUND, (-0.009, 0.005), "perfect"),
        (990, 1000, BOUND, (0.01, 0.03), "perfect"),  # better than the bound
        (968, 1000, BOUND, None, "compatible"),
        (3, 20, figure(19, 20), FAR, "undecided"),  # 15 % of 20: chance is .1, and .1 recovered is .185
        (0, 200, figure(190, 200), FAR, "chance"),
        (30, 200, figure(24, 200), (0.0, 0.1), "undecided"),  # the bound itself is at chance
        (500, 1000, None, None, "weak"),  # without a bound, half of the way to 1
        (550, 1000, None, None, "compatible"),
        (100, 1000, None, None, "chance"),
        (3, 20, None, None, "undecided"),
    ],
)
def test_grades(correct: int, n: int, bound: object, difference: object, expected: str) -> None:
    assert grade(figure(correct, n), 0.1, bound, difference) == expected  # type: ignore[arg-type]


def test_one_common_class_cannot_be_told_from_chance() -> None:
    assert grade(figure(50, 50), 1.0, figure(50, 50), (0.0, 0.0)) == "undecided"


@pytest.mark.parametrize(
    "call",
    [
        lambda: wilson(3, 2),
        lambda: wilson(-1, 2),
        lambda: figure(0, 0),
        lambda: above_chance(3, 2, 0.5),
        lambda: above_chance(1, 2, 1.5),
        lambda: paired_interval_of_counts(0, 0, 0),
        lambda: paired_interval_of_counts(3, 3, 5),
    ],
)
def test_counts_that_make_no_sense_are_refused(call: object) -> None:
    with pytest.raises(UsageError):
        call()  # type: ignore[operator]

"""Counting right answers: restricted and unrestricted arg max, against loops over examples."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from compatkit.evaluation.tally import Tally, chance_level

NAN, INF = float("nan"), float("inf")


def test_restricted_and_unrestricted_worked_by_hand() -> None:
    # The split has classes a, b, c; the head has outputs c, d, a: common are a (output 2) and c (output 0).
    labels = torch.tensor([0, 0, 1, 2, 2])
    tally = Tally.start(labels, [(0, 2), (2, 0)], 3)
    logits = torch.tensor(
        [
            [0.0, 9.0, 1.0],  # an a: restricted a, right; unrestricted d, wrong
            [3.0, 0.0, 1.0],  # an a: c, wrong both ways
            [0.0, 0.0, 9.0],  # a b: does not count
            [5.0, 1.0, 2.0],  # a c: right both ways
            [1.0, 0.0, 2.0],  # a c: a, wrong both ways
        ]
    )
    tally.add(torch.arange(5), logits)
    assert tally.count == 4
    assert tally.correct() == (2, 1)
    assert tally.restricted.tolist() == [True, False, False, True, False]


def test_outputs_that_are_not_finite_are_wrong_and_counted() -> None:
    tally = Tally.start(torch.tensor([0, 0, 1, 1]), [(0, 0)], 2)
    tally.add(torch.arange(4), torch.tensor([[NAN, 0.0], [INF, 0.0], [NAN, 0.0], [1.0, 0.0]]))
    assert (tally.count, tally.correct(), tally.broken) == (2, (0, 0), 2)


def test_without_a_common_class_nothing_counts() -> None:
    empty = Tally.start(torch.tensor([0, 1]), [], 2)
    empty.add(torch.arange(2), torch.zeros(2, 1))
    assert (empty.count, empty.correct()) == (0, (0, 0))


@settings(deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 4), st.integers(1, 5))
def test_counts_agree_with_loops(seed: int, classes: int, outputs: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, classes, (12,), generator=draw)
    logits = torch.randn(12, outputs, generator=draw)
    common = min(classes, outputs)
    pairs = list(
        zip(
            torch.randperm(classes, generator=draw)[:common].tolist(),
            torch.randperm(outputs, generator=draw)[:common].tolist(),
            strict=True,
        )
    )
    tally = Tally.start(labels, pairs, classes)
    for positions in torch.tensor_split(torch.randperm(12, generator=draw), 3):
        tally.add(positions, logits[positions])
    restricted = unrestricted = count = 0
    for label, row in zip(labels.tolist(), logits.tolist(), strict=True):
        partner = dict(pairs).get(label)
        if partner is None:
            continue
        count += 1
        restricted += max(pairs, key=lambda pair: row[pair[1]])[1] == partner
        unrestricted += row.index(max(row)) == partner
    assert (tally.count, *tally.correct()) == (count, restricted, unrestricted)


def test_chance_is_the_share_of_the_most_frequent_common_class() -> None:
    labels = torch.tensor([0, 0, 0, 1, 1, 2])
    assert chance_level(labels, [0, 1]) == 0.6
    assert chance_level(labels, [1, 2]) == 2 / 3
    assert chance_level(labels, [2]) == 1.0
    assert chance_level(labels, []) == 0.0


def test_paired_counts() -> None:
    ours, bound = (Tally.start(torch.zeros(4, dtype=torch.int64), [(0, 0)], 1) for _ in range(2))
    ours.best, bound.best = torch.tensor([0, 0, -1, -1]), torch.tensor([0, -2, 0, 0])
    assert ours.against(bound) == (1, 2)

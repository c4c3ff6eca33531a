"""Whether a bridge fits, held against chance; which rung is taken, and what labels may decide."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from bridged import Head, between, climb, head_of, images, part
from torch import Tensor

from compatkit.components.bridges.judging import (
    FIT_KAPPA,
    NO_FIT_KAPPA,
    NOT_FINITE,
    Judgment,
    accuracy_judgment,
    agreement,
    majority_share,
    significantly_fewer,
    significantly_more,
)
from compatkit.components.bridges.ladder import LABELED, RungResult, choose, reason
from compatkit.components.bridges.splits import split_labeled
from compatkit.contracts.evidence import figure
from compatkit.errors import DataError

PART = part("own", torch.eye(4))


def of(right: int, count: int, chance: float = 0.1, majority: float = 0.1) -> Judgment:
    return Judgment(figure(right, count), chance, majority)


def test_chance_is_what_independent_answers_agree_on() -> None:
    """Cohen's own way: the share of all pairs, one answer of each side, that are equal."""
    draw = np.random.default_rng(0)
    answers, wanted = (torch.from_numpy(draw.choice(4, 50, p=share)) for share in ([0.4, 0.3, 0.2, 0.1],) * 2)
    result = agreement(answers, wanted)
    pairs = [int(a) == int(b) for a in answers for b in wanted]
    assert result.chance == pytest.approx(np.mean(pairs), abs=1e-12)
    same = float((answers == wanted).float().mean())
    assert result.kappa == pytest.approx((same - np.mean(pairs)) / (1 - np.mean(pairs)))


def test_one_answer_to_all_is_no_agreement() -> None:
    wanted = torch.tensor([0] * 80 + [1] * 20)
    constant = agreement(torch.zeros(100, dtype=torch.int64), wanted)
    # .8 agree, and .8 do so by chance
    assert (constant.figure.accuracy, constant.chance, constant.kappa) == (0.8, 0.8, 0)
    assert constant.verdict == "no fit"
    both = agreement(torch.zeros(100, dtype=torch.int64), torch.zeros(100, dtype=torch.int64))
    assert (both.kappa, both.verdict) == (None, "doubtful")
    nearly = agreement(torch.tensor([0] * 95 + [1] * 5), torch.tensor([0] * 95 + [1] * 5))
    assert nearly.kappa == 1 and nearly.majority_share == 0.95 and nearly.verdict == "doubtful"
    # answers that are not finite agree with none, and count in the shares: (.5 * .5)
    broken = agreement(torch.tensor([0, 0, NOT_FINITE, NOT_FINITE]), torch.tensor([0, 1, 0, 1]))
    assert broken.figure.correct == 1 and broken.chance == 0.25


def test_the_bounds_are_those_of_ten_classes_of_equal_size() -> None:
    assert of(600, 1000).kappa == pytest.approx(FIT_KAPPA) and of(120, 1000).kappa == pytest.approx(
        NO_FIT_KAPPA
    )
    assert [of(number, 1000).verdict for number in (640, 300, 119)] == ["fit", "doubtful", "no fit"]
    assert of(100, 1000).verdict == "no fit"  # as much as chance gives


def test_few_images_say_it_less_firmly() -> None:
    """9 of 10 leave .596 open, 450 of 500 not; 8 of 10 leave .490."""
    assert of(9, 10).figure.low == pytest.approx(0.596, abs=1e-3)
    assert [of(8, 10).verdict, of(9, 10).verdict, of(10, 10).verdict, of(450, 500).verdict] == [
        "doubtful",
        "doubtful",
        "fit",
        "fit",
    ]
    assert of(0, 5).verdict == "no fit" and of(0, 2).verdict == "doubtful"  # up to .43 and up to .66


def unbalanced() -> Head:
    """Return a head that answers with one class often, and not always."""
    module = Head().eval()
    for step in range(60):
        module.last.bias.data[0] += 0.5
        made = between(PART, PART, head_of(PART, module))
        if 0.6 <= majority_share(climb(made).wanted) <= 0.85:
            return module
        assert step < 59
    raise AssertionError


def test_a_rung_that_always_says_the_same_does_not_end_the_climb() -> None:
    still = part("left", torch.zeros(4, 4))
    ladder = climb(between(still, PART, head_of(PART, unbalanced())))
    steps = ladder.climb(["direct", "statistics"], 0.0, None)
    assert [step.rung for step in steps] == ["direct", "statistics"]
    assert all(step.agreed is not None and step.agreed.kappa == 0 for step in steps)
    assert steps[0].to_json()["kappa"] == 0 and 0 < steps[0].to_json()["chance"] < 1


def test_the_choice_goes_by_kappa() -> None:
    """.80 where chance gives .75 is less than .70 where it gives .50."""
    steps = [
        RungResult("direct", of(80, 100, 0.75)),
        RungResult("ridge", of(70, 100, 0.5)),
        RungResult("ridge3x3", of(70, 100, 0.5)),
    ]
    assert choose(steps).rung == "ridge"


def checked(rung: str, right: int, agreed: int = 50, extra: Tensor | None = None) -> RungResult:
    """Return a step that is right on the first so many of 20 labeled images, half of them of one class."""
    hits = torch.arange(20) < right
    judged = Judgment(figure(right, 20), 0.5, 0.5)
    labels = 80 if rung in LABELED else 0
    return RungResult(
        rung, of(agreed, 100), labels=labels, checked=judged, right=hits, taught=rung == "stitch"
    )


def test_labels_decide_beyond_what_so_few_images_leave_open() -> None:
    """With 20 images 5 more that are right do, 4 do not: (5 + 1 - 1) / 22 - 1.96 * .1067 > 0."""
    ridge = checked("ridge", 10)
    assert choose([ridge, checked("finetune", 14)]).rung == "ridge"
    assert choose([ridge, checked("finetune", 15)]).rung == "finetune"
    assert choose([checked("finetune", 12), checked("stitch-labels", 13)]).rung == "stitch-labels"
    assert choose([checked("stitch", 3), checked("finetune", 4)]).rung == "stitch"
    yes, no = torch.ones(20, dtype=torch.bool), torch.zeros(20, dtype=torch.bool)
    assert significantly_more(yes, no) and not significantly_more(no, yes) and significantly_fewer(no, yes)


def test_what_labels_decided_is_judged_by_labels_and_says_so() -> None:
    steps = [checked("ridge", 10), checked("finetune", 20, agreed=5)]
    chosen = choose(steps)
    assert chosen.agreed is not None and chosen.agreed.verdict == "no fit" and chosen.meaning == "fit"
    message = reason(chosen, steps)
    assert message.startswith("finetune was chosen and judged by labels: accuracy 1.000 on 20 labeled images")
    assert "where ridge reaches 0.500; chance is 0.500" in message
    assert reason(steps[0], steps) == ""
    assert checked("finetune", 9, agreed=100).meaning == "no fit"
    assert checked("finetune", 12, agreed=100).meaning == "doubtful"


def test_the_chance_of_labels_is_their_most_frequent_class() -> None:
    labels = images(30).take(np.array([0, 3, 6, 1, 2]))  # three of the first class
    result = accuracy_judgment(torch.tensor([True, True, False, True, False]), labels)
    assert (result.chance, result.majority_share, result.figure.correct) == (0.6, 0.6, 3)


def test_held_out_images_are_never_trained_on() -> None:
    """The labeled images are those of the bridge: half are held out, and so kept apart."""
    made = between(PART, PART)
    used, targets, checks = split_labeled(images(), made.head, made.held_out, made.seed)
    content = {image.tobytes() for image in made.held_out.images}
    assert {image.tobytes() for image in checks.images} == content and len(checks) == 30
    assert not content & {image.tobytes() for image in used.images}
    assert len(targets) == len(used) == 30
    others, _, apart = split_labeled(images(50, seed=8), made.head, made.held_out, made.seed)
    assert (len(others), len(apart)) == (40, 10)


def test_labels_that_are_all_held_out_are_refused() -> None:
    made = between(PART, PART)
    content = {image.tobytes() for image in made.held_out.images}
    data = images()
    places = np.array([place for place, image in enumerate(data.images) if image.tobytes() in content])
    with pytest.raises(
        DataError, match=r"30 of the 30 labeled images of .* leaves 0 for training; at least 2"
    ):
        climb(made, labels=data.take(places))

"""The rungs between parts that are one network behind a known change of channels."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from bridged import Features, Head, between, climb, head_of, images, part, with_ports
from sample_components import extractor, head, labels, loaded, tokens
from torch import Tensor, nn

from compatkit.components.bridges.candidates import Candidate
from compatkit.components.bridges.inputs import BridgeInputs
from compatkit.components.bridges.judging import significantly_fewer
from compatkit.components.bridges.ladder import RUNGS, choose, chosen_rungs
from compatkit.errors import DataError, IncompatibleError, UsageError
from compatkit_plugins.rungs import _linear, closed, entry_layers, stitched

EYE = torch.eye(4)
ORDER = torch.tensor([2, 0, 3, 1])
TURN = torch.from_numpy(np.linalg.qr(np.random.default_rng(0).normal(size=(4, 4)))[0]).float()
MIXING = torch.randn(4, 4, generator=torch.Generator().manual_seed(2))
WIDER = torch.randn(7, 4, generator=torch.Generator().manual_seed(3))
PART = part("own", EYE)


@pytest.fixture(autouse=True)
def weak(monkeypatch: pytest.MonkeyPatch) -> None:
    """Next to no regularization, so that what is known comes out exactly."""
    for plugin in (_linear, closed, entry_layers):
        monkeypatch.setattr(plugin, "usual_strength", lambda count: 1e-9)


def built(made: BridgeInputs, rung: str) -> Candidate:
    """Return the bridge of one rung."""
    (step,) = climb(made).climb([rung], None, None)
    return step.built


@pytest.mark.parametrize(
    ("rung", "mixing"),
    [
        ("statistics", EYE),
        ("permutation", EYE[ORDER]),
        ("procrustes", TURN),
        ("procrustes", 3 * TURN),
        ("ridge", MIXING),
        ("ridge-procrustes", MIXING),
        ("ridge", WIDER),
        ("ridge3x3", MIXING),
        ("ridge3x3", WIDER),
        ("absorbed", MIXING),
        ("absorbed", WIDER),
    ],
)
def test_a_known_change_is_undone_and_cheaper_rungs_do_not_undo_it(rung: str, mixing: Tensor) -> None:
    made = between(part("left", mixing), PART)
    ladder = climb(made)
    (step,) = ladder.climb([rung], None, None)
    assert step.candidate is not None and step.agreement is not None and step.agreement.accuracy == 1
    wanted = made.answers(ladder.teacher, made.held_out)
    result = step.candidate.answers(made.held_out_features)
    torch.testing.assert_close(result, wanted, atol=2e-3, rtol=1e-3)
    if rung in ("ridge", "ridge3x3", "absorbed"):
        assert step.explained == pytest.approx(1, abs=1e-4)
    if rung == "permutation":  # a rotation is no permutation
        other = built(between(part("left", TURN), PART), "permutation")
        assert float((other.answers(made.held_out_features) - wanted).abs().max()) > 0.1


def test_the_head_itself_is_never_changed() -> None:
    right = head_of(PART)
    before = {name: value.clone() for name, value in right.module.state_dict().items()}
    made = between(part("left", MIXING), PART, right)
    rungs = ["statistics", "ridge", "absorbed", "finetune", "infomax"]
    climb(made, labels=images(30, seed=5)).climb(rungs, None, None)
    assert all(torch.equal(value, before[name]) for name, value in right.module.state_dict().items())
    assert not any(module.training for module in right.module.modules())


def test_statistics_belong_to_the_features_that_come() -> None:
    """Stretched features through a head with stored statistics, and with those that were estimated on them."""
    made = between(part("left", 5 * EYE), PART)
    ladder = climb(made)
    stored, anew = ladder.climb(["direct", "statistics"], None, None)
    wanted = made.answers(ladder.teacher, made.held_out)
    assert anew.candidate is not None and stored.candidate is not None
    torch.testing.assert_close(anew.candidate.answers(made.held_out_features), wanted, atol=1e-3, rtol=1e-3)
    assert float((stored.candidate.answers(made.held_out_features) - wanted).abs().max()) > 0.1
    assert stored.candidate.statistics() is None
    estimate = anew.candidate.statistics()
    assert estimate is not None and set(estimate.tensors) == {
        f"head.{layer}.{name}"
        for layer in ("norm", "other")
        for name in ("running_mean", "running_var", "num_batches_tracked")
    }


def test_features_are_clamped_for_a_head_that_knows_none_below_zero() -> None:
    port = PART.manifest.contract.structural.outputs[0]
    own = with_ports(PART, outputs=(type(port)(port.name, port.shape, range="nonnegative"),))
    right = with_ports(head_of(own), inputs=own.manifest.contract.structural.outputs)
    made = built(between(part("left", MIXING), own, right), "ridge")
    assert made.fitted is not None and made.fitted.blueprint.kwargs["nonnegative"] is True
    (features,) = next(iter(made.inputs.held_out_features))
    assert float(made.fitted.module(features).detach().min()) == 0


def test_training_with_labels_learns_what_the_heads_own_network_does_not_know() -> None:
    labels = images(120, seed=5)
    made = between(part("left", MIXING), PART)
    ladder = climb(made, labels=labels, test=images(90, seed=6))
    steps = ladder.climb(["ridge", "stitch-labels", "finetune"], None, None)
    figures = [step.accuracy.accuracy for step in steps if step.accuracy is not None]
    assert figures[0] < 0.7 < 0.9 < figures[2] and figures[1] > figures[0]
    chosen = choose(steps)
    assert chosen.rung in ("stitch-labels", "finetune")
    assert [step.labels for step in steps] == [0, 96, 96]
    assert chosen.judged is chosen.checked and chosen.checked is not None and chosen.right is not None
    assert chosen.checked.figure.correct == int(chosen.right.sum()) and chosen.checked.figure.count == 24
    assert chosen.meaning == chosen.checked.verdict != "no fit"
    assert steps[0].judged is steps[0].agreed


def test_stitching_begins_from_the_linear_map_and_comes_closer_to_the_teacher() -> None:
    made = between(part("left", MIXING[:3]), PART)  # a channel is lost
    ladder = climb(made)
    ridge, stitch = ladder.climb(["ridge", "stitch"], None, None)
    assert choose([ridge, stitch]).rung == "ridge" and choose([stitch]).rung == "stitch"

    def off(step: object) -> float:
        logits = step.candidate.answers(made.held_out_features)  # type: ignore[attr-defined]
        wanted = made.answers(ladder.teacher, made.held_out).softmax(1)
        return float(torch.nn.functional.cross_entropy(logits, wanted))

    assert off(stitch) < off(ridge)
    assert stitch.explained is None and stitch.seconds > 0


def test_information_is_high_where_answers_are_unsure_or_all_the_same() -> None:
    sure, unsure, first = 50 * torch.eye(3), torch.zeros(3, 3), torch.tensor([[50.0, 0, 0]] * 3)
    assert float(entry_layers.information(sure)) == pytest.approx(-np.log(3), abs=1e-5)
    assert float(entry_layers.information(unsure)) == pytest.approx(0, abs=1e-5)
    assert float(entry_layers.information(first)) == pytest.approx(0, abs=1e-5)


def test_information_maximization_is_rolled_back_where_agreement_falls(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = between(part("left", MIXING), PART, data=images(400), max_images=100)
    monkeypatch.setattr(entry_layers, "INFORMING", {"lr": 0.3, "steps": 60})  # far too fast
    (step,) = climb(made).climb(["infomax"], None, None)
    assert step.agreement is None and step.note.startswith("rolled back: agreement fell from 1.000 to ")
    yes, no = torch.ones(100, dtype=torch.bool), torch.zeros(100, dtype=torch.bool)
    assert (
        significantly_fewer(no, yes)
        and not significantly_fewer(yes, no)
        and not significantly_fewer(yes, yes)
    )


def test_rungs_are_climbed_in_their_order_until_the_agreement_asked_for() -> None:
    seen: list[str] = []
    ladder = climb(between(part("left", TURN), PART))
    steps = ladder.climb(
        ["statistics", "procrustes", "ridge"], 0.99, lambda done, of, what: seen.append(what)
    )
    assert [step.rung for step in steps] == ["statistics", "procrustes"]
    assert seen == ["statistics", "procrustes", "procrustes"]
    assert choose(steps).rung == "procrustes"


def test_what_a_pair_does_not_allow_is_left_out_with_the_reason() -> None:
    ladder = climb(between(part("left", WIDER), PART))
    steps = ladder.climb(["direct", "statistics", "permutation"], None, None)
    assert all(step.agreement is None and step.meaning == "" for step in steps)
    assert "have 7 channels, and the head takes 4" in steps[0].note
    with pytest.raises(IncompatibleError, match=r"No rung could be built:\ndirect: "):
        choose(steps)


def test_names_of_rungs() -> None:
    assert "infomax" not in chosen_rungs(None, True) and "finetune" in chosen_rungs(None, True)
    assert "finetune" not in chosen_rungs(None, False)
    assert chosen_rungs(["ridge", "direct"], False) == ["direct", "ridge"]
    assert all(chosen_rung in RUNGS for chosen_rung in chosen_rungs(None, True))
    assert chosen_rungs(["ridge", "ridge"], False) == ["ridge"]
    with pytest.raises(UsageError, match=r"no plugin rungs.rigde. Did you mean 'ridge'"):
        chosen_rungs(["rigde"], False)
    with pytest.raises(UsageError, match="as labels="):
        chosen_rungs(["finetune"], False)
    with pytest.raises(UsageError, match="at least one rung"):
        chosen_rungs([], False)


@pytest.mark.case("F")
def test_features_that_are_none_are_refused() -> None:
    still = part("left", torch.zeros(4, 4))
    for rung in ("permutation", "procrustes", "ridge", "ridge3x3", "absorbed", "stitch", "infomax"):
        with pytest.raises(DataError, match=r"features of left.extractor@1.0.0 are the same for all images"):
            climb(between(still, PART)).climb([rung], None, None)
        aims_at_nothing = climb(between(PART, part("own", torch.zeros(4, 4))))
        with pytest.raises(DataError, match=r"features of own.extractor@1.0.0 are the same for all images"):
            aims_at_nothing.climb([rung], None, None)
    broken = part("left", torch.full((4, 4), float("nan")))
    with pytest.raises(DataError, match=r"features of left.extractor@1.0.0 are not finite on these images"):
        climb(between(broken, PART)).climb(["ridge"], None, None)
    with pytest.raises(DataError, match=r"features of left.extractor@1.0.0 are not finite on these images"):
        climb(between(broken, PART, on="dst", head_data=images(30, seed=2))).climb(["ridge"], None, None)
    with pytest.raises(DataError, match=r"outputs of the head's own network are not finite"):
        climb(between(part("left", EYE), part("own", torch.full((4, 4), float("nan")))))


def test_dead_channels_are_told_of_and_do_no_harm() -> None:
    mixing = torch.cat([MIXING, torch.zeros(2, 4)])
    ladder = climb(between(part("left", mixing), PART))
    steps = ladder.climb(["ridge", "procrustes"], None, None)
    assert steps[0].agreement is not None and steps[0].agreement.accuracy == 1
    assert "2 of the channels of left.extractor@1.0.0 do not change on these images." in ladder.notes(steps)


@pytest.mark.case("F")
def test_images_that_do_not_suffice_are_refused() -> None:
    left = part("left", MIXING)
    with pytest.raises(DataError, match="has 18 images; a bridge needs at least 20"):
        between(left, PART, data=images(18))
    with pytest.raises(UsageError, match="pass head_data="):
        between(left, PART, on="dst")
    with pytest.raises(UsageError, match="head_data= needs on='dst' or on='mix'"):
        between(left, PART, head_data=images())
    with pytest.raises(UsageError, match="'on' must be one of src, dst, mix"):
        between(left, PART, on="both")
    with pytest.raises(UsageError, match="whole number from 2"):
        between(left, PART, max_images=1)
    other = images(60, classes=("cat", "dog", "fox"))
    with pytest.raises(DataError, match=r"cat, dog, fox, and own.head@1.0.0 knows 0, 1, 2: none in common"):
        climb(between(left, PART), test=other)
    some = images(60, classes=("0", "dog", "2"))
    with pytest.raises(DataError, match=r"images of dog, which own.head@1.0.0 does not know"):
        climb(between(left, PART), labels=some)
    with pytest.raises(DataError, match="6 labeled images; training a bridge takes at least 10"):
        climb(between(left, PART), labels=images(6))


@pytest.mark.parametrize(
    ("on", "value", "count"), [("dst", 50, 40), ("dst", 12, 12), ("mix", 50, 30), ("mix", 12, 24)]
)
def test_features_are_paired_on_images_of_either_domain(on: str, value: int, count: int) -> None:
    others = images(value, seed=9, channels=3)
    made = between(part("left", MIXING), PART, on=on, head_data=others)
    assert len(made.pairs) == count and made.pairs is not made.fit
    if on == "mix":  # as many of both, however few the head's are
        mine = {image.tobytes() for image in made.fit.images}
        assert sum(image.tobytes() in mine for image in made.pairs.images) == count // 2
    assert not set(map(bytes, made.held_out.images)) & set(map(bytes, made.fit.images))
    step = climb(made).climb(["ridge"], None, None)[0]
    assert step.agreement is not None and step.agreement.accuracy == 1
    assert (step.images, step.estimated) == (count, 30)
    rungs = climb(made).climb(["direct", "statistics", "stitch"], None, None)
    assert [(rung.images, rung.estimated) for rung in rungs] == [(0, 0), (30, 30), (30, 30)]


def test_features_that_do_not_fit_into_memory_are_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = climb(between(part("left", MIXING), PART)).climb(["ridge3x3"], None, None)[0]
    monkeypatch.setattr("compatkit.components.bridges.inputs.LIMIT", 10)
    runs: list[int] = []
    left = part("left", MIXING)
    left.module.register_forward_hook(lambda *_: runs.append(1))
    made = between(left, PART)
    for item in (made.paired, made.features, made.held_out_features):
        item.limit = 10
    ladder = climb(made)
    (result,) = ladder.climb(["ridge3x3"], None, None)
    assert result.candidate is not None and expected.candidate is not None
    assert result.candidate.fitted is not None and expected.candidate.fitted is not None
    torch.testing.assert_close(
        result.candidate.fitted.module.state_dict(), expected.candidate.fitted.module.state_dict()
    )
    assert len(runs) > 2
    stitch, ridge = ladder.climb(["ridge", "stitch"], None, None)[::-1]
    assert stitch.candidate is None and ridge.candidate is not None
    assert "Trained rungs need the features of all images in memory" in stitch.note


@pytest.mark.parametrize("rung", ["stitch", "stitch-labels", "finetune", "infomax"])
def test_a_rung_whose_training_fails_is_left_out_and_the_others_stand(
    monkeypatch: pytest.MonkeyPatch, rung: str
) -> None:
    monkeypatch.setattr(stitched.F, "cross_entropy", lambda *args: torch.tensor(float("nan")))
    monkeypatch.setattr(entry_layers, "information", lambda logits: torch.tensor(float("nan")))
    ladder = climb(between(part("left", MIXING), PART), labels=images(30, seed=5))
    steps = ladder.climb(["ridge", rung], None, None)
    assert steps[1].note.startswith("The loss of step 0 is not finite; check the features")
    assert steps[1].agreement is None and choose(steps).rung == "ridge"


def test_patches_of_too_many_channels_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closed, "COLUMNS", 30)
    monkeypatch.setattr(entry_layers, "COLUMNS", 30)
    steps = climb(between(part("left", MIXING), PART)).climb(["ridge3x3", "absorbed"], None, None)
    assert "4 channels give patches of 36 values; at most 30 are supported" in steps[0].note
    assert "layer main needs patches of 36 values" in steps[1].note


def test_a_network_that_says_one_thing_only_is_told_of() -> None:
    module = Head()
    module.last.bias.data = torch.tensor([1e3, 0, 0])
    ladder = climb(between(part("left", MIXING), PART, head_of(PART, module)))
    (step,) = steps = ladder.climb(["ridge"], 0.5, None)
    assert step.agreement is not None and step.agreement.accuracy == 1 and step.meaning == "doubtful"
    (note,) = ladder.notes(steps)
    assert note.startswith("The head's own network predicts one class for 100% of the images")


def test_the_features_of_a_part_made_by_hand() -> None:
    assert Features(WIDER)(torch.zeros(1, 1, 8, 8)).shape == (1, 7, 8, 8)


class Tokens(nn.Module):
    """The maps as tokens, one of class before them."""

    def __init__(self, mixing: Tensor, prefix: int) -> None:
        super().__init__()
        self.maps, self.prefix = Features(mixing), prefix

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.maps(images).flatten(2).transpose(1, 2)
        return torch.cat([tokens[:, : self.prefix] * 9, tokens], dim=1)


class Reads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.enter, self.norm, self.last = nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6 * 64, 3)
        draw = torch.Generator().manual_seed(4)
        for parameter in self.parameters():
            parameter.data = torch.randn(parameter.shape, generator=draw)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.last(self.norm(self.enter(tokens)).flatten(1))


@pytest.mark.parametrize("rung", ["procrustes", "ridge", "absorbed"])
def test_tokens_are_bridged_without_class_tokens_that_the_head_does_not_know(rung: str) -> None:
    own = loaded("own.extractor", extractor(tokens(4, 64)), Tokens(EYE, 0).eval())
    left = loaded("left.extractor", extractor(tokens(4, 65, 1)), Tokens(TURN, 1).eval())
    right = loaded(
        "own.head", head(tokens(4, 64), classes=labels("0", "1", "2")), Reads().eval(), trained_with=own
    )
    made = between(left, own, right)
    assert [str(entry).split(":")[0] for entry in made.before] == ["drop-tokens"] and made.layout == "NLC"
    ladder = climb(made)
    direct, step = ladder.climb(["direct", rung], None, None)
    assert direct.note == (
        "The features need an adapter before the head, and this rung inserts none: drop-tokens: leave out 1."
    )
    assert step.candidate is not None and step.agreement is not None and step.agreement.accuracy == 1
    wanted = made.answers(ladder.teacher, made.held_out)
    torch.testing.assert_close(step.candidate.answers(made.held_out_features), wanted, atol=1e-2, rtol=1e-3)
    assert step.candidate.statistics() is None  # there are none to estimate
    if rung == "procrustes":
        assert step.candidate.method["scaled"] is False

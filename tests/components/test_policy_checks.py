"""Policies that bind: a new version is measured with the released parts, and its number follows from that."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
import torch
from small import data_set, quick
from torch import Tensor

import compatkit as ck
from compatkit.components import policy_checks
from compatkit.components.images import policy_images
from compatkit.components.loading import with_module
from compatkit.components.outcomes import PolicyOutcome
from compatkit.components.policy_checks import PolicyChecker
from compatkit.contracts.manifest import Manifest
from compatkit.errors import PolicyBroken, PolicyDataMissing, UsageError
from compatkit.evaluation.component import Component
from compatkit.registry.names import Reference
from compatkit.registry.policies import Images

EXTRACTOR, HEAD = "digits/left.extractor", "digits/left.head"
DATA = data_set("left")
SPLIT = DATA.test


@pytest.fixture(scope="module")
def fit() -> ck.Fit:
    task = ck.Task("left", DATA, "resnet8_cifar", "layer2", size=(16, 16))
    return quick(steps=30, seed=0).fit([task], ["dcc"])


@pytest.fixture(scope="module")
def released(fit: ck.Fit, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A registry that is only copied: an extractor, its auxiliary head and its head, all 1.0.0."""
    made = ck.Registry.init(tmp_path_factory.mktemp("promises") / "released")
    made.publish(fit, prefix="digits")
    return made.store.root


@pytest.fixture
def registry(released: Path, tmp_path: Path) -> ck.Registry:
    return ck.Registry.open(shutil.copytree(released, tmp_path / "parts"))


def policy(registry: ck.Registry, mode: str = "backward", scope: str = EXTRACTOR, **more: Any) -> None:
    registry.policies.set(scope, mode, **{"data": SPLIT, "tolerance": 0.05, **more})


def state(registry: ck.Registry, reference: str) -> dict[str, Tensor]:
    return {key: value.clone() for key, value in registry.load(reference).state_dict().items()}


def nearly(values: dict[str, Tensor], by: float = 1e-4) -> dict[str, Tensor]:
    """Other weights with nearly the same function."""
    return {key: value * (1 + by) if value.is_floating_point() else value for key, value in values.items()}


def spoilt(values: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights of nobody's: the channels in another order, which no head expects."""
    return {key: value.flip(0) if value.ndim else value for key, value in values.items()}


def bare(manifest: Manifest, **changes: Any) -> Manifest:
    """A manifest whose probe is taken anew, as the weights are others."""
    statistical = attrs.evolve(manifest.contract.statistical, probe=None)
    return attrs.evolve(
        manifest, contract=attrs.evolve(manifest.contract, statistical=statistical), **changes
    )


def register(
    registry: ck.Registry,
    change: Callable[[dict[str, Tensor]], dict[str, Tensor]],
    name: str = EXTRACTOR,
    **more: Any,
) -> str:
    """Register a changed version of what is released under a name."""
    manifest = bare(registry.store.manifest(f"{name}@1.0.0"))
    return registry.publish(
        manifest, name, state=change(state(registry, f"{name}@1.0.0")), **{"data": [SPLIT], **more}
    )


def outcome_of(refused: pytest.ExceptionInfo[PolicyBroken]) -> PolicyOutcome:
    assert isinstance(refused.value.subject, PolicyOutcome)
    return refused.value.subject


# What a measurement decides


def test_what_works_with_the_released_heads_stays_within_the_line(registry: ck.Registry) -> None:
    policy(registry)
    assert register(registry, nearly) == f"{EXTRACTOR}@1.1.0"


def test_what_breaks_is_refused_with_the_matrix_and_offered_as_the_next_major(registry: ck.Registry) -> None:
    policy(registry)
    with pytest.raises(
        PolicyBroken, match=r"It is offered only as 2\.0\.0: version='2\.0\.0' or major=True"
    ) as refused:
        register(registry, spoilt)
    outcome = outcome_of(refused)
    assert not outcome.passed and (outcome.allowed, outcome.offered) == (None, "2.0.0")
    (answer,) = outcome.answers
    assert answer.accuracy is not None and answer.bound is not None and outcome.matrix is not None
    assert answer.accuracy.accuracy < answer.bound.accuracy - 0.05 == answer.min_accuracy
    assert outcome.matrix.cell(f"{EXTRACTOR}@candidate", HEAD).restricted == answer.accuracy
    assert outcome.matrix.cell(f"{EXTRACTOR}@1.0.0", HEAD).restricted == answer.bound
    assert [str(version) for version in registry.store.versions(EXTRACTOR)] == ["1.0.0"]
    assert register(registry, spoilt, major=True) == f"{EXTRACTOR}@2.0.0"


def test_the_bound_is_the_head_on_the_extractor_that_it_was_trained_with(registry: ck.Registry) -> None:
    policy(registry, batch_size=48)
    with pytest.raises(PolicyBroken) as refused:
        register(registry, spoilt)
    matrix = registry.matrix(EXTRACTOR, HEAD, {EXTRACTOR: SPLIT}, bn_policy="running", batch_size=48)
    assert outcome_of(refused).answers[0].bound == matrix.cell(EXTRACTOR, HEAD).restricted


def test_a_loss_of_exactly_the_tolerance_passes_and_one_image_more_does_not(registry: ck.Registry) -> None:
    policy(registry)
    with pytest.raises(PolicyBroken) as refused:
        register(registry, spoilt)
    answer = outcome_of(refused).answers[0]
    assert answer.accuracy is not None and answer.bound is not None
    loss, count = answer.bound.correct - answer.accuracy.correct, answer.accuracy.count
    policy(registry, tolerance=(loss - 1) / count)
    with pytest.raises(PolicyBroken):
        register(registry, spoilt)
    policy(registry, tolerance=loss / count)
    assert register(registry, spoilt) == f"{EXTRACTOR}@1.1.0"


def test_every_partner_is_asked_for_and_one_that_fails_is_enough(registry: ck.Registry) -> None:
    policy(registry, "backward_transitive")
    blind = {key: torch.zeros_like(value) for key, value in state(registry, HEAD).items()}
    registry.publish(bare(registry.store.manifest(HEAD)), "other/hand", state=blind)
    with pytest.raises(PolicyBroken) as refused:
        register(registry, spoilt)
    result = {answer.partner: answer.passed for answer in outcome_of(refused).answers}
    assert result == {
        f"{HEAD}@1.0.0": False,
        "other/hand@1.0.0": True,
    }  # no extractor makes the blind head worse


def test_a_cap_measures_so_many_images_of_each_class_alike(registry: ck.Registry) -> None:
    policy(registry, cap=12, seed=5)
    with pytest.raises(PolicyBroken) as refused:
        register(registry, spoilt)
    (answer,) = outcome_of(refused).answers
    assert answer.accuracy is not None and answer.accuracy.count == 12
    cell = outcome_of(refused).matrix.cells[0]  # type: ignore[union-attr]
    assert cell.settings["data_digest"] == SPLIT.subset(12, 5).digest and cell.settings["seed"] == 5


@pytest.mark.parametrize("bn_policy", ["running", "batch", "reestimate"])
def test_the_statistics_are_those_that_the_policy_names(registry: ck.Registry, bn_policy: str) -> None:
    policy(registry, bn_policy=bn_policy, tolerance=0.99)
    seen: list[str] = []
    register(registry, nearly, progress=lambda done, total, what: seen.append(f"{done}/{total} {what}"))
    passes = 2 if bn_policy == "reestimate" else 1
    assert seen[-1] == f"{passes}/{passes} {EXTRACTOR}@candidate"


def test_the_figures_are_kept_as_evidence_whatever_they_say(registry: ck.Registry) -> None:
    policy(registry, bn_policy="batch")
    with pytest.raises(PolicyBroken) as refused:
        register(registry, spoilt)
    assert register(registry, spoilt, major=True) == f"{EXTRACTOR}@2.0.0"
    report = registry.check(EXTRACTOR, HEAD)
    answer = outcome_of(refused).answers[0]
    assert report.evidence in ("chance", "undecided", "compatible") and answer.accuracy is not None
    assert f"{answer.accuracy.accuracy:.3f}"[1:] in str(report)


# What needs no measurement, or cannot have one


def test_parts_that_cannot_be_wired_fail_without_being_measured(registry: ck.Registry) -> None:
    """Not even the images are looked for."""
    policy(registry, data=("nowhere/test", "data:sha256:" + "0" * 64))
    task = ck.Task("left", DATA, "resnet8_cifar", "layer1", size=(16, 16))
    with pytest.raises(
        PolicyBroken, match="wiring needs-adapter: spatial-differs, channels-differ"
    ) as refused:
        registry.publish(quick(steps=1).fit([task]), prefix="digits")
    (answer,) = outcome_of(refused).answers
    assert answer.accuracy is None and not answer.passed
    assert outcome_of(refused).matrix.cells[0].restricted is None  # type: ignore[union-attr]


def test_without_the_images_nothing_is_published(registry: ck.Registry) -> None:
    policy(registry)
    with pytest.raises(PolicyDataMissing, match=rf"needs left/test, {SPLIT.digest}, which is not available"):
        register(registry, nearly, data=[DATA.train])
    assert len(registry.store.versions(EXTRACTOR)) == 1
    assert register(registry, nearly, major=True, data=[]) == f"{EXTRACTOR}@2.0.0"


def test_other_images_of_the_same_name_are_not_taken(registry: ck.Registry) -> None:
    policy(registry)
    other = data_set("left", seed=9).test
    with pytest.raises(
        PolicyDataMissing, match=rf"images, labels or classes differ: left/test, {other.digest}"
    ):
        register(registry, nearly, data=[other])


def test_images_are_found_by_digest_by_name_or_by_a_function(
    registry: ck.Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = Images("left/test", SPLIT.digest)
    assert policy_images(wanted, [data_set("other", seed=3), DATA]) is SPLIT
    assert policy_images(wanted, [SPLIT.renamed("anything")]).digest == SPLIT.digest
    assert policy_images(wanted, [lambda name: DATA]) is SPLIT
    arrays = {
        f"{kind}_{part}": getattr(split, "images" if kind == "x" else "labels")
        for part, split in (("train", DATA.train), ("test", DATA.test))
        for kind in "xy"
    }
    np.savez(tmp_path / "left.npz", classes=np.array(DATA.classes), **arrays)
    monkeypatch.setenv("COMPATKIT_DATA", str(tmp_path))
    assert policy_images(wanted).digest == SPLIT.digest


def test_a_head_without_a_class_of_the_images_cannot_be_served(registry: ck.Registry) -> None:
    """It is refused, not skipped: whether the head still works is not known."""
    policy(registry, data=data_set("left", classes=("x", "y", "z")).test)
    with pytest.raises(PolicyBroken, match="no class in common with left/test"):
        register(registry, nearly, data=[data_set("left", classes=("x", "y", "z"))])


def test_a_metric_that_is_not_measured_here_is_refused(registry: ck.Registry) -> None:
    made = attrs.evolve(registry.policies.set(EXTRACTOR, "backward", data=SPLIT), metric_version="0.9")
    registry.store.set_policy(EXTRACTOR, made)
    with pytest.raises(
        UsageError, match=r"uses the metric recombination_accuracy 0\.9, but this compatkit measures"
    ):
        register(registry, nearly)
    with pytest.raises(UsageError, match=r"support only the metric .* got 'top5'"):
        registry.policies.set(EXTRACTOR, "backward", data=SPLIT, metric="top5")


def test_no_released_partner_is_said_and_vouches_for_nothing(registry: ck.Registry) -> None:
    registry.store.withdraw(HEAD, "1.0.0", "wrong")
    policy(registry)
    part = candidate(registry, nearly)
    outcome = PolicyChecker(registry.store, part).answer(
        registry.store.policy_requirement(EXTRACTOR, part.manifest)
    )
    assert outcome.passed and outcome.matrix is None and outcome.allowed == "2.0.0"
    assert (
        outcome.verdict
        == "nothing to measure: no head is released against 1.0.0; it may be published as 2.0.0"
    )


def candidate(registry: ck.Registry, change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> Component:
    """A changed extractor with a manifest of its own, not published."""
    module = registry.load(EXTRACTOR)
    module.load_state_dict(change(dict(module.state_dict())))
    payload = registry.store.put_state(module.state_dict(), parameters=1)
    manifest = attrs.evolve(registry.store.manifest(EXTRACTOR), payload=payload)
    place = Reference(EXTRACTOR, digest="sha256:" + "0" * 64)
    return with_module(registry.store, place, manifest, module, reference=f"{EXTRACTOR}@candidate")


# Heads


def test_forward_measures_a_new_head_on_the_released_extractors(
    registry: ck.Registry, stranger: ck.Fit
) -> None:
    """Its bound is its own extractor, which is no version yet: both are parts of one fit."""
    policy(registry)
    register(registry, nearly)
    policy(registry, "none", EXTRACTOR, data=None, tolerance=0.0)
    policy(registry, "forward", HEAD)
    assert register(registry, nearly, HEAD) == f"{HEAD}@1.1.0"
    with pytest.raises(PolicyBroken, match=r"the new head after 1\.1\.0 breaks the policy") as refused:
        registry.publish(stranger, prefix="digits")
    outcome = outcome_of(refused)
    assert [answer.partner for answer in outcome.answers] == [f"{EXTRACTOR}@1.0.0", f"{EXTRACTOR}@1.1.0"]
    assert outcome.matrix is not None
    rows = [extractor.reference for extractor in outcome.matrix.extractors]
    assert rows == [f"{EXTRACTOR}@candidate", f"{EXTRACTOR}@1.0.0", f"{EXTRACTOR}@1.1.0"]
    assert outcome.matrix.cell(rows[0], f"{HEAD}@candidate").restricted == outcome.answers[0].bound


def test_a_head_that_names_no_extractor_has_no_bound(registry: ck.Registry) -> None:
    policy(registry, "forward", HEAD)
    manifest = bare(registry.store.manifest(HEAD), parents=())
    with pytest.raises(PolicyBroken, match="names no own extractor"):
        registry.publish(manifest, HEAD, state=nearly(state(registry, HEAD)), data=[SPLIT])


# Fits


@pytest.fixture(scope="module")
def stranger() -> ck.Fit:
    """A network that was trained for the same task and knows nothing of the released one."""
    task = ck.Task("left", DATA, "resnet8_cifar", "layer2", size=(16, 16))
    return quick(steps=30, seed=7).fit([task])


def test_a_fit_brings_its_own_images_and_nothing_of_it_is_published_where_a_part_fails(
    registry: ck.Registry, stranger: ck.Fit
) -> None:
    policy(registry)
    before = registry.store.names()
    with pytest.raises(PolicyBroken, match="Nothing was published"):
        registry.publish(stranger, prefix="digits")
    assert registry.store.names() == before
    assert [str(version) for version in registry.store.versions(HEAD)] == ["1.0.0"]
    parts = registry.publish(stranger, prefix="digits", major=True)
    assert parts == {"left.extractor": f"{EXTRACTOR}@2.0.0", "left.head": f"{HEAD}@2.0.0"}
    assert registry.publish(stranger, prefix="digits") == parts  # again: nothing changes


def test_a_fit_that_was_trained_on_stays_within_the_line(registry: ck.Registry, fit: ck.Fit) -> None:
    policy(registry, "full_transitive", "digits/", tolerance=0.2)
    task = ck.Task("left", DATA, "resnet8_cifar", "layer2", size=(16, 16), weights=fit.weights("left"))
    heads = registry.frozen("digits/shared.dcc")
    later = quick(steps=2, seed=3, lr=1e-4).fit([task], ["dcc"], frozen=heads)
    rehearsed = registry.publish(later, prefix="digits", dry_run=True)
    assert [str(version) for version in registry.store.versions(EXTRACTOR)] == ["1.0.0"]
    assert {key: (value.passed, value.allowed, len(value.answers)) for key, value in rehearsed.items()} == {
        "left.extractor": (True, "1.1.0", 1),
        "left.head": (True, "1.1.0", 1),
    }
    parts = registry.publish(later, prefix="digits")
    assert parts["left.extractor"] == f"{EXTRACTOR}@1.1.0" and parts["left.head"] == f"{HEAD}@1.1.0"
    assert registry.store.names() == ["digits/left.extractor", "digits/left.head", "digits/shared.dcc"]


def test_what_was_measured_is_not_measured_again_when_a_head_comes_meanwhile(
    registry: ck.Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy(registry)
    real, measured = policy_checks.measure, []

    def measure(extractors: Any, heads: Any, *rest: Any, **settings: Any) -> Any:
        measured.append((extractors[0].reference, [head.reference for head in heads]))
        if len(measured) == 1:
            late = nearly(state(registry, HEAD), 1e-3)
            registry.publish(bare(registry.store.manifest(HEAD)), "late/hand", state=late)
        return real(extractors, heads, *rest, **settings)

    monkeypatch.setattr(policy_checks, "measure", measure)
    assert register(registry, nearly) == f"{EXTRACTOR}@1.1.0"
    assert measured == [
        (f"{EXTRACTOR}@1.0.0", [f"{HEAD}@1.0.0"]),
        (f"{EXTRACTOR}@candidate", [f"{HEAD}@1.0.0"]),
        (f"{EXTRACTOR}@1.0.0", ["late/hand@1.0.0"]),
        (f"{EXTRACTOR}@candidate", ["late/hand@1.0.0"]),
    ]


def test_a_split_model_is_bound_like_any_other(registry: ck.Registry) -> None:
    from compatkit.components.splitting import publish_split, split

    cut = split(
        "resnet8_cifar",
        "layer2",
        kwargs={"in_chans": 1, "num_classes": 3},
        size=(16, 16),
        labels=["0", "1", "2"],
    )
    policy(registry, data=SPLIT)
    with pytest.raises(PolicyDataMissing):  # nobody handed the images in
        publish_split(registry.store, cut, "digits/left")
    assert len(registry.store.versions(EXTRACTOR)) == 1


# Tests of what is released


def test_a_released_version_is_tested_as_the_version_that_it_is(registry: ck.Registry) -> None:
    register(registry, spoilt, version="2.0.0")
    policy(registry, across_major=True)
    outcome = registry.policies.test(f"{EXTRACTOR}@2.0.0", data=[SPLIT])
    assert not outcome.passed and outcome.offered is None and "no number is open" in outcome.verdict
    assert registry.policies.test(f"{EXTRACTOR}@1.0.0").requirement.reason == "it is the first version"


def test_a_part_of_another_name_is_tested_as_the_next_version(registry: ck.Registry) -> None:
    trial = registry.publish(
        bare(registry.store.manifest(EXTRACTOR)), "trial/eye", state=nearly(state(registry, EXTRACTOR))
    )
    policy(registry)
    outcome = registry.policies.test(trial, name=EXTRACTOR, data=[SPLIT])
    assert outcome.passed and outcome.allowed == "1.1.0"
    assert registry.policies.test(trial).requirement.reason == "no policy binds this name"
    assert registry.store.versions(EXTRACTOR) == registry.store.versions(HEAD)  # nothing was published


def test_partners_may_be_named_in_place_of_those_that_the_policy_finds(registry: ck.Registry) -> None:
    policy(registry)
    outcome = registry.policies.test(EXTRACTOR, against="digits/*.head", data=[SPLIT])
    assert outcome.passed and [answer.partner for answer in outcome.answers] == [f"{HEAD}@1.0.0"]
    with pytest.raises(UsageError, match="expected kind head, to pair with extractors"):
        registry.policies.test(EXTRACTOR, against=EXTRACTOR, data=[SPLIT])
    with pytest.raises(UsageError, match="no policy defines how to measure this head: no policy binds"):
        registry.policies.test(HEAD, against=EXTRACTOR, data=[SPLIT])


# The public door


def test_policies_are_set_found_cleared_and_remembered(registry: ck.Registry) -> None:
    wide = registry.policies.set("digits/", "full", data=SPLIT, tolerance=0.1)
    assert wide.scope == "digits/*" and wide.data == Images("left/test", SPLIT.digest)
    exempt = registry.policies.set(HEAD, "none", expected=None)
    assert registry.policies == {HEAD: exempt, "digits/*": wide}
    assert registry.policies.of(EXTRACTOR) == wide and registry.policies.of(HEAD) == exempt
    registry.policies.clear(HEAD, expected=exempt)
    assert registry.policies.of(HEAD) == wide and registry.policies.of("else") is None
    assert [entry.policy for entry in registry.policies.history(HEAD)] == [exempt, None]


def test_an_outcome_as_text_and_as_json(registry: ck.Registry) -> None:
    policy(registry)
    with pytest.raises(PolicyBroken) as refused:
        register(registry, spoilt)
    outcome = outcome_of(refused)
    lines = str(outcome).splitlines()
    assert (
        lines[0] == f"{EXTRACTOR}: fails; it is offered only as 2.0.0, which breaks with them for all to see"
    )
    assert lines[1] == f"policy {registry.policies.of(EXTRACTOR)}"
    assert lines[2].split() == ["extractor", "head", "bound", "least", "measured", "images"]
    assert lines[3].split()[:2] == [f"{EXTRACTOR}@candidate", f"{HEAD}@1.0.0"] and lines[3].endswith("fails")
    document = json.loads(json.dumps(outcome.to_json()))
    assert (
        document["passed"] is False
        and document["offered"] == "2.0.0"
        and document["previous"] == f"{EXTRACTOR}@1.0.0"
    )
    assert document["policy"] == registry.policies.of(EXTRACTOR).to_json()  # type: ignore[union-attr]
    assert ck.Matrix.from_json(json.dumps(document["matrix"])) == outcome.matrix

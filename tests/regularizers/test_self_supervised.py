"""What holds for every self-supervised task: in runs, in the parts that they leave, and beside one another."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from small import data_set, grouped, quick, same_parts
from torch import Tensor

import compatkit as ck

TASKS: dict[str, dict[str, Any]] = {
    "rotation_prediction": {},
    "jigsaw": {},
    "colorization": {"cells": 2},
    "contrastive": {"dimensions": 16},
}
PURE = ("rotation_prediction", "jigsaw", "colorization")
MEAN_OVER_IMAGES = PURE
"""Whose loss of a batch is the mean of those of its pieces; a contrast is one between the images of a piece."""
HEADS = {"rotation_prediction": "rotation"}
each = pytest.mark.parametrize("name", TASKS)


def pair(*names: str, **settings: Any) -> list[ck.Task]:
    """Two tasks in color with other classes, so that no head of classes could be shared."""
    classes = {"left": ("0", "1", "2"), "right": ("a", "b")}
    return [
        ck.Task(
            name,
            data_set(name, seed=len(name), channels=3, classes=classes.get(name, ("0", "1"))),
            "resnet8_cifar",
            "layer2",
            size=8,
            **settings,
        )
        for name in names or ("left", "right")
    ]


def use(name: str, **settings: Any) -> ck.RegularizerConfig:
    return ck.use(name, **TASKS[name], **settings)


@pytest.fixture(scope="module")
def without() -> ck.Fit:
    return quick(steps=2).fit(pair())


@pytest.fixture(scope="module")
def fits() -> dict[str, ck.Fit]:
    """Two steps of both tasks with each."""
    return {name: quick(steps=2).fit(pair(augment=("crop", "flip")), [use(name)]) for name in TASKS}


@each
def test_weight_zero_is_bitwise_the_run_without(name: str, without: ck.Fit) -> None:
    silent = quick(steps=2).fit(pair(), [use(name, weight=0)])
    assert same_parts(without, silent) and not silent.auxiliary


@each
def test_running_statistics_follow_the_clean_images_alone(name: str) -> None:
    """After one step from the same weights, all buffers are bitwise those of a run without; weights are not."""
    trainer = quick(steps=1, optimizer="sgd", lr=0.05)
    alone, together = (trainer.fit(pair("left"), uses).tasks["left"] for uses in ([], [use(name)]))
    buffers = dict(together.extractor.named_buffers())
    assert buffers
    assert all(torch.equal(value, buffers[key]) for key, value in alone.extractor.named_buffers())
    for parameter, other in zip(alone.extractor.parameters(), together.extractor.parameters(), strict=True):
        assert not torch.equal(parameter, other)  # its gradients reach every weight of the extractor
    assert all(
        torch.equal(a, b) for a, b in zip(alone.head.parameters(), together.head.parameters(), strict=True)
    )


@each
def test_both_tasks_move_one_head(name: str, fits: dict[str, ck.Fit]) -> None:
    fit = fits[name]
    head = fit.auxiliary[HEADS.get(name, name)]
    saved: list[Tensor] = []

    class Watch:
        @ck.hookimpl
        def compatkit_after_step(self, step: ck.Step) -> None:
            saved.append(torch.cat([parameter.detach().flatten() for parameter in self.module.parameters()]))

        @ck.hookimpl
        def compatkit_set_up(self, setup: ck.SetUp) -> None:
            self.module = setup.auxiliary[HEADS.get(name, name)].module

    again = quick(steps=2).fit(
        pair(augment=("crop", "flip")),
        [use(name), ck.use("watch", after=(name,))],
        factories={"watch": Watch},
    )
    assert same_parts(fit, again)  # the same run gives the same bits
    assert len(saved) == 4 and all(not torch.equal(a, b) for a, b in itertools.pairwise(saved))
    assert all(
        {(a.kind, a.digest) for a in state.anchors} >= {("auxiliary_head", head.digest)}
        for state in fit.tasks.values()
    )
    losses = {loss for row in fit.history for loss in row["losses"]}
    assert losses >= {"task", f"{name}/loss"}


@each
def test_resume_is_bitwise(name: str, tmp_path: Path, fits: dict[str, ck.Fit]) -> None:
    class Kill:
        @ck.hookimpl
        def compatkit_after_step(self, step: ck.Step) -> None:
            if self.armed and step.number == 1:
                raise KeyboardInterrupt

        def __init__(self, armed: bool = True) -> None:
            self.armed = armed

    settings: dict[str, Any] = {"steps": 2, "checkpoint": tmp_path / "run.safetensors", "checkpoint_every": 1}
    tasks = pair(augment=("crop", "flip"))
    killed = False

    def kill() -> Kill:
        return Kill(armed=not killed)

    with pytest.raises(KeyboardInterrupt):
        quick(**settings).fit(tasks, [use(name), "kill"], factories={"kill": kill})
    killed = True
    resumed = quick(**settings).fit(tasks, [use(name), "kill"], factories={"kill": kill})
    assert same_parts(resumed, fits[name])


@pytest.mark.parametrize("name", MEAN_OVER_IMAGES)
def test_pieces_give_the_gradients_of_the_whole_batch(name: str) -> None:
    """Of a network without batch normalization, by steps of SGD, which are linear in them."""
    color = attrs.evolve(grouped(), data=data_set("a", channels=3))
    settings: dict[str, Any] = {"steps": 1, "optimizer": "sgd", "lr": 0.1}
    whole, pieces = (quick(accumulate=k, **settings).fit([color], [use(name)]) for k in (1, 4))
    for key, value in whole.weights("a").items():
        torch.testing.assert_close(pieces.weights("a")[key], value, rtol=1e-5, atol=1e-5)


def test_pieces_of_a_contrast_are_contrasted_by_themselves() -> None:
    """Four pieces of two images have three others each, and not fifteen: the loss of a head without a clue."""
    whole, pieces = (
        quick(steps=1, accumulate=k).fit(pair("left"), [use("contrastive", temperature=1e6)]) for k in (1, 4)
    )
    losses = [fit.history[0]["losses"]["contrastive/loss"] for fit in (whole, pieces)]
    assert losses == pytest.approx([2.70805, 1.09861], abs=1e-3)  # ln 15, ln 3


@each
def test_bf16_is_float32_within_its_precision(name: str, fits: dict[str, ck.Fit]) -> None:
    half = quick(steps=2, precision="bf16").fit(pair(augment=("crop", "flip")), [use(name)])
    for row, other in zip(fits[name].history, half.history, strict=True):
        assert other["losses"][f"{name}/loss"] == pytest.approx(row["losses"][f"{name}/loss"], rel=0.1)
    assert all(parameter.dtype == torch.float32 for parameter in half.network("left").parameters())


@each
def test_effects_are_declared_as_they_are(name: str) -> None:
    """Pure losses are compiled as one graph and agree; what draws on the CPU says that it keeps steps eager."""
    from compatkit.plugins import RunPlugins

    plugins = RunPlugins.create([use(name)])
    assert [loss.effect for loss in plugins.losses] == ["pure" if name in PURE else "host"]
    assert {further_view.effect for further_view in plugins.further_views} <= {"pure"}


@pytest.mark.slow
def test_pure_losses_are_one_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """Traced without breaks; the trainer compares gradients before it uses it."""
    monkeypatch.setattr("compatkit.training.objective.BACKEND", "aot_eager")
    torch._dynamo.reset()
    fit = quick(steps=1, execution="compile").fit(pair("left"), [use("jigsaw"), use("colorization")])
    assert fit.run["environment"]["execution"] == {"mode": "compile", "reason": "asked for"}


def test_what_draws_is_not_compiled() -> None:
    fit = quick(steps=1, execution="compile").fit(pair("left"), [use("contrastive")])
    assert fit.run["environment"]["execution"]["mode"] == "eager"
    assert "'contrastive' has the effect 'host'" in fit.run["environment"]["execution"]["reason"]


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ck.Registry, ck.Fit]]:
    """All four at once on two tasks without a class in common, published."""
    fit = quick(steps=2).fit(pair(), [use(name) for name in TASKS])
    made = ck.Registry.init(tmp_path_factory.mktemp("tasks") / "parts")
    made.publish(fit, prefix="parts")
    yield made, fit


@each
def test_published_heads_say_what_they_tell_and_hold_what_was_trained(
    name: str, registry: tuple[ck.Registry, ck.Fit]
) -> None:
    made, fit = registry
    head = fit.auxiliary[HEADS.get(name, name)]
    manifest = made.store.manifest(f"parts/shared.{head.name}")
    assert manifest.kind == "auxiliary_head"
    assert manifest.contract.data.labels == head.labels
    loaded = made.frozen(f"parts/shared.{head.name}")[head.name]
    state = loaded.module.state_dict()
    assert all(torch.equal(value, state[key]) for key, value in head.module.state_dict().items())
    assert json.dumps(fit.run["plugins"]).count(f'"{name}"') >= 1


@each
def test_a_part_trained_against_the_frozen_head_is_promised_to_fit(
    name: str, registry: tuple[ck.Registry, ck.Fit]
) -> None:
    """Incremental: the head stays bit by bit, the verdict knows the anchor, and alone it is enough."""
    made, fit = registry
    head = HEADS.get(name, name)
    frozen = made.frozen(f"parts/shared.{head}")
    before = {key: value.clone() for key, value in frozen[head].module.state_dict().items()}
    later = quick(steps=2).fit(pair("later"), [use(name)], frozen=frozen)
    after = later.auxiliary[head].module.state_dict()
    assert all(torch.equal(value, after[key]) for key, value in before.items())
    parts = made.publish(later, prefix=f"with-{head}")
    assert set(parts) == {"later.extractor", "later.head"}
    report = made.check(parts["later.extractor"], "parts/left.head")
    assert report.promise == "shared-head"
    assert [finding.expected for finding in report.findings if finding.code == "head-shared"] == [
        f"trained against the auxiliary head {head} {fit.auxiliary[head].digest[:27]}"
    ]
    apart = made.publish(quick(steps=1, seed=5).fit(pair("later"), [use(name)]), prefix=f"alone-{head}")
    assert made.check(apart["later.extractor"], "parts/left.head").promise == "none"

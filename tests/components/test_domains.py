"""Domain adaptation: what trains, what does not, what is never read, and what the component says of it."""

from __future__ import annotations

from pathlib import Path

import attrs
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from adapted import BACKBONE, copied, publish_source, shuffled, source, target
from small import data_set, quick

import compatkit as ck
from compatkit.components.domains import Adapted, paper
from compatkit.data.split import NO_CLASSES
from compatkit.errors import DataError, IncompatibleError, TrainingError, UsageError
from compatkit.training.loop import Loop
from compatkit.training.step import StepResult

NAMES = "d/left.extractor", "d/left.head", "d/shared.rotation"


def fast(**settings: object) -> ck.Trainer:
    return paper(
        **{"steps": 3, "lr": 0.01, "batch_size": 8, "precision": "float32", "log_every": 1, **settings}
    )


@pytest.fixture(scope="module")
def source_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("source") / "parts"
    publish_source(root)
    return root


@pytest.fixture
def registry(source_root: Path, tmp_path: Path) -> ck.Registry:
    return copied(source_root, tmp_path / "parts")


def weights(adapted: Adapted) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in adapted.extractor.state_dict().items()}


def same(left: Adapted, right: Adapted) -> bool:
    other = weights(right)
    return all(torch.equal(value, other[name]) for name, value in weights(left).items())


def test_the_defaults_are_the_papers() -> None:
    trainer = paper()
    assert (trainer.steps, trainer.lr, trainer.weight_decay, trainer.schedule) == (
        1000,
        1e-5,
        0.0,
        "constant",
    )
    assert (trainer.optimizer, trainer.momentum, trainer.batch_size) == ("sgd", 0.9, 64)


@pytest.mark.parametrize("statistics", ["stored", "batch"])
def test_the_extractor_moves_as_a_loop_by_hand_moves_it(registry: ck.Registry, statistics: str) -> None:
    images, steps = target(), 3
    adapted = registry.adapt(
        *NAMES,
        images,
        trainer=fast(steps=steps, batch_size=len(images)),
        frozen_statistics=statistics,  # type: ignore[arg-type]
    )

    extractor, head = registry.load(NAMES[0]).train(), registry.load(NAMES[2])
    head.requires_grad_(False).train(statistics == "batch")
    data = registry.store.manifest(NAMES[0]).contract.data
    pixels = torch.from_numpy(images.resized(data.size).images).permute(0, 3, 1, 2).float() / 255
    pixels = (pixels - data.mean[0]) / data.std[0]
    views = [pixels, pixels.rot90(1, (-2, -1)), pixels.flip(-2), pixels.rot90(3, (-2, -1))]
    wanted = torch.arange(4).repeat_interleave(len(images))
    optimizer = torch.optim.SGD(extractor.parameters(), lr=0.01, momentum=0.9)
    loss = torch.zeros(())
    for _ in range(steps):
        with torch.no_grad():
            extractor(pixels)  # running statistics follow upright images
        stored = {name: value.clone() for name, value in extractor.named_buffers()}
        features = extractor(torch.cat(views))  # all in one batch, which leaves no trace
        for name, value in extractor.named_buffers():
            value.data.copy_(stored[name])
        loss = F.cross_entropy(head(features), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    for name, value in extractor.state_dict().items():
        torch.testing.assert_close(weights(adapted)[name], value, rtol=1e-3, atol=1e-4)
    assert adapted.fit.history[-1]["losses"] == {
        "rotation_prediction/loss": pytest.approx(float(loss.detach()), rel=1e-3)
    }


def test_labels_that_are_shuffled_or_absent_give_the_same_bits(registry: ck.Registry) -> None:
    images = target()
    inputs = registry.adapt(*NAMES, images, trainer=fast())
    for other in (shuffled(images), images.unlabeled()):
        again = registry.adapt(*NAMES, other, trainer=fast())
        assert same(inputs, again)
        assert again.fit.plan == inputs.fit.plan


def test_no_plugin_is_shown_a_label(registry: ck.Registry) -> None:
    seen: list[torch.Tensor] = []

    class Watching:
        @ck.hookimpl
        def compatkit_after_step(self, step: ck.Step) -> None:
            assert step.logits is None
            seen.append(step.batch.labels.clone())

    task = registry.task("target", target(), extractor=NAMES[0], head=NAMES[1], supervised=False)
    assert task.data.train.classes == NO_CLASSES
    heads = registry.frozen(NAMES[2])
    use = ck.use("rotation_prediction", half_turn="flip")
    fast().fit([task], [use, "watching"], frozen=heads, factories={"watching": Watching})
    assert seen and all((item == -1).all() for item in seen)


def test_only_the_extractor_moves(registry: ck.Registry) -> None:
    before = {name: {k: v.clone() for k, v in registry.load(name).state_dict().items()} for name in NAMES}
    adapted = registry.adapt(*NAMES, target(), trainer=fast(accumulate=2, ema=0.5))
    after = {
        NAMES[0]: adapted.source.module,
        NAMES[1]: adapted.fit.tasks["target"].head,
        NAMES[2]: adapted.fit.auxiliary["rotation"].module,
    }
    for name, module in after.items():  # statistics of batch normalization are among them
        assert all(torch.equal(value, before[name][key]) for key, value in module.state_dict().items())
    moved = weights(adapted)
    assert any(
        not torch.equal(value, before[NAMES[0]][key]) for key, value in moved.items() if "running" in key
    )
    assert any(
        not torch.equal(value, before[NAMES[0]][key]) for key, value in moved.items() if "weight" in key
    )
    averaged = adapted.fit.averaged().tasks["target"]
    assert all(torch.equal(v, before[NAMES[1]][k]) for k, v in averaged.head.state_dict().items())


def test_a_resumed_run_ends_with_the_same_bits(
    registry: ck.Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = registry.adapt(*NAMES, target(), trainer=fast(steps=4))
    trainer = fast(steps=4, checkpoint=tmp_path / "run.safetensors", checkpoint_every=2)
    step = Loop.step

    def killed(self: Loop, task: ck.TaskState, number: int, reports: bool) -> StepResult:
        if number == 3:
            raise KeyboardInterrupt
        return step(self, task, number, reports)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Loop, "step", killed)
        registry.adapt(*NAMES, target(), trainer=trainer)
    again = registry.adapt(*NAMES, target(), trainer=trainer)  # goes on from the second step
    assert same(whole, again)
    assert again.fit.history == whole.fit.history
    with pytest.raises(TrainingError, match="another plan"):
        registry.adapt(*NAMES, target().take(range(40)), trainer=trainer)


def test_what_is_published_says_where_it_came_from(registry: ck.Registry) -> None:
    images = target()
    adapted = registry.adapt(*NAMES, images, trainer=fast(), test=data_set("right", seed=1).test)
    reference = registry.publish(adapted, "d/right.extractor")
    assert reference == "d/right.extractor@1.0.0"
    manifest, first = registry.store.manifest(reference), registry.store
    digests = [str(first.resolve(name).digest) for name in (NAMES[0], NAMES[2])]
    assert [(parent.relation, parent.component) for parent in manifest.parents] == [
        ("initialised_from", digests[0]),
        ("adapted_against", digests[1]),
    ]
    bare = images.unlabeled()
    assert manifest.training["data"] == {"name": "right/train", "digest": bare.digest, "labelled": False}
    assert manifest.training["steps"] == 3
    assert manifest.training["plugins"][0]["settings"]["half_turn"] == "flip"
    assert manifest.about.title == "resnet8_cifar up to layer2, adapted to right"
    contract, old = manifest.contract, registry.store.manifest(NAMES[0]).contract
    assert contract.data == old.data and contract.structural == old.structural
    shared = registry.store.manifest(NAMES[2]).contract.protocol.anchors[0].digest
    assert [anchor.digest for anchor in contract.protocol.anchors if anchor.kind == "auxiliary_head"] == [
        shared
    ]
    assert contract.statistical.features != old.statistical.features  # of the target's images
    assert registry.check(reference, NAMES[1]).promise == "shared-head"
    assert torch.equal(
        registry.load(reference).state_dict()["conv1.weight"], adapted.extractor.state_dict()["conv1.weight"]
    )
    assert registry.store.names("d/*") == [
        "d/left.extractor",
        "d/left.head",
        "d/right.extractor",
        "d/shared.rotation",
    ]


def test_figures_are_those_of_the_matrix(registry: ck.Registry) -> None:
    test = data_set("right", seed=1).test
    adapted = registry.adapt(*NAMES, target(), trainer=fast(), test=test)
    assert list(adapted.accuracy) == ["source, running", "source, batch", "adapted, batch"]
    reference = registry.publish(adapted, "d/right.extractor")
    for extractor, arm, policy in (
        (NAMES[0], "source, running", "running"),
        (NAMES[0], "source, batch", "batch"),
        (reference, "adapted, batch", "batch"),
    ):
        matrix = registry.matrix(extractor, NAMES[1], {extractor.split("@")[0]: test}, bn_policy=policy)
        assert matrix.cells[0].restricted is not None
        assert adapted.accuracy[arm] == matrix.cells[0].restricted.accuracy


def test_an_adapted_extractor_can_be_adapted_again(registry: ck.Registry) -> None:
    adapted = registry.adapt(*NAMES, target(), trainer=fast())
    once = registry.publish(adapted, "d/right.extractor")
    again = registry.adapt(once, *NAMES[1:], target(), trainer=fast())
    assert registry.publish(again, "d/right.extractor").startswith("d/right.extractor@")
    assert registry.store.versions("d/right.extractor")


def test_images_are_brought_into_the_channels_and_size_of_the_extractor(registry: ck.Registry) -> None:
    gray = target()
    color = attrs.evolve(gray, images=np.repeat(gray.images, 3, axis=3))
    adapted = registry.adapt(*NAMES, color, trainer=fast(steps=1))
    state = adapted.fit.tasks["target"]
    assert state.examples.size == (16, 16) and state.examples.channels == "L"
    assert state.data.mean == registry.store.manifest(NAMES[0]).contract.data.mean


@pytest.mark.parametrize("name", ["jigsaw", "colorization", "contrastive"])
def test_every_self_supervised_head_will_do(registry: ck.Registry, name: str) -> None:
    color, settings = data_set("color", channels=3), {"colorization": {"cells": 2}}.get(name, {})
    task = ck.Task("color", color, BACKBONE, "layer2", size=16)
    registry.publish(quick(steps=1).fit([task], [ck.use(name, **settings)]), prefix="c")
    images = data_set("other", seed=1, channels=3).train
    parts = "c/color.extractor", "c/color.head", f"c/shared.{name}"
    adapted, again = (registry.adapt(*parts, item, trainer=fast()) for item in (images, shuffled(images)))
    assert same(adapted, again)
    assert list(adapted.fit.history[0]["losses"]) == [f"{name}/loss"]
    assert adapted.fit.run["plugins"][0]["settings"].get("cells") == settings.get("cells")
    assert registry.publish(adapted, "c/other.extractor") == "c/other.extractor@1.0.0"


def test_a_head_of_another_run_is_refused(registry: ck.Registry) -> None:
    other = quick(steps=1, seed=5).fit([source("other", seed=3)], ["rotation_prediction"])
    registry.publish(other, prefix="e")
    with pytest.raises(
        UsageError, match=r"was not trained against the auxiliary head e/shared.rotation@1.0.0"
    ):
        registry.adapt(*NAMES[:2], "e/shared.rotation", target(), trainer=fast())
    with pytest.warns(UserWarning, match="this head may use others"):
        registry.adapt(NAMES[0], "e/other.head", NAMES[2], target(), trainer=fast(steps=1))


def test_other_kinds_and_heads_that_do_not_fit_are_refused(registry: ck.Registry) -> None:
    with pytest.raises(UsageError, match=r"is of kind head; expected extractor"):
        registry.adapt(NAMES[1], NAMES[1], NAMES[2], target(), trainer=fast())
    with pytest.raises(UsageError, match=r"is of kind head; expected auxiliary_head"):
        registry.adapt(NAMES[0], NAMES[1], NAMES[1], target(), trainer=fast())
    wide = ck.Task("wide", data_set("wide"), "test_resnet", "layer2", size=32)
    registry.publish(quick(steps=1).fit([wide]), prefix="w")
    with pytest.raises(IncompatibleError):
        registry.adapt(NAMES[0], "w/wide.head", NAMES[2], target(), trainer=fast())


def test_dcc_cannot_do_without_labels(registry: ck.Registry) -> None:
    tasks = [source("one", seed=3), source("two", seed=4)]
    registry.publish(quick(steps=1).fit(tasks, ["dcc"]), prefix="e")
    with pytest.raises(UsageError, match="dcc tells classes apart; task 'target' has no labels"):
        registry.adapt("e/one.extractor", "e/one.head", "e/shared.dcc", target(), trainer=fast())


def test_a_head_that_does_not_name_its_method_needs_one(registry: ck.Registry) -> None:
    manifest = registry.store.manifest(NAMES[2])
    training = {key: value for key, value in manifest.training.items() if key != "plugin"}
    old = registry.store.publish("old/shared.rotation", attrs.evolve(manifest, training=training))
    with pytest.raises(
        UsageError, match=r"does not name the regularizer that trained it .its run had: rotation_pred"
    ):
        registry.adapt(*NAMES[:2], str(old), target(), trainer=fast())
    use = ck.use("rotation_prediction", half_turn="flip")
    adapted = registry.adapt(*NAMES[:2], str(old), target(), trainer=fast(), method=use)
    assert same(adapted, registry.adapt(*NAMES, target(), trainer=fast()))


def test_bad_images_and_settings(registry: ck.Registry) -> None:
    with pytest.raises(DataError, match="5 training images"):
        registry.adapt(*NAMES, target().take(range(5)), trainer=fast())
    with pytest.raises(UsageError, match="got str"):
        registry.adapt(*NAMES, "right", trainer=fast())  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="has no labels, so it cannot be evaluated"):
        registry.adapt(*NAMES, target(), trainer=fast(validation=0.2))
    with pytest.raises(TrainingError, match="is nan in step"):
        registry.adapt(*NAMES, target(), trainer=fast(lr=1e30, steps=4))
    strange = attrs.evolve(target(), classes=("x", "y", "z"))
    adapted = registry.adapt(*NAMES, target(), trainer=fast(steps=1), test=strange)
    assert set(adapted.accuracy.values()) == {None}
    assert "class" in adapted.cells["source", "batch"].reason

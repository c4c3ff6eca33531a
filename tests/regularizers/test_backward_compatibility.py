"""Training against released parts: losses and gradients against float64, who moves, what is kept, what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from adapted import BACKBONE, source
from small import data_set, quick, same_parts
from torch import Tensor, nn

import compatkit as ck
from compatkit.contracts.manifest import function_digest
from compatkit.errors import NotFound, PluginError, TrainingError, UsageError

HEAD, EXTRACTOR = "d/left.head", "d/left.extractor"
TINY = 1e-30
"""A rate at which weights stay what they are."""
BOTH = ["backward_compatibility", "feature_distillation"]


@pytest.fixture(scope="module")
def old_release(tmp_path_factory: pytest.TempPathFactory) -> ck.Registry:
    """A released network; what a test publishes has names of its own."""
    registry = ck.Registry.init(tmp_path_factory.mktemp("released") / "parts")
    registry.publish(quick(steps=3).fit([source("left")]), prefix="d")
    return registry


def later(classes: tuple[str, ...] = ("2", "0", "1"), **settings: Any) -> ck.Task:
    """A task with the released classes in another order, on images of another mean."""
    data = data_set("right", seed=1, classes=classes)
    return ck.Task("right", data, BACKBONE, "layer2", size=16, **settings)


class Watch:
    """Keeps what a step saw, its gradients and its terms."""

    def __init__(self) -> None:
        self.steps: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
        self.modules: list[nn.Module] = []

    @ck.hookimpl
    def compatkit_losses(self, step: ck.Step) -> Mapping[str, Tensor]:
        assert step.features is not None
        step.features.retain_grad()
        head = step.task.head
        buffers = torch.cat([buffer.detach().double().flatten() for buffer in head.buffers()]).clone()
        self.steps.append((step.batch.images.clone(), step.batch.labels.clone(), step.features, buffers))
        return {}


def state(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items()}


def same(item: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return all(torch.equal(value, other[name]) for name, value in item.items())


def test_losses_and_gradients_equal_the_formula_in_float64(old_release: ck.Registry) -> None:
    # Class "9" is none of the released head's: its examples count in the denominator alone.
    watch, classes = Watch(), ("2", "9", "0")
    frozen = old_release.frozen(head=HEAD, extractor=EXTRACTOR)
    uses = [ck.use("backward_compatibility", weight=0.5, forward=0.25), "feature_distillation", "watch"]
    fit = quick(steps=1, optimizer="sgd", lr=TINY).fit(
        [later(classes)], uses, frozen=frozen, factories={"watch": lambda: watch}
    )
    images, labels, features, _ = watch.steps[0]
    new, old = fit.tasks["right"].head.double(), old_release.load(HEAD).double()
    z = features.detach().double().requires_grad_()
    outputs = torch.tensor([{"2": 2, "9": -1, "0": 0}[classes[int(label)]] for label in labels])
    known = outputs >= 0
    assert 0 < int(known.sum()) < len(labels)
    backward = -old(z).log_softmax(1)[known, outputs[known]].sum() / len(labels)
    mine, theirs = fit.tasks["right"].data, old_release.store.manifest(EXTRACTOR).contract.data
    pixels = images.double() * mine.std[0] + mine.mean[0]
    with torch.no_grad():
        seen = old_release.load(EXTRACTOR).double()((pixels - theirs.mean[0]) / theirs.std[0])
    classified = new.train()
    forward = nn.functional.cross_entropy(classified(seen), labels)
    distilled = (z - seen).square().mean()
    task = nn.functional.cross_entropy(classified(z), labels)
    (task + 0.5 * (backward + 0.25 * forward) + distilled).backward()
    terms = fit.history[0]["losses"]
    assert terms["backward_compatibility/backward"] == pytest.approx(float(backward.detach()), rel=1e-5)
    assert terms["backward_compatibility/forward"] == pytest.approx(0.25 * float(forward.detach()), rel=1e-5)
    assert terms["feature_distillation/loss"] == pytest.approx(float(distilled.detach()), rel=1e-5)
    assert features.grad is not None and z.grad is not None
    torch.testing.assert_close(features.grad.double(), z.grad, rtol=1e-4, atol=1e-8)


def test_a_batch_without_a_class_of_the_head_costs_nothing(old_release: ck.Registry) -> None:
    data = data_set("right", seed=1, classes=("2", "9"))
    shown = data.train.classes.index("9")
    index = np.flatnonzero(data.train.labels == shown)
    labels = np.concatenate([[data.train.classes.index("2")], data.train.labels[index]])
    images = np.concatenate([data.train.images[:1], data.train.images[index]])
    few = ck.DataSet("right", ck.Split(images, labels, data.train.classes, "right/train"), data.test)
    task = ck.Task("right", few, BACKBONE, "layer2", size=16)
    fit = quick(steps=6, batch_size=2).fit(
        [task], ["backward_compatibility"], frozen=old_release.frozen(head=HEAD)
    )
    terms = [row["losses"]["backward_compatibility/backward"] for row in fit.history]
    assert 0.0 in terms and all(np.isfinite(terms))


def test_released_parts_do_not_move_and_get_no_gradients(old_release: ck.Registry) -> None:
    frozen = old_release.frozen(head=HEAD, extractor=EXTRACTOR)
    before = {name: state(value.module) for name, value in frozen.items()}
    fit = quick(steps=3).fit([later()], [ck.use(BOTH[0], forward=1.0), BOTH[1]], frozen=frozen)
    head = fit.auxiliary["released"]
    assert head.frozen and same(before["released"], state(head.module))
    assert all(
        parameter.grad is None and not parameter.requires_grad for parameter in head.module.parameters()
    )
    assert all(same(before[name], state(value.module)) for name, value in frozen.items())
    owned = {id(parameter) for parameter in fit.network("right").parameters()}
    assert not owned & {id(parameter) for parameter in head.module.parameters()}
    assert set(fit.run["frozen"]) == {"released", "released.extractor"}
    assert fit.run["frozen"]["released"]["digest"] == old_release.store.manifest(HEAD).payload.tensors


def test_the_forward_term_moves_no_buffer_of_the_new_head(old_release: ck.Registry) -> None:
    frozen, trainer = (
        old_release.frozen(head=HEAD, extractor=EXTRACTOR),
        quick(steps=1, optimizer="sgd", lr=TINY),
    )
    plain = trainer.fit([later()]).tasks["right"].head
    with_it = trainer.fit([later()], [ck.use(BOTH[0], forward=1.0)], frozen=frozen).tasks["right"].head
    assert same(dict(plain.named_buffers()), dict(with_it.named_buffers()))


def test_weight_zero_is_bitwise_the_run_without() -> None:
    plain = quick(steps=2).fit([later()])
    silent = quick(steps=2).fit([later()], [ck.use(name, weight=0) for name in BOTH])
    assert same_parts(plain, silent) and plain.run["frozen"] == silent.run["frozen"] == {}


def test_the_head_learns_to_stay_readable(old_release: ck.Registry) -> None:
    """The released head classifies new features: with the loss far better than without, and from a warm start."""
    test = data_set("right", seed=1).test
    right = {}
    for arm in ("independent", "bct", "warm"):
        task = later(("0", "1", "2"))
        if arm == "warm":
            task = old_release.task("right", data_set("right", seed=1), extractor=EXTRACTOR)
        against = {} if arm == "independent" else {"frozen": old_release.frozen(head=HEAD)}
        fit = quick(steps=25).fit([task], [] if arm == "independent" else BOTH[:1], **against)
        old_release.publish(fit, prefix=f"readable/{arm}")
        cell = old_release.matrix(f"readable/{arm}/right.extractor", HEAD, [test], bn_policy="running").cells[
            0
        ]
        assert cell.restricted is not None
        right[arm] = cell.restricted.accuracy
        assert cell.promise == ("none" if arm == "independent" else "shared-head")
    assert min(right["bct"], right["warm"]) >= 0.9 > right["independent"]


def test_published_parts_name_the_head_and_a_check_promises_it(old_release: ck.Registry) -> None:
    released = old_release.store.manifest(HEAD)
    fit = quick(steps=1).fit([later()], BOTH[:1], frozen=old_release.frozen(head=HEAD))
    parts = old_release.publish(fit, prefix="named")
    assert set(parts) == {"right.extractor", "right.head"}  # the released head is no new part
    manifest = old_release.store.manifest(parts["right.extractor"])
    anchors = {(anchor.kind, anchor.digest, anchor.task) for anchor in manifest.contract.protocol.anchors}
    assert ("auxiliary_head", released.payload.tensors, "released") in anchors
    assert manifest.training["frozen"] == [released.payload.tensors]
    report = old_release.check(parts["right.extractor"], HEAD)
    assert report.promise == "shared-head" and "head-shared" in [finding.code for finding in report.findings]
    other = old_release.check(EXTRACTOR, parts["right.head"])  # the other way nothing was promised
    assert other.promise == "none"
    sides = {EXTRACTOR: old_release.store.manifest(EXTRACTOR), "new": manifest}, {HEAD: released}
    every = ck.check_all(*sides)
    wanted = {EXTRACTOR: old_release.check(EXTRACTOR, HEAD).promise, "new": "shared-head"}
    assert {left: summary.report.promise for left, _, summary in every.pairs()} == wanted
    assert function_digest(released) == function_digest(old_release.store.manifest(HEAD))


def test_a_run_goes_on_from_a_checkpoint_bit_by_bit_and_only_against_the_same_head(
    old_release: ck.Registry, tmp_path: Path
) -> None:
    use = ck.use(BOTH[0], forward=0.5)

    class Stop:
        @ck.hookimpl
        def compatkit_after_step(self, step: ck.Step) -> None:
            if step.number == 2 and not resumed:
                raise KeyboardInterrupt

    def run(path: Path | None, frozen: Any) -> ck.Fit:
        trainer = quick(steps=5, checkpoint=path, checkpoint_every=2)
        return trainer.fit([later()], [use, "stop"], frozen=frozen, factories={"stop": Stop})

    resumed, file, frozen = False, tmp_path / "run", old_release.frozen(head=HEAD, extractor=EXTRACTOR)
    with pytest.raises(KeyboardInterrupt):
        run(file, frozen)
    resumed = True
    other = quick(steps=1).fit([source("left", seed=5)])
    old_release.publish(other, prefix="other")
    with pytest.raises(TrainingError, match=r"another plan: .*frozen\.released"):
        run(file, old_release.frozen(head="other/left.head", extractor=EXTRACTOR))
    assert same_parts(run(file, frozen), run(None, frozen))


def test_beside_incremental_dcc_and_with_batch_statistics(tmp_path: Path) -> None:
    registry = ck.Registry.init(tmp_path / "parts")
    first = quick(steps=2).fit([source("left")], ["dcc"])
    registry.publish(first, prefix="d")
    frozen = registry.frozen("d/shared.*", head=HEAD)
    both = ["dcc", "backward_compatibility"]
    stored, batch = (
        quick(steps=1).fit([later()], both, frozen=frozen, frozen_statistics=how)
        for how in ("stored", "batch")
    )
    losses = [fit.history[0]["losses"]["backward_compatibility/backward"] for fit in (stored, batch)]
    assert losses[0] != losses[1]
    for fit in (stored, batch):
        assert same(state(registry.load(HEAD)), state(fit.auxiliary["released"].module))
    registry.publish(stored, prefix="e")
    report = registry.check("e/right.extractor", HEAD)
    assert (
        sum(finding.code == "head-shared" for finding in report.findings) == 2
    )  # the auxiliary head, and the head itself


def test_weight_zero_beside_released_parts_is_absence(old_release: ck.Registry) -> None:
    plain = quick(steps=2).fit([later()])
    left_out = [ck.use(side, weight=0.0) for side in BOTH]
    fit = quick(steps=2).fit([later()], left_out, frozen=old_release.frozen(head=HEAD, extractor=EXTRACTOR))
    assert same(state(plain.tasks["right"].extractor), state(fit.tasks["right"].extractor))
    assert fit.auxiliary == {}


def test_what_cannot_be_trained_against_is_refused(old_release: ck.Registry) -> None:
    def refused(match: str, task: ck.Task, uses: list[Any], frozen: Any = None) -> None:
        with pytest.raises((PluginError, UsageError), match=match):
            quick(steps=1).fit([task], uses, frozen=frozen)

    head, both = old_release.frozen(head=HEAD), old_release.frozen(head=HEAD, extractor=EXTRACTOR)
    refused(r"no released head.*registry\.released\(HEAD\)", later(), BOTH[:1])
    refused(r"no released extractor", later(), BOTH[1:])
    refused(r"no released extractor", later(), [ck.use(BOTH[0], forward=1.0)], head)
    refused(r"no class in common.*has a, b; the head tells apart 0, 1, 2", later(("a", "b")), BOTH[:1], head)
    narrow = ck.Task("right", data_set("right"), BACKBONE, "layer1", size=16)
    refused(r"does not take the features \(16, 16, 16\) of task 'right'", narrow, BOTH[:1], head)
    alone = old_release.frozen(head=None, extractor=EXTRACTOR)
    refused(r"has features \(32, 8, 8\); task 'right' has \(16, 16, 16\)", narrow, BOTH[1:], alone)
    small = ck.Task("right", data_set("right"), BACKBONE, "layer2", size=8)
    refused(r"takes images of size \(16, 16\)", small, BOTH[1:], alone)
    refused(r"uses the released extractor d/left.extractor@1.0.0", later(), BOTH[:1], both)
    refused(r"uses the frozen auxiliary head 'released'", later(), [], head)
    refused(r"'forward' must be a number from 0 up", later(), [ck.use(BOTH[0], forward=-1.0)], head)
    bare = old_release.task("x", data_set("right").train, extractor=EXTRACTOR, head=HEAD, supervised=False)
    refused(r"needs labels; task 'x' has none", bare, BOTH[:1], head)
    assert old_release.frozen() == {}
    with pytest.raises(NotFound):
        old_release.frozen(head="d/gone.head")
    with pytest.raises(UsageError):
        old_release.frozen(head=EXTRACTOR)

"""A recombined network: a plain module, its policies, its report."""

from __future__ import annotations

import attrs
import numpy as np
import pytest
import torch
from evaluation.networks import Classes, Features
from sample_components import (
    FEATURES,
    GRAY,
    extractor,
    head,
    initial,
    labels,
    loaded,
    sha256,
    shared,
)
from torch import nn

from compatkit.contracts.check import check
from compatkit.contracts.contract import Protocol
from compatkit.contracts.manifest import Parent
from compatkit.contracts.stitch import project
from compatkit.data.dataset import Split
from compatkit.errors import IncompatibleError, UsageError
from compatkit.evaluation.adapter import Adapter
from compatkit.evaluation.batchnorm import batches, reestimate
from compatkit.evaluation.component import Component
from compatkit.evaluation.preprocessing import normalize, prepare
from compatkit.evaluation.recombination import Recombination


@pytest.fixture
def images() -> Split:
    draw = np.random.default_rng(0)
    return Split(
        draw.integers(0, 256, (40, 10, 9, 3)).astype(np.uint8), draw.integers(0, 3, 40), ("0", "1", "2"), "x"
    )


@pytest.fixture
def left() -> Component:
    return loaded("a.extractor", extractor(norm="batch"), Features(0).eval())


@pytest.fixture
def right() -> Component:
    made = head(norm="batch", classes=labels("0", "1", "2"))
    return loaded("b.head", made, Classes(1).eval())


def pixels(left: Component, images: Split) -> torch.Tensor:
    data = left.manifest.contract.data
    return normalize(prepare(images, data).images, data)


def state(module: nn.Module) -> list[bytes]:
    return [value.numpy().tobytes() for value in module.state_dict().values()]


def adapter(left: Component, right: Component, module: nn.Module, strange: str = "") -> Adapter:
    """Return a projection made for two parts, or with one parent (``strange``) of another pair."""
    inputs, taken = left.manifest.contract.structural.outputs, right.manifest.contract.structural.inputs
    known = {"adapts": left.digest, "targets": right.trained_with}
    known |= {strange: sha256("another")} if strange else {}
    parents = tuple(Parent(relation, digest) for relation, digest in known.items() if digest)
    return Adapter(project(inputs[0], 6, False, (8, 8)), module, inputs, taken, GRAY, parents)


def test_running_is_the_head_after_the_extractor(left: Component, right: Component, images: Split) -> None:
    model = Recombination.of(left, right, check(left.manifest, right.manifest), bn_policy="running")
    x = pixels(left, images)
    assert not model.training
    assert torch.equal(model(x), right.module(left.module(x)))
    assert set(model.state_dict()) == {f"extractor.{name}" for name in left.module.state_dict()} | {
        f"head.{name}" for name in right.module.state_dict()
    }
    assert [label.name for label in model.labels] == ["0", "1", "2"]


def test_batch_uses_the_batch_writes_nothing_and_lets_gradients_through(
    left: Component, right: Component, images: Split
) -> None:
    model = Recombination.of(left, right, check(left.manifest, right.manifest), bn_policy="batch")
    x, before = pixels(left, images), state(model)
    logits = model(x)
    assert state(model) == before
    assert not any(module.training for module in model.modules())
    assert not torch.equal(logits[:4], model(x[:4]))
    left.module.dropout.eval()  # type: ignore[union-attr, operator]
    model.extractor.norm.train()  # type: ignore[union-attr, operator]
    model.head.norm.train()  # type: ignore[union-attr, operator]
    assert torch.equal(logits, right.module(left.module(x)))
    logits.sum().backward()
    assert model.extractor.weights.weight.grad is not None  # type: ignore[union-attr]


def test_reestimate_works_on_copies(left: Component, right: Component, images: Split) -> None:
    before = state(left.module), state(right.module)
    report = check(left.manifest, right.manifest)
    model = Recombination.of(left, right, report, bn_policy="reestimate", data=images, batch_size=16)
    assert (state(left.module), state(right.module)) == before
    whole = nn.Sequential(Features(0), Classes(1)).eval()
    x = pixels(left, images)
    reestimate(whole, [x[positions] for positions in batches(40, 16, 0)])
    assert torch.equal(model(x), whole(x))
    assert model.head.norm.num_batches_tracked == 3  # type: ignore[union-attr]


@pytest.mark.filterwarnings("ignore:Batch normalization takes the statistics of the batch")
def test_predict_takes_images_as_they_are(left: Component, right: Component, images: Split) -> None:
    model = Recombination.of(left, right, check(left.manifest, right.manifest)).train()
    before = state(model)
    result = model.predict(images.images, batch_size=7).positions
    assert torch.equal(result, right.module.eval()(left.module.eval()(pixels(left, images))).argmax(1))
    assert torch.equal(result, model.predict(images).positions)
    some = model.predict(images)[2:5]
    assert len(some) == 3 and [entry.position for entry in some] == result[2:5].tolist()
    assert state(model) == before


def test_stored_statistics_warn_where_the_parts_are_not_of_one_network(
    left: Component, right: Component
) -> None:
    report = check(left.manifest, right.manifest)

    def severities(part: Component, policy: str) -> list[str]:
        model = Recombination.of(left, part, report, bn_policy=policy)
        return [
            finding.severity for finding in model.report.findings if finding.code == "normalization-needed"
        ]

    assert severities(right, "running") == ["informs", "warns"]
    assert severities(right, "batch") == ["informs"]
    assert severities(loaded("a.head", right.manifest, right.module, trained_with=left), "running") == [
        "informs"
    ]
    assert "bn_policy='batch'" in repr(Recombination.of(left, right, report))
    own = loaded("a.head", right.manifest, right.module, trained_with=left)
    assert "bn_policy='running'" in repr(Recombination.of(left, own, report))


def test_without_batch_normalization_the_policy_is_said_to_change_nothing() -> None:
    left = loaded("a", extractor(), nn.Conv2d(1, 4, 1))
    right = loaded("b", head(classes=labels("0")), nn.Sequential(nn.Flatten(), nn.Linear(256, 1)))
    model = Recombination.of(left, right, check(left.manifest, right.manifest), bn_policy="batch")
    assert any("changes nothing" in finding.actual for finding in model.report.findings)
    assert model(torch.zeros(1, 1, 8, 8)).shape == (1, 1)


def test_adapters_stand_between(left: Component) -> None:
    wide = attrs.evolve(FEATURES, shape=("N", 6, "h", "w"))
    right = loaded("b.head", head(wide, classes=labels("0")), nn.Sequential(nn.Flatten(), nn.Linear(384, 1)))
    report = check(left.manifest, right.manifest)
    with pytest.raises(IncompatibleError, match="project") as caught:
        Recombination.of(left, right, report)
    assert caught.value.subject is report
    bridge = nn.Conv2d(4, 6, 1)
    between = adapter(left, right, bridge)
    model = Recombination.of(left, right, report, bn_policy="running", adapters=[between])
    x = torch.randn(3, 1, 8, 8)
    assert torch.equal(model(x), right.module(bridge(left.module(x))))
    assert model.contract.adapters == (between.blueprint,)
    assert "project: 1x1 convolution from 4 to 6 channels" in repr(model)
    (note,) = [finding for finding in model.report.findings if finding.code == "adapter-inserted"]
    assert (note.severity, model.report.wiring) == ("informs", "needs-adapter")


@pytest.mark.parametrize("strange", ["adapts", "targets"])
def test_an_adapter_that_was_fitted_for_other_parts_is_warned_of(left: Component, strange: str) -> None:
    wide = attrs.evolve(FEATURES, shape=("N", 6, "h", "w"))
    right = loaded("b.head", head(wide), nn.Identity(), trained_with=left)
    between = adapter(left, right, nn.Conv2d(4, 6, 1), strange=strange)
    model = Recombination.of(left, right, check(left.manifest, right.manifest), adapters=[between])
    (note,) = [finding for finding in model.report.findings if finding.code == "adapter-inserted"]
    assert note.severity == "warns" and "fitted for other parts" in note.actual


def test_the_contract_is_of_the_whole(left: Component, right: Component) -> None:
    """Images as the extractor wants them, classes and outputs of the head, and what either asks for."""
    mine = attrs.evolve(left, manifest=extractor(anchors=(initial("one"), shared("dcc")), norm="none"))
    model = Recombination.of(mine, right, check(mine.manifest, right.manifest))
    whole = model.contract
    assert whole.structural.inputs == mine.manifest.contract.structural.inputs
    assert whole.structural.outputs == right.manifest.contract.structural.outputs
    assert whole.data == attrs.evolve(mine.manifest.contract.data, labels=labels("0", "1", "2"))
    assert whole.protocol == Protocol("batch", (initial("one"), shared("dcc")))
    assert whole.adapters == () and model.data.labels is None


def test_what_cannot_be_wired_is_refused_with_adapters_too(left: Component, right: Component) -> None:
    vector = attrs.evolve(FEATURES, shape=("N", 4), layout="NC")
    flat = attrs.evolve(left, manifest=extractor(vector))
    with pytest.raises(IncompatibleError):
        Recombination.of(
            flat, right, check(flat.manifest, right.manifest), adapters=[adapter(flat, right, nn.Identity())]
        )


def test_policies_and_images_must_go_together(left: Component, right: Component, images: Split) -> None:
    report = check(left.manifest, right.manifest)
    with pytest.raises(UsageError, match="needs data="):
        Recombination.of(left, right, report, bn_policy="reestimate")
    with pytest.raises(UsageError, match="leave it out"):
        Recombination.of(left, right, report, bn_policy="batch", data=images)
    with pytest.raises(UsageError, match="Did you mean 'batch'"):
        Recombination.of(left, right, report, bn_policy="batched")

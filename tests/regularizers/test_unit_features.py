"""Features of unit length: the loss by hand, its gradient, the layer that makes them, and both in training."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from small import data_set, quick, same_parts
from torch import Tensor

import compatkit as ck
from compatkit.errors import UsageError
from compatkit.training.testing import assert_regularizer
from compatkit_plugins.regularizers.unit_features import UnitFeatures, length_excess


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def by_loops(features: Tensor, over: str) -> float:
    result = []
    for image in features.tolist():
        if over == "image":
            vectors = [[entry for plane in image for row in plane for entry in row]]
        else:
            height, width = len(image[0]), len(image[0][0])
            vectors = [[plane[y][x] for plane in image] for y in range(height) for x in range(width)]
        result += [(sum(entry * entry for entry in vector) ** 0.5 - 1) ** 2 for vector in vectors]
    return sum(result) / len(result)


@pytest.mark.parametrize("over", ["position", "image"])
def test_the_loss_is_that_of_loops_and_its_gradient_of_differences(over: str) -> None:
    features = drawn(3, 4, 2, 5)
    assert float(length_excess(features, over)) == pytest.approx(by_loops(features, over), rel=1e-12)
    assert torch.autograd.gradcheck(lambda item: length_excess(item, over), features.requires_grad_())
    assert length_excess(features.detach().bfloat16(), over).dtype == torch.float32


def test_vectors_and_tokens_have_their_channels_last_and_maps_second() -> None:
    values = drawn(3, 5, 2)
    as_map = values.transpose(1, 2)[..., None]
    torch.testing.assert_close(length_excess(values), length_excess(as_map))
    assert float(length_excess(torch.tensor([[3.0, 4.0], [1.0, 0.0]]))) == pytest.approx(8.0)


def test_zeros_count_one_and_pull_nowhere() -> None:
    features = torch.zeros(2, 3, 1, 1, requires_grad=True)
    loss = length_excess(features)
    loss.backward()
    assert float(loss.detach()) == 1.0 and torch.equal(features.grad, torch.zeros(2, 3, 1, 1))  # type: ignore[arg-type]


def test_it_conforms_and_refuses_another_reading() -> None:
    assert_regularizer(UnitFeatures, over="image")
    with pytest.raises(UsageError, match="'over' must be one of position, image"):
        UnitFeatures(over="channel")


def task(name: str = "a", **kwargs: object) -> ck.Task:
    return ck.Task(name, data_set(name), "resnet8_cifar", "layer2", size=12, kwargs=kwargs)


def test_training_pulls_lengths_to_one_and_weight_0_changes_nothing() -> None:
    plain, off, on = (
        quick(steps=12, lr=0.01).fit([task()], uses)
        for uses in ([], [ck.use("unit_features", weight=0)], ["unit_features"])
    )
    assert same_parts(plain, off) and not same_parts(plain, on)
    losses = [row["losses"]["unit_features/length"] for row in on.history]
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.filterwarnings("ignore:Batch normalization takes the statistics of the batch")
def test_a_part_with_unit_features_is_rebuilt_with_them(tmp_path: Path) -> None:
    registry = ck.Registry.init(tmp_path / "parts")
    tasks = [task("a", unit_length="layer2"), task("b", unit_length="layer2")]
    registry.publish(quick(steps=2).fit(tasks, ["identical_init"]), prefix="unit")
    model = registry.recombine("unit/a.extractor", "unit/b.head", bn_policy="batch")
    with torch.no_grad():
        features = model.extractor(torch.randn(2, 1, 12, 12))
    torch.testing.assert_close(features.norm(dim=1), torch.ones(2, 6, 6))
    manifest = registry.store.manifest("unit/a.extractor")
    assert manifest.blueprint.kwargs["unit_length"] == "layer2"
    registry.publish(model, "unit/ab")
    again = registry.load("unit/ab", verify="always")
    registry.export(again, tmp_path / "ab.safetensors")
    exported, images = ck.load_exported(tmp_path / "ab.safetensors"), tasks[0].data.test
    assert torch.equal(exported.predict(images).probabilities, model.predict(images).probabilities)

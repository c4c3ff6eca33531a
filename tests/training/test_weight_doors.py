"""Weights that no network can use are refused at every door of a run, and named; images that are not finite too."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from safetensors.torch import load_file, save_file
from small import data_set, quick
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

import compatkit as ck
from compatkit.errors import CompatkitError, DataError, IntegrityError, TrainingError
from compatkit.registry.weights.tensorfile import deserialize, metadata, serialize, state_digest

Spoil = Callable[[dict[str, Tensor]], dict[str, Tensor]]
SPOILED: dict[str, tuple[str, Spoil]] = {
    "nan": ("conv1.weight", lambda state: {"conv1.weight": state["conv1.weight"] * float("nan")}),
    "variance": ("bn1.running_var", lambda state: {"bn1.running_var": -state["bn1.running_var"] - 1}),
    "float64": ("conv1.weight", lambda state: {"conv1.weight": state["conv1.weight"].double() * 0 + 1e300}),
}


def task(name: str = "a", **settings: Any) -> ck.Task:
    return ck.Task(name, data_set(name), "resnet8_cifar", "layer2", size=12, **settings)


@pytest.fixture(scope="module")
def weights() -> dict[str, Tensor]:
    return quick(steps=1).fit([task()]).weights("a")


@pytest.mark.parametrize("form", ["dict", "file", "folder"])
@pytest.mark.parametrize("how", SPOILED)
def test_initial_weights(weights: dict[str, Tensor], how: str, form: str, tmp_path: Path) -> None:
    name, spoil = SPOILED[how]
    state: Any = {**weights, **spoil(weights)}
    if form != "dict":
        save_file(state, tmp_path / "model.safetensors")
        state = tmp_path if form == "folder" else tmp_path / "model.safetensors"
    with pytest.raises(IntegrityError) as caught:
        quick(steps=0).fit([task(weights=state)])
    assert caught.value.subject == name


def test_weights_whose_outputs_overflow_are_named(weights: dict[str, Tensor]) -> None:
    """Each value is finite; their sums are not."""
    with pytest.raises(IntegrityError, match="not finite with these weights") as caught:
        quick(steps=0).fit([task(weights={**weights, "conv1.weight": weights["conv1.weight"] * 0 + 3e38})])
    assert caught.value.subject == "conv1.weight"


@pytest.mark.parametrize("side", ["extractor", "head"])
def test_components_that_were_changed_in_memory(side: str, tmp_path: Path) -> None:
    registry = ck.Registry.init(tmp_path / "parts")
    registry.publish(quick(steps=1).fit([task()]), prefix="x")
    started = registry.task("b", data_set("a"), extractor="x/a.extractor", head="x/a.head")
    next(getattr(started, side).module.parameters()).data.fill_(float("inf"))
    with pytest.raises(IntegrityError):
        quick(steps=0).fit([started])


def test_frozen_heads() -> None:
    fit = quick(steps=1).fit([task()], ["dcc"])
    next(fit.auxiliary["dcc"].module.parameters()).data[0] = float("nan")
    with pytest.raises(IntegrityError):
        quick(steps=0).fit([task("b")], ["dcc"], frozen=fit)


@pytest.mark.parametrize("hook", ["compatkit_set_up", "compatkit_pretrain", "compatkit_finish"])
def test_plugins_that_set_weights_are_named(hook: str) -> None:
    def spoil(self: object, setup: Any) -> Mapping[str, Any]:
        setup.tasks["a"].head.get_buffer("layer3.0.bn1.running_var").fill_(-1)
        return {}

    made = type("Spoils", (), {hook: ck.hookimpl(spoil)})
    with pytest.raises(IntegrityError, match="Plugin 'spoils'") as caught:
        quick(steps=1).fit([task()], ["spoils"], factories={"spoils": made})
    assert caught.value.subject == "layer3.0.bn1.running_var"


def rewritten(path: Path, change: Callable[[dict[str, Tensor]], None]) -> None:
    """Change the tensors of a checkpoint, and its promise of them."""
    import json

    data = path.read_bytes()
    state, note = deserialize(data), json.loads(metadata(data) or "")
    change(state)
    path.write_bytes(serialize(state, json.dumps({**note, "tensors": state_digest(state)})))


@pytest.mark.parametrize("how", ["nan", "variance", "kind"])
def test_checkpoints_are_checked_when_a_run_resumes(how: str, tmp_path: Path) -> None:
    path, weight = tmp_path / "run.safetensors", "module/a.extractor/conv1.weight"
    quick(steps=2, checkpoint=path).fit([task()])

    def change(state: dict[str, Tensor]) -> None:
        if how == "nan":
            state[weight].fill_(float("nan"))
        elif how == "variance":
            state["module/a.extractor/bn1.running_var"].fill_(-1)
        else:
            state[weight] = state[weight].to(torch.int64)

    rewritten(path, change)
    with pytest.raises(IntegrityError):
        quick(steps=2, checkpoint=path).fit([task()])


def test_a_run_never_ends_with_weights_that_no_network_can_use() -> None:
    class Last:
        @ck.hookimpl
        def compatkit_after_step(self, step: ck.Step) -> None:
            if step.number == 1:
                step.task.extractor.get_parameter("conv1.weight").data[0] = float("inf")

    with pytest.raises(TrainingError) as caught:
        quick(steps=2).fit([task()], ["last"], factories={"last": Last})
    assert caught.value.subject == "conv1.weight"


@pytest.mark.parametrize("how", SPOILED)
def test_parts_that_are_registered(how: str, tmp_path: Path) -> None:
    registry = ck.Registry.init(tmp_path / "parts")
    registry.publish(quick(steps=1).fit([task()]), prefix="x")
    name, spoil = SPOILED[how]
    manifest, state = registry.store.manifest("x/a.extractor"), registry.load("x/a.extractor").state_dict()
    with pytest.raises(IntegrityError) as caught:
        registry.publish(manifest, "y", state={**state, **spoil(state)})
    assert caught.value.subject == name


@pytest.mark.parametrize("first", [0, 5])
def test_images_of_a_loader_that_are_not_finite_are_told_before_the_learning_rate(
    first: int, tmp_path: Path
) -> None:
    """In the first batches at once, later where the loss is read: also before a checkpoint blames the weights."""
    images = torch.randn(64, 1, 12, 12)
    images[8 * first + 3] = float("nan")
    loader = DataLoader(TensorDataset(images, torch.arange(64) % 3), 8)
    trainer = quick(steps=8, log_every=8, checkpoint=tmp_path / "run", checkpoint_every=3)
    with pytest.raises(CompatkitError, match=f"step {first}, counted from 0") as caught:
        trainer.fit([task(loader=loader)])
    assert isinstance(caught.value, DataError if first == 0 else TrainingError)
    assert caught.value.subject == "a" and "learning rate" not in str(caught.value)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_images_that_a_plugin_spoils_are_told(accumulate: int) -> None:
    class Spoils:
        @ck.hookimpl
        def compatkit_views(self, step: ck.Step, batch: ck.Batch) -> ck.Batch:
            return attrs.evolve(batch, images=batch.images / (0 if step.number == 2 else 1))

    with pytest.raises(TrainingError, match="images of task 'a' are not finite in step 2") as caught:
        quick(steps=4, log_every=4, accumulate=accumulate).fit([task()], ["v"], factories={"v": Spoils})
    assert caught.value.subject == "a"


def test_a_file_is_left_as_it_was(weights: dict[str, Tensor], tmp_path: Path) -> None:
    """What is refused is not changed, and what is fine still loads."""
    save_file(weights, tmp_path / "w.safetensors")
    fit = quick(steps=0).fit([task(weights=tmp_path / "w.safetensors")])
    assert torch.equal(
        fit.weights("a")["conv1.weight"], load_file(tmp_path / "w.safetensors")["conv1.weight"]
    )

"""What the trainer refuses, and how it says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small import data_set, quick

import compatkit as ck
from compatkit.errors import CutError, FormatError, IntegrityError, PluginError, UsageError
from compatkit.registry.disk import replace_file
from compatkit.registry.weights.tensorfile import deserialize, metadata, serialize, state_digest


def task(name: str = "a", **settings: Any) -> ck.Task:
    return ck.Task(name, data_set(name), "resnet8_cifar", **{"cut": "layer2", "size": 16, **settings})


def test_two_instances_cannot_train_one_auxiliary_head() -> None:
    uses = [ck.use("dcc", as_="one", classes=["0", "1"]), ck.use("dcc", as_="two", classes=["1", "2"])]
    with pytest.raises(PluginError, match=r"This run already has an auxiliary head 'dcc'"):
        quick(steps=1).fit([task()], uses)


def test_a_checkpoint_that_changed_on_disk_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    trainer = quick(steps=1, checkpoint=path)
    trainer.fit([task()])
    data = bytearray(path.read_bytes())
    data[-100] ^= 1
    path.write_bytes(data)
    with pytest.raises(IntegrityError, match="was changed on disk"):
        trainer.fit([task()])
    path.write_bytes(data[:-7])
    with pytest.raises(FormatError, match=r"run.safetensors is damaged"):
        trainer.fit([task()])


def test_a_checkpoint_with_the_state_of_an_optimizer_that_this_run_does_not_have_is_refused(
    tmp_path: Path,
) -> None:
    """As another version of the library would write it: its momenta would be lost in silence."""
    path = tmp_path / "run.safetensors"
    trainer = quick(steps=1, checkpoint=path)
    trainer.fit([task()])
    data = path.read_bytes()
    note = json.loads(metadata(data) or "")
    tensors = {name.replace("network/a/", "a.extractor/"): value for name, value in deserialize(data).items()}
    note["tensors"] = state_digest(tensors)
    replace_file(path, serialize(tensors, metadata=json.dumps(note)))
    with pytest.raises(FormatError, match=r"has 'optimiser/a.extractor/\d+/.*Another version of compatkit"):
        trainer.fit([task()])


def test_a_checkpoint_of_networks_that_started_elsewhere_is_refused(tmp_path: Path) -> None:
    """Also where only the running statistics of a frozen head differ."""
    first = quick(steps=1).fit([task()], ["dcc"])
    trainer = quick(steps=1, checkpoint=tmp_path / "run.safetensors")
    trainer.fit([task("b")], ["dcc"], frozen=first)
    norm = next(
        module
        for module in first.auxiliary["dcc"].module.modules()
        if isinstance(module, torch.nn.BatchNorm2d)
    )
    assert norm.running_mean is not None
    norm.running_mean.add_(1)
    with pytest.raises(ck.errors.TrainingError, match="belongs to another plan"):
        trainer.fit([task("b")], ["dcc"], frozen=first)


def test_a_frozen_head_that_tells_other_things_apart_is_refused() -> None:
    first = quick(steps=1).fit([task()], [ck.use("rotation_prediction", half_turn="flip")])
    with pytest.raises(PluginError, match=r"'upside down'.*this run needs .*'180 degrees'"):
        quick(steps=1).fit([task("b")], ["rotation_prediction"], frozen=first)


def test_identical_init_against_heads_of_other_initial_weights_names_the_remedy() -> None:
    first = quick(steps=1, seed=3).fit([task()], ["identical_init", "dcc"])
    with pytest.raises(PluginError, match=r"started from other weights.*seed=\.\.\."):
        quick(steps=1, seed=4).fit([task("b")], ["identical_init", "dcc"], frozen=first)
    same = [ck.use("identical_init", seed=3), "dcc"]
    second = quick(steps=1, seed=4).fit([task("b")], same, frozen=first)
    assert second.tasks["b"].initial == first.tasks["a"].initial


def test_classes_asked_of_a_frozen_head_must_be_among_its_own() -> None:
    first = quick(steps=1).fit([task()], ["dcc"])
    with pytest.raises(PluginError, match=r"the frozen head does not know 'z'; it tells apart 0, 1, 2"):
        quick(steps=1).fit([task("b")], [ck.use("dcc", classes=["z"])], frozen=first)


def test_a_cut_that_leaves_the_class_layer_out_of_the_head_has_no_auxiliary_head() -> None:
    with pytest.raises(PluginError, match="Cut the network before its class") as caught:
        quick(steps=1).fit([task(cut="fc")], ["rotation_prediction"])
    assert (caught.value.code, caught.value.subject) == ("plugin", "rotation_prediction")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lr": 0.0}, "lr"),
        ({"optimizer": 3}, "There is no optimizer '3'"),
        ({"schedule": "linear"}, "'schedule' must be step, cosine, constant, or a Schedule"),
        ({"schedule": ck.Schedule("cosine"), "warmup": 3}, "next to a Schedule"),
        (
            {"checkpoint": "/nonexistent/folder/run.safetensors"},
            "folder of the checkpoint, /nonexistent/folder,",
        ),
        ({"precision": "fp8"}, "'precision' must be one of auto, float32, bf16; got 'fp8'"),
        ({"device": "tpu9"}, "Device 'tpu9' cannot be used here"),
        ({"batch_size": 4096}, "has 48 training images, fewer than a batch of 4096"),
    ],
)
def test_settings_that_cannot_be_used(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        quick(steps=1, **settings).fit([task()])


def test_tasks_say_what_they_expect() -> None:
    assert task(augment="crop, flip").augment == task(augment=["crop", "flip"]).augment == ("crop", "flip")
    with pytest.raises(UsageError, match="expects crop and flip") as caught:
        task(augment=["rotate"])
    assert caught.value.subject == "rotate"
    with pytest.raises(UsageError, match="task name"):
        task("Not A Name")
    assert task(size=16).size == (16, 16) and task(size=[16, np.int64(8)]).size == (16, 8)
    for size in ("128", (128,), (16, 16, 3), 0, (16, -1), 16.0, True, 4097):
        with pytest.raises(UsageError) as caught:
            task(size=size)
        assert caught.value.subject == size


def test_weights_of_another_shape_are_refused() -> None:
    gray = quick(steps=1).fit([task()])
    color = ck.Task(
        "b", data_set("b", channels=3), "resnet8_cifar", "layer2", size=16, weights=gray.weights("a")
    )
    with pytest.raises(UsageError, match=r"1 has another shape: conv1.weight"):
        quick(steps=1).fit([color])


def test_several_heads_of_one_name_from_a_registry_are_refused(tmp_path: Path) -> None:
    registry = ck.Registry.init(tmp_path / "parts")
    for seed, prefix in enumerate(("x", "y")):
        registry.publish(quick(steps=1, seed=seed).fit([task()], ["dcc"]), prefix=prefix)
    with pytest.raises(UsageError, match=r"matches several heads 'dcc'"):
        registry.frozen("*/shared.dcc")


def test_a_cut_that_several_tensors_cross_is_not_trained():
    crossing = ck.Task("a", data_set("a"), "crossvit_9_240", "forward_features")
    with pytest.raises(
        CutError, match="2 tensors cross 'forward_features' of crossvit_9_240; training needs"
    ):
        quick(steps=1).fit([crossing])


@pytest.mark.parametrize(
    ("requested", "subject", "message"),
    [
        (["mnist"], "mnist", r"got 'mnist', a str\."),
        ("mnist", "mnist", r"got 'mnist', a str\."),
        (None, None, r"got None, a NoneType\."),
        ([task(), 3], 3, r"got 3, an int\."),
    ],
)
def test_what_is_no_task_is_refused_at_the_door(requested: Any, subject: Any, message: str) -> None:
    with pytest.raises(UsageError, match=f"fit expects a Task or a list of tasks; {message}") as caught:
        quick(steps=1).fit(requested)
    assert caught.value.subject == subject

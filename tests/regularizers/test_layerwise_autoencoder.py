"""Greedy layer-wise pretraining: what each layer learns, what is recorded, resuming, and refusals."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from small import data_set, quick, same_parts

import compatkit as ck
from compatkit.data.dataset import DataSet, Split
from compatkit.errors import PluginError, TrainingError
from compatkit_plugins.regularizers.layerwise_autoencoder import LayerwiseAutoencoder


def dense(name: str = "a", seed: int = 0, **kwargs: Any) -> ck.Task:
    kwargs = {"widths": [6, 5], "img_size": [12, 12], "norm": "batch", **kwargs}
    return ck.Task(name, data_set(name, seed=seed), "fully_connected", "blocks.0", kwargs=kwargs)


def use(**settings: Any) -> ck.plugins.Use:
    return ck.use("layerwise_autoencoder", **{"steps": 30, "batch_size": 16, "lr": 0.01, **settings})


def fit(tasks: list[ck.Task], *uses: Any, **settings: Any) -> ck.Fit:
    return quick(**{"steps": 2, **settings}).fit(tasks, list(uses))


class Start:
    """Keeps the weights that the first step begins from."""

    seen: ClassVar[dict[str, dict[str, torch.Tensor]]] = {}

    @ck.hookimpl
    def compatkit_views(self, step: ck.Step, batch: ck.Batch) -> ck.Batch:
        if step.number == 0:
            both = {**step.task.extractor.state_dict(), **step.task.head.state_dict()}
            Start.seen[step.task.name] = {key: value.clone() for key, value in both.items()}
        return batch


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(
    ("model", "cut", "kwargs"),
    [
        ("fully_connected", "blocks.0", {"widths": [6, 5], "img_size": [12, 12], "norm": "batch"}),
        ("fully_connected", "blocks.0", {"widths": [6, 5], "img_size": [12, 12], "activation": "tanh"}),
        ("conv_chain", "layer1", {"channels": [3, 4], "img_size": 13, "norm": "batch"}),
        ("lenet", "pool1", {"img_size": 16}),
    ],
)
def test_every_layer_but_the_class_layer_gives_back_more(tied, model, cut, kwargs):
    size = kwargs["img_size"]
    size = size if isinstance(size, int) else None
    task = ck.Task("a", data_set("a"), model, cut, size=size, kwargs=kwargs)
    result = fit([task], use(tied=tied, steps=60)).run["pretraining"]["plugins"]["layerwise_autoencoder"]["a"]
    assert len(result) == (4 if model == "lenet" else 2)
    assert all(line["after"] < line["before"] for line in result.values())
    assert not any(name.startswith("fc") for name in result)


def test_a_tied_linear_layer_finds_the_principal_subspace():
    # 200 images of 4x4 pixels whose variance lies in three directions, but for a little noise.
    draw = np.random.default_rng(0)
    directions = np.linalg.qr(draw.standard_normal((16, 3)))[0].T
    pixels = (
        128 + draw.standard_normal((240, 3)) * [40, 30, 20] @ directions + draw.standard_normal((240, 16))
    )
    images = pixels.clip(0, 255).astype(np.uint8).reshape(240, 4, 4, 1)
    labels = np.arange(240) % 3
    splits = [Split(images, labels, ("0", "1", "2"), f"pca/{part}") for part in ("train", "test")]
    kwargs = {"widths": [3, 2], "img_size": [4, 4], "activation": "none"}
    task = ck.Task("a", DataSet("pca", *splits), "fully_connected", "blocks.0", kwargs=kwargs)
    quick(steps=1).fit([task], [use(steps=300, lr=0.03, batch_size=120), "start"], factories={"start": Start})
    weight = Start.seen["a"]["blocks.0.linear.weight"].double().numpy()
    flat = images.reshape(240, 16) / 255.0
    wanted = np.linalg.svd(flat - flat.mean(0))[2][:3]
    cosines = np.linalg.svd(np.linalg.svd(weight)[2][:3] @ wanted.T)[1]
    assert cosines.min() > 0.999
    assert np.linalg.svd(weight)[1] == pytest.approx([1, 1, 1], abs=0.02)


def test_the_head_stays_as_it_was_drawn():
    plain = quick(steps=1).fit([dense()], ["start"], factories={"start": Start})
    before = dict(Start.seen["a"])
    after = quick(steps=1).fit([dense()], [use(), "start"], factories={"start": Start})
    differing = {key for key, value in Start.seen["a"].items() if not torch.equal(value, before[key])}
    assert "fc.weight" not in differing
    assert {"blocks.0.linear.weight", "blocks.1.linear.weight", "blocks.0.norm.running_mean"} <= differing
    assert after.tasks["a"].initial != plain.tasks["a"].initial
    assert (
        after.run["tasks"][0]["initial"] == plain.run["tasks"][0]["initial"]
    )  # the plan knows what was drawn


def test_a_run_says_the_same_each_time_and_two_tasks_have_streams_of_their_own():
    tasks = [dense("a"), dense("b", seed=1)]
    first, other = fit(tasks, use()), fit(tasks, use())
    assert same_parts(first, other)
    assert first.run == other.run
    alone = fit([dense("a")], use())
    result = [each.run["pretraining"]["plugins"]["layerwise_autoencoder"]["a"] for each in (first, alone)]
    assert result[0] == result[1]


def test_noise_is_drawn_from_a_stream_and_changes_what_is_learnt():
    first, other = fit([dense()], use(noise=0.5)), fit([dense()], use(noise=0.5))
    assert same_parts(first, other)
    assert not same_parts(first, fit([dense()], use()))


def test_weight_0_leaves_it_out_and_any_other_weight_is_the_same():
    plain, off = fit([dense()]), fit([dense()], use(weight=0))
    assert same_parts(plain, off)
    assert "pretraining" not in off.run
    assert same_parts(fit([dense()], use()), fit([dense()], use(weight=3.0)))


def test_explaining_does_not_pretrain(monkeypatch):
    monkeypatch.setattr(LayerwiseAutoencoder, "_layer", None)
    explanation = quick(steps=1).explain([dense()], [use()])
    assert "layerwise_autoencoder" in str(explanation)


def test_what_is_frozen_stays():
    class Freeze:
        @ck.hookimpl
        def compatkit_set_up(self, setup: ck.SetUp) -> None:
            setup.tasks["a"].extractor.requires_grad_(False)

    result = quick(steps=1).fit([dense()], [use(), "freeze"], factories={"freeze": Freeze})
    layers = result.run["pretraining"]["plugins"]["layerwise_autoencoder"]["a"]
    assert layers["blocks.0.linear"]["before"] == layers["blocks.0.linear"]["after"]
    assert layers["blocks.1.linear"]["before"] > layers["blocks.1.linear"]["after"]


def test_progress_is_shown(capsys):
    quick(steps=1, progress=True).fit([dense()], [use(steps=20)])
    assert "a: blocks.0.linear" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"steps": 0}, "'steps' must be a whole number from 1 up; got 0"),
        ({"lr": 0.0}, "'lr' must be a number above 0; got 0.0"),
        ({"lr": float("inf")}, "'lr' must be a number above 0; got inf"),
        ({"batch_size": 1}, "'batch_size' must be a whole number from 2 up; got 1"),
        ({"noise": -1.0}, "'noise' must be a number from 0 up; got -1.0"),
        ({"noise": float("nan")}, "'noise' must be a number from 0 up; got nan"),
        ({"tied": "yes"}, "the setting 'tied' is True or False; got 'yes'"),
        ({"steps": True}, "the setting 'steps' is a whole number; got True"),
        (
            {"output_activation": "gelu"},
            "'output_activation' must be one of relu, sigmoid, tanh, or None; got 'gelu'",
        ),
    ],
)
def test_settings_that_cannot_be_used_are_refused(settings, message):
    with pytest.raises(PluginError, match=message):
        fit([dense()], use(**settings))


def test_a_residual_network_is_refused_with_where_and_why():
    task = ck.Task("a", data_set("a"), "resnet8_cifar", "layer2", size=16)
    with pytest.raises(PluginError, match=r"task 'a' has resnet8_cifar.*layer3.0 add\(\) takes 2 tensors"):
        fit([task], use())


def test_a_network_without_hidden_layers_is_refused():
    kwargs = {"widths": [], "img_size": [12, 12]}
    task = ck.Task("a", data_set("a"), "fully_connected", "flatten", kwargs=kwargs)
    with pytest.raises(PluginError, match="no layer before its class layer"):
        fit([task], use())


def test_an_error_that_is_not_finite_ends_the_run():
    with pytest.raises(
        TrainingError, match=r"reconstruction error of blocks.0.linear of task 'a' is (nan|inf)"
    ):
        fit([dense(norm="none", activation="none")], use(lr=1e18, steps=20))

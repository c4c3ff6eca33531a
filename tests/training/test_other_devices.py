"""Training on another device gives what the CPU gives, and no step between two rows of the history waits for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from devices import on, other_devices, rounding
from pretended import pretended
from small import data_set, quick

import compatkit as ck

USES: dict[str, Sequence[Any]] = {
    "many": ("identical_init", "dcc", "rotation_prediction", "orthogonality", "reverse_pass", "contrastive"),
    "self-supervised": ("jigsaw", "colorization", "stochnorm", "bss"),
    "per view": (ck.use("rotation_prediction", views="per_view"),),
    "from data": ("data_dependent_init",),
    "random labels": ("random_labels",),
}


def tasks() -> list[ck.Task]:
    return [
        ck.Task(
            name, data_set(name, seed=seed, channels=3), "resnet8_cifar", "layer2", size=16, augment=("flip",)
        )
        for seed, name in enumerate(("left", "right"))
    ]


def trained(device: str, uses: Sequence[Any], **settings: Any) -> dict[str, torch.Tensor]:
    """Return all weights after three steps, on the CPU."""
    fit = quick(**{"steps": 3, "device": device, "optimizer": "sgd", "execution": "eager", **settings}).fit(
        tasks(), list(uses)
    )
    return {f"{name}/{key}": value.cpu() for name in fit.tasks for key, value in fit.weights(name).items()}


@other_devices
@pytest.mark.parametrize("uses", USES)
def test_weights_are_those_of_a_cpu(uses: str, device: str) -> None:
    expected = trained("cpu", USES[uses])
    with on(device) as there:
        weights = trained(there, USES[uses])
    close = rounding(device, 1e-2)
    for name, value in expected.items():
        torch.testing.assert_close(weights[name], value, rtol=close, atol=close, msg=name)


@other_devices
def test_averages_clipping_and_accumulation_are_those_of_a_cpu(device: str) -> None:
    settings: dict[str, Any] = {"optimizer": "adam", "ema": 0.9, "clip_norm": 1.0, "accumulate": 2}
    expected = trained("cpu", ["rotation_prediction"], **settings)
    with on(device) as there:
        weights = trained(there, ["rotation_prediction"], **settings)
    close = rounding(device, 3e-2)
    for name, value in expected.items():
        torch.testing.assert_close(weights[name], value, rtol=close, atol=close, msg=name)


@pytest.mark.parametrize("uses", [uses for uses in USES if uses != "random labels"])
def test_no_step_waits_for_the_device(uses: str) -> None:
    seen: list[list[str]] = []

    class Watch:
        @ck.hookimpl
        def compatkit_after_step(self, step: ck.Step) -> None:
            seen.append(list(pretending.waits))

    with pretended() as pretending:
        quick(steps=4, log_every=4, device="meta", optimizer="sgd").fit(
            tasks(), [*USES[uses], "watch"], factories={"watch": Watch}
        )
    first, last = seen[1], seen[-3]  # both tasks have taken one step; the last step ends the row
    assert last[len(first) :] == []


def test_a_plugin_that_reads_a_tensor_waits() -> None:
    class Reads:
        @ck.hookimpl
        def compatkit_after_step(self, step: ck.Step) -> None:
            before = len(pretending.waits)
            assert float(next(iter(step.losses.values()))) > 0 and len(pretending.waits) == before + 1

    with pretended() as pretending:
        quick(steps=1, device="meta").fit(tasks(), ["reads"], factories={"reads": Reads})


def test_a_plugin_that_mixes_devices_fails() -> None:
    class Mixes:
        @ck.hookimpl
        def compatkit_losses(self, step: ck.Step) -> dict[str, torch.Tensor]:
            return {"wrong": (step.features.mean((1, 2, 3)) * torch.ones(len(step.batch.labels))).sum()}  # type: ignore[union-attr]

    with pytest.raises(ck.errors.PluginError) as caught, pretended():
        quick(steps=1, device="meta").fit(tasks(), ["mixes"], factories={"mixes": Mixes})
    assert "same device" in str(caught.value)

"""Images on a GPU: the batches of a CPU, and nobody waits for the device between rows of the history."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from small import data_set, quick

import compatkit as ck
from compatkit.contracts.contract import Data
from compatkit.data.dataset import Split
from compatkit.training.batches.sampler import Augmentation, Sampler
from compatkit.training.batches.sources import ImagePlacement
from compatkit.training.batches.stored import Prefetched, Resident
from compatkit.training.precision import Precision

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def source(kind: type[Resident] | type[Prefetched], device: str) -> Resident | Prefetched:
    pixels = np.random.default_rng(0).integers(0, 256, (50, 9, 7, 3), dtype=np.uint8)
    images = Split(pixels, np.arange(50) % 3, ("0", "1", "2"), "noise/train")
    data = Data((9, 7), "RGB", (0.4,) * 3, (0.2,) * 3, "bilinear", ())
    precision = Precision(device, "float32", True)
    return kind(images, data, Sampler(50, 8, 0, "a"), Augmentation(("crop", "flip"), 0, "a"), precision)


@pytest.mark.parametrize("kind", [Resident, Prefetched])
def test_batches_are_those_of_a_cpu_and_nobody_waits(kind: type[Resident] | type[Prefetched]) -> None:
    here, present = source(Resident, "cpu"), source(kind, "cuda")
    for side in (here, present):
        side.arrange(lambda images: [images.flip(-1), images.flip(-2)])
    present.batch(0)
    torch.cuda.set_sync_debug_mode("error")
    try:
        batches = [present.batch(step) for step in range(15)]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for step, batch in enumerate(batches):
        expected = here.batch(step)
        torch.testing.assert_close(batch.stacked.cpu(), expected.stacked, rtol=1e-6, atol=1e-6)  # type: ignore[union-attr]
        assert torch.equal(batch.labels.cpu(), expected.labels)
        assert torch.equal(batch.index.cpu(), expected.index)
    present.close()


@pytest.mark.parametrize("images", ["resident", "prefetched"])
def test_no_step_waits_for_the_device(images: str) -> None:
    """Between the first step, which makes what stays, and the row of the history."""

    class Watch:
        @ck.hookimpl
        def compatkit_after_step(self, step: ck.Step) -> None:
            torch.cuda.set_sync_debug_mode("error" if 0 < step.number < 28 else "default")

    task = ck.Task("a", data_set("a"), "resnet8_cifar", "layer2", size=16, augment=("crop", "flip"))
    trainer = quick(steps=30, log_every=30, device="cuda", image_storage=images, execution="eager")
    try:
        trainer.fit(
            [task], [ck.use("rotation_prediction", views="per_view"), "watch"], factories={"watch": Watch}
        )
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_images_that_take_more_than_their_share_are_prefetched() -> None:
    task = ck.Task("a", data_set("a"), "resnet8_cifar", "layer2", size=16)
    explanation = quick(steps=1, device="cuda", memory_share=0.0).explain([task]).tasks[0]["source"]
    assert "in host memory (0 MiB, more than 0% of" in explanation
    assert "on cuda" in quick(steps=1, device="cuda").explain([task]).tasks[0]["source"]
    assert ImagePlacement().share == 0.5


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_one_pass_is_chosen_on_a_gpu_and_gives_what_several_do(precision: str) -> None:
    task = ck.Task("a", data_set("a", channels=3), "resnet8_cifar", "layer2", size=16)
    settings = {"steps": 3, "optimizer": "sgd", "lr": 0.05, "device": "cuda", "precision": precision}
    fit = quick(**settings, execution="eager").fit([task], [ck.use("rotation_prediction", views="per_view")])
    other = quick(**settings, execution="eager", passes="separate").fit(
        [task], [ck.use("rotation_prediction", views="per_view")]
    )
    assert fit.run["environment"]["passes"] == {"a": "fused"}
    close = 1e-3 if precision == "float32" else 5e-2
    for name, value in other.weights("a").items():
        torch.testing.assert_close(fit.weights("a")[name].float(), value.float(), rtol=close, atol=close)

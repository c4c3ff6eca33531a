"""Smoke of studies 0.8 to 0.10: the super-resolution generators Std_A, Pre_A and RR_A, and their reverse pass."""

from __future__ import annotations

import hashlib
import json
import zlib
from base64 import b85decode, b85encode
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

import compatkit as ck
from compatkit.experiments.studies import Run

from ._arms import trainer

A = "smoke"
GENERATOR: dict[str, Any] = {
    **{"steps": 300, "batch_size": 8, "lr": 1e-3, "rr": 1.0, "pre_steps": 100, "pre_lr": 1e-3},
    **{"gan": 0.01, "features": 1.0, "test": 200, "networks": ""},
}
"""Settings of task A on two cores; ``networks`` is a folder that keeps trained generators, so that studies with the
same settings train each once."""
PAPER: dict[str, Any] = {**GENERATOR, "steps": 40_000, "batch_size": 16, "pre_steps": 5000, "test": 0}
SCALE = (
    "the paper gives neither widths nor steps nor weights of its losses; here six layers of at most 32 maps, {steps:,} "
    "steps of {batch_size} frames, weights {gan} (adversarial) and {rr} (reverse pass); smoke is simulated here"
)


def generator(run: Run, arm: str, steps: int | None = None) -> ck.Fit:
    """Train a generator of task A, or take it from the folder of trained ones.

    Args:
        run: Run of a study with the settings of ``GENERATOR``.
        arm: ``std``, ``rr``: adversarial, without and with the full reverse pass of all layers; ``pre``: layer-wise
            autoencoders, then reconstruction alone, as layer-wise training does not go with a discriminator.
        steps: In place of the run's; 0 for an untrained network.
    """
    settings, data = run.settings, run.load(A)
    task = ck.Task(A, data, "super_resolution", "generator", size=64, augment=("flip",))
    used = [ck.use("image_error")]
    if arm == "pre":
        used.append(
            ck.use(
                "layerwise_autoencoder",
                steps=settings["pre_steps"],
                lr=settings["pre_lr"],
                batch_size=settings["batch_size"],
            )
        )
    else:
        used.append(ck.use("adversarial", weight=settings["gan"], condition=4, features=settings["features"]))
    if arm == "rr":
        used.append(ck.use("reverse_pass", weight=settings["rr"], variant="full"))
    count = settings["steps"] if steps is None else steps
    return fit(run, task, used, count, cached=steps is None)


def fit(
    run: Run,
    task: ck.Task,
    used: Sequence[ck.RegularizerConfig],
    steps: int,
    *,
    cached: bool = False,
    lr: float | None = None,
) -> ck.Fit:
    """Train a network, at the run's rate by default.

    If ``cached``, its checkpoint is read from the folder of trained networks, or written there.
    """
    settings, folder = run.settings, run.settings["networks"]
    more: dict[str, Any] = {}
    if cached and folder:
        about = [
            task.model,
            run.seed,
            steps,
            settings["batch_size"],
            settings["lr"],
            task.data.train.digest,
        ]
        called = hashlib.sha256(json.dumps([*about, [repr(use) for use in used]]).encode()).hexdigest()[:16]
        Path(folder).mkdir(parents=True, exist_ok=True)
        more = {
            "checkpoint": Path(folder) / f"{called}.checkpoint",
            "checkpoint_every": steps,
            "checkpoint_seconds": None,
        }
    return trainer(run, steps, lr or settings["lr"], settings["batch_size"], **more).fit([task], used)


def pixels(split: ck.Split) -> Tensor:
    """Return images as the networks take them, float32 ``(n, channels, height, width)`` from 0 to 1."""
    return torch.from_numpy(split.read(range(len(split)))).permute(0, 3, 1, 2).float() / 255


def tested(run: Run, name: str) -> ck.Split:
    """Return the test frames, the same for all runs."""
    split, count = run.load(name).test, run.settings["test"]
    return split.subset(count, seed=0) if count else split


@torch.no_grad()
def generated(fit: ck.Fit, images: Tensor) -> Tensor:
    """Return what the network of a fit gives for images, in eval mode, in their shape."""
    (state,) = fit.tasks.values()
    return torch.cat([state.extractor.eval()(part) for part in images.split(100)])


def averages(images: Tensor) -> Tensor:
    """Return 4x4 averages: the low-resolution input of the generator."""
    return F.avg_pool2d(images, 4)


def relative(actual: Tensor, expected: Tensor) -> float:
    """Return the squared error as a share of the squares of the expected values: 0 is perfect, 1 is black."""
    return float((actual - expected).double().square().sum() / expected.double().square().sum())


def correlation(actual: Tensor, expected: Tensor) -> float | None:
    """Return the correlation over all pixels; None where one of them is constant."""
    this, other = (each.double().flatten() - each.double().mean() for each in (actual, expected))
    size = float(this.norm() * other.norm())
    return float(this @ other) / size if size > 0 else None


def few(images: Tensor, count: int = 5) -> dict[str, Any]:
    """Return evenly spaced images as JSON values, in 8 bits and compressed, for figures; ``shown`` reads them."""
    indices = np.linspace(0, len(images) - 1, count).round().astype(int)
    pixels = (255 * images[indices].clamp(0, 1)).round().to(torch.uint8).numpy()
    return {"shape": list(pixels.shape), "zlib": b85encode(zlib.compress(pixels.tobytes(), 9)).decode()}


def shown(pixels_json: Mapping[str, Any]) -> NDArray[np.float64]:
    """Return images that ``few`` kept, from 0 to 255, ``(n, channels, height, width)``."""
    pixels = np.frombuffer(zlib.decompress(b85decode(pixels_json["zlib"])), np.uint8)
    return pixels.reshape(pixels_json["shape"]).astype(np.float64)


def enlarged(images: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return small images at the size of large ones, for figures: every pixel four times a side."""
    return np.repeat(np.repeat(images, 4, axis=2), 4, axis=3)


def stacked(weights: Mapping[str, Tensor], channels: int) -> dict[str, Tensor]:
    """Return a generator's weights with the last layer stacked for several channels, as in C.2."""
    generator = {name: tensor for name, tensor in weights.items() if name.startswith("generator.")}
    last = max(name for name in generator if name.endswith("linear.weight")).removesuffix("weight")
    return generator | {
        last + part: torch.cat([generator[last + part]] * channels) for part in ("weight", "bias")
    }


def as_decoder(weights: Mapping[str, Tensor], channels: int = 1) -> dict[str, Tensor]:
    """Return the weights of an autoencoder's decoder that is the generator."""
    generator = stacked(weights, channels)
    return {name.replace("generator.", "decoder.", 1): tensor.clone() for name, tensor in generator.items()}


def as_encoder(weights: Mapping[str, Tensor], channels: int = 1) -> dict[str, Tensor]:
    """Return the weights of an autoencoder's encoder that does what the generator's reverse pass does.

    Layer k is the transpose of the generator's layer n + 1 - k: the same tensor. The bias that the reverse pass
    subtracts before, b, becomes -M'b after; this is exact but at the borders of maps, where fewer taps count. Of
    several channels, which are stacked, the first layer takes the mean.

    Args:
        weights: State dict of a ``super_resolution``.
        channels: Channels of the images.
    """
    encoder: dict[str, Tensor] = {}
    generator = stacked(weights, channels)
    count = len(generator) // 2
    for number in range(1, count + 1):
        layer = f"generator.body.layer{count + 1 - number}.linear."
        weight, bias = (generator[layer + part] for part in ("weight", "bias"))
        if number == 1:
            weight = weight / channels
        # a convolution's weight is (out, in, 3, 3), that of a transposed one (in, out, 4, 4)
        taps = weight.sum((2, 3)) if weight.shape[2] == 4 else weight.sum((2, 3)).T
        encoder[f"encoder.layer{number}.linear.weight"] = weight.clone()
        encoder[f"encoder.layer{number}.linear.bias"] = -(taps @ bias)
    return encoder

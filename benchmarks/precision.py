"""What the chosen number format costs, and where bf16 gains: ``python benchmarks/precision.py [--rounds 9]``.

Processor time of a training step (SGD, NHWC, one thread) in float32 and in bf16 under autocast, by turns. The rows of
the floor compare the trainer's ``precision="auto"`` with ``"float32"``.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

import attrs
import numpy as np
import timm
import torch
import torch.nn.functional as F
from contest import Contestant, compete, machine, say
from torch import nn

import compatkit as ck
from compatkit.data.dataset import DataSet, Split
from compatkit.training.multiply_adds import multiply_adds
from compatkit.training.precision import Precision
from compatkit.training.prepare import FitRequest, prepare
from compatkit_plugins.networks.chains import fully_connected
from compatkit_plugins.networks.mobile import mobilenetv2_025_cifar, mobilenetv2_cifar
from compatkit_plugins.networks.plain import lenet, simple_cnn, vgg16_cifar
from compatkit_plugins.networks.residual import resnet8_cifar, resnet20_cifar

BATCHES = 8, 64
SECONDS = 0.02
"""Length of a turn of a small network."""
CLASSES = tuple("0123456789")
LINEAR = {"widths": [16] * 8}


@attrs.frozen
class Example:
    """A network and its images: the number of channels, and the side in pixels."""

    make: Callable[..., nn.Module]
    channels: int
    side: int
    kwargs: Mapping[str, Any] = attrs.field(factory=dict)

    def network(self) -> nn.Module:
        """Return the network with the weights of seed 0."""
        torch.manual_seed(0)
        return self.make(num_classes=len(CLASSES), **self.kwargs)


def _vit(**kwargs: Any) -> nn.Module:
    return timm.create_model("vit_tiny_patch16_224", **kwargs)


def _resnet18(**kwargs: Any) -> nn.Module:
    return timm.create_model("resnet18", **kwargs)


EXAMPLES = {
    "fully connected 8x16": Example(fully_connected, 1, 8, {"in_chans": 1, "img_size": 8, **LINEAR}),
    "fully connected 3x256": Example(
        fully_connected, 1, 28, {"in_chans": 1, "img_size": 28, "widths": [256] * 3}
    ),
    "fully connected 3x1024": Example(
        fully_connected, 3, 32, {"in_chans": 3, "img_size": 32, "widths": [1024] * 3}
    ),
    "lenet": Example(lenet, 1, 32, {"in_chans": 1}),
    "simple_cnn, 8 filters": Example(simple_cnn, 3, 32, {"filters": 8}),
    "simple_cnn, 32 filters": Example(simple_cnn, 3, 32, {"filters": 32}),
    "resnet8_cifar": Example(resnet8_cifar, 3, 32),
    "resnet20_cifar": Example(resnet20_cifar, 3, 32),
    "resnet20_cifar, 8 pixels": Example(resnet20_cifar, 3, 8),
    "mobilenetv2_025_cifar": Example(mobilenetv2_025_cifar, 3, 32),
    "mobilenetv2_cifar": Example(mobilenetv2_cifar, 3, 32),
    "vgg16_cifar": Example(vgg16_cifar, 3, 32),
    "vit_tiny, depth 6": Example(_vit, 3, 64, {"img_size": 64, "depth": 6}),
    "resnet18": Example(_resnet18, 3, 64),
}


def step_of(example: Example, batch: int, dtype: Any) -> Callable[[], object]:
    """Return a function that takes a training step in a number format."""
    precision = Precision("cpu", dtype, channels_last=True)
    network = precision.place(example.network()).train()
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-3, momentum=0.9, fused=True)
    images = torch.randn(batch, example.channels, example.side, example.side)
    images = images.to(memory_format=torch.channels_last)
    labels = torch.randint(0, len(CLASSES), (batch,))

    def step() -> None:
        with precision.autocast():
            logits = network(images)
        F.cross_entropy(logits.float(), labels).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def line(name: str, batch: int, rounds: int) -> str:
    """Return the line of a network and a batch size."""
    example = EXAMPLES[name]
    steps = {dtype: step_of(example, batch, dtype) for dtype in ("float32", "bf16")}
    for step in steps.values():
        step()
    seconds = Contestant(steps["float32"]).turn().processor
    calls = max(1, int(SECONDS / seconds))
    times = compete({label: Contestant(step, calls=calls) for label, step in steps.items()}, rounds, seed=0)
    pairs = zip(times["float32"], times["bf16"], strict=True)
    speed = median(plain.processor / mixed.processor for plain, mixed in pairs)
    counts = multiply_adds([example.network()], (example.channels, example.side, example.side))
    mean = batch * sum(counts) / len(counts)
    milliseconds = 1e3 * median(timing.processor for timing in times["float32"])
    return f"| {name} | {batch} | {len(counts)} | {mean / 1e6:,.2f} | {milliseconds:,.2f} | {speed:.2f} |"


def page(rounds: int) -> list[str]:
    """Return the lines of the page."""
    lines = [
        "# bf16 and float32 on this processor",
        "",
        f"    OMP_NUM_THREADS=1 python benchmarks/precision.py --rounds {rounds}",
        "",
        machine(),
        f"Processor: {torch.cpu.get_capabilities().get('cpu_name', 'unknown')}.",
        "",
        "A training step in NHWC, SGD. Products: convolutions and matrix products, with the mean of their",
        "multiply-adds in a batch, in millions; ms: a float32 step; speed: of bf16 under autocast, as a multiple of",
        "float32.",
        "",
        "| network | batch | products | mean | ms | speed |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name in EXAMPLES:
        say(name)
        lines += [line(name, batch, rounds) for batch in BATCHES]
    return lines


def _ratios(
    model: str, cut: str, side: int, rounds: int, other: Mapping[str, Any], **kwargs: Any
) -> list[float]:
    """Return the time of the default number format, as a multiple of that of other settings, in each round."""
    pixels = np.random.default_rng(0).integers(0, 256, (1024, side, side, 3), dtype=np.uint8)
    split = Split(pixels, np.arange(len(pixels)) % len(CLASSES), CLASSES, "noise/train")
    task = ck.Task("noise", DataSet("noise", split, split), model, cut, size=side, kwargs=kwargs)

    with ExitStack() as stack:

        def turn(**settings: Any) -> Callable[[], object]:
            trainer = ck.Trainer(steps=10**9, batch_size=64, device="cpu", progress=False, **settings)
            loop = stack.enter_context(prepare(FitRequest(trainer, [task]))).loop
            numbers = count()
            return lambda: loop.step(loop.setup.tasks["noise"], next(numbers))

        turns = {"auto": turn(), "other": turn(**other)}
        for step in turns.values():
            step()
        calls = max(1, int(5 * SECONDS / Contestant(turns["auto"]).turn().processor))
        contestants = {label: Contestant(step, calls=calls) for label, step in turns.items()}
        times = compete(contestants, rounds, seed=0)
    pairs = zip(times["auto"], times["other"], strict=True)
    return [auto.processor / other.processor for auto, other in pairs]


def linear_auto(rounds: int) -> list[float]:
    """Return ``auto`` by float32 of a small fully connected network."""
    return _ratios("fully_connected", "blocks.3", 8, rounds, {"precision": "float32"}, **LINEAR)


def lenet_auto(rounds: int) -> list[float]:
    """Return the same of LeNet."""
    return _ratios("lenet", "conv2", 32, rounds, {"precision": "float32"})


def resnet_auto(rounds: int) -> list[float]:
    """Return the same of ResNet-20."""
    return _ratios("resnet20_cifar", "layer2", 32, rounds, {"precision": "float32"})


def resnet_bf16(rounds: int) -> list[float]:
    """Return ``auto`` by bf16 of ResNet-20."""
    return _ratios("resnet20_cifar", "layer2", 32, rounds, {"precision": "bf16"})


def resnet_contiguous(rounds: int) -> list[float]:
    """Return the defaults by float32 of ResNet-20 in torch's default memory layout."""
    other = {"precision": "float32", "channels_last": False}
    return _ratios("resnet20_cifar", "layer2", 32, rounds, other)


def main() -> None:
    """Measure and print the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    text = "\n".join(page(options.rounds)) + "\n"
    print(text, end="")
    if options.out is not None:
        options.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()

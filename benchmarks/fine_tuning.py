"""Fine-tuning on a small folder of photos: from weights that know other images, from random ones, from shuffled ones.

    python benchmarks/fine_tuning.py PHOTOS CIFAR100 [--seeds 3]

``PHOTOS`` is a folder of class folders such as ``examples/photos.py photos`` makes (``photos/phone``), of which
``--train`` images are taken. A network is first trained on CIFAR-100 (a name or a pack), which stands in for pretrained
weights: its classes are others. Then each arm trains on the photos with AdamW and layer-wise decay, at equal steps.
``shuffled`` is the control: the same weights with the values of each tensor in random places, so that they know nothing
but keep their sizes.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from statistics import mean, stdev

import torch
from safetensors.torch import save_file
from torch import Tensor

import compatkit as ck

BACKBONE, SPLIT, SIZE = "mobilenetv3_small_050", "blocks.3", 64
ARMS = ("pretrained", "shuffled", "random")


def shuffled(weights: dict[str, Tensor], seed: int) -> dict[str, Tensor]:
    """Return weights with the values of each tensor in random places; running statistics and counts as they are."""
    draw = torch.Generator().manual_seed(seed)
    return {
        name: value
        if "running" in name or "num_batches" in name
        else value.flatten()[torch.randperm(value.numel(), generator=draw)].view_as(value)
        for name, value in weights.items()
    }


def task(data: ck.data.DataSet, weights: Path | None, augment: str) -> ck.Task:
    """Return the network that all arms train."""
    return ck.Task("photos", data, BACKBONE, SPLIT, size=SIZE, weights=weights, augment=augment)


def accuracy(fit: ck.Fit, split: ck.data.Split) -> float:
    """Return the accuracy of the network of a fit."""
    return ck.measure(fit.tasks["photos"], split, ["accuracy"], batch_size=256).results["accuracy"].value


def main() -> None:
    """Train on CIFAR-100, fine-tune by arm and seed, and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("photos", type=Path)
    parser.add_argument("pretraining", help="CIFAR-100, or another data set")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--train", type=int, default=400, help="training photos")
    parser.add_argument("--pretraining-steps", type=int, default=1500)
    parser.add_argument("--steps", type=int, default=200)
    asked = parser.parse_args()
    whole = ck.data.load(asked.photos)
    photos = whole.subset(train=asked.train, seed=0)
    others = ck.data.load(asked.pretraining)
    pretraining = ck.Trainer(
        steps=asked.pretraining_steps, batch_size=64, optimizer="adamw", lr=2e-3, weight_decay=0.05,
        schedule="cosine", warmup=100,
    )  # fmt: skip
    known = pretraining.fit([task(others, None, "cifar")])
    print(f"CIFAR-100 after {asked.pretraining_steps} steps: {accuracy(known, others.test):.3f}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        found: dict[str, list[float]] = {arm: [] for arm in ARMS}
        for seed in range(asked.seeds):
            for arm in ARMS:
                weights = Path(folder) / f"{arm}-{seed}.safetensors"
                state = known.weights("photos")
                if arm != "random":
                    save_file(state if arm == "pretrained" else shuffled(state, seed), weights)
                tuning = ck.Trainer(
                    steps=asked.steps, batch_size=64, optimizer="adamw", lr=2e-3, weight_decay=0.05,
                    layer_decay=0.75, schedule="cosine", warmup=20, seed=seed,
                )  # fmt: skip
                fit = tuning.fit([task(photos, None if arm == "random" else weights, "flip")])
                found[arm].append(accuracy(fit, photos.test))
                print(f"seed {seed} {arm:<10} {found[arm][-1]:.3f}", flush=True)
    print(
        f"\n| {len(photos.train):,} photos, {asked.steps} steps | accuracy, {asked.seeds} seeds | each |\n|---|---|---|"
    )
    for arm, figures in found.items():
        spread = f" ± {stdev(figures):.3f}" if len(figures) > 1 else ""
        print(f"| {arm} | {mean(figures):.3f}{spread} | {', '.join(f'{one:.3f}' for one in figures)} |")


if __name__ == "__main__":
    main()

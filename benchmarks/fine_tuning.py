"""Compare fine-tuning on a small folder of photos from pretrained, random and shuffled weights.

    python benchmarks/fine_tuning.py PHOTOS CIFAR100 [--seeds 3]

``PHOTOS`` is a folder of class folders, for example ``photos/phone`` from ``examples/photos.py photos``; ``--train`` of
its images are used. Pretrained weights come from training on CIFAR-100 (a name or a pack), which has other classes.
Each arm then trains on the photos with AdamW and layer-wise decay for the same number of steps. ``shuffled`` is the
control: the pretrained weights with the values of each tensor permuted at random, which removes all knowledge and keeps
the distribution of values.
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
    """Return weights with randomly permuted values in each tensor; running statistics and counts are unchanged."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: value
        if "running" in name or "num_batches" in name
        else value.flatten()[torch.randperm(value.numel(), generator=generator)].view_as(value)
        for name, value in weights.items()
    }


def task(data: ck.data.DataSet, weights: Path | None, augment: str) -> ck.Task:
    """Return the task of all arms."""
    return ck.Task("photos", data, BACKBONE, SPLIT, size=SIZE, weights=weights, augment=augment)


def accuracy(fit: ck.Fit, split: ck.data.Split) -> float:
    """Return the accuracy of a fitted network."""
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
    options = parser.parse_args()
    folder_data = ck.data.load(options.photos)
    photos = folder_data.subset(train=options.train, seed=0)
    cifar = ck.data.load(options.pretraining)
    pretraining = ck.Trainer(
        steps=options.pretraining_steps, batch_size=64, optimizer="adamw", lr=2e-3, weight_decay=0.05,
        schedule="cosine", warmup=100,
    )  # fmt: skip
    pretrained = pretraining.fit([task(cifar, None, "cifar")])
    print(
        f"CIFAR-100 after {options.pretraining_steps} steps: {accuracy(pretrained, cifar.test):.3f}",
        flush=True,
    )
    with tempfile.TemporaryDirectory() as folder:
        accuracies: dict[str, list[float]] = {arm: [] for arm in ARMS}
        for seed in range(options.seeds):
            for arm in ARMS:
                weights = Path(folder) / f"{arm}-{seed}.safetensors"
                state = pretrained.weights("photos")
                if arm != "random":
                    save_file(state if arm == "pretrained" else shuffled(state, seed), weights)
                tuning = ck.Trainer(
                    steps=options.steps, batch_size=64, optimizer="adamw", lr=2e-3, weight_decay=0.05,
                    layer_decay=0.75, schedule="cosine", warmup=20, seed=seed,
                )  # fmt: skip
                fit = tuning.fit([task(photos, None if arm == "random" else weights, "flip")])
                accuracies[arm].append(accuracy(fit, photos.test))
                print(f"seed {seed} {arm:<10} {accuracies[arm][-1]:.3f}", flush=True)
    print(
        f"\n| {len(photos.train):,} photos, {options.steps} steps | accuracy, {options.seeds} seeds | each |"
        "\n|---|---|---|"
    )
    for arm, values in accuracies.items():
        spread = f" ± {stdev(values):.3f}" if len(values) > 1 else ""
        print(f"| {arm} | {mean(values):.3f}{spread} | {', '.join(f'{value:.3f}' for value in values)} |")


if __name__ == "__main__":
    main()

"""Measure the accuracy of a head on features it was not trained for, through one fitted 1x1 projection.

Run ``python benchmarks/projection.py [--data mnist] [--seeds 3]``. Two ResNet-20 are trained independently on the same
images at 16x16. The extractor of the first is cut after layer1 (16 channels, 16x16), the head of the second after
layer2 (32 channels, 8x8). ``recombine(..., insert_adapters=True, data=IMAGES)`` resizes the maps and fits the
projection on unlabeled training images; accuracy is measured on test images. ``no resize`` is the same projection on
maps of the extractor's own size, which the head accepts too. Cells are the mean over seeds, with minimum and maximum.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch

import compatkit as ck
from compatkit.evaluation.batchnorm import reestimate

POLICIES = ("running", "reestimate", "batch")


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--data-root", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--images", type=int, nargs="+", default=[10, 100, 1000])
    options = parser.parse_args()
    data = ck.data.load(options.data, root=options.data_root)
    test = data.test.subset(2000, seed=0)
    accuracies: dict[tuple[str, str], list[float]] = {}
    for seed in range(options.seeds):
        with tempfile.TemporaryDirectory() as folder:
            registry = ck.Registry.init(folder)
            for name, cut in (("early", "layer1"), ("late", "layer2")):
                task = ck.Task(name, data, "resnet20_cifar", cut, size=16)
                fit = ck.Trainer(steps=options.steps, seed=2 * seed + (name == "late")).fit([task])
                registry.publish(fit, prefix="parts")
            for row, column, accuracy in measure(registry, data.train, test, options.images):
                accuracies.setdefault((row, column), []).append(accuracy)
    rows = list(dict.fromkeys(row for row, _ in accuracies))
    print(
        f"{options.data}, {options.steps} steps, {options.seeds} seeds, {len(test)} test images, "
        f"torch {torch.__version__}\n"
    )
    print("| images to fit on | " + " | ".join(POLICIES) + " |\n|---|" + "---|" * len(POLICIES))
    for row in rows:
        cells = [accuracies.get((row, policy), []) for policy in POLICIES]
        shown = [f"{sum(c) / len(c):.2f} ({min(c):.2f} to {max(c):.2f})" if c else "" for c in cells]
        print(f"| {row} | {' | '.join(shown)} |")


def measure(registry: ck.Registry, train: ck.Split, test: ck.Split, counts: list[int]):
    """Yield row, policy and accuracy."""
    early, late = "parts/early.extractor", "parts/late.head"
    for count in counts:
        images = train.subset(count, seed=0)
        for policy in POLICIES:
            model = registry.recombine(early, late, insert_adapters=True, data=images, bn_policy=policy)
            if policy == "reestimate":  # the same images for every size of the projection's training set
                reestimate(model, model.normalized_batches(train.subset(1000, seed=1), 256, 0), 0.0)
            yield str(count), policy, accuracy(model, test)
            if policy != "reestimate":  # statistics were estimated on resized maps
                del model.adapters[0]
                yield f"{count}, no resize", policy, accuracy(model, test)
    for policy in POLICIES:
        estimated = {"data": train.subset(1000, seed=1)} if policy == "reestimate" else {}
        bound = registry.recombine(early, "parts/early.head", bn_policy=policy, **estimated)
        yield "bound", policy, accuracy(bound, test)


def accuracy(model: ck.Recombination, test: ck.Split) -> float:
    """Return the accuracy on test images."""
    classes = model.predict(test).probabilities.argmax(1)
    return float((classes == torch.from_numpy(test.labels)).double().mean())


if __name__ == "__main__":
    main()

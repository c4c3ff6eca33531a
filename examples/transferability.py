"""Rank extractors for 300 images of USPS: scores before training, accuracy after it, and loss landscapes.

Run ``python examples/transferability.py --data-root DIR --out FOLDER`` (some minutes on a CPU): three ResNet-8 are
trained on MNIST, MNIST upside down and Fashion-MNIST, and ranked for USPS before any training on it. Then a head is
trained on each frozen extractor with 300 images, and the first network is fine-tuned next to networks from scratch, on
three samples of images; ``landscapes.png`` shows two minima on one scale.
"""

from __future__ import annotations

import argparse
import json
from itertools import product
from pathlib import Path
from statistics import fmean

import numpy as np

import compatkit as ck
from compatkit import pictures
from compatkit.evaluation.metrics import make_metric

NETWORK = {"model": "resnet8_cifar", "cut": "layer3", "size": 16}
POINTS, STEP = 15, 0.05
STEPS = (60, 120, 240)
DRAWN = (("pretrained", 60), ("from scratch", 120))
"""Networks in ``landscapes.png``, of about the same training loss."""


def upside_down(data: ck.DataSet) -> ck.DataSet:
    """Return a data set with vertically flipped images."""
    splits = [(split.images[:, ::-1].copy(), split.labels) for split in (data.train, data.test)]
    return ck.DataSet.of("flipped", *splits, data.classes)


def main() -> None:
    """Train, rank, measure, draw."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-root", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=250)
    options = parser.parse_args()
    mnist, fashion, usps = (
        ck.data.load(name, root=options.data_root) for name in ("mnist", "fashion_mnist", "usps")
    )
    sets = {"mnist": mnist, "flipped": upside_down(mnist), "fashion": fashion.renamed("fashion")}
    target = usps.subset(train=300, seed=options.seed)
    registry = ck.Registry.init(options.out / "zoo", exist_ok=True)
    source = ck.Trainer(steps=options.steps, batch_size=64, seed=options.seed, precision="float32")
    for name, data in sets.items():
        if f"zoo/{name}.extractor" not in registry:
            registry.publish(source.fit([ck.Task(name, data, **NETWORK)]), prefix="zoo")

    # Heads on frozen features: the reference for the scores.
    after = ck.Trainer(steps=120, batch_size=32, seed=options.seed, precision="float32")
    for name in sets:
        task = ck.Task(
            name, target, **NETWORK, extractor=registry[f"zoo/{name}.extractor"], freeze_extractor=True
        )
        head = f"usps/{name}.head"
        if head not in registry:
            registry.publish(after.fit([task]), prefix="usps")
        registry.matrix(f"zoo/{name}.extractor", head, {"*": target.test}, bn_policy="running")
    ranking = registry.rank(
        "zoo/*.extractor",
        target,
        controls=True,
        sources=lambda reference: sets[reference.split("/")[1].split(".")[0]],
    )
    print(ranking)
    (options.out / "ranking.json").write_text(json.dumps(ranking.to_json(), indent=1))

    # Fine-tuning from MNIST and from scratch: how far weights move, and how sharp the loss is at the end.
    grids: dict[str, np.ndarray] = {}
    rows = []
    for seed in range(options.seeds):
        subset = usps.subset(train=300, seed=seed)
        tasks = {
            "pretrained": registry.task(
                "net", subset, extractor="zoo/mnist.extractor", head="zoo/mnist.head"
            ),
            "from scratch": ck.Task("net", subset, **NETWORK),
        }
        for (name, task), steps in product(tasks.items(), STEPS):
            initial, trained = (
                ck.Trainer(
                    **{"steps": steps, "batch_size": 32, "seed": seed, "precision": "float32", **overrides}
                )
                .fit([task])
                .tasks["net"]
                for overrides in ({"steps": 1, "lr": 1e-12}, {})
            )
            rows.append({"start": name, "steps": steps, "seed": seed, **figures(initial, trained, subset)})
            print(json.dumps(rows[-1]), flush=True)
            if seed == 0 and (name, steps) in DRAWN:
                metric = make_metric("loss_landscape", points=POINTS, step=STEP, examples=128)
                loss = rows[-1]["training loss"]
                landscape = ck.measure(trained, subset.train, [metric]).table("loss_landscape").values[0]
                grids[f"{name}, {steps} steps, loss {loss:.3f}"] = landscape
    coordinates = [(index - POINTS // 2) * STEP for index in range(POINTS)]
    (options.out / "landscapes.png").write_bytes(pictures.landscapes(grids, coordinates))
    (options.out / "figures.json").write_text(json.dumps(rows, indent=1))
    print(
        "\n| start | steps | training loss | largest eigenvalue | deviation | gradient growth | test accuracy |"
    )
    print("|---|---|---|---|---|---|---|")
    for name, steps in product(tasks, STEPS):
        matching = [row for row in rows if (row["start"], row["steps"]) == (name, steps)]
        cells = [
            f"{fmean(values):.3g} ({min(values):.3g} to {max(values):.3g})"
            for column in list(matching[0])[3:]
            if (values := [row[column] for row in matching])
        ]
        print(f"| {name} | {steps} | {' | '.join(cells)} |")


def figures(initial: ck.TaskState, trained: ck.TaskState, data: ck.DataSet) -> dict[str, float]:
    """Return the effect of training on a network: final loss and sharpness, distance from the start, accuracy."""
    metrics = [
        make_metric("hessian_spectrum", count=3, ends=["largest"], examples=128, tolerance=1e-2),
        make_metric("loss_variation", points=1, examples=300),
        make_metric("gradient_scale", examples=128),
    ]
    report = ck.measure(trained, data.train, metrics)
    deviation = make_metric("weight_deviation", examples=len(data.train))
    deviation_table = ck.measure(trained, None, [deviation], other=initial, layers=["*"]).table(
        "weight_deviation"
    )
    loss = report.table("loss_variation").at(case="as given", protocol="gradient", quantity="loss")
    largest = report.table("hessian_spectrum").at(case="as given", end="largest", place="1")
    test = ck.measure(trained, data.test, ["accuracy"])["accuracy"].to_json()["value"]
    return {
        "training loss": float(loss.value or 0),
        "largest eigenvalue": float(largest.value or 0),
        "deviation": float(deviation_table.at(layer="total", quantity="deviation").value or 0),
        "gradient growth": float(report.table("gradient_scale/growth").cells[0].value or 0),
        "test accuracy": test,
    }


if __name__ == "__main__":
    main()

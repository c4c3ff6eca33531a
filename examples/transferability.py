"""Which extractor transfers to 300 images of USPS? Scores before training, accuracy after, and the loss around both.

Run ``python examples/transferability.py --data-root DIR --out FOLDER`` (some minutes on a CPU): three ResNet-8 learn
MNIST, MNIST upside down, and Fashion-MNIST, and are ranked for USPS before anything is trained on it. Then each gets a
head of its own on 300 images, and the first is fine-tuned beside networks from scratch, with three draws of images;
``landscapes.png`` shows two minima in one scale.
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
"""Networks whose landscapes are drawn, of about the same training loss."""


def upside_down(data: ck.DataSet) -> ck.DataSet:
    """Return a data set whose images stand on their heads."""
    splits = [(one.images[:, ::-1].copy(), one.labels) for one in (data.train, data.test)]
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
    given = parser.parse_args()
    mnist, fashion, usps = (
        ck.data.load(one, root=given.data_root) for one in ("mnist", "fashion_mnist", "usps")
    )
    sets = {"mnist": mnist, "flipped": upside_down(mnist), "fashion": fashion.renamed("fashion")}
    target = usps.subset(train=300, seed=given.seed)
    registry = ck.Registry.init(given.out / "zoo", exist_ok=True)
    source = ck.Trainer(steps=given.steps, batch_size=64, seed=given.seed, precision="float32")
    for name, data in sets.items():
        if f"zoo/{name}.extractor" not in registry:
            registry.publish(source.fit([ck.Task(name, data, **NETWORK)]), prefix="zoo")

    # Heads of their own, on features that stay as they are: what the scores are held against.
    after = ck.Trainer(steps=120, batch_size=32, seed=given.seed, precision="float32")
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
        sources=lambda one: sets[one.split("/")[1].split(".")[0]],
    )
    print(ranking)
    (given.out / "ranking.json").write_text(json.dumps(ranking.to_json(), indent=1))

    # All weights, from MNIST and from scratch: how far they move, and how sharp the loss is where they end.
    grids: dict[str, np.ndarray] = {}
    rows = []
    for seed in range(given.seeds):
        few = usps.subset(train=300, seed=seed)
        tasks = {
            "pretrained": registry.task("net", few, extractor="zoo/mnist.extractor", head="zoo/mnist.head"),
            "from scratch": ck.Task("net", few, **NETWORK),
        }
        for (name, task), steps in product(tasks.items(), STEPS):
            begun, done = (
                ck.Trainer(**{"steps": steps, "batch_size": 32, "seed": seed, "precision": "float32", **more})
                .fit([task])
                .tasks["net"]
                for more in ({"steps": 1, "lr": 1e-12}, {})
            )
            rows.append({"start": name, "steps": steps, "seed": seed, **figures(begun, done, few)})
            print(json.dumps(rows[-1]), flush=True)
            if seed == 0 and (name, steps) in DRAWN:
                metric = make_metric("loss_landscape", points=POINTS, step=STEP, examples=128)
                loss = rows[-1]["training loss"]
                found = ck.measure(done, few.train, [metric]).table("loss_landscape").values[0]
                grids[f"{name}, {steps} steps, loss {loss:.3f}"] = found
    places = [(place - POINTS // 2) * STEP for place in range(POINTS)]
    (given.out / "landscapes.png").write_bytes(pictures.landscapes(grids, places))
    (given.out / "figures.json").write_text(json.dumps(rows, indent=1))
    print(
        "\n| start | steps | training loss | largest eigenvalue | deviation | gradient growth | test accuracy |"
    )
    print("|---|---|---|---|---|---|---|")
    for name, steps in product(tasks, STEPS):
        same = [one for one in rows if (one["start"], one["steps"]) == (name, steps)]
        cells = [
            f"{fmean(values):.3g} ({min(values):.3g} to {max(values):.3g})"
            for what in list(same[0])[3:]
            if (values := [one[what] for one in same])
        ]
        print(f"| {name} | {steps} | {' | '.join(cells)} |")


def figures(begun: ck.TaskState, done: ck.TaskState, data: ck.DataSet) -> dict[str, float]:
    """Return what training did to a network: where it ended, how sharp the loss is there, how far that is."""
    metrics = [
        make_metric("hessian_spectrum", count=3, ends=["largest"], examples=128, tolerance=1e-2),
        make_metric("loss_variation", points=1, examples=300),
        make_metric("gradient_scale", examples=128),
    ]
    found = ck.measure(done, data.train, metrics)
    deviation = make_metric("weight_deviation", examples=len(data.train))
    moved = ck.measure(done, None, [deviation], other=begun, layers=["*"]).table("weight_deviation")
    loss = found.table("loss_variation").at(case="as given", protocol="gradient", quantity="loss")
    largest = found.table("hessian_spectrum").at(case="as given", end="largest", place="1")
    test = ck.measure(done, data.test, ["accuracy"])["accuracy"].to_json()["value"]
    return {
        "training loss": float(loss.value or 0),
        "largest eigenvalue": float(largest.value or 0),
        "deviation": float(moved.at(layer="total", quantity="deviation").value or 0),
        "gradient growth": float(found.table("gradient_scale/growth").cells[0].value or 0),
        "test accuracy": test,
    }


if __name__ == "__main__":
    main()

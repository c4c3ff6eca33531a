"""Which extractor transfers to 300 images of USPS? Scores before training, accuracy after, and the loss around both.

Run ``python examples/transferability.py --data-root DIR --out FOLDER`` (some minutes on a CPU): three ResNet-8 learn
MNIST, MNIST upside down, and Fashion-MNIST, and are ranked for USPS before anything is trained on it. Then each gets a
head of its own on 300 images, and the first is fine-tuned beside a network from scratch; ``landscapes.png`` shows both
minima in one scale.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import compatkit as ck
from compatkit import pictures
from compatkit.metrics import make_metric

NETWORK = {"backbone": "resnet8_cifar", "split": "layer3", "size": 16}
POINTS, STEP = 15, 0.05


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
    parser.add_argument("--steps", type=int, default=250)
    given = parser.parse_args()
    mnist, fashion, usps = (
        ck.data.load(one, root=given.data_root) for one in ("mnist", "fashion_mnist", "usps")
    )
    sets = {"mnist": mnist, "flipped": upside_down(mnist), "fashion": fashion.renamed("fashion")}
    target = usps.subset(train=300, seed=given.seed)
    registry = ck.Registry.init(given.out / "zoo")
    source = ck.Trainer(steps=given.steps, batch_size=64, seed=given.seed, precision="float32")
    fits = {}
    for name, data in sets.items():
        fits[name] = source.fit([ck.Task(name, data, **NETWORK)])
        registry.publish(fits[name], prefix="zoo")

    # Before anything is trained on the target.
    ck.rank(registry, "zoo/*.extractor", target, sources=lambda one: sets[one.split("/")[1].split(".")[0]])

    # Heads of their own, on features that stay as they are.
    after = ck.Trainer(steps=120, batch_size=32, seed=given.seed, precision="float32")
    for name in sets:
        task = ck.Task(
            name, target, **NETWORK, extractor=registry[f"zoo/{name}.extractor"], freeze_extractor=True
        )
        head = registry.publish(after.fit([task]), prefix="usps")[f"{name}.head"]
        registry.matrix(f"zoo/{name}.extractor", head, {"*": target.test}, bn_policy="running")
    ranking = ck.rank(
        registry,
        "zoo/*.extractor",
        target,
        controls=True,
        sources=lambda one: sets[one.split("/")[1].split(".")[0]],
    )
    print(ranking)
    (given.out / "ranking.json").write_text(json.dumps(ranking.to_json(), indent=1))

    # All weights, from MNIST and from scratch: how far they move, and how sharp the loss is where they end.
    grids, figures = {}, {}
    starts = {"pretrained": fits["mnist"].weights("mnist"), "from scratch": None}
    for name, weights in starts.items():
        task = ck.Task("net", target, **NETWORK, weights=weights, keep_class_layer=weights is not None)
        begun = ck.Trainer(steps=1, lr=1e-12, batch_size=32, seed=given.seed, precision="float32").fit([task])
        done = after.fit([task])
        metrics = [
            make_metric("loss_landscape", points=POINTS, step=STEP, examples=128, seed=given.seed),
            make_metric("hessian_spectrum", count=5, ends=["largest"], examples=64, tolerance=1e-2),
            make_metric("gradient_scale", examples=128),
            "accuracy",
        ]
        net = done.tasks["net"]
        found = ck.measure(net, target.train, metrics[:3])
        moved = ck.measure(
            net, None, [make_metric("weight_deviation", examples=300)], other=begun.tasks["net"], layers=["*"]
        )
        shape = found.table("loss_landscape/shape")
        largest = found.table("hessian_spectrum").at(case="as given", end="largest", place="1")
        figures[name] = {
            "test accuracy": ck.measure(net, target.test, ["accuracy"])["accuracy"].to_json()["value"],
            "training loss": shape.at(case="as given", quantity="centre").value,
            "deviation of the landscape": shape.at(case="as given", quantity="deviation").value,
            "largest eigenvalue": largest.value,
            "status": largest.status,
            "weight deviation": moved.table("weight_deviation").at(layer="total", quantity="deviation").value,
            "growth of the gradient": found.table("gradient_scale/growth").cells[0].value,
        }
        grids[name] = found.table("loss_landscape").values[0]
    places = [(place - POINTS // 2) * STEP for place in range(POINTS)]
    (given.out / "landscapes.png").write_bytes(pictures.landscapes(grids, places))
    (given.out / "figures.json").write_text(json.dumps(figures, indent=1))
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()

"""Compatibility policy of a released extractor: one update passes, another is refused.

1. An extractor is released as 1.0.0, with three heads: its own head, and two heads trained on it by others.
2. The policy ``backward_transitive`` is set: no later 1.x may lose more than three points of accuracy with any head.
3. A second extractor is trained on other images, incrementally: from the released weights, with the released auxiliary
   head frozen. The policy measures it with the three heads; it passes and becomes 1.1.0.
4. A third extractor is trained independently on the same images. It is as accurate and has the same ports; measured
   with the three heads it is refused, and is published only as 2.0.0.

    python examples/policy_story.py --data-root DIR --out story

Uses MNIST if a data folder is given, otherwise scikit-learn's handwritten digits, which need no file.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import attrs
import numpy as np
import torch
from torch import Tensor, nn

import compatkit as ck
from compatkit.adapters.blueprints import build, with_classes
from compatkit.contracts.manifest import Parent
from compatkit.errors import PolicyBroken
from compatkit.evaluation.preprocessing import normalize, prepare

EXTRACTOR, OWN = "digits/any.extractor", "digits/any.head"
HEADS = {"low": ("0", "1", "2", "3", "4"), "high": ("5", "6", "7", "8", "9")}
"""Classes of the heads of others: half of the digits each."""


@attrs.frozen(kw_only=True)
class Story:
    """Data and training settings of the story.

    Attributes:
        first: Training data of 1.0.0 and of all heads.
        second: Training data of its successors: other images of the same classes.
        steps: Training steps of each network and of each head of others.
        size: Height and width of the images in pixels.
    """

    first: ck.DataSet
    second: ck.DataSet
    model: str = "resnet8_cifar"
    cut: str = "layer2"
    size: int = 16
    steps: int = 200
    batch_size: int = 64
    seed: int = 0
    tolerance: float = 0.03

    def task(self, data: ck.DataSet, weights: dict[str, Tensor] | None = None) -> ck.Task:
        """Return the task of every network of the story."""
        return ck.Task("any", data, self.model, self.cut, size=self.size, weights=weights)

    def trainer(self, number: int) -> ck.Trainer:
        """Return the trainer of a network, with a separate seed."""
        seed = 100 * self.seed + number
        return ck.Trainer(steps=self.steps, batch_size=self.batch_size, seed=seed, progress=False)


def story(data: ck.DataSet, train: int, test: int, **settings: object) -> Story:
    """Return a story on disjoint, class-balanced parts of a data set; ``train`` images for each version."""
    labels, count = data.train.labels, train // len(data.classes)
    by_class = [np.flatnonzero(labels == label) for label in range(len(data.classes))]
    test_split = data.test.subset(test)
    parts = [
        ck.DataSet(
            data.name,
            data.train.take(np.concatenate([indices[start : start + count] for indices in by_class])),
            test_split,
        )
        for start in (0, count)
    ]
    return Story(first=parts[0], second=parts[1], **settings)  # type: ignore[arg-type]


def release(registry: ck.Registry, plan: Story) -> None:
    """Release the extractor as 1.0.0, with its own head, an auxiliary head, and two heads of others."""
    fit = plan.trainer(1).fit([plan.task(plan.first)], regularizers=["dcc"])
    registry.publish(fit, prefix="digits")
    for number, (name, classes) in enumerate(HEADS.items(), start=2):
        train_head(registry, plan, name, classes, seed=100 * plan.seed + number)


def train_head(registry: ck.Registry, plan: Story, name: str, classes: Sequence[str], seed: int) -> None:
    """Train a head on the frozen released extractor, and release it."""
    parent = registry.store.resolve(EXTRACTOR)
    extractor, template = registry.load(EXTRACTOR), registry.store.manifest(OWN)
    blueprint = with_classes(template.blueprint, len(classes))
    head = build(blueprint, seed=seed).train()
    data, split = registry.store.manifest(EXTRACTOR).contract.data, plan.first.train
    indices = np.flatnonzero(np.isin(split.labels, [split.classes.index(label) for label in classes]))
    subset = split.take(indices)
    images = normalize(prepare(subset, data).images, data)
    targets = torch.tensor([classes.index(subset.classes[label]) for label in subset.labels])
    with torch.no_grad():
        features = torch.cat([extractor(chunk) for chunk in images.split(256)])
    optimizer = torch.optim.Adam(head.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, max(1, plan.steps // 4), 0.1)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(plan.steps):
        batch = torch.randint(len(targets), (plan.batch_size,), generator=generator)
        loss = nn.functional.cross_entropy(head(features[batch]), targets[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    ports = template.contract.structural
    contract = attrs.evolve(
        template.contract,
        structural=attrs.evolve(ports, outputs=(attrs.evolve(ports.outputs[0], shape=("N", len(classes))),)),
        data=attrs.evolve(template.contract.data, labels=tuple(map(ck.label, classes))),
        protocol=attrs.evolve(template.contract.protocol, anchors=()),
        statistical=attrs.evolve(template.contract.statistical, probe=None),
    )
    manifest = attrs.evolve(
        template,
        blueprint=blueprint,
        contract=contract,
        about=attrs.evolve(template.about, title=f"Head for {name} digits, on the released extractor"),
        training={"seed": seed, "steps": plan.steps},
        parents=(Parent("trained_with", str(parent.digest)),),
    )
    registry.publish(manifest, f"digits/{name}.head", state=head.eval().state_dict())


def promise(registry: ck.Registry, plan: Story) -> None:
    """Set the policy for later versions of the extractor."""
    registry.policies.set(
        EXTRACTOR,
        "backward_transitive",
        data=plan.first.test,
        tolerance=plan.tolerance,
        bn_policy="running",
    )


def incremental(registry: ck.Registry, plan: Story) -> ck.Fit:
    """Train a successor from the released weights, with the released auxiliary head frozen."""
    weights = {
        **registry.load(f"{EXTRACTOR}@1.0.0").state_dict(),
        **registry.load(f"{OWN}@1.0.0").state_dict(),
    }
    return plan.trainer(4).fit(
        [plan.task(plan.second, weights)],
        regularizers=["dcc"],
        frozen=registry.frozen("digits/shared.dcc@^1"),
        frozen_statistics="stored",
    )


def independent(plan: Story) -> ck.Fit:
    """Train a network on the same images, independently of the released weights."""
    return plan.trainer(5).fit([plan.task(plan.second)])


def tell(registry: ck.Registry, plan: Story) -> ck.Matrix:
    """Run the whole story in an empty registry; return the matrix of all extractors with the heads of 1.0.0."""
    release(registry, plan)
    print(f"released {EXTRACTOR}@1.0.0 and, against it, {', '.join(heads(registry))}\n")
    promise(registry, plan)
    print(f"promised {registry.policies.of(EXTRACTOR)}\n")

    fit = incremental(registry, plan)
    print(registry.publish(fit, prefix="digits", dry_run=True)["any.extractor"])
    print(f"published {registry.publish(fit, prefix='digits')['any.extractor']}\n")

    fit = independent(plan)
    try:
        registry.publish(fit, prefix="digits")
    except PolicyBroken as error:
        print(f"refused [{error.code}]\n{error.subject}")
    else:
        raise SystemExit("The independent extractor passed, which is not the story: nothing made it fit.")
    published = registry.publish(fit, prefix="digits", major=True)
    print(f"published {published['any.extractor']}: a break, for all to see\n")
    versions = [f"{EXTRACTOR}@{version}" for version in registry.store.versions(EXTRACTOR)]
    # pairs measured before the successors had their own heads are measured again, with the upper bound
    return registry.matrix(
        versions, heads(registry), {EXTRACTOR: plan.first.test}, bn_policy="running", fill="stale"
    )


def heads(registry: ck.Registry) -> list[str]:
    """Return the heads released with 1.0.0."""
    return [f"{name}@1.0.0" for name in registry.store.names("digits/*.head")]


def figures(plan: Story) -> dict[str, ck.PolicyOutcome]:
    """Return the outcome of the policy for both successors of 1.0.0."""
    with tempfile.TemporaryDirectory() as folder:
        registry = ck.Registry.init(Path(folder) / "parts")
        release(registry, plan)
        promise(registry, plan)
        fits = {"incremental": incremental(registry, plan), "independent": independent(plan)}
        return {
            name: registry.publish(fit, prefix="digits", dry_run=True)["any.extractor"]
            for name, fit in fits.items()
        }


def spread(plans: Sequence[Story]) -> str:
    """Return a Markdown table: the bound of each seed and head, and the loss of each successor against it."""
    lines = ["| seed | head | images | bound | incremental | independent |", "|---|---|---|---|---|---|"]
    losses: dict[str, list[float]] = {"incremental": [], "independent": []}
    for plan in plans:
        outcomes = figures(plan)
        for first, second in zip(
            outcomes["incremental"].answers, outcomes["independent"].answers, strict=True
        ):
            texts: list[str] = []
            for name, answer in (("incremental", first), ("independent", second)):
                if answer.accuracy is None or answer.bound is None:
                    raise SystemExit(f"{name}: {answer}")
                losses[name].append(answer.bound.accuracy - answer.accuracy.accuracy)
                verdict = "passes" if answer.passed else "fails"
                texts.append(f"{answer.accuracy.accuracy:.3f} ({-losses[name][-1]:+.3f}) {verdict}")
            bound = first.bound.accuracy if first.bound else 0.0
            count = first.accuracy.count if first.accuracy else 0
            lines.append(f"| {plan.seed} | {first.partner} | {count:,} | {bound:.3f} | {' | '.join(texts)} |")
    worst = ", ".join(f"{name} {max(values):.3f}" for name, values in losses.items())
    mean = ", ".join(f"{name} {sum(values) / len(values):.3f}" for name, values in losses.items())
    return "\n".join([*lines, "", f"Largest loss: {worst}. Mean loss: {mean}."])


def main() -> None:
    """Run the story and write its matrix as a picture and a page; or print its figures for several seeds."""
    parser = argparse.ArgumentParser(description="The story of a compatibility policy.")
    parser.add_argument("--data-root", help="Folder with mnist.npz; scikit-learn's digits by default.")
    parser.add_argument("--steps", type=int, default=200, help="Training steps of each network.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, help="Number of seeds from 0; prints a table of their figures.")
    parser.add_argument("--out", type=Path, help="Folder for matrix.png and matrix.html.")
    options = parser.parse_args()
    torch.set_num_threads(1)

    def plan(seed: int) -> Story:
        if options.data_root:
            data, sizes = ck.data.load("mnist", root=options.data_root), (4000, 2000)
        else:
            data, sizes = ck.data.load("digits"), (700, 297)
        return story(data, *sizes, steps=options.steps, seed=seed)

    if options.seeds is not None:
        print(spread([plan(seed) for seed in range(options.seeds)]))
        return
    with tempfile.TemporaryDirectory() as folder:
        matrix = tell(ck.Registry.init(Path(folder) / "parts"), plan(options.seed))
    print(matrix)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        print(
            f"wrote {matrix.to_png(options.out / 'matrix.png')} and {matrix.to_html(options.out / 'matrix.html')}"
        )


if __name__ == "__main__":
    main()

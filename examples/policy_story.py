"""A promise, kept and broken: what a compatibility policy does for the people who build on a released extractor.

1. An extractor is released as 1.0.0. Three heads are released against it: its own, and two that others trained on it.
2. Its owner promises ``backward_transitive``: no later 1.x takes more than three points from any of them.
3. A second extractor is trained later on other images, incrementally: from the released weights, against the released
   auxiliary head, frozen. The policy measures it with the three heads; it passes, and becomes 1.1.0.
4. A third is trained independently on the same images. It is as good on its own, and its ports are the same; under the
   three heads it is measured, refused, and offered only as 2.0.0.

    python examples/policy_story.py --data-root DIR --out story

Real MNIST where a data folder is given, else scikit-learn's handwritten digits, which need no file.
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
"""Heads of others: they tell only some of the digits apart."""


@attrs.frozen(kw_only=True)
class Story:
    """How large the story is.

    Attributes:
        first: Training data of 1.0.0 and of all heads.
        second: Training data of its successors: other images of the same classes.
        steps: Steps of each network; heads of others take as many.
        size: Height and width of the images, pixels.
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
        """Return the task that every network of the story is trained for."""
        return ck.Task("any", data, self.model, self.cut, size=self.size, weights=weights)

    def trainer(self, number: int) -> ck.Trainer:
        """Return a trainer; each network has a seed of its own."""
        seed = 100 * self.seed + number
        return ck.Trainer(steps=self.steps, batch_size=self.batch_size, seed=seed, progress=False)


def story(data: ck.DataSet, train: int, test: int, **settings: object) -> Story:
    """Return a story on disjoint, class-balanced parts of a data set; ``train`` images for each version."""
    labels, count = data.train.labels, train // len(data.classes)
    places = [np.flatnonzero(labels == one) for one in range(len(data.classes))]
    held = data.test.subset(test)
    parts = [
        ck.DataSet(
            data.name, data.train.take(np.concatenate([one[start : start + count] for one in places])), held
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
    """Train a head on the released extractor, which stays as it is, and release it."""
    parent = registry.store.resolve(EXTRACTOR)
    extractor, like = registry.load(EXTRACTOR), registry.store.manifest(OWN)
    blueprint = with_classes(like.blueprint, len(classes))
    head = build(blueprint, seed=seed).train()
    data, split = registry.store.manifest(EXTRACTOR).contract.data, plan.first.train
    known = np.flatnonzero(np.isin(split.labels, [split.classes.index(one) for one in classes]))
    mine = split.take(known)
    images = normalize(prepare(mine, data).images, data)
    targets = torch.tensor([classes.index(mine.classes[one]) for one in mine.labels])
    with torch.no_grad():
        features = torch.cat([extractor(one) for one in images.split(256)])
    optimizer = torch.optim.Adam(head.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, max(1, plan.steps // 4), 0.1)
    draw = torch.Generator().manual_seed(seed)
    for _ in range(plan.steps):
        chosen = torch.randint(len(targets), (plan.batch_size,), generator=draw)
        loss = nn.functional.cross_entropy(head(features[chosen]), targets[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    ports = like.contract.structural
    contract = attrs.evolve(
        like.contract,
        structural=attrs.evolve(ports, outputs=(attrs.evolve(ports.outputs[0], shape=("N", len(classes))),)),
        data=attrs.evolve(like.contract.data, labels=tuple(map(ck.label, classes))),
        protocol=attrs.evolve(like.contract.protocol, anchors=()),
        statistical=attrs.evolve(like.contract.statistical, probe=None),
    )
    manifest = attrs.evolve(
        like,
        blueprint=blueprint,
        contract=contract,
        about=attrs.evolve(like.about, title=f"Head for {name} digits, on the released extractor"),
        training={"seed": seed, "steps": plan.steps},
        parents=(Parent("trained_with", str(parent.digest)),),
    )
    registry.publish(manifest, f"digits/{name}.head", state=head.eval().state_dict())


def promise(registry: ck.Registry, plan: Story) -> None:
    """Say what later versions of the extractor have to keep working with."""
    registry.policies.set(
        EXTRACTOR,
        "backward_transitive",
        data=plan.first.test,
        tolerance=plan.tolerance,
        bn_policy="running",
    )


def incremental(registry: ck.Registry, plan: Story) -> ck.Fit:
    """Train a successor from the released weights, against the released auxiliary head, frozen."""
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
    """Train a network on the same images that knows nothing of what was released."""
    return plan.trainer(5).fit([plan.task(plan.second)])


def tell(registry: ck.Registry, plan: Story) -> ck.Matrix:
    """Tell the whole story into an empty registry; return the extractors under the heads of 1.0.0."""
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
    except PolicyBroken as refused:
        print(f"refused [{refused.code}]\n{refused.subject}")
    else:
        raise SystemExit("The independent extractor passed, which is not the story: nothing made it fit.")
    published = registry.publish(fit, prefix="digits", major=True)
    print(f"published {published['any.extractor']}: a break, for all to see\n")
    versions = [f"{EXTRACTOR}@{one}" for one in registry.store.versions(EXTRACTOR)]
    # what the policy measured before the successors had heads of their own is measured again, with their bound
    return registry.matrix(
        versions, heads(registry), {EXTRACTOR: plan.first.test}, bn_policy="running", fill="stale"
    )


def heads(registry: ck.Registry) -> list[str]:
    """Return the heads that were released against 1.0.0."""
    return [f"{name}@1.0.0" for name in registry.store.names("digits/*.head")]


def figures(plan: Story) -> dict[str, ck.Outcome]:
    """Return what the policy says of both successors of 1.0.0."""
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
    """Return a Markdown table: for each seed and head the bound, and what each successor loses against it."""
    lines = ["| seed | head | images | bound | incremental | independent |", "|---|---|---|---|---|---|"]
    losses: dict[str, list[float]] = {"incremental": [], "independent": []}
    for plan in plans:
        found = figures(plan)
        for one, other in zip(found["incremental"].answers, found["independent"].answers, strict=True):
            texts: list[str] = []
            for name, answer in (("incremental", one), ("independent", other)):
                if answer.accuracy is None or answer.bound is None:
                    raise SystemExit(f"{name}: {answer}")
                losses[name].append(answer.bound.accuracy - answer.accuracy.accuracy)
                said = "passes" if answer.passed else "fails"
                texts.append(f"{answer.accuracy.accuracy:.3f} ({-losses[name][-1]:+.3f}) {said}")
            bound = one.bound.accuracy if one.bound else 0.0
            count = one.accuracy.count if one.accuracy else 0
            lines.append(f"| {plan.seed} | {one.partner} | {count:,} | {bound:.3f} | {' | '.join(texts)} |")
    worst = ", ".join(f"{name} {max(each):.3f}" for name, each in losses.items())
    mean = ", ".join(f"{name} {sum(each) / len(each):.3f}" for name, each in losses.items())
    return "\n".join([*lines, "", f"Largest loss: {worst}. Mean loss: {mean}."])


def main() -> None:
    """Tell the story, and write its matrix as a picture and a page; or its figures for several seeds."""
    parser = argparse.ArgumentParser(description="The story of a compatibility policy.")
    parser.add_argument("--data-root", help="Folder with mnist.npz; else scikit-learn's digits are taken.")
    parser.add_argument("--steps", type=int, default=200, help="Of each network.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seeds", type=int, help="Print the figures for so many seeds, from 0, as a table.")
    parser.add_argument("--out", type=Path, help="Folder for matrix.png and matrix.html.")
    given = parser.parse_args()
    torch.set_num_threads(1)

    def planned(seed: int) -> Story:
        if given.data_root:
            data, sizes = ck.data.load("mnist", root=given.data_root), (4000, 2000)
        else:
            data, sizes = ck.data.load("digits"), (700, 297)
        return story(data, *sizes, steps=given.steps, seed=seed)

    if given.seeds is not None:
        print(spread([planned(seed) for seed in range(given.seeds)]))
        return
    with tempfile.TemporaryDirectory() as folder:
        matrix = tell(ck.Registry.init(Path(folder) / "parts"), planned(given.seed))
    print(matrix)
    if given.out is not None:
        given.out.mkdir(parents=True, exist_ok=True)
        print(
            f"wrote {matrix.to_png(given.out / 'matrix.png')} and {matrix.to_html(given.out / 'matrix.html')}"
        )


if __name__ == "__main__":
    main()

"""Faster transfer: is a source's extractor of use under the target's head before, and soon after, fine-tuning starts?

Paper: Gygli, Uijlings, Ferrari (2021), "Towards Reusable Network Components by Learning Compatible Representations",
    Sec. 5.3, Fig. 4 (a rotation head from CIFAR-100; ImageNet to CIFAR-10, STL-10 and CIFAR-100, ResNet-56).
Here: a rotation head from Fashion-MNIST, MNIST to USPS; or from CIFAR-100, one half of CIFAR-10 to the other, shifted.
    The order of the arms at each step is comparable with the paper's, not the figures.

All networks are trained with rotation prediction. In the first two arms its head is one that was trained before, on
other images, and stays frozen; in the others it is each network's own.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import nn

import compatkit as ck

ARMS = ("rp", "iiw+rp", "independent", "re-initialised")
"""``rp``: source extractor under the target's head, both trained with one frozen rotation head; ``iiw+rp``: the two
from the same initial weights too; ``independent``: both with rotation heads of their own; ``re-initialised``: the same
source extractor under a head that is drawn anew."""
STEPS = (0, 10, 100, 1000)
PAPER = {("rp", "steps-0"): (40.0, 66.4)}
"""Per cent, Sec. 5.3: from the worst to the best target, before any fine-tuning; the baselines are at chance."""
SIZES: dict[str, dict[str, Any]] = {
    "cpu": {
        "data": ["fashion-mnist", "mnist", "usps"],
        "backbone": "resnet20_cifar",
        "split": "layer2",
        "size": 16,
        "train": 5000,
        "test": 2000,
        "steps": 300,
        "batch_size": 64,
        "lr": 0.01,
        "tune_lr": 0.01,
        "tune_steps": list(STEPS),
    },
    "paper": {
        "data": ["cifar100", "plain", "shifted"],
        "backbone": "resnet56_cifar",
        "split": "layer2",
        "size": 32,
        "train": None,
        "test": None,
        "steps": 20000,
        "batch_size": 512,
        "lr": 0.01,
        "tune_lr": 0.01,
        "tune_steps": list(STEPS),
    },
}
"""``data``: where the rotation head comes from, the source, the target."""
Load = Callable[[str], ck.DataSet]
EVALUATED = 500
"""Images of a batch of the evaluation, whose statistics batch normalisation takes."""


@attrs.define(eq=False)
class Keep:
    """Keeps copies of a network on its way, from before the first step on."""

    steps: tuple[int, ...]
    networks: dict[int, nn.Module] = attrs.field(factory=dict)

    @ck.hookimpl
    def compatkit_set_up(self, setup: ck.SetUp) -> None:
        """Keep what the run starts from."""
        (state,) = setup.tasks.values()
        self._keep(0, state)

    @ck.hookimpl
    def compatkit_after_step(self, step: ck.Step) -> None:
        """Keep the network, where so many steps are asked for."""
        self._keep(step.number + 1, step.task)

    def _keep(self, done: int, state: ck.TaskState) -> None:
        if done in self.steps:
            self.networks[done] = copy.deepcopy(nn.Sequential(state.extractor, state.head))


def accuracy(network: nn.Module, split: ck.Split, state: ck.TaskState, seed: int) -> float:
    """Return the accuracy of a copy of a network under batch statistics; its buffers move.

    Args:
        network: Takes images as ``state`` says, on any device.
        split: Labelled images, classes in the order of the outputs.
        state: Says how images are prepared.
        seed: Of the order of the images.
    """
    data, device = state.data, next(network.parameters()).device
    shown = split.converted(data.channels).resized(data.size)
    pixels = torch.from_numpy(shown.images).permute(0, 3, 1, 2).float() / 255
    mean, std = (torch.tensor(one)[:, None, None] for one in (data.mean, data.std))
    order = torch.randperm(len(shown), generator=torch.Generator().manual_seed(seed))
    labels, right = torch.from_numpy(shown.labels), 0
    with torch.no_grad():
        for index in torch.tensor_split(order, -(-len(order) // EVALUATED)):
            answers = network.train()(((pixels[index] - mean) / std).to(device)).argmax(1).cpu()
            right += int((answers == labels[index]).sum())
    return right / len(shown)


def sets(load: Load, settings: Mapping[str, Any]) -> list[ck.DataSet]:
    """Return the data of the rotation head, of the source and of the target."""
    found = []
    for name in settings["data"]:
        if name in ("plain", "shifted"):
            plain, other = load("cifar10").halves()
            data = (plain if name == "plain" else other.shifted(hue=0.3, blur=0.8)).renamed(name)
        else:
            data = load(name)
        kept = {"train": settings["train"], "test": settings["test"]}
        found.append(data.subset(**kept))
    return found


def run(arm: str, seed: int, settings: Mapping[str, Any], load: Load) -> dict[str, float]:
    """Train source and target, swap the extractor, fine-tune, and measure on the target's test images on the way.

    Args:
        arm: One of ``ARMS``.
        seed: Of all runs; networks are drawn from streams of their own all the same, but for IIW.
        settings: See ``SIZES``.
        load: Gives a data set by name.

    Returns:
        Accuracy by measure: ``own`` is that of the target's own network, ``steps-0``, ``steps-10`` and so on those of
        the swapped one after so many steps.
    """
    names = ("rotation", "source", "target")
    tasks = [_task(name, data, settings) for name, data in zip(names, sets(load, settings), strict=True)]
    colour = tasks[-1].data.train.channels == "RGB"
    # A half turn makes a 9 of a 6: digits are turned upside down instead.
    uses: list[Any] = [ck.use("rotation_prediction", half_turn="rotate" if colour else "flip")]
    if arm == "iiw+rp":
        uses.append("identical_init")
    batch = {"batch_size": settings["batch_size"], "seed": seed, "progress": False}
    trainer = ck.Trainer(steps=settings["steps"], lr=settings["lr"], **batch)
    head = trainer.fit(tasks[:1], uses) if "rp" in arm.split("+") else None
    source, target = (trainer.fit([task], uses, frozen=head) for task in tasks[1:])
    test = tasks[-1].data.test
    own = accuracy(copy.deepcopy(target.network("target")), test, target.tasks["target"], seed)
    with tempfile.TemporaryDirectory() as folder:
        registry = ck.Registry.init(Path(folder) / "parts")
        registry.publish(source, prefix="source")
        registry.publish(target, prefix="target")
        swapped = registry.task(
            "swapped",
            tasks[-1].data,
            extractor="source/source.extractor",
            head=None if arm == "re-initialised" else "target/target.head",
            augment=tasks[-1].augment,
        )
        keep = Keep(tuple(settings["tune_steps"]))
        tuned = ck.Trainer(
            steps=max(*keep.steps, 1),
            lr=settings["tune_lr"],
            weight_decay=0.0,
            schedule="constant",
            **batch,
        ).fit([swapped], ["keep"], factories={"keep": lambda: keep})
    state = tuned.tasks["swapped"]
    figures = {f"steps-{done}": accuracy(one, test, state, seed) for done, one in keep.networks.items()}
    return {"own": own, **figures}


def _task(name: str, data: ck.DataSet, settings: Mapping[str, Any]) -> ck.Task:
    colour = data.train.channels == "RGB"
    return ck.Task(
        name,
        data,
        settings["backbone"],
        settings["split"],
        size=settings["size"],
        augment=("crop", "flip") if colour else (),
    )

"""Runs that tests start on several processes, and the same on one: networks, plugins, what each run is.

``torchrun --nproc-per-node 2 spread.py NAME... FOLDER`` does the runs and writes what came out of each, by the first
process; tests import the same runs.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs
import torch
from pictured import photos
from published import factories
from small import data_set, quick
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import compatkit as ck
from compatkit.adapters.builders import BUILDERS, Builder
from compatkit.errors import CompatkitError
from compatkit.registry.weights.tensorfile import serialize

STEPS, BATCH = 4, 8


class Grouped(nn.Module):
    """Two convolutions with group normalization, pooling, class layer."""

    def __init__(self, in_chans: int = 1, num_classes: int = 3) -> None:
        super().__init__()
        self.first = nn.Conv2d(in_chans, 8, 3, padding=1)
        self.norm = nn.GroupNorm(2, 8)
        self.act = nn.ReLU()
        self.second = nn.Conv2d(8, 8, 3, stride=2, padding=1)
        self.norm2 = nn.GroupNorm(2, 8)
        self.act2 = nn.ReLU()
        self.fc = nn.Linear(8, num_classes)
        self.pretrained_cfg = {"input_size": (in_chans, 12, 12), "classifier": "fc"}

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.norm(self.first(x)))
        return self.fc(self.act2(self.norm2(self.second(x))).mean((2, 3)))


OFFER = Builder(lambda model, **kwargs: Grouped(**kwargs), lambda: "tests 1")


def tasks(*names: str, **settings: Any) -> list[ck.Task]:
    """Tasks of which the first two share two classes, in another order."""
    classes = {"left": ("0", "1", "2"), "right": ("2", "0", "3")}
    inputs = {
        "model": "grouped",
        "cut": "act",
        "builder": "grouped",
        "augment": ("crop", "flip"),
        **settings,
    }
    return [
        ck.Task(name, data_set(name, classes=classes[name], seed=seed), **inputs)
        for seed, name in enumerate(names or classes)
    ]


def loader(task: ck.Task) -> DataLoader[Any]:
    """A task's training images as a user would load them."""
    images = torch.from_numpy(task.data.train.images).permute(0, 3, 1, 2)
    inputs = TensorDataset(images, torch.from_numpy(task.data.train.labels))
    return DataLoader(inputs, 6, shuffle=True, generator=torch.Generator())


def uses() -> list[Any]:
    return ["identical_init", ck.use("dcc", weight=0.5), "rotation_prediction"]


class Sometimes:
    """A loss, and a shared head, that only those have who see the class 0; called past the head's own call."""

    @ck.hookimpl
    def compatkit_set_up(self, setup: ck.SetUp) -> None:
        self.head = setup.add_auxiliary_head("sometimes", outputs=2)

    @ck.hookimpl
    def compatkit_losses(self, step: ck.Step) -> Mapping[str, Tensor]:
        chosen = (step.batch.labels == 0) & (step.batch.index % 4 == 0)
        if step.number % 2 or not bool(chosen.any()):
            return {}
        assert step.features is not None
        return {"loss": self.head.module(step.features[chosen]).square().sum() / len(chosen)}


def sgd() -> ck.Fit:
    trainer = quick(steps=STEPS, batch_size=BATCH, optimizer="sgd", lr=0.05)
    return trainer.fit(tasks(), uses())


def adam() -> ck.Fit:
    return quick(steps=STEPS, batch_size=BATCH, lr=0.003).fit(tasks(), uses())


def comforts() -> ck.Fit:
    """Pieces of a batch, clipping, averages, evaluation, early stopping."""
    trainer = quick(
        **{"steps": STEPS, "batch_size": BATCH, "lr": 0.003, "accumulate": 2, "clip_norm": 0.5, "ema": 0.5},
        **{"validation": 0.25, "evaluate_every": 1, "stop_early": ck.EarlyStopping(patience=3)},
    )
    return trainer.fit(tasks(), uses())


def phases() -> ck.Fit:
    """Shared heads of only some steps, and of only some processes."""
    first = quick(steps=STEPS, batch_size=BATCH, optimizer="sgd", lr=0.05)
    inputs = [ck.use("dcc", start=1, stop=3), "sometimes"]
    return first.fit(tasks(), inputs, factories={"sometimes": Sometimes})


class Sums:
    """Combines the gradients of single losses by projections, in the order that it draws."""

    @ck.hookimpl
    def compatkit_combine_gradients(self, step: ck.Step, gradients: Any) -> dict[str, Tensor]:
        first, *_ = names = [*gradients]
        order = torch.randperm(len(names), generator=step.rng("sums")).tolist()
        return {
            name: sum((1 + order[index]) * gradients[loss][name] for index, loss in enumerate(names))
            + gradients[first][name].clamp(min=0)
            for name in gradients[first]
        }


class Weighs:
    """Counts images by their position, in the loss of the task."""

    @ck.hookimpl
    def compatkit_sample_losses(self, step: ck.Step, losses: Tensor) -> Tensor:
        return losses * (1 + step.batch.index % 3)


class Ties:
    """A joint loss of both networks and of a head that tasks share, with a part drawn for the round."""

    @ck.hookimpl
    def compatkit_joint_losses(self, joint: ck.JointStep) -> Mapping[str, Tensor]:
        factor = float(torch.rand((), generator=joint.rng("ties")))
        losses: list[Tensor] = []
        for source, step in joint.steps.items():
            both = [joint.extract(name, step.batch.images, source=source) for name in joint.steps]
            losses.append((both[0] - both[1]).square().mean())
        return {"tie": torch.stack(losses).mean() * (1 + factor)}


def joined() -> ck.Fit:
    """A joint loss of both tasks beside the others."""
    trainer = quick(steps=STEPS, batch_size=BATCH, optimizer="sgd", lr=0.02, clip_norm=1.0, ema=0.5)
    return trainer.fit(tasks(), [*uses(), "ties"], factories={"ties": Ties})


def combined() -> ck.Fit:
    """Single losses weighed, and gradients combined; some losses only in some processes and pieces."""
    trainer = quick(steps=STEPS, batch_size=BATCH, optimizer="sgd", lr=0.02, accumulate=2, clip_norm=1.0)
    made = {"sums": Sums, "weighs": Weighs, "sometimes": Sometimes}
    return trainer.fit(tasks(), [*uses(), *made], factories=made)


def reversing() -> ck.Fit:
    """A loss on what layers took and gave; in the last steps only some of them."""
    trainer = quick(steps=STEPS, batch_size=BATCH, optimizer="sgd", lr=0.05)
    some = ck.use("reverse_pass", as_="some", weight=0.05, sample_layers=0.5, start=2)
    return trainer.fit(tasks("left"), [ck.use("reverse_pass", weight=0.1), some])


def frozen() -> ck.Fit:
    """One task after another, against heads that do not move."""
    trainer = quick(steps=STEPS, batch_size=BATCH, optimizer="sgd", lr=0.05)
    first = trainer.fit(tasks("left"), uses())
    inputs = tasks("left", "right")[1:]
    return trainer.fit(
        inputs, ["identical_init", "rotation_prediction"], frozen={"rotation": first.auxiliary["rotation"]}
    )


def puzzled() -> ck.Fit:
    """Self-supervised tasks whose losses are means over images."""
    trainer = quick(steps=STEPS, batch_size=BATCH, optimizer="sgd", lr=0.05)
    colored = [
        attrs.evolve(task, data=data_set(task.name, seed=seed, channels=3))
        for seed, task in enumerate(tasks(kwargs={"in_chans": 3}))
    ]
    return trainer.fit(colored, ["jigsaw", "colorization"])


def contrasted() -> ck.Fit:
    """A loss that compares images, at a temperature at which it says how many it compares."""
    return quick(steps=1, batch_size=BATCH).fit(tasks("left"), [ck.use("contrastive", temperature=1e6)])


class Notes:
    """Notes which images each process sees."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    @ck.hookimpl
    def compatkit_after_step(self, step: ck.Step) -> None:
        self.seen += step.batch.index.tolist()
        (Path(os.environ["PHOTOS"]) / f"seen.{os.environ.get('RANK', 'alone')}").write_text(
            json.dumps(self.seen)
        )


def photographed() -> ck.Fit:
    """Images of files, decoded and augmented by workers of each process; all steps of an epoch."""
    data = photos(Path(os.environ["PHOTOS"]) / "pets")
    settings = {"model": "grouped", "cut": "act", "builder": "grouped", "kwargs": {"in_chans": 3}}
    task = ck.Task("pets", data, augment="imagenet-strong", size=16, **settings)
    trainer = quick(steps=STEPS, batch_size=BATCH, optimizer="sgd", lr=0.05, workers=1)
    return trainer.fit([task], ["notes"], factories={"notes": Notes})


def blended() -> ck.Fit:
    """Images mixed within each process."""
    return quick(steps=2, batch_size=BATCH).fit(
        tasks("left", mixup=0.8, cutmix=1.0, smoothing=0.1), ["rotation_prediction"]
    )


def batch_normalized() -> ck.Fit:
    """A network whose normalization sees a share of the batch; rows of the history every other step."""
    task = ck.Task("left", data_set("left"), "resnet8_cifar", "layer2", size=16)
    return quick(steps=STEPS, batch_size=BATCH, optimizer="sgd", lr=0.05, log_every=2).fit([task])


class Pretrains:
    """Moves weights before the first step, and otherwise in any process but the first."""

    @ck.hookimpl
    def compatkit_pretrain(self, setup: ck.SetUp, pretraining: ck.Pretraining) -> Mapping[str, float]:
        result: dict[str, float] = {}
        for name, task in setup.tasks.items():
            batches = pretraining.batches(task, "pretrains", name, steps=3, batch_size=6)
            mean = torch.stack([batch.images.std() for batch in batches]).mean()
            result[name] = float(mean) + int(os.environ.get("RANK", "0"))
            with torch.no_grad():
                for parameter in task.extractor.parameters():
                    parameter.add_(0.01 * result[name])
        return result


def pretrained() -> ck.Fit:
    """Plugins train before the first step; averages begin there."""
    trainer = quick(steps=STEPS, batch_size=BATCH, optimizer="sgd", lr=0.05, ema=0.5)
    return trainer.fit(tasks(), ["pretrains"], factories={"pretrains": Pretrains})


class Idle:
    """Takes the place of a plugin that ended a run."""

    @ck.hookimpl
    def compatkit_after_step(self, step: ck.Step) -> None:
        assert step.number >= STOPPED


STOPPED = 2


def with_checkpoint(path: Path, stop: type = Idle) -> ck.Fit:
    """A run with a checkpoint."""
    trainer = quick(
        steps=STEPS, batch_size=BATCH, optimizer="sgd", lr=0.05, checkpoint=path, checkpoint_every=1
    )
    return trainer.fit(tasks(), [*uses(), "stop"], factories={"stop": stop})


def resumed() -> ck.Fit:
    return with_checkpoint(Path(sys.argv[-1]) / "one.safetensors")


class Stops:
    """Asks for the end in the last process, in the middle of a row of the history."""

    @ck.hookimpl
    def compatkit_after_step(self, step: ck.Step) -> None:
        last = int(os.environ.get("WORLD_SIZE", "1")) - 1
        if step.number == 2 - last and int(os.environ.get("RANK", "0")) == last:
            step.request_stop("enough")


def stopping() -> ck.Fit:
    """A run of one process ends at once, that of two at the end of the row."""
    alone = os.environ.get("WORLD_SIZE", "1") == "1"
    trainer = quick(steps=9, batch_size=BATCH, lr=0.003, schedule="constant", log_every=1 if alone else 3)
    return trainer.fit(tasks(), [*uses(), "stops"], factories={"stops": Stops})


class Chooses:
    """Chooses images by chance, and others in any process but the first."""

    @ck.hookimpl
    def compatkit_sampler(self, task: ck.TaskState, epoch: int, order: Tensor) -> Tensor:
        drawn = order[torch.randperm(len(order))]
        return (drawn + int(os.environ.get("RANK", "0"))) % len(order)


def choosing(**settings: Any) -> ck.Fit:
    """Samplers that draw, of stored images; two epochs."""
    trainer = quick(steps=8, batch_size=BATCH, optimizer="sgd", lr=0.01, log_every=4, **settings)
    return trainer.fit(tasks(), [*uses(), "chooses"], factories={"chooses": Chooses})


def choosing_ahead() -> ck.Fit:
    return choosing(image_storage="prefetched")


def curriculum() -> ck.Fit:
    """A sampler that runs the network on all images, here photos that worker processes decode; two epochs."""
    data = photos(Path(os.environ["PHOTOS"]) / "pets")
    settings = {"model": "grouped", "cut": "act", "builder": "grouped", "kwargs": {"in_chans": 3}}
    task = ck.Task("pets", data, augment="imagenet-strong", size=16, **settings)
    trainer = quick(steps=6, batch_size=BATCH, optimizer="sgd", lr=0.05, workers=1)
    return trainer.fit([task], ["curriculum"], factories=factories("curriculum"))


class ChoosesWrongly:
    """Returns no order, in one process."""

    @ck.hookimpl
    def compatkit_sampler(self, order: Tensor) -> Tensor:
        return order[:1] if os.environ["RANK"] == "1" else order


def choosing_wrongly() -> ck.Fit:
    return quick(steps=STEPS).fit(tasks("left"), ["wrong"], factories={"wrong": ChoosesWrongly})


class Fails:
    """Fails in one process."""

    @ck.hookimpl
    def compatkit_after_step(self, step: ck.Step) -> None:
        if step.number == 1 and os.environ["RANK"] == "1":
            raise RuntimeError("the disk is on fire")


def failing() -> ck.Fit:
    return quick(steps=STEPS).fit(tasks("left"), ["fails"], factories={"fails": Fails})


def other_images() -> ck.Fit:
    """Not even as many."""
    data = data_set("left", count=48 + 3 * int(os.environ["RANK"]))
    return quick(steps=STEPS).fit([attrs.evolve(tasks("left")[0], data=data)])


class Dies:
    """Is killed in one process, right after a checkpoint."""

    @ck.hookimpl
    def compatkit_after_step(self, step: ck.Step) -> None:
        if step.number == STOPPED and os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)


def killed() -> ck.Fit:
    return with_checkpoint(Path(sys.argv[-1]) / "two.safetensors", Dies)


class Drifts:
    """Moves a weight of one process."""

    @ck.hookimpl
    def compatkit_after_step(self, step: ck.Step) -> None:
        with torch.no_grad():
            next(step.task.head.parameters()).add_(float(os.environ["RANK"]))


def drifting() -> ck.Fit:
    return quick(steps=1).fit(tasks("left"), ["drifts"], factories={"drifts": Drifts})


RUNS: Mapping[str, Callable[[], ck.Fit]] = {
    item.__name__: item
    for item in (
        *(sgd, adam, comforts, phases, reversing, frozen, pretrained, puzzled, contrasted, photographed),
        *(batch_normalized, blended, combined, joined, resumed, stopping),
        *(choosing, choosing_ahead, curriculum),
        *(failing, other_images, drifting, choosing_wrongly),
    )
}


def state(fit: ck.Fit) -> dict[str, Tensor]:
    """All that a fit learned, by owner and name."""
    parts = {
        f"{name}.{side}": getattr(task, side)
        for name, task in fit.tasks.items()
        for side in ("extractor", "head")
    }
    parts |= {f"shared.{name}": head.module for name, head in fit.auxiliary.items()}
    return {
        f"{owner}/{key}": value for owner, part in parts.items() for key, value in part.state_dict().items()
    }


def main() -> None:
    BUILDERS["grouped"] = OFFER
    rank, folder = os.environ["RANK"], Path(sys.argv[-1])
    if sys.argv[1] == "killed":
        killed()
    # Errors are caught here, and more runs come after them: as without torchrun, which would end the others.
    os.environ.pop("TORCHELASTIC_RUN_ID")
    for name in sys.argv[1:-1]:
        out: dict[str, Any]
        try:
            fit = RUNS[name]()
            out = {"plan": fit.plan, "history": fit.history, "run": fit.run, "evaluations": fit.evaluations}
            (folder / f"{name}.{rank}.safetensors").write_bytes(serialize(state(fit)))
        except (CompatkitError, RuntimeError) as error:
            out = {
                "error": type(error).__name__,
                "message": str(error),
                "notes": getattr(error, "__notes__", []),
            }
        (folder / f"{name}.{rank}.json").write_text(json.dumps(out))


if __name__ == "__main__":
    main()

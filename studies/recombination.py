"""Recombination accuracy by method: which regularizers make parts of two networks fit.

Paper: Gygli, Uijlings, Ferrari (2021), "Towards Reusable Network Components by Learning Compatible
    Representations", Fig. 2 and Sec. 4 (CIFAR-10 and STL-10, ResNet-56, 10 runs).
Here: MNIST and USPS, or two halves of CIFAR-10, at a size for two CPU cores. The scale differs, so only the
    order of the arms is comparable with the paper's.

    python -m compatkit_studies.recombination --pair digits --data-root DIR --seeds 5 --out docs/results/digits
"""

from __future__ import annotations

import json
import platform
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
import torch

import compatkit as ck

from .report import write_report  # noqa: TID251  # relative: type checkers cannot follow a renamed folder

ARMS = ("none", "iiw", "rp", "dcc", "iiw+rp", "iiw+dcc", "rp+dcc", "iiw+rp+dcc")
INCREMENTAL = ("incremental", "incremental-back", "incremental-batch")
"""One task after the other against frozen heads, all three methods: first then second, second then first, and the
paper's regime, in which frozen heads use batch statistics; the paper averages both orders."""
SELF_SUPERVISED = tuple(
    f"{start}{one}" for one in ("jigsaw", "contrastive", "colourisation") for start in ("", "iiw+")
)
"""Other auxiliary tasks in the place of RP, as its App. A invites; run where they are asked for."""
KNOWN = (*ARMS, *INCREMENTAL, *SELF_SUPERVISED)
SIZES: dict[str, dict[str, Any]] = {
    "digits": {
        "backbone": "resnet20_cifar",
        "split": "layer2",
        "size": (16, 16),
        "train": 5000,
        "test": 2000,
    },
    "halves": {
        "backbone": "resnet20_cifar",
        "split": "layer2",
        "size": (32, 32),
        "train": 8000,
        "test": 2000,
    },
}


def pair(name: str, root: str | None, size: dict[str, Any]) -> list[ck.Task]:
    """Return the two tasks of a pair of domains."""
    if name == "digits":
        sets = [ck.data.load(one, root=root) for one in ("mnist", "usps")]
    else:
        plain, other = ck.data.load("cifar10", root=root).halves()
        sets = [plain.renamed("plain"), other.shifted(hue=0.3, blur=0.8).renamed("shifted")]
    return [
        ck.Task(
            data.name,
            data.subset(train=size["train"], test=size["test"]),
            size["backbone"],
            size["split"],
            size=size["size"],
            augment=("crop", "flip") if name == "halves" else (),
        )
        for data in sets
    ]


def regularizers(arm: str) -> list[str | ck.Use]:
    """Return the plugins of an arm, at their defaults; incremental arms use those of ``iiw+rp+dcc``.

    The contrastive task mirrors no views, as a mirrored digit is none.
    """
    names: dict[str, str | ck.Use] = {
        "iiw": "identical_init",
        "rp": "rotation_prediction",
        "dcc": "dcc",
        "jigsaw": "jigsaw",
        "contrastive": ck.use("contrastive", flip=False),
        "colourisation": "colourisation",
    }
    wanted = "iiw+rp+dcc" if arm in INCREMENTAL else arm
    return [names[one] for one in wanted.split("+") if one in names]


def train(arm: str, tasks: Sequence[ck.Task], trainer: ck.Trainer) -> list[ck.Fit]:
    """Train an arm: both tasks in turn, or one after the other against the first one's frozen heads."""
    if arm not in INCREMENTAL:
        return [trainer.fit(tasks, regularizers(arm))]
    one, other = reversed(tasks) if arm == "incremental-back" else tasks
    first = trainer.fit([one], regularizers(arm))
    statistics = "batch" if arm == "incremental-batch" else "stored"
    return [first, trainer.fit([other], regularizers(arm), frozen=first, frozen_statistics=statistics)]


def measure(fits: Sequence[ck.Fit], tasks: Sequence[ck.Task]) -> list[dict[str, Any]]:
    """Publish the fits into a registry of their own and measure all four combinations under each policy."""
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        registry = ck.Registry.init(Path(folder) / "parts")
        for fit in fits:
            registry.publish(fit, prefix="parts")
        for policy in ("batch", "reestimate", "running"):
            matrix = registry.matrix(
                "parts/*.extractor", "parts/*.head", [task.data.test for task in tasks], normalisation=policy
            )
            for cell in matrix.cells:
                if cell.restricted is None:
                    raise click.ClickException(f"{cell.extractor} with {cell.head}: {cell.reason}")
                rows.append(
                    {
                        "extractor": cell.extractor.split("/")[1].split(".")[0],
                        "head": cell.head.split("/")[1].split(".")[0],
                        "policy": policy,
                        "accuracy": cell.restricted.accuracy,
                        "chance": cell.chance,
                        "grade": cell.grade,
                    }
                )
    return rows


def run(
    out: Path,
    tasks: Callable[[], list[ck.Task]],
    arms: Sequence[str],
    seeds: Sequence[int],
    settings: dict[str, Any],
) -> list[dict[str, Any]]:
    """Run what is missing in ``out/runs.jsonl`` and return all runs; a stopped study goes on where it was."""
    out.mkdir(parents=True, exist_ok=True)
    log = out / "runs.jsonl"
    lines = log.read_text().splitlines(keepends=True) if log.exists() else []
    # A killed study may leave half a line at the end: that run is done again.
    done = [json.loads(line) for line in lines if line.endswith("\n")]
    if len(done) != len(lines):
        log.write_text("".join(lines[: len(done)]))
    loaded: list[ck.Task] = []
    for seed in seeds:
        for arm in arms:
            if any(one["arm"] == arm and one["seed"] == seed and one["settings"] == settings for one in done):
                continue
            loaded = loaded or tasks()
            began = time.perf_counter()
            trainer = ck.Trainer(steps=settings["steps"], seed=seed, batch_size=settings["batch_size"])
            rows = measure(train(arm, loaded, trainer), loaded)
            seconds = round(time.perf_counter() - began, 1)
            done.append({"arm": arm, "seed": seed, "settings": settings, "seconds": seconds, "cells": rows})
            with log.open("a") as file:
                file.write(json.dumps(done[-1]) + "\n")
            crossed = [
                row["accuracy"]
                for row in rows
                if row["extractor"] != row["head"] and row["policy"] == "batch"
            ]
            click.echo(
                f"seed {seed} {arm:<12} {seconds:6.1f} s  recombined {' '.join(f'{x:.3f}' for x in crossed)}"
            )
    return [
        one for one in done if one["settings"] == settings and one["arm"] in arms and one["seed"] in seeds
    ]


@click.command()
@click.option("--pair", "name", type=click.Choice(sorted(SIZES)), default="digits", show_default=True)
@click.option("--data-root", help="Folder of data sets.")
@click.option("--seeds", default=5, show_default=True, type=click.IntRange(1))
@click.option("--steps", default=300, show_default=True, type=click.IntRange(1), help="Steps a network.")
@click.option("--batch-size", default=64, show_default=True, type=click.IntRange(2))
@click.option("--arms", default=",".join((*ARMS, *INCREMENTAL)), show_default=True, help="Comma-separated.")
@click.option("--out", required=True, type=click.Path(path_type=Path))
def main(
    name: str, data_root: str | None, seeds: int, steps: int, batch_size: int, arms: str, out: Path
) -> None:
    """Run the study and write runs.jsonl, table.md and figure.png to OUT."""
    wanted = arms.split(",")
    unknown = [arm for arm in wanted if arm not in KNOWN]
    if unknown:
        raise click.UsageError(f"unknown arms {', '.join(unknown)}; known are {', '.join(KNOWN)}")
    size = SIZES[name]
    settings = {"pair": name, **{k: list(v) if isinstance(v, tuple) else v for k, v in size.items()}}
    settings |= {"steps": steps, "batch_size": batch_size}
    runs = run(out, lambda: pair(name, data_root, size), wanted, range(seeds), settings)
    machine = f"{platform.machine()}, torch {torch.__version__}, {torch.get_num_threads()} threads"
    command = (
        f"python -m compatkit_studies.recombination --pair {name} --data-root DIR --seeds {seeds} --steps {steps} "
        f"--batch-size {batch_size} --arms {arms} --out OUT"
    )
    click.echo(write_report(out, runs, wanted, settings, command, machine))


if __name__ == "__main__":
    main()

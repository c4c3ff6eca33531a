"""Recombination along training: when do parts begin to fit, and do the regularizers keep working?

Paper: Gygli, Uijlings, Ferrari (2021), "Towards Reusable Network Components by Learning Compatible
    Representations", Fig. 2 and Sec. 4 (20,000 steps of 512, figures only after the last step).
Here: two halves of CIFAR-10, one of them shifted, ResNet-8; or the paper's pair and size. Arms and final measures are
    those of study 3.1; during training: own and recombined accuracy, and the loss of the rotation head.

Runs are long: the same command resumes an interrupted one from its last checkpoint.

    compatkit study run 3.1b --data DIR --out OUT
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import mean
from typing import Any

import attrs
from torch import nn

import compatkit as ck
from compatkit.experiments.studies import Measure, Outcome, Results, Run, Study
from compatkit.hooks import Register

from ._curves import panels
from ._pairs import (
    COMBINATIONS,
    DATA,
    MEASURES,
    REFERENCE,
    SIZES,
    outcome,
    reported,
    tasks_of,
    trainer_of,
    uses_of,
)
from .faster_transfer import accuracy

TURNS = "rotation_prediction/loss"
CURVES = {"own": "own task", "recombined": "recombined, batch statistics", "turns": "rotation loss, nats"}


def recombined(run: Run, extractor: ck.TaskState, head: ck.TaskState) -> float:
    """Return the accuracy of one task's extractor with another's head, over the common classes.

    Args:
        run: The run; its settings define the batch size for batch statistics.
        extractor: Task whose extractor and test images are used, under batch statistics.
        head: Task whose head is used, possibly the same. Neither is changed.
    """
    data, other = extractor.task.data, head.task.data
    outputs = [-1] * len(data.classes)
    mine, theirs = ([ck.label(name) for name in data.classes] for data in (data, other))
    for index, output in ck.match_classes(mine, theirs):
        outputs[index] = output
    network = nn.Sequential(extractor.extractor, head.head)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    training = [module.training for module in network.modules()]
    try:
        return accuracy(network, data.test, extractor, run, outputs)
    finally:  # batch statistics changed the running ones
        network.load_state_dict(before)
        for module, was in zip(network.modules(), training, strict=True):
            module.training = was


@attrs.define(eq=False)
class Watch:
    """Measures two networks and both recombinations at regular intervals.

    Attributes:
        run: The run; its setting ``every`` is the interval in steps.
        rows: One per measurement: ``step``, and ``own`` and ``recombined``, averaged over both directions.
    """

    run: Run
    rows: list[dict[str, Any]] = attrs.field(factory=list)
    _tasks: list[ck.TaskState] = attrs.field(factory=list)

    @ck.hookimpl
    def compatkit_set_up(self, setup: ck.SetUp) -> None:
        """Store the tasks."""
        self._tasks = list(setup.tasks.values())

    @ck.hookimpl
    def compatkit_after_step(self, step: ck.Step) -> None:
        """Measure after the step of the last task."""
        done = step.number + 1
        if step.task is self._tasks[-1] and done % self.run.settings["every"] == 0:
            first, other = self._tasks
            own, across = ([(first, first), (other, other)], [(first, other), (other, first)])
            self.rows.append(
                {
                    "step": done,
                    "own": mean(recombined(self.run, *pair) for pair in own),
                    "recombined": mean(recombined(self.run, *pair) for pair in across),
                }
            )

    @ck.hookimpl
    def compatkit_state(self) -> Mapping[str, Any]:
        """Return the measurements."""
        return {"rows": self.rows}

    @ck.hookimpl
    def compatkit_load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the measurements."""
        self.rows = list(state["rows"])


def run(run: Run) -> Outcome:
    """Train both networks of an arm, measure during training and, like study 3.1, at the end."""
    tasks, watch = tasks_of(run), Watch(run)
    trainer = attrs.evolve(trainer_of(run), log_every=run.settings["every"], checkpoint=run.checkpoint)
    fit = trainer.fit(tasks, [*uses_of(run, run.arm), "watch"], factories={"watch": lambda: watch})
    turns: dict[int, list[float]] = {}
    for row in fit.history:
        if TURNS in row["losses"]:
            turns.setdefault(row["step"], []).append(row["losses"][TURNS])
    rows = [
        {**row, **({"turns": mean(turns[row["step"]])} if row["step"] in turns else {})} for row in watch.rows
    ]
    result = outcome(run, [fit], tasks, along=rows)
    return attrs.evolve(result, values={**result.values, "turns": rows[-1].get("turns") if rows else None})


def draw(results: Results) -> Mapping[str, bytes]:
    """Draw own and recombined accuracy and the rotation loss over steps."""
    steps = sorted(
        {row["step"] for arm in results.arms for data in results.figure_data(arm) for row in data["along"]}
    )
    if not steps:
        return {}
    drawn: dict[str, dict[str, list[list[float | None]]]] = {}
    for name, title in CURVES.items():
        for arm in results.arms:
            known = [
                {row["step"]: row.get(name) for row in data["along"]} for data in results.figure_data(arm)
            ]
            lines = [[curve.get(step) for step in steps] for curve in known]
            if any(value is not None for line in lines for value in line):
                drawn.setdefault(title, {})[arm] = lines
    return {"along": panels(drawn, steps, "steps of each network")}


_WHERE = "Fig. 2, Sec. 4: after 20,000 steps of 512"
STUDY = Study(
    title="recombination along training",
    question="Do parts of two networks fit better the longer both are trained, and when does that begin? How far are "
    "the networks themselves by then?",
    reference=f"{REFERENCE}, Fig. 2, Sec. 4",
    arms=COMBINATIONS,
    measures=(
        *MEASURES,
        Measure(name="turns", title="rotation loss at the end", unit="nats", better="lower", drawn=False),
    ),
    sizes={
        "cpu": {
            **SIZES["halves"],
            "model": "resnet8_cifar",
            "train": 10_000,
            "steps": 3000,
            "every": 250,
        },
        "paper": {**SIZES["paper"], "every": 250},
    },
    scale={
        "cpu": "two halves of CIFAR-10, one of them shifted, in place of CIFAR-10 and STL-10, ResNet-8 on 10,000 "
        "images each and 3,000 steps of 64 in place of ResNet-56 and 20,000 steps of 512.",
        "paper": "",
    },
    paper=(
        reported("none", 10.6, _WHERE),
        reported("iiw", 25.1, _WHERE),
        reported("rp", 50.1, _WHERE),
        reported("dcc", 65.8, _WHERE),
        reported("iiw+rp+dcc", 76.7, _WHERE),
    ),
    run=run,
    extends="none",
    draw=draw,
    data=DATA,
)


@ck.hookimpl
def compatkit_studies(register: Register) -> None:
    """Offer study 3.1b."""
    register("3.1b", lambda: STUDY)

"""Runs that differ in the seed only, carried out at once; and the trial that says whether that is faster."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from compatkit.components.workspace import Registry
from compatkit.experiments.sweeps import records
from compatkit.experiments.sweeps.ensembles import Ensemble, Unsuited, quiet, share_images
from compatkit.experiments.sweeps.jobs import DataCache, Job, concluded, kept
from compatkit.experiments.sweeps.members import attempt, train
from compatkit.experiments.sweeps.records import RunRecord
from compatkit.training.beginning import Begun, begun

if TYPE_CHECKING:
    from compatkit.experiments.recipes import Recipe

STEPS, ROUNDS, SECONDS = 5, 3, 3.0
"""Of a trial: steps a round, rounds at most, and the time after which no other round begins."""


@attrs.frozen
class Trial:
    """How long a step of all runs takes, both ways.

    Attributes:
        runs: How many.
        alone: Milliseconds of one step of each, one after the other.
        together: Milliseconds of one step of all at once; None where that cannot be done.
        reason: Why it cannot be done, else empty.
    """

    runs: int
    alone: float
    together: float | None
    reason: str = ""

    @property
    def gain(self) -> float:
        """How many times as fast they are at once; 0 where that cannot be done."""
        return self.alone / self.together if self.together else 0.0

    def __str__(self) -> str:
        if self.together is None:
            return f"{self.runs} runs cannot be trained at once: {self.reason}"
        return (
            f"a step of {self.runs} runs takes {self.together:.2f} ms at once and {self.alone:.2f} ms one after the "
            f"other: {self.gain:.1f} x"
        )

    def to_json(self) -> dict[str, Any]:
        """Return the trial as JSON values."""
        return {**attrs.asdict(self), "gain": round(self.gain, 3)}


def attempted(jobs: Sequence[Job], cache: DataCache) -> Trial:
    """Take a few steps of these runs both ways; what is trained is thrown away.

    The first run stands for all of them: its weights are stacked as often as there are runs, since their values make
    no step faster.
    """
    with ExitStack() as stack, quiet():
        _, first = stack.enter_context(_begun(jobs[0], cache))
        loop, steps, states = first.loop, first.trainer.steps, first.loop.setup.tasks.values()
        alone = _measured(lambda number: [loop.step(state, number) for state in states], steps)
        alone *= len(jobs)
        try:
            ensemble = Ensemble.of([first] * len(jobs))
            together = _measured(
                lambda number: [attempt(ensemble, task, number) for task in ensemble.batches], steps
            )
        except Unsuited as error:
            return Trial(len(jobs), 1e3 * alone, None, str(error))
    return Trial(len(jobs), 1e3 * alone, 1e3 * together)


def _measured(step: Callable[[int], object], steps: int) -> float:
    """Return the least seconds of a step; the first one, which warms up, is not counted."""
    step(0)
    least, end = float("inf"), time.perf_counter() + SECONDS
    for _ in range(ROUNDS):
        began = time.perf_counter()
        for number in range(STEPS):
            step(number % steps)
        least = min(least, (time.perf_counter() - began) / STEPS)
        if time.perf_counter() > end:
            break
    return least


def together(jobs: Sequence[Job], cache: DataCache, each: Callable[[RunRecord], None]) -> None:
    """Carry out ``jobs`` at once; ``each`` is given the record of every run when all have ended.

    A run whose loss is not finite is masked and fails alone.

    Raises:
        Unsuited: They cannot be trained at once; no record is kept but that they have begun.
    """
    began = time.perf_counter()
    notes = {job.run: job.begun() for job in jobs}
    with ExitStack() as stack:
        try:
            for job in jobs:
                records.write(Path(job.folder), notes[job.run])
            every: list[tuple[Recipe, Begun]] = []
            for job in jobs:
                every.append(stack.enter_context(_begun(job, cache)))
                share_images(every[0][1], every[-1][1])
            rows, errors = train(every[0][1].trainer, [one for _, one in every])
        except Unsuited:
            raise
        except Exception as error:  # told at the end of the sweep: other runs go on
            for job in jobs:
                each(kept(job, notes[job.run].failed(error), began))
            return
        for place, (job, (plan, member)) in enumerate(zip(jobs, every, strict=True)):
            record = notes[job.run]
            try:
                if place in errors:
                    raise errors[place]
                fit = member.finished(_facts(member, len(jobs)), rows[place])
                record = concluded(job, record, plan, fit, Registry.open(job.registry))
            except Exception as error:  # told at the end of the sweep: other runs go on
                record = record.failed(error)
            each(kept(job, record, began))


def _facts(member: Begun, count: int) -> dict[str, Any]:
    """Return a run's manifest, which tells how many were trained at once."""
    return {**member.manifest, "environment": {**member.manifest["environment"], "together": count}}


@contextmanager
def _begun(job: Job, cache: DataCache) -> Iterator[tuple[Recipe, Begun]]:
    plan = cache.recipe(job)
    heads = Registry.open(job.registry).frozen(**plan.against) if plan.against else None
    trainer = attrs.evolve(plan.trainer, checkpoint=None, execution="eager")
    given: dict[str, Any] = {"frozen": heads, "frozen_statistics": plan.frozen_statistics}
    with begun(trainer, plan.tasks, plan.regularizers, **given) as start:
        yield plan, start

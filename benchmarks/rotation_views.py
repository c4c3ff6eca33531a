"""What rotation prediction learns by the way its views are batched: from images, or from statistics of the batch.

    python benchmarks/rotation_views.py --seeds 3 --data DIR

Two networks for MNIST and USPS (study 3.1, size cpu), trained with rotation prediction alone. ``probe``: half of the
training images are replaced by ones that look the same at every angle; how many of their angles are told, where .25 is
chance. ``own`` and ``recombined``: as in the study, from ordinary images. ``joint`` is no setting of the plugin: the
target head, too, takes its features from the pass over all views, whose mixed statistics then are the running ones.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator
from statistics import mean, stdev
from unittest import mock

import attrs
import numpy as np
import torch
from torch import Tensor

import compatkit as ck
from compatkit.experiments.studies import Run, find
from compatkit.experiments.studies.finding import settings_of
from compatkit.experiments.studies.runs import Shelf
from compatkit.training import extra_views as view_batching
from compatkit_studies import _pairs

WAYS = ("mixed", "joint", "per_view", "separate")


@attrs.define(eq=False)
class Witness:
    """Counts what the rotation head says of probes in the last steps."""

    probes: Tensor
    last: int
    right: list[float] = attrs.field(factory=list)
    _said: list[Tensor] = attrs.field(factory=list)

    @ck.hookimpl
    def compatkit_set_up(self, setup: ck.SetUp) -> None:
        """Listen to the head."""
        head = setup.auxiliary["rotation"].module
        head.register_forward_hook(lambda module, given, answered: self._said.append(answered.detach()))

    @ck.hookimpl
    def compatkit_after_step(self, step: ck.Step) -> None:
        """Count; the head was asked once for all views, or once for each."""
        answers = torch.cat(self._said).argmax(1).unflatten(0, (4, -1))
        self._said.clear()
        if step.number >= self.last:
            of_probes = answers[:, self.probes[step.batch.index]]
            self.right.append(float((of_probes == torch.arange(4)[:, None]).float().mean()))


def run_of(way: str, seed: int, data: str, steps: int) -> Run:
    """Return a run of study 3.1 with rotation prediction."""
    views = "per_view" if way == "joint" else way
    settings = settings_of(find("3.1"), "cpu", {"views": views, "steps": steps})
    return Run("3.1", "rp", seed, settings, Shelf("3.1", data))


@contextlib.contextmanager
def normalized(way: str) -> Iterator[None]:
    """For ``joint``, let one pass over all views take the statistics of all."""
    if way != "joint":
        yield
        return
    with (
        mock.patch.object(view_batching, "Viewwise", lambda views: contextlib.nullcontext()),
        mock.patch.object(view_batching, "mixes", lambda extractor, shape: None),  # it is to mix them here
    ):
        yield


def half_symmetric(data: ck.DataSet) -> tuple[ck.DataSet, Tensor]:
    """Return a data set of which every second training image is its own mean over turns and mirrors, and which are."""
    values = data.train.images.astype(np.int64)
    quarters = sum(np.rot90(values, turns, (1, 2)) for turns in range(4))
    alike = ((quarters + quarters[:, ::-1]) // 8).astype(np.uint8)
    probes = np.arange(len(values)) % 2 == 1
    images = np.where(probes[:, None, None, None], alike, data.train.images)
    return attrs.evolve(data, train=attrs.evolve(data.train, images=images)), torch.from_numpy(probes)


def measured(way: str, seed: int, data: str, steps: int) -> dict[str, float]:
    """Return the figures of one way at one seed."""
    run = run_of(way, seed, data, steps)
    trainer = attrs.evolve(_pairs.trainer_of(run), passes="fused" if way == "joint" else "auto")
    tasks, uses = _pairs.tasks_of(run), [_pairs.rotation(run)]
    with normalized(way):
        found = _pairs.outcome(run, [trainer.fit(tasks, uses)], tasks).values
        mixed, probes = half_symmetric(tasks[1].data)
        witness = Witness(probes, trainer.steps - 20)
        trainer.fit(
            [attrs.evolve(tasks[1], data=mixed)],
            [*uses, ck.use("witness", after=("rotation_prediction",))],
            factories={"witness": lambda: witness},
        )
    figures = {name: found[name] for name in ("own", "recombined", "running")}
    return {"probe": mean(witness.right), **{name: float(value or 0) for name, value in figures.items()}}


def main() -> None:
    """Measure every way at every seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--ways", default=",".join(WAYS), help="some of them, with commas")
    parser.add_argument("--data", required=True)
    given = parser.parse_args()
    torch.set_num_threads(1)
    print("| views | probes told | own task | recombined, batch statistics | running statistics |")
    print("|---|---|---|---|---|")
    for way in given.ways.split(","):
        rows = [measured(way, seed, given.data, given.steps) for seed in range(given.seeds)]
        columns = [[row[name] for row in rows] for name in rows[0]]
        said = [f"{mean(one):.3f} ± {stdev(one) if len(one) > 1 else 0:.3f}" for one in columns]
        print(f"| {way} | {' | '.join(said)} |", flush=True)


if __name__ == "__main__":
    main()

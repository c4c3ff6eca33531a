"""Measure whether rotation prediction learns from images or from batch statistics, by the batching of its views.

    python benchmarks/rotation_views.py --seeds 3 --data DIR

Two networks for MNIST and USPS (study 3.1, size cpu), trained with rotation prediction alone. ``probe``: half of the
training images are replaced by rotationally symmetric ones; the share of correctly predicted angles, where .25 is
chance. ``own`` and ``recombined``: as in the study, from ordinary images. ``joint`` is no setting of the plugin: the
target head too takes its features from the pass over all views, whose mixed statistics become the running ones.
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
from compatkit.experiments.studies.runs import StudyData
from compatkit.training import extra_views as view_batching
from compatkit_studies import _pairs

WAYS = ("mixed", "joint", "per_view", "separate")


@attrs.define(eq=False)
class ProbeAccuracy:
    """Accuracy of the rotation head on probes in the last steps."""

    probes: Tensor
    last: int
    accuracies: list[float] = attrs.field(factory=list)
    _logits: list[Tensor] = attrs.field(factory=list)

    @ck.hookimpl
    def compatkit_set_up(self, setup: ck.SetUp) -> None:
        """Record the logits of the rotation head."""
        head = setup.auxiliary["rotation"].module
        head.register_forward_hook(lambda module, inputs, logits: self._logits.append(logits.detach()))

    @ck.hookimpl
    def compatkit_after_step(self, step: ck.Step) -> None:
        """Measure the accuracy on probes; the head ran once for all views, or once for each."""
        predictions = torch.cat(self._logits).argmax(1).unflatten(0, (4, -1))
        self._logits.clear()
        if step.number >= self.last:
            probe_predictions = predictions[:, self.probes[step.batch.index]]
            self.accuracies.append(float((probe_predictions == torch.arange(4)[:, None]).float().mean()))


def run_of(views: str, seed: int, data: str, steps: int) -> Run:
    """Return a run of study 3.1 with rotation prediction."""
    mode = "per_view" if views == "joint" else views
    settings = settings_of(find("3.1"), "cpu", {"views": mode, "steps": steps})
    return Run("3.1", "rp", seed, settings, StudyData("3.1", data))


@contextlib.contextmanager
def normalized(views: str) -> Iterator[None]:
    """Normalize one pass over all views by their joint statistics, for ``joint``."""
    if views != "joint":
        yield
        return
    with (
        mock.patch.object(view_batching, "Viewwise", lambda views: contextlib.nullcontext()),
        mock.patch.object(view_batching, "mixes", lambda extractor, shape: None),  # mixing is intended here
    ):
        yield


def half_symmetric(data: ck.DataSet) -> tuple[ck.DataSet, Tensor]:
    """Replace every second training image by its mean over rotations and flips.

    Args:
        data: Data set of square images.

    Returns:
        The changed data set, and a mask ``(images,)`` of the replaced training images.
    """
    values = data.train.images.astype(np.int64)
    quarters = sum(np.rot90(values, quarter, (1, 2)) for quarter in range(4))
    symmetric = ((quarters + quarters[:, ::-1]) // 8).astype(np.uint8)
    probes = np.arange(len(values)) % 2 == 1
    images = np.where(probes[:, None, None, None], symmetric, data.train.images)
    return attrs.evolve(data, train=attrs.evolve(data.train, images=images)), torch.from_numpy(probes)


def measured(views: str, seed: int, data: str, steps: int) -> dict[str, float]:
    """Return the figures of one batching of views at one seed."""
    run = run_of(views, seed, data, steps)
    trainer = attrs.evolve(_pairs.trainer_of(run), passes="fused" if views == "joint" else "auto")
    tasks, uses = _pairs.tasks_of(run), [_pairs.rotation(run)]
    with normalized(views):
        outcome = _pairs.outcome(run, [trainer.fit(tasks, uses)], tasks).values
        mixed, probes = half_symmetric(tasks[1].data)
        probe_accuracy = ProbeAccuracy(probes, trainer.steps - 20)
        trainer.fit(
            [attrs.evolve(tasks[1], data=mixed)],
            [*uses, ck.use("witness", after=("rotation_prediction",))],
            factories={"witness": lambda: probe_accuracy},
        )
    figures = {name: outcome[name] for name in ("own", "recombined", "running")}
    return {
        "probe": mean(probe_accuracy.accuracies),
        **{name: float(value or 0) for name, value in figures.items()},
    }


def main() -> None:
    """Measure every batching of views at every seed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--ways", default=",".join(WAYS), help="batchings of views, separated by commas")
    parser.add_argument("--data", required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    print("| views | probes told | own task | recombined, batch statistics | running statistics |")
    print("|---|---|---|---|---|")
    for views in options.ways.split(","):
        rows = [measured(views, seed, options.data, options.steps) for seed in range(options.seeds)]
        columns = [[row[name] for row in rows] for name in rows[0]]
        cells = [f"{mean(values):.3f} ± {stdev(values) if len(values) > 1 else 0:.3f}" for values in columns]
        print(f"| {views} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()

"""Feature cross-correlation: do heads fit better if the channels of the extractors correlate?

Paper: Gygli, Uijlings, Ferrari (2021), "Towards Reusable Network Components by Learning Compatible Representations",
    App. C.2, Fig. 6: independent networks correlate by .34 after the best permutation, RP by .38 and DCC by .19 without
    any, although DCC recombines better; pretrained IIW by .69, with and without DCC.
Here: both extractors see both test sets under batch statistics; figures are means over the two sets.

    compatkit study run 3.5 --data DIR --out OUT
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

import compatkit as ck
from compatkit.experiments.studies import Measure, Outcome, Reported, Results, Run, Study
from compatkit.hooks import Register
from compatkit.reports.pictures import COLORS, MARKS, png

from ._pairs import (
    DATA,
    REFERENCE,
    measure,
    tasks_of,
    temporary_registry,
    trainer_of,
    uses_of,
    values_of,
)
from .pretrained_init import PRETRAINED, PRETRAINED_SCALE, started

ARMS = ("none", "rp", "dcc", "iiw", "iiw+dcc", "iiw-pretrained", "iiw-pretrained+dcc")
"""Arms; ``iiw-pretrained`` starts both networks from one network pretrained by rotation prediction (study 3.2)."""
LOOKS = {
    "direct": ("direct", "signed"),
    "direct-absolute": ("direct", "absolute"),
    "matched": ("matched", "signed"),
    "shuffled": ("shuffled", "signed"),
}
"""Measures by cell of the metric's table."""


def correlated(fit: ck.Fit, tasks: Sequence[ck.Task], layer: str, seed: int) -> list[ck.Measurement]:
    """Return the cross-correlation of both extractors on the test images of each task.

    Args:
        fit: Fit of both tasks.
        tasks: The two tasks.
        layer: Last layer of both extractors.
        seed: Seed of the order of the images, which affects batch statistics, and of the pairings.
    """
    metric = ck.metrics.make_metric("cross_correlation", seed=seed)
    measured = []
    with temporary_registry({"-".join(fit.tasks): fit}) as registry:
        (prefix,) = {name.partition("/")[0] for name in registry.store.names()}
        models = [
            registry.recombine(
                f"{prefix}/{task.name}.extractor", f"{prefix}/{task.name}.head", bn_policy="batch"
            )
            for task in tasks
        ]
        for task in tasks:
            model, other = models
            measured.append(
                ck.measure(model, task.data.test, [metric], layers=[layer], other=other, seed=seed)
            )
    return measured


def values_and_channels(measured: Sequence[ck.Measurement], layer: str) -> tuple[dict[str, Any], list[Any]]:
    """Return the measures averaged over image sets, and the correlations of channels by set and pairing.

    Args:
        measured: One measurement for each image set.
        layer: Path of the layer.
    """
    values: dict[str, Any] = {}
    for name, (pairing, sign) in LOOKS.items():
        cells = [
            measurement.table("cross_correlation").at(layer=layer, pairing=pairing, sign=sign)
            for measurement in measured
        ]
        known = [cell.value for cell in cells if cell.value is not None]
        values[name] = mean(known) if len(known) == len(cells) else None
    constant = [
        measurement.value
        for each in measured
        for measurement in each.table("cross_correlation/constant").cells
    ]
    values["constant"] = float(max(measurement for measurement in constant if measurement is not None))
    channels = [
        {
            pairing: sorted((float(measurement) for measurement in row), reverse=True)
            for pairing, row in zip(
                ("direct", "matched"), measurement.table("cross_correlation/channels").values[0], strict=True
            )
        }
        for measurement in measured
    ]
    return values, channels


def run(run: Run) -> Outcome:
    """Train both networks of an arm, correlate their features, exchange their heads."""
    tasks, layer = tasks_of(run), run.settings["cut"]
    if "pretrained" in run.arm:
        tasks, _ = started(run, tasks, same=True)
    fit = trainer_of(run).fit(tasks, uses_of(run, run.arm.replace("-pretrained", "")))
    values, channels = values_and_channels(correlated(fit, tasks, layer, run.seed), layer)
    cells = measure(run, [fit], tasks, ["batch"])
    recombined = values_of(cells, {"batch": "recombined"})
    values |= {name: recombined[name] for name in ("own", "recombined", "chance")}
    return Outcome(values=values, figure_data={"cells": cells, "channels": channels})


def draw(results: Results) -> Mapping[str, bytes]:
    """Draw the correlations of channels, as the paper's Fig. 6, and accuracy against the mean correlation."""
    return {"channels": _channels(results), "accuracy": _accuracy(results)}


def _channels(results: Results) -> bytes:
    """Return a panel per arm: channels sorted by correlation, direct and matched, one line per seed."""
    figure, panels = _panels(len(results.arms))
    for axes, arm in zip(panels, results.arms, strict=True):
        for index, pairing in enumerate(("direct", "matched")):
            for channels in (run["channels"] for run in results.figure_data(arm)):
                for line in channels:
                    axes.plot(line[pairing], color=COLORS[index], alpha=0.5, linewidth=1)
            axes.plot(
                [], color=COLORS[index], label={"direct": "as they stand", "matched": "matched"}[pairing]
            )
        null, direct = results.known(arm, "shuffled"), results.known(arm, "direct")
        if null:
            axes.axhline(
                mean(null), color="#222222", linestyle="--", linewidth=1, label="matched, images shuffled"
            )
        axes.axhline(0, color="#c8ccd2", linewidth=0.8, zorder=0)
        axes.set_title(f"{arm}, mean {mean(direct):.2f}" if direct else f"{arm}, no mean", fontsize=9)
        axes.set_xlabel("channel, sorted")
        axes.set_ylim(-0.5, 1)
    panels[0].set_ylabel("correlation")
    figure.legend(
        *panels[0].get_legend_handles_labels(), loc="outside upper left", ncols=3, fontsize=8, frameon=False
    )
    return png(figure)


def _accuracy(results: Results) -> bytes:
    """Return recombination accuracy against mean correlation, one mark per seed."""
    figure, (axes,) = _panels(1, wide=5.0)
    for index, arm in enumerate(results.arms):
        axes.plot(
            results.known(arm, "direct"),
            results.known(arm, "recombined"),
            MARKS[index % len(MARKS)],
            color=COLORS[index % len(COLORS)],
            label=arm,
            linestyle="none",
        )
    axes.set_xlabel("mean correlation of channels as they stand")
    axes.set_ylabel("recombination accuracy, batch statistics")
    axes.set_ylim(0, 1)
    figure.legend(fontsize=8, frameon=False, loc="outside right upper")
    return png(figure)


def _panels(count: int, wide: float = 2.2) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(max(5.0, wide * count), 3.6), dpi=130, layout="constrained")
    panels = figure.subplots(1, count, sharey=True, squeeze=False)[0]
    for axes in panels:
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    return figure, panels


def _reported(arm: str, metric: str, value: float) -> Reported:
    return Reported(arm, metric, value, "Gygli et al. 2021, App. C.2, Fig. 6")


STUDY = Study(
    title="feature cross-correlation",
    question="Do the channels of compatible extractors correlate on the same images, does correlation without a "
    "permutation go with recombination accuracy, and how much of a matched correlation would chance give?",
    reference=f"{REFERENCE}, App. C.2, Fig. 6",
    arms=ARMS,
    measures=(
        Measure(name="direct", title="correlation, channels as they stand"),
        Measure(name="direct-absolute", title="its absolute value", better="none", drawn=False),
        Measure(name="matched", title="correlation, channels matched", better="none"),
        Measure(name="shuffled", title="matched, images shuffled", better="none"),
        Measure(
            name="constant", title="constant channels, at most", unit="channels", better="none", drawn=False
        ),
        Measure(name="recombined", title="recombined, batch statistics"),
        Measure(name="own", title="own task, as trained", drawn=False),
        Measure(name="chance", title="chance", better="none", drawn=False),
    ),
    sizes=PRETRAINED,
    scale=PRETRAINED_SCALE,
    paper=(
        _reported("none", "matched", 0.34),
        _reported("rp", "direct", 0.38),
        _reported("dcc", "direct", 0.19),
        _reported("iiw-pretrained", "direct", 0.69),
        _reported("iiw-pretrained+dcc", "direct", 0.69),
    ),
    run=run,
    extends="none",
    draw=draw,
    data=(*DATA, "fashion-mnist", "cifar100"),
)


@ck.hookimpl
def compatkit_studies(register: Register) -> None:
    """Offer study 3.5."""
    register("3.5", lambda: STUDY)

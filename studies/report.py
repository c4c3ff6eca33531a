"""Table and figure of a recombination study: mean and spread over seeds, every arm beside the others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

PAPER = {"none": 10.6, "iiw": 25.1, "rp": 50.1, "dcc": 65.8, "iiw+rp+dcc": 76.7}
"""Gygli et al., Fig. 2 and Sec. 4: CIFAR-10 and STL-10, ResNet-56, per cent, mean of both directions. Incremental
training gives 72.7 there, over both orders; the arms here are one order each."""


def write_report(
    out: Path,
    runs: Sequence[dict[str, Any]],
    arms: Sequence[str],
    settings: dict[str, Any],
    command: str,
    machine: str,
) -> str:
    """Write ``table.md`` and ``figure.png`` to ``out``; return the table."""
    seeds = sorted({run["seed"] for run in runs})
    lines = [
        f"# Recombination by method: {settings['pair']}",
        "",
        f"{settings['backbone']} cut after {settings['split']}, images {settings['size'][0]} x {settings['size'][1]}, "
        f"{settings['train']} training images a task, {settings['steps']} steps of {settings['batch_size']} a network, "
        f"Adam 0.01; {settings['test']} test images a task; {len(seeds)} seeds. Mean over seeds and both directions, "
        "± standard deviation over seeds of that mean.",
        "",
        f"Command: `{command}`. Machine: {machine}.",
        "",
        "The last column is the paper's, at another scale (CIFAR-10 and STL-10, ResNet-56, 20,000 steps): compare "
        "the order, not the figures.",
        "",
        "| arm | own task | recombined: batch statistics | one way | other way | re-estimated | running | paper |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for arm in arms:
        mine = [run for run in runs if run["arm"] == arm]
        if mine:
            lines.append(_row(arm, mine))
    _figure(out / "figure.png", runs, arms, settings)
    text = "\n".join(lines) + "\n"
    (out / "table.md").write_text(text)
    return text


def accuracies(run: dict[str, Any], policy: str, own: bool) -> list[float]:
    """Return the accuracies of one run: of the networks as trained, or of the two recombinations."""
    return [
        cell["accuracy"]
        for cell in run["cells"]
        if cell["policy"] == policy and (cell["extractor"] == cell["head"]) == own
    ]


def _row(arm: str, runs: Sequence[dict[str, Any]]) -> str:
    crossed = [accuracies(run, "batch", own=False) for run in runs]
    columns = [
        _spread([mean(accuracies(run, "batch", own=True)) for run in runs]),
        "**" + _spread([mean(pair) for pair in crossed]) + "**",
        _spread([pair[0] for pair in crossed]),
        _spread([pair[1] for pair in crossed]),
        _spread([mean(accuracies(run, "reestimate", own=False)) for run in runs]),
        _spread([mean(accuracies(run, "running", own=False)) for run in runs]),
        f"{PAPER[arm]:.1f} %" if arm in PAPER else "",
    ]
    return f"| {arm} | " + " | ".join(columns) + " |"


def _spread(values: Sequence[float]) -> str:
    return f"{mean(values):.3f}" + (f" ± {stdev(values):.3f}" if len(values) > 1 else "")


def _figure(
    path: Path, runs: Sequence[dict[str, Any]], arms: Sequence[str], settings: dict[str, Any]
) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.add_subplot()
    for place, arm in enumerate(arms):
        mine = [run for run in runs if run["arm"] == arm]
        for policy, colour, shift in (("batch", "#0072B2", -0.12), ("running", "#E69F00", 0.12)):
            values = [mean(accuracies(run, policy, own=False)) for run in mine]
            axes.plot([place + shift] * len(values), values, "o", color=colour, alpha=0.5, markersize=5)
            if values:
                axes.plot(
                    [place + shift - 0.1, place + shift + 0.1],
                    [mean(values)] * 2,
                    color=colour,
                    linewidth=2.5,
                )
        own = [mean(accuracies(run, "batch", own=True)) for run in mine]
        if own:
            axes.plot(
                [place - 0.3, place + 0.3], [mean(own)] * 2, color="#555555", linewidth=1, linestyle="--"
            )
    chance = mean(cell["chance"] for run in runs for cell in run["cells"])
    axes.axhline(chance, color="#999999", linewidth=0.8)
    axes.text(len(arms) - 0.6, chance + 0.01, "chance", ha="right", va="bottom", fontsize=8, color="#555555")
    axes.set_xlim(-0.6, len(arms) - 0.4)
    axes.set_xticks(range(len(arms)), arms, rotation=20, ha="right")
    axes.set_ylim(0, 1)
    axes.set_ylabel("accuracy")
    axes.set_title(
        f"Recombined networks, {settings['pair']}: every dot a seed, mean of both directions", fontsize=10
    )
    for label, colour in (("batch statistics", "#0072B2"), ("running statistics", "#E69F00")):
        axes.plot([], [], "o", color=colour, label=label)
    axes.plot([], [], color="#555555", linestyle="--", linewidth=1, label="own task, not recombined")
    figure.legend(loc="outside lower center", ncols=3, fontsize=8, frameon=False)
    FigureCanvasAgg(figure).print_png(str(path))

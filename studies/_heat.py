"""Heat maps of similarity of layers, one an arm: means over seeds."""

from __future__ import annotations

import numpy as np

from compatkit.experiments.studies import Results
from compatkit.reports.pictures import png


def heat_maps(results: Results, key: str = "matrix") -> bytes:
    """Return a PNG with a map an arm, three beside each other; lines are between encoder, latent variables and decoder.

    Rows are layers of the arm's network, columns those of the one that it is compared with.

    Args:
        results: Results with ``layers`` and a matrix of layers by layers; -1 stands for an undefined cell.
        key: Key of the matrix.
    """
    from matplotlib.figure import Figure

    arms = [arm for arm in results.arms if any(key in run for run in results.figure_data(arm))]
    across = min(len(arms), 3)
    down = -(-len(arms) // across)
    figure = Figure(figsize=(3.1 * across + 0.6, 3.3 * down), dpi=130, layout="constrained")
    grid = figure.subplots(down, across, squeeze=False)
    for axes in grid.flat[len(arms) :]:
        axes.set_visible(False)
    for index, arm in enumerate(arms):
        runs = [run for run in results.figure_data(arm) if key in run]
        values = np.mean([run[key] for run in runs], axis=0)
        axes = grid.flat[index]
        drawn = axes.imshow(np.ma.masked_less(values, -0.5), cmap="magma", vmin=0, vmax=1)
        names = [layer.rpartition(".")[2] for layer in runs[0]["layers"]]
        axes.set_xticks(range(values.shape[1]), names[: values.shape[1]], rotation=90, fontsize=6)
        axes.set_yticks(range(values.shape[0]), names[: values.shape[0]], fontsize=6)
        for border in _borders(runs[0]["layers"]):
            axes.axhline(border, color="white", linewidth=0.8)
            axes.axvline(border, color="white", linewidth=0.8)
        axes.set_xlim(-0.5, values.shape[1] - 0.5)
        axes.set_ylim(values.shape[0] - 0.5, -0.5)
        axes.set_title(arm, fontsize=9)
        axes.set_ylabel("this network", fontsize=7)
        axes.set_xlabel("the network beside it", fontsize=7)
        if index == 0:
            figure.colorbar(drawn, ax=grid.ravel().tolist(), shrink=0.8, aspect=30, label="CKA")
    return png(figure)


def _borders(layers: list[str]) -> list[float]:
    kinds = [name.partition(".")[0] if "." in name else "latent" for name in layers]
    kinds[0] = "encoder" if layers[0] == "input" else kinds[0]
    return [index - 0.5 for index in range(1, len(kinds)) if kinds[index] != kinds[index - 1]]

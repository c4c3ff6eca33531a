"""Heat maps of similarity of layers, one an arm: means over seeds."""

from __future__ import annotations

import numpy as np

from compatkit.experiments.studies import Results
from compatkit.reports.pictures import png


def heat_maps(results: Results, key: str = "matrix") -> bytes:
    """Return a PNG with a map an arm; the lines are between encoder, latent variables and decoder.

    Args:
        results: Of runs that kept ``layers``, and a matrix of layers by layers; -1 stands for an undefined cell.
        key: Of the matrix.
    """
    from matplotlib.figure import Figure

    there = [arm for arm in results.arms if any(key in one for one in results.kept(arm))]
    figure = Figure(figsize=(3.1 * len(there), 3.4), dpi=130, layout="constrained")
    for place, arm in enumerate(there, 1):
        kept = [one for one in results.kept(arm) if key in one]
        values = np.mean([one[key] for one in kept], axis=0)
        axes = figure.add_subplot(1, len(there), place)
        drawn = axes.imshow(np.ma.masked_less(values, -0.5), cmap="magma", vmin=0, vmax=1)
        names = [one.rpartition(".")[2] for one in kept[0]["layers"]]
        axes.set_xticks(range(values.shape[1]), names[: values.shape[1]], rotation=90, fontsize=6)
        axes.set_yticks(range(values.shape[0]), names[: values.shape[0]], fontsize=6)
        for border in _borders(kept[0]["layers"]):
            axes.axhline(border, color="white", linewidth=0.8)
            axes.axvline(border, color="white", linewidth=0.8)
        axes.set_xlim(-0.5, values.shape[1] - 0.5)
        axes.set_ylim(values.shape[0] - 0.5, -0.5)
        axes.set_title(arm, fontsize=9)
        if place == len(there):
            figure.colorbar(drawn, ax=axes, shrink=0.8, label="CKA")
    return png(figure)


def _borders(layers: list[str]) -> list[float]:
    kinds = [name.partition(".")[0] if "." in name else "latent" for name in layers]
    kinds[0] = "encoder" if layers[0] == "input" else kinds[0]
    return [place - 0.5 for place in range(1, len(kinds)) if kinds[place] != kinds[place - 1]]

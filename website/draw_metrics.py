"""Drawings of the pages of metrics."""

from __future__ import annotations

import numpy as np
from sketch import BLUE, GRAY, GREEN, ORANGE, Sheet

from compatkit.reports.drawing import MUTED_COLOR


def stable_rank() -> Sheet:
    """Stable rank: four equal singular values count as four, one strong one as little more than one."""
    sheet = Sheet(7.2, 2.3)
    for number, values in enumerate(([1, 1, 1, 1], [1, 0.3, 0.2, 0.1])):
        axes = sheet.plot((0.6 + number * 3.4, 0.5, 2.8, 1.3))
        found = float(np.square(values).sum() / np.square(values).max())
        axes.bar(range(1, 5), values, color=("#dfe8fb", "#fbe7dc")[number], edgecolor=(BLUE, ORANGE)[number])
        axes.set_title(f"rank 4, stable rank {found:.2f}", fontsize=9)
        axes.set_xticks(range(1, 5))
        axes.set_xlabel("singular values", fontsize=8, color=MUTED_COLOR)
        axes.set_ylim(0, 1.1)
    return sheet


def mutual_neighbors() -> Sheet:
    """Mutual neighbors: of the three nearest samples in two layers, two are the same."""
    sheet = Sheet(7.2, 2.6)
    layers = (
        {"a": (0.8, 0.3), "b": (-0.4, 0.9), "c": (-0.8, -0.5), "d": (1.9, -0.9), "e": (-2.0, 0.7)},
        {"a": (-0.6, 0.6), "b": (0.7, 0.8), "d": (0.5, -0.8), "c": (-1.9, -0.8), "e": (2.0, -0.3)},
    )
    nearest = [sorted(points, key=lambda name, at=points: np.hypot(*at[name]))[:3] for points in layers]
    for number, points in enumerate(layers):
        axes = sheet.plot((0.3 + number * 3.5, 0.35, 3.1, 1.9))
        axes.plot(0, 0, "*", color=GRAY, markersize=13)
        for name, (x, y) in points.items():
            near, both = name in nearest[number], all(name in names for names in nearest)
            if near:
                axes.plot(
                    [0, x], [0, y], "-" if both else ":", color=GREEN if both else ORANGE, linewidth=1.5
                )
            axes.plot(x, y, "o", color=GREEN if near and both else ORANGE if near else GRAY, markersize=7)
            axes.text(x + 0.12, y + 0.12, name, fontsize=9)
        axes.set_xlim(-2.5, 2.5)
        axes.set_ylim(-1.4, 1.4)
        axes.set_xticks([])
        axes.set_yticks([])
        axes.set_title(f"layer {'XY'[number]}", fontsize=9)
    shared = len(set(nearest[0]) & set(nearest[1]))
    sheet.words(3.6, 0.15, f"3 nearest of the star: {shared} in both (solid lines), so {shared}/3", size=8.5)
    return sheet


def permuted() -> Sheet:
    """Scores before training: with the labels as given, and with permuted ones."""
    sheet = Sheet(7.2, 2.6)
    scores = {  # the table of docs/how_to/choosing.md: three sources, then permuted labels of the first
        "logme": (0.270, 0.150, 0.025, -0.226),
        "h_score": (6.56, 5.81, 4.88, 1.22),
        "leep": (-0.91, -1.46, -2.04, -2.20),
        "nce": (-0.90, -1.36, -2.03, -2.16),
    }
    names = ("MNIST", "upside down", "Fashion-MNIST", "permuted labels")
    for number, (metric, values) in enumerate(scores.items()):
        axes = sheet.plot((0.55 + number * 1.72, 0.98, 1.3, 1.25))
        bars = axes.bar(
            range(4), values, color=["#dfe8fb"] * 3 + ["#fbe7dc"], edgecolor=[BLUE] * 3 + [ORANGE]
        )
        bars[3].set_hatch("///")
        axes.set_title(metric, fontsize=9)
        axes.set_xticks(range(4), names, rotation=38, ha="right", fontsize=7)
        axes.axhline(0, color=GRAY, linewidth=0.8)
    return sheet

"""Drawings of the pages of methods."""

from __future__ import annotations

import numpy as np
from sketch import BLUE, GRAY, GREEN, ORANGE, PURPLE, Sheet

from compatkit.reports.drawing import MUTED_COLOR


def shared_head() -> Sheet:
    """DCC: one shared head classifies the common classes on all extractors."""
    sheet = Sheet(7.2, 2.7)
    for y, name in ((2.1, "a"), (0.6, "b")):
        sheet.words(0.55, y, f"images\nof {name}", size=8.5)
        sheet.arrow((0.95, y), (1.35, y))
        sheet.box(2.05, y, f"extractor $f_{name}$", BLUE, width=1.4)
        sheet.arrow((2.75, y), (5.1, y), ORANGE)
        sheet.box(5.8, y, f"head $h_{name}$", ORANGE, width=1.4)
        sheet.words(6.88, y, f"classes\nof {name}", size=8)
        sheet.arrow((2.75, y), (3.45, 1.35 + (0.13 if y > 1 else -0.13)), GREEN)
    sheet.box(4.3, 1.35, "shared head $c$\n(published too)", GREEN, width=1.7, height=0.56)
    sheet.arrow((5.15, 1.35), (6.0, 1.35), GREEN)
    sheet.words(6.6, 1.35, "common\nclasses", size=8)
    return sheet


def rotation_views() -> Sheet:
    """Rotation prediction: four views in one batch, one shared head; the task's head sees the upright one."""
    sheet = Sheet(7.2, 2.7)
    image = np.full((7, 7), 0.93)
    image[1:6, 2] = image[1, 2:5] = image[3, 2:4] = 0.25
    for turns in range(4):
        y = 2.35 - turns * 0.62
        axes = sheet.figure.add_axes((0.35 / 7.2, (y - 0.24) / 2.7, 0.48 / 7.2, 0.48 / 2.7))
        axes.imshow(np.rot90(image, turns), cmap="gray", vmin=0, vmax=1)
        axes.set_xticks([])
        axes.set_yticks([])
        sheet.words(1.1, y, f"{90 * turns}°", size=8.5, color=MUTED_COLOR)
        sheet.arrow((1.3, y), (1.95, 1.42 + (1.5 - turns) * 0.1), BLUE)
    sheet.box(2.75, 1.42, "extractor $f_t$\none batch", BLUE, width=1.5, height=0.7)
    sheet.arrow((3.5, 1.6), (4.55, 2.1), ORANGE)
    sheet.words(3.85, 2.1, "upright only,\nown pass", size=7.5, color=MUTED_COLOR)
    sheet.box(5.25, 2.15, "head $h_t$", ORANGE, width=1.35)
    sheet.words(6.55, 2.15, "class", size=8.5)
    sheet.arrow((3.5, 1.24), (4.55, 0.75), GREEN)
    sheet.words(3.85, 0.8, "all four", size=7.5, color=MUTED_COLOR)
    sheet.box(5.25, 0.7, "shared head $s$", GREEN, width=1.35)
    sheet.words(6.55, 0.7, "angle", size=8.5)
    return sheet


def reverse_pass() -> Sheet:
    """Reverse pass: forward through the layers, back through their transposes; states are compared."""
    sheet = Sheet(7.2, 2.5)
    places = (0.7, 2.6, 4.5, 6.4)
    for number, x in enumerate(places, 1):
        sheet.box(x, 1.95, f"$d_{number}$", BLUE, width=0.8)
        sheet.box(x, 0.75, f"$d'_{number}$" if number < 4 else "$d_4$", PURPLE, width=0.8)
        sheet.words(x + 0.06, 1.35, "compare" if number < 4 else "same", size=8, ha="left", color=MUTED_COLOR)
        sheet.arrow((x, 1.68), (x, 1.02), GRAY, dashed=True)
    for number in range(3):
        left, right = places[number] + 0.4, places[number + 1] - 0.4
        sheet.arrow((left, 1.95), (right, 1.95), BLUE, text=f"$M_{number + 1} d + b_{number + 1}$")
        sheet.arrow(
            (right, 0.75), (left, 0.75), PURPLE, text=f"$M_{number + 1}^T(d' - b_{number + 1})$", above=-0.17
        )
    sheet.words(0.7, 2.35, "images", size=8, color=MUTED_COLOR)
    sheet.words(6.4, 2.35, "output", size=8, color=MUTED_COLOR)
    sheet.words(3.6, 0.2, "the same weights both ways: no parameter is added", size=8.5, color=MUTED_COLOR)
    return sheet


def colorization() -> Sheet:
    """Colorization: the head is applied window by window to the features of a gray image."""
    sheet = Sheet(7.2, 2.3)
    ramp = np.add.outer(np.linspace(0.2, 0.6, 16), np.linspace(0.1, 0.3, 16))
    axes = sheet.figure.add_axes((0.25 / 7.2, 0.75 / 2.3, 1.0 / 7.2, 1.0 / 2.3))
    axes.imshow(ramp, cmap="gray", vmin=0, vmax=1)
    axes.set_xticks([])
    axes.set_yticks([])
    sheet.words(0.75, 0.5, "gray image", size=8, color=MUTED_COLOR)
    sheet.arrow((1.3, 1.25), (1.65, 1.25))
    sheet.box(2.35, 1.25, "extractor $f_t$", BLUE, width=1.35)
    sheet.arrow((3.03, 1.25), (3.35, 1.25))
    for row in range(4):
        for column in range(4):
            chosen = (row, column) == (1, 2)
            sheet.box(
                3.6 + column * 0.26,
                1.64 - row * 0.26,
                "",
                GREEN if chosen else GRAY,
                width=0.24,
                height=0.24,
            )
    sheet.words(4.0, 0.5, "windows of the features", size=8, color=MUTED_COLOR)
    sheet.arrow((4.3, 1.38), (4.85, 1.25), GREEN)
    sheet.box(5.5, 1.25, "shared head $s$", GREEN, width=1.25)
    sheet.arrow((6.13, 1.25), (6.4, 1.25), GREEN)
    sheet.words(6.78, 1.25, "color bins\nof the cell", size=8)
    return sheet


def data_dependent_init() -> Sheet:
    """Data-dependent initialization: channels of different mean and width get one mean and variance 1."""
    sheet = Sheet(7.2, 2.4)
    values = np.linspace(-4, 4, 400)
    channels = ((-1.6, 0.4, "-"), (0.3, 1.1, "--"), (2.0, 0.7, ":"))
    for number, title in enumerate(("as drawn", "after: mean 0, deviation 1")):
        axes = sheet.plot((0.5 + number * 3.4, 0.55, 2.9, 1.4))
        axes.set_title(title, fontsize=9, color=MUTED_COLOR)
        axes.set_yticks([])
        axes.set_xlabel("output of a channel on the data", fontsize=8, color=MUTED_COLOR)
        for color, (mean, deviation, style) in zip((BLUE, ORANGE, GREEN), channels, strict=True):
            m, s = (mean, deviation) if not number else (0.0, 1.0)
            axes.plot(values, np.exp(-(((values - m) / s) ** 2) / 2) / s, style, color=color, linewidth=1.6)
    return sheet


def gradual_unfreezing() -> Sheet:
    """Gradual unfreezing: the class layer first, each stage below it a fixed number of steps later."""
    sheet = Sheet(7.2, 2.3)
    axes = sheet.plot((1.35, 0.5, 5.5, 1.6))
    names = ("stem", "layer1", "layer2", "layer3", "class layer")
    for place in range(len(names)):
        start = (len(names) - 1 - place) * 100
        axes.barh(place, 600 - start, left=start, height=0.55, color="#dcf1e2", edgecolor=GREEN)
        axes.barh(place, start, height=0.55, color="#eceef1", edgecolor=GRAY, hatch="///", linewidth=0.6)
        axes.text(590, place, "learns", ha="right", va="center", fontsize=8)
    axes.set_yticks(range(len(names)), names)
    axes.set_xlabel("step (every = 100); hatched: fixed", fontsize=8, color=MUTED_COLOR)
    axes.set_xlim(0, 600)
    return sheet


def annealed_capacity() -> Sheet:
    """Annealed VAE: the capacity rises from 0 during the first steps."""
    sheet = Sheet(7.2, 2.2)
    axes = sheet.plot((0.8, 0.5, 6.1, 1.5))
    axes.plot([0, 100, 300], [0, 25, 25], color=BLUE, linewidth=1.8)
    axes.fill_between([0, 100, 300], [0, 25, 25], color="#dfe8fb")
    axes.text(190, 12, r"the loss is $\gamma\,|KL - C(t)|$", fontsize=9, ha="center")
    axes.set_xlabel("step t in thousands (steps = 100,000)", fontsize=8, color=MUTED_COLOR)
    axes.set_ylabel("C(t), nats", fontsize=8, color=MUTED_COLOR)
    axes.axvline(100, color=PURPLE, linestyle="--", linewidth=1)
    axes.set_xlim(0, 300)
    axes.set_ylim(0, 30)
    return sheet

"""Drawings of the pages that explain: contract, verdict, ladder, policy, evidence, cut, versions."""

from __future__ import annotations

from sketch import BLUE, GRAY, GREEN, ORANGE, PURPLE, Sheet

from compatkit.reports.drawing import MUTED_COLOR


def contract_check() -> Sheet:
    """Two contracts are compared level by level, without reading a weight."""
    sheet = Sheet(7.2, 3.5)
    sheet.box(1.1, 3.1, "extractor's contract", BLUE, width=1.9)
    sheet.box(6.1, 3.1, "head's contract", ORANGE, width=1.9)
    levels = (
        ("structural", "shape, layout, dtype, range", "may refuse"),
        ("data", "preprocessing, class names", "warns"),
        ("protocol", "normalization, shared weights and heads", "promises"),
        ("statistical", "mean and deviation by channel", "warns"),
        ("empirical", "accuracy that was measured", "decides"),
    )
    for number, (level, what, does) in enumerate(levels):
        y = 2.45 - number * 0.5
        sheet.box(3.6, y, f"{level}: {what}", GRAY, width=3.9, height=0.38, size=8.5)
        sheet.arrow((0.9, y), (1.62, y), BLUE)
        sheet.arrow((6.3, y), (5.58, y), ORANGE)
        sheet.words(6.75, y, does, size=8.5, color=MUTED_COLOR)
    for x, color in ((0.9, BLUE), (6.3, ORANGE)):
        sheet.axes.plot([x, x], [2.85, 0.45], color=color, linewidth=1.4)
    return sheet


def verdict() -> Sheet:
    """A verdict is three answers; one word is derived from them."""
    sheet = Sheet(7.2, 2.9)
    answers = (
        ("wiring", "refused\nneeds-adapter\ndirect", BLUE),
        ("promise", "none\nshared-init\nshared-head\none-network", GREEN),
        ("evidence", "none, stale, undecided\nchance, weak\ncompatible, perfect", PURPLE),
    )
    for number, (name, values, color) in enumerate(answers):
        x = 1.25 + number * 2.35
        sheet.box(x, 2.6, name, color, width=2.0, height=0.36)
        sheet.words(x, 1.95, values, size=8.5)
        sheet.arrow((x, 1.5), (3.6 + (number - 1) * 0.9, 0.98), color)
    sheet.box(
        3.6,
        0.66,
        "★ perfect   ✓ compatible   ◔ weak   ◇ promised   ? undecided\n"
        "≟ unproven   ⇄ adaptable   ○ incompatible   ✕ refused",
        GRAY,
        width=6.2,
        height=0.6,
    )
    sheet.words(
        3.6, 0.16, "one word for a table; the three answers stay beside it", size=8, color=MUTED_COLOR
    )
    return sheet


def ladder() -> Sheet:
    """The rungs of a bridge, from cheap to expensive."""
    sheet = Sheet(7.2, 3.1)
    rungs = (
        ("direct", "nothing", BLUE),
        ("statistics", "unlabeled images", BLUE),
        ("permutation,\nprocrustes", "unlabeled images", BLUE),
        ("ridge,\nridge3x3", "unlabeled images", BLUE),
        ("absorbed,\nstitch", "unlabeled images", GREEN),
        ("stitch-labels,\nfinetune", "labels", ORANGE),
    )
    for number, (name, needs, color) in enumerate(rungs):
        x, y = 0.75 + number * 1.13, 0.72 + number * 0.36
        sheet.box(x, y, name, color, width=1.06, height=0.46, size=8)
        sheet.words(x, y - 0.34, needs, size=7, color=MUTED_COLOR)
    sheet.arrow((0.3, 0.12), (6.9, 0.12), GRAY)
    sheet.words(3.6, 0.25, "seconds", size=8, color=MUTED_COLOR)
    sheet.words(
        1.75,
        2.7,
        "each is judged on held-out images\nby agreement with the head's own network",
        size=8.5,
        color=MUTED_COLOR,
    )
    return sheet


def policy() -> Sheet:
    """A new version is measured with the released parts before it is published."""
    sheet = Sheet(7.2, 2.9)
    for number, version in enumerate(("1.0.0", "1.1.0")):
        sheet.box(0.9 + number * 1.4, 2.4, version, BLUE, width=1.05)
    sheet.arrow((1.43, 2.4), (1.77, 2.4), BLUE)
    sheet.box(3.9, 2.4, "candidate", GRAY, width=1.2, dashed=True)
    sheet.arrow((2.83, 2.4), (3.3, 2.4), BLUE, dashed=True)
    for number in range(3):
        sheet.box(
            2.7 + number * 1.2,
            1.25,
            f"released\nhead {'ABC'[number]}",
            ORANGE,
            width=1.0,
            height=0.52,
            size=8,
        )
        sheet.arrow((3.9, 2.14), (2.7 + number * 1.2, 1.53), GRAY)
    sheet.words(1.05, 1.25, "measured with every\nreleased head of the line", size=8.5, color=MUTED_COLOR)
    sheet.box(6.25, 2.4, "1.2.0\nevery head within tolerance", GREEN, width=1.75, height=0.62, size=8)
    sheet.box(6.25, 0.4, "refused as 1.2.0;\nmay come out as 2.0.0", PURPLE, width=1.75, height=0.62, size=8)
    sheet.arrow((4.5, 2.4), (5.37, 2.4), GREEN, text="passes")
    sheet.arrow((5.5, 0.98), (5.95, 0.72), PURPLE)
    sheet.words(5.98, 1.02, "fails", size=8, color=MUTED_COLOR)
    return sheet


def evidence_states() -> Sheet:
    """The states of a cell of a matrix, and what moves it from one to the other."""
    sheet = Sheet(7.2, 2.5)
    sheet.box(1.1, 1.9, "missing", GRAY, dashed=True)
    sheet.box(3.9, 1.9, "measured", GREEN)
    sheet.box(6.1, 1.9, "stale", ORANGE, dashed=True)
    sheet.box(1.1, 0.55, "barred", PURPLE)
    sheet.arrow((1.85, 1.9), (3.15, 1.9), GREEN, text="--fill missing")
    sheet.arrow((4.65, 2.0), (5.35, 2.0), ORANGE)
    sheet.arrow((5.35, 1.8), (4.65, 1.8), GREEN)
    sheet.words(5.0, 2.35, "images, metric or\nbound changed", size=7.5, color=MUTED_COLOR)
    sheet.words(5.0, 1.53, "--fill stale", size=7.5, color=MUTED_COLOR)
    sheet.arrow((3.6, 1.65), (4.2, 1.65), GREEN, bend=0.9)
    sheet.words(
        3.9, 1.12, "--fill all: the new figure is kept beside the old one", size=7.5, color=MUTED_COLOR
    )
    sheet.words(
        4.35,
        0.55,
        "the parts cannot be wired, or share no class with the images:\nnothing can be measured",
        size=8,
        color=MUTED_COLOR,
    )
    return sheet


def cut() -> Sheet:
    """A cut divides a network after one module; head(extractor(x)) is the network bit for bit."""
    sheet = Sheet(7.2, 2.1)
    names = ("conv1", "layer1", "layer2", "layer3", "pool", "fc")
    for number, name in enumerate(names):
        x = 0.95 + number * 1.06 + (0.25 if number > 2 else 0)
        color = BLUE if number < 3 else ORANGE
        sheet.box(x, 1.25, name, color, width=0.8)
        if number not in (0, 3):
            sheet.arrow((x - 0.66, 1.25), (x - 0.4, 1.25), color)
    sheet.arrow((0.15, 1.25), (0.55, 1.25), GRAY)
    sheet.words(0.27, 1.45, "image", size=8, color=MUTED_COLOR)
    sheet.arrow((6.9, 1.25), (7.15, 1.25), GRAY)
    sheet.arrow((3.47, 1.25), (3.98, 1.25), GRAY)
    sheet.axes.plot([3.73, 3.73], [0.55, 2.0], color=PURPLE, linewidth=1.6, linestyle="--")
    sheet.words(3.73, 0.32, "cut after layer2: port features, 32 x 8 x 8", size=8.5, color=MUTED_COLOR)
    sheet.words(2.0, 1.8, "extractor", size=10)
    sheet.words(5.5, 1.8, "head", size=10)
    return sheet


def version_step() -> Sheet:
    """What changed decides the least step to the next version."""
    sheet = Sheet(7.2, 2.5)
    sheet.box(0.95, 1.25, "1.4.2", BLUE, width=1.1)
    steps = (
        ("PATCH", "1.4.3", "title, tags, a record of the run: no check reads it", GREEN),
        ("MINOR", "1.5.0", "new weights that keep a promise; statistics measured anew", ORANGE),
        ("MAJOR", "2.0.0", "new weights without a promise; ports that partners lose", PURPLE),
    )
    for number, (step, version, what, color) in enumerate(steps):
        y = 2.05 - number * 0.8
        sheet.box(2.75, y, version, color, width=1.0)
        sheet.arrow((1.5, 1.25), (2.25, y), color)
        sheet.words(3.4, y + 0.13, step, ha="left", weight="bold")
        sheet.words(3.4, y - 0.13, what, ha="left", size=8.5, color=MUTED_COLOR)
    return sheet

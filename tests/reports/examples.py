"""Matrices to report on: two data sets of digits, a crowd of parts, and names that mean harm."""

from __future__ import annotations

import hashlib
import math
import random

from compatkit.contracts.evidence import Cell, Figure, Part
from compatkit.contracts.grades import Grade
from compatkit.reports.matrix import Matrix

DIGITS = tuple("0123456789")
SETTINGS = {"normalisation": "batch", "batch_size": 256, "seed": 0, "precision": "float32"}
HOSTILE = (
    "<script>alert(1)</script>",
    "\"><img src=x onerror='alert(2)'>",
    "a|b`c*d_e\\f[g](javascript:alert(3))",
    "line\nbreak\u2028more\x1b[31mred",
    "\u202egnp.exe\u202c \u05e9\u05dc\u05d5\u05dd",
    "x" * 500,
    "=HYPERLINK(1)</script><!--{{ 7*7 }}{% raw %}[bold]$\\alpha$ & \ud800",
)


def figure(accuracy: float, count: int) -> Figure:
    """Return a figure with its Wilson interval, z = 1.96 (Wilson 1927)."""
    correct = round(accuracy * count)
    p, z = correct / count, 1.959964
    middle = (p + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(p * (1 - p) / count + z * z / (4 * count * count))
    return Figure(p, correct, count, max(0.0, middle - half), min(1.0, middle + half))


def part(reference: str, kind: str, summary: dict[str, str] | None = None) -> Part:
    """Return a row or column with digests made from its name."""
    digest = hashlib.sha256(reference.encode("utf-8", "replace")).hexdigest()
    return Part(reference, f"sha256:{digest}", f"value:sha256:{digest[::-1]}", kind, summary or {})


def measured(
    extractor: str,
    head: str,
    accuracy: float,
    grade: Grade,
    *,
    bound: float,
    own: bool = False,
    count: int = 10000,
) -> Cell:
    """Return a measured cell of ten common classes."""
    restricted, best, chance = figure(accuracy, count), figure(bound, count), 0.1135
    gap = restricted.accuracy - best.accuracy
    return Cell(
        extractor,
        head,
        wiring="direct",
        promise="shared-head" if grade == "compatible" else "none",
        grade=grade,
        restricted=restricted,
        unrestricted=restricted,
        chance=chance,
        bound=best,
        recovered=(restricted.accuracy - chance) / (best.accuracy - chance),
        difference=(gap, gap) if own else (gap - 0.007, gap + 0.007),
        common=DIGITS,
        settings={**SETTINGS, "data": f"data:sha256:{'ab' * 32}", "metric": "accuracy 1", "own": own},
        findings=()
        if own
        else (
            "normalization-needed (protocol, informs): both parts need batch statistics of the images",
            "head-shared (protocol, promises): both were trained against the auxiliary head dcc",
        ),
    )


SUMMARY = {
    "network": "resnet20_cifar up to layer2",
    "built by": "timm 1.0.20",
    "parameters": "69,344",
    "takes": "image: N x 1 x H x W (NCHW, float32)",
    "gives": "features: N x 32 x (H + 1) // 2 x (W + 1) // 2 (NCHW, float32, nonnegative)",
    "images": "32 x 32 L, mean 0.1307, std 0.3081",
    "bn_policy": "batch statistics",
    "trained against initial weights": "tensors:sha256:5b1c0d9e8f7a",
    "trained against auxiliary head dcc": "tensors:sha256:0a9b8c7d6e5f",
    "trained on": "mnist/train",
}


def digits() -> Matrix:
    """Return MNIST and USPS: own pairs, one compatible, one at chance."""
    m, u = "digits/mnist.extractor@1.0.0", "digits/usps.extractor@1.0.0"
    mh, uh = "digits/mnist.head@1.0.0", "digits/usps.head@1.2.0"
    return Matrix(
        (part(m, "extractor", SUMMARY), part(u, "extractor", {**SUMMARY, "trained on": "usps/train"})),
        (part(mh, "head", {**SUMMARY, "classes": ", ".join(DIGITS)}), part(uh, "head", SUMMARY)),
        (
            measured(m, mh, 0.973, "perfect", bound=0.973, own=True),
            measured(m, uh, 0.881, "compatible", bound=0.973),
            measured(u, mh, 0.083, "chance", bound=0.951, count=2007),
            measured(u, uh, 0.951, "perfect", bound=0.951, own=True, count=2007),
        ),
        SETTINGS,
    )


def digits_and_more() -> Matrix:
    """Return the digits with heads that need an adapter, are refused, or share no class."""
    small = digits()
    u, m = small.extractors[1].reference, small.extractors[0].reference
    heads = [part(name, "head", SUMMARY) for name in ("wide/svhn.head@2.1.0", "cifar/animals.head@1.0.0")]
    why = "the head takes 128 channels and the features have 32; the adapter `project` would fit them"
    cells = (
        Cell(
            m,
            heads[0].reference,
            "needs-adapter",
            "none",
            "none",
            reason=why,
            findings=("channels-differ: 32, 128",),
        ),
        Cell(
            u, heads[0].reference, "refused", "none", "none", reason="the head takes a vector of class tokens"
        ),
        Cell(
            m,
            heads[1].reference,
            "direct",
            "shared-init",
            "none",
            reason="the images and the head have no common class",
        ),
        measured(u, heads[1].reference, 0.31, "undecided", bound=0.951, count=61),
    )
    return Matrix(small.extractors, (*small.heads, *heads), (*small.cells, *cells), small.settings)


def crowd(size: int, seed: int = 0) -> Matrix:
    """Return a square matrix of many parts with every verdict in it."""
    draw = random.Random(seed)
    rows = [f"zoo/domain-{i:02d}.extractor@1.{i % 4}.0" for i in range(size)]
    columns = [f"zoo/domain-{i:02d}.head@1.{i % 3}.0" for i in range(size)]
    cells: list[Cell] = []
    for i, row in enumerate(rows):
        bound = 0.9 + draw.random() * 0.09
        for j, column in enumerate(columns):
            luck = draw.random()
            if i == j:
                cells.append(measured(row, column, bound, "perfect", bound=bound, own=True))
            elif luck < 0.06:
                cells.append(
                    Cell(row, column, "needs-adapter", "none", "none", reason="32 channels against 64")
                )
            elif luck < 0.08:
                cells.append(Cell(row, column, "refused", "none", "none", reason="a vector against a map"))
            elif luck < 0.3:
                cells.append(measured(row, column, 0.08 + luck / 8, "chance", bound=bound))
            elif luck < 0.36:
                cells.append(measured(row, column, 0.15 + luck / 8, "undecided", bound=bound))
            elif luck > 0.97:
                cells.append(measured(row, column, bound - 0.002, "perfect", bound=bound))
            elif luck > 0.4:
                cells.append(measured(row, column, 0.3 + luck / 2, "compatible", bound=bound))
    return Matrix(
        tuple(part(entry, "extractor", SUMMARY) for entry in rows),
        tuple(part(entry, "head", SUMMARY) for entry in columns),
        tuple(cells),
        SETTINGS,
    )


def hostile() -> Matrix:
    """Return a matrix whose every text tries to break out of its format."""
    rows = [f"{name}#{i}" for i, name in enumerate(HOSTILE)]
    evil = {name: name for name in HOSTILE}
    cells = [
        Cell(
            row,
            column,
            wiring="direct",
            promise="none",
            grade="compatible",
            restricted=figure(0.5, 100),
            bound=figure(0.9, 100),
            chance=0.1,
            common=HOSTILE,
            settings={**evil, "own": False},
            findings=HOSTILE,
        )
        if (i + j) % 2
        else Cell(row, column, HOSTILE[i], HOSTILE[j], "none", reason=HOSTILE[i], findings=HOSTILE)
        for i, row in enumerate(rows)
        for j, column in enumerate(rows)
    ]
    return Matrix(
        tuple(part(entry, entry, evil) for entry in rows),
        tuple(part(entry, entry, evil) for entry in rows),
        tuple(cells),
        evil,
    )

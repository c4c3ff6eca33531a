"""The heat map: it decodes, its size follows the matrix, and drawing it changes nothing elsewhere."""

from __future__ import annotations

import io
import re

import attrs
import numpy as np
import pytest
from PIL import Image

from compatkit.reports import heatmap
from compatkit.reports.drawing import shade
from compatkit.reports.heatmap import render
from compatkit.reports.matrix import Matrix

from . import examples


def one_cell() -> Matrix:
    small = examples.digits()
    return Matrix(small.extractors[:1], small.heads[:1], small.cells[:1], small.settings)


def nothing_measured() -> Matrix:
    small = examples.digits()
    return Matrix(small.extractors, small.heads, ())


@pytest.mark.parametrize(
    ("make", "least", "most"),
    [
        (one_cell, (800, 300), (1400, 700)),
        (examples.digits, (1000, 450), (1800, 900)),
        (examples.digits_and_more, (1300, 450), (2400, 1000)),
        (nothing_measured, (900, 400), (1800, 900)),
        (examples.hostile, (1200, 900), (2600, 2000)),
        (lambda: examples.crowd(18), (1500, 1300), (2600, 2400)),
        (lambda: Matrix((), (), ()), (500, 150), (1400, 700)),
    ],
)
def test_a_picture_decodes_and_has_a_sensible_size(make, least, most):
    picture = Image.open(io.BytesIO(render(make())))
    picture.load()
    assert picture.format == "PNG"
    for side in (0, 1):
        assert least[side] <= picture.size[side] <= most[side]


def test_good_cells_are_darker_than_bad_ones():
    matrix = examples.digits()
    gray = np.asarray(Image.open(io.BytesIO(render(matrix))).convert("L"))
    assert gray[:20].min() == 255  # Nothing runs over the edge.
    assert gray[:, -20:].min() == 255 and gray[:, :20].min() == 255
    levels = [sum(int(shade(step / 20)[0][i : i + 2], 16) for i in (1, 3, 5)) for step in range(21)]
    assert levels == sorted(levels, reverse=True) and len(set(levels)) == 21


def test_drawing_touches_no_global_state():
    import matplotlib
    from matplotlib import _pylab_helpers

    before = dict(matplotlib.rcParams)
    render(examples.digits())
    assert dict(matplotlib.rcParams) == before
    assert not _pylab_helpers.Gcf.figs


def test_the_same_matrix_gives_the_same_bytes():
    assert render(examples.digits()) == render(examples.digits())


def test_settings_are_broken_between_and_never_cut():
    settings = {
        "bridge": ["ridge in 2 cells"],
        "batch_size": 256,
        "precision": "float32",
        "fill": "missing",
        "cells": {"taken": 0, "measured": 4},
    }
    lines = heatmap._notes(Matrix([], [], [], settings), 40)
    assert lines[-2:] == ["bridge ridge in 2 cells, batch size 256,", "precision float32"], (
        "nor what was newly measured"
    )


@pytest.mark.parametrize("rows", [2, 20])
def test_the_legend_has_no_figure(rows: int) -> None:
    crowd = examples.crowd(rows)
    lines = " ".join(heatmap._notes(attrs.evolve(crowd, cells=()), 60))
    assert "accuracy" in lines and not re.search(r"\.\d", lines)


def test_text_on_every_shade_has_contrast() -> None:
    def light(color: str) -> float:
        parts = [int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        red, green, blue = (
            part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
        )
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    for step in range(1001):
        dark, bright = sorted(map(light, shade(step / 1000)))
        assert (bright + 0.05) / (dark + 0.05) >= 4.5, step

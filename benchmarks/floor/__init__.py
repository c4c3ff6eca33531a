"""The floor: work that compatkit should do as fast as the best other way, with the goal of each row.

A row names a function of a script of this folder, ``FUNCTION(rounds)``. It measures both contestants by turns in one
process and returns a figure for each round: ours divided by the rival's, or what ours adds. Rows that need a GPU are
left out where there is none; their functions also take the size of the work (``gpu_size``).
"""

from __future__ import annotations

from floor import commands, gpu, growth, images, measuring, registry, training
from floor.row import Figure, Row

__all__ = ["AREAS", "ROWS", "Figure", "Row"]
AREAS = {
    "Training": training.ROWS,
    "Measuring": measuring.ROWS,
    "Images": images.ROWS,
    "Registry": registry.ROWS,
    "Growth": growth.ROWS,
    "Command line": commands.ROWS,
    "On a GPU": gpu.ROWS,
}
"""Rows by heading of the page."""
ROWS = tuple(row for rows in AREAS.values() for row in rows)

"""Grades of the evidence of a pair."""

from __future__ import annotations

from typing import Literal

Grade = Literal["none", "stale", "undecided", "chance", "weak", "compatible", "perfect"]

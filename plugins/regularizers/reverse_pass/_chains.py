"""What other plugins share of the reverse pass: chains, a layer undone, and what a network sees of its images again."""

from __future__ import annotations

from .chain import chain_of
from .full import OUTPUTS, Walk, reconstruct
from .local import wide
from .stages import Parts, Stage, modules_of, run
from .undoing import again, step_back

__all__ = [
    "OUTPUTS",
    "Parts",
    "Stage",
    "Walk",
    "again",
    "chain_of",
    "modules_of",
    "reconstruct",
    "run",
    "step_back",
    "wide",
]

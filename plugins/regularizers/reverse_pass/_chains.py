"""Parts of the reverse pass that other plugins use: chains, reversed layers, reconstructions."""

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

"""Parts of the reverse pass that other plugins use: chains, reversed layers, reconstructions."""

from __future__ import annotations

from .chain import chain_of
from .full import OUTPUTS, Walk, names_of, pairs, reconstruct
from .local import residual, wide
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
    "names_of",
    "pairs",
    "reconstruct",
    "residual",
    "run",
    "step_back",
    "wide",
]

"""What other plugins share of the reverse pass: chains, a layer undone, and what a network sees of its images again."""

from __future__ import annotations

from compatkit_plugins.regularizers.reverse_pass.chain import chain_of
from compatkit_plugins.regularizers.reverse_pass.full import OUTPUTS, Walk, reconstruct
from compatkit_plugins.regularizers.reverse_pass.local import wide
from compatkit_plugins.regularizers.reverse_pass.stages import Parts, Stage, modules_of, run
from compatkit_plugins.regularizers.reverse_pass.undoing import again, step_back

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

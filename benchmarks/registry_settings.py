"""Settings of the registry's benchmark, from its command line."""

from __future__ import annotations

from pathlib import Path

import attrs


@attrs.frozen
class Settings:
    """Settings of a measurement.

    Attributes:
        folder: Temporary folder, removed at the end.
        rounds: Turns of each contestant.
        seed: Seed of the order of turns.
        versions: Number of versions in the large registry.
        network: Classifier of timm.
        cut: Cut before the class layer.
    """

    folder: Path
    rounds: int
    seed: int
    versions: int
    network: str
    cut: str

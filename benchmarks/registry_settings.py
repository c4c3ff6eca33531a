"""Settings of the registry's benchmark, from its command line."""

from __future__ import annotations

from pathlib import Path

import attrs


@attrs.frozen
class Given:
    """Settings of a measurement.

    Attributes:
        folder: Temporary; is removed at the end.
        rounds: How often each contestant has its turn.
        seed: Seed of the order of turns.
        versions: In the large registry.
        network: A classifier of timm.
        cut: Cut before the class layer.
    """

    folder: Path
    rounds: int
    seed: int
    versions: int
    network: str
    cut: str

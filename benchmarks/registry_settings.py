"""What the command line of the registry's benchmark says."""

from __future__ import annotations

from pathlib import Path

import attrs


@attrs.frozen
class Given:
    """What is measured, and where.

    Attributes:
        folder: Temporary; is removed at the end.
        rounds: How often each contestant has its turn.
        seed: Of the order of turns.
        versions: In the large registry.
        network: A classifier of timm.
        cut: Where it is cut; nothing but the class layer comes after.
    """

    folder: Path
    rounds: int
    seed: int
    versions: int
    network: str
    cut: str

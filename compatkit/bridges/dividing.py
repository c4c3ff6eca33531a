"""Which images are fitted on, which are held out to choose by, and on which features are paired."""

from __future__ import annotations

import attrs
import numpy as np

from compatkit.bridges.rungs import On
from compatkit.data.split import Split
from compatkit.errors import DataError

HELD_OUT = 500
"""Images that agreement is measured on at most; half of those given where there are fewer."""
LEAST = 20
"""Images without labels: ten to fit on, and ten to choose by."""


def divided(data: Split, images: int, seed: int) -> tuple[Split, Split]:
    """Return images to fit on and images to choose by, drawn apart.

    Raises:
        DataError: There are too few.
    """
    if len(data) < LEAST:
        raise DataError(
            f"{data.name} has {len(data)} images; a bridge needs {LEAST} at least, half of them to choose by."
        )
    plain = data.unlabelled()
    order = np.random.default_rng(seed).permutation(len(data))
    held = min(HELD_OUT, len(data) // 2)
    return plain.take(order[held : held + images]), plain.take(order[:held])


def pairing(fit: Split, other: Split | None, images: int, on: On, seed: int) -> Split:
    """Return the images on which features are paired.

    Args:
        fit: Images of the extractor's domain.
        other: Images of the head's domain, or None.
        images: How many of the head's at most, where they stand alone.
        on: Where features are paired; ``"mix"`` takes as many of both, however few the head's are.
        seed: Of the draw.
    """
    if other is None:
        return fit
    plain = other.unlabelled()
    order = np.random.default_rng(seed).permutation(len(plain))
    if on == "dst":
        return plain.take(order[:images])
    half = min(len(fit) // 2, len(plain))
    size, channels = fit.size, fit.channels
    theirs = plain.take(order[:half]).converted(channels).resized(size)
    both = np.concatenate([fit.images[:half], theirs.images])
    return attrs.evolve(
        fit, images=both, labels=np.zeros(len(both), dtype=np.int64), name=f"{fit.name}+{plain.name}"
    )

"""The names of the rungs, in the order in which they are climbed: from the cheapest to the dearest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from compatkit.errors import UsageError, suggest

RUNGS: dict[str, str] = {
    "direct": "as it is, with stored statistics",
    "statistics": "the head's statistics estimated anew",
    "permutation": "channels permuted",
    "procrustes": "a rotation of the channels",
    "ridge": "a linear map of the channels",
    "ridge-procrustes": "the same, shrunk to the rotation",
    "ridge3x3": "a 3x3 convolution",
    "absorbed": "the head's first layers refitted, nothing added",
    "stitch": "a linear map, trained towards the logits of the head's own network",
    "stitch-labels": "a linear map, trained with labels",
    "finetune": "a linear map and the whole head, trained with labels",
    "infomax": "the head's first layers and norms, trained to answer surely and evenly",
}
"""What each is, in words."""
LABELLED = frozenset({"stitch-labels", "finetune"})
"""Rungs that need labels."""
ON_REQUEST = frozenset({"infomax"})
"""Rungs that are climbed only where they are named: they do harm where classes are unbalanced."""
UNFITTED = frozenset({"direct", "statistics"})
"""Rungs that fit nothing to features."""
TRAINED = frozenset({"stitch", "stitch-labels", "finetune", "infomax"})
"""Rungs that are trained step by step; where that cannot be done, the others stand all the same."""
TAUGHT = frozenset({"stitch"})
"""Rungs that were trained to answer as the head's own network does: their agreement says more than they are worth."""
ADAPTERS = ("permutation", "procrustes", "ridge", "ridge-procrustes", "ridge3x3", "stitch")
"""Rungs without labels that put an adapter between the parts and leave both as they are."""
BEST = "best"
"""For a matrix: statistics alone, and those adapters in closed form; the one that agrees most."""
On = Literal["src", "dst", "mix"]


def chosen_rungs(names: Sequence[str] | None, labelled: bool) -> list[str]:
    """Return the rungs to climb, in their order.

    Args:
        names: Asked for; None takes all but those on request, and those that need labels where there are none.
        labelled: Whether there are labels.

    Raises:
        UsageError: A name is no rung, or a rung needs labels that there are not.
    """
    if names is None:
        return [one for one in RUNGS if one not in ON_REQUEST and (labelled or one not in LABELLED)]
    if isinstance(names, str) or not isinstance(names, Sequence):
        raise UsageError(f"rungs= expects a list of names, got {names!r:.80}.")
    for name in names:
        if not isinstance(name, str) or name not in RUNGS:
            hint = suggest(name, RUNGS)
            raise UsageError(
                f"No rung is called {name!r:.80}; known are {', '.join(RUNGS)}.{hint}", subject=name
            )
        if name in LABELLED and not labelled:
            raise UsageError(
                f"The rung {name} is trained with labels; pass labels= (--labels), images with their classes."
            )
    if not names:
        raise UsageError(f"There is no rung to climb; known are {', '.join(RUNGS)}.")
    return [one for one in RUNGS if one in set(names)]

"""Which rung to take of those that were climbed, and why."""

from __future__ import annotations

from collections.abc import Sequence

from compatkit.components.bridges.judging import rises
from compatkit.components.bridges.results import Step
from compatkit.components.bridges.rungs import LABELLED, TAUGHT
from compatkit.errors import IncompatibleError


def choose(steps: Sequence[Step]) -> Step:
    """Return the step to take: the highest agreement corrected for chance, the cheaper of equals.

    A rung that was trained to agree is taken only where there is no other: it comes to share the mistakes of the head's
    own network on these images. A rung that was trained with labels is taken where it is right more often than the best
    other on labelled images that neither was fitted to, beyond what so few images leave open: what it learnt from them,
    the head's own network may not know.

    Raises:
        IncompatibleError: Every rung was left out; says why.
    """
    there = [one for one in steps if one.agreed is not None]
    if not there:
        told = "\n".join(f"{one.rung}: {one.note}" for one in steps)
        raise IncompatibleError(f"No rung could be climbed:\n{told}")
    learnt = [one for one in there if one.rung in LABELLED]
    free = [one for one in there if one not in learnt]
    if not free:
        return max(learnt, key=_right)
    best = max([one for one in free if one.rung not in TAUGHT] or free, key=_agrees)
    taught = max(learnt, key=_right, default=None)
    if taught is None or taught.right is None or best.right is None:
        return best
    return taught if rises(taught.right, best.right) else best


def reason(chosen: Step, steps: Sequence[Step]) -> str:
    """Return what decided where labels did; empty where agreement did."""
    if chosen.rung not in LABELLED or chosen.checked is None:
        return ""
    found, best = chosen.checked.figure, [one for one in steps if one.rung not in LABELLED and one.checked]
    beside = ""
    if best:
        other = max(best, key=_right)
        share = other.checked.figure.accuracy if other.checked is not None else 0.0
        beside = f", where {other.rung} reaches {share:.3f}"
    return (
        f"Labels decided for {chosen.rung}: it is right on {found.accuracy:.3f} of {found.count:,} labelled images "
        f"that nothing was fitted to ({found.low:.3f} to {found.high:.3f}){beside} and one answer to all "
        f"{chosen.checked.chance:.3f}. By this it is judged, and not by its agreement."
    )


def _agrees(step: Step) -> tuple[float, float]:
    return step.agreed.rank if step.agreed is not None else (0.0, 0.0)


def _right(step: Step) -> float:
    return step.checked.figure.accuracy if step.checked is not None else 0.0

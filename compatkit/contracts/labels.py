"""The classes of a check: which of those asked for does the head know, and which only look as if it did?"""

from __future__ import annotations

from collections.abc import Sequence

from compatkit.contracts.classes import common, look_alikes
from compatkit.contracts.contract import Label
from compatkit.contracts.spelling import strange
from compatkit.contracts.verdict import Finding

SHOWN = 12
"""More classes than this are counted, not named."""
ALIKE = 3
KEPT, KEPT_CLASSES = 512, 500_000
"""Comparisons that are remembered, and classes in all of them; pairs with the same head and data need only one."""

Labels = tuple[Label, ...]
Pairs = tuple[tuple[int, int], ...]

_known: dict[tuple[int, int, str], tuple[Labels, Labels, tuple[Finding, ...], Pairs]] = {}


def label_findings(asked: Labels, outputs: Labels, *, head: str = "the head") -> tuple[Finding, ...]:
    """Return what differs between the classes of the data asked for and those of a head.

    Args:
        asked: Classes of the data.
        outputs: Classes of the head, in the order of its outputs.
        head: Whose they are, for messages.

    Raises:
        DataError: Two classes of one side have one name, or a class means the same as two of the other side.
    """
    return _remembered(asked, outputs, head)[2]


def shared_classes(asked: Labels, outputs: Labels, *, head: str = "the head") -> Pairs:
    """Return the pairs of indices of classes that both have, in the order of ``asked``; see ``data.classes.common``.

    Raises:
        DataError: As for ``label_findings``.
    """
    return _remembered(asked, outputs, head)[3]


def _remembered(
    asked: Labels, outputs: Labels, head: str
) -> tuple[Labels, Labels, tuple[Finding, ...], Pairs]:
    # By identity: hashing a thousand labels takes longer than all the rest of a check. What is compared is kept
    # beside the result, so that no other object can get its identity.
    key = id(asked), id(outputs), head
    found = _known.get(key)
    if found is None:
        held = sum(len(one[0]) + len(one[1]) for one in list(_known.values()))
        if len(_known) >= KEPT or held > KEPT_CLASSES:
            _known.clear()
        pairs = tuple(
            common(asked, outputs, whose=("the classes of the data asked for", f"the classes of {head}"))
        )
        found = _known[key] = asked, outputs, _compared(asked, outputs, pairs), pairs
    return found


def names(labels: Sequence[Label]) -> str:
    """Return the first names, and how many there are in all where that is not all of them."""
    if not labels:
        return "no named classes"
    shown = ", ".join(one.name for one in labels[:SHOWN])
    return shown + (f", ... ({len(labels)} classes)" if len(labels) > SHOWN else "")


def _compared(asked: Labels, outputs: Labels, pairs: Pairs) -> tuple[Finding, ...]:
    if len(pairs) == len(asked) == len(outputs):
        return ()
    whose = "classes of the data asked for, classes of the head"
    alike = _alike(asked, outputs, look_alikes(asked, outputs, pairs))
    if not pairs:
        remedy = "accuracy is not defined; choose data with a class of the head, or rename equal classes"
        disjoint = Finding("labels-disjoint", "data", "warns", names(asked), names(outputs), whose, remedy)
        return disjoint, *alike
    counted = names([asked[index] for index, _ in pairs])
    remedy = f"only the {len(pairs)} classes in common are counted: {counted}"
    partial = Finding("labels-partial", "data", "informs", names(asked), names(outputs), whose, remedy)
    return partial, *alike


def _alike(asked: Labels, outputs: Labels, pairs: Sequence[tuple[int, int]]) -> tuple[Finding, ...]:
    if not pairs:
        return ()
    more = f" and {len(pairs) - ALIKE} more" if len(pairs) > ALIKE else ""
    wanted = ", ".join(_written(asked[place]) for place, _ in pairs[:ALIKE])
    came = ", ".join(_written(outputs[place]) for _, place in pairs[:ALIKE])
    return (
        Finding(
            "labels-look-alike",
            "data",
            "warns",
            wanted + more,
            came + more,
            "classes of the data asked for, classes of the head: they look the same and are other characters",
            "rename one side if they mean the same class; nothing is taken as equal by its looks",
        ),
    )


def _written(label: Label) -> str:
    """Return a name with the characters in it that may deceive."""
    odd = strange("".join((label.name, *label.same_as)))
    return f"{label.name!r}" + (f" ({odd})" if odd else "")

"""Class names that mean the same: the alias table, and matching the classes of two data sets by name.

Only true synonyms are here: a pickup truck is a truck, but not every truck is a pickup truck.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

from compatkit.contract import Label
from compatkit.errors import DataError

SYNONYMS: tuple[tuple[str, ...], ...] = (
    ("airplane", "aeroplane", "plane"),
    ("automobile", "car", "auto", "motorcar"),
    ("bicycle", "bike"),
    ("couch", "sofa"),
    ("keyboard", "computer_keyboard"),
    ("lawn_mower", "lawnmower"),
    ("motorcycle", "motorbike"),
    ("streetcar", "tram"),
    ("sweet_pepper", "bell_pepper"),
    ("television", "tv"),
    ("trouser", "trousers"),
    ("truck", "lorry"),
    ("0", "zero", "0 - zero"),
    ("1", "one", "1 - one"),
    ("2", "two", "2 - two"),
    ("3", "three", "3 - three"),
    ("4", "four", "4 - four"),
    ("5", "five", "5 - five"),
    ("6", "six", "6 - six"),
    ("7", "seven", "7 - seven"),
    ("8", "eight", "8 - eight"),
    ("9", "nine", "9 - nine"),
)


def _spelling(name: str) -> str:
    """Return ``name`` without differences in case, spaces, underscores and Unicode composition."""
    return " ".join(unicodedata.normalize("NFC", name).casefold().replace("_", " ").split())


_GROUPS = {_spelling(name): group for group in SYNONYMS for name in group}


def same_as(name: str) -> tuple[str, ...]:
    """Return the other names of this class in the alias table, in its order; ``()`` where there are none."""
    own = _spelling(name)
    return tuple(other for other in _GROUPS.get(own, ()) if _spelling(other) != own)


def label(name: str) -> Label:
    """Return the class as a contract keeps it: its name, with the names that mean the same."""
    return Label(name, same_as(name))


def common(a: Sequence[str] | Sequence[Label], b: Sequence[str] | Sequence[Label]) -> list[tuple[int, int]]:
    """Return the pairs of indices of classes that both have, in the order of ``a``.

    Two classes are the same where any of their names are, through the alias table and through the names
    that a ``Label`` brings; case, spaces and underscores make no difference.

    Raises:
        DataError: A class fits two classes of the other side.
    """
    left, right = [_names(one) for one in a], [_names(one) for one in b]
    pairs = [(i, j) for i, mine in enumerate(left) for j, theirs in enumerate(right) if mine & theirs]
    for side, classes, others in ((0, a, b), (1, b, a)):
        taken: dict[int, int] = {}
        for pair in pairs:
            if pair[side] in taken:
                twice = [_shown(others[taken[pair[side]]]), _shown(others[pair[1 - side]])]
                raise DataError(
                    f"Class {_shown(classes[pair[side]])} means the same as both {' and '.join(twice)}; a "
                    "class can have one partner only. Merge the two, or rename one of them."
                )
            taken[pair[side]] = pair[1 - side]
    return pairs


def _names(one: str | Label) -> frozenset[str]:
    given = (one,) if isinstance(one, str) else (one.name, *one.same_as)
    return frozenset(_spelling(name) for own in given for name in (own, *same_as(own)))


def _shown(one: str | Label) -> str:
    return repr(one if isinstance(one, str) else one.name)

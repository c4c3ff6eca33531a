"""Class names that mean the same: the alias table, and matching the classes of two data sets by name.

Only true synonyms are here: a pickup truck is a truck, but not every truck is a pickup truck.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from compatkit.arguments import named
from compatkit.contracts.contract import Label
from compatkit.contracts.spelling import skeleton, spelling
from compatkit.errors import DataError

Classes = Sequence[str] | Sequence[Label]

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

_GROUPS = {spelling(name): group for group in SYNONYMS for name in group}
_MEANS = {spelling(name): spelling(group[0]) for group in SYNONYMS for name in group}
"""Every name of the table to the one that stands for its group."""


def same_as(name: str) -> tuple[str, ...]:
    """Return the other names of this class in the alias table, in its order; ``()`` where there are none."""
    own = spelling(name)
    return tuple(other for other in _GROUPS.get(own, ()) if spelling(other) != own)


@named
def label(name: str) -> Label:
    """Return the class as a contract keeps it: its name, with the names that mean the same."""
    return Label(name, same_as(name))


def known_classes(
    names: Sequence[str], known: Sequence[Label], *, whose: tuple[str, str]
) -> list[tuple[int, int]]:
    """Return the classes of images with the outputs that mean the same, as ``common``; none where none does.

    Args:
        names: Classes of the images.
        known: Labels of the outputs.
        whose: The images' name, and the owner of the outputs, for messages.

    Raises:
        DataError: Two classes have one name, or one means the same as two of the other side.
    """
    return common(tuple(map(label, names)), known, whose=(f"the classes of {whose[0]}", whose[1]))


def common(
    a: Classes, b: Classes, *, whose: tuple[str, str] = ("the first classes", "the second classes")
) -> list[tuple[int, int]]:
    """Return the pairs of indices of classes that both have, in the order of ``a``.

    Two classes are the same where any of their names are, through the alias table and through the names
    that a ``Label`` brings; case, spaces, underscores and Unicode composition make no difference.

    Args:
        a: Class names, or labels.
        b: The same.
        whose: Owners of both, for messages.

    Raises:
        DataError: Two classes of one side have the same name, or a class fits two of the other side.
    """
    left, right = (_meanings(classes, owner) for classes, owner in zip((a, b), whose, strict=True))
    places = _places(right)
    pairs = [(place, one) for place, names in enumerate(left) for one in _partners(names, places)]
    for side, classes, others in ((0, a, b), (1, b, a)):
        taken: dict[int, int] = {}
        for pair in pairs:
            if pair[side] in taken:
                twice = [_shown(others[taken[pair[side]]]), _shown(others[pair[1 - side]])]
                raise DataError(
                    f"Class {_shown(classes[pair[side]])} means the same as both {' and '.join(twice)} (of "
                    f"{whose[1 - side]}); a class can have one partner only. Merge the two, or rename one of them."
                )
            taken[pair[side]] = pair[1 - side]
    return pairs


def look_alikes(a: Classes, b: Classes, pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the pairs of indices of classes that look the same and are not, in the order of ``a``.

    Two names look the same where their skeletons are equal: a Cyrillic letter looks like a Latin one, a
    zero-width space like nothing. Only classes without a partner on the other side are looked at.

    Args:
        a: Class names, or labels.
        b: The same.
        pairs: What ``common`` gave for them.
    """
    if _plain(a) and _plain(b):
        return []
    mine, theirs = ({pair[side] for pair in pairs} for side in (0, 1))
    places = _places(map(_forms, b))
    return [
        (place, partner)
        for place, one in enumerate(a)
        for partner in _partners(_forms(one), places)
        if place not in mine or partner not in theirs
    ]


def _meanings(classes: Classes, owner: str) -> list[tuple[str, ...]]:
    """Return the names of each class as they are compared, one for each group of synonyms."""
    seen: dict[str, int] = {}
    found: list[tuple[str, ...]] = []
    for place, one in enumerate(classes):
        name, others = (one, ()) if isinstance(one, str) else (one.name, one.same_as)
        own = spelling(name)
        first = seen.setdefault(own, place)
        if first != place:
            raise DataError(
                f"Two of {owner} have one name: number {first + 1}, {_shown(classes[first])}, and number {place + 1}, "
                f"{name!r} (case, spaces and underscores make no difference). Rename one of them, so that it is "
                "known which is meant."
            )
        meant = _MEANS.get(own, own)
        found.append(_all_meant(meant, others) if others else (meant,))
    return found


def _all_meant(meant: str, others: Sequence[str]) -> tuple[str, ...]:
    spelled = map(spelling, others)
    return tuple({meant: None} | {_MEANS.get(one, one): None for one in spelled})


def _places(classes: Iterable[tuple[str, ...]]) -> dict[str, list[int]]:
    """Return where each name stands."""
    found: dict[str, list[int]] = {}
    for place, names in enumerate(classes):
        for name in names:
            if name in found:
                found[name].append(place)
            else:
                found[name] = [place]
    return found


def _partners(names: tuple[str, ...], places: Mapping[str, list[int]]) -> Sequence[int]:
    if len(names) == 1:
        return places.get(names[0], ())
    return sorted({one for name in names for one in places.get(name, ())})


def _plain(classes: Classes) -> bool:
    return all(
        one.isascii() if isinstance(one, str) else one.name.isascii() and all(map(str.isascii, one.same_as))
        for one in classes
    )


def _forms(one: str | Label) -> tuple[str, ...]:
    names = (one,) if isinstance(one, str) else (one.name, *one.same_as)
    return tuple({_MEANS.get(form, form): None for form in map(skeleton, names)})


def _shown(one: str | Label) -> str:
    return repr(one if isinstance(one, str) else one.name)

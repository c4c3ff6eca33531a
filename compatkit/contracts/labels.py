"""Class names: comparison, synonyms, and the findings of a check about them.

Case, spaces, underscores and Unicode composition are ignored. Look-alike letters of other scripts are different names;
``skeleton`` finds them so that a check can warn. The synonym table holds only true synonyms: a pickup truck is a truck,
but not every truck is a pickup truck.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

from compatkit.contracts.contract import Label
from compatkit.contracts.report import Finding
from compatkit.errors import DataError
from compatkit.foundation.arguments import checks_arguments

_CYRILLIC = (
    ("\u0410\u0430\u0412\u0415\u0435\u0405\u0455\u0406\u0456\u0408\u0458\u041a", "AaBEeSsIiJjK"),
    ("\u041c\u041d\u04bb\u041e\u043e\u0420\u0440\u0421\u0441\u0422\u0423\u0443", "MHhOoPpCcTYy"),
    ("\u04ae\u0425\u0445\u0501\u051a\u051b\u051c\u051d\u0474\u0475\u04c0\u04cf", "YXxdQqWwVvIl"),
)
_GREEK = (
    ("\u0391\u03b1\u0392\u03b3\u0395\u0396\u0397\u0399\u03b9\u03f3\u037f\u039a", "AaByEZHIijJK"),
    ("\u03ba\u039c\u039d\u03bd\u039f\u03bf\u03a1\u03c1\u03a4\u03c5\u03a5\u03a7", "kMNvOoPpTuYX"),
    ("\u03c7\u03f2\u03f9", "xcC"),
)
_OTHERS = (
    ("\u0131\u0251\u0261\u2010\u2011\u2012\u2013\u2014\u2015\u2212\u2018\u2019", "iag-------''"),
    ("\u02bc", "'"),
)
_LOOK_LATIN = {
    ord(one): latin
    for alphabet in (_CYRILLIC, _GREEK, _OTHERS)
    for strange_ones, known in alphabet
    for one, latin in zip(strange_ones, known, strict=True)
}
"""A small part of Unicode's table of confusables (UTS 39): letters that look Latin in nearly every font, and dashes.

Width and style variants need no entry: compatibility decomposition (NFKD) removes them.
"""
NAMED = 4
"""Most characters named in a message; further ones are counted."""


@lru_cache(maxsize=2**16)  # the parts of one task name the same classes
def spelling(name: str) -> str:
    """Return ``name`` normalized for case, spaces, underscores and Unicode composition."""
    if name.isascii():
        return " ".join(name.lower().replace("_", " ").split())
    folded = unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())
    return " ".join(folded.replace("_", " ").split())


@lru_cache(maxsize=2**16)
def skeleton(name: str) -> str:
    """Return the normalized visual form of ``name``: Latin for look-alikes, without invisible characters."""
    if name.isascii():
        return spelling(name)
    # Map before decomposing, too: some look-alikes decompose into letters that are not.
    decomposed = unicodedata.normalize("NFKD", name.translate(_LOOK_LATIN)).translate(_LOOK_LATIN)
    return spelling("".join(one for one in decomposed if not _invisible(one)))


def strange(name: str) -> str:
    """Return the non-ASCII characters of ``name`` by code point and Unicode name; ``""`` if there are none."""
    found = list(dict.fromkeys(one for one in name if not one.isascii()))
    named = [f"U+{ord(one):04X} {unicodedata.name(one, 'without a name')}" for one in found[:NAMED]]
    return ", ".join(named) + (f" and {len(found) - NAMED} more" if len(found) > NAMED else "")


def _invisible(one: str) -> bool:
    """Return whether a character is a format character, a variation selector or the grapheme joiner."""
    return unicodedata.category(one) == "Cf" or "\ufe00" <= one <= "\ufe0f" or one == "\u034f"


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
"""Representative of the synonym group of each name in the table."""


def same_as(name: str) -> tuple[str, ...]:
    """Return the other names of this class in the synonym table, in its order; ``()`` if there are none."""
    own = spelling(name)
    return tuple(other for other in _GROUPS.get(own, ()) if spelling(other) != own)


@checks_arguments
def label(name: str) -> Label:
    """Return the class as a contract stores it: its name with its synonyms."""
    return Label(name, same_as(name))


def known_classes(
    names: Sequence[str], known: Sequence[Label], *, whose: tuple[str, str]
) -> list[tuple[int, int]]:
    """Match the classes of images with outputs, as ``common``.

    Args:
        names: Classes of the images.
        known: Labels of the outputs.
        whose: Owners of both (images, outputs), for messages.

    Returns:
        Pairs of indices (class, output); empty if none match.

    Raises:
        DataError: Two classes have the same name, or one matches two of the other side.
    """
    return common(tuple(map(label, names)), known, whose=(f"the classes of {whose[0]}", whose[1]))


def common(
    a: Classes, b: Classes, *, whose: tuple[str, str] = ("the first classes", "the second classes")
) -> list[tuple[int, int]]:
    """Return index pairs of the classes that both sides have, in the order of ``a``.

    Two classes match if any of their names do, using the synonym table and the names of each ``Label``; case, spaces,
    underscores and Unicode composition are ignored.

    Args:
        a: Class names, or labels.
        b: The same for the other side.
        whose: Owners of both, for messages.

    Raises:
        DataError: Two classes of one side have the same name, or a class matches two of the other side.
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
                    f"{whose[1 - side]}); it must match only one. Merge the two, or rename one of them."
                )
            taken[pair[side]] = pair[1 - side]
    return pairs


def look_alikes(a: Classes, b: Classes, pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return index pairs of classes that look alike but differ, in the order of ``a``.

    Two names look alike if their skeletons are equal: a Cyrillic letter looks Latin, a zero-width space is invisible.
    Only classes without a match on the other side are compared.

    Args:
        a: Class names, or labels.
        b: The same for the other side.
        pairs: Result of ``common``.
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
    """Return the normalized names of each class, one per synonym group."""
    seen: dict[str, int] = {}
    found: list[tuple[str, ...]] = []
    for place, one in enumerate(classes):
        name, others = (one, ()) if isinstance(one, str) else (one.name, one.same_as)
        own = spelling(name)
        first = seen.setdefault(own, place)
        if first != place:
            raise DataError(
                f"Two of {owner} have the same name: number {first + 1}, {_shown(classes[first])}, and number "
                f"{place + 1}, {name!r} (case, spaces and underscores are ignored). Rename one of them."
            )
        meant = _MEANS.get(own, own)
        found.append(_all_meant(meant, others) if others else (meant,))
    return found


def _all_meant(meant: str, others: Sequence[str]) -> tuple[str, ...]:
    spelled = map(spelling, others)
    return tuple({meant: None} | {_MEANS.get(one, one): None for one in spelled})


def _places(classes: Iterable[tuple[str, ...]]) -> dict[str, list[int]]:
    """Return the indices of each name."""
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


SHOWN = 12
"""Most classes named in a message; further ones are counted."""
ALIKE = 3
KEPT, KEPT_CLASSES = 512, 500_000
"""Cache limits: comparisons, and classes in all of them. Pairs with the same head and data share one comparison."""

Labels = tuple[Label, ...]
Pairs = tuple[tuple[int, int], ...]

_known: dict[tuple[int, int, str], tuple[Labels, Labels, tuple[Finding, ...], Pairs]] = {}


def label_findings(asked: Labels, outputs: Labels, *, head: str = "the head") -> tuple[Finding, ...]:
    """Return the findings about the classes of the requested data and those of a head.

    Args:
        asked: Classes of the data.
        outputs: Classes of the head, in the order of its outputs.
        head: Name of the head, for messages.

    Raises:
        DataError: Two classes of one side have the same name, or one matches two of the other side.
    """
    return _remembered(asked, outputs, head)[2]


def shared_classes(asked: Labels, outputs: Labels, *, head: str = "the head") -> Pairs:
    """Return index pairs of the classes that both sides have, in the order of ``asked``; see ``common``.

    Args:
        asked: Classes of the images.
        outputs: Classes of the head.
        head: Its name, for messages.

    Raises:
        DataError: As for ``label_findings``.
    """
    return _remembered(asked, outputs, head)[3]


def _remembered(
    asked: Labels, outputs: Labels, head: str
) -> tuple[Labels, Labels, tuple[Finding, ...], Pairs]:
    # Keyed by identity: hashing a thousand labels takes longer than the rest of a check. The objects are kept with the
    # result so that their identities cannot be reused.
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
    """Return the first names, with the total if there are more."""
    if not labels:
        return "no named classes"
    return first_names([one.name for one in labels])


def first_names(classes: Sequence[str]) -> str:
    """Return the first of some names, with the total if there are more."""
    return ", ".join(classes[:SHOWN]) + (f", ... ({len(classes)} classes)" if len(classes) > SHOWN else "")


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
    """Return a name, followed by its non-ASCII characters."""
    odd = strange("".join((label.name, *label.same_as)))
    return f"{label.name!r}" + (f" ({odd})" if odd else "")

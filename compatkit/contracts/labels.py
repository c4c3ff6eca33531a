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
    ord(letter): latin
    for alphabet in (_CYRILLIC, _GREEK, _OTHERS)
    for strange_letters, known in alphabet
    for letter, latin in zip(strange_letters, known, strict=True)
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
    return spelling("".join(character for character in decomposed if not _invisible(character)))


def strange(name: str) -> str:
    """Return the non-ASCII characters of ``name`` by code point and Unicode name; ``""`` if there are none."""
    characters = list(dict.fromkeys(character for character in name if not character.isascii()))
    described = [
        f"U+{ord(character):04X} {unicodedata.name(character, 'without a name')}"
        for character in characters[:NAMED]
    ]
    return ", ".join(described) + (f" and {len(characters) - NAMED} more" if len(characters) > NAMED else "")


def _invisible(character: str) -> bool:
    """Return whether a character is a format character, a variation selector or the grapheme joiner."""
    return (
        unicodedata.category(character) == "Cf" or "\ufe00" <= character <= "\ufe0f" or character == "\u034f"
    )


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
    names: Sequence[str], known: Sequence[Label], *, owners: tuple[str, str]
) -> list[tuple[int, int]]:
    """Match the classes of images with outputs, as ``common``.

    Args:
        names: Classes of the images.
        known: Labels of the outputs.
        owners: Owners of both (images, outputs), for messages.

    Returns:
        Pairs of indices (class, output); empty if none match.

    Raises:
        DataError: Two classes have the same name, or one matches two of the other side.
    """
    return common(tuple(map(label, names)), known, owners=(f"the classes of {owners[0]}", owners[1]))


def common(
    a: Classes, b: Classes, *, owners: tuple[str, str] = ("the first classes", "the second classes")
) -> list[tuple[int, int]]:
    """Return index pairs of the classes that both sides have, in the order of ``a``.

    Two classes match if any of their names do, using the synonym table and the names of each ``Label``; case, spaces,
    underscores and Unicode composition are ignored.

    Args:
        a: Class names, or labels.
        b: The same for the other side.
        owners: Owners of both, for messages.

    Raises:
        DataError: Two classes of one side have the same name, or a class matches two of the other side.
    """
    left, right = (_meanings(classes, owner) for classes, owner in zip((a, b), owners, strict=True))
    places = _places(right)
    pairs = [(place, partner) for place, names in enumerate(left) for partner in _partners(names, places)]
    for side, classes, others in ((0, a, b), (1, b, a)):
        taken: dict[int, int] = {}
        for pair in pairs:
            if pair[side] in taken:
                twice = [_shown(others[taken[pair[side]]]), _shown(others[pair[1 - side]])]
                raise DataError(
                    f"Class {_shown(classes[pair[side]])} means the same as both {' and '.join(twice)} (of "
                    f"{owners[1 - side]}); it must match only one. Merge the two, or rename one of them."
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
    mine, theirs = ({pair[side] for pair in pairs} for side in (0, 1))
    places = _places(map(_forms, b))
    return [
        (place, partner)
        for place, name in enumerate(a)
        for partner in _partners(_forms(name), places)
        if place not in mine or partner not in theirs
    ]


def _meanings(classes: Classes, owner: str) -> list[tuple[str, ...]]:
    """Return the normalized names of each class, one per synonym group."""
    seen: dict[str, int] = {}
    meanings: list[tuple[str, ...]] = []
    for place, known in enumerate(classes):
        name, others = (known, ()) if isinstance(known, str) else (known.name, known.same_as)
        own = spelling(name)
        first = seen.setdefault(own, place)
        if first != place:
            raise DataError(
                f"Two of {owner} have the same name: number {first + 1}, {_shown(classes[first])}, and number "
                f"{place + 1}, {name!r} (case, spaces and underscores are ignored). Rename one of them."
            )
        spelled = (own, *map(spelling, others))
        meanings.append(tuple(dict.fromkeys(_MEANS.get(known_name, known_name) for known_name in spelled)))
    return meanings


def _places(classes: Iterable[tuple[str, ...]]) -> dict[str, list[int]]:
    """Return the indices of each name."""
    places: dict[str, list[int]] = {}
    for place, names in enumerate(classes):
        for name in names:
            places.setdefault(name, []).append(place)
    return places


def _partners(names: tuple[str, ...], places: Mapping[str, list[int]]) -> Sequence[int]:
    return sorted({place for name in names for place in places.get(name, ())})


def _forms(name: str | Label) -> tuple[str, ...]:
    names = (name,) if isinstance(name, str) else (name.name, *name.same_as)
    return tuple({_MEANS.get(form, form): None for form in map(skeleton, names)})


def _shown(name: str | Label) -> str:
    return repr(name if isinstance(name, str) else name.name)


SHOWN = 12
"""Most classes named in a message; further ones are counted."""
ALIKE = 3
KEPT, KEPT_CLASSES = 512, 500_000
"""Cache limits: comparisons, and classes in all of them. Pairs with the same head and data share one comparison."""

Labels = tuple[Label, ...]
Pairs = tuple[tuple[int, int], ...]

_known: dict[tuple[int, int, str], tuple[Labels, Labels, tuple[Finding, ...], Pairs]] = {}


def label_findings(classes: Labels, outputs: Labels, *, head: str = "the head") -> tuple[Finding, ...]:
    """Return the findings about the classes of the requested data and those of a head.

    Args:
        classes: Classes of the data.
        outputs: Classes of the head, in the order of its outputs.
        head: Name of the head, for messages.

    Raises:
        DataError: Two classes of one side have the same name, or one matches two of the other side.
    """
    return _compared_once(classes, outputs, head)[2]


def shared_classes(classes: Labels, outputs: Labels, *, head: str = "the head") -> Pairs:
    """Return index pairs of the classes that both sides have, in the order of ``classes``; see ``common``.

    Args:
        classes: Classes of the images.
        outputs: Classes of the head.
        head: Its name, for messages.

    Raises:
        DataError: As for ``label_findings``.
    """
    return _compared_once(classes, outputs, head)[3]


def _compared_once(
    classes: Labels, outputs: Labels, head: str
) -> tuple[Labels, Labels, tuple[Finding, ...], Pairs]:
    # Keyed by identity: hashing a thousand labels takes longer than the rest of a check. The objects are kept with the
    # result so that their identities cannot be reused.
    key = id(classes), id(outputs), head
    result = _known.get(key)
    if result is None:
        remembered = sum(len(entry[0]) + len(entry[1]) for entry in list(_known.values()))
        if len(_known) >= KEPT or remembered > KEPT_CLASSES:
            _known.clear()
        pairs = tuple(
            common(classes, outputs, owners=("the classes of the data asked for", f"the classes of {head}"))
        )
        result = _known[key] = classes, outputs, _compared(classes, outputs, pairs), pairs
    return result


def names(labels: Sequence[Label]) -> str:
    """Return the first names, with the total if there are more."""
    if not labels:
        return "no named classes"
    return first_names([label.name for label in labels])


def first_names(classes: Sequence[str]) -> str:
    """Return the first of some names, with the total if there are more."""
    return ", ".join(classes[:SHOWN]) + (f", ... ({len(classes)} classes)" if len(classes) > SHOWN else "")


def _compared(classes: Labels, outputs: Labels, pairs: Pairs) -> tuple[Finding, ...]:
    if len(pairs) == len(classes) == len(outputs):
        return ()
    subject = "classes of the data asked for, classes of the head"
    alike = _alike(classes, outputs, look_alikes(classes, outputs, pairs))
    if not pairs:
        remedy = "accuracy is not defined; choose data with a class of the head, or rename equal classes"
        disjoint = Finding(
            "labels-disjoint", "data", "warns", names(classes), names(outputs), subject, remedy
        )
        return disjoint, *alike
    counted = names([classes[index] for index, _ in pairs])
    remedy = f"only the {len(pairs)} classes in common are counted: {counted}"
    partial = Finding("labels-partial", "data", "informs", names(classes), names(outputs), subject, remedy)
    return partial, *alike


def _alike(classes: Labels, outputs: Labels, pairs: Sequence[tuple[int, int]]) -> tuple[Finding, ...]:
    if not pairs:
        return ()
    more = f" and {len(pairs) - ALIKE} more" if len(pairs) > ALIKE else ""
    wanted = ", ".join(_written(classes[place]) for place, _ in pairs[:ALIKE])
    actual = ", ".join(_written(outputs[place]) for _, place in pairs[:ALIKE])
    return (
        Finding(
            "labels-look-alike",
            "data",
            "warns",
            wanted + more,
            actual + more,
            "classes of the data asked for, classes of the head: they look the same and are other characters",
            "rename one side if they mean the same class; nothing is taken as equal by its looks",
        ),
    )


def _written(label: Label) -> str:
    """Return a name, followed by its non-ASCII characters."""
    odd = strange("".join((label.name, *label.same_as)))
    return f"{label.name!r}" + (f" ({odd})" if odd else "")

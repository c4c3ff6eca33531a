"""Class names: comparison, synonyms, and the findings of a check about them.

Case, spaces, underscores and Unicode composition are ignored. Names with look-alike letters of other scripts are
different; a check warns of them with ``skeleton``. The synonym table contains only true synonyms: a pickup truck is a
truck, but not every truck is a pickup truck.
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
_CONFUSABLES = {
    ord(letter): latin
    for alphabet in (_CYRILLIC, _GREEK, _OTHERS)
    for letters, latin_letters in alphabet
    for letter, latin in zip(letters, latin_letters, strict=True)
}
"""Part of Unicode's table of confusables (UTS 39): letters that look Latin in nearly every font, and dashes.

Width and style variants need no entry: compatibility decomposition (NFKD) removes them.
"""
MAX_DESCRIBED = 4
"""Maximal number of characters named in a message; further ones are counted."""


@lru_cache(maxsize=2**16)  # the parts of a task have the same classes
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
    # Map before decomposing, too: some look-alikes decompose into other letters.
    decomposed = unicodedata.normalize("NFKD", name.translate(_CONFUSABLES)).translate(_CONFUSABLES)
    return spelling("".join(character for character in decomposed if not _invisible(character)))


def non_ascii(name: str) -> str:
    """Return the non-ASCII characters of ``name`` by code point and Unicode name; ``""`` if there are none."""
    characters = list(dict.fromkeys(character for character in name if not character.isascii()))
    described = ", ".join(
        f"U+{ord(character):04X} {unicodedata.name(character, 'without a name')}"
        for character in characters[:MAX_DESCRIBED]
    )
    more = len(characters) - MAX_DESCRIBED
    return f"{described} and {more} more" if more > 0 else described


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
_REPRESENTATIVES = {spelling(name): spelling(group[0]) for group in SYNONYMS for name in group}
"""Representative of the synonym group of each name in the table."""


def same_as(name: str) -> tuple[str, ...]:
    """Return the other names of this class in the synonym table, in its order; ``()`` if there are none."""
    own = spelling(name)
    return tuple(other for other in _GROUPS.get(own, ()) if spelling(other) != own)


@checks_arguments
def label(name: str) -> Label:
    """Return the class as a contract stores it: its name with its synonyms."""
    return Label(name, same_as(name))


def match_classes(
    names: Sequence[str], known: Sequence[Label], *, owners: tuple[str, str]
) -> list[tuple[int, int]]:
    """Match the classes of images with the outputs of a head; see ``common``.

    Args:
        names: Classes of the images.
        known: Labels of the outputs.
        owners: Names of images and head, for messages.

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
        a: Class names or labels of the first side.
        b: Class names or labels of the second side.
        owners: Names of both sides, for messages.

    Raises:
        DataError: Two classes of one side have the same name, or a class matches two of the other side.
    """
    left, right = (_meanings(classes, owner) for classes, owner in zip((a, b), owners, strict=True))
    indices = _indices(right)
    pairs = [(index, match) for index, names in enumerate(left) for match in _matches(names, indices)]
    for side, classes, others in ((0, a, b), (1, b, a)):
        matched: dict[int, int] = {}
        for pair in pairs:
            if pair[side] in matched:
                both = [_quoted(others[matched[pair[side]]]), _quoted(others[pair[1 - side]])]
                raise DataError(
                    f"Class {_quoted(classes[pair[side]])} means the same as both {' and '.join(both)} (of "
                    f"{owners[1 - side]}); it must match only one. Merge the two, or rename one of them."
                )
            matched[pair[side]] = pair[1 - side]
    return pairs


def look_alikes(a: Classes, b: Classes, pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return index pairs of classes that look alike but differ, in the order of ``a``.

    Two names look alike if their skeletons are equal: a Cyrillic letter looks Latin, a zero-width space is invisible.
    Only classes without a match on the other side are compared.

    Args:
        a: Class names or labels of the first side.
        b: Class names or labels of the second side.
        pairs: Result of ``common``.
    """
    matched_a, matched_b = ({pair[side] for pair in pairs} for side in (0, 1))
    indices = _indices(map(_skeletons, b))
    return [
        (index, match)
        for index, name in enumerate(a)
        for match in _matches(_skeletons(name), indices)
        if index not in matched_a or match not in matched_b
    ]


def _meanings(classes: Classes, owner: str) -> list[tuple[str, ...]]:
    """Return the normalized names of each class, one per synonym group."""
    seen: dict[str, int] = {}
    meanings: list[tuple[str, ...]] = []
    for index, entry in enumerate(classes):
        name, others = (entry, ()) if isinstance(entry, str) else (entry.name, entry.same_as)
        own = spelling(name)
        first = seen.setdefault(own, index)
        if first != index:
            raise DataError(
                f"Two of {owner} have the same name: number {first + 1}, {_quoted(classes[first])}, and number "
                f"{index + 1}, {name!r} (case, spaces and underscores are ignored). Rename one of them."
            )
        spellings = (own, *map(spelling, others))
        meanings.append(tuple(dict.fromkeys(_REPRESENTATIVES.get(key, key) for key in spellings)))
    return meanings


def _indices(classes: Iterable[tuple[str, ...]]) -> dict[str, list[int]]:
    """Return the indices of the classes with each name."""
    indices: dict[str, list[int]] = {}
    for index, names in enumerate(classes):
        for name in names:
            indices.setdefault(name, []).append(index)
    return indices


def _matches(names: tuple[str, ...], indices: Mapping[str, list[int]]) -> Sequence[int]:
    return sorted({index for name in names for index in indices.get(name, ())})


def _skeletons(name: str | Label) -> tuple[str, ...]:
    names = (name,) if isinstance(name, str) else (name.name, *name.same_as)
    return tuple({_REPRESENTATIVES.get(form, form): None for form in map(skeleton, names)})


def _quoted(name: str | Label) -> str:
    return repr(name if isinstance(name, str) else name.name)


MAX_NAMED = 12
"""Maximal number of classes named in a message; further ones are counted."""
MAX_LOOK_ALIKES = 3
MAX_COMPARISONS, MAX_CACHED_CLASSES = 512, 500_000
"""Cache limits: comparisons, and classes in all of them. Pairs with the same head and data share one comparison."""

Labels = tuple[Label, ...]
Pairs = tuple[tuple[int, int], ...]

_cache: dict[tuple[int, int, str], tuple[Labels, Labels, tuple[Finding, ...], Pairs]] = {}


def label_findings(classes: Labels, outputs: Labels, *, head: str = "the head") -> tuple[Finding, ...]:
    """Return the findings about the classes of the requested data and those of a head.

    Args:
        classes: Classes of the data.
        outputs: Classes of the head, in the order of its outputs.
        head: Name of the head, for messages.

    Raises:
        DataError: Two classes of one side have the same name, or one matches two of the other side.
    """
    return _cached_comparison(classes, outputs, head)[2]


def shared_classes(classes: Labels, outputs: Labels, *, head: str = "the head") -> Pairs:
    """Return index pairs of the classes that both sides have, in the order of ``classes``; see ``common``.

    Args:
        classes: Classes of the images.
        outputs: Classes of the head.
        head: Name of the head, for messages.

    Raises:
        DataError: Two classes of one side have the same name, or one matches two of the other side.
    """
    return _cached_comparison(classes, outputs, head)[3]


def _cached_comparison(
    classes: Labels, outputs: Labels, head: str
) -> tuple[Labels, Labels, tuple[Finding, ...], Pairs]:
    # Keyed by identity: hashing a thousand labels takes longer than the rest of a check. The objects are stored with
    # the result so that their identities cannot be reused.
    key = id(classes), id(outputs), head
    result = _cache.get(key)
    if result is None:
        cached_classes = sum(len(entry[0]) + len(entry[1]) for entry in list(_cache.values()))
        if len(_cache) >= MAX_COMPARISONS or cached_classes > MAX_CACHED_CLASSES:
            _cache.clear()
        owners = "the classes of the requested data", f"the classes of {head}"
        pairs = tuple(common(classes, outputs, owners=owners))
        result = _cache[key] = classes, outputs, _findings(classes, outputs, pairs), pairs
    return result


def class_list(labels: Sequence[Label]) -> str:
    """Return the first class names as text, with the total if there are more."""
    if not labels:
        return "no named classes"
    return first_names([label.name for label in labels])


def first_names(classes: Sequence[str]) -> str:
    """Return the first names as text, with the total if there are more."""
    more = f", ... ({len(classes)} classes)" if len(classes) > MAX_NAMED else ""
    return ", ".join(classes[:MAX_NAMED]) + more


def _findings(classes: Labels, outputs: Labels, pairs: Pairs) -> tuple[Finding, ...]:
    if len(pairs) == len(classes) == len(outputs):
        return ()
    subject = "classes of the requested data, classes of the head"
    alike = _look_alike_findings(classes, outputs, look_alikes(classes, outputs, pairs))
    if not pairs:
        remedy = "accuracy is not defined; choose data with a class of the head, or rename equal classes"
        disjoint = Finding(
            "labels-disjoint", "data", "warns", class_list(classes), class_list(outputs), subject, remedy
        )
        return disjoint, *alike
    counted = class_list([classes[index] for index, _ in pairs])
    remedy = f"only the {len(pairs)} classes in common are counted: {counted}"
    partial = Finding(
        "labels-partial", "data", "informs", class_list(classes), class_list(outputs), subject, remedy
    )
    return partial, *alike


def _look_alike_findings(
    classes: Labels, outputs: Labels, pairs: Sequence[tuple[int, int]]
) -> tuple[Finding, ...]:
    if not pairs:
        return ()
    more = f" and {len(pairs) - MAX_LOOK_ALIKES} more" if len(pairs) > MAX_LOOK_ALIKES else ""
    expected = ", ".join(_with_code_points(classes[index]) for index, _ in pairs[:MAX_LOOK_ALIKES])
    actual = ", ".join(_with_code_points(outputs[index]) for _, index in pairs[:MAX_LOOK_ALIKES])
    return (
        Finding(
            "labels-look-alike",
            "data",
            "warns",
            expected + more,
            actual + more,
            "classes of the requested data, classes of the head: they look the same but are different characters",
            "rename one side if they mean the same class; look-alike names are never matched",
        ),
    )


def _with_code_points(label: Label) -> str:
    """Return a name, followed by its non-ASCII characters."""
    characters = non_ascii("".join((label.name, *label.same_as)))
    return f"{label.name!r}" + (f" ({characters})" if characters else "")

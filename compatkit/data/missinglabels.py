"""Texts that are no names of classes, at any door: marks of a missing label, and the names of parts alone.

A label that is written down (a cell of a table, a ``.cls`` member) may be no mark in any case. A name that is declared
(a folder, a pack's ``classes``, a ``ClassLabel``) may be none as programs spell it: ``none`` is a class there, ``None``
is not. What ``classes.txt`` names is a class, unless it is no word at all, such as ``nan``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from compatkit.data.splitnames import are_parts
from compatkit.errors import DataError

NUMBERS = frozenset(["", "nan", "-nan", "+nan", "<na>", "#n/a", "#na", "nat", "<null>", "1.#qnan", "-1.#ind"])
"""Marks that are never names of a class, in lower case."""
WRITTEN = NUMBERS | {"none", "null", "nil", "na", "n/a", "n.a.", "undefined", "?", "-", "--", "."}
"""Marks in a cell of a table, in lower case."""
DECLARED = frozenset(["None", "NONE", "null", "Null", "NULL", "NA", "N/A", "n/a", "undefined", "-1", "?"])
"""Marks as programs spell them, for which a class may have been made."""
_NEGATIVE = re.compile(r"-[0-9]+(\.0*)?")
_FLOAT = re.compile(r"[0-9]+\.0*")
_QUOTES = ('"', "'", "`", "\u201c\u201d", "\u2018\u2019", "\u201e\u201c", "\u00ab\u00bb")


def check_written(labels: Sequence[str], where: object, declared: Iterable[str] = ()) -> None:
    """Refuse labels of images that mark a missing label, or that kept their quotes.

    Args:
        labels: As they are written, stripped.
        where: Of the labels, for messages.
        declared: Names that ``classes.txt`` gives.

    Raises:
        DataError: There are some.
    """
    names = set(declared)
    no_word = next((name for name in names if name.casefold() in NUMBERS), None)
    if no_word is not None:
        raise DataError(
            f"{where}: classes.txt names the class {no_word!r}, which marks a missing label. Leave its images out.",
            subject=no_word,
        )
    if not names:
        _check_parts(labels, where, "if these are classes, list them in classes.txt, one a line")
        _check_whole(labels, where)
    for label, count in Counter(labels).items():
        missing = label.casefold() in WRITTEN or _NEGATIVE.fullmatch(label) is not None
        if label in names and label.casefold() not in NUMBERS:
            continue
        if missing or _quoted(label):
            reason = "marks a missing label" if missing else "kept its quotes"
            raise DataError(
                f"{where}: the label {label!r:.60} {reason} ({count:,} of {len(labels):,}, the first is number "
                f"{labels.index(label) + 1:,}). Write the class there, or leave these images out"
                f"{_way_out(label)}.",
                subject=label,
            )


def check_declared(names: Iterable[str], where: object, way_out: str) -> None:
    """Refuse names of classes that programs make of missing labels.

    Args:
        names: Of the classes.
        where: Of the names, for messages.
        way_out: What to do where it is a class, for messages.

    Raises:
        DataError: There is one.
    """
    names = tuple(names)
    _check_parts(names, where, way_out)
    for name in names:
        missing = name.strip().casefold() in NUMBERS or name.strip() in DECLARED
        if missing or _quoted(name):
            reason = "marks a missing label: leave its images out" if missing else "kept its quotes"
            raise DataError(
                f"{where}: the class {name!r:.60} {reason}. {way_out}",
                subject=name,
            )


def _check_parts(names: Iterable[str], where: object, way_out: str) -> None:
    if are_parts(names):
        raise DataError(
            f"{where}: the classes are {', '.join(sorted(set(names)))}, which are parts of a data set. Give the "
            f"classes of the images; {way_out}",
            subject=where,
        )


def _check_whole(labels: Sequence[str], where: object) -> None:
    """Refuse labels that are all numbers as ``1.0``: a table writes whole numbers so where some are missing."""
    if labels and all(_FLOAT.fullmatch(label) for label in set(labels)):
        raise DataError(
            f"{where}: the labels are numbers with a point, such as {labels[0]}. Write whole numbers or names; if they "
            "are names, list them in classes.txt, one a line.",
            subject=labels[0],
        )


def _quoted(label: str) -> bool:
    return len(label) > 1 and any(label[0] == pair[0] and label[-1] == pair[-1] for pair in _QUOTES)


def _way_out(label: str) -> str:
    if label.casefold() in NUMBERS:
        return ""
    return "; if it is a class, list it with all others in classes.txt, one a line"

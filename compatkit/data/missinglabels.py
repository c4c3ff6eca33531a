"""Refuse labels that mark a missing label (``nan``, ``None``, ``-1``), and class names that are those of splits.

Labels stored as text (a cell of a table, a ``.cls`` member) are compared in any case. Declared names (folders, a
pack's ``classes``, a ``ClassLabel``) are compared as programs spell them: ``none`` may be a class there, ``None`` may
not. Names in ``classes.txt`` are classes, except marks that are never words, such as ``nan``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence

from compatkit.data.splitnames import are_split_names
from compatkit.errors import DataError

NEVER_NAMES = frozenset(
    ["", "nan", "-nan", "+nan", "<na>", "#n/a", "#na", "nat", "<null>", "1.#qnan", "-1.#ind"]
)
"""Marks that are never a class name, in lower case."""
IN_CELLS = NEVER_NAMES | {"none", "null", "nil", "na", "n/a", "n.a.", "undefined", "?", "-", "--", "."}
"""Marks in a cell of a table, in lower case."""
AS_NAMES = frozenset(["None", "NONE", "null", "Null", "NULL", "NA", "N/A", "n/a", "undefined", "-1", "?"])
"""Marks, as programs spell them, that may have been made into a class."""
_NEGATIVE = re.compile(r"-[0-9]+(\.0*)?")
_FLOAT = re.compile(r"[0-9]+\.0*")
_QUOTES = ('"', "'", "`", "\u201c\u201d", "\u2018\u2019", "\u201e\u201c", "\u00ab\u00bb")


def check_label_texts(labels: Sequence[str], source: object, declared: Iterable[str] = ()) -> None:
    """Refuse labels of images that mark a missing label, or that are still quoted.

    Args:
        labels: Labels as text, stripped.
        source: File of the labels, for messages.
        declared: Names in ``classes.txt``.

    Raises:
        DataError: There is such a label.
    """
    names = set(declared)
    mark = next((name for name in names if name.casefold() in NEVER_NAMES), None)
    if mark is not None:
        raise DataError(
            f"{source}: classes.txt names the class {mark!r}, which marks a missing label. Remove its images.",
            subject=mark,
        )
    if not names:
        _check_not_splits(labels, source, "If these are classes, list them in classes.txt, one per line.")
        # Programs write integers as 1.0 if some are missing.
        if labels and all(_FLOAT.fullmatch(label) for label in set(labels)):
            raise DataError(
                f"{source}: the labels are decimal numbers, such as {labels[0]}. Write integers or names; if they are "
                "names, list them in classes.txt, one per line.",
                subject=labels[0],
            )
    for label, count in Counter(labels).items():
        never = label.casefold() in NEVER_NAMES
        missing = label.casefold() in IN_CELLS or _NEGATIVE.fullmatch(label) is not None
        if (missing or _quoted(label)) and (never or label not in names):
            reason = "marks a missing label" if missing else "is quoted"
            hint = "" if never else " If it is a class, list all classes in classes.txt, one per line."
            raise DataError(
                f"{source}: the label {label!r:.60} {reason} ({count:,} of {len(labels):,}, first at number "
                f"{labels.index(label) + 1:,}). Correct it, or remove these images.{hint}",
                subject=label,
            )


def check_class_names(names: Iterable[str], source: object, advice: str) -> None:
    """Refuse declared class names that programs create for missing labels.

    Args:
        names: Names of the classes.
        source: Data set of the names, for messages.
        advice: End of the message: what to do if the name is a class.

    Raises:
        DataError: There is such a name.
    """
    names = tuple(names)
    _check_not_splits(names, source, advice)
    for name in names:
        missing = name.strip().casefold() in NEVER_NAMES or name.strip() in AS_NAMES
        if missing or _quoted(name):
            reason = "marks a missing label; remove its images" if missing else "is quoted"
            raise DataError(f"{source}: the class {name!r:.60} {reason}. {advice}", subject=name)


def _check_not_splits(names: Iterable[str], source: object, advice: str) -> None:
    if are_split_names(names):
        raise DataError(
            f"{source}: the labels {', '.join(sorted(set(names)))} are names of splits, not classes. {advice}",
            subject=source,
        )


def _quoted(label: str) -> bool:
    return len(label) > 1 and any(label[0] == pair[0] and label[-1] == pair[-1] for pair in _QUOTES)

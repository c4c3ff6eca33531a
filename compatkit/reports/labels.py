"""Shorten names for pictures: parts that all names share are clipped, and labels stay distinct."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from compatkit.reports.wording import clip

GAP = "…"
PIECES = re.compile(r"[^\W\d_]{1,12}\d+|[^\W\d_]+|\d+|[\W_]+")
"""Words with their numbers, such as seed0, and separators."""


def shorten_names(names: Sequence[str], letters: int) -> list[str]:
    """Return a label of about ``letters`` characters for each name; different names have different labels.

    A name that is longer by at most a quarter is not shortened, as little would be saved.

    Args:
        names: Names in the order of the picture.
        letters: Maximal length of a shortened name, at least 12.
    """
    unique = list(dict.fromkeys(names))
    shared = _shared_pieces(unique)
    labels = {
        name: name if len(name) <= letters + letters // 4 else clip(_clipped(name, shared, letters), letters)
        for name in unique
    }
    counts = Counter(labels.values())
    for number, name in enumerate(unique, 1):
        if counts[labels[name]] > 1:
            mark = f"{GAP}#{number}"
            labels[name] = clip(labels[name], letters - len(mark)) + mark
    return [labels[name] for name in names]


def _shared_pieces(names: Sequence[str]) -> Counter[str]:
    """Return the pieces that all names contain, with their minimal counts."""
    pieces = [Counter(PIECES.findall(name)) for name in names]
    shared = pieces[0] if len(names) > 1 else Counter[str]()
    for other in pieces[1:]:
        shared = shared & other
    return shared


def _clipped(name: str, shared: Counter[str], letters: int) -> str:
    """Return a name with runs of shared pieces clipped, the longest run first, until it fits."""
    remaining, runs = Counter(shared), list[tuple[bool, str]]()
    for piece in PIECES.findall(name):
        is_shared = remaining[piece] > 0
        remaining[piece] -= is_shared
        before = runs.pop()[1] if runs and runs[-1][0] == is_shared else ""
        runs.append((is_shared, before + piece))
    texts = [text for _, text in runs]
    for index in sorted(range(len(runs)), key=lambda index: -len(texts[index])):
        excess = len("".join(texts)) - letters
        if excess > 0 and runs[index][0]:
            texts[index] = clip(texts[index], max(len(GAP), len(texts[index]) - excess))
    return "".join(texts)

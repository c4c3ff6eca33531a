"""Short labels of parts for pictures: what all names share is left out, what differs stays, no two are alike."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from compatkit.reports.wording import clip

GAP = "…"
PIECES = re.compile(r"[^\W\d_]{1,12}\d+|[^\W\d_]+|\d+|[\W_]+")
"""Words with their numbers, such as seed0, and what is between them."""


def shortened(names: Sequence[str], letters: int) -> list[str]:
    """Return a label of about so many letters for each name; different names have different labels.

    A name that is longer by at most a quarter stays whole: to leave out so little costs more than it saves.

    Args:
        names: In the order of the picture.
        letters: Most letters of an abbreviated name, at least 12.
    """
    different = list(dict.fromkeys(names))
    shared = _shared(different)
    labels = {
        name: name if len(name) <= letters + letters // 4 else clip(_fitted(name, shared, letters), letters)
        for name in different
    }
    counts = Counter(labels.values())
    for number, name in enumerate(different, 1):
        if counts[labels[name]] > 1:
            mark = f"{GAP}#{number}"
            labels[name] = clip(labels[name], letters - len(mark)) + mark
    return [labels[name] for name in names]


def _shared(names: Sequence[str]) -> Counter[str]:
    """Return the words that every name has, and how often at least."""
    words = [Counter(PIECES.findall(name)) for name in names]
    shared = words[0] if len(names) > 1 else Counter[str]()
    for other in words[1:]:
        shared = shared & other
    return shared


def _fitted(name: str, shared: Counter[str], letters: int) -> str:
    """Return a name that is clipped within shared words, the longest run of them first, until it fits."""
    left, runs = Counter(shared), list[tuple[bool, str]]()
    for piece in PIECES.findall(name):
        common = left[piece] > 0
        left[piece] -= common
        before = runs.pop()[1] if runs and runs[-1][0] == common else ""
        runs.append((common, before + piece))
    texts = [text for _, text in runs]
    for place in sorted(range(len(runs)), key=lambda place: -len(texts[place])):
        excess = len("".join(texts)) - letters
        if excess > 0 and runs[place][0]:
            texts[place] = clip(texts[place], max(len(GAP), len(texts[place]) - excess))
    return "".join(texts)

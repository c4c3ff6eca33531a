"""How class names are written: what makes no difference, and what only looks the same.

Case, spaces, underscores and Unicode composition make no difference. A letter of another script that looks like a
Latin one does: such names are told apart, and ``skeleton`` finds them so that somebody is told.
"""

from __future__ import annotations

import unicodedata
from functools import lru_cache

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

Width and style need no entry: compatibility decomposition (NFKD) removes them.
"""
NAMED = 4
"""More characters than this are counted, not named."""


@lru_cache(maxsize=2**16)  # the parts of one task name the same classes
def spelling(name: str) -> str:
    """Return ``name`` without differences in case, spaces, underscores and Unicode composition."""
    if name.isascii():
        return " ".join(name.lower().replace("_", " ").split())
    folded = unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())
    return " ".join(folded.replace("_", " ").split())


@lru_cache(maxsize=2**16)
def skeleton(name: str) -> str:
    """Return the spelling of what ``name`` looks like: Latin for look-alikes, nothing for what is invisible."""
    if name.isascii():
        return spelling(name)
    # Mapped first as it is: some look-alikes decompose into letters that are none.
    decomposed = unicodedata.normalize("NFKD", name.translate(_LOOK_LATIN)).translate(_LOOK_LATIN)
    return spelling("".join(one for one in decomposed if not _invisible(one)))


def strange(name: str) -> str:
    """Return which characters of ``name`` are not ASCII, by code point and Unicode name; ``""`` for none."""
    found = list(dict.fromkeys(one for one in name if not one.isascii()))
    named = [f"U+{ord(one):04X} {unicodedata.name(one, 'without a name')}" for one in found[:NAMED]]
    return ", ".join(named) + (f" and {len(found) - NAMED} more" if len(found) > NAMED else "")


def _invisible(one: str) -> bool:
    """Format characters (zero-width, direction, soft hyphen), variation selectors, the grapheme joiner."""
    return unicodedata.category(one) == "Cf" or "\ufe00" <= one <= "\ufe0f" or one == "\u034f"
